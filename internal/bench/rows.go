package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"scanonce/window"
)

// bench is one run: the machine's clock, a scratch folder and the number of rounds.
type bench struct {
	host   window.OS
	dir    string
	rounds int
	sizes  storeSizes

	tb      *process // of the servers
	central *central // nil until a row needs it
}

// timed is how long f takes.
func (m *bench) timed(f func() error) (time.Duration, error) {
	from := m.host.Boot()
	err := f()
	return m.host.Boot() - from, err
}

// takingTurns runs a and b once a round, every other round in the other order, so that neither has the better
// half of a noisy machine.
func takingTurns(round int, a, b func() error) error {
	if round%2 == 1 {
		a, b = b, a
	}
	if err := a(); err != nil {
		return err
	}
	return b()
}

const (
	pace      = 10 * time.Millisecond
	paceScans = 200 // a round
)

// paced calls each of the ways in turn, one at a tick, n times each, and returns how long the calls took. So
// close together they have the same neighbours on a machine that does other work too.
func (m *bench) paced(n int, ways ...func() error) ([][]time.Duration, error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	took := make([][]time.Duration, len(ways))
	for range n {
		for i, f := range ways {
			<-tick.C
			d, err := m.timed(f)
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], d)
		}
	}
	return took, nil
}

// local is F2: what stands between the frame of a lone scan and its answer, against one append and fdatasync;
// and, if there is a program, the way through all of it, from the byte typed to the byte of feedback.
func (m *bench) local(program string) ([]row, error) {
	o, err := openOutbox(filepath.Join(m.dir, "f2"), m.host)
	if err != nil {
		return nil, err
	}
	defer o.close()
	fl, err := openFloor(filepath.Join(m.dir, "floor"))
	if err != nil {
		return nil, err
	}
	defer fl.close()
	var a *attended
	if program != "" {
		if a, err = attend(program, filepath.Join(m.dir, "f2-agent"), "", false); err != nil {
			return nil, err
		}
		defer a.close()
	}
	ways := []func() error{fl.lone, o.lone}
	if a != nil {
		ways = append(ways, a.scan)
	}
	medians, tails, ratios := make([][]float64, len(ways)), make([][]float64, len(ways)), make([][]float64, len(ways))
	for range m.rounds {
		took, err := m.paced(paceScans, ways...)
		if err != nil {
			return nil, err
		}
		for i, d := range took {
			medians[i] = append(medians[i], float64(median(d)))
			tails[i] = append(tails[i], float64(quantile(d, 0.99)))
			ratios[i] = append(ratios[i], float64(median(d))/float64(median(took[0])))
		}
		if err := o.spool.Maintain(); err != nil {
			return nil, err
		}
	}
	us := func(i int) string {
		return fmt.Sprintf("%s (p99 %s)", micros(time.Duration(median(medians[i]))), micros(time.Duration(median(tails[i]))))
	}
	ratio := median(ratios[1])
	rows := []row{{"F2", "lone scan, frame to durable, against append + fdatasync", "<= 1.75x", "<= 1.2x", fmt.Sprintf("%.2fx", ratio),
		us(1) + " against " + us(0), atMost(ratio, 1.75, 1.2)}}
	if a != nil {
		rows = append(rows, row{"", "the whole agent: byte typed to feedback read", "", "", fmt.Sprintf("%.2fx", median(ratios[2])),
			us(2) + " against " + us(0), informs})
	}
	return rows, nil
}

// intakeSizes are the numbers of scans in a round of F3.
type intakeSizes struct {
	burst, baseline      int
	producers            int
	perProducer, perBase int
}

func fullIntake() intakeSizes {
	return intakeSizes{burst: 60_000, baseline: 800, producers: 64, perProducer: 400, perBase: 12}
}

// flow is what a way of taking scans in achieves.
type flow struct {
	rate    float64 // scans a second
	written float64 // bytes passed to write calls, per scan
}

func (m *bench) flow(scans int, f func() error) (flow, error) {
	before, err := written()
	if err != nil {
		return flow{}, err
	}
	took, err := m.timed(f)
	if err != nil {
		return flow{}, err
	}
	after, err := written()
	return flow{float64(scans) / took.Seconds(), float64(after-before) / float64(scans)}, err
}

// intakeRound is one round of F3: the spool and an update per scan, in a burst and with many producers.
type intakeRound struct{ burst, base, concurrent, baseConcurrent flow }

func (m *bench) intakeRound(round int, o *outbox, u *updatePerScan, z intakeSizes) (r intakeRound, err error) {
	updates := func(n int) error {
		for range n {
			if err := u.lone(); err != nil {
				return err
			}
		}
		return nil
	}
	err = takingTurns(round, func() (err error) {
		r.burst, err = m.flow(z.burst, func() error { return o.burst(z.burst) })
		return err
	}, func() (err error) {
		r.base, err = m.flow(z.baseline, func() error { return updates(z.baseline) })
		return err
	})
	if err != nil {
		return r, err
	}
	err = takingTurns(round, func() (err error) {
		r.concurrent, err = m.flow(z.producers*z.perProducer, func() error { return concurrent(o, z.producers, z.perProducer) })
		return err
	}, func() (err error) {
		r.baseConcurrent, err = m.flow(z.producers*z.perBase, func() error {
			return together(z.producers, func(int) error { return updates(z.perBase) })
		})
		return err
	})
	return r, err
}

// together runs f n times at once.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// concurrent lets producers hand in scans, each of which waits for its acceptance before the next, and takes
// them in as the pipeline does: what has come while the last commit was under way goes into the next.
func concurrent(o *outbox, producers, each int) error {
	type frame struct {
		data     []byte
		accepted chan struct{}
	}
	frames := make(chan frame, 1024)
	stopped := make(chan struct{})
	var failed error
	go func() {
		defer close(stopped)
		for f := range frames {
			waiting := []chan struct{}{f.accepted}
			b := o.spool.NewBatch()
			err := o.take(b, f.data)
		more:
			for err == nil && b.Len() < batchMost {
				select {
				case f, ok := <-frames:
					if !ok {
						break more
					}
					waiting = append(waiting, f.accepted)
					err = o.take(b, f.data)
				default:
					break more
				}
			}
			if err == nil {
				err = b.Commit()
			}
			for _, c := range waiting {
				c <- struct{}{}
			}
			if err == nil {
				err = o.spool.Maintain()
			}
			failed = errors.Join(failed, err)
		}
	}()
	from := o.labels.n
	o.labels.n += uint64(producers * each)
	together(producers, func(i int) error {
		l := newLabel()
		l.n = from + uint64(i*each)
		f := frame{accepted: make(chan struct{}, 1)}
		for range each {
			f.data = l.next()
			frames <- f
			<-f.accepted
		}
		return nil
	})
	close(frames)
	<-stopped
	return failed
}

// intake is F3: durable intake against an update per scan.
func (m *bench) intake() ([]row, error) {
	size, err := storedSize(filepath.Join(m.dir, "f3-size"), m.host)
	if err != nil {
		return nil, err
	}
	o, err := openOutbox(filepath.Join(m.dir, "f3"), m.host)
	if err != nil {
		return nil, err
	}
	defer o.close()
	u, err := openUpdatePerScan(filepath.Join(m.dir, "update.db"), size)
	if err != nil {
		return nil, err
	}
	defer u.close()
	var all []intakeRound
	for round := range m.rounds {
		r, err := m.intakeRound(round, o, u, fullIntake())
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	line := func(what, goal, stretch string, least, most float64, pick func(*intakeRound) (flow, flow)) row {
		var ratios, ours, base []float64
		for i := range all {
			a, b := pick(&all[i])
			ratios, ours, base = append(ratios, a.rate/b.rate), append(ours, a.rate), append(base, b.rate)
		}
		r := median(ratios)
		return row{"F3", what, goal, stretch, fmt.Sprintf("%.0fx", r), fmt.Sprintf("%.0f/s against %.0f/s", median(ours), median(base)), atLeast(r, least, most)}
	}
	return []row{
		line("durable intake, burst, against an update per scan", ">= 60x", ">= 100x", 60, 100, func(r *intakeRound) (flow, flow) { return r.burst, r.base }),
		line("durable intake, 64 producers that wait, against the same", ">= 20x", ">= 25x", 20, 25, func(r *intakeRound) (flow, flow) { return r.concurrent, r.baseConcurrent }),
	}, nil
}

// weight is what a scan of a burst takes.
type weight struct {
	disk    float64 // bytes of the segments, per scan
	written float64 // bytes written by this process, with the settlement and its cursor, per scan
}

// weigh takes n scans in and settles them. Nothing else in the process may write meanwhile.
func (m *bench) weigh(dir string, n int) (weight, error) {
	o, err := openOutbox(dir, m.host)
	if err != nil {
		return weight{}, err
	}
	defer o.close()
	before, err := written()
	if err != nil {
		return weight{}, err
	}
	if err := o.burst(n); err != nil {
		return weight{}, err
	}
	disk, err := o.segmentBytes()
	if err != nil {
		return weight{}, err
	}
	if err := o.settle(); err != nil {
		return weight{}, err
	}
	after, err := written()
	return weight{disk: float64(disk) / float64(n), written: float64(after-before) / float64(n)}, err
}

// written is how many bytes this process has passed to write calls, as proc_pid_io(5) counts them.
func written() (int64, error) {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "wchar:"); ok {
			return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		}
	}
	return 0, errors.New("cannot find wchar in /proc/self/io")
}

const weighed = 50_000

// size is S5: the bytes that a scan of a burst takes.
func (m *bench) size() ([]row, error) {
	w, err := m.weigh(filepath.Join(m.dir, "s5"), weighed)
	if err != nil {
		return nil, err
	}
	return []row{{"S5", "bytes written per scan in bursts, cursor included", "<= 450 B", "<= 400 B", fmt.Sprintf("%.0f B", w.written),
		fmt.Sprintf("%.0f B of it on disk in segments", w.disk), atMost(w.written, 450, 400)}}, nil
}
