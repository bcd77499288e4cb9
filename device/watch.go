package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLinks is the kernel's own limit of symlinks in a path.
const maxLinks = 40

// spot is a name in a folder that matters for a path: the path itself, a link or the node that it leads to,
// or the first part that does not exist yet.
type spot struct{ dir, name string }

// spots follows path through its symlinks. A folder that does not exist is stood for by its nearest
// existing parent.
func spots(path string) []spot {
	var out []spot
	for range maxLinks {
		dir, name := filepath.Split(filepath.Clean(path))
		dir = filepath.Clean(dir)
		missing := false
		for {
			fi, err := os.Stat(dir)
			if err == nil && fi.IsDir() {
				break
			}
			if dir == "/" {
				return out
			}
			missing = true
			dir, name = filepath.Dir(dir), filepath.Base(dir)
		}
		out = append(out, spot{dir, name})
		if missing {
			break
		}
		target, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			if dir, err = filepath.EvalSymlinks(dir); err != nil {
				break
			}
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return out
}

// pathWatch tells when what a path leads to may have appeared, gone, or changed its permissions. It watches
// folders by inotify and costs nothing while they do not change.
type pathWatch struct {
	paths []string // of the goroutine that arms
	file  *os.File // inotify
	tell  chan struct{}
	done  chan struct{}

	mu    sync.Mutex
	names map[int32]map[string]bool // by watch descriptor
}

const (
	watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ATTRIB |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	// watchGone are the events after which the watches themselves are no longer right.
	watchGone = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_Q_OVERFLOW
)

func newPathWatch(path string) (*pathWatch, error) {
	w, err := watchPaths(make(chan struct{}, 1))
	if err != nil {
		return nil, fmt.Errorf("cannot watch for %s: %w: raise fs.inotify.max_user_instances", path, err)
	}
	w.follow([]string{path})
	return w, nil
}

// watchPaths makes a watch that tells into tell, which has room for one signal.
func watchPaths(tell chan struct{}) (*pathWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &pathWatch{file: os.NewFile(uintptr(fd), "inotify"), tell: tell,
		done: make(chan struct{}), names: map[int32]map[string]bool{}}
	go w.read()
	return w, nil
}

// follow changes the paths, from the next arm on.
func (w *pathWatch) follow(paths []string) { w.paths = paths }

func (w *pathWatch) changed() <-chan struct{} { return w.tell }

func (w *pathWatch) close() {
	w.file.Close()
	<-w.done
}

// arm sets the watches for what the path leads to now. What changes while it looks is looked at again.
func (w *pathWatch) arm() {
	for range maxLinks {
		before := w.spots()
		w.set(before)
		if slices.Equal(before, w.spots()) {
			return
		}
	}
	w.signal() // it changes without end; the caller comes back
}

func (w *pathWatch) spots() []spot {
	var out []spot
	for _, path := range w.paths {
		out = append(out, spots(path)...)
	}
	return out
}

func (w *pathWatch) set(want []spot) {
	c, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c.Control(func(fd uintptr) {
		names := map[int32]map[string]bool{}
		for _, s := range want {
			wd, err := unix.InotifyAddWatch(int(fd), s.dir, watchMask)
			if err != nil {
				continue // the folder went away (spots are compared again) or may not be read (back-off finds it)
			}
			if names[int32(wd)] == nil {
				names[int32(wd)] = map[string]bool{}
			}
			names[int32(wd)][s.name] = true
		}
		for wd := range w.names {
			if names[wd] == nil {
				unix.InotifyRmWatch(int(fd), uint32(wd))
			}
		}
		w.names = names
	})
}

func (w *pathWatch) read() {
	defer close(w.done)
	var buf [64 * (unix.SizeofInotifyEvent + unix.NAME_MAX + 1)]byte
	for {
		n, err := w.file.Read(buf[:])
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				w.signal()
			}
			return
		}
		if w.matters(buf[:n]) {
			w.signal()
		}
	}
}

func (w *pathWatch) matters(events []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		// struct inotify_event of inotify(7): wd, mask, cookie, len, name padded with zeros.
		wd := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name := unix.ByteSliceToString(events[unix.SizeofInotifyEvent:end])
		events = events[end:]
		if mask&watchGone != 0 || w.names[wd][name] {
			return true
		}
	}
	return false
}

func (w *pathWatch) signal() {
	select {
	case w.tell <- struct{}{}:
	default:
	}
}
