package ledger

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"scanonce/window"
)

// arrays are the parameters of a statement that takes one array a column, in PostgreSQL's binary format. They
// are made by hand: with the driver's own codecs, the arrays of a batch took more of the agent's time than all
// else that it does for the batch.
type arrays struct {
	buf  []byte
	ends []int // of the parameters in buf
	oids []uint32
}

var arrayBuffers = sync.Pool{New: func() any { return new(arrays) }}

// add appends an array with an element for each of n. put appends the element's value, or says that it is null.
func (a *arrays) add(array, element uint32, n int, put func(b []byte, i int) (_ []byte, null bool)) {
	dimensions := uint32(1)
	if n == 0 {
		dimensions = 0
	}
	a.buf = binary.BigEndian.AppendUint32(a.buf, dimensions)
	nulls := len(a.buf)
	a.buf = binary.BigEndian.AppendUint32(a.buf, 0)
	a.buf = binary.BigEndian.AppendUint32(a.buf, element)
	if n > 0 {
		a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(n))
		a.buf = binary.BigEndian.AppendUint32(a.buf, 1) // the index of the first element
	}
	for i := range n {
		size := len(a.buf)
		a.buf = binary.BigEndian.AppendUint32(a.buf, 0)
		var null bool
		if a.buf, null = put(a.buf, i); null {
			a.buf = a.buf[:size+4]
			binary.BigEndian.PutUint32(a.buf[size:], 1<<32-1)
			binary.BigEndian.PutUint32(a.buf[nulls:], 1)
		} else {
			binary.BigEndian.PutUint32(a.buf[size:], uint32(len(a.buf)-size-4))
		}
	}
	a.ends = append(a.ends, len(a.buf))
	a.oids = append(a.oids, array)
}

// A column function adds a property of each of the items.

func texts[T any](a *arrays, items []*T, f func(*T) string) {
	a.add(pgtype.TextArrayOID, pgtype.TextOID, len(items), func(b []byte, i int) ([]byte, bool) { return append(b, f(items[i])...), false })
}

// hashes takes nil for null.
func hashes[T any](a *arrays, items []*T, f func(*T) []byte) {
	a.add(pgtype.ByteaArrayOID, pgtype.ByteaOID, len(items), func(b []byte, i int) ([]byte, bool) {
		h := f(items[i])
		return append(b, h...), h == nil
	})
}

// uuids takes nil for null.
func uuids[T any](a *arrays, items []*T, f func(*T) []byte) {
	a.add(pgtype.UUIDArrayOID, pgtype.UUIDOID, len(items), func(b []byte, i int) ([]byte, bool) {
		u := f(items[i])
		return append(b, u...), u == nil
	})
}

func int8s[T any](a *arrays, items []*T, f func(*T) int64) {
	a.add(pgtype.Int8ArrayOID, pgtype.Int8OID, len(items), func(b []byte, i int) ([]byte, bool) {
		return binary.BigEndian.AppendUint64(b, uint64(f(items[i]))), false
	})
}

func int4s[T any](a *arrays, items []*T, f func(*T) int) {
	a.add(pgtype.Int4ArrayOID, pgtype.Int4OID, len(items), func(b []byte, i int) ([]byte, bool) {
		return binary.BigEndian.AppendUint32(b, uint32(f(items[i]))), false
	})
}

func int2s[T any](a *arrays, items []*T, f func(*T) int) {
	a.add(pgtype.Int2ArrayOID, pgtype.Int2OID, len(items), func(b []byte, i int) ([]byte, bool) {
		return binary.BigEndian.AppendUint16(b, uint16(f(items[i]))), false
	})
}

// postgresEpoch is what a timestamptz counts its microseconds from.
var postgresEpoch = window.FromTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))

// instants takes 0 for null if nullable.
func instants[T any](a *arrays, items []*T, nullable bool, f func(*T) window.UTC) {
	a.add(pgtype.TimestamptzArrayOID, pgtype.TimestamptzOID, len(items), func(b []byte, i int) ([]byte, bool) {
		t := f(items[i])
		return binary.BigEndian.AppendUint64(b, uint64(int64(t-postgresEpoch)*1000)), nullable && t == 0
	})
}

// instant reads a timestamptz in binary format.
func instant(b []byte) window.UTC {
	micros := int64(binary.BigEndian.Uint64(b))
	return window.FromTime(postgresEpoch.Time().Add(time.Duration(micros) * time.Microsecond))
}

var binaryFormat = []int16{pgx.BinaryFormatCode}

// send runs a statement with arrays, and yields the values of its rows in binary format. It is over, and with
// it the transaction, when it returns nil.
func send(ctx context.Context, c *pgx.Conn, sql string, fill func(*arrays), row func([][]byte)) error {
	a := arrayBuffers.Get().(*arrays)
	defer arrayBuffers.Put(a)
	a.buf, a.ends, a.oids = a.buf[:0], a.ends[:0], a.oids[:0]
	fill(a)
	params := make([][]byte, len(a.ends))
	from := 0
	for i, end := range a.ends {
		params[i], from = a.buf[from:end:end], end
	}
	var res *pgconn.ResultReader
	if c.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		st, err := c.Prepare(ctx, sql, sql) // once a connection
		if err != nil {
			return err
		}
		res = c.PgConn().ExecPrepared(ctx, st.Name, params, binaryFormat, binaryFormat)
	} else {
		res = c.PgConn().ExecParams(ctx, sql, params, a.oids, binaryFormat, binaryFormat)
	}
	for res.NextRow() {
		row(res.Values())
	}
	_, err := res.Close()
	return err
}
