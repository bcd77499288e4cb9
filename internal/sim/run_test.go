package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/internal/api"
	"scanonce/window"
)

// fakeAgent reads one device and answers as an agent does, with the faults that a test asks for. Its clock
// is ahead of the machine's.
type fakeAgent struct {
	t      *testing.T
	path   string
	policy window.Policy
	host   window.OS
	ahead  time.Duration

	answer func(n int, data string) string // "" is the agent's own answer; else an outcome, or "silent"

	mu     sync.Mutex
	cond   *sync.Cond
	log    []api.Event
	st     api.Status
	rows   []api.LedgerRow
	lastly map[string]accepted
	frames int
}

type accepted struct {
	id, key string
	at      window.UTC
}

const ahead = 90 * time.Second

func newFakeAgent(t *testing.T) *fakeAgent {
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	a := &fakeAgent{
		t: t, path: filepath.Join(t.TempDir(), "scn04"), policy: window.Policy{Width: time.Second, Guard: 300 * time.Millisecond}, host: host, ahead: ahead,
		answer: func(int, string) string { return "" }, lastly: map[string]accepted{},
	}
	a.cond = sync.NewCond(&a.mu)
	a.st.Instance = "one"
	a.st.Scanners = []api.ScannerStatus{{ID: "SCN-04", State: "absent"}}
	return a
}

func (a *fakeAgent) now() window.UTC { return window.FromTime(a.host.Wall()).Add(a.ahead) }

// emit appends an event; the caller holds mu.
func (a *fakeAgent) emit(kind string, fields map[string]any) {
	id := fmt.Sprint(len(a.log) + 1)
	fields["id"], fields["kind"] = id, kind
	data, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	a.log = append(a.log, api.Event{ID: id, Kind: kind, Data: data})
	a.cond.Broadcast()
}

func (a *fakeAgent) setState(s string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.st.Scanners[0].State = s
	a.emit("device", map[string]any{"scanner_id": "SCN-04", "state": s})
}

// read opens the device and answers its frames until it goes away.
func (a *fakeAgent) read() {
	dev, err := os.OpenFile(a.path, os.O_RDWR, 0)
	if err != nil {
		a.t.Error(err)
		return
	}
	defer dev.Close()
	a.setState("opening")
	a.setState("reading")
	r := bufio.NewReader(dev)
	for {
		frame, err := r.ReadString('\r')
		if err != nil {
			return
		}
		a.frame(strings.TrimSuffix(frame, "\r"))
	}
}

func (a *fakeAgent) frame(data string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.frames++
	id := fmt.Sprintf("event-%d", a.frames)
	a.st.Frames.Frames++
	outcome := a.answer(a.frames, data)
	at := a.now()
	last, seen := a.lastly[data]
	if outcome == "" {
		outcome = "accepted"
		if seen && at.Sub(last.at) < a.policy.Width {
			outcome = "duplicate"
		}
	}
	scan := map[string]any{"scanner_id": "SCN-04", "event_id": id, "captured_at": at}
	switch outcome {
	case "silent":
		a.st.Frames.InFlight++
		return
	case "rejected", "not_accepted":
		if outcome == "rejected" {
			a.st.Frames.Rejected++
		} else {
			a.st.Frames.NotAccepted++
		}
		a.emit(outcome, map[string]any{"scanner_id": "SCN-04", "reason": "check_digit", "detail": "The check digit is wrong."})
		return
	}
	a.st.Frames.Captured++
	a.st.Counts.Captured++
	key := fmt.Sprintf("scan:idem:%064x", a.frames)
	switch outcome {
	case "duplicate":
		a.st.Counts.Suppressed++
		scan["key"], scan["duplicate_of"], scan["reason"], scan["first_captured_at"] = last.key, last.id, "bounce", last.at
		a.emit("duplicate", scan)
	case "stranger":
		a.st.Counts.Suppressed++
		scan["key"], scan["duplicate_of"] = "scan:idem:ee", last.id
		a.emit("duplicate", scan)
	case "accepted", "late":
		a.lastly[data] = accepted{id, key, at}
		scan["key"] = key
		lot := "A1207"
		scan["item"] = api.Item{Lot: &lot}
		a.emit("accepted", scan)
		if outcome == "late" { // found at settlement
			a.lastly[data] = last
			a.st.Counts.Suppressed++
			a.emit("duplicate", map[string]any{"scanner_id": "SCN-04", "event_id": id, "key": last.key, "duplicate_of": last.id, "reason": "claim_lost"})
			return
		}
		a.st.Counts.Committed++
		a.rows = append(a.rows, api.LedgerRow{EventID: id, IdemKey: key, ScanType: window.Dispense})
		a.emit("committed", map[string]any{"scanner_id": "SCN-04", "event_id": id, "key": key})
	case "uncommitted":
		a.st.Counts.Pending++
		scan["key"] = key
		a.emit("accepted", scan)
	}
}

func (a *fakeAgent) Status(context.Context) (api.Status, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := a.st
	st.Scanners = append([]api.ScannerStatus(nil), a.st.Scanners...)
	return st, nil
}

func (a *fakeAgent) Position(context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprint(len(a.log)), nil
}

func (a *fakeAgent) Follow(ctx context.Context, last string, kinds []string, yield func(api.Event) error) error {
	var n int
	if _, err := fmt.Sscan(last, &n); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.cond.Broadcast()
	})
	defer stop()
	for {
		a.mu.Lock()
		for n >= len(a.log) && ctx.Err() == nil {
			a.cond.Wait()
		}
		var ev api.Event
		if ctx.Err() == nil {
			ev = a.log[n]
		}
		a.mu.Unlock()
		if ctx.Err() != nil {
			return nil
		}
		n++
		if len(kinds) == 0 || kinds[0] == ev.Kind {
			if err := yield(ev); err != nil {
				return err
			}
		}
	}
}

func (a *fakeAgent) LedgerExport(_ context.Context, f api.Format, _, _ *window.UTC, w io.Writer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := json.NewEncoder(w)
	for _, r := range a.rows {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// do runs steps against the agent.
func (a *fakeAgent) do(steps []Step, change func(*Run)) (Summary, []Result, error) {
	a.t.Helper()
	folder := watch(a.t, filepath.Dir(a.path))
	done := make(chan struct{})
	s := &Scanner{ID: "SCN-04", Path: a.path, Framing: Framing{Suffix: "\r"}}
	var got []Result
	r := Run{
		Agent: a, Scanner: s, Steps: steps, Policy: a.policy, Host: a.host, Timeout: 5 * time.Second,
		Report: func(r *Result) error { got = append(got, *r); return nil },
	}
	if change != nil {
		change(&r)
	}
	go func() {
		defer close(done)
		if folder.appears(filepath.Base(a.path)) {
			a.read()
		}
	}()
	sum, err := r.Do(a.t.Context())
	s.Close()
	folder.Close()
	<-done
	return sum, got, err
}

// watched is a folder under inotify.
type watched struct{ *os.File }

func watch(t *testing.T, dir string) watched {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	return watched{os.NewFile(uintptr(fd), dir)}
}

// appears waits until a file of that name is renamed into the folder; false if the watch is closed before.
func (w watched) appears(name string) bool {
	buf := make([]byte, 4096)
	for {
		n, err := w.Read(buf)
		if err != nil {
			return false
		}
		if bytes.Contains(buf[:n], append([]byte(name), 0)) {
			return true
		}
	}
}

func mustSteps(t *testing.T, n, retransmits, straddles int) []Step {
	t.Helper()
	steps, err := NewWorkload(3).Steps(n, retransmits, straddles)
	if err != nil {
		t.Fatal(err)
	}
	return steps
}

func TestRunMatchesEveryTransmission(t *testing.T) {
	t.Parallel()
	a := newFakeAgent(t)
	sum, got, err := a.do(mustSteps(t, 8, 4, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !sum.OK || len(sum.Problems) > 0 {
		t.Errorf("problems: %q", sum.Problems)
	}
	if sum.Captured != 12 || sum.Committed != 8 || sum.Suppressed != 4 || sum.LedgerRows != 8 {
		t.Errorf("summary %+v", sum)
	}
	straddles := 0
	for i, r := range got {
		if r.N != i+1 || r.EventID == nil || r.Key == nil || r.AcceptMS == nil || *r.AcceptMS < 0 || *r.AcceptMS > 5000 || r.CapturedAt == nil {
			t.Fatalf("result %d: %+v", i, r)
		}
		want := Committed
		if r.Retransmit {
			want = Duplicate
			if r.Of != i || *r.DuplicateOf != *got[i-1].EventID || *r.Key != *got[i-1].Key || *r.Item.Lot != "A1207" {
				t.Errorf("scan %d is a duplicate of scan %d, %s", r.N, r.Of, *r.DuplicateOf)
			}
		}
		if r.Outcome != want {
			t.Errorf("scan %d: %s, want %s", r.N, r.Outcome, want)
		}
		if r.Straddle {
			straddles++
			before, behind := a.policy.Index(*got[i-1].CapturedAt), a.policy.Index(*r.CapturedAt)
			if behind != before+1 {
				t.Errorf("scan %d straddles windows %d and %d", r.N, before, behind)
			}
		}
	}
	if straddles != 2 {
		t.Errorf("%d straddles", straddles)
	}
}

// What an agent does wrong must not go through.
func TestRunTellsWhatDiffers(t *testing.T) {
	t.Parallel()
	nth := func(n int, outcome string) func(int, string) string {
		return func(i int, _ string) string {
			if i == n {
				return outcome
			}
			return ""
		}
	}
	again := []Step{{Data: "A"}, {Data: "A", Retransmit: true, After: 50 * time.Millisecond}, {Data: "B"}}
	for name, c := range map[string]struct {
		answer func(int, string) string
		spoil  func(*fakeAgent)
		want   string
	}{
		"a bounce becomes a row":         {answer: nth(2, "accepted"), want: "scan 02: it is committed, not the duplicate of scan 01"},
		"a duplicate of another key":     {answer: nth(2, "stranger"), want: "scan 02: it names the key scan:idem:ee, and scan 01 has"},
		"a movement becomes a duplicate": {answer: nth(3, "duplicate"), want: "scan 03: it is a movement of its own"},
		"a movement is refused":          {answer: nth(3, "rejected"), want: "scan 03: it is rejected, not committed: The check digit"},
		"not accepted":                   {answer: nth(3, "not_accepted"), want: "scan 03: outcome not_accepted"},
		"no answer":                      {answer: nth(3, "silent"), want: "scan 03: outcome none"},
		"never committed":                {answer: nth(3, "uncommitted"), want: "scan 03: outcome accepted"},
		"frames do not balance":          {answer: nth(0, ""), spoil: func(a *fakeAgent) { a.st.Frames.Frames++ }, want: "cannot balance the frames"},
		"a frame stays in flight":        {answer: nth(0, ""), spoil: func(a *fakeAgent) { a.st.Frames.Frames++; a.st.Frames.InFlight++ }, want: "cannot balance the frames"},
		"counts do not balance":          {answer: nth(0, ""), spoil: func(a *fakeAgent) { a.st.Counts.Captured++ }, want: "cannot balance the counts"},
		"counts stay behind":             {answer: nth(0, ""), spoil: func(a *fakeAgent) { a.st.Instance = "one"; a.st.Counts.Committed-- }, want: "cannot find all commits"},
		"a row is missing":               {answer: nth(0, ""), spoil: func(a *fakeAgent) { a.rows = a.rows[:1] }, want: "scan 03: the ledger has 0 rows"},
		"a row is there twice":           {answer: nth(0, ""), spoil: func(a *fakeAgent) { a.rows = append(a.rows, a.rows[0]) }, want: "scan 01: the ledger has 2 rows"},
		"a duplicate has a row": {answer: nth(0, ""), spoil: func(a *fakeAgent) {
			a.rows = append(a.rows, api.LedgerRow{EventID: "event-2", ScanType: window.Dispense})
		}, want: "scan 02: it is a duplicate, and the ledger has 1 rows"},
		"a row has another key": {answer: nth(0, ""), spoil: func(a *fakeAgent) { a.rows[0].IdemKey = "scan:idem:ff" }, want: "scan 01: the ledger has 1 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newFakeAgent(t)
			a.answer = c.answer
			n := 0
			sum, _, err := a.do(again, func(r *Run) {
				r.Timeout = 3 * time.Second
				r.Report = func(*Result) error {
					if n++; n == len(again) && c.spoil != nil {
						a.mu.Lock()
						defer a.mu.Unlock()
						c.spoil(a)
					}
					return nil
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(sum.Problems, "\n"); sum.OK || !strings.Contains(all, c.want) {
				t.Errorf("ok %v, problems %q, want %q", sum.OK, sum.Problems, c.want)
			}
			for _, p := range sum.Problems {
				if !strings.HasPrefix(p, "cannot ") {
					t.Errorf("problem %q", p)
				}
			}
		})
	}
}

// A duplicate may be found only when the stores have answered.
func TestRunTakesALateDuplicate(t *testing.T) {
	t.Parallel()
	a := newFakeAgent(t)
	a.answer = func(n int, _ string) string {
		if n == 2 {
			return "late"
		}
		return ""
	}
	sum, got, err := a.do([]Step{{Data: "A"}, {Data: "A", Retransmit: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got[1].Outcome != Duplicate || got[1].Of != 1 || got[1].Reason == nil || *got[1].Reason != "claim_lost" {
		t.Errorf("%+v", got[1])
	}
	if !sum.OK {
		t.Errorf("problems: %q", sum.Problems)
	}
}

// In a script a new code may be refused, and a retransmission then too.
func TestScriptMayBeRefused(t *testing.T) {
	t.Parallel()
	a := newFakeAgent(t)
	a.answer = func(_ int, data string) string {
		if data == "bad" {
			return "rejected"
		}
		return ""
	}
	steps := []Step{{Data: "bad"}, {Data: "bad", Retransmit: true}, {Data: "A"}}
	sum, got, err := a.do(steps, func(r *Run) { r.Scripted = true })
	if err != nil || !sum.OK {
		t.Fatalf("%v, %q", err, sum.Problems)
	}
	if got[0].Outcome != Rejected || got[0].EventID != nil || *got[0].Reason != "check_digit" || got[2].Outcome != Committed {
		t.Errorf("%+v", got)
	}
}

// When the first transmission comes too late for its boundary, another retransmission straddles.
func TestStraddleMoves(t *testing.T) {
	t.Parallel()
	a := newFakeAgent(t)
	// The machine's own clock is no help: the agent's is far ahead.
	steps := []Step{{Data: "0"}, {Data: "A"}, {Data: "A", Retransmit: true, Straddle: true}, {Data: "B"}, {Data: "B", Retransmit: true}}
	a.answer = func(n int, _ string) string {
		if n == 2 { // the clock jumps so that the frame is far from the boundary
			a.ahead += a.policy.Width - a.policy.Guard
		}
		return ""
	}
	sum, got, err := a.do(steps, nil)
	if err != nil || !sum.OK {
		t.Fatalf("%v, %q", err, sum.Problems)
	}
	if got[2].Straddle || !got[4].Straddle {
		t.Errorf("straddles: %v, %v", got[2].Straddle, got[4].Straddle)
	}
	// With none left to take its place, it is told.
	b := newFakeAgent(t)
	b.answer = func(n int, _ string) string {
		if n == 2 {
			b.ahead += b.policy.Width - b.policy.Guard
		}
		return ""
	}
	sum, _, err = b.do(steps[:3], nil)
	if err != nil || sum.OK || !strings.Contains(strings.Join(sum.Problems, " "), "cannot straddle as often as asked") {
		t.Errorf("%v, %q", err, sum.Problems)
	}
}

// One answer is enough to know the agent's clock, so the first straddle holds.
func TestFirstStraddleHolds(t *testing.T) {
	t.Parallel()
	a := newFakeAgent(t)
	steps := []Step{{Data: "0"}, {Data: "A"}, {Data: "A", Retransmit: true, Straddle: true}}
	sum, got, err := a.do(steps, nil)
	if err != nil || !sum.OK || !got[2].Straddle {
		t.Errorf("%v, %q", err, sum.Problems)
	}
}

// A pair that was captured in one window is no straddle, whatever was intended.
func TestStraddleIsChecked(t *testing.T) {
	t.Parallel()
	a := newFakeAgent(t)
	a.answer = func(n int, _ string) string {
		if n == 3 {
			a.ahead -= 150 * time.Millisecond
		}
		return ""
	}
	steps := []Step{{Data: "0"}, {Data: "A"}, {Data: "A", Retransmit: true, Straddle: true}}
	sum, _, err := a.do(steps, nil)
	if err != nil || sum.OK || !strings.Contains(strings.Join(sum.Problems, " "), "scan 03: it did not straddle") {
		t.Errorf("%v, %q", err, sum.Problems)
	}
}

// What was refused at first must be refused again.
func TestRefusedRetransmissionStaysRefused(t *testing.T) {
	t.Parallel()
	a := newFakeAgent(t)
	a.answer = func(n int, _ string) string {
		if n == 1 {
			return "rejected"
		}
		return ""
	}
	sum, _, err := a.do([]Step{{Data: "A"}, {Data: "A", Retransmit: true}}, func(r *Run) { r.Scripted = true })
	if err != nil || sum.OK || !strings.Contains(strings.Join(sum.Problems, " "), "scan 02: it is committed, and scan 01 before it rejected") {
		t.Errorf("%v, %q", err, sum.Problems)
	}
}

func TestRunNeedsTheScanner(t *testing.T) {
	t.Parallel()
	a := newFakeAgent(t)
	if _, _, err := a.do([]Step{{Data: "A"}}, func(r *Run) { r.Scanner.ID = "SCN-05" }); err == nil || !strings.Contains(err.Error(), "cannot find scanner SCN-05") {
		t.Errorf("an unknown scanner: %v", err)
	}
	b := newFakeAgent(t)
	b.st.Scanners[0].State = "reading"
	if _, _, err := b.do([]Step{{Data: "A"}}, nil); err == nil || !strings.Contains(err.Error(), "reads another one") {
		t.Errorf("a scanner in use: %v", err)
	}
	c := newFakeAgent(t)
	if err := os.WriteFile(c.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.do([]Step{{Data: "A"}}, nil); err == nil || !strings.Contains(err.Error(), "no symbolic link") {
		t.Errorf("a file in the way: %v", err)
	}
}

func TestWaitReading(t *testing.T) {
	a := newFakeAgent(t)
	folder := watch(t, filepath.Dir(a.path))
	defer folder.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if folder.appears(filepath.Base(a.path)) {
			a.read()
		}
	}()
	s, err := Plug("SCN-04", a.path, Framing{Suffix: "\r"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is reading already
		if err := s.WaitReading(deadline(t), a); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Type("A"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	<-done
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.setState("absent")
	if err := s.WaitReading(ctx, a); err == nil || !strings.HasPrefix(err.Error(), "cannot wait") {
		t.Errorf("with a context that ended: %v", err)
	}
}
