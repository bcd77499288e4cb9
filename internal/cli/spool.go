package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/idem"
	"scanonce/internal/agent"
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

func (a *app) spoolDiscardVerb() *cobra.Command {
	var by string
	cmd := &cobra.Command{
		Use:   "discard EVENT_ID... --by NAME",
		Short: "Give quarantined records up",
		Long: `Give records up that the ledger refuses for good, and those that wait for a person: those named, with their
duplicates. They never become rows. The count discarded and a line of the audit for each, with NAME, say so for
ever; there is no way back. It needs the running agent. Exit code 1: none of those named is quarantined or held.`,
		Example: `  scanonce spool ls
  scanonce spool discard 019aceee-0000-7000-8000-000000000001 --by "R. Okafor"`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("cannot discard without knowing which records", "write the event ids that scanonce spool ls shows")
			}
			for _, id := range args {
				if _, err := idem.ParseEventID(id); err != nil {
					return usage(err.Error(), "scanonce spool ls shows the event ids")
				}
			}
			if by == "" {
				return usage("cannot discard a record without knowing who gives it up", "write --by NAME")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			n, err := c.Discard(cmd.Context(), api.Discard{EventIDs: args, By: by})
			if err != nil {
				return told(err)
			}
			text := fmt.Sprintf("%d records discarded\n", n)
			if n == 0 {
				text = "nothing discarded: no such record is quarantined or held\n"
			}
			if err := a.print(api.Discarded{Discarded: n}, text); err != nil || n > 0 {
				return err
			}
			return bad()
		},
	}
	cmd.Flags().StringVar(&by, "by", "", "`NAME` of who gives them up")
	return cmd
}

func (a *app) spoolVerifyVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "verify [PATH]",
		Short: "Read every record and tell what is damaged",
		Long: `Read every record of the spool and check it. Answers the running agent or, if none runs, the state folder;
with PATH, that spool folder, state folder, or segment file, which no agent may be using. Nothing is changed: a
running agent heals by itself what turns out to be damaged. Exit code 1: something is.`,
		Example: `  scanonce spool verify
  scanonce spool verify /mnt/copy/spool`,
		Args: atMost("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r api.SpoolReport
			var err error
			if len(args) == 1 {
				r, err = a.verifySpool(args[0])
			} else {
				err = a.withAgent(cmd.Context(), func(c *api.Client) (err error) {
					r, err = c.SpoolVerify(cmd.Context())
					return err
				}, func() (err error) {
					r, err = a.verifySpool("")
					return err
				})
			}
			if err != nil {
				return told(err)
			}
			return a.spoolReport(&r)
		},
	}
}

func (a *app) verifySpool(path string) (r api.SpoolReport, err error) {
	cfg, err := a.loadBasics()
	if err != nil {
		return r, err
	}
	return agent.VerifySpool(cfg, path)
}

// spoolReport prints what was found; anything damaged is a bad answer.
func (a *app) spoolReport(r *api.SpoolReport) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d records in %d segments, %d readable, %d unaccounted for\n", r.Records, r.Segments, r.Readable, r.Unaccounted)
	for _, d := range r.Damaged {
		fmt.Fprintf(&b, "damaged: %s: %s\n", d.File, d.Detail)
	}
	if err := a.print(r, b.String()); err != nil {
		return err
	}
	if len(r.Damaged) > 0 {
		return bad()
	}
	return nil
}

func (a *app) spoolSalvageVerb() *cobra.Command {
	var into string
	cmd := &cobra.Command{
		Use:   "salvage PATH --into DIR",
		Short: "Make a new spool of what can be read of a damaged one",
		Long: `Make a new spool folder DIR of what can be read of the spool at PATH: a spool folder, a state folder, or one
segment file, also one that the agent has set aside. PATH is not changed and no agent may be using it. DIR can
take the place of the folder spool in the state folder of the same agent; what was sent before finds its own
rows. Exit code 1: something was damaged, and DIR holds the rest.`,
		Example: `  scanonce spool salvage /mnt/copy/spool --into /var/tmp/spool`,
		Args:    takes("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if into == "" {
				return usage("cannot salvage without --into", "write --into DIR, a folder that does not exist yet")
			}
			cfg, err := a.loadBasics()
			if err != nil {
				return err
			}
			r, err := agent.SalvageSpool(cmd.Context(), cfg, args[0], into)
			if err != nil {
				return told(err)
			}
			return a.spoolReport(&r)
		},
	}
	cmd.Flags().StringVar(&into, "into", "", "the new spool folder `DIR`")
	return cmd
}

func (a *app) spoolBackupVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the spool into a tar file, also while the agent runs",
		Long: `Write a consistent copy of the spool to FILE, a tar file, mode 0600, while scanning goes on; if no agent runs,
of the state folder. It is sealed as the spool is: keep keys/spool.key and agent.json too, elsewhere.

To restore: stop the agent, move the folder spool out of the state folder, and unpack FILE there with
tar -xf FILE -C STATE_DIR as the agent's user. What has been sent since the copy is sent again and finds its own
rows; scans that came after it and had not been sent are not in it.`,
		Args: takes("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := counter{}
			err := a.withReader(cmd.Context(), func(r api.Reader) error {
				return a.export(args[0], func(w io.Writer) error {
					n.w = w
					return r.SpoolBackup(cmd.Context(), &n)
				})
			})
			if err != nil {
				return err
			}
			if args[0] == "-" {
				return nil // the result is the file
			}
			return a.print(struct {
				Bytes int64 `json:"bytes"`
			}{n.n}, fmt.Sprintf("%s in %s\n", size(n.n), args[0]))
		},
	}
}

// counter counts what it passes on.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

func outFlag(cmd *cobra.Command, out *string) {
	cmd.Flags().StringVarP(out, "output", "o", "", "write to `FILE`, made with mode 0600; without it to stdout")
}
