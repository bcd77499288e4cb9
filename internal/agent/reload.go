package agent

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"scanonce/internal/api"
	"scanonce/internal/config"
)

// reload reads the configuration again and takes over what needs no restart; it returns the keys that do. After an
// error the configuration in use stays. SIGHUP and the local interface come here.
func (a *agent) reload() (restart []string, err error) {
	if a.opts.Reload == nil {
		return nil, errors.New("cannot reload: nothing to read a configuration from")
	}
	a.reloading.Lock()
	defer a.reloading.Unlock()
	cfg, err := a.opts.Reload()
	if err == nil {
		next := *a.cfg // what needs a restart stays as it is
		next.Window, next.Counter, next.Batch, next.NDC, next.RxProfiles, next.Scanners = cfg.Window, cfg.Counter, cfg.Batch, cfg.NDC, cfg.RxProfiles, cfg.Scanners
		next.Wedge = cfg.Wedge
		if err = a.pipe.reconfigure(&next); err == nil {
			a.refuseLabels(next.RxProfiles)
			restart = config.NeedsRestart(a.cfg, cfg)
			a.wedge.reconfigure(&next)
			a.fleet.reconfigure(&next)
			a.alarms.clear("config")
			a.log.Info("reloaded", "needs_restart", restart)
			return restart, nil
		}
	}
	a.log.Error("cannot reload; the configuration in use stays", "error", err)
	a.alarms.set("config", "cannot reload the configuration: "+err.Error(), "mend the configuration and reload again")
	return nil, err
}

// Reload is reload for the API's user.
func (a *agent) Reload(context.Context) (api.Reloaded, error) {
	restart, err := a.reload()
	if err == nil {
		return api.Reloaded{OK: true, RestartNeeded: list(restart)}, nil
	}
	e := &api.Error{Status: http.StatusUnprocessableEntity, Reason: "config", Detail: err.Error(), Hint: "mend the configuration and reload again; the one in use stays"}
	var wrong config.Errors
	var exit *ExitError
	switch {
	case errors.As(err, &wrong):
		var details, hints []string
		for _, w := range wrong {
			details = append(details, w.Error())
			if w.Hint != "" {
				hints = append(hints, w.Hint)
			}
		}
		e.Detail = strings.Join(details, "; ")
		if len(hints) > 0 {
			e.Hint = strings.Join(hints, "; ")
		}
	case errors.As(err, &exit) && exit.Hint != "":
		e.Hint = exit.Hint
	}
	return api.Reloaded{}, e
}
