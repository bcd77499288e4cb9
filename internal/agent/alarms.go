package agent

import (
	"slices"
	"strings"
	"sync"

	"scanonce/internal/api"
	"scanonce/internal/events"
	"scanonce/window"
)

// Alarm codes.
const (
	alarmSpoolFill    = "spool_fill"
	alarmSpoolFull    = "spool_full"
	alarmDiskFull     = "disk_full"
	alarmFsync        = "fsync_failed"
	alarmOffline      = "offline"
	alarmClaims       = "store_unreachable" // of the claims: the ledger decides alone
	alarmClaimsConfig = "claims_config"
	alarmLedgerConfig = "ledger_config"
	alarmLedgerLost   = "ledger_lost"
	alarmClaimState   = "claimstate_config"
	alarmCases        = "pa_config"
	alarmClaimsLost   = "claimstate_lost" // the agent's own file; until a person has acted
	alarmCasesLost    = "pa_lost"         // likewise
	alarmConflict     = "conflict"
	alarmJournal      = "journal" // what became of operations cannot be kept
	alarmQuarantined  = "quarantine"
	alarmBatch        = "batch_held"
	alarmClock        = "clock_step"
	alarmNDC          = "ndc_directory" // the configured one is missing, unreadable or damaged
	alarmNDCStale     = "ndc_stale"
	alarmEvents       = "event_log"
	alarmAPI          = "local_interface"
	alarmSpoolDamage  = "spool_damage"
	alarmStateDamage  = "spool_damage:state" // until the next start
	alarmSpoolOlder   = "spool_older"        // a backup was put back
	alarmWedge        = "wedge"              // accepted scans are not typed
	alarmDevice       = "device_absent"      // with ":" and the scanner's id as the key
)

// alarms holds the states that need somebody to know.
type alarms struct {
	clock *window.Clock
	tell  func(...events.Entry)

	mu     sync.Mutex
	active map[string]api.Alarm
}

func newAlarms(clock *window.Clock, tell func(...events.Entry)) *alarms {
	return &alarms{clock: clock, tell: tell, active: map[string]api.Alarm{}}
}

// set raises an alarm; key is its code, or code:detail for one of several.
func (a *alarms) set(key, detail, hint string) {
	code, _, _ := strings.Cut(key, ":")
	now := a.clock.Now().T
	a.mu.Lock()
	old, ok := a.active[key]
	since := now
	if ok {
		since = old.Since
	}
	a.active[key] = api.Alarm{Code: code, Detail: detail, Hint: hint, Since: since}
	a.mu.Unlock()
	if !ok || old.Detail != detail {
		a.tell(events.Entry{Kind: "alarm", At: now, Body: alarmBody{code, true, detail, hint}})
	}
}

func (a *alarms) clear(key string) {
	a.mu.Lock()
	old, ok := a.active[key]
	delete(a.active, key)
	a.mu.Unlock()
	if ok {
		a.tell(events.Entry{Kind: "alarm", At: a.clock.Now().T, Body: alarmBody{old.Code, false, old.Detail, old.Hint}})
	}
}

func (a *alarms) list() []api.Alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]api.Alarm, 0, len(a.active))
	for _, al := range a.active {
		out = append(out, al)
	}
	slices.SortFunc(out, func(x, y api.Alarm) int {
		if c := strings.Compare(x.Code, y.Code); c != 0 {
			return c
		}
		return strings.Compare(x.Detail, y.Detail)
	})
	return out
}

type alarmBody struct {
	Code   string `json:"code"`
	Active bool   `json:"active"`
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
}
