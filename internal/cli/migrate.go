package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/sync/ledger"
)

func (a *app) ledgerMigrateVerb() *cobra.Command {
	var file string
	var to int
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or update the ledger's tables in PostgreSQL",
		Long: `Make or update the ledger's tables, and the role that agents need, in the database that the owner's DSN
names. The DSN is the one line of a file, since it may hold a password; it is never printed. What is done
already is left as it is, agents may go on writing meanwhile, and a step that fails changes nothing.`,
		Example: "  scanonce ledger migrate --dsn-file /root/owner.dsn",
		Args:    takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("to") && (to < 1 || to > ledger.SchemaVersion) {
				return usage(fmt.Sprintf("cannot migrate the ledger to version %d", to),
					fmt.Sprintf("write --to with a version from 1 to %d, or leave it out for the newest", ledger.SchemaVersion))
			}
			dsn, err := ownerDSN(file)
			if err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			from, reached, err := ledger.Migrate(ctx, ledger.PostgresConfig{DSN: dsn}, to)
			if err != nil {
				return migrateFailure(err, from, file)
			}
			text := fmt.Sprintf("the ledger's schema has version %d, it had %d\n", reached, from)
			if from == reached {
				text = fmt.Sprintf("the ledger's schema has version %d already\n", reached)
			}
			return a.print(struct {
				From int `json:"from"`
				To   int `json:"to"`
			}{from, reached}, text)
		},
	}
	cmd.Flags().StringVar(&file, "dsn-file", "", "read the owner's DSN from `FILE`")
	cmd.Flags().IntVar(&to, "to", 0, "stop at version `N` (default: the newest)")
	return cmd
}

// ownerDSN reads the one line of a file. Nothing of it may go into an error.
func ownerDSN(file string) (string, error) {
	const hint = "write postgres://OWNER:PASSWORD@HOST/DATABASE?sslmode=verify-full as the one line of a file that only you can read, and name it with --dsn-file"
	if file == "" {
		return "", usage("cannot migrate the ledger without the owner's DSN", hint)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", usage(fmt.Sprintf("cannot read the owner's DSN: %v", err), hint)
	}
	dsn := strings.TrimSpace(string(b))
	if dsn == "" || strings.ContainsAny(dsn, "\r\n") {
		return "", usage(fmt.Sprintf("cannot read the owner's DSN: %s does not hold exactly one line", file), hint)
	}
	return dsn, nil
}

func migrateFailure(err error, from int, file string) error {
	if errors.Is(err, context.Canceled) {
		return told(err)
	}
	f := &failure{code: exitUnreachable, kind: "unreachable", detail: err.Error(), hint: "see that PostgreSQL runs at the host and port of the DSN in " + file + ", then run this again"}
	var known *ledger.ConfigError
	if errors.As(err, &known) {
		f.kind, f.detail, f.hint = "refused", "cannot migrate the ledger: "+known.Detail, known.Hint
	}
	switch {
	case strings.HasPrefix(err.Error(), "cannot use PostgreSQL: "): // by Validate: nothing was dialled
		f.code, f.kind = exitUsage, "usage"
	case from > ledger.SchemaVersion:
		f.code = exitBad
	case strings.Contains(f.detail, "(28P01)"): // the words for agents name their file
		f.hint = "write the owner's password into the DSN in " + file
	}
	return f
}
