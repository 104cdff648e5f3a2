-- The ledger of one machine: everything here is derived from the event log and can be built again from it.
--
-- Money is an INTEGER of nano-USD (10^-9 US dollars), times are milliseconds since 1970 UTC, ids are 16-byte BLOBs. The
-- views at the end show dollars, dates and text; read those.

-- One row per reservation: what was locked at admission (never changes) and where it stands (moves with the log).
CREATE TABLE reservations (
    number              INTEGER PRIMARY KEY,
    id                  BLOB    NOT NULL,
    -- locked at admission
    tenant              TEXT    NOT NULL,
    team                TEXT,
    key_id              TEXT    NOT NULL,
    model               TEXT    NOT NULL,
    fingerprint         BLOB    NOT NULL,
    hold_requests       INTEGER NOT NULL,
    hold_tokens         INTEGER NOT NULL,
    hold_nusd           INTEGER NOT NULL,
    -- The calendar windows of admission: days, Monday weeks and months since 1970-01-01.
    window_day          INTEGER NOT NULL,
    window_week         INTEGER NOT NULL,
    window_month        INTEGER NOT NULL,
    price_version       TEXT    NOT NULL,
    admitted_at_ms      INTEGER NOT NULL,
    first_due_ms        INTEGER NOT NULL,
    owner               TEXT    NOT NULL,
    -- Labels, end user, idempotency and whatever else is rarely set, as JSON; NULL when nothing of it is.
    details             TEXT,
    -- where it stands
    status              INTEGER NOT NULL,   -- 0 reserved, 1 pending reconciliation, 2 settled, 3 released
    status_since_ms     INTEGER NOT NULL,
    due_ms              INTEGER NOT NULL,
    held_requests       INTEGER NOT NULL,
    held_tokens         INTEGER NOT NULL,
    held_nusd           INTEGER NOT NULL,
    escalated           INTEGER NOT NULL,
    flagged             INTEGER NOT NULL,
    -- Every attempt, packed as services/ledger/src/sqlite/attempts.rs tells. A closed one is here, usage or not.
    attempts            TEXT    NOT NULL,
    -- Its events, packed: `[offset,kind,attempt,ms after admission],` each. One column of a row that is written anyway,
    -- because a row per event would cost more than the request. A repeated batch may pack one twice; v_events does not.
    events              TEXT    NOT NULL,
    log_partition       INTEGER NOT NULL,
    last_offset         INTEGER NOT NULL    -- of its newest event: an older batch never overwrites a newer one
) STRICT;
CREATE UNIQUE INDEX reservations_by_id ON reservations (id);
-- Only what is open: small, however many have ended.
CREATE INDEX reservations_open ON reservations (status, due_ms) WHERE status IN (0, 1);

-- Append-only lines. What an adjustment corrects stays as it is.
CREATE TABLE lines (
    number              INTEGER PRIMARY KEY,
    reservation         BLOB    NOT NULL,
    attempt             INTEGER NOT NULL,
    seq                 INTEGER NOT NULL,
    tenant              TEXT    NOT NULL,
    posted_hour         INTEGER NOT NULL,   -- posted_at_ms / 3600000, so that a time range is a few seeks per tenant
    posted_at_ms        INTEGER NOT NULL,
    deployment          TEXT,
    provider            TEXT,
    upstream_model      TEXT,
    provider_region     TEXT,
    price               TEXT,               -- the name in the price book of price_version
    usage               TEXT    NOT NULL,   -- JSON object: quantity by meter
    source              INTEGER NOT NULL,   -- row of usage_sources
    record_requests     INTEGER NOT NULL,
    record_tokens       INTEGER NOT NULL,
    record_nusd         INTEGER NOT NULL,
    price_version       TEXT,               -- NULL: the one locked at admission
    served_tier         TEXT,
    cause               TEXT    NOT NULL,
    amount_requests     INTEGER NOT NULL,
    amount_tokens       INTEGER NOT NULL,
    amount_nusd         INTEGER NOT NULL,
    total_requests      INTEGER NOT NULL,
    total_tokens        INTEGER NOT NULL,
    total_nusd          INTEGER NOT NULL,
    corrects            INTEGER,
    flagged             INTEGER NOT NULL,
    log_partition       INTEGER NOT NULL,
    log_offset          INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX lines_by_key ON lines (reservation, attempt, seq);
-- By hour first: what is written now stays together, however many tenants there are.
CREATE INDEX lines_by_time ON lines (posted_hour, tenant, posted_at_ms);

CREATE TRIGGER lines_are_not_changed BEFORE UPDATE ON lines
BEGIN SELECT raise(ABORT, 'ledger lines are append-only: post an adjustment'); END;
CREATE TRIGGER lines_are_not_deleted BEFORE DELETE ON lines
BEGIN SELECT raise(ABORT, 'ledger lines are append-only: post an adjustment'); END;

CREATE TABLE positions (
    consumer            TEXT    NOT NULL,
    topic               TEXT    NOT NULL,
    log_partition       INTEGER NOT NULL,
    next_offset         INTEGER NOT NULL,   -- the first record that is not processed yet
    PRIMARY KEY (consumer, topic, log_partition)
) STRICT, WITHOUT ROWID;

-- Keys whose first record here could not be digested: later ones of the same key wait behind it, in order.
CREATE TABLE parked_keys (
    consumer            TEXT    NOT NULL,
    topic               TEXT    NOT NULL,
    log_partition       INTEGER NOT NULL,
    key                 BLOB    NOT NULL,
    reason              TEXT    NOT NULL,
    asked               TEXT,               -- an operator's order: NULL, 'replay' or 'skip'
    asked_offset        INTEGER,            -- the record to skip
    PRIMARY KEY (consumer, topic, log_partition, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE parked (
    consumer            TEXT    NOT NULL,
    topic               TEXT    NOT NULL,
    log_partition       INTEGER NOT NULL,
    key                 BLOB    NOT NULL,
    log_offset          INTEGER NOT NULL,
    value               BLOB    NOT NULL,
    time_ms             INTEGER NOT NULL,
    PRIMARY KEY (consumer, topic, log_partition, key, log_offset)
) STRICT, WITHOUT ROWID;

-- Images of the fold at a position, newest last; see services/ledger/src/checkpoint.rs. An image is cut into parts
-- because a value has a greatest length.
CREATE TABLE checkpoints (
    number              INTEGER PRIMARY KEY AUTOINCREMENT,
    taken_at_ms         INTEGER NOT NULL,
    positions           TEXT    NOT NULL,   -- JSON: [[partition, next offset], ...]
    format              INTEGER NOT NULL,
    sha256              BLOB    NOT NULL
) STRICT;
CREATE TABLE checkpoint_parts (
    checkpoint          INTEGER NOT NULL,
    part                INTEGER NOT NULL,
    bytes               BLOB    NOT NULL,
    PRIMARY KEY (checkpoint, part)
) STRICT;

CREATE TABLE reservation_statuses (status INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO reservation_statuses VALUES (0, 'reserved'), (1, 'pending_reconciliation'), (2, 'settled'), (3, 'released');

CREATE TABLE usage_sources (source INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO usage_sources VALUES
    (0, 'estimate'), (1, 'split'), (2, 'bucket_residual'), (3, 'response'), (4, 'provider_report'), (5, 'person');

CREATE TABLE attempt_outcomes (outcome INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO attempt_outcomes VALUES
    (0, 'not_executed'), (1, 'may_have_executed'), (2, 'executed'), (3, 'executed_usage_unknown');

CREATE TABLE event_kinds (kind INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO event_kinds VALUES
    (0, 'ReservationCreated'), (1, 'ReservationExtended'), (2, 'AttemptStarted'), (3, 'AttemptCorrelated'),
    (4, 'UsageBounded'), (5, 'UsageRecorded'), (6, 'AttemptClosed'), (7, 'ReservationPending'),
    (8, 'ReservationSettled'), (9, 'ReservationReleased'), (10, 'ReservationResumed'), (11, 'ReservationEscalated');

-- For people with a sqlite3 shell. Dollars are exact decimal text; do not sum them, sum the *_nusd columns.

-- One row per reservation: who, where it stands, what it holds, what it was charged.
CREATE VIEW v_reservations AS
SELECT lower(substr(hex(r.id), 1, 8) || '-' || substr(hex(r.id), 9, 4) || '-' || substr(hex(r.id), 13, 4) || '-'
             || substr(hex(r.id), 17, 4) || '-' || substr(hex(r.id), 21)) AS reservation,
       r.tenant, r.team, r.key_id, r.model, s.name AS status,
       strftime('%Y-%m-%dT%H:%M:%S', r.admitted_at_ms / 1000, 'unixepoch') || printf('.%03dZ', r.admitted_at_ms % 1000)
           AS admitted_at,
       strftime('%Y-%m-%dT%H:%M:%S', r.status_since_ms / 1000, 'unixepoch')
           || printf('.%03dZ', r.status_since_ms % 1000) AS status_since,
       printf('%d.%09d', r.held_nusd / 1000000000, r.held_nusd % 1000000000) AS held_usd,
       r.held_nusd, r.held_tokens,
       (SELECT coalesce(sum(l.amount_nusd), 0) FROM lines l WHERE l.reservation = r.id) AS charged_nusd,
       date(r.window_day * 86400, 'unixepoch') AS window_day,
       r.escalated, r.flagged, r.price_version, r.owner, r.details
FROM reservations r JOIN reservation_statuses s USING (status);

-- One row per ledger line: what was posted, when, why, in dollars.
CREATE VIEW v_lines AS
SELECT lower(substr(hex(l.reservation), 1, 8) || '-' || substr(hex(l.reservation), 9, 4) || '-'
             || substr(hex(l.reservation), 13, 4) || '-' || substr(hex(l.reservation), 17, 4) || '-'
             || substr(hex(l.reservation), 21)) AS reservation,
       l.attempt, l.seq, l.tenant, r.team, r.key_id, r.model, l.deployment, l.provider, l.upstream_model, l.price,
       strftime('%Y-%m-%dT%H:%M:%S', l.posted_at_ms / 1000, 'unixepoch') || printf('.%03dZ', l.posted_at_ms % 1000)
           AS posted_at,
       u.name AS source, l.usage, l.amount_requests AS requests, l.amount_tokens AS tokens,
       CASE WHEN l.amount_nusd < 0 THEN '-' ELSE '' END
           || printf('%d.%09d', abs(l.amount_nusd) / 1000000000, abs(l.amount_nusd) % 1000000000) AS usd,
       printf('%d.%09d', l.total_nusd / 1000000000, l.total_nusd % 1000000000) AS total_usd,
       l.amount_nusd, l.total_nusd, l.corrects, l.flagged, l.cause, l.served_tier,
       coalesce(l.price_version, r.price_version) AS price_version, l.log_partition, l.log_offset
FROM lines l JOIN reservations r ON r.id = l.reservation JOIN usage_sources u USING (source);

-- One row per attempt, closed or not.
CREATE VIEW v_attempts AS
SELECT lower(substr(hex(r.id), 1, 8) || '-' || substr(hex(r.id), 9, 4) || '-' || substr(hex(r.id), 13, 4) || '-'
             || substr(hex(r.id), 17, 4) || '-' || substr(hex(r.id), 21)) AS reservation,
       a.value ->> 0 AS attempt, r.tenant, a.value ->> '$[2][0]' AS deployment, a.value ->> '$[2][1]' AS provider,
       o.name AS outcome,
       printf('%d.%09d', coalesce(a.value ->> '$[4][2]', a.value ->> '$[3][2]') / 1000000000,
              coalesce(a.value ->> '$[4][2]', a.value ->> '$[3][2]') % 1000000000) AS hold_usd,
       coalesce(a.value ->> '$[4][1]', a.value ->> '$[3][1]') AS hold_tokens,
       CASE WHEN a.value ->> '$[5][2]' < 0 THEN '-' WHEN a.value ->> '$[5][2]' >= 0 THEN '' END
           || printf('%d.%09d', abs(a.value ->> '$[5][2]') / 1000000000, abs(a.value ->> '$[5][2]') % 1000000000)
           AS charge_usd,
       a.value ->> '$[5][1]' AS charge_tokens, a.value ->> 6 AS provider_id
FROM reservations r, json_each(r.attempts) a
LEFT JOIN attempt_outcomes o ON o.outcome = a.value ->> 1;

-- One row per event on the log: the index from a reservation to its positions.
CREATE VIEW v_events AS
SELECT DISTINCT
       lower(substr(hex(r.id), 1, 8) || '-' || substr(hex(r.id), 9, 4) || '-' || substr(hex(r.id), 13, 4) || '-'
             || substr(hex(r.id), 17, 4) || '-' || substr(hex(r.id), 21)) AS reservation,
       r.tenant, r.log_partition, e.value ->> 0 AS log_offset, k.name AS kind, e.value ->> 2 AS attempt,
       strftime('%Y-%m-%dT%H:%M:%S', (r.admitted_at_ms + (e.value ->> 3)) / 1000, 'unixepoch')
           || printf('.%03dZ', (r.admitted_at_ms + (e.value ->> 3)) % 1000) AS recorded_at
FROM reservations r, json_each('[' || rtrim(r.events, ',') || ']') e
JOIN event_kinds k ON k.kind = e.value ->> 1;
