package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/internal/api"
)

func (a *app) reloadVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Let the running agent read its configuration again",
		Long: `Let the running agent read its configuration again, from the sources that it was started with. It takes over
scanners, windows, counter, rx_profile, batch, ndc and log_level, and tells which other keys have changed and need
a restart. A configuration that is wrong is refused as a whole, and the one in use stays. SIGHUP does the same.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			done, err := c.Reload(cmd.Context())
			var wrong *api.Error
			if errors.As(err, &wrong) && wrong.Reason == "config" {
				return &failure{code: exitUsage, kind: wrong.Reason, detail: wrong.Detail, hint: wrong.Hint}
			}
			if err != nil {
				return told(err)
			}
			text := "reloaded\n"
			if n := done.RestartNeeded; len(n) > 0 {
				text = "reloaded; these need a restart: " + strings.Join(n, ", ") + "\n"
			}
			return a.print(done, text)
		},
	}
}
