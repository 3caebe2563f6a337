-- Notices: lines of the journal that are told, each under a name that is its own for ever.
ALTER TABLE journal ADD COLUMN notice TEXT;
-- 1 if its run asked not to be told of it: kept, and shown to those who ask for all.
ALTER TABLE journal ADD COLUMN quiet INTEGER NOT NULL DEFAULT 0;
-- The end of the run's output, as it was when the notice was made.
ALTER TABLE journal ADD COLUMN tail TEXT;

-- Told once, even if the mind has a bug. Also the way to page through notices alone.
CREATE UNIQUE INDEX one_of_each_notice ON journal (notice) WHERE notice IS NOT NULL;
CREATE INDEX notices ON journal (seq) WHERE notice IS NOT NULL;

-- Notices that a channel could not deliver and has given up on.
CREATE TABLE dead_letter (
    channel TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    notice  TEXT NOT NULL,
    tries   INTEGER NOT NULL,
    error   TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    PRIMARY KEY (channel, seq)
) STRICT, WITHOUT ROWID;
