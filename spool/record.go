package spool

import (
	"encoding/binary"
	"errors"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// Record is one captured scan as the spool keeps it: an acceptance, or a local duplicate of one. It holds
// no payload: the element string is there as a hash only. Empty text means none.
type Record struct {
	Seq   uint64 // assigned by the spool, gapless from 1
	Event idem.EventID

	// Of and OfSeq name the acceptance that this record duplicates; both are zero for an acceptance. A
	// duplicate has inherited its keys, type and quantity.
	Of     idem.EventID
	OfSeq  uint64
	Reason string // of a duplicate: bounce, resend, in_doubt

	Physical idem.Key
	Keys     idem.Keys
	Extras   string

	Scanner  string
	Type     window.ScanType
	Quantity int
	At       window.UTC
	Boot     time.Duration // boottime of the frame's last byte
	Anchor   time.Duration // boottime from which the local rule counts; Boot but for a converted duplicate
	Span     time.Duration // how long the local rule holds: W, or W+G at a shared scanner
	Quality  window.Quality
	Once     Once // the application's request that made it

	// Run is the first record of what may be a stored batch that came before, and of which this one is the last yet;
	// 0 if it is none. Batch names it once that is sure: the scanner's records from Run on wait for a person.
	Run   uint64
	Batch idem.EventID

	Item
}

// Item is what the barcode said, and what was concluded.
type Item struct {
	NDC, Lot           string // identity fields
	GTIN, HIBC, Serial string
	NDC11, NDC12       string
	Candidates         []string // NDC-11 readings that no directory has decided
	Expiry             string   // last usable calendar day, YYYY-MM-DD
	PkgLevel           int      // -1 none
	Flags              []string
	RxToken            string
	Symbology          string
	Length             int
}

// IsDuplicate says that the record counts as a retransmission.
func (r *Record) IsDuplicate() bool { return !r.Of.IsZero() }

// Line is an audit line: a decision, without payload. A zero key, event or time is none.
type Line struct {
	Event           idem.EventID
	At              window.UTC
	Key             idem.Key
	Ref             idem.EventID
	Outcome, Reason string
	Winner          idem.EventID
	Scanner         string
	Type            window.ScanType
	CapturedAt      window.UTC
	TTL             int // ms
	Length          int
	Symbology       string
}

const (
	codecVersion = 1
	codecOnce    = 2 // a record with Once behind the rest
	codecRun     = 3 // a record with Once, Run and Batch behind the rest
)

var errCodec = errors.New("cannot decode the record")

// encoder appends; decoder reads what encoder wrote and remembers the first failure.
type encoder struct{ b []byte }

func (e *encoder) uint(v uint64)         { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) int(v int64)           { e.b = binary.AppendVarint(e.b, v) }
func (e *encoder) text(s string)         { e.uint(uint64(len(s))); e.b = append(e.b, s...) }
func (e *encoder) event(id idem.EventID) { e.b = append(e.b, id[:]...) }

func (e *encoder) texts(s []string) {
	e.uint(uint64(len(s)))
	for _, v := range s {
		e.text(v)
	}
}

func (e *encoder) key(k idem.Key) {
	e.b = append(e.b, byte(k.Kind))
	if !k.IsZero() {
		e.b = append(e.b, k.Hash[:]...)
	}
}

type decoder struct {
	b    []byte
	rest string // b as it was at the first text: all texts are parts of it
	bad  bool
}

func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text() string {
	n := d.uint()
	if n == 0 {
		return ""
	}
	if d.rest == "" {
		d.rest = string(d.b)
	}
	from := len(d.rest) - len(d.b)
	return d.rest[from : from+len(d.take(n))]
}

func (d *decoder) texts() []string {
	n := d.uint()
	if n > uint64(len(d.b)) { // each takes at least its length byte
		d.bad = true
		return nil
	}
	var s []string
	for range n {
		s = append(s, d.text())
	}
	return s
}

func (d *decoder) event() (id idem.EventID) { copy(id[:], d.take(16)); return id }

func (d *decoder) key() (k idem.Key) {
	if b := d.take(1); b != nil {
		k.Kind = idem.Kind(b[0])
	}
	if k.IsZero() {
		return k
	}
	copy(k.Hash[:], d.take(32))
	return k
}

func (d *decoder) end() error {
	if d.bad || len(d.b) != 0 {
		return errCodec
	}
	return nil
}

func (r *Record) append(b []byte) []byte {
	version := byte(codecVersion)
	switch {
	case r.Run != 0:
		version = codecRun
	case !r.Once.IsZero():
		version = codecOnce
	}
	e := encoder{append(b, version)}
	e.event(r.Event)
	e.uint(r.OfSeq)
	if r.IsDuplicate() {
		e.event(r.Of)
		e.text(r.Reason)
	}
	e.b = append(e.b, r.Physical.Hash[:]...)
	e.b = append(e.b, r.Keys.Idem.Hash[:]...)
	e.key(r.Keys.Edge)
	e.int(int64(r.Keys.Window))
	e.text(r.Extras)
	e.text(r.Scanner)
	e.b = append(e.b, byte(r.Type), byte(r.Quality))
	e.uint(uint64(r.Quantity))
	e.int(int64(r.At))
	e.int(int64(r.Boot))
	e.int(int64(r.Boot - r.Anchor))
	e.int(int64(r.Span / time.Millisecond))
	it := &r.Item
	for _, s := range [...]string{it.NDC, it.Lot, it.GTIN, it.HIBC, it.Serial, it.NDC11, it.NDC12, it.Expiry, it.RxToken, it.Symbology} {
		e.text(s)
	}
	e.texts(it.Candidates)
	e.texts(it.Flags)
	e.int(int64(it.PkgLevel))
	e.uint(uint64(it.Length))
	if version != codecVersion {
		e.b = append(append(e.b, r.Once.Key[:]...), r.Once.Request[:]...)
	}
	if version == codecRun {
		e.uint(r.Run)
		e.event(r.Batch)
	}
	return e.b
}

func (r *Record) decode(b []byte) error {
	d := decoder{b: b}
	v := d.take(1)
	if v == nil || v[0] < codecVersion || v[0] > codecRun {
		return errCodec
	}
	*r = Record{Seq: r.Seq, Event: d.event(), OfSeq: d.uint()}
	if r.OfSeq != 0 {
		r.Of = d.event()
		r.Reason = d.text()
	}
	r.Physical.Kind, r.Keys.Idem.Kind = idem.Physical, idem.Idem
	copy(r.Physical.Hash[:], d.take(32))
	copy(r.Keys.Idem.Hash[:], d.take(32))
	r.Keys.Edge = d.key()
	r.Keys.Window = window.Index(d.int())
	r.Extras = d.text()
	r.Scanner = d.text()
	if tq := d.take(2); tq != nil {
		r.Type, r.Quality = window.ScanType(tq[0]), window.Quality(tq[1])
	}
	r.Quantity = int(d.uint())
	r.At = window.UTC(d.int())
	r.Boot = time.Duration(d.int())
	r.Anchor = r.Boot - time.Duration(d.int())
	r.Span = time.Duration(d.int()) * time.Millisecond
	it := &r.Item
	for _, s := range [...]*string{&it.NDC, &it.Lot, &it.GTIN, &it.HIBC, &it.Serial, &it.NDC11, &it.NDC12, &it.Expiry, &it.RxToken, &it.Symbology} {
		*s = d.text()
	}
	it.Candidates = d.texts()
	it.Flags = d.texts()
	it.PkgLevel = int(d.int())
	it.Length = int(d.uint())
	if v[0] != codecVersion {
		copy(r.Once.Key[:], d.take(16))
		copy(r.Once.Request[:], d.take(16))
	}
	if v[0] == codecRun {
		r.Run, r.Batch = d.uint(), d.event()
	}
	return d.end()
}

func (l *Line) append(b []byte) []byte {
	e := encoder{append(b, codecVersion)}
	e.event(l.Event)
	e.int(int64(l.At))
	e.key(l.Key)
	e.event(l.Ref)
	e.text(l.Outcome)
	e.text(l.Reason)
	e.event(l.Winner)
	e.text(l.Scanner)
	e.b = append(e.b, byte(l.Type))
	e.int(int64(l.CapturedAt))
	e.uint(uint64(l.TTL))
	e.uint(uint64(l.Length))
	e.text(l.Symbology)
	return e.b
}

func (l *Line) decode(b []byte) error {
	d := decoder{b: b}
	if v := d.take(1); v == nil || v[0] != codecVersion {
		return errCodec
	}
	*l = Line{Event: d.event(), At: window.UTC(d.int()), Key: d.key(), Ref: d.event(), Outcome: d.text(),
		Reason: d.text(), Winner: d.event(), Scanner: d.text()}
	if t := d.take(1); t != nil {
		l.Type = window.ScanType(t[0])
	}
	l.CapturedAt = window.UTC(d.int())
	l.TTL = int(d.uint())
	l.Length = int(d.uint())
	l.Symbology = d.text()
	return d.end()
}
