package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// ambiguousUPC has two listed readings: 1234-5678-90 and 12345-678-90.
const ambiguousUPC = "]E00312345678906"

// packages is a package.txt as the FDA publishes it, with a line that cannot be used.
const packages = "PRODUCTID\tPRODUCTNDC\tNDCPACKAGECODE\tPACKAGEDESCRIPTION\r\n" +
	"a\t0093-7214\t0093-7214-10\t\"1 BOTTLE\tof 100\"\r\nb\t0406-0512\t0406-0512-01\tBOTTLE\r\n" +
	"c\t1234-5678\t1234-5678-90\tBOTTLE\r\nd\t12345-678\t12345-678-90\tBOTTLE\r\ne\t12345\t1234567890\tBOTTLE\r\n"

// ndcHome is a home whose configuration names an index, and the file of packages to make it of.
func ndcHome(t *testing.T, changed time.Time) (h *testenv.Home, index, source string) {
	t.Helper()
	h = program.NewHome(t, testenv.Setup{})
	index, source = filepath.Join(h.Dir, "ndc.idx"), filepath.Join(h.Dir, "package.txt")
	h.Configure(t, testenv.Setup{Sections: fmt.Sprintf("[ndc]\ndirectory = %q", index)})
	if err := os.WriteFile(source, []byte(packages), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(source, changed, changed); err != nil {
		t.Fatal(err)
	}
	return h, index, source
}

func importPackages(t *testing.T, h *testenv.Home, source string) {
	t.Helper()
	if r := h.Call(t, "--json", "ndc", "import", source); r.Code != 0 || r.Stdout != `{"packages":4,"products":0,"skipped":1,"written":4}`+"\n" ||
		!strings.Contains(r.Stderr, "cannot use line 6 of "+source) {
		t.Fatalf("ndc import: %+v", r)
	}
}

// An imported index decides ten-digit codes, in the event and in the row. Nothing that is done to its file later
// reaches the agent before a reload; a reload with a damaged one keeps what is in use.
func TestImportedIndexDecides(t *testing.T) {
	t.Parallel()
	changed := time.Now().Add(-24 * time.Hour).UTC().Truncate(time.Millisecond)
	h, index, source := ndcHome(t, changed)
	importPackages(t, h, source)
	p := h.Start(t)
	st := h.Follow(t)
	g := plug(t, h, st, "SCN-04")

	if e := g.expect("accepted", bottle); e.Item == nil || deref(e.Item.NDC11) != bottleNDC || strings.Contains(e.Data, "ndc_unresolved") {
		t.Errorf("the bottle: %s", e.Data)
	}
	if e := g.expect("accepted", ambiguousUPC); e.Item == nil || e.Item.NDC11 != nil || !strings.Contains(e.Data, `"ndc_ambiguous"`) {
		t.Errorf("two readings are listed: %s", e.Data)
	}
	r := h.Call(t, "--json", "status")
	if want := fmt.Sprintf(`"ndc":{"packages":4,"dated":%q}`, changed.Format("2006-01-02T15:04:05.000Z")); r.Code != 0 || !strings.Contains(r.Stdout, want) {
		t.Errorf("status ends with %d, %s, want %s", r.Code, r.Stdout, want)
	}

	if err := os.Truncate(index, 10); err != nil {
		t.Fatal(err)
	}
	if e := g.expect("accepted", matrix(ciiGTIN, "S1", "L1")); e.Item == nil || deref(e.Item.NDC11) != ciiNDC {
		t.Errorf("with the file cut short: %s", e.Data)
	}
	n := st.Len()
	p.Signal(syscall.SIGHUP)
	e, n := st.Wait(t, n, "the alarm", alarm("ndc_directory", true))
	if !strings.Contains(e.Data, "it is damaged") || !strings.Contains(e.Data, "scanonce ndc import") || !strings.Contains(e.Data, "stays in use") {
		t.Errorf("alarm %s", e.Data)
	}
	if e := g.expect("accepted", matrix(ciiGTIN, "S2", "L1")); e.Item == nil || deref(e.Item.NDC11) != ciiNDC {
		t.Errorf("after the reload: %s", e.Data)
	}
	importPackages(t, h, source)
	p.Signal(syscall.SIGHUP)
	st.Wait(t, n, "the end of the alarm", alarm("ndc_directory", false))

	rows, _ := quiet(t, h)
	count := map[string]int{}
	for _, r := range rows {
		count[deref(r.NDC11)+" "+r.NDC+" "+deref(r.GTIN)]++
	}
	if len(rows) != 4 || count[bottleNDC+" "+bottleNDC+" "+bottleGTIN] != 1 || count["  00312345678906"] != 1 || count[ciiNDC+" "+ciiNDC+" "+ciiGTIN] != 2 {
		t.Errorf("rows %v", count)
	}
}

// Without the configured directory scans are accepted, their NDC undecided, and somebody is told what to do. Once it
// is there a reload is enough.
func TestMissingDirectoryKeepsCapturing(t *testing.T) {
	t.Parallel()
	h, index, source := ndcHome(t, time.Now())
	p := h.Start(t)
	st := h.Follow(t)
	g := plug(t, h, st, "SCN-04")
	e := g.expect("accepted", matrix(bottleGTIN, "S1", "A1207"))
	if e.Item == nil || e.Item.NDC11 != nil || deref(e.Item.GTIN) != bottleGTIN || !strings.Contains(e.Data, `"ndc_unresolved"`) || !strings.Contains(e.Data, bottleNDC) {
		t.Errorf("event %s", e.Data)
	}
	s := h.Status(t)
	if al := s.Alarm("ndc_directory"); al == nil || al.Detail != "cannot read ndc.directory "+index+": no such file or directory" ||
		!strings.Contains(al.Hint, "scanonce ndc import ndctext.zip") || !strings.Contains(al.Hint, "scans are accepted meanwhile") {
		t.Errorf("alarms %+v", s.Alarms)
	}
	if r := h.Call(t, "status"); r.Code != 6 || !strings.Contains(r.Stdout, "\nndc       the directory cannot be used, see the alarm: ten-digit NDCs stay undecided\n") {
		t.Errorf("status ends with %d:\n%s", r.Code, r.Stdout)
	}
	if r := h.Call(t, "--json", "status"); !strings.Contains(r.Stdout, `"ndc":null`) {
		t.Errorf("status %s", r.Stdout)
	}
	importPackages(t, h, source)
	p.Signal(syscall.SIGHUP)
	st.Wait(t, 0, "the end of the alarm", alarm("ndc_directory", false))
	if e := g.expect("accepted", matrix(bottleGTIN, "S2", "A1207")); e.Item == nil || deref(e.Item.NDC11) != bottleNDC {
		t.Errorf("with the directory: %s", e.Data)
	}
	rows, _ := quiet(t, h)
	if len(rows) != 2 || rows[0].NDC+rows[1].NDC != bottleNDC {
		t.Errorf("rows %+v", rows)
	}
}

// A directory that grows old while the agent runs decides all the same, and somebody is told; having none is a
// choice.
func TestStaleAndNoDirectory(t *testing.T) {
	t.Parallel()
	old := time.Now().Add(2 * time.Second)
	h, _, source := ndcHome(t, old.Add(-60*24*time.Hour))
	importPackages(t, h, source)
	p := h.Start(t)
	st := h.Follow(t)
	g := plug(t, h, st, "SCN-04")
	pace(t, time.Until(old)+time.Second) // more than the clocks differ
	if e := g.expect("accepted", bottle); e.Item == nil || deref(e.Item.NDC11) != bottleNDC {
		t.Errorf("event %s", e.Data)
	}
	h.Await(t, "the alarm", func(s *testenv.Status) bool { return s.Alarm("ndc_stale") != nil })
	if r := h.Call(t, "status"); r.Code != 6 || !strings.Contains(r.Stdout, "ndc_stale since ") || !strings.Contains(r.Stdout, "hint: import the FDA's present one: scanonce ndc import") ||
		!strings.Contains(r.Stdout, "\nndc       4 packages, dated ") {
		t.Errorf("status ends with %d:\n%s", r.Code, r.Stdout)
	}
	p.Stop(t)

	h.Configure(t, testenv.Setup{})
	n := st.Len()
	h.Start(t)
	st.Wait(t, n, "the scanner", isReading("SCN-04"))
	if r := h.Call(t, "status"); r.Code != 0 || !strings.Contains(r.Stdout, "\nndc       no directory (ndc.directory): ten-digit NDCs stay undecided\n") {
		t.Errorf("status ends with %d:\n%s", r.Code, r.Stdout)
	}
}
