//! `kennel story import`: stories from files. Owns: what a file says, the order in which stories
//! are added, and that nothing is added while anything is wrong with any of the files.
//!
//! ```text
//! files --read--> Wanted, or every problem with its line --order--> each behind those it needs
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use kennel_daemon::config::settings::repository_file;
use kennel_daemon::config::trust::read_file;
use kennel_daemon::config::{self, Problem, StageKind, nearest};
use kennel_daemon::wire;
use serde::Serialize;

use super::front_matter::{self, Entry, Fault, Value};
use super::rest::is_gone;
use super::{ImportArgs, Place, board, dollars, new_key};
use crate::error::{Failure, REFUSED};
use crate::output::Out;
use crate::render::visible;

/// The largest file that is read: what one agent is told is far less.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The largest board: some ten thousand issues with long descriptions.
const MAX_BOARD_BYTES: u64 = 64 << 20;
/// The longest id there may be, as the daemon has it: ids are parts of names of files and branches.
const MAX_ID: usize = 36;
/// What front matter may say.
const KEYS: [&str; 9] = [
    "id",
    "title",
    "stage",
    "agent",
    "depends_on",
    "priority",
    "max_turns",
    "max_budget_usd",
    "max_retries",
];

/// A story as a file wants it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wanted {
    /// Where it stands.
    pub(super) file: String,
    pub(super) id: String,
    pub(super) title: String,
    pub(super) text: String,
    pub(super) stage: Option<String>,
    pub(super) agent: Option<String>,
    pub(super) depends_on: Vec<String>,
    pub(super) priority: i32,
    pub(super) ceilings: wire::StoryCeilings,
}

/// What became of one story.
#[derive(Serialize)]
struct Imported<'a> {
    id: &'a str,
    file: &'a str,
    title: &'a str,
    outcome: Outcome,
    /// Where it is, or would be if that was said.
    stage: Option<&'a str>,
    /// Why it was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Added,
    Updated,
    Unchanged,
    AlreadyThere,
    WouldAdd,
    WouldUpdate,
    Skipped,
}

pub(super) fn import(args: &ImportArgs, place: &Place<'_>, out: &Out) -> Result<u8, Failure> {
    let known = place.list(true)?;
    let known: BTreeMap<&str, &wire::Story> =
        known.stories.iter().map(|story| (story.id.as_str(), story)).collect();
    let mut read = Read::default();
    for path in &args.paths {
        read.path(path, args, place);
    }
    let Read { wanted, mut problems, skipped } = read;
    problems.extend(twice(&wanted));
    let (ordered, cycle) = in_order(wanted);
    problems.extend(cycle);
    problems.extend(unknown_dependencies(&ordered, &known));
    if !problems.is_empty() {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let message = format!("nothing was imported:\n  {}", lines.join("\n  "));
        return Err(Failure::new(REFUSED, "import_invalid", message));
    }
    for board::Skipped { file, id, why } in &skipped {
        let (stage, title, why) = (None, "", Some(why.as_str()));
        tell(&Imported { id, file, title, outcome: Outcome::Skipped, stage, why }, out)?;
    }
    for wanted in &ordered {
        let old = known.get(wanted.id.as_str()).copied();
        let failed = |failure| about(failure, wanted);
        let (outcome, stage) = match old {
            Some(old) if args.update && !is_gone(old) => {
                (update(args, wanted, place).map_err(failed)?, Some(old.stage.clone()))
            }
            Some(old) => (Outcome::AlreadyThere, Some(old.stage.clone())),
            None if args.dry_run => (Outcome::WouldAdd, wanted.stage.clone()),
            None => {
                let added = place.add(&request(wanted, place)?).map_err(failed)?;
                (Outcome::Added, Some(added.stage))
            }
        };
        let (stage, Wanted { id, file, title, .. }) = (stage.as_deref(), wanted);
        tell(&Imported { id, file, title, outcome, stage, why: None }, out)?;
    }
    Ok(0)
}

fn tell(imported: &Imported<'_>, out: &Out) -> Result<(), Failure> {
    out.answer(imported, || {
        let Imported { id, file, title, outcome, stage, why } = *imported;
        let at = stage.unwrap_or("the first stage");
        visible(&match outcome {
            Outcome::Added => format!("{id}: added to {at}: {title}"),
            Outcome::WouldAdd => format!("{id}: would be added to {at}: {title}"),
            Outcome::Updated => format!("{id}: has the title and text of {file}"),
            Outcome::WouldUpdate => format!("{id}: would get the title and text of {file}"),
            Outcome::Unchanged => format!("{id}: is as {file} says"),
            Outcome::AlreadyThere => format!("{id}: already there, in {at}"),
            Outcome::Skipped => format!("{id}: left out: {}", why.unwrap_or_default()),
        })
    })
}

/// Gives a story that is there what its file says.
fn update(args: &ImportArgs, wanted: &Wanted, place: &Place<'_>) -> Result<Outcome, Failure> {
    let old = place.story(&wanted.id)?;
    if old.title == wanted.title && old.text.unwrap_or_default() == wanted.text {
        return Ok(Outcome::Unchanged);
    }
    if args.dry_run {
        return Ok(Outcome::WouldUpdate);
    }
    let (title, text) = (Some(wanted.title.clone()), Some(wanted.text.clone()));
    let edit = wire::StoryEdit { dir: place.text(), title, text, ..wire::StoryEdit::default() };
    place.edit(&wanted.id, &edit).map(|_| Outcome::Updated)
}

fn request(wanted: &Wanted, place: &Place<'_>) -> Result<wire::StoryRequest, Failure> {
    let wanted = wanted.clone();
    Ok(wire::StoryRequest {
        dir: place.text(),
        id: Some(wanted.id),
        title: wanted.title,
        text: wanted.text,
        stage: wanted.stage,
        agent: wanted.agent,
        depends_on: wanted.depends_on,
        priority: wanted.priority,
        ceilings: wanted.ceilings,
        key: new_key()?,
    })
}

/// Names the file with what the daemon says of its story.
fn about(mut failure: Failure, wanted: &Wanted) -> Failure {
    if let Failure::Told { error, .. } = &mut failure {
        error.message = format!("{}: story {}: {}", wanted.file, wanted.id, error.message);
    }
    failure
}

/// What was read of all files.
#[derive(Default)]
struct Read {
    wanted: Vec<Wanted>,
    problems: Vec<Problem>,
    skipped: Vec<board::Skipped>,
}

impl Read {
    fn path(&mut self, path: &Path, args: &ImportArgs, place: &Place<'_>) {
        if !path.is_dir() {
            return self.file(path, args, place);
        }
        match files_in(path) {
            Ok(files) if files.is_empty() => {
                self.wrong(path, None, "there is no .md file and no issues.csv in it");
            }
            Ok(files) => files.iter().for_each(|file| self.file(file, args, place)),
            Err(e) => self.wrong(path, None, format!("failed to read it: {e}")),
        }
    }

    fn file(&mut self, path: &Path, args: &ImportArgs, place: &Place<'_>) {
        let is = |end: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(end));
        if is("zip") {
            return self.wrong(path, None, "unpack it, and import its issues.csv");
        }
        let max = if is("csv") { MAX_BOARD_BYTES } else { MAX_FILE_BYTES };
        let text = match read_text(path, max) {
            Ok(text) => text,
            Err(why) => return self.wrong(path, None, why),
        };
        if is("csv") {
            return self.board(path, &text, args, place);
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        match markdown(&path.display().to_string(), &stem, &text) {
            Ok(mut wanted) => {
                wanted.stage = wanted.stage.or_else(|| args.stage.clone());
                self.wanted.push(wanted);
            }
            Err(problems) => self.problems.extend(problems),
        }
    }

    fn board(&mut self, path: &Path, text: &str, args: &ImportArgs, place: &Place<'_>) {
        let stages = match stages(args, place) {
            Ok(stages) => stages,
            Err(why) => return self.wrong(path, None, why),
        };
        let file = path.display().to_string();
        match board::stories(&file, text, args.project.as_deref(), &stages) {
            Ok(found) => {
                self.wanted.extend(found.wanted);
                self.skipped.extend(found.skipped);
            }
            Err(problem) => self.problems.push(problem),
        }
    }

    fn wrong(&mut self, path: &Path, line: Option<usize>, message: impl Into<String>) {
        let (file, message) = (path.display().to_string(), message.into());
        self.problems.push(Problem { file, line, key: None, message });
    }
}

/// Where the repository's file, as it is now, has agents work and stories end.
fn stages(args: &ImportArgs, place: &Place<'_>) -> Result<board::Stages, String> {
    let own = place.client.home.config_file();
    let own_bytes = read_file(&own).ok().flatten().unwrap_or_default();
    let own = config::user(&own.display().to_string(), &own_bytes).unwrap_or_default();
    let others: Vec<String> = own.agents.into_iter().map(|agent| agent.name).collect();
    let file = repository_file(&place.dir).ok_or("the repository has no kennel.toml")?;
    let shown = file.display().to_string();
    let bytes = read_file(&file).map_err(|e| format!("failed to read {shown}: {e}"))?;
    let repository = config::repository(&shown, &bytes.unwrap_or_default(), &others);
    let repository = repository.map_err(|_| format!("{shown} is wrong: `kennel config check`"))?;
    let first = |wanted: fn(&config::Stage) -> bool| {
        repository.stages.iter().find(|stage| wanted(stage)).map(|stage| stage.name.clone())
    };
    Ok(board::Stages {
        first: args.stage.clone(),
        working: first(|stage| !stage.agents.is_empty()),
        done: first(|stage| matches!(stage.kind, StageKind::Terminal { success: true })),
    })
}

/// What a directory has that can be imported, by name. A README is about the others.
fn files_in(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let taken = (name.ends_with(".md") && name != "readme.md") || name == "issues.csv";
        if taken && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_text(path: &Path, max: u64) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("failed to read it: {e}");
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > max {
        return Err(format!("it has {length} bytes, more than the {max} that are read"));
    }
    fs::read_to_string(path).map_err(failed)
}

/// What a Markdown file says, or everything that is wrong with it.
fn markdown(file: &str, stem: &str, text: &str) -> Result<Wanted, Vec<Problem>> {
    let problem = |line: usize, key: Option<&str>, message: String| Problem {
        file: file.to_owned(),
        line: Some(line),
        key: key.map(str::to_owned),
        message,
    };
    let parts = front_matter::split(text).map_err(|faults| {
        let faults = faults.into_iter();
        faults.map(|Fault { line, message }| problem(line, None, message)).collect::<Vec<_>>()
    })?;
    let mut wanted = Wanted { file: file.to_owned(), ..Wanted::default() };
    let mut problems = Vec::new();
    for entry in &parts.entries {
        if let Err(message) = take(&mut wanted, entry) {
            problems.push(problem(entry.line, Some(&entry.key), message));
        }
    }
    let (heading, rest) = heading(parts.body);
    wanted.text = match (wanted.title.is_empty(), heading) {
        (true, Some(heading)) => {
            wanted.title = heading.to_owned();
            rest.trim().to_owned()
        }
        (true, None) => {
            wanted.title = stem.replace(['-', '_'], " ").trim().to_owned();
            parts.body.trim().to_owned()
        }
        (false, _) => parts.body.trim().to_owned(),
    };
    if wanted.id.is_empty() && problems.is_empty() {
        wanted.id = id_of(stem);
        if wanted.id.is_empty() {
            let message = "no id can be made of the file's name: say one in front matter".into();
            problems.push(problem(1, Some("id"), message));
        }
    }
    if problems.is_empty() { Ok(wanted) } else { Err(problems) }
}

fn take(wanted: &mut Wanted, entry: &Entry) -> Result<(), String> {
    let Entry { key, value, .. } = entry;
    let text = || match value {
        Value::Empty => Ok(None),
        Value::Scalar(text) => Ok(Some(text.trim().to_owned())),
        Value::List(_) => Err("write one value, not a list".to_owned()),
    };
    fn number<T: std::str::FromStr>(text: Option<String>) -> Result<Option<T>, String> {
        let read = |text: String| text.parse().map_err(|_| format!("{text:?} is no such number"));
        text.map(read).transpose()
    }
    match key.as_str() {
        "id" => {
            let id = text()?.unwrap_or_default();
            if !id.is_empty() && !is_id(&id) {
                return Err(format!(
                    "{id:?} is no id: use 1 to {MAX_ID} small letters, digits and single `-` \
                     between them"
                ));
            }
            wanted.id = id;
        }
        "title" => wanted.title = text()?.unwrap_or_default(),
        "stage" => wanted.stage = text()?,
        "agent" => wanted.agent = text()?,
        "depends_on" => {
            wanted.depends_on = match value {
                Value::Empty => Vec::new(),
                Value::Scalar(text) => {
                    super::named(&text.split(',').map(str::to_owned).collect::<Vec<_>>())
                }
                Value::List(items) => super::named(items),
            }
        }
        "priority" => wanted.priority = number(text()?)?.unwrap_or(0),
        "max_turns" => wanted.ceilings.max_turns = number(text()?)?,
        "max_budget_usd" => {
            wanted.ceilings.max_budget_usd = text()?.map(|text| dollars(&text)).transpose()?;
        }
        "max_retries" => wanted.ceilings.max_retries = number(text()?)?,
        other => {
            return Err(match nearest(other, &KEYS) {
                Some(meant) => format!("there is no such key; {meant} was probably meant"),
                None => format!("there is no such key; there are {}", KEYS.join(", ")),
            });
        }
    }
    Ok(())
}

/// The first heading of a text, and the text without it if nothing comes before.
fn heading(body: &str) -> (Option<&str>, &str) {
    let mut fenced = false;
    let mut at = 0;
    for line in body.split_inclusive('\n') {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.strip_prefix("# ").map(|title| title.trim().trim_end_matches('#').trim());
        if let Some(title) = title.filter(|title| !fenced && !title.is_empty()) {
            let first = body[..at].trim().is_empty();
            return (Some(title), if first { &body[at + line.len()..] } else { body });
        }
        at += line.len();
    }
    (None, body)
}

/// An id made of a name: its letters and digits, with `-` for all else. Empty if it has none.
pub(super) fn id_of(name: &str) -> String {
    let mut id = String::new();
    for c in name.chars() {
        if c.is_ascii_alphanumeric() {
            id.push(c.to_ascii_lowercase());
        } else if !id.is_empty() && !id.ends_with('-') {
            id.push('-');
        }
    }
    id.truncate(MAX_ID);
    id.trim_end_matches('-').to_owned()
}

fn is_id(id: &str) -> bool {
    id_of(id) == id && !id.is_empty()
}

/// Ids that two stories want.
fn twice(wanted: &[Wanted]) -> Vec<Problem> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut problems = Vec::new();
    for Wanted { id, file, .. } in wanted {
        if let Some(first) = seen.insert(id, file) {
            problems.push(Problem {
                file: file.clone(),
                line: None,
                key: Some("id".to_owned()),
                message: format!("{id} is the id of {first} too"),
            });
        }
    }
    problems
}

/// Each behind those it depends on, and otherwise as they came. Those that depend on each other in
/// a circle are named and come last.
fn in_order(wanted: Vec<Wanted>) -> (Vec<Wanted>, Option<Problem>) {
    let mut left: VecDeque<Wanted> = wanted.into();
    let mut ordered = Vec::with_capacity(left.len());
    let mut open: BTreeSet<String> = left.iter().map(|wanted| wanted.id.clone()).collect();
    // Each round but the last takes at least one.
    loop {
        let mut held = VecDeque::new();
        let before = left.len();
        for wanted in left {
            if wanted.depends_on.iter().any(|id| open.contains(id)) {
                held.push_back(wanted);
            } else {
                open.remove(&wanted.id);
                ordered.push(wanted);
            }
        }
        if held.len() == before {
            let cycle = cycle(&held, &open);
            ordered.extend(held);
            return (ordered, cycle);
        }
        left = held;
    }
}

/// One circle among stories of which each depends on another of them.
fn cycle(held: &VecDeque<Wanted>, open: &BTreeSet<String>) -> Option<Problem> {
    let by_id: BTreeMap<&str, &Wanted> = held.iter().map(|w| (w.id.as_str(), w)).collect();
    let mut way: Vec<&str> = Vec::new();
    let mut at = *held.front().map(|wanted| &by_id[wanted.id.as_str()])?;
    loop {
        if let Some(begin) = way.iter().position(|id| *id == at.id) {
            let circle = [&way[begin..], &[at.id.as_str()]].concat().join(" -> ");
            return Some(Problem {
                file: at.file.clone(),
                line: None,
                key: Some("depends_on".to_owned()),
                message: format!("these wait for each other: {circle}"),
            });
        }
        way.push(&at.id);
        let next = at.depends_on.iter().find(|id| open.contains(*id))?;
        at = by_id.get(next.as_str())?;
    }
}

/// Dependencies that are in no file and that the daemon does not know either.
fn unknown_dependencies(wanted: &[Wanted], known: &BTreeMap<&str, &wire::Story>) -> Vec<Problem> {
    let ids: Vec<&str> =
        wanted.iter().map(|w| w.id.as_str()).chain(known.keys().copied()).collect();
    let mut problems = Vec::new();
    for Wanted { file, depends_on, .. } in wanted {
        for id in depends_on.iter().filter(|id| !ids.contains(&id.as_str())) {
            let message = match nearest(id, &ids) {
                Some(meant) => format!("there is no story {id}; {meant} was probably meant"),
                None => format!("there is no story {id}"),
            };
            let key = Some("depends_on".to_owned());
            problems.push(Problem { file: file.clone(), line: None, key, message });
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Wanted {
        markdown("s/01-log_in.md", "01-log_in", text).expect("it reads")
    }

    fn wrong(text: &str) -> Vec<String> {
        let problems = markdown("a.md", "a", text).expect_err("it is wrong");
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_without_front_matter_is_a_story_by_its_name_and_heading() {
        for (text, title, body) in [
            ("Do it.\n", "01 log in", "Do it."),
            ("\n# Log in #\n\nWith a password.\n", "Log in", "With a password."),
            ("First.\n\n# Log in\n", "Log in", "First.\n\n# Log in"),
            ("```\n# no\n```\n# Yes\n", "Yes", "```\n# no\n```\n# Yes"),
            ("", "01 log in", ""),
        ] {
            let wanted = read(text);
            assert_eq!((wanted.title.as_str(), wanted.text.as_str()), (title, body), "{text:?}");
            assert_eq!(wanted.id, "01-log-in");
        }
    }

    #[test]
    fn front_matter_says_all_there_is_to_a_story() {
        let wanted = read(
            "---\nid: login\ntitle: 'Log in'\nstage: current\nagent: coder\n\
             depends_on: users, store\npriority: -2\nmax_turns: 40\nmax_budget_usd: 2.50\n\
             max_retries: 1\n---\n# Log in\nDo.\n",
        );
        let expected = Wanted {
            file: "s/01-log_in.md".to_owned(),
            id: "login".to_owned(),
            title: "Log in".to_owned(),
            text: "# Log in\nDo.".to_owned(),
            stage: Some("current".to_owned()),
            agent: Some("coder".to_owned()),
            depends_on: vec!["users".to_owned(), "store".to_owned()],
            priority: -2,
            ceilings: wire::StoryCeilings {
                max_turns: Some(40),
                max_budget_usd: Some(2.5),
                max_retries: Some(1),
            },
        };
        assert_eq!(wanted, expected);
        assert_eq!(read("---\ndepends_on:\n  - a\n  - b\n---\n").depends_on, ["a", "b"]);
    }

    #[test]
    fn everything_wrong_with_a_file_is_named_with_its_line() {
        assert_eq!(
            wrong("---\ntitel: x\npriority: high\nid: Log In\nstage: [a]\n---\n"),
            [
                "a.md:2: titel: there is no such key; title was probably meant",
                "a.md:3: priority: \"high\" is no such number",
                "a.md:4: id: \"Log In\" is no id: use 1 to 36 small letters, digits and single `-` \
                 between them",
                "a.md:5: stage: write one value, not a list",
            ]
        );
        assert!(wrong("---\ncolour: red\n---\n")[0].contains("there are id, title"));
        assert_eq!(wrong("---\nx\n---\n"), ["a.md:2: write `key: value`"]);
        assert!(markdown("ä.md", "ä", "").is_err());
    }

    #[test]
    fn ids_are_made_of_what_a_name_has() {
        for (name, id) in [
            ("login", "login"),
            ("DOM-12", "dom-12"),
            ("01 Log_in!", "01-log-in"),
            ("--a--b--", "a-b"),
            ("öäü", ""),
            ("a-very-long-name-that-goes-on-and-on-x", "a-very-long-name-that-goes-on-and-on"),
        ] {
            assert_eq!(id_of(name), id, "{name}");
        }
        assert!(is_id("a-1") && !is_id("a--1") && !is_id("-a") && !is_id("A") && !is_id(""));
    }

    fn wants(id: &str, others: &[&str]) -> Wanted {
        let depends_on = others.iter().map(|other| (*other).to_owned()).collect();
        let file = format!("{id}.md");
        Wanted { id: id.to_owned(), file, depends_on, ..Wanted::default() }
    }

    fn ids(wanted: &[Wanted]) -> Vec<&str> {
        wanted.iter().map(|wanted| wanted.id.as_str()).collect()
    }

    #[test]
    fn stories_come_behind_what_they_depend_on_and_circles_are_named() {
        let (ordered, cycle) = in_order(vec![
            wants("d", &["c", "there"]),
            wants("a", &[]),
            wants("c", &["a", "b"]),
            wants("b", &["a"]),
        ]);
        assert_eq!((ids(&ordered), cycle), (vec!["a", "b", "c", "d"], None));
        let (ordered, cycle) = in_order(vec![
            wants("z", &["a"]),
            wants("a", &["b"]),
            wants("b", &["c"]),
            wants("c", &["a"]),
            wants("free", &[]),
        ]);
        assert_eq!(ids(&ordered), ["free", "z", "a", "b", "c"]);
        let message = cycle.expect("there is one").to_string();
        assert_eq!(message, "a.md: depends_on: these wait for each other: a -> b -> c -> a");
        let (_, own) = in_order(vec![wants("a", &["a"])]);
        assert!(own.expect("it waits for itself").message.ends_with("a -> a"));
    }

    #[test]
    fn what_is_there_twice_or_not_at_all_is_named() {
        let mut again = wants("a", &[]);
        again.file = "other.md".to_owned();
        let all = [wants("a", &["logn"]), again, wants("login", &[])];
        assert_eq!(twice(&all)[0].to_string(), "other.md: id: a is the id of a.md too");
        let unknown = unknown_dependencies(&all, &BTreeMap::new());
        assert_eq!(
            unknown[0].to_string(),
            "a.md: depends_on: there is no story logn; login was probably meant"
        );
        assert_eq!(unknown.len(), 1);
    }
}
