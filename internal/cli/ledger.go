package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"scanonce/internal/api"
	"scanonce/window"
)

func (a *app) ledgerExportVerb() *cobra.Command {
	var format, out string
	var span span
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the rows of the ledger",
		Long: `Write the rows of the ledger that were captured from --since on and before --until. Answers the running
agent or, if none runs, the state folder.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format == "" && a.json {
				format = string(api.JSONL)
			}
			f := api.Format(or(format, string(api.CSV)))
			if f != api.CSV && f != api.JSONL {
				return usage(fmt.Sprintf("cannot write format %q", format), "write --format csv or jsonl")
			}
			since, until, err := span.read()
			if err != nil {
				return err
			}
			return a.withReader(cmd.Context(), func(r api.Reader) error {
				return a.export(out, func(w io.Writer) error { return r.LedgerExport(cmd.Context(), f, since, until, w) })
			})
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "csv or jsonl (default csv; with --json jsonl)")
	span.flags(cmd)
	outFlag(cmd, &out)
	return cmd
}

// span is the interval of an export.
type span struct{ since, until string }

func (s *span) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.since, "since", "", "from `TIME` on, RFC 3339 or a date")
	cmd.Flags().StringVar(&s.until, "until", "", "before `TIME`")
}

func (s *span) read() (since, until *window.UTC, err error) {
	if since, err = instant("--since", s.since); err != nil {
		return nil, nil, err
	}
	until, err = instant("--until", s.until)
	return since, until, err
}
