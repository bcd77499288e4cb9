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

// Fill is how full the spool is, by records or bytes, whichever is nearer to its bound; 1 is full.
func (s *Spool) Fill() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fill(s.unsettled, s.opts.MaxRecords, s.bytes(), s.opts.MaxBytes)
}

func fill(records, maxRecords, bytes, maxBytes int64) float64 {
	return max(float64(records)/float64(maxRecords), float64(bytes)/float64(maxBytes))
}
