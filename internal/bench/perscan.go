package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/bloom"
	"scanonce/capture"
	"scanonce/idem"
	"scanonce/window"
)

// perScan is what each scan costs in computing before anything is stored: parse, keys, prefilter. Its clock is
// its own: scans come at 100 a second, so that the filter holds what it would hold at a counter that never
// rests, and a third of the scans lie at a window's edge.
type perScan struct {
	decoder *capture.Decoder
	scan    capture.Scan
	label   *label
	today   capture.Date
	policy  window.Policy
	filter  *bloom.Filter
	at      window.UTC
	boot    time.Duration
	news    uint64
	refused uint64
}

const (
	filterKeys = 1 << 16 // the spool's figures
	filterRate = 1e-3
	horizon    = 10 * time.Minute
)

func newPerScan() (*perScan, error) {
	d, err := newDecoder()
	if err != nil {
		return nil, err
	}
	p := &perScan{decoder: d, label: newLabel(), today: capture.Date{Year: 2026, Month: 3, Day: 14}, policy: window.Default(window.Dispense),
		filter: bloom.New(filterKeys, filterRate, horizon), at: 1_773_480_000_000, boot: time.Hour}
	p.filter.SetComplete()
	for range horizon/pace + filterKeys/2 { // until old generations fall out of the filter
		p.next()
	}
	return p, p.check()
}

func (p *perScan) next() {
	p.at = p.at.Add(pace)
	p.boot += pace
	if r := p.decoder.Decode(&p.scan, p.label.next(), nil, p.today); !r.OK() {
		p.refused++
		return
	}
	physical := idem.PhysicalKey(scannerID, p.scan.Element())
	id := idem.Identity{Facility: facility, Scanner: scannerID, NDC: p.scan.NDC(), Lot: p.scan.Lot, Serial: p.scan.Serial, Quantity: 1, Type: window.Dispense}
	k := id.Keys(p.policy, p.at)
	if p.filter.Ask(physical, k.Idem, k.Edge) == bloom.SurelyNew {
		p.news++
	}
	p.filter.Add(p.boot, physical, k.Idem, k.Edge)
}

// check says whether what ran was what should be measured.
func (p *perScan) check() error {
	switch {
	case p.refused > 0:
		return fmt.Errorf("cannot measure: %d labels were refused", p.refused)
	case p.news < p.label.n*9/10:
		return errors.New("cannot measure: the prefilter takes new scans for known ones")
	case p.scan.NDC() == "" || p.scan.Serial == "":
		return errors.New("cannot measure: the label was not read whole")
	}
	return nil
}

// threadTime is the processor time of the calling thread: unlike the clock, what else the machine does is not
// in it.
func threadTime() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano()), err
}

const (
	computeRounds = 21
	computeScans  = 20_000 // a round
	hashedBytes   = 100    // about as long as what a key is made of
)

// compute is F7: parse, keys and prefilter. A SHA-256 measured in the same rounds tells how fast the processor
// is at the moment.
func (m *bench) compute() ([]row, error) {
	p, err := newPerScan()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	each := func(f func()) (float64, error) {
		from, err := threadTime()
		if err != nil {
			return 0, err
		}
		for range computeScans {
			f()
		}
		to, err := threadTime()
		return float64(to-from) / computeScans, err
	}
	var scans, hashes []float64
	var before, after runtime.MemStats
	var allocated uint64
	hashed := make([]byte, hashedBytes)
	for range computeRounds {
		runtime.ReadMemStats(&before)
		ns, err := each(p.next)
		if err != nil {
			return nil, err
		}
		runtime.ReadMemStats(&after)
		allocated += after.Mallocs - before.Mallocs
		scans = append(scans, ns)
		if ns, err = each(func() {
			h := sha256.Sum256(hashed)
			copy(hashed, h[:])
		}); err != nil {
			return nil, err
		}
		hashes = append(hashes, ns)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	allocs := float64(allocated) / (computeRounds * computeScans)
	best, ns, hash := quantile(scans, 0), median(scans), median(hashes)
	v := atMost(ns, 600, 400)
	if allocs >= 0.01 {
		v = miss
	}
	return []row{{"F7", "parse, keys and prefilter of a DSCSA label, thread time", "<= 600 ns, 0 allocs", "<= 400 ns", fmt.Sprintf("%.0f ns, %.2f allocs", ns, allocs),
		fmt.Sprintf("best round %.0f ns; %.1f times one SHA-256 of %d bytes (%.0f ns)", best, ns/hash, hashedBytes, hash), v}}, nil
}
