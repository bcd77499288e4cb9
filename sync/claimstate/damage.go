package claimstate

import (
	"errors"
	"fmt"

	"scanonce/internal/boltfile"
)

// DamageError says that what a store holds cannot be trusted. A damaged file is left alone until it is opened
// anew: a claim that it hides would begin a second time.
type DamageError struct {
	Where  string // "the file …"
	Detail string
	hint   string
	file   bool
}

// OfFile says that a whole file is damaged, and not one claim.
func (e *DamageError) OfFile() bool { return e.file }

func (e *DamageError) Error() string { return fmt.Sprintf("cannot use %s: %s", e.Where, e.Detail) }

// Hint says what to do.
func (e *DamageError) Hint() string { return e.hint }

func fileDamage(path, detail string) error {
	return &DamageError{file: true, Where: "the claims file " + path, Detail: "it is damaged: " + detail,
		hint: "stop the agent, put the file back from a copy (or move it away to begin a new one), and start it again"}
}

// damaged makes the store's own error of what was found wrong with its file.
func damaged(path string, err error) error {
	var f *boltfile.Fault
	switch {
	case errors.As(err, &f):
		return fileDamage(path, f.Detail)
	case errors.Is(err, errChecksum):
		return fileDamage(path, err.Error())
	}
	return err
}

var errChecksum = errors.New("a record does not fit its checksum")

// unseal returns the body of a record; see boltfile.Seal.
func unseal(bucket, key, record []byte) ([]byte, error) {
	body, ok := boltfile.Unseal(string(bucket), key, record)
	if !ok {
		return nil, errChecksum
	}
	return body, nil
}
