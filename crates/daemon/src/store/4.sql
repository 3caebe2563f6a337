-- Stories: their facts are lines of the journal; what people wrote, and what stays when lines go, is beside them.
-- PROJECT/ID of one story, PROJECT/ of a pipeline, / of a provider's pause; NULL for facts of runs.
ALTER TABLE journal ADD COLUMN story TEXT;
CREATE INDEX journal_by_story ON journal (story, seq) WHERE story IS NOT NULL;
-- For the replay, which needs all of them in their order.
CREATE INDEX facts_of_stories ON journal (seq) WHERE story IS NOT NULL;

-- What a repository is called, for ever: ids of runs are made of it.
CREATE TABLE project (
    key      TEXT NOT NULL PRIMARY KEY,
    path     TEXT NOT NULL UNIQUE,
    added_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A row stays when its story is gone: no id is used twice.
CREATE TABLE story (
    project  TEXT NOT NULL,
    id       TEXT NOT NULL,
    title    TEXT NOT NULL,
    text     TEXT NOT NULL,
    -- What its maker told it from others by.
    key      TEXT,
    added_ms INTEGER NOT NULL,
    gone_ms  INTEGER,
    -- 1 once only those of its lines are left that tell what became of it.
    thinned  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (project, id)
) STRICT, WITHOUT ROWID;

-- One story per key, also if somebody asks twice at once.
CREATE UNIQUE INDEX one_story_per_key ON story (project, key) WHERE key IS NOT NULL;
CREATE INDEX story_by_end ON story (gone_ms) WHERE gone_ms IS NOT NULL AND thinned = 0;
