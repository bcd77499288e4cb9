package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Used says whether dir has ever been a spool: then its key must exist and is never made anew.
func Used(dir string) (bool, error) {
	if _, found, err := readSidecar(dir); err != nil || found {
		return found, err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentExt))
	if err != nil || len(names) > 0 {
		return len(names) > 0, err
	}
	switch _, err := os.Stat(filepath.Join(dir, stateName)); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, fmt.Errorf("cannot look into the spool folder: %w", err)
	}
}

// Newest is the sequence number of the newest record, 0 if there has been none.
func (s *Spool) Newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next - 1
}
