package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/capture"
	"scanonce/idem"
	"scanonce/spool"
	"scanonce/window"
)

const (
	facility  = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"
	scannerID = "SCN-04"
	listedNDC = "0093-7214-10"
	batchMost = 512 // frames that the agent's pipeline commits together
)

// label is the DataMatrix of a bottle as the DSCSA (21 U.S.C. 360eee) wants it: GTIN, serial number, expiry and
// lot. Each call of next gives the next serial number, in the same bytes.
type label struct {
	data []byte
	n    uint64
}

const (
	labelHead   = "]d2010030093721410621"
	labelSerial = "SN0000000000"
	labelTail   = "\x1d17271130" + "10A1207"
)

func newLabel() *label { return &label{data: []byte(labelHead + labelSerial + labelTail)} }

func (l *label) next() []byte {
	l.n++
	serial := l.data[len(labelHead)+2 : len(labelHead)+len(labelSerial)]
	n := l.n
	for i := len(serial) - 1; i >= 0; i-- {
		serial[i] = byte('0' + n%10)
		n /= 10
	}
	return l.data
}

func newDecoder() (*capture.Decoder, error) {
	dir, err := capture.ParseDirectory([]string{listedNDC})
	if err != nil {
		return nil, err
	}
	return capture.NewDecoder(capture.DecoderConfig{Directory: dir})
}

// outbox is a spool on the machine's clock, and what turns a frame into one of its records: the steps of the
// agent's pipeline between a frame and its acceptance.
type outbox struct {
	dir     string
	spool   *spool.Spool
	clock   *window.Clock
	decoder *capture.Decoder
	scan    capture.Scan
	today   capture.Date
	policy  window.Policy

	labels *label // of which no serial number is given twice
}

func openOutbox(dir string, host window.OS) (*outbox, error) {
	o := &outbox{dir: filepath.Join(dir, "spool"), policy: window.Default(window.Dispense), labels: newLabel()}
	var err error
	if o.decoder, err = newDecoder(); err != nil {
		return nil, err
	}
	ring, err := spool.LoadKeyRing(filepath.Join(dir, "keys", "spool.key"), true)
	if err != nil {
		return nil, err
	}
	o.spool, err = spool.Open(o.dir, spool.Options{Agent: "bench", Keys: ring, BootID: host.BootID(), Boot: host.Boot,
		MaxRecords: 1 << 30, MaxBytes: 1 << 40, SegmentRecords: 100_000, Horizon: 10 * time.Minute, LocalSpan: o.policy.Width + o.policy.Guard})
	if err != nil {
		return nil, err
	}
	mark, high := o.spool.Mark()
	o.clock = window.NewClock(host, mark, window.ClockOptions{HighWater: high})
	if err := o.spool.Begin(o.clock); err != nil {
		return nil, errors.Join(err, o.spool.Close(false))
	}
	o.today = capture.DateOf(o.clock.Now().T.Time())
	return o, nil
}

func (o *outbox) close() error { return o.spool.Close(true) }

// take decides one frame within b. A frame that is not a new movement is an error: the figures would be those
// of something else.
func (o *outbox) take(b *spool.Batch, data []byte) error {
	if r := o.decoder.Decode(&o.scan, data, nil, o.today); !r.OK() {
		return fmt.Errorf("cannot read the label: %s", r.Kind)
	}
	sc := &o.scan
	it := spool.Item{NDC: strings.Clone(sc.NDC()), Lot: strings.Clone(sc.Lot), GTIN: strings.Clone(sc.GTIN), Serial: strings.Clone(sc.Serial),
		NDC11: strings.Clone(sc.NDC11), PkgLevel: int(sc.PkgLevel), Symbology: strings.Clone(sc.Symbology), Length: sc.Length,
		Expiry: sc.ExpiryLastDay.String()}
	d, err := b.Decide(&spool.Candidate{Physical: idem.PhysicalKey(scannerID, sc.Element()),
		Identity: idem.Identity{Facility: facility, Scanner: scannerID, NDC: it.NDC, Lot: it.Lot, Serial: it.Serial, Quantity: 1, Type: window.Dispense},
		Policy:   o.policy, At: o.clock.Now(), Item: it})
	if err == nil && d.Record.IsDuplicate() {
		err = errors.New("cannot measure: a new label counts as a duplicate")
	}
	return err
}

// lone takes one frame in, durably.
func (o *outbox) lone() error {
	b := o.spool.NewBatch()
	if err := o.take(b, o.labels.next()); err != nil {
		return err
	}
	return b.Commit()
}

// burst takes n frames in as fast as it can, in the pipeline's batches.
func (o *outbox) burst(n int) error {
	for n > 0 {
		b := o.spool.NewBatch()
		for range min(n, batchMost) {
			if err := o.take(b, o.labels.next()); err != nil {
				return err
			}
		}
		n -= b.Len()
		if err := b.Commit(); err != nil {
			return err
		}
		if err := o.spool.Maintain(); err != nil {
			return err
		}
	}
	return nil
}

// settle drains all that is in the spool, as if the ledger had taken each record, in batches of the size that
// forward.batch has by default.
func (o *outbox) settle() error {
	for {
		w, err := o.spool.Next(500)
		if err != nil || w.Empty() {
			return err
		}
		verdicts := make([]spool.Verdict, len(w.Records))
		for i := range w.Records {
			verdicts[i] = spool.Verdict{Seq: w.Records[i].Seq, State: spool.Committed, Key: w.Records[i].Keys.Idem}
		}
		if err := o.spool.Settle(w, verdicts, nil, nil); err != nil {
			return err
		}
	}
}

// segmentBytes is what the segments take on disk.
func (o *outbox) segmentBytes() (int64, error) {
	names, err := filepath.Glob(filepath.Join(o.dir, "*.seg"))
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, name := range names {
		n, err := allocated(name)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// storedSize is the length of one record as the spool stores it, so that a baseline can write as much.
func storedSize(dir string, host window.OS) (n int, err error) {
	o, err := openOutbox(dir, host)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(o.lone(), o.close()); err != nil {
		return 0, err
	}
	names, err := filepath.Glob(filepath.Join(o.dir, "*.seg"))
	if err != nil || len(names) != 1 {
		return 0, fmt.Errorf("cannot find the one segment: %d, %v", len(names), err)
	}
	db, err := bolt.Open(names[0], 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("records"))
		if b == nil {
			return errors.New("cannot find the records in the segment")
		}
		_, v := b.Cursor().First()
		if n = len(v); n == 0 {
			return errors.New("cannot find a record in the segment")
		}
		return nil
	})
	return n, err
}
