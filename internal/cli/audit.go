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
		Long: `Write the audit lines that were decided from --since on and before --until, one JSON object each. Without both,
the records of the audit chain follow, each behind the lines that it binds: audit verify checks such a file. Answers
the running agent or, if none runs, the state folder.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			since, until, err := span.read()
			if err != nil {
				return err
			}
			return a.withReader(cmd.Context(), func(r api.Reader) error {
				return a.export(out, func(w io.Writer) error {
					return r.Audit(cmd.Context(), since, until, func(i api.AuditItem) error { return writeJSON(w, i) })
				})
			})
		},
	}
	span.flags(cmd)
	outFlag(cmd, &out)
	return cmd
}
