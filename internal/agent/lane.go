package agent

import (
	"path/filepath"

	"scanonce/sync/forward"
)

// ownFile is the file in which the agent itself keeps what a lane's operations change; "" where that is a server's.
func (a *agent) ownFile(l forward.Lane) string {
	switch {
	case l == forward.Claims && a.cfg.ClaimState.Backend == "embedded":
		return filepath.Join(a.cfg.Agent.StateDir, "claims.db")
	case l == forward.Cases && a.cfg.PA.Backend == "embedded":
		return filepath.Join(a.cfg.Agent.StateDir, "pa.db")
	}
	return ""
}
