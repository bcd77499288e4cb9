package storetest

import (
	"testing"

	"scanonce/sync/pacase"
)

// fakePACase is a store of cases with a fault.
func fakePACase(fault string) PACaseFixture {
	m := newPAModel(fault)
	return PACaseFixture{
		Shared: true,
		Open: func(testing.TB) pacase.Store {
			if fault == "forgets at a restart" {
				m.mu.Lock()
				defer m.mu.Unlock()
				clear(m.pends)
			}
			return &paHandle{m: m}
		},
		Count: func(testing.TB) int { return m.count() },
	}
}

// Every fault that the suite claims to detect makes its case fail, and none fails without a fault.
func TestPACaseSuiteDetects(t *testing.T) {
	names := map[string]func(testing.TB, PACaseFixture){}
	for _, c := range paCases() {
		names[c.name] = c.run
		if failed, log := record(t, func(tb testing.TB) { c.run(tb, fakePACase("")) }); failed {
			t.Errorf("%s fails on a sound store: %q", c.name, log)
		}
	}
	detected := map[string]bool{}
	for fault, name := range map[string]string{
		"never created":                     "created",
		"retried winner told false":         "same event again",
		"retry is a new pend":               "same event again",
		"later attempt lost":                "later attempt",
		"later attempt takes over":          "later attempt",
		"later attempt lost ":               "random histories",
		"each pend a case":                  "same question",
		"day decides alone":                 "next day, open",
		"decided case for ever":             "next day, decided",
		"decided window asked anew":         "same window, decided",
		"open case first":                   "late pend",
		"reference of an attach lost":       "every id resolves",
		"no escapes":                        "questions apart",
		"reused event answered":             "reused event",
		"anything asked":                    "bad requests",
		"any move":                          "moves",
		"no version guard":                  "stale writer",
		"operations forgotten":              "own replay",
		"any move of an operation is mine":  "own replay",
		"appeal beside an open case":        "appeal",
		"missing is a conflict":             "missing",
		"check, then insert":                "64 pending one",
		"check, then insert ":               "64 across midnight",
		"appeal without a lock":             "appeals race pends",
		"read, then write":                  "16 deciding one",
		"versions jump":                     "random histories",
		"reference of an attach lost ":      "random histories",
		"any move of an operation is mine ": "random histories",
		"answers when cancelled":            "cancelled",
		"forgets at a restart":              "restart",
		"answers when closed":               "closed",
	} {
		detected[name] = true
		fault = trimmed(fault)
		if failed, _ := record(t, func(tb testing.TB) { names[name](tb, fakePACase(fault)) }); !failed {
			t.Errorf("case %q does not detect the fault %q", name, fault)
		}
	}
	for name := range names {
		if !detected[name] {
			t.Errorf("no fault proves case %q", name)
		}
	}
}

// trimmed takes off the space that keeps a fault with two cases apart in the table.
func trimmed(fault string) string {
	if n := len(fault) - 1; fault[n] == ' ' {
		return fault[:n]
	}
	return fault
}
