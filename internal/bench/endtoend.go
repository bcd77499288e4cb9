package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/window"
)

// storeSizes are the numbers of scans in a round of rows F1 and F4 to F6.
type storeSizes struct {
	lone, paced int // each side
	drain       int
	burst, seed int
	spooled     int
}

func fullStores() storeSizes {
	return storeSizes{lone: 200, paced: 300, drain: 50_000, burst: 40_000, seed: 1_500, spooled: 1_000_000}
}

// stores starts the central stores once.
func (m *bench) stores() (*central, error) {
	if m.central != nil {
		return m.central, nil
	}
	err := m.tb.attempt(func() (err error) {
		m.central, err = startCentral(m.tb, m.host)
		return err
	})
	return m.central, err
}

func (m *bench) movements() *movements {
	clock := window.NewClock(m.host, window.Mark{}, window.ClockOptions{})
	return &movements{now: func() window.UTC { return clock.Now().T }, policy: window.Default(window.Dispense)}
}

// cpuTime is the processor time of this process so far; servers are processes of their own.
func cpuTime() (time.Duration, error) {
	var u unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// spent is what f takes: time and, in this process, processor time.
func (m *bench) spent(f func() error) (took, cpu time.Duration, err error) {
	runtime.GC() // what the side before left behind is not this one's
	before, err := cpuTime()
	if err != nil {
		return 0, 0, err
	}
	if took, err = m.timed(f); err != nil {
		return 0, 0, err
	}
	after, err := cpuTime()
	return took, after - before, err
}

// withOutbox runs f with a new spool and its forwarder, which f starts.
func (m *bench) withOutbox(c *central, f func(o *outbox, u *courier) error) (err error) {
	dir, err := os.MkdirTemp(m.dir, "outbox-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o, err := openOutbox(dir, m.host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	return f(o, newCourier(o, c))
}

// lone is F1: a scan at each tick, durable here, claimed and committed, against the floor.
func (m *bench) lone(program string) ([]row, error) {
	c, err := m.stores()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := c.empty(ctx); err != nil {
		return nil, err
	}
	disk, err := openFloor(filepath.Join(m.dir, "f1-floor"))
	if err != nil {
		return nil, err
	}
	defer disk.close()
	base := &fullFloor{disk: disk, c: c, rows: m.movements(), ctx: ctx}
	var a *attended
	if program != "" {
		if a, err = attend(program, filepath.Join(m.dir, "f1-agent"), c.settings(), true); err != nil {
			return nil, err
		}
		defer a.close()
	}
	const committed, settled, whole = 1, 2, 3
	var p50, p99 [4][]float64 // the floor's first
	var r50, r99 [4][]float64
	err = m.withOutbox(c, func(o *outbox, u *courier) error {
		u.start()
		n := 0
		var commits []time.Duration
		ours := func() error {
			n++
			inserted, final := u.inserted.when(n), u.final.when(n)
			from := m.host.Boot()
			if err := o.lone(); err != nil {
				return err
			}
			if err := u.await(inserted); err != nil {
				return err
			}
			commits = append(commits, m.host.Boot()-from)
			return u.await(final)
		}
		ways := []func() error{base.lone, ours}
		if a != nil {
			ways = append(ways, a.scanCommitted)
		}
		measure := func(keep bool) error {
			commits = nil
			took, err := m.paced(m.sizes.lone, ways...)
			if err != nil || !keep {
				return err
			}
			all := append([][]time.Duration{took[0], commits}, took[1:]...)
			for i, d := range all {
				p50[i] = append(p50[i], float64(median(d)))
				p99[i] = append(p99[i], float64(quantile(d, 0.99)))
				r50[i] = append(r50[i], float64(median(d))/float64(median(all[0])))
				r99[i] = append(r99[i], float64(quantile(d, 0.99))/float64(quantile(all[0], 0.99)))
			}
			return o.spool.Maintain()
		}
		for round := range m.rounds + 1 { // the first one makes connections and statements
			if err := measure(round > 0); err != nil {
				return errors.Join(err, u.stop())
			}
		}
		return u.stop()
	})
	if err != nil {
		return nil, err
	}
	us := func(v []float64) string { return micros(time.Duration(median(v))) }
	line := func(i int, what string) row {
		return row{"", what, "", "", fmt.Sprintf("%.2fx / %.2fx", median(r50[i]), median(r99[i])),
			fmt.Sprintf("%s / %s against %s / %s", us(p50[i]), us(p99[i]), us(p50[0]), us(p99[0])), informs}
	}
	first := line(committed, "lone scan at 100/s in one process: durable, claimed, committed; p50 / p99 against the floor")
	first.id, first.goal, first.stretch = "F1", "<= 1.25x / <= 2x", "<= 1x / <= 1.2x"
	first.verdict = worst(atMost(median(r50[committed]), 1.25, 1), atMost(median(r99[committed]), 2, 1.2))
	rows := []row{first, line(settled, "the same until it is settled in the spool and told")}
	if a != nil {
		rows = append(rows, line(whole, "the whole agent: byte typed to the event that it is committed"))
	}
	return rows, nil
}

// worst is the verdict on a row of several figures.
func worst(a, b verdict) verdict {
	for _, v := range []verdict{miss, pass} {
		if a == v || b == v {
			return v
		}
	}
	return a
}

// drain is F4: a backlog that is in the spool goes out, against the ceiling.
func (m *bench) drain() ([]row, error) {
	c, err := m.stores()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	var ratios, ours, base, cpus []float64
	round := func(n, k int) error {
		var took, cpu, ceiling time.Duration
		err := takingTurns(k, func() error {
			return m.withOutbox(c, func(o *outbox, u *courier) error {
				if err := errors.Join(o.burst(n), c.empty(ctx)); err != nil {
					return err
				}
				final := u.final.when(n)
				took, cpu, err = m.spent(func() error {
					u.start()
					return u.await(final)
				})
				return errors.Join(err, u.stop(), c.expect(ctx, n))
			})
		}, func() error {
			rows := rowsOf(m.movements(), n)
			if err := c.empty(ctx); err != nil {
				return err
			}
			ceiling, _, err = m.spent(func() error { return c.ceiling(ctx, rows, forwardBatch) })
			return errors.Join(err, c.expect(ctx, n))
		})
		if err != nil || k < 0 {
			return err
		}
		ratios, cpus = append(ratios, ceiling.Seconds()/took.Seconds()), append(cpus, cpu.Seconds()*1e4/float64(n))
		ours, base = append(ours, float64(n)/took.Seconds()), append(base, float64(n)/ceiling.Seconds())
		return nil
	}
	if err := round(forwardBatch*4, -1); err != nil { // connections, statements, the files of the log
		return nil, err
	}
	for k := range m.rounds {
		if err := round(m.sizes.drain, k); err != nil {
			return nil, err
		}
	}
	r := median(ratios)
	return []row{{"F4", fmt.Sprintf("drain of %d scans in the spool, in batches of %d, against the ceiling", m.sizes.drain, forwardBatch), ">= 0.85", ">= 0.95", fmt.Sprintf("%.2f", r),
		fmt.Sprintf("%.0f/s (%.2f s of CPU per 10k) against %.0f/s", median(ours), median(cpus), median(base)), atLeast(r, 0.85, 0.95)}}, nil
}

// burst is F5 and the burst of F6: from the frame to the settled row, against the seed.
func (m *bench) burst() ([]row, error) {
	c, err := m.stores()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	n, seeds := m.sizes.burst, m.sizes.seed
	var rates, cpus, ours, base, ourCPU, baseCPU []float64
	for k := range m.rounds {
		var took, cpu, seedTook, seedCPU time.Duration
		err := takingTurns(k, func() error {
			return m.withOutbox(c, func(o *outbox, u *courier) error {
				if err := c.empty(ctx); err != nil {
					return err
				}
				final := u.final.when(n)
				u.start()
				took, cpu, err = m.spent(func() error {
					if err := o.burst(n); err != nil {
						return err
					}
					return u.await(final)
				})
				return errors.Join(err, u.stop(), c.expect(ctx, n))
			})
		}, func() error {
			s := &seed{c: c, rows: m.movements(), ctx: ctx}
			if err := errors.Join(c.empty(ctx), s.burst(10)); err != nil {
				return err
			}
			seedTook, seedCPU, err = m.spent(func() error { return s.burst(seeds) })
			return errors.Join(err, c.expect(ctx, seeds+10))
		})
		if err != nil {
			return nil, err
		}
		ours, base = append(ours, float64(n)/took.Seconds()), append(base, float64(seeds)/seedTook.Seconds())
		ourCPU, baseCPU = append(ourCPU, cpu.Seconds()*1e4/float64(n)), append(baseCPU, seedCPU.Seconds()*1e4/float64(seeds))
		rates = append(rates, ours[k]/base[k])
		cpus = append(cpus, baseCPU[k]/ourCPU[k])
	}
	rate, share := median(rates), median(cpus)
	return []row{{"F5", "burst, frame to settled row, against the seed", ">= 30x", ">= 40x", fmt.Sprintf("%.1fx", rate),
		fmt.Sprintf("%.0f/s against %.0f/s", median(ours), median(base)), atLeast(rate, 30, 40)},
		{"F6", "the same: CPU per 10,000 scans, servers excluded", "<= 1/20", "<= 1/30", fmt.Sprintf("1/%.1f", share),
			fmt.Sprintf("%.3f s against %.2f s", median(ourCPU), median(baseCPU)), atLeast(share, 20, 30)}}, nil
}

// pacedCost is F6 at 100 scans a second, against the seed, which keeps nothing; and, if there is a program, what
// the whole agent takes.
func (m *bench) pacedCost(program string) ([]row, error) {
	c, err := m.stores()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := c.empty(ctx); err != nil {
		return nil, err
	}
	var a *attended
	if program != "" {
		if a, err = attend(program, filepath.Join(m.dir, "f6-agent"), c.settings(), false); err != nil {
			return nil, err
		}
		defer a.close()
	}
	s := &seed{c: c, rows: m.movements(), ctx: ctx}
	var ours, base, whole, ratios, wholes []float64
	perTen := func(d time.Duration) float64 { return d.Seconds() * 1e4 / float64(m.sizes.paced) }
	err = m.withOutbox(c, func(o *outbox, u *courier) error {
		u.start()
		n := 0
		round := func(k int) error {
			var cpu, seedCPU, agentCPU time.Duration
			err := takingTurns(k, func() (err error) {
				_, cpu, err = m.spent(func() error {
					final := u.final.when(n + m.sizes.paced)
					if _, err := m.paced(m.sizes.paced, o.lone); err != nil {
						return err
					}
					n += m.sizes.paced
					return u.await(final)
				})
				return err
			}, func() (err error) {
				_, seedCPU, err = m.spent(func() error {
					_, err := m.paced(m.sizes.paced, s.lone)
					return err
				})
				return err
			})
			if err == nil && a != nil {
				before, uerr := usageOf(a.cmd.Process.Pid)
				_, perr := m.paced(m.sizes.paced, a.scan)
				after, aerr := usageOf(a.cmd.Process.Pid)
				agentCPU, err = after.cpu-before.cpu, errors.Join(uerr, perr, aerr)
			}
			if err != nil || k < 0 {
				return err
			}
			ours, base, ratios = append(ours, perTen(cpu)), append(base, perTen(seedCPU)), append(ratios, cpu.Seconds()/seedCPU.Seconds())
			whole, wholes = append(whole, perTen(agentCPU)), append(wholes, agentCPU.Seconds()/seedCPU.Seconds())
			return nil
		}
		for k := -1; k < m.rounds; k++ {
			if err := round(k); err != nil {
				return errors.Join(err, u.stop())
			}
		}
		return u.stop()
	})
	if err != nil {
		return nil, err
	}
	r := median(ratios)
	rows := []row{{"F6", "CPU per 10,000 scans at 100/s in one process, against the seed, which keeps nothing", "<= 1.8x", "<= 1.4x", fmt.Sprintf("%.2fx", r),
		fmt.Sprintf("%.2f s against %.2f s", median(ours), median(base)), atMost(r, 1.8, 1.4)}}
	if a != nil {
		rows = append(rows, row{"", "the whole agent, with its scanner, events and metrics", "", "", fmt.Sprintf("%.2fx", median(wholes)),
			fmt.Sprintf("%.2f s against %.2f s", median(whole), median(base)), informs})
	}
	return rows, nil
}
