package pacase

import (
	"errors"
	"fmt"

	"scanonce/internal/boltfile"
)

// DamageError says that the file of cases cannot be trusted any more. Nothing is read from it or written to it
// until it is opened anew: a damaged page could hide an open case or a denial.
type DamageError struct {
	Path   string
	Detail string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("the file of cases %s is damaged: %s", e.Path, e.Detail)
}

// Hint says what to do.
func (e *DamageError) Hint() string {
	return "stop the agent, put the file back from a copy (or move it away to begin without cases), and start it again"
}

// damaged makes the store's own error of what was found wrong with its file.
func damaged(path string, err error) error {
	var f *boltfile.Fault
	switch {
	case errors.As(err, &f):
		return &DamageError{Path: path, Detail: f.Detail}
	case errors.Is(err, errDamaged):
		return &DamageError{Path: path, Detail: err.Error()}
	}
	return err
}
