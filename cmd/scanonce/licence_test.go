package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// licence is a driver's licence that nobody has, and the values in it.
type licence struct {
	name, text string
	values     []string
}

// licences are laid out as several issuers and all versions of the standard do.
func licences() []licence {
	var out []licence
	// add replaces each %s of the layout by a value of its own.
	add := func(name, layout string) {
		n := len(out)
		person := []any{fmt.Sprintf("Q%02d7788990", n), fmt.Sprintf("ZWIEBEL%02d", n), fmt.Sprintf("XAVERIA%02d", n), fmt.Sprintf("%d WINKELZUG LANE", 7100+n),
			fmt.Sprintf("KLEINSTADT%02d", n), fmt.Sprintf("19%02d0229", 60+n), fmt.Sprintf("98%02d17653", n)}
		l := licence{name: name, text: fmt.Sprintf(layout, person...)}
		for _, v := range person {
			l.values = append(l.values, v.(string))
		}
		out = append(out, l)
	}
	const plain = "DAQ%s\nDCS%s\nDAC%s\nDAG%s\nDAI%s\nDAJCA\nDBB%s\nDAK%s  \n"
	for v := 1; v <= 10; v++ {
		add(fmt.Sprintf("version %d", v), fmt.Sprintf("@\n\x1e\rANSI 636014%02d0002DL00410278ZC03190008DL", v)+plain+"DCGUSA\rZCZCABRO\nZCBBLK\r")
	}
	add("FS, one name field", "@\n\x1c\rANSI 6360050101DL00270153ZS01800009DLDAQ%s\nDAA%s,%s\nDAG%s\nDAI%s\nDAJSC\nDBB%s\nDAK%s\r\x1d")
	add("AAMVA for ANSI", "@\n\x1e\rAAMVA36000102DL00280190DL"+plain+"\r")
	add("CR LF for LF", strings.ReplaceAll("@\n\x1e\rANSI 636001070002DL00410392DL"+plain, "\n", "\r\n")+"\r")
	add("two subfiles", "@\n\x1e\rANSI 636026080103DL00510288ZA03390015ID03540040DL"+plain+"\rZAZAAN\rIDDAQ0000\r")
	add("magnetic stripe", "%%CA%[5]s^%[2]s$%[3]s^%[4]s^?;636014%[1]s=2412%[6]s?#\"%[7]s?")
	return out
}

// Of a driver's licence, in whatever framing, nothing is kept or told, and the next scan counts.
func TestLicences(t *testing.T) {
	t.Parallel()
	type device struct{ id, framing, prefix, suffix, id2 string }
	devices := []device{{"LINE", "line", "", "\r\n", ""}, {"CR", "cr", "", "\r", "]L2"}, {"LF", "lf", "", "\n", ""}, {"CRLF", "crlf", "", "\r\n", ""},
		{"STX", "stx-etx", "\x02", "\x03", "]L0"}, {"ACK", "acknak", "\x02", "\x03", ""}, {"ACKLINE", "acknak", "", "\r", ""}}
	setup := rxSetup(secretFile(t, goldenSecret))
	setup.Agent += "log_level = \"debug\"\n"
	setup.Scanners = []string{}
	for _, d := range devices {
		setup.Sections += fmt.Sprintf("[[scanner]]\nid = %q\ntransport = \"serial\"\npath = \"PORT-%s\"\nframing = %q\nfeedback = { good = \"G\", duplicate = \"D\", reject = \"R\" }\n", d.id, d.id, d.framing)
	}
	h := program.NewHome(t, setup)
	cfg, err := os.ReadFile(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.Config, []byte(strings.ReplaceAll(string(cfg), "\"PORT-", "\""+h.Port(""))), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Start(t).Stop(t)
	release := hold(t, h) // so that the spool has to keep what is accepted
	p := h.Start(t)
	st := h.Follow(t)
	begin := st.LastID()
	all := licences()
	private := secrets{}
	for _, l := range all {
		for i, v := range l.values {
			private[fmt.Sprintf("value %d of %s", i, l.name)] = v
		}
	}
	accepted, scans := 0, 0
	guns := map[string]*gun{}
	next := func() string { // a retail number that comes once
		digits := fmt.Sprintf("3%010d", 4060512000+scans)
		scans++
		sum := 0
		for i, c := range digits {
			if d := int(c - '0'); i%2 == 0 {
				sum += 3 * d
			} else {
				sum += d
			}
		}
		return digits + fmt.Sprint((10-sum%10)%10)
	}
	for _, d := range devices {
		g := plugAs(t, h, st, d.id, d.suffix)
		g.Framing.Prefix = d.prefix
		guns[d.id] = g
		for i, l := range all {
			before := h.Status(t).Frames
			sent := g.Framing.Frame(d.id2 + l.text)
			pieces := []string{sent}
			if i%4 == 0 {
				pieces = strings.Split(sent, "") // a read may end at every byte
			}
			for _, piece := range pieces {
				if err := g.Write([]byte(piece)); err != nil {
					t.Fatal(err)
				}
			}
			// The next scan comes right behind, by a device that sends no AIM identifier, or one that does.
			drug := next()
			if i%2 == 1 {
				drug = "]E00" + drug
			}
			if err := g.Type(drug); err != nil {
				t.Fatal(err)
			}
			symbology := "null"
			if d.id2 != "" {
				symbology = `"` + d.id2 + `"`
			}
			if e := g.answer(); e.Kind != "rejected" || e.Reason != "id_document" || e.Detail == "" || !strings.Contains(e.Data, `"symbology":`+symbology) {
				t.Fatalf("%s, %s: the licence is answered with %s", d.id, l.name, e.Data)
			}
			e := g.answer()
			if e.Kind != "accepted" || e.Item == nil || deref(e.Item.GTIN) != "00"+strings.TrimPrefix(drug, "]E00") {
				t.Fatalf("%s, %s: the next scan %s is answered with %s", d.id, l.name, drug, e.Data)
			}
			accepted++
			after := h.Await(t, "an end of the frames", func(s *testenv.Status) bool { return s.Frames.InFlight == 0 }).Frames
			if after.Rejected != before.Rejected+1 || after.Captured != before.Captured+1 || after.Control != before.Control || after.NotAccepted != before.NotAccepted {
				t.Errorf("%s, %s: frames %+v, before the licence %+v", d.id, l.name, after, before)
			}
		}
	}
	// Without a terminator the line's silence ends it; the next scan is whole.
	g := guns["CRLF"]
	if err := g.Write([]byte(strings.TrimRight(all[3].text, "\r\n"))); err != nil {
		t.Fatal(err)
	}
	if e := g.answer(); e.Kind != "not_accepted" || e.Reason != "incomplete" {
		t.Errorf("a licence without end is answered with %s", e.Data)
	}
	if e := g.scan(next()); e.Kind != "accepted" {
		t.Errorf("the scan behind it is answered with %s", e.Data)
	}
	accepted++
	// One that stalls within a name: the rest of the name is no text of its own.
	g = guns["LINE"]
	cut := strings.Index(all[2].text, all[2].values[1]) + 4
	if err := g.Write([]byte(all[2].text[:cut])); err != nil {
		t.Fatal(err)
	}
	if e := g.answer(); e.Kind != "rejected" || e.Reason != "id_document" {
		t.Errorf("the first half of a licence is answered with %s", e.Data)
	}
	if e := g.answer(); e.Kind != "not_accepted" || e.Reason != "incomplete" {
		t.Errorf("half a line of a licence is answered with %s", e.Data)
	}
	pace(t, time.Second) // longer than the silence that ends a document
	if err := g.Write([]byte(all[2].text[cut:])); err != nil {
		t.Fatal(err)
	}
	if e := g.scan("]E00" + next()); e.Kind != "accepted" {
		t.Errorf("the scan behind the second half is answered with %s", e.Data)
	}
	accepted++

	look := func() {
		t.Helper()
		private.searchFolder(t, h.Dir)
	}
	for _, e := range st.Events() {
		private.search(t, "a live event", []byte(e.Data))
		if e.Kind == "unknown" || e.Kind == "label" {
			t.Errorf("a licence became %s", e.Data)
		}
	}
	look()
	export := h.Call(t, "spool", "export")
	p.Kill()
	look()
	release()
	h.Start(t)
	rows, lines := quiet(t, h)
	if rejected := linesOf(lines, "rejected"); len(rows) != accepted || len(rejected) != len(devices)*len(all)+1 {
		t.Errorf("%d rows and %d rejected lines, want %d and %d", len(rows), len(rejected), accepted, len(devices)*len(all)+1)
	}
	for _, e := range func() []testenv.Event {
		copied := h.FollowFrom(t, begin)
		_, end := copied.Wait(t, 0, "the copied events", func(e *testenv.Event) bool { return e.Kind == "committed" })
		return copied.Events()[:end]
	}() {
		private.search(t, "a copied event", []byte(e.Data))
	}
	_, metrics := h.Ask(t, http.MethodGet, "/metrics", nil)
	audit, ledger, status := h.Call(t, "audit", "export"), h.Call(t, "ledger", "export", "--format", "jsonl"), h.Call(t, "--json", "status")
	for what, out := range map[string]string{"/metrics": string(metrics), "audit export": audit.Stdout, "ledger export": ledger.Stdout, "status": status.Stdout, "spool export": export.Stdout} {
		if len(out) < 200 {
			t.Errorf("%s has %d bytes", what, len(out))
		}
		private.search(t, what, []byte(out))
	}
	look()
}

// An agent that dies of a signal leaves no core, and its last words hold nothing of what was scanned.
func TestNoCore(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &limit); err != nil {
		t.Fatal(err)
	}
	old := limit
	limit.Cur = limit.Max // as far as the machine allows, cores are written
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_CORE, &old) })
	h := program.NewHome(t, rxSetup(secretFile(t, goldenSecret)))
	log, err := os.Create(h.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := h.Command(context.Background(), "run")
	cmd.Stderr = log
	cmd.Env = append(cmd.Env, "GOTRACEBACK=crash") // asks for a core
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if code, _, err := h.TryAsk(ctx, http.MethodGet, "/readyz", nil); err == nil && code == http.StatusOK {
			tick.Stop()
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the agent is not ready")
		}
	}
	st := h.Follow(t)
	g := plug(t, h, st, "SCN-04")
	l := licences()[4]
	const opaque = "ZWIEBEL XAVERIA 1960-02-29"
	for _, data := range []string{goldenLabel, opaque, l.text, matrix(bottleGTIN, "CANARYSERIAL77", "CANARYLOT")} {
		if err := g.Type(data); err != nil {
			t.Fatal(err)
		}
		g.answer()
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		if strings.HasPrefix(line, "Max core file size") && strings.Join(strings.Fields(line), " ") != "Max core file size 0 0 bytes" {
			t.Errorf("limit %s", line)
		}
	}
	cmd.Process.Signal(syscall.SIGABRT)
	cmd.Wait()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.CoreDump() || !status.Signaled() && status.ExitStatus() != 2 {
		t.Errorf("the agent ended with %v, core dumped: %v", cmd.ProcessState, status.CoreDump())
	}
	if cores, err := filepath.Glob(filepath.Join(h.Dir, "core*")); err != nil || len(cores) > 0 {
		t.Errorf("files %v: %v", cores, err)
	}
	said, err := os.ReadFile(h.Log)
	if err != nil || !strings.Contains(string(said), "SIGABRT") || !strings.Contains(string(said), "goroutine ") {
		t.Fatalf("no trace in the log: %v", err)
	}
	private := secrets{}
	for i, v := range append([]string{"1234567", "0123456", goldenSecret, opaque}, l.values...) {
		private[fmt.Sprintf("value %d", i)] = v
	}
	private.searchFolder(t, h.Dir)
	secrets{"a serial": "CANARYSERIAL77", "a lot": "CANARYLOT"}.search(t, "the trace", said)
}
