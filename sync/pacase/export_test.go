package pacase

import (
	"os"

	bolt "go.etcd.io/bbolt"

	"scanonce/internal/boltfile"
)

// CountCases counts the cases in a copy of the file, as a process that holds it can be asked by no other.
func CountCases(path string) (n int, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	tmp := path + ".copy"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return 0, err
	}
	defer os.Remove(tmp)
	db, err := OpenFile(tmp)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bktCases)).ForEach(func(_, _ []byte) error { n++; return nil })
	})
	return n, err
}

// Create makes a file of cases as the first opener does.
func Create(path string) error { return create(path) }

// OpenFile opens a file of cases as it is, for tests that damage it.
func OpenFile(path string) (*bolt.DB, error) {
	return boltfile.Open(path, false, func(*bolt.DB) error { return nil })
}
