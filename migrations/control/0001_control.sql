-- The control store: identities, keys, catalogs and publications. No secret in plain text (I6): tenants' secrets are
-- sealed by the master key, virtual keys are hashes, credentials of providers are references inside the catalogs.

-- One row: what every write compares, and what tells a wrong pepper or master key from an empty store.
CREATE TABLE control (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    revision     INTEGER NOT NULL,
    pepper_check BLOB NOT NULL,
    master_check BLOB NOT NULL
) STRICT;

-- Identities outlive the catalogs that named them.
CREATE TABLE tenants (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    wrapped_secret BLOB NOT NULL,
    created_at_ms  INTEGER NOT NULL
) STRICT;

CREATE TABLE teams (
    id            TEXT PRIMARY KEY,
    tenant_id     TEXT NOT NULL REFERENCES tenants (id),
    name          TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;

CREATE TABLE keys (
    id            TEXT PRIMARY KEY,
    hash          BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    prefix        TEXT NOT NULL,
    origin        TEXT NOT NULL CHECK (origin IN ('file', 'admin')),
    name          TEXT NOT NULL,
    tenant_id     TEXT NOT NULL REFERENCES tenants (id),
    team_id       TEXT REFERENCES teams (id),
    models        TEXT,                             -- a JSON list; NULL: all of the tenant's
    labels        TEXT NOT NULL,                    -- a JSON list of pairs
    created_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,
    revoked_at_ms INTEGER,
    revoked_by    TEXT CHECK (revoked_by IN ('file', 'admin')),
    CHECK ((revoked_at_ms IS NULL) = (revoked_by IS NULL))
) STRICT;

-- Catalogs and price books are kept for good, by their content: a replay needs no more than these and the log.
CREATE TABLE catalogs (
    content_sha256 TEXT PRIMARY KEY,
    document       TEXT NOT NULL,
    created_at_ms  INTEGER NOT NULL
) STRICT;

CREATE TABLE price_books (
    version       TEXT PRIMARY KEY,
    entries       TEXT NOT NULL,                    -- a JSON list of prices
    created_at_ms INTEGER NOT NULL
) STRICT;

-- Which catalog was applied when; the newest is in force.
CREATE TABLE applications (
    number         INTEGER PRIMARY KEY,
    content_sha256 TEXT NOT NULL REFERENCES catalogs (content_sha256),
    file           TEXT NOT NULL,
    applied_at_ms  INTEGER NOT NULL
) STRICT;

CREATE TABLE snapshots (
    version         INTEGER PRIMARY KEY,
    content_sha256  TEXT NOT NULL,
    price_version   TEXT NOT NULL REFERENCES price_books (version),
    published_at_ms INTEGER NOT NULL
) STRICT;

-- For people with a `sqlite3` shell.
CREATE VIEW keys_for_people AS
SELECT keys.id,
       tenants.name                                             AS tenant,
       teams.name                                               AS team,
       keys.name,
       keys.prefix,
       keys.origin,
       datetime(keys.created_at_ms / 1000, 'unixepoch')         AS created,
       datetime(keys.expires_at_ms / 1000, 'unixepoch')         AS expires,
       datetime(keys.revoked_at_ms / 1000, 'unixepoch')         AS revoked
FROM keys
JOIN tenants ON tenants.id = keys.tenant_id
LEFT JOIN teams ON teams.id = keys.team_id;
