package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"scanonce/capture"
	"scanonce/internal/agent"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/internal/sim"
	"scanonce/window"
)

func healthy() api.Status {
	return api.Status{State: "ONLINE", Accepting: true, Counts: api.Counts{Captured: 3, Committed: 3}}
}

func TestStatusNeedsAPerson(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*api.Status)
		want   bool
	}{
		"healthy":            {func(*api.Status) {}, false},
		"offline alone":      {func(s *api.Status) { s.State = "OFFLINE"; s.Alarms = []api.Alarm{{Code: "offline"}} }, false},
		"a scanner is away":  {func(s *api.Status) { s.Alarms = []api.Alarm{{Code: "device_absent"}} }, false},
		"refusing":           {func(s *api.Status) { s.Accepting = false }, true},
		"clone":              {func(s *api.Status) { s.Clone = true }, true},
		"spool below 80 %":   {func(s *api.Status) { s.Spool.Fill = 0.79 }, false},
		"spool at 80 %":      {func(s *api.Status) { s.Spool.Fill = 0.8 }, true},
		"quarantine":         {func(s *api.Status) { s.Spool.Quarantined = 1 }, true},
		"poisoned records":   {func(s *api.Status) { s.Counts.Quarantined = 1 }, true},
		"held batch":         {func(s *api.Status) { s.Counts.Held = 1 }, true},
		"clock":              {func(s *api.Status) { s.Alarms = []api.Alarm{{Code: "clock_step"}} }, true},
		"an alarm to come":   {func(s *api.Status) { s.Alarms = []api.Alarm{{Code: "something_else"}} }, true},
		"pending is nothing": {func(s *api.Status) { s.Counts.Pending = 9 }, false},
	} {
		st := healthy()
		c.change(&st)
		if got := needsPerson(&st); got != c.want {
			t.Errorf("%s: needs a person: %v, want %v", name, got, c.want)
		}
	}
}

func TestStatusText(t *testing.T) {
	st := healthy()
	away := "connection refused"
	at := window.UTC(1762206339000)
	st.Accepting, st.Clone = false, true
	st.Stores.Redis = &api.StoreStatus{LastError: &away, Since: &at}
	st.Stores.Postgres = &api.StoreStatus{OK: true}
	st.Spool = api.SpoolStatus{Records: 5, MaxRecords: 10, Bytes: 1536, MaxBytes: 2 << 30, Fill: 0.5, OldestAgeMS: 61000}
	st.Scanners = []api.ScannerStatus{
		{ID: "SCN-04", State: "reading", ScanType: window.Return, Quantity: 3, RevertsAt: &at},
		{ID: "SCN-05", State: "absent", ScanType: window.Dispense, Quantity: 1, Ambiguous: true},
	}
	st.Alarms = []api.Alarm{{Code: "spool_full", Detail: "the spool is full", Hint: "bring the ledger back", Since: at}}
	if strings.Contains(statusText(&st), "queued") {
		t.Error("nothing is queued, and the status tells of it")
	}
	st.Operations = api.PendingStatus{Pending: 3, OldestAgeMS: 61000}
	got := statusText(&st)
	for _, want := range []string{
		"state     ONLINE, REFUSING SCANS\n",
		"ANOTHER AGENT HOLDS THIS ID\n",
		"spool     5 of 10 records, 1.5 KiB of 2.0 GiB (50 %), oldest 1m1s, ",
		"redis     away since 2025-11-03T21:45:39.000Z: connection refused\n",
		"postgres  ok\n",
		"queued    3 operations wait for a store, the oldest for 1m1s: see scanonce conflicts --pending\n",
		"scanners  SCN-04  reading, return, quantity 3, until 2025-11-03T21:45:39.000Z, last scan –\n",
		"          SCN-05  absent, dispense, quantity 1, ambiguous",
		"alarms    spool_full since 2025-11-03T21:45:39.000Z: the spool is full\n          hint: bring the ledger back\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
}

func TestErrorsAndTheirCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		kind string
	}{
		{&api.Unreachable{Socket: "/s", Err: syscall.ECONNREFUSED}, exitUnreachable, "unreachable"},
		{&api.Error{Status: 404, Reason: "not_found", Detail: "cannot find it"}, exitBad, "not_found"},
		{&api.Error{Status: 409, Reason: "conflict", Detail: "cannot do it"}, exitBad, "conflict"},
		{&api.Error{Status: 400, Reason: "bad", Detail: "cannot read it"}, exitUsage, "bad"},
		{&api.Error{Status: 401, Reason: "token", Detail: "cannot let you in"}, exitUnreachable, "token"},
		{&api.Error{Status: 403, Reason: "host", Detail: "cannot let you in"}, exitUnreachable, "host"},
		{&api.Error{Status: 500, Detail: "cannot go on"}, exitUnreachable, "refused"},
		{&agent.ExitError{Code: 4, Kind: "state", Detail: "cannot open"}, exitState, "state"},
		{&agent.ExitError{Code: 5, Kind: "held", Detail: "cannot lock"}, exitHeld, "held"},
		{fmt.Errorf("cannot follow: %w", context.Canceled), exitBad, "interrupted"},
		{errors.New("cannot do anything"), exitBad, "failed"},
		{usage("cannot use it", ""), exitUsage, "usage"},
	} {
		var f *failure
		if !errors.As(told(c.err), &f) || f.code != c.code || f.kind != c.kind {
			t.Errorf("%v: %+v, want code %d and kind %s", c.err, f, c.code, c.kind)
		}
	}
	if told(nil) != nil {
		t.Error("no error became one")
	}
}

func TestEveryErrorBeginsTheSame(t *testing.T) {
	var out bytes.Buffer
	a := &app{stderr: &out}
	a.report(&failure{detail: "boom", hint: "duck"}, false)
	a.report(&failure{kind: "k", detail: "cannot <do> it"}, true)
	a.report(bad().(*failure), false)
	want := "scanonce: cannot go on: boom\nhint: duck\n" + `{"error":"k","detail":"cannot <do> it","hint":""}` + "\n"
	if out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
}

func TestLogForm(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"JOURNAL_STREAM=8:123"}, "level=INFO msg=hello n=7\n"},
		{[]string{"JOURNAL_STREAM="}, `{"time":"`},
		{nil, `{"time":"`},
	} {
		var out bytes.Buffer
		log := slog.New(logHandler(&out, c.env, slog.LevelInfo))
		log.Info("hello", "n", 7)
		log.Debug("unheard")
		if !strings.HasPrefix(out.String(), c.want) || strings.Contains(out.String(), "unheard") {
			t.Errorf("%v: %q, want %q", c.env, &out, c.want)
		}
	}
}

func TestInstant(t *testing.T) {
	for s, want := range map[string]string{
		"2026-11-29":                "2026-11-29T00:00:00.000Z",
		"2026-11-29T08:15:00+01:00": "2026-11-29T07:15:00.000Z",
	} {
		if got, err := instant("--since", s); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v, want %s", s, got, err, want)
		}
	}
	if got, err := instant("--since", ""); got != nil || err != nil {
		t.Errorf("no time: %v, %v", got, err)
	}
	if _, err := instant("--since", "2026-11-32"); err == nil {
		t.Error("a day that does not exist was taken")
	}
}

func TestDayOfDecode(t *testing.T) {
	machine := func() (capture.Date, error) { return capture.Date{Year: 2031, Month: 2, Day: 3}, nil }
	for _, c := range []struct {
		now     string
		vectors bool
		want    string
	}{
		{"", false, "2031-02-03"},
		{"", true, "2026-11-29"},
		{"2028-01-01", false, "2028-01-01"},
		{"2028-01-01", true, "2028-01-01"},
	} {
		if d, err := day(c.now, c.vectors, machine); err != nil || d.String() != c.want {
			t.Errorf("%+v: %v, %v", c, d, err)
		}
	}
	if d, err := localDay(); err != nil || d.Year < 2024 {
		t.Errorf("the machine's day: %v, %v", d, err)
	}
}

// A file that could not be written whole must not look like an export.
func TestExportLeavesNoHalfFile(t *testing.T) {
	a := &app{stdout: new(bytes.Buffer)}
	name := filepath.Join(t.TempDir(), "out.csv")
	broken := errors.New("cannot read on")
	err := a.export(name, func(w io.Writer) error {
		if _, err := w.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v", err)
	}
	if err := a.export(filepath.Join(name, "below"), nil); err == nil || told(err).(*failure).code != exitUsage {
		t.Errorf("a folder that does not exist: %v", err)
	}
}

func TestResultText(t *testing.T) {
	s := func(s string) *string { return &s }
	key := s("scan:idem:fc903c16bc08bcdbfbcc79c7d1ab181a19617bca675ecd8adc447d37e1231021")
	item := api.Item{NDC11: s("00093721410"), GTIN: s("00300937214106"), Lot: s("A1207")}
	for want, r := range map[string]sim.Result{
		"scan 06  committed  NDC 00093721410  lot A1207  scan:idem:fc903c16…\n": {
			N: 6, Outcome: sim.Committed, Item: item, Key: key},
		"scan 07  duplicate  of scan 06  straddle  NDC 00093721410  lot A1207  scan:idem:fc903c16…\n": {
			N: 7, Outcome: sim.Duplicate, DuplicateOf: s("e"), Of: 6, Straddle: true, Item: item, Key: key, Reason: s("bounce")},
		"scan 08  rejected   The check digit is wrong.\n": {
			N: 8, Outcome: sim.Rejected, Reason: s("check_digit"), Detail: "The check digit is wrong."},
		"scan 123  not_accepted  spool_full\n": {N: 123, Outcome: sim.NotAccepted, Reason: s("spool_full")},
		"scan 01  duplicate  of 019aceee-0000-7000-8000-000000000001  GTIN 00300937214106\n": {
			N: 1, Outcome: sim.Duplicate, DuplicateOf: s("019aceee-0000-7000-8000-000000000001"), Item: api.Item{GTIN: item.GTIN}},
	} {
		if got := resultText(&r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestEventText(t *testing.T) {
	for data, want := range map[string]string{
		`{"at":"T","scanner_id":"SCN-04","scan_type":"dispense","quantity":30,"item":{"ndc11":"00093721410","lot":"A1207"},"key":"scan:idem:fc903c16bc08"}`: "T  accepted      SCN-04  dispense  quantity 30  NDC 00093721410  lot A1207  scan:idem:fc903c16…",
		`{"at":"T","code":"spool_full","active":false,"detail":"the spool is full","hint":"wait"}`:                                                          "T  accepted      spool_full  over  the spool is full  wait",
		`{"at":"T","scanner_id":"SCN-04","rx":"1234567","text":"secret"}`:                                                                                   "T  accepted      SCN-04",
	} {
		got, err := eventText(api.Event{Kind: "accepted", Data: []byte(data)})
		if err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if _, err := eventText(api.Event{Data: []byte("nonsense")}); err == nil {
		t.Error("an unreadable event was told")
	}
}

func TestScannerSettingsShapeWhatIsTyped(t *testing.T) {
	s := config.Scanner{GSSubstitute: "^", GunDigits: 2, SymbologyPrefix: "~"}
	if got := asSent(&s, "]d201\x1d17"); got != "01~d201^17" {
		t.Errorf("%q", got)
	}
	if got := asSent(&config.Scanner{}, "]d201\x1d17"); got != "]d201\x1d17" {
		t.Errorf("%q", got)
	}
}
