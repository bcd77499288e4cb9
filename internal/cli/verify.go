package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scanonce/internal/api"
	"scanonce/internal/audit"
	"scanonce/internal/config"
	"scanonce/window"
)

func (a *app) auditVerifyVerb() *cobra.Command {
	var withLedger bool
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Check the audit trail, and with --ledger the ledger against it",
		Long: `Check the audit trail: every line is of the form that its outcome asks for, no event has two lines, every key
has exactly one committed line, every suppressed line names the one that stands, and the agents' chains are whole: no
line that they bind was altered or removed, no record of theirs is missing or out of its order. Without FILE the trail is
that of the running agent or, if none runs, of the state folder; FILE is what audit export wrote, whole, and
"-" is standard input.

With --ledger each row must have its committed line, and each key of the trail its row: what lacks the other is
listed. Rows that were committed after FILE was written have no line in it.

Lines past audit.retention_days are not asked for: they may have been removed. recorded_at is in no hash, but no line may
be of a time that has not come. An agent that has lines has a chain: a file without its records is not ok.

A chain that begins anew because a workstation's records were lost says so itself, and how many were lost: such a
gap is declared, is counted, and is nothing wrong; lines from before it may be bound by no record. That records
were cut off at a chain's end shows for the agent that is asked, which knows what it has sent; FILE does not tell.

Exit code 1: something is wrong. The first bad line tells what: altered; missing, if the line that it belongs to,
or one that the chain binds, is not there; or order.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return takes("FILE")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			o := audit.Options{Ledger: withLedger}
			o.Now, o.Retained = a.retained()
			if len(args) == 1 {
				f, err := a.open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				o.File = f
			}
			var out api.AuditReport
			verify := func(r api.Reader) (err error) {
				out, err = audit.Verify(ctx, r, o)
				if errors.Is(err, audit.ErrTrail) {
					return usage(err.Error(), "name a file that scanonce audit export wrote")
				}
				return err
			}
			var err error
			if len(args) == 1 && !withLedger {
				err = told(verify(nil))
			} else {
				err = a.withReader(ctx, verify)
			}
			if err != nil {
				return err
			}
			if err := a.print(out, verdict(&out)); err != nil {
				return err
			}
			if !out.OK {
				return bad()
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&withLedger, "ledger", false, "compare with the rows of the ledger too")
	return cmd
}

func (a *app) open(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.stdin), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, usage(fmt.Sprintf("cannot read the audit trail: %v", err), "name a file that scanonce audit export wrote")
	}
	return f, nil
}

// verdict is the report for people.
func verdict(r *api.AuditReport) string {
	var b strings.Builder
	first := "ok"
	if !r.OK {
		first = "NOT OK"
	}
	fmt.Fprintf(&b, "%s: %d lines, %d records, %d declared gaps\n", first, r.Lines, r.Records, r.DeclaredGaps)
	if f := r.FirstBad; f != nil {
		fmt.Fprintf(&b, "line %d of agent %s, event %s: %s: %s\n", f.Line, orNull(f.AgentID), orNull(f.EventID), f.Reason, f.Detail)
	}
	for _, k := range r.LedgerOnly {
		fmt.Fprintf(&b, "%s has a row and no committed line\n", k)
	}
	for _, k := range r.AuditOnly {
		fmt.Fprintf(&b, "%s has lines and no row\n", k)
	}
	return b.String()
}

// retained is the present, and the instant before which audit lines may have been removed, by the configuration or else
// its default.
func (a *app) retained() (now, before window.UTC) {
	days := config.Default().Audit.RetentionDays
	if cfg, err := a.loadBasics(); err == nil {
		days = cfg.Audit.RetentionDays
	}
	host, err := window.Host()
	if err != nil {
		return 0, 0
	}
	now = window.FromTime(host.Wall())
	return now, now.Add(-time.Duration(days) * 24 * time.Hour)
}
