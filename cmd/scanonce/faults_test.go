package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/faults"
	"scanonce/internal/sim"
	"scanonce/internal/testenv"
)

// How long TestFaults goes on; without it each fault has one round, and some have another one together.
var (
	faultTime    = flag.Duration("faulttime", 0, "how long TestFaults breaks things")
	faultResults = flag.String("faultresults", "", "file for a result of each round, one JSON object a line")
)

// togetherRounds is how many rounds of several faults follow in a run without -faulttime.
const togetherRounds = 4

// site is an agent with the people at its scanners.
type site struct {
	h      *testenv.Home
	p      *testenv.Process
	stream *testenv.Stream
	disk   *testenv.Disk // of the state folder
	people []*person
	now    *shifts
	shift  *epoch
	gate   sync.RWMutex
}

// down kills the agent; up starts it again. The scanners are plugged in anew, as bytes that a dead agent had not
// read are gone, and so are those in the port.
func (s *site) down() {
	s.p.Kill()
	s.gate.Lock()
	defer s.gate.Unlock()
	close(s.shift.over)
	s.now.set(nil)
	for _, p := range s.people {
		unplug(p.Scanner)
	}
}

func (s *site) up(t testing.TB) {
	t.Helper()
	from := s.stream.Len()
	s.p = s.h.Start(t)
	for _, p := range s.people {
		if err := p.Replug(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range s.people {
		s.stream.Wait(t, from, p.ID+" is read", isReading(p.ID))
		p.Opened()
	}
	s.begin()
}

func (s *site) begin() {
	s.shift = &epoch{over: make(chan struct{})}
	s.now.set(s.shift)
}

// world is two sites on the same stores, which a run breaks.
type world struct {
	*central
	name     string
	sites    []*site
	clock    *testenv.Clock // of the stores, where it can be stepped
	master   func() *testenv.Redis
	masters  []*testenv.Redis
	pair     *pair
	expected map[string]int // items that were answered, and their rows
	aside    map[string]bool
	late     map[string]bool // items whose echo may be a movement of its own
	told     map[string]bool // findings, each of which counts once
	checked  int             // rows
	rnd      *rand.Rand      // chooses the faults; the seed that is logged repeats its choices
}

// fault is one way to break a world.
type fault struct {
	name  string
	part  string // of the world that it breaks: no two of one part at once
	begin func(t testing.TB, w *world) (end func())
	long  time.Duration // lasts that long, at most; 0: until what it began is over
}

// open plugs two scanners into each of two agents, and a small disk under the state of the first.
func (w *world) open(t testing.TB, seed uint64, disk bool, sections string) {
	t.Helper()
	w.rnd = rand.New(rand.NewPCG(seed, 7))
	w.expected, w.aside, w.late, w.told = map[string]int{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for n := range 2 {
		s := &site{now: &shifts{changed: make(chan struct{})}}
		ids := []string{fmt.Sprintf("SCN-%d1", n), fmt.Sprintf("SCN-%d2", n)}
		s.h = program.NewHome(t, testenv.Setup{Scanners: ids, Directory: directory, Sections: "[spool]\nsegment_records = 500\n" + sections})
		if disk && n == 0 {
			if err := os.Mkdir(s.h.State, 0o700); err != nil {
				t.Fatal(err)
			}
			s.disk = testenv.NewDisk(t, s.h.State, 24<<20)
		}
		s.p = s.h.Start(t)
		s.stream = s.h.Follow(t)
		for i, id := range ids {
			g := plug(t, s.h, s.stream, id)
			k := seed + uint64(2*n+i)<<32
			s.people = append(s.people, &person{Scanner: g.Scanner, h: s.h, stream: s.stream, work: sim.NewWorkload(k), rnd: rand.New(rand.NewPCG(k, 3)),
				byTone: i == 0 || disk && n == 0, gate: &s.gate, fails: s.disk != nil})
		}
		s.begin()
		w.sites = append(w.sites, s)
	}
}

// site picks an agent to break.
func (w *world) site() *site { return w.sites[w.rnd.IntN(len(w.sites))] }

// homes are the agents' folders.
func (w *world) homes() (all []*testenv.Home) {
	for _, s := range w.sites {
		all = append(all, s.h)
	}
	return all
}

// round has people scan while the faults come and go, waits for the end of what is pending, and compares the
// ledger with what people were told.
func (w *world) round(t testing.TB, broken []*fault) faults.Result {
	t.Helper()
	r := faults.Result{World: w.name}
	ctx, cancel := context.WithTimeout(t.Context(), 4*testenv.Patience)
	defer cancel()
	var closing atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, 8)
	before := 0
	for _, s := range w.sites {
		for _, p := range s.people {
			p.took = nil
			before += p.typed
			wg.Go(func() {
				for !closing.Load() {
					if err := p.one(ctx, s.now.next); err != nil {
						failed <- err
						return
					}
				}
			})
		}
	}
	pace(t, time.Duration(100+w.rnd.IntN(300))*time.Millisecond)
	var ends []func()
	long := time.Duration(0)
	for _, f := range broken {
		r.Faults = append(r.Faults, f.name)
		r.Unanswering = r.Unanswering || f.part == "agent"
		long = max(long, f.long)
		ends = append(ends, f.begin(t, w))
	}
	if long > 0 {
		pace(t, long/4+time.Duration(w.rnd.Int64N(int64(long*3/4))))
	}
	for _, end := range ends {
		end()
	}
	ended := time.Now()
	closing.Store(true)
	wg.Wait()
	select {
	case err := <-failed:
		t.Fatalf("%s, %v: %v", w.name, r.Faults, err)
	default:
	}
	for _, h := range w.homes() {
		if broken := h.Await(t, "an end of what is pending", waitOnline); broken.Balance() != "" {
			t.Errorf("%v: %s", r.Faults, broken.Balance())
		}
	}
	r.RecoverMS = float64(time.Since(ended).Microseconds()) / 1000
	var took []time.Duration
	typed := 0
	for _, s := range w.sites {
		for _, p := range s.people {
			typed += p.typed
			took = append(took, p.took...)
			for _, it := range p.items {
				w.expected[p.ID+" "+it] = 0
			}
			for _, it := range p.aside {
				w.aside[p.ID+" "+it] = true
			}
			for _, it := range p.late {
				w.late[p.ID+" "+it] = true
			}
			r.Accepted += len(p.items)
			r.Refused += len(p.aside)
			p.items, p.aside, p.late = nil, nil, nil
		}
	}
	r.Scans = typed - before
	if len(took) > 0 {
		slices.Sort(took)
		r.AcceptP99MS = float64(took[(len(took)-1)*99/100].Microseconds()) / 1000
	}
	w.compare(t, &r)
	return r
}

// compare finds each item that was answered in one row, each event that was told, and no row more.
func (w *world) compare(t testing.TB, r *faults.Result) {
	t.Helper()
	for item := range w.expected {
		w.expected[item] = 0
	}
	found := func(count *int, what, format string, args ...any) {
		t.Helper()
		if !w.told[what] {
			w.told[what] = true
			*count++
			t.Errorf("%v: %s", r.Faults, fmt.Sprintf(format, args...))
		}
	}
	at := map[string]string{}
	stands := map[string]bool{}
	rows := w.pg.Query(t, w.db, `SELECT event_id, scanner_id, gtin, coalesce(serial, ''), coalesce(to_char(expiry, 'YYMMDD'), ''), lot, captured_at FROM scan_ledger ORDER BY event_id`)
	w.checked = len(rows)
	for _, x := range rows {
		item := x[1] + " ]E0" + x[2][1:]
		if x[3] != "" {
			item = x[1] + " ]d201" + x[2] + "21" + x[3] + gs + "17" + x[4] + "10" + x[5]
		}
		stands[x[0]] = true
		if _, ok := w.expected[item]; !ok {
			found(&r.Doubled, x[0], "row %s is of an item that was not accepted (refused: %v): %s", x[0], w.aside[item], sim.Printable(item))
			continue
		}
		if w.expected[item]++; w.expected[item] > 1 && !w.late[item] {
			found(&r.Doubled, item, "two rows of %s, captured at %s and %s", sim.Printable(item), at[item], x[6])
		}
		at[item] = x[6]
	}
	for item, n := range w.expected {
		if n == 0 {
			found(&r.Lost, item, "%s was answered and has no row", sim.Printable(item))
		}
	}
	for _, s := range w.sites {
		for _, p := range s.people {
			for _, id := range p.told {
				if !stands[id] {
					t.Errorf("%v: event %s was told to %s and has no row", r.Faults, id, p.ID)
				}
			}
			p.told = nil
		}
	}
}

// run breaks the world: each fault alone, then by chance one or several at once, until the time is up.
func (w *world) run(t *testing.T, all []*fault, told func(faults.Result)) {
	began := time.Now()
	more := func(n int) bool {
		if *faultTime > 0 {
			return time.Since(began) < *faultTime
		}
		return n < togetherRounds
	}
	for _, i := range w.rnd.Perm(len(all)) {
		told(w.round(t, []*fault{all[i]}))
	}
	for n := 0; more(n); n++ {
		var broken []*fault
		parts := map[string]bool{}
		for range 1 + w.rnd.IntN(3) {
			if f := all[w.rnd.IntN(len(all))]; !parts[f.part] {
				parts[f.part] = true
				broken = append(broken, f)
			}
		}
		told(w.round(t, broken))
	}
}

// The promise under every fault: what was told as accepted is one row, what was told as a duplicate names one, and
// nothing else is there.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var out io.Writer = io.Discard
	if *faultResults != "" {
		f, err := os.Create(*faultResults)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		out = f
	}
	var mu sync.Mutex
	tell := func(r faults.Result) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(out).Encode(r); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		make   func(t *testing.T, seed uint64) *world
		faults []*fault
		exact  bool // the rows' times are the machine's
	}{
		"one server each":    {oneServer, slices.Concat(agentFaults(), storeFaults()), true},
		"standbys":           {standbys, slices.Concat(standbyFaults(), agentFaults()[:1]), true},
		"cluster":            {cluster, clusterFaults(), true},
		"a clock that steps": {clocks, clockFaults(), false},
	} {
		if !c.exact && *faultTime == 0 { // its rounds are long: in a soak only
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.make(t, seed)
			w.name = name
			rounds, scans := 0, 0
			w.run(t, c.faults, func(r faults.Result) {
				tell(r)
				rounds++
				scans += r.Scans
				if testing.Verbose() {
					t.Logf("%v: %d scans, %d refused, all there after %.0f ms", r.Faults, r.Scans, r.Refused, r.RecoverMS)
				}
			})
			t.Logf("%d rounds, %d scans, %d rows", rounds, scans, w.checked)
			if scans < 10*rounds {
				t.Errorf("%d scans in %d rounds: too little load", scans, rounds)
			}
			if c.exact {
				w.settled(t, w.homes()...)
			} else {
				w.join(t)
				if w.count(t, fmt.Sprintf("SELECT count(*) FROM scan_ledger WHERE captured_at > to_timestamp(%d)", time.Now().Add(30*time.Minute).Unix())) == 0 {
					t.Error("no agent went by the clock that was ahead: this proves little")
				}
			}
		})
	}
}

func agentFaults() []*fault {
	return []*fault{
		{name: "agent killed (kill -9)", part: "agent", long: 400 * time.Millisecond, begin: func(t testing.TB, w *world) func() {
			s := w.site()
			s.down()
			return func() { s.up(t) }
		}},
		{name: "agent stopped (SIGSTOP) for less than a window", part: "agent", long: 2 * time.Second, begin: func(t testing.TB, w *world) func() {
			p := w.site().p
			p.Signal(syscall.SIGSTOP)
			return func() { p.Signal(syscall.SIGCONT) }
		}},
		{name: "disk full in the middle of a burst", part: "agent", long: time.Second, begin: func(t testing.TB, w *world) func() {
			d := w.sites[0].disk
			d.Fill(t, int64(w.rnd.IntN(64<<10)))
			return func() {
				d.Free(t)
				w.sites[0].h.Await(t, "that scans are accepted again", func(s *testenv.Status) bool { return s.Accepting })
			}
		}},
		{name: "disk read-only after an error; repaired, agent restarted", part: "agent", long: time.Second, begin: func(t testing.TB, w *world) func() {
			s := w.sites[0]
			s.disk.Fail(t)
			return func() {
				s.down()
				s.disk.Repair(t)
				s.up(t)
			}
		}},
	}
}

// oneServer is Redis and PostgreSQL behind proxies.
func oneServer(t *testing.T, seed uint64) *world {
	w := &world{central: newCentral(t)}
	w.open(t, seed, true, w.stores().in(testenv.Setup{}).Sections)
	return w
}

// storeFaults are those of single servers and of the line to them.
func storeFaults() []*fault {
	const short = 1500 * time.Millisecond
	redis := func(name string, long time.Duration, begin func(t testing.TB, w *world) func()) *fault {
		return &fault{name: "Redis: " + name, part: "claims", long: long, begin: begin}
	}
	rows := func(name string, long time.Duration, begin func(t testing.TB, w *world) func()) *fault {
		return &fault{name: "PostgreSQL: " + name, part: "rows", long: long, begin: begin}
	}
	mode := func(of func(w *world) *testenv.Proxy, m testenv.Mode) func(t testing.TB, w *world) func() {
		return func(t testing.TB, w *world) func() {
			of(w).Set(t, m)
			return func() { of(w).Set(t, testenv.Pass) }
		}
	}
	claims := func(w *world) *testenv.Proxy { return w.claims }
	ledger := func(w *world) *testenv.Proxy { return w.rows }
	now := func(f func(t testing.TB, w *world)) func(t testing.TB, w *world) func() {
		return func(t testing.TB, w *world) func() {
			f(t, w)
			return func() {}
		}
	}
	return []*fault{
		redis("killed", short, func(_ testing.TB, w *world) func() {
			w.redis.Kill()
			return w.redis.Start
		}),
		redis("stopped (SIGSTOP)", short, func(_ testing.TB, w *world) func() {
			w.redis.Pause()
			return w.redis.Resume
		}),
		redis("all keys lost (FLUSHALL)", short/4, now(func(_ testing.TB, w *world) { w.redis.Do("FLUSHALL") })),
		redis("connections refused", short, mode(claims, testenv.Refuse)),
		redis("silent", short, mode(claims, testenv.BlackHole)),
		redis("half-open connections", short, mode(claims, testenv.HalfOpen)),
		redis("replies held back", short, mode(claims, testenv.Deaf)),
		redis("a reply swallowed", short/4, now(func(_ testing.TB, w *world) { w.claims.Swallow("") })),
		rows("restarted (fast)", 0, now(func(t testing.TB, w *world) { w.pg.Restart(t) })),
		rows("restarted (immediate)", 0, now(func(t testing.TB, w *world) { w.pg.Cut(t); w.pg.Start(t) })),
		rows("killed", short, func(t testing.TB, w *world) func() {
			w.pg.Kill(t)
			return func() { w.pg.Start(t) }
		}),
		rows("stopped (SIGSTOP)", short, func(_ testing.TB, w *world) func() {
			w.pg.Pause()
			return w.pg.Resume
		}),
		rows("connections refused", short, mode(ledger, testenv.Refuse)),
		rows("silent", short, mode(ledger, testenv.BlackHole)),
		rows("half-open connections", short, mode(ledger, testenv.HalfOpen)),
		rows("replies held back", short, mode(ledger, testenv.Deaf)),
		rows("a reply swallowed", short/4, now(func(_ testing.TB, w *world) { w.rows.Swallow("") })),
		rows("connections dropped in mid-stream", short/4, now(func(_ testing.TB, w *world) { w.rows.Drop() })),
		rows("a slow line (100 ms)", short, func(_ testing.TB, w *world) func() {
			w.rows.Delay(50 * time.Millisecond)
			return func() { w.rows.Delay(0) }
		}),
	}
}

// standbys is Redis with sentinels, and PostgreSQL with a synchronous standby.
func standbys(t *testing.T, seed uint64) *world {
	w := &world{pair: newPair(t, true)}
	w.central = w.pair.central
	w.masters = []*testenv.Redis{w.redis, testenv.StartRedis(t), testenv.StartRedis(t)}
	for _, r := range w.masters[1:] {
		r.Replicate(w.redis.Addr)
	}
	sentinels := testenv.StartSentinels(t, 3, w.redis)
	var addrs []string
	for _, s := range sentinels {
		addrs = append(addrs, s.Addr)
	}
	w.master = func() *testenv.Redis {
		at, _ := sentinels[0].Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", testenv.MasterName).([]any)
		if len(at) != 2 {
			return nil
		}
		addr := net.JoinHostPort(fmt.Sprint(at[0]), fmt.Sprint(at[1]))
		i := slices.IndexFunc(w.masters, func(r *testenv.Redis) bool { return r.Addr == addr })
		if i < 0 {
			return nil
		}
		return w.masters[i]
	}
	s := w.pair.stores()
	w.open(t, seed, false, fmt.Sprintf("[claim]\nbackend = \"redis\"\n[ledger]\nbackend = \"postgres\"\n[redis]\nmode = \"sentinel\"\nmaster_name = %q\naddrs = [\"%s\"]\n[postgres]\ndsn = %q\n",
		testenv.MasterName, strings.Join(addrs, `", "`), s.dsn))
	return w
}

func standbyFaults() []*fault {
	return []*fault{
		{name: "Redis: Sentinel failover to a replica without the keys", part: "claims", begin: func(t testing.TB, w *world) func() {
			old := w.master()
			if old == nil {
				t.Fatal("the sentinels know no master")
			}
			old.Kill()
			var next *testenv.Redis
			w.masters[0].WaitFor("the sentinels to fail over", func() bool {
				next = w.master()
				return next != nil && next != old && strings.Contains(fmt.Sprint(next.Do("INFO", "replication")), "role:master")
			})
			next.Do("FLUSHALL")
			return old.Start // the sentinels make it a replica
		}},
		{name: "PostgreSQL: failover to the synchronous standby", part: "rows", begin: func(t testing.TB, w *world) func() {
			p := w.pair
			p.rows.Set(t, testenv.Refuse)
			p.pg.Kill(t)
			p.standby.Promote(t)
			p.pg, p.rows, p.second = p.standby, p.second, p.rows
			return func() {
				// The old primary's place is taken by a new standby.
				p.wire.Retarget(p.pg.Addr())
				p.wire.Drop()
				p.standby = p.pg.Standby(t, "standby1", p.wire.Addr())
				p.second.Retarget(p.standby.Addr())
				p.second.Set(t, testenv.Pass)
				p.pg.Synchronous(t, "standby1")
				p.streaming(t, "quorum")
			}
		}},
	}
}

// cluster is a Redis Cluster of three.
func cluster(t *testing.T, seed uint64) *world {
	w := &world{central: newCentral(t)}
	w.masters = testenv.StartCluster(t, 3)
	var addrs []string
	for _, n := range w.masters {
		addrs = append(addrs, n.Addr)
	}
	w.open(t, seed, false, fmt.Sprintf("[claim]\nbackend = \"redis\"\n[ledger]\nbackend = \"postgres\"\n[redis]\nmode = \"cluster\"\naddrs = [\"%s\"]\n[postgres]\ndsn = %q\n",
		strings.Join(addrs, `", "`), w.stores().dsn))
	return w
}

func clusterFaults() []*fault {
	return []*fault{
		{name: "Redis Cluster: a node lost with its keys", part: "claims", long: 2 * time.Second, begin: func(_ testing.TB, w *world) func() {
			n := w.masters[w.rnd.IntN(len(w.masters))]
			n.Kill()
			return n.Start
		}},
		{name: "Redis Cluster: a node stopped (SIGSTOP)", part: "claims", long: 2 * time.Second, begin: func(_ testing.TB, w *world) func() {
			n := w.masters[w.rnd.IntN(len(w.masters))]
			n.Pause()
			return n.Resume
		}},
	}
}

// clocks is a ledger whose clock, the reference of its agents, can be stepped.
func clocks(t *testing.T, seed uint64) *world {
	clock := testenv.NewClock(t)
	w := &world{clock: clock, central: centralOn(t, testenv.StartRedis(t), testenv.PostgresOptions{NoFsync: true, Clock: clock})}
	w.open(t, seed, false, w.stores().in(testenv.Setup{}).Sections)
	return w
}

func clockFaults() []*fault {
	step := func(name string, d time.Duration) *fault {
		return &fault{name: name, part: "clocks", long: 500 * time.Millisecond, begin: func(t testing.TB, w *world) func() {
			w.clock.Step(t, d)
			s := w.site()
			s.down() // an agent asks for the time at its start
			s.up(t)
			return func() {}
		}}
	}
	return []*fault{
		step("ledger's clock 1 h ahead, and an agent restarted", time.Hour),
		step("ledger's clock 20 s back, and an agent restarted", -20*time.Second),
		step("ledger's clock right again, and an agent restarted", 0),
	}
}

// A scan that the disk had no room for is refused with the documented answers, and exit codes: see TestFullDisk for
// the alarm. An agent cannot start on a disk that it cannot write.
func TestStartOnAFailedDisk(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{Directory: directory})
	if err := os.Mkdir(h.State, 0o700); err != nil {
		t.Fatal(err)
	}
	d := testenv.NewDisk(t, h.State, 24<<20)
	p := h.Start(t)
	st := h.Follow(t)
	g := plug(t, h, st, "SCN-04")
	kept := g.expect("accepted", matrix(bottleGTIN, "KEPT", "A1207"))
	g.committed(kept.EventID)
	d.Fail(t)
	if err := g.Type(matrix(bottleGTIN, "REFUSED", "A1207")); err != nil {
		t.Fatal(err)
	}
	g.tone("R")
	if s := h.Status(t); len(s.Alarms) == 0 || s.Balance() != "" {
		t.Errorf("status on a failed disk %+v: %s", s, s.Balance())
	}
	if r := h.Call(t, "status"); r.Code != 6 {
		t.Errorf("status ends with %d, want 6", r.Code)
	}
	p.Kill()
	unplug(g.Scanner)
	wantError(t, h.Call(t, "run"), 4, filepath.Base(h.State))
	d.Repair(t)
	h.Start(t)
	rows, _ := quiet(t, h)
	if len(rows) != 1 || rows[0].EventID != kept.EventID {
		t.Errorf("rows %+v, want that of %s alone", rows, kept.Data)
	}
}
