// Package agent composes the rooms: it builds the tasks, owns the pipeline, starts and stops them in order.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/internal/events"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// Exit codes of an ExitError.
const (
	ExitUsage = 2 // usage or configuration wrong
	ExitState = 4 // state folder unusable
	ExitHeld  = 5 // another agent holds the state folder
)

// ExitError ends the process with one of the documented exit codes.
type ExitError struct {
	Code   int
	Kind   string // machine-readable
	Detail string // "cannot …"
	Hint   string // what to do
}

func (e *ExitError) Error() string { return e.Detail }

// Options are what the process gives its agent.
type Options struct {
	Version string
	Log     *slog.Logger
	// USBRoot is the folder of sys and dev, "" for the machine's own; see device.NewBus.
	USBRoot string
	// Reload is called at SIGHUP and returns a validated configuration.
	Reload func() (*config.Config, error)
	// Probe is the spool's child process; see spool.Options.
	Probe func(context.Context) *exec.Cmd
	// HIDWorker makes the process that reads a HID scanner; see device.HIDConfig.
	HIDWorker func() *exec.Cmd
}

// task is a long-running part. Run returns nil when its context ends.
type task interface {
	Run(context.Context) error
	Ready() <-chan struct{}
	String() string
}

// stopWithin bounds an orderly stop.
const stopWithin = 4 * time.Second

// agent is the composition.
type agent struct {
	cfg     *config.Config
	opts    Options
	log     *slog.Logger
	id      string
	bereft  string // what became of the spool, if the one that this agent had is gone
	run     string // names this process
	os      window.OS
	clock   *window.Clock
	spool   *spool.Spool
	events  *events.Log
	ledger  *lateLedger
	claims  idem.Authority
	forward *forward.Forwarder
	states  claimstate.Store
	cases   pacase.Store
	courier *forward.Courier
	dropped atomic.Int64 // conflicts for which the list has no room
	windows pacase.Windows
	labels  atomic.Pointer[[]*regexp.Regexp] // whole Rx labels, which are no ids of claims
	pipe    *pipeline
	fleet   *fleet
	wedge   *wedge
	alarms  *alarms
	metrics *metrics
	server  *localAPI

	hup          chan os.Signal // nil: nobody asks for a reload so
	reloading    sync.Mutex
	batching     sync.Mutex         // held while the alarm of waiting batches is set or cleared
	linked       chan *ledger.Probe // a row that the ledger must have, now that it answers
	verifying    sync.Mutex
	eventsDown   atomic.Bool
	linkTold     forward.Link  // owned by the forwarder's goroutine
	resets       uint64        // of the claim store, told of; owned by the forwarder's goroutine
	acknowledged *ledger.Probe // the last row; owned by the forwarder's goroutine
	suspect      *ledger.Probe // the last row before the ledger went away; likewise
	firstNew     uint64        // number of this run's first record
}

// Run runs the agent until ctx ends. It returns nil, or an *ExitError.
func Run(ctx context.Context, cfg *config.Config, o Options) error {
	hup := reloads() // first of all: unheard, the signal ends the process
	defer signal.Stop(hup)
	forbidCores(o.Log)
	folder, err := openFolder(cfg.Agent.StateDir)
	if err != nil {
		return err
	}
	defer folder.Close()
	a, err := build(cfg, o)
	if err != nil {
		return err
	}
	a.hup = hup
	return a.serve(ctx)
}

// reloads hears SIGHUP.
func reloads() chan os.Signal {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	return hup
}

// build opens what is stored and makes the parts. Nothing runs yet.
func build(cfg *config.Config, o Options) (*agent, error) {
	host, err := window.Host()
	if err != nil {
		return nil, &ExitError{Code: ExitState, Kind: "clock", Detail: err.Error(), Hint: "mount /proc for the agent"}
	}
	a, err := core(cfg, o, Edges{OS: host, Probe: o.Probe})
	if err != nil {
		return nil, err
	}
	a.fleet = newFleet(a)
	a.metrics.collect(a)
	if a.server, err = newLocalAPI(a); err != nil {
		a.close(false)
		return nil, err
	}
	return a, nil
}

// Edges are where an agent meets the world. All but OS may be nil, for the real thing.
type Edges struct {
	OS         window.OS
	Claims     idem.Authority
	Ledger     ledger.Ledger
	ClaimState claimstate.Store
	Cases      pacase.Store
	Disk       func(step spool.DiskStep, path string, do func() error) error
	Probe      func(context.Context) *exec.Cmd

	// Random and Together are forward.Config's.
	Random   func(n int64) int64
	Together func(steps ...func())
}

// core makes the parts that decide what becomes of a scan.
func core(cfg *config.Config, o Options, e Edges) (a *agent, err error) {
	a = &agent{linked: make(chan *ledger.Probe, 1), cfg: cfg, opts: o, log: o.Log, os: e.OS}
	dir := cfg.Agent.StateDir
	var known bool
	if a.id, known, err = agentID(dir, cfg.Agent.AgentID); err != nil {
		return nil, err
	}
	if a.bereft, err = bereft(dir, known); err != nil {
		return nil, err
	}
	if a.spool, err = openSpool(cfg, a.id, e, false); err != nil {
		return nil, err
	}
	mark, high := a.spool.Mark()
	a.clock = window.NewClock(a.os, mark, window.ClockOptions{Alarm: cfg.Clock.Alarm, HighWater: high,
		NoKernelReference: cfg.Ledger.Backend != "embedded"})
	if err := a.spool.Begin(a.clock); err != nil {
		a.spool.Close(false)
		return nil, stateError(dir, err)
	}
	if !known {
		if cfg.Agent.AgentID == "" && a.spool.NextSeq() > 1 {
			a.log.Warn("agent.json was missing: the id is that of the spool", "agent_id", a.id)
		}
		if err := keepID(dir, a.id); err != nil {
			a.spool.Close(false)
			return nil, err
		}
	}
	now := func() window.UTC { return a.clock.Now().T }
	if a.events, err = events.Open(filepath.Join(dir, "events.log"), events.Options{MaxEvents: cfg.Events.MaxEvents, Retention: cfg.Events.Retention, Now: now}); err != nil {
		a.spool.Close(false)
		return nil, stateError(dir, err)
	}
	a.recall()
	a.run = spool.NewEvent(now()).String()
	a.alarms = newAlarms(a.clock, a.tell)
	a.metrics = newMetrics(o.Version)
	a.ledger = openLedger(cfg, a.id, a.os, now)
	if e.Ledger != nil {
		a.ledger = newLateLedger(func() (ledger.Ledger, error) { return e.Ledger, nil })
	}
	if a.claims = e.Claims; a.claims == nil {
		a.claims = openClaims(cfg, a.id, a.run, a.os, func(remark string) { a.log.Warn("the claim store could be set up better", "remark", remark) })
	}
	a.forward = forward.New(forward.Config{Agent: a.id, Facility: cfg.Agent.FacilityUUID, Batch: cfg.Forward.Batch, BackoffMin: cfg.Forward.BackoffMin,
		BackoffMax: cfg.Forward.BackoffMax, RateLimit: cfg.Forward.RateLimit, Timeout: max(storeTimeout, cfg.Postgres.StatementTimeout), TTL: cfg.Claim.TTL,
		Random: e.Random, Together: e.Together},
		a.spool, a.claims, forwardLedger(cfg, a.ledger), a.clock, a)
	if err := a.newCourier(e, a.ledger, now); err != nil {
		a.close(false)
		return nil, err
	}
	a.wedge = newWedge(a)
	if a.pipe, err = newPipeline(a); err != nil {
		a.close(false)
		return nil, err
	}
	a.refuseLabels(a.cfg.RxProfiles)
	return a, nil
}

// storeTimeout bounds one call to a store, if no statement may take longer.
const storeTimeout = 10 * time.Second

func openSpool(cfg *config.Config, id string, e Edges, readOnly bool) (*spool.Spool, error) {
	dir := filepath.Join(cfg.Agent.StateDir, "spool")
	used, err := spool.Used(dir)
	if err != nil {
		return nil, stateError(cfg.Agent.StateDir, err)
	}
	ring, err := spool.LoadKeyRing(cfg.SpoolKeyFile(), !used && !readOnly)
	if err != nil {
		return nil, &ExitError{Code: ExitState, Kind: "spool_key", Detail: err.Error(),
			Hint: "put the key file back, from the backup if it was lost: records in the spool cannot be read without it"}
	}
	longest, horizon := cfg.Window.Longest(), 10*time.Minute
	for i := range cfg.Scanners {
		horizon = max(horizon, time.Duration(cfg.Scanners[i].Retries+1)*cfg.Scanners[i].RetryInterval)
	}
	s, err := spool.Open(dir, spool.Options{Agent: id, Keys: ring, BootID: e.OS.BootID(), Boot: e.OS.Boot, Disk: e.Disk, MaxRecords: int64(cfg.Spool.MaxRecords),
		MaxBytes: int64(cfg.Spool.MaxBytes), SegmentRecords: cfg.Spool.SegmentRecords, Horizon: max(horizon, longest), LocalSpan: longest, ReadOnly: readOnly,
		Batches: batchRule(cfg), Wall: e.OS.Wall, Probe: e.Probe})
	if err != nil {
		return nil, spoolError(cfg, err)
	}
	return s, nil
}

func batchRule(cfg *config.Config) spool.BatchRule {
	return spool.BatchRule{Count: cfg.Batch.Count, Within: cfg.Batch.Within, Keep: cfg.Batch.RepeatHorizon}
}

// spoolError is for what keeps the spool from being used.
func spoolError(cfg *config.Config, err error) error {
	var wrong *spool.WrongKeyError
	var schema *spool.SchemaError
	var damaged *spool.DamageError
	var other *spool.AgentError
	switch {
	case errors.As(err, &other):
		return &ExitError{Code: ExitState, Kind: "agent_id", Detail: err.Error(),
			Hint: fmt.Sprintf("if it is this workstation's spool, write {\"agent_id\":%q} into %s, and the same into agent.agent_id if that is set; if not, move %s away and put the right one there; nothing was changed",
				other.Owner, identityPath(cfg.Agent.StateDir), filepath.Join(cfg.Agent.StateDir, "spool"))}
	case errors.As(err, &wrong):
		return &ExitError{Code: ExitState, Kind: "spool_key", Detail: err.Error(),
			Hint: fmt.Sprintf("add the key with id %s as a line of %s; nothing was changed", wrong.KeyID, cfg.SpoolKeyFile())}
	case errors.As(err, &schema):
		return &ExitError{Code: ExitState, Kind: "spool_format", Detail: err.Error(),
			Hint: "use the version of scanonce that wrote it, at least until its scans are sent; nothing was changed"}
	case errors.As(err, &damaged):
		return &ExitError{Code: ExitState, Kind: "spool_damage", Detail: err.Error(),
			Hint: "scanonce run heals it; scanonce spool verify tells what can be read"}
	}
	return stateError(cfg.Agent.StateDir, err)
}

func stateError(dir string, err error) error {
	hint := "see that " + dir + " is on a healthy disk and belongs to the user that the agent runs as"
	var path *fs.PathError
	switch {
	case spool.IsNoSpace(err):
		hint = "make room on the disk of " + dir
	case errors.As(err, &path) && (errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) || errors.Is(err, fs.ErrExist)):
		hint = "something else stands in the place of " + path.Path + ": look at it, and move it away"
	}
	return &ExitError{Code: ExitState, Kind: "state_folder", Detail: err.Error(), Hint: hint}
}

// serve starts the parts in order, waits, and stops them in the reverse order.
func (a *agent) serve(ctx context.Context) error {
	a.retell()
	a.log.Info("starting", "version", a.opts.Version, "agent_id", a.id, "spool_epoch", a.spool.Epoch(), "unclean", a.spool.Unclean())
	var stops []func()
	group, gctx := errgroup.WithContext(context.WithoutCancel(ctx))
	start := func(t task) <-chan struct{} {
		tctx, cancel := context.WithCancel(gctx)
		done := make(chan struct{})
		group.Go(func() error {
			defer close(done)
			if err := t.Run(tctx); err != nil {
				return fmt.Errorf("%s: %w", t, err)
			}
			return nil
		})
		stops = append(stops, func() { cancel(); <-done })
		return t.Ready()
	}
	failed := gctx.Done()
	wait := func(ready <-chan struct{}) bool {
		select {
		case <-ready:
			return true
		case <-failed:
			return false
		case <-ctx.Done():
			return false
		}
	}
	a.wedge.reconfigure(a.cfg)
	ok := wait(start(a.pipe)) && wait(start(a.courier)) && wait(atMost(start(forwarding{a.forward, a}), settleStart)) && wait(start(a.fleet.bus)) && wait(start(a.fleet)) && wait(start(a.server)) && wait(start(newKeeper(a))) && wait(start(newRetention(a))) && wait(start(newRemembers(a)))
	if ok {
		a.watchConflicts()
		a.watchBatches()
		if err := a.writeAddr(); err != nil {
			a.log.Warn("cannot write the address file", "error", err)
		}
		a.pipe.setReady()
		daemon.SdNotify(false, daemon.SdNotifyReady)
		a.log.Info("ready", "socket", a.cfg.API.Socket, "listen", a.server.addr())
		a.attend(ctx, failed)
		daemon.SdNotify(false, daemon.SdNotifyStopping)
	}
	fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	for i := len(stops) - 1; i >= 0; i-- {
		stops[i]()
		switch i {
		case 4: // the scanners are silent: decide what they sent
			a.pipe.drain(fctx)
		case 2: // and send it out
			a.forward.Flush(fctx)
		}
	}
	a.wedge.close()
	err := group.Wait()
	os.Remove(filepath.Join(a.cfg.Agent.StateDir, addrFile))
	if cerr := a.close(err == nil); cerr != nil {
		a.log.Error("cannot close the state folder cleanly", "error", cerr)
	}
	if err != nil {
		return &ExitError{Code: ExitState, Kind: "internal", Detail: "cannot go on: " + err.Error(), Hint: "see the log; the service manager starts the agent again and nothing accepted is lost"}
	}
	a.log.Info("stopped")
	return nil
}

// settleStart is how long the start waits to know whether the stores answer, so that the first events say it
// right. It never waits for a store that does not.
const settleStart = 300 * time.Millisecond

func atMost(ready <-chan struct{}, d time.Duration) <-chan struct{} {
	out := make(chan struct{})
	go func() {
		defer close(out)
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-ready:
		case <-t.C:
		}
	}()
	return out
}

// attend waits for the end, serving signals and the watchdog meanwhile.
func (a *agent) attend(ctx context.Context, failed <-chan struct{}) {
	var tick <-chan time.Time
	if d, err := daemon.SdWatchdogEnabled(false); err == nil && d > 0 {
		t := time.NewTicker(d / 2)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-failed:
			return
		case <-a.hup:
			a.reload()
		case <-tick:
			if a.Alive() == nil { // the pipeline turned just now
				daemon.SdNotify(false, daemon.SdNotifyWatchdog)
			}
		}
	}
}

func (a *agent) close(clean bool) error {
	errs := []error{a.spool.Close(clean), a.events.Close()}
	if a.ledger != nil {
		errs = append(errs, a.ledger.Close())
	}
	if a.claims != nil {
		errs = append(errs, a.claims.Close())
	}
	if a.courier != nil {
		errs = append(errs, a.states.Close(), a.cases.Close())
	}
	return errors.Join(errs...)
}

const addrFile = "api.addr"

func (a *agent) writeAddr() error {
	addr := a.server.addr()
	if addr == "" {
		return nil
	}
	return renameio.WriteFile(filepath.Join(a.cfg.Agent.StateDir, addrFile), []byte(addr+"\n"), 0o600)
}

// eventStream adapts the log to what the API wants.
type eventStream struct{ *events.Log }

func (s eventStream) Follow(ctx context.Context, lastID string, kinds []string, yield func(api.Event) error) error {
	return s.Log.Follow(ctx, lastID, kinds, func(id, kind string, data []byte) error {
		return yield(api.Event{ID: id, Kind: kind, Data: data})
	})
}

// StoredReader answers from a state folder without an agent.
type StoredReader interface {
	api.Reader
	io.Closer
}
