package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scanonce/internal/api"
)

func (a *app) statusVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Tell how the agent does",
		Long: `Tell how the agent does. Exit code 6 says that it runs and needs a person: it refuses scans, its spool is
full to 80 % or more, its id is held twice, its clock is wrong, records are held or quarantined, or another
alarm is up. Stores or scanners that are only away need nobody: the agent goes on when they return.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			st, err := c.Status(cmd.Context())
			if err != nil {
				return told(err)
			}
			if err := a.print(st, statusText(&st)); err != nil {
				return err
			}
			if needsPerson(&st) {
				return &failure{code: exitPerson}
			}
			return nil
		},
	}
}

// fullAt is the share of the spool from which on somebody must look.
const fullAt = 0.8

// transient alarms end by themselves when what is away comes back.
var transient = []string{"offline", "store_unreachable", "device_absent"}

func needsPerson(st *api.Status) bool {
	return !st.Accepting || st.Clone || st.Spool.Fill >= fullAt || st.Spool.Quarantined > 0 ||
		st.Counts.Quarantined > 0 || st.Counts.Held > 0 ||
		slices.ContainsFunc(st.Alarms, func(al api.Alarm) bool { return !slices.Contains(transient, al.Code) })
}

func statusText(st *api.Status) string {
	var b strings.Builder
	row := func(name, format string, v ...any) {
		fmt.Fprintf(&b, "%-10s"+format+"\n", append([]any{name}, v...)...)
	}
	accepting := "accepting scans"
	if !st.Accepting {
		accepting = "REFUSING SCANS"
	}
	row("state", "%s, %s", st.State, accepting)
	row("agent", "%s at facility %s, version %s", st.AgentID, st.FacilityUUID, st.Version)
	if st.Clone {
		row("", "ANOTHER AGENT HOLDS THIS ID")
	}
	oldest := time.Duration(st.Spool.OldestAgeMS) * time.Millisecond
	row("spool", "%d of %d records, %s of %s (%.0f %%), oldest %v, %d segments, %d quarantined",
		st.Spool.Records, st.Spool.MaxRecords, size(st.Spool.Bytes), size(st.Spool.MaxBytes), 100*st.Spool.Fill,
		oldest, st.Spool.Segments, st.Spool.Quarantined)
	for _, s := range []struct {
		name  string
		store *api.StoreStatus
	}{{"redis", st.Stores.Redis}, {"postgres", st.Stores.Postgres}, {"dynamodb", st.Stores.DynamoDB}} {
		switch {
		case s.store == nil:
		case s.store.OK:
			row(s.name, "ok")
		default:
			row(s.name, "away since %s: %s", orNull(s.store.Since), orNull(s.store.LastError))
		}
	}
	if o := st.Operations; o.Pending > 0 {
		row("queued", "%d operations wait for a store, the oldest for %v: see scanonce conflicts --pending", o.Pending, time.Duration(o.OldestAgeMS)*time.Millisecond)
	}
	row("clock", "%s, offset %.1f ms, error %.1f ms", st.Clock.Quality, st.Clock.OffsetMS, st.Clock.ErrorMS)
	row("ndc", "%s", ndcText(st))
	row("scans", "%s", countsText(st.Counts))
	f := st.Frames
	row("frames", "frames=%d captured=%d not_accepted=%d rejected=%d control=%d voided=%d in_flight=%d",
		f.Frames, f.Captured, f.NotAccepted, f.Rejected, f.Control, f.Voided, f.InFlight)
	for i, s := range st.Scanners {
		more := ""
		if s.RevertsAt != nil {
			more += ", until " + s.RevertsAt.String()
		}
		if s.Ambiguous {
			more += ", ambiguous: told apart by its port only"
		}
		row(first(i, "scanners"), "%s  %s, %s, quantity %d%s, last scan %s", s.ID, s.State, s.ScanType, s.Quantity, more, orNull(s.LastScanAt))
	}
	for i, al := range st.Alarms {
		row(first(i, "alarms"), "%s since %s: %s", al.Code, al.Since, al.Detail)
		row("", "hint: %s", al.Hint)
	}
	return b.String()
}

// ndcText tells of the NDC directory.
func ndcText(st *api.Status) string {
	const undecided = "ten-digit NDCs stay undecided"
	switch {
	case st.NDC != nil:
		return fmt.Sprintf("%d packages, dated %s", st.NDC.Packages, orNull(st.NDC.Dated))
	case slices.ContainsFunc(st.Alarms, func(al api.Alarm) bool { return al.Code == "ndc_directory" }):
		return "the directory cannot be used, see the alarm: " + undecided
	}
	return "no directory (ndc.directory): " + undecided
}

func first(i int, name string) string {
	if i == 0 {
		return name
	}
	return ""
}

func countsText(c api.Counts) string {
	return fmt.Sprintf("captured=%d committed=%d suppressed=%d pending=%d held=%d quarantined=%d discarded=%d unaccounted=%d",
		c.Captured, c.Committed, c.Suppressed, c.Pending, c.Held, c.Quarantined, c.Discarded, c.Unaccounted)
}

func size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(bytes), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

func orNull[T any](p *T) string {
	if p == nil {
		return "–"
	}
	return fmt.Sprint(*p)
}
