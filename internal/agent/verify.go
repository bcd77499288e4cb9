package agent

import (
	"context"
	"net/http"
	"time"

	"scanonce/internal/api"
	"scanonce/internal/audit"
)

// AuditVerify judges the audit trail; one at a time, since each holds what it compares in memory.
func (a *agent) AuditVerify(ctx context.Context, ledger bool) (api.AuditReport, error) {
	if !a.verifying.TryLock() {
		return api.AuditReport{}, &api.Error{Status: http.StatusServiceUnavailable, Reason: "busy", Detail: "cannot verify the audit trail: another verification is under way", Hint: "wait for its end"}
	}
	defer a.verifying.Unlock()
	now := a.clock.Now().T
	retained := now.Add(-time.Duration(a.cfg.Audit.RetentionDays) * 24 * time.Hour)
	return audit.Verify(ctx, a, audit.Options{Ledger: ledger, Retained: retained, Now: now})
}
