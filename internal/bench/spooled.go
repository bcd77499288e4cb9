package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"scanonce/idem"
	"scanonce/sync/ledger"
	"scanonce/window"
)

const (
	spooledApart = 50 * time.Millisecond // between two scans of a backlog: most of them are older than the local rule's memory
	spooledRest  = time.Second           // before the memory of an idle agent is measured
	sealOverhead = 17                    // of a stored value: a version and GCM's tag
)

// later is the machine's clock, some time on.
type later struct {
	window.OS
	by *time.Duration
}

func (l later) Wall() time.Time     { return l.OS.Wall().Add(*l.by) }
func (l later) Boot() time.Duration { return l.OS.Boot() + *l.by }

// spooled are S1 to S4: a backlog of a million scans that an agent finds at its start. The agent is a process of its
// own, this program as its child.
func (m *bench) spooled() ([]row, error) {
	c, err := m.stores()
	if err != nil {
		return nil, err
	}
	n := m.sizes.spooled
	dir, err := os.MkdirTemp(m.dir, "spooled-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var by time.Duration
	o, err := openOutbox(dir, later{m.host, &by})
	if err != nil {
		return nil, err
	}
	for left := n; left > 0; {
		b := o.spool.NewBatch()
		for range min(left, batchMost) {
			by += spooledApart
			if err := o.take(b, o.labels.next()); err != nil {
				return nil, err
			}
		}
		left -= b.Len()
		if err := errors.Join(b.Commit(), o.spool.Maintain()); err != nil {
			return nil, err
		}
	}
	if err := o.close(); err != nil {
		return nil, err
	}
	disk, err := o.segmentBytes()
	if err != nil {
		return nil, err
	}
	payload, err := storedSize(filepath.Join(dir, "one"), m.host)
	if err != nil {
		return nil, err
	}
	payload -= sealOverhead
	ratio := float64(disk) / float64(n) / float64(payload)
	by += time.Hour

	var opens []float64
	for range max(2, m.rounds) {
		out, err := m.agent(dir, by, c, "claim")
		if err != nil {
			return nil, err
		}
		opens = append(opens, out.FirstClaim*1000)
	}
	open, killed := opens[0], median(opens[1:]) // the child ends as by a kill: all but the first open behind one
	if err := c.empty(context.Background()); err != nil {
		return nil, err
	}
	out, err := m.agent(dir, by, c, strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(c.expect(context.Background(), n), c.empty(context.Background())); err != nil {
		return nil, err
	}
	var ceiling time.Duration
	rows := m.movements()
	for left := n; left > 0; {
		part := min(left, 50_000)
		made := rowsOf(rows, part)
		took, err := m.timed(func() error { return c.ceiling(context.Background(), made, forwardBatch) })
		if err != nil {
			return nil, err
		}
		ceiling += took
		left -= part
	}
	drain := out.Drain / ceiling.Seconds()
	const mega = 1 << 20
	mb := func(v int64) float64 { return float64(v) / mega }
	left := "one segment"
	if out.Segments > 1 {
		left = fmt.Sprintf("%d segments", out.Segments)
	}
	disks := atMost(ratio, 1.35, 1.3)
	if out.Segments > 1 {
		disks = miss
	}
	return []row{
		{"S1", fmt.Sprintf("%d in the spool: open and send the first claim", n), "<= 50 ms", "<= 10 ms", fmt.Sprintf("%.1f ms", open), fmt.Sprintf("%.0f ms behind a kill, the last segment checked", killed), atMost(open, 50, 10)},
		{"S2", "the same: whole drain against the ceiling's time", "<= 1.2x", "<= 1.05x", fmt.Sprintf("%.2fx", drain),
			fmt.Sprintf("%.1f s against %.1f s", out.Drain, ceiling.Seconds()), atMost(drain, 1.2, 1.05)},
		{"S3", "the same: anonymous memory idle; all memory idle / at most, draining", "<= 16; 32 / 96 MB", "<= 16; 20 / 64 MB",
			fmt.Sprintf("%.0f; %.0f / %.0f MB", mb(out.Anonymous), mb(out.Idle), mb(out.Most)), "",
			worst(worst(atMost(mb(out.Anonymous), 16, 16), atMost(mb(out.Idle), 32, 20)), atMost(mb(out.Most), 96, 64))},
		{"S4", fmt.Sprintf("the same: disk against payload (%d B a scan); left after the drain", payload), "<= 1.35x; 1 segment", "<= 1.3x",
			fmt.Sprintf("%.2fx; %s", ratio, left), fmt.Sprintf("%d B a scan", disk/int64(n)), disks},
	}, nil
}

// spooledResult is what the child tells.
type spooledResult struct {
	FirstClaim float64 // s from its start of opening
	Anonymous  int64   // bytes, idle
	Idle       int64   // all memory, idle
	Most       int64   // all memory, at most
	Drain      float64 // s
	Segments   int     // left
}

// agent runs the child.
func (m *bench) agent(dir string, by time.Duration, c *central, until string) (out spooledResult, err error) {
	self, err := os.Executable()
	if err != nil {
		return out, err
	}
	cmd := exec.Command(self, "-spooled", strings.Join([]string{dir, by.String(), c.server.Addr, c.agentDSN, until}, "\n"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	b, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("cannot measure an agent with a backlog: %w", err)
	}
	return out, json.Unmarshal(b, &out)
}

// firstClaim tells of the first claim that is sent.
type firstClaim struct {
	*idem.Redis
	once sync.Once
	sent chan struct{}
}

// Claim implements idem.Authority.
func (f *firstClaim) Claim(ctx context.Context, claims []idem.Claim) []idem.Outcome {
	f.once.Do(func() { close(f.sent) })
	return f.Redis.Claim(ctx, claims)
}

// spooledAgent is the child: an agent's spool and forwarder. It ends with the first claim, or once all is drained.
func spooledAgent(order string) error {
	host, err := window.Host()
	if err != nil {
		return err
	}
	from := host.Boot()
	f := strings.Split(order, "\n")
	by, err := time.ParseDuration(f[1])
	if err != nil {
		return err
	}
	o, err := openOutbox(f[0], later{host, &by})
	if err != nil {
		return err
	}
	c := &central{}
	claims, err := idem.NewRedis(idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{f[2]}, TTL: claimTTL, Timeout: claimTimeout})
	if err != nil {
		return err
	}
	first := &firstClaim{Redis: claims, sent: make(chan struct{})}
	if c.ledger, err = ledger.OpenPostgres(ledger.PostgresConfig{DSN: f[3], Agent: "bench", Boot: host.Boot}); err != nil {
		return err
	}
	var out spooledResult
	u := courierOf(o, first, c.ledger)
	if f[4] == "claim" {
		u.start()
		<-first.sent
		out.FirstClaim = (host.Boot() - from).Seconds()
		return json.NewEncoder(os.Stdout).Encode(out) // and ends as by a kill
	}
	n, err := strconv.Atoi(f[4])
	if err != nil {
		return err
	}
	time.Sleep(spooledRest)
	if out.Anonymous, out.Idle, err = memory(); err != nil {
		return err
	}
	final := u.final.when(n)
	from = host.Boot()
	u.start()
	if err := u.await(final); err != nil {
		return err
	}
	out.Drain = (host.Boot() - from).Seconds()
	if err := u.stop(); err != nil {
		return err
	}
	if out.Most, err = procBytes("/proc/self/status", "VmHWM:"); err != nil {
		return err
	}
	by += time.Hour
	o.spool.Prune()
	if err := o.spool.Maintain(); err != nil {
		return err
	}
	out.Segments = o.spool.Stats().Segments
	if err := errors.Join(o.close(), c.ledger.Close(), claims.Close()); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// memory is what this process has: anonymous, and all of it.
func memory() (anonymous, all int64, err error) {
	anonymous, err = procBytes("/proc/self/status", "RssAnon:")
	if err == nil {
		all, err = procBytes("/proc/self/status", "VmRSS:")
	}
	return anonymous, all, err
}

// procBytes reads a figure in kB, see proc_pid_status(5).
func procBytes(file, name string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("cannot find %s in %s", name, file)
}
