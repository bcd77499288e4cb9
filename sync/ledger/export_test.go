package ledger

import bolt "go.etcd.io/bbolt"

// OfDB is a ledger on an open bbolt file, for tests that damage it.
func OfDB(db *bolt.DB) *Embedded { return &Embedded{db: db} }

// Create makes a ledger file as the first opener does.
func Create(path string) error { return create(path) }
