package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"scanonce/device"
	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/spool"
	"scanonce/window"
)

const (
	itemA = "]d2010030093721410617271130" + "10A1207"
	itemB = "]d2010030093721410617271130" + "10B"
	itemC = "]d2010030093721410617271130" + "10C"
)

// counter is an agent's pipeline that runs, without scanners, stores and sockets.
type counter struct {
	t    *testing.T
	cfg  *config.Config
	a    *agent
	stop func()

	mu     sync.Mutex
	broken error // the disk
}

func newCounter(t *testing.T, change func(*config.Config)) *counter {
	t.Helper()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("golden facility secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.Agent.FacilityUUID, cfg.Agent.FacilitySecretFile, cfg.Agent.StateDir, cfg.Agent.AgentID = "F", secret, dir, "agent-a"
	cfg.RxProfiles = []config.RxProfile{{Name: "a", Pattern: `R(?P<rx>\d{7})`}}
	cfg.Scanners = []config.Scanner{{ID: "SCN-04", ScanType: window.Dispense}, {ID: "SHARED", ScanType: window.Dispense, Shared: true},
		{ID: "BASE", ScanType: window.Dispense, GunDigits: 2}}
	if change != nil {
		change(cfg)
	}
	c := &counter{t: t, cfg: cfg}
	c.start()
	t.Cleanup(func() { c.kill() })
	return c
}

func (c *counter) start() {
	c.t.Helper()
	host, err := window.Host()
	if err != nil {
		c.t.Fatal(err)
	}
	c.a, err = core(c.cfg, Options{Log: slog.New(slog.DiscardHandler)}, Edges{OS: host, Disk: func(_ spool.DiskStep, _ string, do func() error) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.broken != nil {
			return c.broken
		}
		return do()
	}})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.a.pipe.Run(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
		if broken := c.laws(); broken != "" {
			c.t.Error(broken)
		}
		c.a.close(false) // as after a kill
	})
}

func (c *counter) kill() { c.stop() }

func (c *counter) disk(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = err
}

func (c *counter) laws() string {
	f, _, _ := c.a.pipe.snapshot()
	st := c.a.spool.Stats()
	if f.frames != f.captured+f.notAccepted+f.rejected+f.control+f.voided+f.inFlight {
		return fmt.Sprintf("frames do not balance: %+v", f)
	}
	if st.Captured != st.Committed+st.Suppressed+st.Pending+st.Held+st.Quarantined+st.Unaccounted {
		return fmt.Sprintf("counts do not balance: %+v", st)
	}
	return ""
}

// tally is what the pipeline, which runs, has counted up to here: it answers before it counts.
func (c *counter) tally() tally {
	c.t.Helper()
	if err := c.a.pipe.turn(c.t.Context(), func() {}); err != nil {
		c.t.Fatal(err)
	}
	t, _, _ := c.a.pipe.snapshot()
	return t
}

// request is a scan with its fingerprint, as the server makes it.
func request(scanner, data string, change func(*api.ScanRequest)) api.ScanRequest {
	q := api.ScanRequest{Scanner: scanner, Data: api.Payload(data)}
	if change != nil {
		change(&q)
	}
	at := ""
	if q.CapturedAt != nil {
		at = q.CapturedAt.String()
	}
	q.Request = sha256.Sum256(fmt.Appendf(nil, "%s|%s|%s|%s|%d", q.Scanner, string(q.Data), q.Symbology, at, q.Quantity))
	return q
}

func (c *counter) post(scanner, data string, change func(*api.ScanRequest)) (api.ScanAnswer, error) {
	return c.a.Scan(context.Background(), request(scanner, data, change))
}

func (c *counter) want(outcome, scanner, data string, change func(*api.ScanRequest)) api.ScanAnswer {
	c.t.Helper()
	a, err := c.post(scanner, data, change)
	if err != nil || a.Outcome != outcome {
		c.t.Fatalf("%s: %+v, %v; want %s", scanner, a, err, outcome)
	}
	if outcome != "control" && (a.EventID == "" || !strings.HasPrefix(a.Key, "scan:idem:") || a.WindowIndex == nil || (a.DuplicateOf != nil) != (outcome == "duplicate")) {
		c.t.Fatalf("%s: incomplete: %+v", scanner, a)
	}
	return a
}

func (c *counter) refused(status int, reason, scanner, data string, change func(*api.ScanRequest)) {
	c.t.Helper()
	a, err := c.post(scanner, data, change)
	var e *api.Error
	if !errors.As(err, &e) || e.Status != status || e.Reason != reason || e.Detail == "" || e.Hint == "" {
		c.t.Fatalf("%s: %+v, %v; want %d %s", scanner, a, err, status, reason)
	}
}

func (c *counter) records() (out []spool.Record) {
	c.t.Helper()
	if err := c.a.spool.Since(0, func(r *spool.Record) bool { out = append(out, *r); return true }); err != nil {
		c.t.Fatal(err)
	}
	return out
}

func withKey(k string) func(*api.ScanRequest) { return func(q *api.ScanRequest) { q.Key = k } }

func given(k string, at window.UTC) func(*api.ScanRequest) {
	return func(q *api.ScanRequest) { q.Key, q.CapturedAt = k, &at }
}

func same(a, b api.ScanAnswer) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func TestAScanOfAnApplicationIsAScan(t *testing.T) {
	c := newCounter(t, nil)
	a := c.want("accepted", "SCN-04", itemA, nil)
	d := c.want("duplicate", "SCN-04", itemA, nil)
	if *d.DuplicateOf != a.EventID || d.Key != a.Key || d.EventID == a.EventID {
		t.Errorf("%+v of %+v", d, a)
	}
	// The scanner itself is in the same session: its frame repeats the application's.
	answers := make(chan device.Answer, 1)
	c.a.pipe.Offer(device.Frame{Scanner: "SCN-04", Data: device.Payload(itemA), Length: len(itemA), At: c.a.clock.Now(), Reply: replies(answers)})
	if got := <-answers; got != device.Duplicate {
		t.Errorf("the scanner's own frame is answered with %d", got)
	}
	// Another place is another movement, and belongs to this agent.
	phone := c.want("accepted", "phone", itemA, nil)
	if phone.Key == a.Key {
		t.Error("two places have one key")
	}
	c.want("duplicate", "agent-a/phone", itemA, nil) // its name in full
	rs := c.records()
	if rs[0].Scanner != "SCN-04" || rs[3].Scanner != "agent-a/phone" || rs[0].Lot != "A1207" || rs[0].Symbology != "]d2" || rs[3].Quality == window.Device {
		t.Errorf("%+v", rs)
	}
	if f := c.tally(); f.frames != 5 || f.captured != 5 || f.inFlight != 0 {
		t.Errorf("%+v", f)
	}
}

func TestSymbologyOfAnApplication(t *testing.T) {
	c := newCounter(t, nil)
	sym := func(s string) func(*api.ScanRequest) { return func(q *api.ScanRequest) { q.Symbology = s } }
	c.want("accepted", "a", itemA[3:], sym("]d2"))
	c.want("duplicate", "a", itemA, nil)
	c.want("duplicate", "a", itemA, sym("]E0")) // what the data says counts
	c.want("accepted", "BASE", "07"+itemA[3:], sym("]d2"))
	c.want("duplicate", "BASE", "07"+itemA, nil)
	c.want("duplicate", "BASE/07", itemA, nil) // its address is in its name
	c.want("accepted", "BASE/08", itemA[3:], sym("]d2"))
	c.refused(422, string("bad_config"), "BASE", itemA, nil)
	c.refused(422, "unsupported_symbology", "a", "1234567890128", sym("]X0"))
	rs := c.records()
	if rs[3].Scanner != "BASE/07" || rs[6].Scanner != "BASE/08" || rs[0].Symbology != "]d2" {
		t.Errorf("%+v", rs)
	}
}

func TestQuantityOfAnApplication(t *testing.T) {
	c := newCounter(t, nil)
	five := func(q *api.ScanRequest) { q.Quantity = 5 }
	c.want("accepted", "SCN-04", itemA, five)
	c.want("accepted", "SCN-04", itemB, nil)
	if _, err := c.a.SetMode(t.Context(), "SCN-04", window.Return); err != nil {
		t.Fatal(err)
	}
	if _, err := c.a.SetQuantity(t.Context(), "SCN-04", 30); err != nil {
		t.Fatal(err)
	}
	c.want("accepted", "SCN-04", itemA+"2", nil)
	c.want("accepted", "cam", itemB, nil)
	if _, err := c.a.SetMode(t.Context(), "cam", window.Receive); err != nil {
		t.Fatal(err)
	}
	c.want("accepted", "cam", itemA, nil)
	c.refused(409, "shared_scanner", "SHARED", itemA, five)
	c.want("accepted", "SHARED", itemA, nil)
	type made struct {
		quantity int
		typ      window.ScanType
	}
	want := []made{{5, window.Dispense}, {1, window.Dispense}, {30, window.Return}, {1, window.Dispense}, {1, window.Receive}, {1, window.Dispense}}
	for i, r := range c.records() {
		if got := (made{r.Quantity, r.Type}); got != want[i] {
			t.Errorf("record %d: %+v, want %+v", i, got, want[i])
		}
	}
}

func TestContentOfAnApplication(t *testing.T) {
	c := newCounter(t, nil)
	kind := func(kind, data string) {
		t.Helper()
		if a := c.want("control", "SCN-04", data, nil); a.Kind != kind || a.EventID != "" {
			t.Errorf("%+v, want %s", a, kind)
		}
	}
	kind("mode", "SCANONCE-MODE-RETURN")
	kind("quantity", "SCANONCE-QTY-7")
	c.want("accepted", "SCN-04", itemA, nil)
	kind("opaque", "hello world")
	kind("mode", "SCANONCE-MODE-DISPENSE")
	kind("label", "R1234567")
	c.want("accepted", "SCN-04", itemB, nil)
	// "Same again" answers with what it made of the duplicate; without one it arms the next scan.
	d := c.want("duplicate", "SCN-04", itemB, nil)
	again := c.want("accepted", "SCN-04", "SCANONCE-SAMEAGAIN", nil)
	if again.EventID == d.EventID || again.Key == d.Key {
		t.Errorf("%+v of %+v", again, d)
	}
	if a := c.want("control", "cam", "SCANONCE-SAMEAGAIN", nil); a.Kind != "same_again" {
		t.Errorf("%+v", a)
	}
	c.refused(422, "unsupported_format", "SHARED", "SCANONCE-SAMEAGAIN", nil)
	c.refused(422, "empty", "SCN-04", "", nil)
	c.refused(422, "check_digit", "SCN-04", "]d2010030093721410717271130", nil)
	c.refused(422, "too_long", "SCN-04", strings.Repeat("x", 5000), nil)
	// A document is refused, and what follows of it too.
	doc := "@\n\x1e\rANSI 636000090002DL00410278ZV03190008DLDAQT64235789"
	c.refused(422, "id_document", "SCN-04", doc, nil)
	c.refused(422, "id_document", "SCN-04", "DCSSAMPLE", nil)
	// The scanner's own frames come in between, and are not of it.
	answers := make(chan device.Answer, 1)
	c.a.pipe.Offer(device.Frame{Scanner: "SCN-04", Data: device.Payload("a note"), Length: 6, At: c.a.clock.Now(), Reply: replies(answers)})
	if got := <-answers; got != device.Control {
		t.Errorf("the scanner's own frame is answered with %d", got)
	}
	rs := c.records()
	if len(rs) != 4 || rs[0].Type != window.Return || rs[0].Quantity != 7 || rs[1].RxToken == "" || rs[1].Type != window.Dispense || rs[3].RxToken != rs[1].RxToken {
		t.Errorf("%+v", rs)
	}
	f := c.tally()
	if f.captured != 4 || f.control != 8 || f.rejected != 5 || f.voided != 1 || f.frames != 18 {
		t.Errorf("%+v", f)
	}
	// Nothing of it is kept in clear.
	if err := filepath.WalkDir(c.cfg.Agent.StateDir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, s := range []string{"T64235789", "DCSSAMPLE", "hello world", "1234567"} {
			if strings.Contains(string(b), s) {
				t.Errorf("%s holds %q", path, s)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestNamesOfApplications(t *testing.T) {
	c := newCounter(t, nil)
	for _, id := range []string{"", "a b", "a/b", "agent-b/cam", strings.Repeat("a", 33), "agent-a/a/b", "sch\u00f6n", "BASE/7", "SCN-04/01"} {
		c.refused(422, "bad_scanner_id", id, itemA, nil)
	}
	if f := c.tally(); f.frames != 0 {
		t.Errorf("%+v", f)
	}
	for i := range maxSources {
		c.want("accepted", fmt.Sprintf("cam-%d", i), itemA, nil)
	}
	c.refused(429, "too_many_sources", "one-more", itemA, nil)
	c.want("accepted", "SCN-04", itemA, nil)
	c.want("accepted", "cam-7", itemB, nil)
	c.want("control", "cam-7", "SCANONCE-MODE-WASTE", nil)
	// They outlive a reload, with what their users have set.
	next := *c.cfg
	next.Scanners = next.Scanners[:1]
	if err := c.a.pipe.reconfigure(&next); err != nil {
		t.Fatal(err)
	}
	var status []api.ScannerStatus
	if err := c.a.pipe.turn(t.Context(), func() { status = c.a.pipe.scannerStatus(c.a.clock.Now()) }); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, s := range status {
		if s.State == "api" {
			seen++
		}
		if s.ID == "agent-a/cam-7" && (s.ScanType != window.Waste || s.LastScanAt == nil || s.State != "api") || s.ID == "SCN-04" && s.State != "" {
			t.Errorf("%+v", s)
		}
	}
	if seen != maxSources || len(status) != maxSources+1 {
		t.Errorf("%d of %d scanners are applications", seen, len(status))
	}
	c.refused(429, "too_many_sources", "one-more", itemA, nil)
	base := newCounter(t, func(c *config.Config) { c.Scanners[2].ID = "agent-a" })
	base.refused(422, "bad_scanner_id", "07", itemA, nil) // it would be its gun 07
}

func TestARefusalForWantOfRoom(t *testing.T) {
	c := newCounter(t, func(c *config.Config) { c.Spool.MaxRecords = 2 })
	c.disk(errors.New("input/output error"))
	c.refused(503, "fsync_failed", "SCN-04", itemA, withKey("k"))
	c.refused(503, "fsync_failed", "SCN-04", "SCANONCE-QTY-7", nil)
	c.disk(fmt.Errorf("cannot write: %w", syscall.ENOSPC))
	c.refused(503, "disk_full", "SCN-04", itemA, withKey("k"))
	c.disk(nil)
	if err := c.a.pipe.turn(t.Context(), func() {}); err != nil { // the reserve is made anew
		t.Fatal(err)
	}
	a := c.want("accepted", "SCN-04", itemA, withKey("k"))
	if b := c.want("accepted", "SCN-04", itemA, withKey("k")); !same(a, b) {
		t.Errorf("%+v and %+v", a, b)
	}
	c.want("accepted", "SCN-04", itemB, nil)
	c.refused(503, "spool_full", "SCN-04", "]d201003009372141061727113010C", withKey("k2"))
	if rs := c.records(); len(rs) != 2 || rs[0].Quantity != 1 {
		t.Errorf("%+v", rs)
	}
	if f := c.tally(); f.frames != 6 || f.notAccepted != 4 || f.captured != 2 {
		t.Errorf("%+v", f)
	}
}

// A request is counted once, however often it is sent, whoever sends it meanwhile, and over kills.
func TestARequestCountsOnce(t *testing.T) {
	c := newCounter(t, nil)
	var all [64]api.ScanAnswer
	var posts sync.WaitGroup
	for i := range all {
		posts.Go(func() {
			var err error
			if all[i], err = c.post("cam", itemA, withKey("k1")); err != nil {
				t.Error(err)
			}
		})
	}
	posts.Wait()
	for _, a := range all {
		if a.Outcome != "accepted" || !same(a, all[0]) {
			t.Fatalf("%+v and %+v", a, all[0])
		}
	}
	dup := c.want("duplicate", "cam", itemA, withKey("k2"))
	again := c.want("accepted", "cam", "SCANONCE-SAMEAGAIN", withKey("k3"))
	if f := c.tally(); f.frames != 4 || f.captured != 3 || f.control != 1 {
		t.Errorf("%+v", f)
	}
	for range 3 {
		if got := c.want("accepted", "cam", itemA, withKey("k1")); !same(got, all[0]) {
			t.Errorf("%+v, want %+v", got, all[0])
		}
		if got := c.want("duplicate", "cam", itemA, withKey("k2")); !same(got, dup) {
			t.Errorf("%+v, want %+v", got, dup)
		}
		if got := c.want("accepted", "cam", "SCANONCE-SAMEAGAIN", withKey("k3")); !same(got, again) {
			t.Errorf("%+v, want %+v", got, again)
		}
		c.refused(422, "idempotency_key_reused", "cam", itemB, withKey("k1"))
		c.kill()
		c.start()
	}
	if rs := c.records(); len(rs) != 3 {
		t.Errorf("%+v", rs)
	}
}

// Answers for which there is no room are refused, and those whose key the ledger knows are taken without.
func TestTooManyRequests(t *testing.T) {
	c := newCounter(t, nil)
	if err := c.a.spool.Recall(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := c.a.spool.NewBatch()
	for i := 0; c.a.spool.RoomForKey(c.a.clock.Now().T); i++ {
		at := c.a.clock.Now()
		if _, err := b.Decide(&spool.Candidate{Physical: idem.PhysicalKey("x", []byte{byte(i), byte(i >> 8), byte(i >> 16)}), At: at, GivenAt: at.T, Given: "g",
			Policy: window.Default(window.Dispense), Identity: idem.Identity{Scanner: "x", Type: window.Dispense, Quantity: 1}, Once: spool.Once{Key: [16]byte{1, byte(i), byte(i >> 8), byte(i >> 16)}}}); err != nil {
			t.Fatal(err)
		}
	}
	c.refused(503, "too_many_keys", "cam", itemA, withKey("k"))
	c.want("accepted", "cam", itemA, nil)
	c.want("accepted", "cam", itemA, given("k", c.a.clock.Now().T))
}

func TestAScanThatBringsItsTime(t *testing.T) {
	c := newCounter(t, nil)
	now := c.a.clock.Now().T
	past := now.Add(-48 * time.Hour)
	a := c.want("accepted", "SCN-04", itemA, given("k1", past))
	if b := c.want("accepted", "SCN-04", itemA, given("k1", past)); !same(a, b) {
		t.Errorf("%+v, want %+v", b, a)
	}
	b := c.want("accepted", "SCN-04", itemA, given("k2", past)) // no duplicate rule
	if a.Key == b.Key || *a.WindowIndex != int64(past)/3000 {
		t.Errorf("%+v, %+v", a, b)
	}
	c.want("accepted", "SCN-04", itemA, nil)
	c.refused(422, "idempotency_key_reused", "SCN-04", itemB, given("k1", past))
	c.refused(422, "bad_captured_at", "SCN-04", itemA, given("k3", now.Add(time.Minute)))
	c.refused(422, "bad_captured_at", "SCN-04", itemA, given("k4", now.Add(-7*24*time.Hour-time.Minute)))
	c.want("accepted", "SCN-04", itemA, given("k5", now.Add(-7*24*time.Hour+time.Minute)))
	// Another agent makes the same key, of a scanner of both and of one's own, by its full name.
	own := c.want("accepted", "cam", itemA, given("k6", past))
	o := newCounter(t, func(c *config.Config) { c.Agent.AgentID = "agent-b" })
	if got := o.want("accepted", "SCN-04", itemA, given("k1", past)); got.Key != a.Key || got.EventID == a.EventID {
		t.Errorf("%+v, want the key of %+v", got, a)
	}
	if got := o.want("accepted", "agent-a/cam", itemA, given("k6", past)); got.Key != own.Key {
		t.Errorf("%+v, want the key of %+v", got, own)
	}
	o.refused(422, "bad_scanner_id", "agent-a/phone", itemA, withKey("k"))
	// The event says when it was taken in, and when it was scanned.
	var told []string
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	if err := o.a.events.Follow(ctx, "never", []string{"accepted"}, func(_, _ string, data []byte) error {
		told = append(told, string(data))
		if len(told) == 3 { // the gap in front
			stop()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var e struct {
		At         window.UTC `json:"at"`
		CapturedAt window.UTC `json:"captured_at"`
	}
	if len(told) < 3 {
		t.Fatalf("told %q", told)
	}
	if err := json.Unmarshal([]byte(told[1]), &e); err != nil || e.CapturedAt != past || e.At < now {
		t.Errorf("event %s", told[1])
	}
}

// Labels and items that bring their times belong together by those, and to nothing at the counter.
func TestALabelThatBringsItsTime(t *testing.T) {
	c := newCounter(t, nil)
	past := c.a.clock.Now().T.Add(-48 * time.Hour)
	item := func(lot string) string { return "]d2010030093721410617271130" + "10" + lot }
	c.want("control", "SCN-04", "R1111111", given("k1", past))
	c.want("accepted", "SCN-04", item("1"), given("k2", past.Add(10*time.Second)))
	c.want("accepted", "SCN-04", item("2"), given("k3", past.Add(3*time.Minute)))
	c.want("accepted", "SCN-04", item("3"), given("k4", past.Add(-time.Second)))
	c.want("accepted", "SCN-04", item("4"), nil)
	c.want("control", "SCN-04", "R2222222", nil)
	c.want("accepted", "SCN-04", item("5"), given("k5", past.Add(20*time.Second)))
	c.want("accepted", "SCN-04", item("6"), nil)
	rs := c.records()
	first, live := rs[0].RxToken, rs[5].RxToken
	if first == "" || live == "" || first == live || rs[1].RxToken != "" || rs[2].RxToken != "" || rs[3].RxToken != "" || rs[4].RxToken != first {
		for _, r := range rs {
			t.Errorf("lot %s: %q", r.Lot, r.RxToken)
		}
	}
}
