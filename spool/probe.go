package spool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// extent is what a file holds.
type extent struct {
	Records uint64 `json:"records"`
	Notes   uint64 `json:"notes"`
	Values  uint64 `json:"values"` // all told
}

// inspect reads a file completely and authenticates every value of it. It maps nothing and leaves bbolt out. A
// *DamageError says that the file must not be used as it is.
func inspect(dir, name string, ring *KeyRing, kept *fileHead) (x extent, err error) {
	r, err := openRaw(filepath.Join(dir, name), name)
	if err != nil {
		return x, err
	}
	defer r.close()
	buckets, err := r.root()
	if err != nil {
		return x, err
	}
	header, proof, err := r.headOf(buckets)
	if err != nil {
		return x, err
	}
	head, seal, err := unlock(ring, name, header, proof, kept)
	if err != nil {
		return x, err
	}
	var lost ranges
	var trees []tree
	var names []string
	for n, t := range buckets {
		trees, names = append(trees, t), append(names, n)
	}
	want, note := head.First, uint64(0)
	if name != stateName {
		s := &segment{name: name}
		if err := s.look(r, ring, kept); err != nil {
			return x, err
		}
		lost = s.lost
		want = lost.skip(want)
	}
	var plain []byte
	var rec Record
	err = r.pages(trees, func(i int, k, v []byte) (err error) {
		x.Values++
		switch bucket := names[i]; {
		case bucket == string(bucketHead):
		case name == stateName || bucket == string(bucketLost):
			_, err = seal.open(bucket, k, v)
		default:
			if plain, err = seal.openOnce(plain[:0], bucket, k, v); err != nil {
				break
			}
			number := binary.BigEndian.Uint64(k)
			if bucket == string(bucketNotes) {
				x.Notes++
				var l Line
				if err = l.decode(plain); err == nil && number != note+1 && !head.Salvaged {
					err = fmt.Errorf("note %d is missing", note+1)
				}
				note = number
				break
			}
			x.Records++
			if err = rec.decode(plain); err == nil && number != want {
				err = fmt.Errorf("record %d is missing", want)
			}
			want = lost.skip(number + 1)
		}
		if err != nil {
			return r.damage("%v", err)
		}
		return nil
	})
	return x, err
}

// tryBolt reads a file completely with bbolt. What that does with a file that inspect has passed is not known
// to go wrong; it is for a process that may die of it.
func tryBolt(path, name string, want extent) error {
	var got extent
	err := guarded(name, func() error {
		db, err := bolt.Open(path, 0o600, boltOptions(true))
		if err != nil {
			return asDamage(name, err)
		}
		defer db.Close()
		return db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				return &DamageError{name, err.Error()}
			}
			return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
				return b.ForEach(func(_, v []byte) error {
					got.Values++
					return nil
				})
			})
		})
	})
	if err == nil && got.Values != want.Values {
		err = &DamageError{name, fmt.Sprintf("bbolt finds %d values of %d", got.Values, want.Values)}
	}
	return err
}

// probeFile is one file to be read by a probe.
type probeFile struct {
	Name string    `json:"name"`
	Kept *fileHead `json:"kept,omitempty"`
}

// probeOrder goes to the child's stdin: keys do not belong on a command line.
type probeOrder struct {
	Dir     string            `json:"dir"`
	Current string            `json:"current"`
	Keys    map[string]string `json:"keys"`
	Files   []probeFile       `json:"files"`
}

// probeReport is one line of the child's stdout.
type probeReport struct {
	Name   string `json:"name"`
	Begins bool   `json:"begins,omitempty"` // with this file; the result follows, unless the file is deadly
	Damage string `json:"damage,omitempty"`
	Error  string `json:"error,omitempty"` // not the file's fault
	extent
}

// Probe is the child process that reads files for a spool: it takes the order from in and tells of each file on
// out. It may die of a file: whoever started it learns from that. The caller's process should be limited in
// memory and time.
func Probe(in io.Reader, out io.Writer) error {
	var o probeOrder
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("cannot read what to probe: %w", err)
	}
	ring := &KeyRing{current: o.Current, keys: map[string][]byte{}}
	for id, k := range o.Keys {
		key, err := hex.DecodeString(k)
		if err != nil {
			return errors.New("cannot read the keys to probe with")
		}
		ring.keys[id] = key
	}
	enc := json.NewEncoder(out)
	for _, f := range o.Files {
		if err := enc.Encode(probeReport{Name: f.Name, Begins: true}); err != nil {
			return err
		}
		r := probeReport{Name: f.Name}
		x, err := inspect(o.Dir, f.Name, ring, f.Kept)
		if err == nil {
			err = tryBolt(filepath.Join(o.Dir, f.Name), f.Name, x)
		}
		var damaged *DamageError
		switch {
		case errors.As(err, &damaged):
			r.Damage = damaged.Detail
		case err != nil:
			r.Error = err.Error()
		default:
			r.extent = x
		}
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

const (
	probeStart   = 20 * time.Second
	probeRate    = 2 << 20 // bytes a second, which the slowest disk should reach
	probeMaxTime = 10 * time.Minute
)

// probe reads files completely, in a child process if there is one, and says what is wrong with each: nil, a
// *DamageError, or what kept it from looking.
func (s *Spool) probe(ctx context.Context, files []probeFile) []error {
	out := make([]error, len(files))
	done := 0
	for done < len(files) && s.opts.Probe != nil && ctx.Err() == nil {
		n, begun := s.probeInChild(ctx, files[done:], out[done:])
		done += n
		if begun { // and died of it, or is too slow
			out[done] = &DamageError{files[done].Name, "whoever reads it dies of it"}
			done++
		} else if n == 0 {
			break // no child can be had
		}
	}
	for ; done < len(files); done++ {
		if out[done] = ctx.Err(); out[done] == nil {
			_, out[done] = inspect(s.dir, files[done].Name, s.opts.Keys, files[done].Kept)
		}
	}
	return out
}

// probeInChild returns how many files the child has told of, and whether it ended in the middle of another.
func (s *Spool) probeInChild(ctx context.Context, files []probeFile, out []error) (n int, begun bool) {
	o := probeOrder{Dir: s.dir, Current: s.opts.Keys.current, Keys: map[string]string{}, Files: files}
	limit := s.patience
	for id, k := range s.opts.Keys.keys {
		o.Keys[id] = hex.EncodeToString(k)
	}
	for _, f := range files {
		limit += time.Duration(diskBytes(filepath.Join(s.dir, f.Name))/probeRate) * time.Second
	}
	order, err := json.Marshal(o)
	if err != nil {
		return 0, false
	}
	own, cancel := context.WithTimeout(ctx, min(limit, probeMaxTime))
	defer cancel()
	cmd := s.opts.Probe(own)
	cmd.Stdin = bytes.NewReader(order)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // it has the files locked
	cmd.WaitDelay = time.Second
	told, err := cmd.StdoutPipe()
	if err != nil {
		return 0, false
	}
	runtime.LockOSThread() // the death of this thread would count as that of the process
	defer runtime.UnlockOSThread()
	if cmd.Start() != nil {
		return 0, false
	}
	lines := bufio.NewScanner(told)
	for n < len(files) && lines.Scan() {
		var r probeReport
		if json.Unmarshal(lines.Bytes(), &r) != nil || r.Name != files[n].Name {
			break
		}
		if begun = r.Begins; begun {
			continue
		}
		switch {
		case r.Damage != "":
			out[n] = &DamageError{r.Name, r.Damage}
		case r.Error != "": // another key or format than a moment ago, or no file descriptor
			_, out[n] = inspect(s.dir, r.Name, s.opts.Keys, files[n].Kept)
		default:
			out[n] = nil
		}
		n++
	}
	io.Copy(io.Discard, told)
	cmd.Wait()
	return n, begun && ctx.Err() == nil
}
