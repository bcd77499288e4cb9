package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/internal/agent"
	"scanonce/internal/config"
)

func (a *app) checkConfigVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "check-config",
		Short: "Check the configuration",
		Long: `Check the configuration from all its sources. Every problem is told with its file, line and what to write.
What is known of the stores without a connection is checked too: their addresses, password and certificate
files. The agent runs and captures without its stores, and tells of them in its status.`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			c, err := a.load()
			if err != nil {
				return err
			}
			if err := agent.Check(c); err != nil { // run goes on without its stores, but not unseen
				return told(err)
			}
			from := "built-in defaults"
			if files := c.Files(); len(files) > 0 {
				from = strings.Join(files, ", ")
			}
			return a.print(struct {
				OK bool `json:"ok"`
			}{true}, fmt.Sprintf("ok  %s, %d scanners\n", from, len(c.Scanners)))
		},
	}
}

func (a *app) configReferenceVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "reference",
		Short: "Print every key with its default, explained",
		Args:  takes(),
		RunE: func(*cobra.Command, []string) error {
			return a.print(struct {
				TOML string `json:"toml"`
			}{config.Reference()}, config.Reference())
		},
	}
}

func (a *app) configDumpVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "dump",
		Short: "Print the configuration in effect",
		Long:  "Print the configuration in effect, from all its sources. Secrets appear only as the paths of their files.",
		Args:  takes(),
		RunE: func(*cobra.Command, []string) error {
			c, err := a.load()
			if err != nil {
				return err
			}
			return a.print(c, config.Dump(c))
		},
	}
}
