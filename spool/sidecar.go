package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
// settled one is unlinked: a segment that it does not name has nothing that is still needed.
type sidecar struct {
	Version  int         `json:"version"`
	Agent    string      `json:"agent_id"`
	Epoch    string      `json:"spool_epoch"`
	Clock    window.Mark `json:"clock"`
	Clean    bool        `json:"clean"`    // the last stop told everything and closed everything
	HasState bool        `json:"state_db"` // state.db has been made
	// Segments lists the segments that may hold records, in the order of their making, with the sequence
	// number at which each begins: what lies behind a later segment's first number was never acknowledged.
	Segments []segmentEntry `json:"segments"`
	// Next is the number of the next record while no segment takes any: the last one ends before it. 0 else.
	Next uint64 `json:"next_seq,omitempty"`
}

type segmentEntry struct {
	Name  string `json:"name"`
	First uint64 `json:"first_seq"`
}

func readSidecar(dir string) (sidecar, bool, error) {
	var s sidecar
	b, err := os.ReadFile(filepath.Join(dir, sidecarName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, false, fmt.Errorf("cannot read the spool's sidecar: %w", err)
	}
	return s, true, nil
}

func (s *sidecar) write(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(dir, sidecarName), append(b, '\n')); err != nil {
		return fmt.Errorf("cannot write the spool's sidecar: %w", err)
	}
	return nil
}
