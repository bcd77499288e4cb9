-- The ledger of movements. A row is its own audit line; its three unique keys make a decision final.
CREATE TABLE scan_ledger (
  idem_key      bytea PRIMARY KEY CHECK (octet_length(idem_key) = 32),
  edge_key      bytea UNIQUE CHECK (octet_length(edge_key) = 32),
  event_id      uuid NOT NULL UNIQUE,
  facility_uuid text NOT NULL,
  scanner_id    text NOT NULL,
  ndc           text NOT NULL DEFAULT '',
  lot           text NOT NULL DEFAULT '',
  quantity      int NOT NULL CHECK (quantity BETWEEN 1 AND 9999),
  scan_type     text NOT NULL CHECK (scan_type IN ('receive', 'dispense', 'waste', 'return', 'adjust', 'transfer', 'count')),
  window_index  bigint NOT NULL,
  extras        text NOT NULL DEFAULT '',
  gtin          text,
  hibc          text,
  serial        text,
  ndc11         text,
  ndc12         text,
  expiry        date,
  pkg_level     smallint,
  flags         text[] NOT NULL DEFAULT '{}',
  rx_token      text,
  agent_id      text NOT NULL,
  captured_at   timestamptz NOT NULL,
  clock_quality text NOT NULL CHECK (clock_quality IN ('synced', 'holdover', 'unsynced', 'device')),
  committed_at  timestamptz NOT NULL DEFAULT now()
);

-- What a clock turned out to have been wrong by. Keys and rows never change.
CREATE TABLE scan_time_correction (
  event_id              uuid PRIMARY KEY,
  captured_at_corrected timestamptz NOT NULL,
  recorded_at           timestamptz NOT NULL DEFAULT now()
);

-- Every decision but a commit.
CREATE TABLE scan_audit_line (
  event_id        uuid PRIMARY KEY,
  agent_id        text NOT NULL,
  at              timestamptz NOT NULL,
  key             text,
  ref             text,
  outcome         text NOT NULL,
  reason          text,
  winner_event_id uuid,
  scanner_id      text,
  scan_type       text,
  captured_at     timestamptz,
  ttl_ms          int,
  length          int,
  symbology       text,
  recorded_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX scan_audit_key ON scan_audit_line (key) WHERE key IS NOT NULL;

CREATE VIEW scan_audit AS
  SELECT event_id, agent_id, committed_at AS at, 'scan:idem:' || encode(idem_key, 'hex') AS key, NULL::text AS ref,
         'committed'::text AS outcome, CASE WHEN 'claim_bypassed' = ANY (flags) THEN 'claim_bypassed' END AS reason,
         NULL::uuid AS winner_event_id, scanner_id, scan_type, captured_at, NULL::int AS ttl_ms, NULL::int AS length,
         NULL::text AS symbology, committed_at AS recorded_at
    FROM scan_ledger
  UNION ALL
  SELECT * FROM scan_audit_line;

CREATE VIEW scan_ledger_keys AS
  SELECT 'scan:idem:' || encode(idem_key, 'hex') AS key, scan_ledger.* FROM scan_ledger;

-- One record for each settled batch, made by the agent: what was altered later no longer fits.
CREATE TABLE scan_audit_chain (
  agent_id    text,
  spool_epoch text,
  seq         bigint,
  event_ids   uuid[] NOT NULL,
  line_hashes bytea NOT NULL,
  prev_hash   bytea NOT NULL,
  hash        bytea NOT NULL,
  PRIMARY KEY (agent_id, spool_epoch, seq)
);

-- Who has which scanner, and which agent is alive.
CREATE TABLE scan_scanner (
  facility_uuid text,
  scanner_id    text,
  agent_id      text NOT NULL,
  shared        boolean NOT NULL DEFAULT false,
  PRIMARY KEY (facility_uuid, scanner_id)
);
CREATE TABLE scan_agent_lease (
  agent_id      text PRIMARY KEY,
  facility_uuid text NOT NULL,
  nonce         text NOT NULL,
  lease_until   timestamptz NOT NULL,
  heartbeat_at  timestamptz NOT NULL DEFAULT now(),
  policy_hash   text NOT NULL,
  version       text NOT NULL
);

-- Claims and prior authorization.
CREATE TABLE claim_ingest (
  correlation_id text PRIMARY KEY,
  event_id       uuid NOT NULL,
  at             timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE pa_cases (
  case_id        text PRIMARY KEY,
  member_token   text NOT NULL,
  gpi            text NOT NULL,
  request_window text NOT NULL,
  version        int NOT NULL DEFAULT 1,
  state          text NOT NULL CHECK (state IN ('PENDING', 'IN_REVIEW', 'APPROVED', 'DENIED', 'APPEALED', 'CANCELLED', 'EXPIRED')),
  created_by     uuid NOT NULL,
  last_op_id     uuid NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT now(),
  updated_at     timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX pa_cases_open ON pa_cases (member_token, gpi) WHERE state IN ('PENDING', 'IN_REVIEW', 'APPEALED');
CREATE TABLE pa_ref (
  ref_id  text PRIMARY KEY,
  case_id text NOT NULL REFERENCES pa_cases
);
CREATE TABLE pa_pend (
  event_id uuid PRIMARY KEY,
  ref_id   text NOT NULL,
  created  boolean NOT NULL
);

-- What an agent may do: add to the ledger and the audit, never change them. Roles belong to the whole
-- server, so another database's migration may have made this one, perhaps at the same moment.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'scanonce_agent') THEN
    CREATE ROLE scanonce_agent NOLOGIN;
  END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
  NULL;
END $$;
DO $$
BEGIN
  IF NOT has_schema_privilege('scanonce_agent', current_schema(), 'USAGE') THEN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO scanonce_agent', current_schema());
  END IF;
END $$;
GRANT SELECT ON scan_schema, scan_audit, scan_ledger_keys TO scanonce_agent;
GRANT SELECT, INSERT ON scan_ledger, scan_audit_line, scan_audit_chain, scan_time_correction, claim_ingest, pa_ref, pa_pend TO scanonce_agent;
GRANT SELECT, INSERT, UPDATE ON pa_cases, scan_scanner, scan_agent_lease TO scanonce_agent;
