package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"scanonce/idem"
	"scanonce/internal/api"
)

func (a *app) spoolListVerb() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the records that wait",
		Long:  "List the records that wait in the spool, the oldest first. Answers the running agent or, if none runs, the\nstate folder.",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usage(fmt.Sprintf("cannot list %d records", limit), "write --limit 1 or more; 0 lists all")
			}
			return a.withReader(cmd.Context(), func(r api.Reader) error {
				return r.Spool(cmd.Context(), limit, func(e api.SpoolEntry) error {
					line := fmt.Sprintf("%s  %-11s  %-9s  %s  attempts %d", e.CapturedAt, e.State, e.Kind, e.EventID, e.Attempts)
					if e.LastError != nil {
						line += "  " + *e.LastError
					}
					return a.print(e, line+"  "+shortKey(e.Key)+"\n")
				})
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "at most `N` records; 0 is all")
	return cmd
}

func (a *app) spoolExportVerb() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the unsettled records as JSON lines",
		Long: `Write every unsettled record as a JSON line, without anything that may identify a patient. Answers the
running agent or, if none runs, the state folder.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withReader(cmd.Context(), func(r api.Reader) error {
				return a.export(out, func(w io.Writer) error { return r.SpoolExport(cmd.Context(), w) })
			})
		},
	}
	outFlag(cmd, &out)
	return cmd
}

func (a *app) spoolRequeueVerb() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "requeue EVENT_ID...|--all",
		Short: "Try quarantined records again",
		Long: `Try records again that the ledger had refused for good, once its cause is mended: those named, with their
duplicates, or all. It needs the running agent. Exit code 1: none of those named is quarantined.`,
		Example: `  scanonce spool ls
  scanonce spool requeue 019aceee-0000-7000-8000-000000000001`,
		Args: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				detail := "cannot requeue without knowing which records"
				if all {
					detail = "cannot use event ids and --all together"
				}
				return usage(detail, "write the event ids that scanonce spool ls shows, or --all")
			}
			for _, id := range args {
				if _, err := idem.ParseEventID(id); err != nil {
					return usage(err.Error(), "scanonce spool ls shows the event ids")
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			n, err := c.Requeue(cmd.Context(), args, all)
			if err != nil {
				return told(err)
			}
			text := fmt.Sprintf("%d records requeued; scanonce spool ls tells what became of them\n", n)
			if n == 0 {
				text = "nothing requeued: no such record is quarantined\n"
			}
			if err := a.print(api.Requeued{Requeued: n}, text); err != nil {
				return err
			}
			if n == 0 && !all {
				return bad()
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every quarantined record")
	return cmd
}

func outFlag(cmd *cobra.Command, out *string) {
	cmd.Flags().StringVarP(out, "output", "o", "", "write to `FILE`, made with mode 0600; without it to stdout")
}
