package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
)

// Verifier judges the audit trail.
type Verifier interface {
	// AuditVerify reads the whole trail, and with ledger the rows too.
	AuditVerify(ctx context.Context, ledger bool) (AuditReport, error)
}

// AuditReport is the result of a verification.
type AuditReport struct {
	OK           bool        `json:"ok"`
	Lines        int64       `json:"lines"`
	Records      int64       `json:"records"` // of the chains
	DeclaredGaps int64       `json:"declared_gaps"`
	FirstBad     *AuditFault `json:"first_bad"`
	LedgerOnly   []string    `json:"ledger_only"` // keys of rows without their committed line; null: not compared
	AuditOnly    []string    `json:"audit_only"`  // keys of lines without their row; null: not compared
}

// AuditFault is the first line or record, in the order of the trail, that is wrong. One that can't be read has no ids; a
// record of the chain has an epoch and a number.
type AuditFault struct {
	Line       int64   `json:"line"` // counted from 1, records of the chain too
	AgentID    *string `json:"agent_id"`
	SpoolEpoch *string `json:"spool_epoch"`
	Seq        *int64  `json:"seq"`
	EventID    *string `json:"event_id"`
	Reason     string  `json:"reason"` // altered, missing, order
	Detail     string  `json:"detail"`
}

func (s *Server) auditVerify(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(r)
	if err != nil {
		return err
	}
	var in struct {
		Ledger bool `json:"ledger"`
	}
	if len(bytes.TrimSpace(body)) > 0 {
		if err := decode(body, &in); err != nil {
			return err
		}
	}
	return s.stream(w, r, "application/json", func(ctx context.Context, w io.Writer) error {
		report, err := s.backend.AuditVerify(ctx, in.Ledger)
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(report)
	})
}
