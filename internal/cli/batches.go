package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"scanonce/idem"
	"scanonce/internal/api"
)

func (a *app) batchesVerb() *cobra.Command {
	var confirm, discard, by string
	cmd := &cobra.Command{
		Use:   "batches",
		Short: "List what scanners' memories have sent a second time",
		Long: `List the stored batches of which the running agent holds records: a scanner sent the same codes out of its memory
before, and the second copy is not counted until a person says what it is. With --confirm they become movements of
their own; with --discard and --by they are given up, which the audit notes for each.`,
		Example: `  scanonce batches
  scanonce batches --confirm 019aceee-0000-7000-8000-000000000001
  scanonce batches --discard 019aceee-0000-7000-8000-000000000001 --by "R. Okafor"`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case confirm != "" && discard != "":
				return usage("cannot confirm and discard together", "write one of --confirm and --discard")
			case discard != "" && by == "":
				return usage("cannot discard a batch without knowing who gives it up", "write --by NAME")
			case discard == "" && by != "":
				return usage("cannot use --by without --discard", "write --discard ID")
			}
			if id := confirm + discard; id != "" {
				if _, err := idem.ParseEventID(id); err != nil {
					return usage(err.Error(), "scanonce batches shows the ids")
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			switch {
			case confirm != "":
				n, err := c.ConfirmBatch(cmd.Context(), confirm)
				if err != nil {
					return told(err)
				}
				return a.print(api.BatchConfirmed{Accepted: n}, fmt.Sprintf("%d scans are counted\n", n))
			case discard != "":
				n, err := c.DiscardBatch(cmd.Context(), discard, by)
				if err != nil {
					return told(err)
				}
				return a.print(api.Discarded{Discarded: n}, fmt.Sprintf("%d scans discarded\n", n))
			}
			return told(c.Batches(cmd.Context(), func(b api.Batch) error {
				return a.print(b, fmt.Sprintf("%s  %s  scanner %s  %d of %d scans held\n", b.BatchID, b.At, b.ScannerID, b.Held, max(b.Count, b.Held)))
			}))
		},
	}
	cmd.Flags().StringVar(&confirm, "confirm", "", "count the scans of batch `ID`: the items were moved again")
	cmd.Flags().StringVar(&discard, "discard", "", "give the scans of batch `ID` up: they were sent twice")
	cmd.Flags().StringVar(&by, "by", "", "`NAME` of who gives them up")
	return cmd
}
