package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"scanonce/idem"
	"scanonce/internal/api"
)

func (a *app) conflictsVerb() *cobra.Command {
	var resolve []string
	var by string
	var pending bool
	cmd := &cobra.Command{
		Use:   "conflicts",
		Short: "List queued operations that could not be carried out",
		Long: `List the operations on claims and prior-authorization cases that were queued while a store was away, and that
the store could not carry out any more: what was wanted, and what stands instead. Answers the running agent or, if
none runs, the state folder. Each stays on the list until somebody who has seen to it says so with --resolve and
--by, which the audit notes. With --pending those that still wait for a store, in order. Exit code 1 with --resolve: none of those named is on the list.`,
		Example: `  scanonce conflicts
  scanonce conflicts --resolve 019aceee-0000-8000-8000-000000000001 --by "R. Okafor"`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pending && (len(resolve) > 0 || by != "") {
				return usage("cannot use --pending with --resolve or --by", "what waits is no conflict: it is carried out when its store answers")
			}
			if len(resolve) > 0 {
				return a.resolve(cmd, resolve, by)
			}
			if by != "" {
				return usage("cannot use --by without --resolve", "write --resolve OP_ID for each conflict that is seen to")
			}
			return a.withReader(cmd.Context(), func(r api.Reader) error {
				if pending {
					return r.PendingOperations(cmd.Context(), func(o api.PendingOperation) error {
						return a.print(o, fmt.Sprintf("%s  %-13s  %s  op %s\n", o.At, o.Kind, o.ID, o.OpID))
					})
				}
				return r.Conflicts(cmd.Context(), func(c api.Conflict) error {
					return a.print(c, fmt.Sprintf("%s  %-13s  %s  %s\n  op      %s\n  wanted  %s\n  current %s\n", c.At, c.Kind, c.ID, c.Detail, c.OpID, c.Wanted, c.Current))
				})
			})
		},
	}
	cmd.Flags().StringArrayVar(&resolve, "resolve", nil, "take the conflict of `OP_ID` off the list (repeatable)")
	cmd.Flags().StringVar(&by, "by", "", "`NAME` of who has seen to it")
	cmd.Flags().BoolVar(&pending, "pending", false, "list what waits for a store instead")
	return cmd
}

func (a *app) resolve(cmd *cobra.Command, ids []string, by string) error {
	if by == "" {
		return usage("cannot take a conflict off the list without knowing who has seen to it", "write --by NAME")
	}
	for _, id := range ids {
		if _, err := idem.ParseEventID(id); err != nil {
			return usage(err.Error(), "scanonce conflicts shows the ids")
		}
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	n, err := c.ResolveConflicts(cmd.Context(), api.Resolution{OpIDs: ids, By: by})
	if err != nil {
		return told(err)
	}
	if err := a.print(api.Resolved{Resolved: n}, fmt.Sprintf("%d conflicts taken off the list\n", n)); err != nil || n > 0 {
		return err
	}
	return bad()
}
