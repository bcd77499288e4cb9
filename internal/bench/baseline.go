package main

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const floorRecord = 300 // bytes

// floor is the least that a durable acceptance can cost: one append and one fdatasync.
type floor struct {
	f      *os.File
	record []byte
}

func openFloor(path string) (*floor, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	fl := &floor{f: f, record: make([]byte, floorRecord)}
	rand.Read(fl.record)
	return fl, nil
}

func (f *floor) lone() error {
	if _, err := f.f.Write(f.record); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.f.Fd()))
}

func (f *floor) close() error { return f.f.Close() }

// updatePerScan is the intake without group commit: one bbolt Update with one Put for each scan, of a record as
// long as the spool's, under keys that only grow.
type updatePerScan struct {
	db     *bolt.DB
	record []byte
	n      uint64 // changed within a transaction only, and there is one at a time
}

var bucketScans = []byte("scans")

func openUpdatePerScan(path string, size int) (*updatePerScan, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket(bucketScans)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	u := &updatePerScan{db: db, record: make([]byte, size)}
	rand.Read(u.record)
	return u, nil
}

func (u *updatePerScan) lone() error {
	return u.db.Update(func(tx *bolt.Tx) error {
		u.n++
		return tx.Bucket(bucketScans).Put(binary.BigEndian.AppendUint64(nil, u.n), u.record)
	})
}

func (u *updatePerScan) close() error { return u.db.Close() }
