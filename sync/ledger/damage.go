package ledger

import (
	"errors"
	"fmt"

	"scanonce/internal/boltfile"
)

// DamageError says that the embedded ledger's file cannot be trusted any more. Nothing is read from it or
// written to it until it is opened anew: a damaged page could hide a key, and a movement would count twice.
type DamageError struct {
	Path   string
	Detail string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("the ledger file %s is damaged: %s", e.Path, e.Detail)
}

// Hint says what to do.
func (e *DamageError) Hint() string {
	return "stop the agent, put the file back from a copy (or move it away to begin a new ledger), and start it again"
}

// damaged makes the ledger's own error of what was found wrong with its file.
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
