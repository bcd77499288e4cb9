package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

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

func outFlag(cmd *cobra.Command, out *string) {
	cmd.Flags().StringVarP(out, "output", "o", "", "write to `FILE`, made with mode 0600; without it to stdout")
}
