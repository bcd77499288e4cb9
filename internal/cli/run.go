package cli

import (
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/internal/agent"
	"scanonce/internal/config"
)

func (a *app) runVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the agent",
		Long: `Run the agent until SIGTERM or SIGINT; a second one kills. SIGHUP reads the configuration again.

It is ready when GET /readyz on its socket answers 200, and tells a service manager so. It exits with 0 after
a signal, 2 for a wrong configuration, 4 for a state folder that cannot be used, 5 for one that another agent
holds. Whatever else is missing, stores and scanners included, it keeps capturing and says so in status.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			level := new(slog.LevelVar)
			level.Set(cfg.Agent.Level())
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return told(agent.Run(ctx, cfg, agent.Options{
				Version: thisBuild().Version,
				Probe:   probe(), HIDWorker: hidWorker,
				Log: slog.New(logHandler(a.stderr, a.env, level)),
				Reload: func() (*config.Config, error) {
					c, err := config.Load(a.options())
					if err == nil {
						level.Set(c.Agent.Level())
					}
					return c, err
				},
			}))
		},
	}
}

// logHandler writes text without time under the systemd journal, which has its own, and JSON elsewhere.
func logHandler(w io.Writer, env []string, level slog.Leveler) slog.Handler {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "JOURNAL_STREAM="); ok && v != "" {
			return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, at slog.Attr) slog.Attr {
				if len(groups) == 0 && at.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return at
			}})
		}
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
}
