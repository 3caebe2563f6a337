-- Notices: lines of the journal that are told, each under a name that is its own for ever.
ALTER TABLE journal ADD COLUMN notice TEXT;
-- 1 if its run asked not to be told of it: kept, and shown to those who ask for all.
ALTER TABLE journal ADD COLUMN quiet INTEGER NOT NULL DEFAULT 0;
-- The end of the run's output, as it was when the notice was made.
ALTER TABLE journal ADD COLUMN tail TEXT;

-- Told once, even if the mind has a bug. Also the way to page through notices alone.
CREATE UNIQUE INDEX one_of_each_notice ON journal (notice) WHERE notice IS NOT NULL;
CREATE INDEX notices ON journal (seq) WHERE notice IS NOT NULL;

-- Notices that a channel could not deliver and has given up on, whole: the run may be removed before
-- somebody looks.
CREATE TABLE dead_letter (
    channel TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    notice  TEXT NOT NULL,
    body    TEXT NOT NULL,
    tries   INTEGER NOT NULL,
    error   TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    -- 1 if somebody asked to have it delivered again.
    again   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (channel, seq)
) STRICT, WITHOUT ROWID;

-- How often a channel has tried the notice it is at, and what came of it last.
CREATE TABLE channel_try (
    channel TEXT NOT NULL PRIMARY KEY,
    seq     INTEGER NOT NULL,
    tries   INTEGER NOT NULL,
    error   TEXT NOT NULL,
    at_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Which run tells an agent of which notice: kept before that run is asked for, so that a notice is in
-- no second one. Rows go when the channel has acknowledged that far.
CREATE TABLE wake (
    channel TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    run     TEXT,
    -- 1 once there is nothing more to do about it.
    settled INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (channel, seq)
) STRICT, WITHOUT ROWID;
