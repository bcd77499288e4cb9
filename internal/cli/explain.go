package cli

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/idem"
	"scanonce/internal/api"
)

var explainable = regexp.MustCompile(`^(scan:idem:)?[0-9a-fA-F]{8,64}$|^scan:edge:[0-9a-fA-F]{64}$`)

func (a *app) explainVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "explain KEY",
		Short: "Tell why a scan was committed or suppressed",
		Long: `Tell why a scan was committed or suppressed, from the ledger and the audit trail. KEY is a whole key or at
least 8 hexadecimal digits of it. Answers the running agent or, if none runs, the state folder.`,
		Example: "  scanonce explain fc903c16",
		Args:    takes("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key := strings.TrimSuffix(args[0], "…") // as tail and simulate shorten it
			if !explainable.MatchString(key) {
				return usage("cannot look for the key "+args[0], "write the whole key, scan:idem: and 64 hexadecimal digits, or at least the first 8 of them")
			}
			if _, err := idem.ParseKey(key); err != nil {
				key = strings.TrimPrefix(key, "scan:idem:")
			}
			return a.withReader(cmd.Context(), func(r api.Reader) error {
				x, err := r.Explain(cmd.Context(), key)
				if err != nil {
					return err
				}
				text := strings.TrimRight(x.Text, "\n") + "\n"
				if err := a.print(x, text); err != nil {
					return err
				}
				if x.Ledger == nil && len(x.Audit) == 0 {
					return bad()
				}
				return nil
			})
		},
	}
}
