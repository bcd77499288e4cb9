package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const maxSocketPath = 107 // sun_path holds 108 bytes with the NUL, unix(7)

// listenUnix makes the socket: 0660 with the group, or 0600 if there is no such group. It returns the
// group's id, or -1.
func listenUnix(ctx context.Context, path, group string, log *slog.Logger) (net.Listener, int, error) {
	if len(path) > maxSocketPath {
		return nil, -1, fmt.Errorf("cannot listen on %s: a socket's path has at most %d bytes; set a shorter api.socket", path, maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, -1, fmt.Errorf("cannot make the folder of the socket: %w; set api.socket to a folder that the agent may write", err)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, -1, err
	}
	// On Linux the mode of the unbound socket becomes that of the file: it is never open to others.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, -1, fmt.Errorf("cannot listen on %s: %w; set api.socket to a path that the agent may write", path, err)
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	made, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		u.Close()
		return nil, -1, fmt.Errorf("cannot set the mode of %s: %w", path, err)
	}
	gid := -1
	if group != "" {
		if gid, err = giveToGroup(path, group); err != nil {
			gid = -1
			log.Warn("only root and the agent's own user can use the socket", "socket", path, "group", group, "error", err)
		}
	}
	return &unixListener{UnixListener: u, path: path, made: made}, gid, nil
}

func giveToGroup(path, group string) (int, error) {
	g, err := user.LookupGroup(group)
	if err != nil {
		return -1, err
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1, err
	}
	if err := os.Chown(path, -1, gid); err != nil {
		return -1, err
	}
	return gid, os.Chmod(path, 0o660)
}

// removeStale removes the socket of a dead agent.
func removeStale(ctx context.Context, path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot look at %s: %w", path, err)
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("cannot listen on %s: it is no socket; move it away or set another api.socket", path)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		c.Close()
		return fmt.Errorf("cannot listen on %s: %w; stop it first", path, ErrSocketInUse)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether an agent answers on %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove the socket that a dead agent left: %w", err)
	}
	return nil
}

// unixListener removes its socket at Close, unless another one stands there by now.
type unixListener struct {
	*net.UnixListener
	path string
	made fs.FileInfo
	once sync.Once
}

func (l *unixListener) Close() error {
	l.once.Do(func() {
		if fi, err := os.Lstat(l.path); err == nil && os.SameFile(fi, l.made) {
			os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// peer is who connected to the socket.
type peer struct {
	uid, gid int
	groups   []int
}

// allowed says whether p is root, the agent's own user, or in the socket's group (-1: there is none).
func (p *peer) allowed(self, group int) bool {
	return p.uid == 0 || p.uid == self || group >= 0 && (p.gid == group || slices.Contains(p.groups, group))
}

// peerOf asks the kernel: SO_PEERCRED and SO_PEERGROUPS, socket(7), as they were at connect.
func peerOf(c *net.UnixConn) (*peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var p *peer
	var perr error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			perr = err
			return
		}
		groups, err := peerGroups(int(fd))
		p, perr = &peer{uid: int(cred.Uid), gid: int(cred.Gid), groups: groups}, err
	})
	if err = errors.Join(err, perr); err != nil {
		return nil, err
	}
	return p, nil
}

func peerGroups(fd int) ([]int, error) {
	buf := make([]uint32, 64)
	for {
		size := uint32(len(buf) * 4)
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case e == unix.ERANGE && int(size) > len(buf)*4:
			buf = make([]uint32, size/4)
			continue
		case e == unix.ENOPROTOOPT: // before Linux 4.13: the primary group alone counts
			return nil, nil
		case e != 0:
			return nil, e
		}
		groups := make([]int, size/4)
		for i := range groups {
			groups[i] = int(buf[i])
		}
		return groups, nil
	}
}
