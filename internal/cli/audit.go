package cli

import (
	"io"

	"github.com/spf13/cobra"

	"scanonce/internal/api"
)

func (a *app) auditExportVerb() *cobra.Command {
	var out string
	var span span
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the audit trail as JSON lines",
		Long: `Write the audit lines that were decided from --since on and before --until, one JSON object each. Answers
the running agent or, if none runs, the state folder.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			since, until, err := span.read()
			if err != nil {
				return err
			}
			return a.withReader(cmd.Context(), func(r api.Reader) error {
				return a.export(out, func(w io.Writer) error {
					return r.Audit(cmd.Context(), since, until, func(e api.AuditEntry) error { return writeJSON(w, e) })
				})
			})
		},
	}
	span.flags(cmd)
	outFlag(cmd, &out)
	return cmd
}
