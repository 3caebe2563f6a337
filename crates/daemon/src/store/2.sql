-- Worktrees, the moments that lists and retention go by, and who has read how far.
ALTER TABLE run ADD COLUMN worktree TEXT;
ALTER TABLE run ADD COLUMN requested_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN ended_ms INTEGER;
UPDATE run SET requested_ms = coalesce(json_extract(request, '$.at_ms'), 0);
UPDATE run SET ended_ms = coalesce(
    json_extract(ended, '$.recorded.at_ms'),
    json_extract(ended, '$.never_started.at_ms'),
    requested_ms
) WHERE state = 'dead';

-- One live run per worktree, even if the mind has a bug.
CREATE UNIQUE INDEX one_live_run_per_worktree ON run (worktree)
    WHERE worktree IS NOT NULL AND state <> 'dead';
CREATE INDEX run_by_request ON run (requested_ms);
CREATE INDEX run_by_slot ON run (slot);
CREATE INDEX run_by_end ON run (ended_ms) WHERE state = 'dead';

-- Who reads the journal, and up to where it has said that it has read.
CREATE TABLE consumer (
    name     TEXT NOT NULL PRIMARY KEY,
    acked    INTEGER NOT NULL,
    acked_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What retention has removed from the journal: readers who come too late are told.
CREATE TABLE removed (
    only    INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
    runs    INTEGER NOT NULL,
    facts   INTEGER NOT NULL,
    through INTEGER NOT NULL
) STRICT;
INSERT INTO removed (only, runs, facts, through) VALUES (1, 0, 0, 0);
