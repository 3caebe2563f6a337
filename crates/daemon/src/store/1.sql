-- The first schema. Never edited after a release: later ones are migrations.
CREATE TABLE run (
    id      TEXT NOT NULL PRIMARY KEY,
    slot    TEXT NOT NULL,
    state   TEXT NOT NULL
            CHECK (state IN ('starting', 'running', 'stopping', 'stuck', 'dead')),
    request TEXT NOT NULL,
    started TEXT,
    stuck   TEXT,
    ended   TEXT
) STRICT, WITHOUT ROWID;

-- One live run per slot, even if the mind has a bug.
CREATE UNIQUE INDEX one_live_run_per_slot ON run (slot) WHERE state <> 'dead';

-- Every fact, in the order it became true.
CREATE TABLE journal (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms  INTEGER NOT NULL,
    run    TEXT REFERENCES run (id),
    fact   TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;

CREATE INDEX journal_by_run ON journal (run);
