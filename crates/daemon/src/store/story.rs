//! Stories in the store: what a fact of them becomes on disk, what people wrote beside it, and the
//! questions about both. Owns the tables `project` and `story` and the lines that are stories'.
//! Never decides anything, and says nothing of runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use kennel_supervisor as mind;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::format::{Detail, Fact};
use super::kept::KeptRun;
use super::read::{self, LINES, Line};
use super::story_format;
use super::write::{Writer, in_one, text};
use super::{Store, StoreError};
use crate::notice::Named;
use crate::time::Time;

/// The longest key of a project: with a story's id and a number it is a run's id and a branch.
const MAX_KEY_BYTES: usize = 16;
/// The longest part of it that comes from the directory's name.
const MAX_SLUG_BYTES: usize = 11;
/// Letters of the mark behind it, which tells namesakes apart, those of other homes too: runs are
/// known to the whole machine by their ids.
pub(crate) const MARK_LETTERS: usize = 4;

/// A fact of stories on its way to the disk.
#[derive(Clone, Debug)]
pub(crate) struct StoryEntry {
    pub(crate) fact: mind::StoryFact,
    pub(crate) at: Time,
    /// What it is told as, if it is.
    pub(crate) notice: Option<Named>,
    /// What somebody wrote: of every story that is added, and of one that is edited if that is
    /// what is different.
    pub(crate) words: Option<StoryWords>,
}

/// What somebody wrote of a story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoryWords {
    pub(crate) title: String,
    pub(crate) text: String,
    /// What its maker tells it from others by; kept as it was added.
    pub(crate) key: Option<String>,
}

/// A repository that has, or had, stories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownProject {
    pub(crate) key: String,
    pub(crate) path: String,
}

/// What is kept of a story beside its facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptWords {
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) added_ms: u64,
    pub(crate) key: Option<String>,
}

impl Writer {
    /// Makes facts of stories durable, all or none, and returns the number of the first.
    pub(crate) fn commit_stories(&mut self, entries: &[StoryEntry]) -> Result<u64, StoreError> {
        in_one(&mut self.0, |tx| write(tx, entries))
            .map_err(StoreError::to("write facts of stories"))
    }

    /// The key of a repository, which it keeps for ever: ids of runs are made of it.
    /// Of one that has none yet, `mark` becomes a part.
    pub(crate) fn project(
        &mut self,
        path: &str,
        mark: &str,
        now_ms: u64,
    ) -> Result<String, StoreError> {
        in_one(&mut self.0, |tx| project(tx, path, mark, now_ms))
            .map_err(StoreError::to("name a repository"))
    }
}

impl Store {
    /// Every repository that has a key.
    pub(crate) async fn projects(&self) -> Result<Vec<KnownProject>, StoreError> {
        self.read(projects).await
    }

    /// What is kept of every story of a project, by its id; those that are gone too. Without their
    /// texts: all of them together may be large.
    pub(crate) async fn titles(
        &self,
        project: &str,
    ) -> Result<BTreeMap<String, KeptWords>, StoreError> {
        let project = project.to_owned();
        self.read(move |c| titles(c, &project)).await
    }

    /// What is kept of a story, also if it is gone; nothing if there was none.
    pub(crate) async fn words(
        &self,
        project: &str,
        id: &str,
    ) -> Result<BTreeMap<String, KeptWords>, StoreError> {
        let (project, id) = (project.to_owned(), id.to_owned());
        self.read(move |c| words(c, &project, &id)).await
    }

    /// The story of a project that was added with this key.
    pub(crate) async fn story_by_key(
        &self,
        project: &str,
        key: &str,
    ) -> Result<Option<String>, StoreError> {
        let (project, key) = (project.to_owned(), key.to_owned());
        self.read(move |c| story_by_key(c, &project, &key)).await
    }

    /// The newest lines of a story, oldest of them first.
    pub(crate) async fn story_lines(
        &self,
        project: &str,
        id: &str,
        limit: usize,
    ) -> Result<Vec<Line>, StoreError> {
        let place = format!("{project}/{id}");
        self.read(move |c| story_lines(c, &place, limit)).await
    }

    /// The number of the newest line of a project: of its pipeline or of any story of it.
    pub(crate) async fn last_seq_of_project(&self, project: &str) -> Result<u64, StoreError> {
        let place = format!("{project}/");
        self.read(move |c| last_seq_of(c, &place)).await
    }

    /// The newest runs that moved the base of a project, of all projects together.
    pub(crate) async fn landings(&self, limit: usize) -> Result<Vec<KeptRun>, StoreError> {
        self.read(move |c| super::read::in_slots_that_end(c, ":land", limit)).await
    }

    /// True if a run was first asked to end because everything was.
    pub(crate) async fn stopped_by_shutdown(&self, run: &str) -> Result<bool, StoreError> {
        let run = run.to_owned();
        self.read(move |c| stopped_by_shutdown(c, &run)).await
    }
}

impl Line {
    /// The line that a fact of stories became.
    pub(crate) fn of_story(seq: u64, entry: &StoryEntry) -> Self {
        Self {
            seq,
            at: entry.at,
            run: None,
            slot: None,
            fact: Arc::new(as_kept(&entry.fact)),
            detail: Arc::new(Detail::Nothing),
            notice: entry.notice.clone().map(Arc::new),
            tail: None,
        }
    }
}

/// What is believed of stories, from all their facts.
pub(super) fn replay(connection: &Connection) -> rusqlite::Result<mind::Stories> {
    let sql = "SELECT fact FROM journal WHERE story IS NOT NULL ORDER BY seq";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut stories = mind::Stories::default();
    while let Some(row) = rows.next()? {
        if let Some(fact) = of_stories(&read::json(row, 0)?) {
            stories.apply(&fact);
        }
    }
    Ok(stories)
}

/// The fact as the mind of stories knows it; none if it is one of runs.
pub(super) fn of_stories(fact: &Fact) -> Option<mind::StoryFact> {
    match fact {
        Fact::Story(fact) => Some(fact.of()),
        Fact::Admitted { .. }
        | Fact::Started
        | Fact::Stopping { .. }
        | Fact::Exited
        | Fact::Warned { .. }
        | Fact::Noted(_)
        | Fact::Stuck
        | Fact::Ended { .. }
        | Fact::ShuttingDown => None,
    }
}

fn as_kept(fact: &mind::StoryFact) -> Fact {
    Fact::Story(Box::new(fact.into()))
}

/// Writes facts in order; the number of the first.
fn write(tx: &Transaction<'_>, entries: &[StoryEntry]) -> rusqlite::Result<u64> {
    let mut first = None;
    for entry in entries {
        update_story(tx, entry)?;
        let (id, quiet) = entry.notice.as_ref().map(|n| (n.id.as_str(), n.quiet)).unzip();
        tx.prepare_cached(
            "INSERT INTO journal (at_ms, story, fact, detail, notice, quiet) \
             VALUES (?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            entry.at.0 as i64,
            story_format::place(&entry.fact),
            text(&as_kept(&entry.fact))?,
            text(&Detail::Nothing)?,
            id,
            quiet.unwrap_or(false)
        ])?;
        first.get_or_insert(tx.last_insert_rowid() as u64);
    }
    Ok(first.unwrap_or(0))
}

fn update_story(tx: &Transaction<'_>, entry: &StoryEntry) -> rusqlite::Result<()> {
    use mind::StoryFact as F;
    let at = entry.at.0 as i64;
    match (&entry.fact, &entry.words) {
        (F::Added { story, .. }, Some(StoryWords { title, text, key })) => {
            let sql = "INSERT INTO story (project, id, title, text, key, added_ms) \
                 VALUES (?, ?, ?, ?, ?, ?)";
            let (project, id) = (story.project.as_str(), story.id.as_str());
            tx.prepare_cached(sql)?.execute(params![project, id, title, text, key, at])?;
        }
        // Our own invariant: a story without a title is never written.
        (F::Added { .. }, None) => return Err(rusqlite::Error::InvalidQuery),
        (F::Edited { story, .. }, Some(StoryWords { title, text, .. })) => {
            let sql = "UPDATE story SET title = ?, text = ? WHERE project = ? AND id = ?";
            let (project, id) = (story.project.as_str(), story.id.as_str());
            tx.prepare_cached(sql)?.execute(params![title, text, project, id])?;
        }
        (F::Left(story), _) => {
            let sql = "UPDATE story SET gone_ms = ? WHERE project = ? AND id = ?";
            let (project, id) = (story.project.as_str(), story.id.as_str());
            tx.prepare_cached(sql)?.execute(params![at, project, id])?;
        }
        (F::Edited { .. }, None)
        | (
            F::PipelineSet { .. }
            | F::Moved { .. }
            | F::Advanced { .. }
            | F::Held { .. }
            | F::Unheld(_)
            | F::Leaving { .. }
            | F::StepBegun { .. }
            | F::StepStarted(_)
            | F::StepRefused { .. }
            | F::StepStopping(_)
            | F::StepEnded { .. }
            | F::StrayFound(_)
            | F::StrayEnded(_)
            | F::Paused { .. }
            | F::Unpaused(_),
            _,
        ) => {}
    }
    Ok(())
}

fn project(tx: &Transaction<'_>, path: &str, mark: &str, now_ms: u64) -> rusqlite::Result<String> {
    let sql = "SELECT key FROM project WHERE path = ?";
    if let Some(key) = tx.query_row(sql, [path], |row| row.get(0)).optional()? {
        return Ok(key);
    }
    let slug = if mark.is_empty() { slug(path) } else { format!("{}-{mark}", slug(path)) };
    let mut key = slug.clone();
    // Ends: every number gives another key, and those that are taken are no more than the rows.
    let mut namesakes = 1_u64;
    while is_taken(tx, &key)? {
        namesakes += 1;
        key = numbered(&slug, namesakes);
    }
    let sql = "INSERT INTO project (key, path, added_ms) VALUES (?, ?, ?)";
    tx.execute(sql, params![key, path, now_ms as i64])?;
    Ok(key)
}

fn is_taken(tx: &Transaction<'_>, key: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM project WHERE key = ?";
    tx.query_row(sql, [key], |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

/// A directory's name in small letters, digits and single `-` between them.
fn slug(path: &str) -> String {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".git").unwrap_or(name).to_ascii_lowercase();
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    let joined = parts.collect::<Vec<_>>().join("-");
    let short = shortened(&joined, MAX_SLUG_BYTES);
    if short.is_empty() { "repo".to_owned() } else { short.to_owned() }
}

fn numbered(slug: &str, number: u64) -> String {
    let number = format!("-{number}");
    format!("{}{number}", shortened(slug, MAX_KEY_BYTES.saturating_sub(number.len())))
}

/// The beginning of a text of single bytes, without a `-` at its end.
fn shortened(text: &str, most: usize) -> &str {
    text.get(..most).unwrap_or(text).trim_end_matches('-')
}

fn projects(connection: &Connection) -> rusqlite::Result<Vec<KnownProject>> {
    let mut statement = connection.prepare_cached("SELECT key, path FROM project ORDER BY key")?;
    let rows =
        statement.query_map([], |row| Ok(KnownProject { key: row.get(0)?, path: row.get(1)? }))?;
    rows.collect()
}

fn titles(connection: &Connection, project: &str) -> rusqlite::Result<BTreeMap<String, KeptWords>> {
    let sql = "SELECT id, title, '', added_ms, key FROM story WHERE project = ?";
    kept_words(connection, sql, params![project])
}

fn words(
    connection: &Connection,
    project: &str,
    id: &str,
) -> rusqlite::Result<BTreeMap<String, KeptWords>> {
    let sql = "SELECT id, title, text, added_ms, key FROM story WHERE project = ? AND id = ?";
    kept_words(connection, sql, params![project, id])
}

fn kept_words(
    connection: &Connection,
    sql: &str,
    of: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<BTreeMap<String, KeptWords>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(of, |row| {
        let words = KeptWords {
            title: row.get(1)?,
            text: row.get(2)?,
            added_ms: row.get::<_, i64>(3)? as u64,
            key: row.get(4)?,
        };
        Ok((row.get(0)?, words))
    })?;
    rows.collect()
}

fn story_by_key(
    connection: &Connection,
    project: &str,
    key: &str,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT id FROM story WHERE project = ? AND key = ?";
    connection.prepare_cached(sql)?.query_row([project, key], |row| row.get(0)).optional()
}

fn story_lines(connection: &Connection, place: &str, limit: usize) -> rusqlite::Result<Vec<Line>> {
    let sql = format!("{LINES} WHERE story = ? ORDER BY seq DESC LIMIT ?");
    let mut lines = read::query_lines(connection, &sql, params![place, limit as i64])?;
    lines.reverse();
    Ok(lines)
}

fn last_seq_of(connection: &Connection, place: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT coalesce(max(seq), 0) FROM journal \
         WHERE story >= ?1 AND story < ?1 || char(0x10ffff)";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([place], |row| row.get::<_, i64>(0)).map(|seq| seq as u64)
}

fn stopped_by_shutdown(connection: &Connection, run: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT detail FROM journal WHERE run = ? \
         AND json_type(fact, '$.stopping') IS NOT NULL ORDER BY seq LIMIT 1";
    let detail = |row: &rusqlite::Row<'_>| read::json::<Detail>(row, 0);
    let first = connection.prepare_cached(sql)?.query_row([run], detail).optional()?;
    Ok(matches!(first, Some(Detail::Shutdown)))
}

#[cfg(test)]
mod tests {
    use super::super::retention::Keep;
    use super::super::story_format::tests::every_fact;
    use super::super::tests::{Scratch, admit, dead, wait};
    use super::super::{Entry, Opened};
    use super::*;
    use crate::store::kept::Standing;
    use mind::story::{
        AgentRule, BackOff, Ceilings, Leave, NewStory, Outcome, Pipeline, ProjectKey, Role, Seen,
        SeenStep, Stage, StageKind, StageName, StepId, StoryRef, Tree, Used, Wait, WaitFor, Why,
        Work, WorkRule,
    };
    use mind::story::{Gone, Then};
    use mind::{StoryEvent, StoryFact as F};
    use std::time::Duration;

    fn story(id: &str) -> StoryRef {
        StoryRef::new(&"shop".into(), &id.into())
    }

    fn new_in(stage: &str) -> NewStory {
        let (pinned, depends_on) = (None, [].into());
        let ceilings = Ceilings::default();
        NewStory { stage: stage.into(), pinned, depends_on, priority: 0, ceilings }
    }

    fn written(title: &str, key: Option<&str>) -> Option<StoryWords> {
        let key = key.map(str::to_owned);
        Some(StoryWords { title: title.to_owned(), text: format!("do {title}"), key })
    }

    fn entry(fact: F) -> StoryEntry {
        let words = matches!(fact, F::Added { .. }).then(|| written("it", None)).flatten();
        StoryEntry { fact, at: Time(1), notice: None, words }
    }

    fn added(id: &str, key: Option<&str>) -> StoryEntry {
        let fact = F::Added { story: story(id), new: new_in("do"), done: false };
        StoryEntry { words: written(id, key), ..entry(fact) }
    }

    /// `do` and `look` are worked in; `end` ends a story, or is worked in too.
    fn pipeline(ends: bool) -> Arc<Pipeline> {
        let stage = |name: &str, kind| Stage { name: name.into(), kind };
        let work = |next: &str, on_failure: Option<&str>| {
            StageKind::Work(WorkRule {
                agents: vec!["a".into()],
                gates: 1,
                merge: false,
                next: next.into(),
                on_failure: on_failure.map(Into::into),
                max_runs: None,
            })
        };
        let end =
            if ends { StageKind::Terminal { success: true } } else { work("off", Some("do")) };
        let agent = AgentRule {
            name: "a".into(),
            role: Role::Coder,
            max_instances: 3,
            provider: "p".into(),
            model: "m".into(),
            resumes: true,
        };
        Arc::new(Pipeline {
            stages: vec![
                stage("do", work("look", None)),
                stage("look", work("end", Some("do"))),
                stage("end", end),
                stage("off", StageKind::Terminal { success: false }),
            ],
            agents: vec![agent],
            max_retries: 3,
            back_off: BackOff { first_ms: 10, most_ms: 50 },
        })
    }

    fn pipeline_set(ends: bool) -> StoryEntry {
        entry(F::PipelineSet { project: "shop".into(), pipeline: pipeline(ends) })
    }

    #[test]
    fn a_repository_has_one_short_key_for_ever() {
        let scratch = Scratch::new("project");
        let mut writer = scratch.open().unwrap().writer;
        for (path, key) in [
            ("/a/shop", "shop"),
            ("/b/shop", "shop-2"),
            ("/c/Shop.git", "shop-3"),
            ("/a/shop", "shop"),
            ("/d/shop-2", "shop-2-2"),
            ("/a/My  Shop__(old)", "my-shop-old"),
            ("/a/a-name-that-is-long", "a-name-that"),
            ("/b/a-name-that-is-long", "a-name-that-2"),
            ("/a/größe/", "gr-e"),
            ("/a/...", "repo"),
            ("/", "repo-2"),
            ("/a/.git", "repo-3"),
        ] {
            assert_eq!(writer.project(path, "", 5).unwrap(), key, "{path}");
        }
        assert_eq!(numbered("abcdefghijkl", 12_345), "abcdefghij-12345");
        assert_eq!(
            writer.project("/e/a-name-that-is-long", "k2x9", 5).unwrap(),
            "a-name-that-k2x9"
        );
        let store = scratch.open().unwrap().store;
        let known = wait(store.projects()).unwrap();
        assert_eq!(known.len(), 12);
        let last = KnownProject { key: "shop-3".to_owned(), path: "/c/Shop.git".to_owned() };
        assert_eq!(known.last(), Some(&last));
    }

    #[test]
    fn what_people_wrote_is_kept_beside_the_facts_and_a_key_is_one_storys() {
        let scratch = Scratch::new("words");
        let Opened { store, mut writer, .. } = scratch.open().unwrap();
        let mut commit = |entries: &[StoryEntry]| writer.commit_stories(entries);
        assert_eq!(commit(&[]).unwrap(), 0);
        assert_eq!(commit(&[pipeline_set(true), added("1", Some("k"))]).unwrap(), 1);
        let twice = [entry(F::Unheld(story("1"))), added("2", Some("k"))];
        assert!(commit(&twice).is_err());
        let none = StoryEntry { words: None, ..added("2", None) };
        assert!(commit(&[none]).is_err(), "a story without a title");
        assert_eq!(wait(store.last_seq_of_project("shop")).unwrap(), 2, "all or none");
        let edit = Default::default();
        let edited = F::Edited { story: story("1"), edit };
        commit(&[
            StoryEntry { words: written("new", Some("other")), ..entry(edited.clone()) },
            entry(edited),
            added("2", None),
            added("3", None),
        ])
        .unwrap();
        let words = wait(store.titles("shop")).unwrap();
        let first = &wait(store.words("shop", "1")).unwrap()["1"];
        assert_eq!(words["1"], KeptWords { text: String::new(), ..first.clone() });
        assert_eq!((first.title.as_str(), first.text.as_str()), ("new", "do new"));
        assert_eq!((first.added_ms, first.key.as_deref()), (1, Some("k")));
        assert_eq!(words.keys().collect::<Vec<_>>(), ["1", "2", "3"]);
        let by_key = |project, key| wait(store.story_by_key(project, key)).unwrap();
        assert_eq!(by_key("shop", "k").as_deref(), Some("1"));
        assert_eq!(by_key("shop", "other"), None);
        assert_eq!(by_key("sho", "k"), None);
    }

    #[test]
    fn lines_of_a_story_are_found_and_told_as_they_were_committed() {
        let scratch = Scratch::new("lines");
        let Opened { store, mut writer, .. } = scratch.open().unwrap();
        let moved = |to: &str| F::Moved { story: story("1"), to: to.into(), done: false };
        let entries = [
            pipeline_set(true),
            added("1", None),
            added("10", None),
            entry(moved("look")),
            entry(F::Paused { provider: "p".into(), until_ms: 9 }),
            entry(moved("do")),
        ];
        writer.commit_stories(&entries).unwrap();
        let seqs = |lines: &[Line]| lines.iter().map(|line| line.seq).collect::<Vec<_>>();
        let lines = |limit| wait(store.story_lines("shop", "1", limit)).unwrap();
        assert_eq!(seqs(&lines(10)), [2, 4, 6]);
        assert_eq!(seqs(&lines(2)), [4, 6], "the newest, oldest of them first");
        assert_eq!(wait(store.last_seq_of_project("shop")).unwrap(), 6);
        assert_eq!(wait(store.last_seq_of_project("sho")).unwrap(), 0);
        let all = wait(store.lines(0, 10)).unwrap().lines;
        assert_eq!(seqs(&all), [1, 2, 3, 4, 5, 6]);
        for (line, entry) in all.iter().zip(&entries) {
            let told = Line::of_story(line.seq, entry);
            assert_eq!((&line.fact, line.at, &line.run), (&told.fact, told.at, &told.run));
            assert_eq!(of_stories(&line.fact).as_ref(), Some(&entry.fact));
        }
        let events: Vec<_> = all.iter().map(|line| crate::api::view::event(line).story).collect();
        let told = [Some("shop/"), Some("shop/1"), Some("shop/10"), Some("shop/1"), None];
        assert_eq!(events[..5], told.map(|story| story.map(str::to_owned)));
    }

    #[test]
    fn facts_of_every_kind_are_taken_and_read_again() {
        let scratch = Scratch::new("every");
        let Opened { mut writer, mut stories, .. } = scratch.open().unwrap();
        // The second sample of a story that is added has the id of the first.
        let first = |fact: &F| !matches!(fact, F::Added { done: true, .. });
        for fact in every_fact().into_iter().filter(first) {
            stories.apply(&fact);
            writer.commit_stories(&[entry(fact)]).unwrap();
        }
        assert_eq!(scratch.open().unwrap().stories, stories);
    }

    #[test]
    fn a_stop_of_everything_is_told_from_others_by_the_first_stop() {
        let scratch = Scratch::new("shutdown");
        let Opened { store, mut writer, .. } = scratch.open().unwrap();
        let stop = |run: &str, detail| Entry {
            fact: mind::Fact::Stopping { run: run.into(), stop: mind::Stop::Force },
            detail,
            state: Standing::Stopping,
            at: Time(1),
            notice: None,
            tail: None,
        };
        let entries = [
            admit("a", "a", None),
            admit("b", "b", None),
            admit("c", "c", None),
            stop("a", Detail::Shutdown),
            stop("a", Detail::Nothing),
            stop("b", Detail::Nothing),
            stop("b", Detail::Shutdown),
        ];
        writer.commit(&entries).unwrap();
        let by_shutdown = |run| wait(store.stopped_by_shutdown(run)).unwrap();
        assert!(by_shutdown("a"));
        assert!(!by_shutdown("b") && !by_shutdown("c") && !by_shutdown("d"));
    }

    #[test]
    fn a_run_that_is_spared_stays_and_keeps_no_other_from_going() {
        let scratch = Scratch::new("spare");
        let mut writer = scratch.open().unwrap().writer;
        for run in ["a", "b"] {
            writer.commit(&[admit(run, run, None), dead(run)]).unwrap();
        }
        let keep = Keep { age: Duration::from_millis(10), bytes: u64::MAX };
        let mut retain = |also: &[&str], spare: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            writer.retain(&keep.bounds(100, owned(also), owned(spare))).unwrap()
        };
        assert_eq!(retain(&["a"], &["a"]), ["b"]);
        assert_eq!(retain(&[], &[]), ["a"]);
    }

    /// A number after another, the same in every test run.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            (self.0 >> 33) % most
        }

        fn pick<T: Clone>(&mut self, from: &[T]) -> T {
            from[self.below(from.len() as u64) as usize].clone()
        }
    }

    fn outcome(dice: &mut Dice) -> Outcome {
        dice.pick(&[
            Outcome::Success,
            Outcome::Success,
            Outcome::Success,
            Outcome::Failed { ahead: false, tail: Some("t".into()) },
            Outcome::Limit { ahead: true, tail: None },
            Outcome::RateLimited { until_ms: None },
            Outcome::Stopped,
            Outcome::Drifted,
            Outcome::NeverStarted,
            Outcome::Lost,
        ])
    }

    fn event(dice: &mut Dice, stories: &mind::Stories, now_ms: u64) -> StoryEvent {
        let project = ProjectKey::from("shop");
        // Old ones go, new ones come.
        let id = (now_ms / 100 + dice.below(12)).to_string();
        let story = story(&id);
        let stages: [StageName; 4] = ["do".into(), "look".into(), "end".into(), "off".into()];
        let step = |number| StepId { story: story.clone(), number };
        let known = stories.story(&story).and_then(|known| known.step.as_ref());
        match (dice.below(14), known) {
            (0, _) => {
                let pipeline = pipeline(dice.below(2) == 0);
                StoryEvent::PipelineRead { project, pipeline }
            }
            (1, _) => StoryEvent::MoveRequested { story, to: dice.pick(&stages) },
            (2, _) => StoryEvent::FreezeRequested(story),
            (3, _) => StoryEvent::UnholdRequested(story),
            (4, _) => {
                let how = dice.pick(&[Leave::Archive, Leave::Archive, Leave::Remove]);
                StoryEvent::LeaveRequested { story, how }
            }
            (5, _) => StoryEvent::UnpauseRequested("p".into()),
            (6, _) => {
                let stray = SeenStep { step: step(90), stopping: false };
                StoryEvent::Reconcile(Seen::Steps(vec![stray]))
            }
            (7, _) => {
                let (used, session) = (Used::default(), None);
                let outcome = Outcome::Success;
                StoryEvent::StepEnded { step: step(90), outcome, used, session }
            }
            (_, None) => StoryEvent::AddRequested { story, new: new_in("do") },
            (_, Some(current)) => {
                let (used, session) = (Used { turns: 1, money_micros: 2 }, Some("s".into()));
                let (step, outcome) = (step(current.number), outcome(dice));
                StoryEvent::StepEnded { step, outcome, used, session }
            }
        }
    }

    /// What somebody might have done with some fifty stories, as it is committed.
    fn a_long_life(stories: &mut mind::Stories, seed: u64) -> Vec<StoryEntry> {
        let mut dice = Dice(seed);
        let mut entries = Vec::new();
        let project = ProjectKey::from("shop");
        let mut happens = vec![StoryEvent::PipelineRead { project, pipeline: pipeline(true) }];
        for now_ms in 1..4000 {
            let next = happens.pop().unwrap_or_else(|| event(&mut dice, stories, now_ms));
            let decision = mind::decide_story(stories, &next, now_ms * 20);
            let mind::StoryDecision::Do { facts, .. } = decision else { continue };
            for fact in facts {
                let notice = stories.notice_of(&fact).map(|notice| Named::of_story(&notice));
                stories.apply(&fact);
                entries.push(StoryEntry { notice, at: Time(now_ms), ..entry(fact) });
            }
        }
        entries
    }

    #[test]
    fn what_is_left_of_a_long_life_is_believed_as_all_of_it_was() {
        for seed in 1..4 {
            let scratch = Scratch::new(&format!("life-{seed}"));
            let Opened { store, mut writer, mut stories, .. } = scratch.open().unwrap();
            assert_eq!(writer.project("/a/shop", "", 1).unwrap(), "shop");
            let entries = a_long_life(&mut stories, seed);
            for some in entries.chunks(100) {
                writer.commit_stories(some).unwrap();
            }
            assert_eq!(scratch.open().unwrap().stories, stories);
            let gone = (0..60).filter(|id| stories.gone(&story(&id.to_string())).is_some());
            assert!(gone.count() > 20 && entries.len() > 1000, "it was a long life");
            let keep = Keep { age: Duration::from_millis(10), bytes: u64::MAX };
            writer.retain(&keep.bounds(1_000_000, Vec::new(), Vec::new())).unwrap();
            let left = wait(store.lines(0, usize::MAX >> 1)).unwrap().lines;
            assert!(left.len() < entries.len(), "something went");
            assert_eq!(scratch.open().unwrap().stories, stories, "seed {seed}");
        }
    }

    fn step_ended(id: &str, number: u32, then: Then) -> StoryEntry {
        let (step, used) = (StepId { story: story(id), number }, Used::default());
        entry(F::StepEnded { step, used, session: None, tree: Tree::Ready, then })
    }

    fn step_begun(id: &str, number: u32) -> StoryEntry {
        let step = StepId { story: story(id), number };
        entry(F::StepBegun { step, work: Work::Gate { n: 0 } })
    }

    /// Done in a stage that is worked in since, sent back from there, and archived: not done.
    fn undone(id: &str) -> Vec<StoryEntry> {
        let wait = Wait { since_ms: 1, for_ms: 1, why: WaitFor::Misfire };
        let back = Then::Back { to: "do".into(), why: Why::First, wait };
        vec![
            added(id, None),
            entry(F::Moved { story: story(id), to: "end".into(), done: true }),
            step_begun(id, 1),
            step_ended(id, 1, Then::Same),
            step_begun(id, 2),
            step_ended(id, 2, back),
            entry(F::Leaving { story: story(id), how: Leave::Archive }),
            entry(F::Left(story(id))),
        ]
    }

    #[test]
    fn of_a_gone_story_stays_what_became_of_it() {
        let scratch = Scratch::new("gone");
        let Opened { store, mut writer, mut stories, .. } = scratch.open().unwrap();
        writer.project("/a/shop", "", 1).unwrap();
        let mut entries = vec![pipeline_set(true), pipeline_set(false), pipeline_set(true)];
        entries.extend(undone("1"));
        entries.extend([added("2", None), step_begun("2", 1), step_ended("2", 1, Then::Same)]);
        let stray = StepId { story: story("1"), number: 9 };
        entries.push(entry(F::StrayFound(stray)));
        entries.iter().for_each(|entry| stories.apply(&entry.fact));
        writer.commit_stories(&entries).unwrap();
        let keep = Keep { age: Duration::from_millis(10), bytes: u64::MAX };
        let mut retain = |now| {
            let gone = writer.retain(&keep.bounds(now, Vec::new(), Vec::new())).unwrap();
            assert!(gone.is_empty(), "no run is named");
            wait(store.lines(0, 100)).unwrap()
        };
        assert_eq!(retain(11).lines.len(), entries.len(), "not old enough");
        let reader = Connection::open(scratch.file()).unwrap();
        reader.execute("INSERT INTO consumer VALUES ('me', 6, 95)", []).unwrap();
        let left = retain(100);
        assert_eq!((left.lines.len(), left.removed_through), (14, Some(2)), "somebody has to read");
        reader.execute("DELETE FROM consumer", []).unwrap();
        let left = retain(100);
        let seqs: Vec<u64> = left.lines.iter().map(|line| line.seq).collect();
        assert_eq!(seqs, [1, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(left.removed_through, Some(7));
        assert_eq!(retain(200).lines.len(), seqs.len(), "nothing more goes");
        let again = scratch.open().unwrap().stories;
        assert_eq!(again.gone(&story("1")), Some(Gone::Archived { done: false }));
        assert_eq!(again, stories);
        let words = wait(store.titles("shop")).unwrap();
        assert!(words.contains_key("1"), "its id stays its own");
    }
}
