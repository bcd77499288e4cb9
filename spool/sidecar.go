package spool

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"scanonce/window"
)

const (
	sidecarName = "sidecar.json"
	stateName   = "state.db"
	segmentExt  = ".seg"
	asideName   = "quarantine"
)

// sidecar says what must exist, so that an empty or missing file cannot pass for a new one. It is written, by
// rename and with both fsyncs, after a segment is made and before that takes anything, and again before a
// settled one is unlinked: a segment that it does not name has nothing that is still needed. It has a sum, since
// a wrong digit in it could cut records off.
type sidecar struct {
	Version  int         `json:"version"`
	Agent    string      `json:"agent_id"`
	Epoch    string      `json:"spool_epoch"`
	Clock    window.Mark `json:"clock"`
	Clean    bool        `json:"clean"`    // the last stop told everything and closed everything
	HasState bool        `json:"state_db"` // state.db has been made
	// InDoubt lists, at a clean stop, the scanners that were not heard since an unclean one: what they were not
	// told then they were not told yet.
	InDoubt []string `json:"in_doubt,omitempty"`
	// State is a copy of state.db's header, as the segments' entries have copies of theirs: a file with a
	// damaged header can be read by it, and a wrong key is told from damage.
	State *fileHead `json:"state_head,omitempty"`
	// Segments lists the segments that may hold records, in the order of their making, with the sequence
	// number at which each begins: what lies behind a later segment's first number was never acknowledged.
	Segments []segmentEntry `json:"segments"`
	// Next is the number of the next record while no segment takes any: the last one ends before it. 0 else.
	Next uint64 `json:"next_seq,omitempty"`
	// Settled is the number of the last settlement when this was written: a state.db with a lower one is an older one.
	Settled uint64 `json:"settled,omitempty"`
	// Copy says that this is a backup: whoever uses it goes on from the time of the copy.
	Copy bool `json:"copy,omitempty"`
}

type segmentEntry struct {
	Name  string    `json:"name"`
	First uint64    `json:"first_seq"`
	Last  uint64    `json:"last_seq,omitempty"` // of one that takes no more; 0 if not known
	Head  *fileHead `json:"head,omitempty"`
}

// readSidecar returns false if there is none. A *DamageError says that there is one and that nothing of it counts.
func readSidecar(dir string) (sidecar, bool, error) {
	path := filepath.Join(dir, sidecarName)
	if fi, err := os.Stat(path); err == nil && !fi.Mode().IsRegular() || leadsAstray(err) || errors.Is(err, fs.ErrNotExist) && occupied(path) {
		return sidecar{}, true, &DamageError{sidecarName, "it is no file"}
	}
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sidecar{}, false, nil
	case errors.Is(err, syscall.EIO):
		return sidecar{}, true, &DamageError{sidecarName, "it cannot be read"}
	case err != nil:
		return sidecar{}, false, fmt.Errorf("cannot read the spool's sidecar: %w", err)
	}
	fields, damaged := map[string]json.RawMessage{}, &DamageError{sidecarName, "it is garbled"}
	var sum string
	var version int
	if json.Unmarshal(b, &fields) != nil || json.Unmarshal(fields["sum"], &sum) != nil || json.Unmarshal(fields["version"], &version) != nil {
		if json.Unmarshal(fields["version"], &version) == nil && version < fileVersion && fields["sum"] == nil {
			return sidecar{}, true, &SchemaError{sidecarName, version} // of before the sums
		}
		return sidecar{}, true, damaged
	}
	if sum != sumOf(fields) {
		return sidecar{}, true, damaged
	}
	if version != fileVersion {
		return sidecar{}, true, &SchemaError{sidecarName, version}
	}
	var s sidecar
	if json.Unmarshal(b, &s) != nil {
		return sidecar{}, true, damaged
	}
	return s, true, nil
}

// sumOf is over all fields but the sum itself, whatever they are.
func sumOf(fields map[string]json.RawMessage) string {
	delete(fields, "sum")
	b, err := json.Marshal(fields) // sorted, and without blanks
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (s *sidecar) bytes() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &fields); err != nil {
		return nil, err
	}
	b = append(append(b[:len(b)-1], `,"sum":"`+sumOf(fields)...), `"}`...)
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func (s *sidecar) write(dir string) error {
	b, err := s.bytes()
	if err == nil {
		err = replaceFile(filepath.Join(dir, sidecarName), b)
	}
	if err != nil {
		return fmt.Errorf("cannot write the spool's sidecar: %w", err)
	}
	return nil
}
