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
	if _, err := os.Lstat(filepath.Join(dir, sidecarName)); err == nil { // a damaged one proves it too
		return true, nil
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentExt))
	if err != nil || len(names) > 0 {
		return len(names) > 0, err
	}
	switch _, err := os.Lstat(filepath.Join(dir, stateName)); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, fmt.Errorf("cannot look into the spool folder: %w", err)
	}
}

// Marked says that a spool that is gone has left its mark in dir, which tells how far it got.
func Marked(dir string) bool {
	fi, err := os.Stat(filepath.Join(dir, markName))
	return err == nil && fi.Mode().IsRegular() && fi.Size() > 0
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

// Waiting says that records wait for a person.
func (s *Spool) Waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.state.exceptions {
		if x.State == Quarantined || x.State == Held {
			return true
		}
	}
	return false
}

// DiskFull says that what is left of the disk is for the drain: scans are refused until Maintain finds room.
func (s *Spool) DiskFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserve == reserveSpent
}

func fill(records, maxRecords, bytes, maxBytes int64) float64 {
	return max(float64(records)/float64(maxRecords), float64(bytes)/float64(maxBytes))
}
