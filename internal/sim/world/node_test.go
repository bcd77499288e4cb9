package world

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"scanonce/device"
	"scanonce/internal/agent"
	"scanonce/internal/config"
	"scanonce/spool"
	"scanonce/sync/forward"
	"scanonce/window"
)

const facility = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"

// node is a workstation: its agent, when it runs, its folder and its clocks.
type node struct {
	w   *world
	id  string
	dir string
	cfg *config.Config

	// The clocks. Boot is the true time since bootAt; the wall is true time plus wallOff.
	boots   int
	bootAt  time.Duration
	wallOff time.Duration
	synced  bool
	asleepT time.Duration // suspended until then

	claims *claims
	stage  *agent.Stage // nil while no agent runs
	born   int          // of the processes
	dead   bool         // the process is gone: what is left of it finds only errors

	booting, intake, drain *actor
	carriers               []*carrier
	calls                  []*call // of pharmacy systems, under way
	begun                  bool    // operations on claims
	ctx                    context.Context
	cancel                 context.CancelFunc
	early                  []*spool.Record // handed over by a commit that has begun
	coming                 chan []*spool.Record
	quit                   chan struct{}

	nextDrain time.Duration // -1: never
	wakes     bool
	nextAsk   time.Duration
	starts    time.Duration // when the dead agent is started, 0 for not planned

	fault   *diskFault
	narrow  bool // there was no room on its disk, in this process
	cramped bool // or in an earlier one, which may have let go of segments that are removed now
	ambush  *faultPlan
	removed map[string][]byte // files whose removal the folder may not remember
	kept    image             // what the crash left
	journal []byte            // of the journal of operations
	log     []byte            // of the events

	known    uint64     // records seen by the oracle
	lastT    window.UTC // of readings
	lastStep uint64
	high     window.UTC // highest t that is durable
	powerCut bool       // ever: the event log may have lost its tail
}

// Wall, WallSynced, Boot and BootID are window.OS.
func (n *node) Wall() time.Time { return n.w.plan.begin.Add(n.w.now + n.wallOff) }

func (n *node) WallSynced() (bool, time.Duration) { return n.synced, time.Millisecond }
func (n *node) Boot() time.Duration               { return n.w.now - n.bootAt }
func (n *node) BootID() string                    { return fmt.Sprintf("%s-boot-%d", n.id, n.boots) }

func (n *node) asleep() bool { return n.w.now < n.asleepT }

var silent = slog.New(slog.DiscardHandler)

func (w *world) newNode(id string) *node {
	n := &node{w: w, id: id, dir: filepath.Join(w.dir, id), synced: true, boots: 1, bootAt: -w.plan.uptime, removed: map[string][]byte{}}
	cfg := config.Default()
	cfg.Agent.FacilityUUID, cfg.Agent.AgentID, cfg.Agent.StateDir = facility, id, n.dir
	cfg.Ledger.Backend = "postgres"
	cfg.Claim.Backend = "redis"
	cfg.Claim.TTL = w.plan.ttl
	cfg.Forward.Batch = w.plan.batch
	cfg.Forward.BackoffMax = time.Second
	cfg.Spool.SegmentRecords = w.plan.segment
	cfg.ClaimState.TTL, cfg.ClaimState.PendTTL = w.plan.life, 3*w.plan.life
	cfg.Agent.FacilitySecretFile = filepath.Join(n.dir, "secret")
	cfg.RxProfiles = []config.RxProfile{{Name: "own", Pattern: `RX(?P<rx>\d{7})`}}
	for _, u := range w.plan.users {
		if !slices.Contains(u.nodes, id) {
			continue
		}
		s := config.DefaultScanner()
		s.ID, s.Path, s.Shared = u.scanner, "/dev/null", len(u.nodes) > 1
		cfg.Scanners = append(cfg.Scanners, s)
	}
	n.cfg = cfg
	for path, content := range map[string]string{"agent.json": `{"agent_id":"` + id + `"}`, "keys/spool.key": strings.Repeat("5a", 32) + "\n", "secret": secret} {
		path = filepath.Join(n.dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			panic(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			panic(err)
		}
	}
	return n
}

// secret is the facility's.
const secret = "00112233445566778899aabbccddeeff"

// start begins a process.
func (n *node) start() {
	w := n.w
	n.starts, n.dead, n.begun = 0, false, false
	n.cramped = n.cramped || n.narrow
	n.narrow = n.fault != nil && n.fault.err == errNoSpace && w.now < n.fault.until
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.born++
	if n.kept != nil {
		if err := n.kept.write(filepath.Join(n.dir, "spool")); err != nil {
			panic(err)
		}
		if err := os.WriteFile(filepath.Join(n.dir, "events.log"), n.log, 0o600); err != nil {
			panic(err)
		}
		n.kept = nil
		clear(n.removed)
	}
	w.mark("start", n, uint64(n.born))
	if n.claims != nil {
		n.claims.Close()
	}
	n.claims = w.redis.of(n)
	var stage *agent.Stage
	n.booting = w.begin(func() {
		s, err := agent.NewStage(n.cfg, agent.Options{Version: "sim", Log: silent}, agent.Edges{OS: n, Claims: n.claims, Ledger: w.rows.of(n),
			ClaimState: states{n, w.states}, Cases: cases{n, w.cases}, Disk: n.disk, Random: w.rng.Int64N, Together: n.together})
		if err != nil {
			if !n.dead && n.fault == nil {
				w.fail("%s does not start: %v", n.id, err)
			}
			if !n.dead {
				n.die(false)
				n.starts = w.now + time.Second
				w.at(n.starts, n.startIfDue)
			}
			return
		}
		stage = s
		if n.dead {
			stage.Close(false)
			return
		}
		n.stage = stage
		n.nextDrain, n.wakes, n.nextAsk = w.now, true, w.now
		for _, name := range stage.Courier().Lanes() {
			n.carriers = append(n.carriers, &carrier{name: name, next: w.now})
		}
		w.oracle.started(n)
	})
}

func (n *node) startIfDue() {
	if n.starts != 0 && n.w.now >= n.starts {
		n.start()
	}
}

// move lets an actor of the node go on. Whoever holds the journal's lock goes first, up to where it lets it go.
func (n *node) move(a **actor) {
	n.release(a)
	if *a != nil {
		n.resume(a)
	}
}

func (n *node) resume(a **actor) {
	if !n.w.resume(*a) {
		*a = nil
		n.calls = slices.DeleteFunc(n.calls, func(c *call) bool { return c.actor == nil })
	}
}

// actors are all parts of the agent that are in the middle of their work.
func (n *node) actors() (all []**actor) {
	all = []**actor{&n.booting, &n.intake, &n.drain}
	for _, c := range n.carriers {
		all = append(all, &c.actor)
	}
	for _, c := range n.calls {
		all = append(all, &c.actor)
	}
	return slices.DeleteFunc(all, func(a **actor) bool { return *a == nil })
}

// holder is who holds a lock that another one may wait for, the journal of operations' or state.db's; nil for nobody.
func (n *node) holder() **actor {
	soon := false
	if n.stage != nil {
		_, soon = n.stage.Silent()
	}
	for _, a := range n.actors() {
		// The pipeline takes state.db's lock when it keeps the list of a batch.
		if (*a).queues || (*a).settles && (soon || a == &n.intake) {
			return a
		}
	}
	return nil
}

// release frees the locks for somebody.
func (n *node) release(who **actor) {
	for h := n.holder(); h != nil && h != who && *h != n.w.current; h = n.holder() {
		n.resume(h)
	}
}

// carrier is a lane of the agent's courier.
type carrier struct {
	name    forward.Lane
	actor   *actor
	next    time.Duration // -1: never
	wakes   bool
	poked   bool
	changed <-chan struct{}
}

// poke says that something has happened that a lane may have waited for.
func (n *node) poke() {
	for _, c := range n.carriers {
		c.poked = true
	}
}

func (n *node) carrierDue(c *carrier) bool {
	if c.next >= 0 && n.w.now >= c.next {
		return true
	}
	if !c.wakes {
		return false
	}
	select {
	case <-c.changed:
		return true
	default:
		return c.poked
	}
}

func (n *node) beginCarrier(c *carrier) {
	w := n.w
	n.release(nil)
	c.changed, c.poked = n.stage.Spool().Journal().Changed(), false
	courier, ctx := n.stage.Courier(), n.ctx
	c.actor = w.begin(func() {
		wait, wakes := courier.Turn(ctx, c.name)
		if n.dead {
			return
		}
		c.next, c.wakes = w.now+wait, wakes
		if wait < 0 {
			c.next = -1
		} else if wait > 0 {
			w.after(wait, func() {})
		}
	})
}

// await looks once which claims the records of earlier runs ask for.
func (n *node) await() {
	if n.begun {
		return
	}
	n.begun = true
	if err := n.stage.Begin(); err != nil {
		n.w.fail("%s cannot look through its spool: %v", n.id, err)
	}
	n.poke()
}

// together runs the steps of a batch in an order of the schedule's.
func (n *node) together(steps ...func()) {
	n.w.rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, s := range steps {
		s()
	}
}

// beginTurn begins a turn of the pipeline. If the forwarder sleeps, it may hear of a commit as it begins.
func (n *node) beginTurn() {
	w := n.w
	if n.drain == nil && n.early == nil && n.wakes && w.chance(2) {
		n.coming, n.quit = make(chan []*spool.Record, 1), make(chan struct{})
		go func(coming <-chan []*spool.Record, heard chan<- []*spool.Record, quit <-chan struct{}) {
			select {
			case r := <-coming:
				heard <- r
			case <-quit:
			}
		}(n.stage.Spool().Coming(), n.coming, n.quit)
		synctest.Wait()
	}
	n.release(nil)
	n.intake = w.begin(func() {
		n.stage.Turn()
		n.unhear()
		if !n.dead {
			w.oracle.turned(n)
		}
	})
}

// heardComing takes what a commit that begins has handed over to the forwarder.
func (n *node) heardComing() {
	if n.coming == nil {
		return
	}
	synctest.Wait()
	select {
	case n.early = <-n.coming:
		n.coming = nil
	default:
	}
}

func (n *node) unhear() {
	if n.quit != nil {
		close(n.quit)
		n.coming, n.quit = nil, nil
	}
}

func (n *node) beginEarly() {
	records := n.early
	n.early = nil
	n.await()
	n.drain = n.w.begin(func() { n.stage.Forwarder().ClaimEarly(context.Background(), records) })
}

// drainDue says whether the forwarder wakes up.
func (n *node) drainDue() bool {
	if n.nextDrain >= 0 && n.w.now >= n.nextDrain {
		return true
	}
	if n.wakes {
		select {
		case <-n.stage.Spool().Wake():
			n.nextDrain = n.w.now
			return true
		default:
		}
	}
	return false
}

func (n *node) beginDrain() {
	w := n.w
	n.await()
	f := n.stage.Forwarder()
	n.release(nil)
	n.drain = w.begin(func() {
		if f.Stats().ClaimsCause != nil && w.now >= n.nextAsk {
			f.AskClaims(context.Background())
			n.nextAsk = w.now + 100*time.Millisecond
		}
		wait, wakes := f.Turn(context.Background())
		n.poke()
		if n.dead {
			return
		}
		n.nextDrain, n.wakes = w.now+wait, wakes
		if wait < 0 {
			n.nextDrain = -1
		} else if wait > 0 {
			w.after(wait, func() {})
		}
		w.oracle.conserved(n)
	})
}

// heard takes a frame from a scanner, unless nobody listens.
func (n *node) heard(t *transmission, data string) bool {
	if n.stage == nil || n.dead || n.booting != nil || n.asleep() {
		return false
	}
	at := n.reading()
	t.node, t.at, t.born, t.boots, t.sent = n, at.T, n.born, n.boots, n.w.now
	n.w.oracle.offered(t)
	f := device.Frame{Scanner: t.scanner, Data: device.Payload(data), Length: len(data), At: at, Reply: t}
	if t.partial {
		f.Data, f.Length, f.Fault = nil, 1+len(data)/2, device.Incomplete
	}
	n.stage.Offer(f)
	return true
}

// reading takes the time of a frame. No two of an agent are alike, so that they name what they belong to.
func (n *node) reading() window.Reading {
	for {
		at := n.stage.Clock().Now()
		steps := n.stage.Clock().Stats().Steps
		n.w.oracle.time(n, at.T, steps)
		if !n.w.oracle.taken(n, at.T) {
			return at
		}
		n.w.now += time.Millisecond
	}
}

// crash ends the process at once, wherever its parts stand. power says that the machine went with it.
func (n *node) crash(power bool) {
	if n.dead || n.stage == nil && n.booting == nil {
		return
	}
	n.w.note("%s crash power=%v", n.id, power)
	var steps []*diskStep
	for _, a := range n.actors() {
		if (*a).step != nil {
			steps = append(steps, (*a).step)
		}
	}
	n.w.crashes++
	n.w.torn += len(steps)
	n.kept = n.crashImage(steps, power)
	n.log, _ = os.ReadFile(filepath.Join(n.dir, "events.log"))
	if power {
		n.powerCut = true
		n.log = n.log[:len(n.log)-int(n.w.rng.Uint64()%uint64(len(n.log)+1))]
	}
	n.die(power)
}

// die lets what is left of the process run out against errors, and frees what it holds.
func (n *node) die(power bool) {
	n.dead = true
	n.finish(n.actors())
	n.carriers = nil
	n.unhear()
	n.early = nil
	if n.stage != nil {
		n.stage.Close(false)
		n.stage = nil
	}
	n.claims.Close()
	n.w.oracle.died(n)
	if power {
		n.boots++
		n.bootAt = n.w.now // of the next boot: what lies between is of no account
	}
}

// finish moves actors to their end, but for the one that asks for it.
func (n *node) finish(actors []**actor) {
	for _, a := range actors {
		for *a != nil && *a != n.w.current {
			n.move(a)
		}
	}
}

// requeue tries again what the ledger refused.
func (n *node) requeue() {
	if n.stage.Spool().Stats().Quarantined == 0 {
		return
	}
	done := make(chan error, 1)
	go func() {
		_, err := n.stage.Forwarder().Requeue(context.Background(), nil, true)
		done <- err
	}()
	synctest.Wait()
	n.beginDrain()
	for n.drain != nil {
		n.move(&n.drain)
	}
	if err := <-done; err != nil {
		n.w.fail("%s cannot requeue: %v", n.id, err)
	}
}

// stop is an orderly stop: what is queued is decided, and what can be sent is sent.
func (n *node) stop(clean bool) {
	n.w.note("%s stops", n.id)
	for len(n.calls) > 0 { // the local interface lets them end
		n.move(&n.calls[0].actor)
	}
	for n.intake != nil || n.drain != nil || n.early != nil || n.stage.Queued() {
		switch {
		case n.intake != nil:
			n.move(&n.intake)
		case n.drain != nil:
			n.move(&n.drain)
		case n.early != nil:
			n.beginEarly()
		default:
			n.beginTurn()
		}
	}
	n.release(nil)
	if clean {
		n.stage.Flush(context.Background())
	}
	n.cancel()
	n.finish(n.actors())
	n.carriers = nil
	n.w.oracle.turned(n)
	if err := n.stage.Close(true); err != nil && n.fault == nil {
		n.w.fail("%s does not close: %v", n.id, err)
	}
	n.stage = nil
	n.dead = true
	n.w.oracle.died(n)
}
