package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"scanonce/internal/testenv"
)

// A ledger that is removed or put back from an older copy, running or stopped, is not taken for one that has all rows.
func TestLedgerThatForgets(t *testing.T) {
	t.Parallel()
	h, p, st, g := bench(t, testenv.Setup{Directory: directory})
	ledgerFile, copyFile := filepath.Join(h.State, "ledger.db"), filepath.Join(h.State, "copy")
	g.committed(g.expect("accepted", matrix(bottleGTIN, "SN0001", "A1207")).EventID)
	quiet(t, h)
	p.Stop(t)
	b, err := os.ReadFile(ledgerFile)
	if err == nil {
		err = os.WriteFile(copyFile, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	raised := func(code string) {
		t.Helper()
		h.Await(t, "the alarm "+code, func(s *testenv.Status) bool {
			return slices.ContainsFunc(s.Alarms, func(a testenv.Alarm) bool { return a.Code == code })
		})
		if r := h.Call(t, "status"); r.Code != 6 {
			t.Errorf("status ends with %d", r.Code)
		}
	}

	p = h.Start(t)
	st = h.Follow(t)
	g = plug(t, h, st, "SCN-04")
	g.committed(g.expect("accepted", matrix(bottleGTIN, "SN0002", "A1207")).EventID)
	quiet(t, h)
	if err := os.Rename(ledgerFile, ledgerFile+".away"); err != nil { // while it is used
		t.Fatal(err)
	}
	late := g.expect("accepted", matrix(bottleGTIN, "SN0003", "A1207"))
	raised("ledger_config")
	p.Stop(t)
	if err := os.Rename(ledgerFile+".away", ledgerFile); err != nil { // as the hint says
		t.Fatal(err)
	}
	p = h.Start(t)
	st = h.Follow(t)
	plug(t, h, st, "SCN-04")
	g.committed(late.EventID)
	quiet(t, h)
	if v := verify(t, h, "--ledger"); !v.OK {
		t.Errorf("%+v %+v", v, v.FirstBad)
	}
	p.Stop(t)

	for _, how := range []string{"an older copy", "none"} {
		if err := os.Rename(ledgerFile, ledgerFile+".newest"); err != nil {
			t.Fatal(err)
		}
		if how == "an older copy" {
			if err := os.Link(copyFile, ledgerFile); err != nil {
				t.Fatal(err)
			}
		}
		p = h.Start(t)
		raised("ledger_lost")
		p.Stop(t)
		if err := os.Rename(ledgerFile+".newest", ledgerFile); err != nil {
			t.Fatal(err)
		}
	}
	p = h.Start(t)
	if r := h.Call(t, "status"); r.Code != 0 {
		t.Errorf("with the newest copy status ends with %d: %s", r.Code, r.Stdout)
	}
	p.Stop(t)
}
