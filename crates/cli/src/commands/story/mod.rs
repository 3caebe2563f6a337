//! `kennel story`: pieces of work that flow through stages of agents.
//!
//! Owns: the arguments of all its commands and the ones that ask once. What is waited for is in
//! `watch`, what comes from files in `import`, what is said in `words`.

mod board;
mod front_matter;
mod import;
mod rest;
mod watch;
mod words;

use std::fmt::Display;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use kennel_daemon::{Text, Time, new_run_id, wire};

use crate::client::{Client, escaped, segment};
use crate::error::{FAILED, Failure, USAGE};
use crate::output::{Out, line};

/// Work with stories: pieces of work that agents take through the stages of a repository.
///
/// Each story has a branch and a worktree of its own, and goes from stage to stage as the
/// repository's kennel.toml says: an agent works, gates have to pass, and in the end it lands on
/// the base branch. What fails is tried again with what failed in the prompt, and what fails too
/// often waits for you.
#[derive(Debug, Args)]
pub(crate) struct StoryArgs {
    /// A directory in the repository; the current one if not said.
    #[arg(short = 'C', long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Add(AddArgs),
    List(ListArgs),
    /// Show everything about one story: where it is, why it waits, and what happened to it.
    Show(IdArgs),
    Move(MoveArgs),
    Edit(EditArgs),
    /// Have nothing done for a story until it is unblocked: somebody has to look at it.
    ///
    /// An agent that works on it is stopped; its work stays in the worktree.
    Block(IdArgs),
    Unblock(UnblockArgs),
    /// Have nothing done for a story until it is unblocked: not now.
    ///
    /// An agent that works on it is stopped; its work stays in the worktree.
    Freeze(IdArgs),
    /// Put a story away: it is remembered as done or not, and its worktree goes.
    ///
    /// Its run is stopped with proof first, and work that is not on the base is saved under a ref.
    Archive(IdArgs),
    /// Remove a story and its worktree. One that others depend on is not removed.
    ///
    /// Its run is stopped with proof first, and work that is not on the base is saved under a ref.
    Rm(IdArgs),
    Wait(WaitArgs),
    Import(ImportArgs),
}

#[derive(Debug, Args)]
struct IdArgs {
    /// Its id.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
}

/// Add a story, and print its id.
#[derive(Debug, Args)]
struct AddArgs {
    /// What it is, in a line.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    title: String,
    #[command(flatten)]
    text: TextArgs,
    /// The id it is to have; made of the title if not said.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// Where it begins; in the first stage if not said.
    #[arg(long, value_name = "STAGE", value_parser = NonEmptyStringValueParser::new())]
    stage: Option<String>,
    /// Who works on it, in stages that have this agent and while it is free.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    agent: Option<String>,
    /// Stories that have to be done before.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    depends_on: Vec<String>,
    /// The higher, the sooner.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Responses of models that ask for a tool, which all its runs together may use.
    #[arg(long, value_name = "N")]
    max_turns: Option<u64>,
    /// Money that all its runs together may use.
    #[arg(long, value_name = "X", value_parser = dollars)]
    max_budget_usd: Option<f64>,
    /// Retries, of all stages together, before it is blocked.
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
}

#[derive(Debug, Args)]
struct TextArgs {
    /// What its agents are told beside the title.
    #[arg(long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    text: Option<String>,
    /// The same from a file; `-` is the standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// List the stories of the repository.
#[derive(Debug, Args)]
struct ListArgs {
    /// Also those that were archived or removed.
    #[arg(short, long)]
    all: bool,
    /// Go on: draw again what changes, or print a line for each change if this is no terminal.
    #[arg(short, long)]
    watch: bool,
}

/// Move a story to another stage.
///
/// An agent that works on it in the old one is stopped first. Its retries start anew.
#[derive(Debug, Args)]
struct MoveArgs {
    /// Its id.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
    /// The stage.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    stage: String,
}

/// Change a story. What is not said stays; agents that work on it now are not told.
#[derive(Debug, Args)]
struct EditArgs {
    /// Its id.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
    /// Its title.
    #[arg(long)]
    title: Option<String>,
    #[command(flatten)]
    text: TextArgs,
    /// Who works on it; an empty name is nobody in particular.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// All stories that have to be done before; empty for none.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    depends_on: Option<Vec<String>>,
    /// The higher, the sooner.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Responses of models that ask for a tool, which all its runs together may use, or `none`.
    #[arg(long, value_name = "N")]
    max_turns: Option<Bound<u64>>,
    /// Money that all its runs together may use, or `none`.
    #[arg(long, value_name = "X")]
    max_budget_usd: Option<Bound<Dollars>>,
    /// Retries, of all stages together, or `none`.
    #[arg(long, value_name = "N")]
    max_retries: Option<Bound<u32>>,
}

/// Let a story go on that is blocked or frozen, or have a paused provider asked again.
///
/// Its retries start anew.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct UnblockArgs {
    /// Its id.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// Instead: who took no more for a while, as `kennel story list` names it.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    provider: Option<String>,
}

/// Wait until stories are done, and print each change on the way.
///
/// Exits with 0 once all of them are done or gone, and with 1 as soon as none of them can go on by
/// itself any more and some are not done: those are named with what they wait for.
#[derive(Debug, Args)]
struct WaitArgs {
    /// Which; all of the repository if none is named.
    #[arg(value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    ids: Vec<String>,
    /// Give up after this long, with exit code 124.
    #[arg(long, value_name = "D", value_parser = crate::duration::parse)]
    timeout: Option<Duration>,
}

/// Add stories from Markdown files, or from a board of vibe-kanban.
///
/// A file may begin with front matter between lines of `---`: id, title, stage, agent, depends_on,
/// priority, max_turns, max_budget_usd, max_retries. Without a title it is the first heading, or
/// the file's name; without an id it is made of the file's name. The rest is the story's text.
///
/// Stories that are there already stay as they are. Of vibe-kanban's export, which is a ZIP, unpack
/// it and name issues.csv.
#[derive(Debug, Args)]
struct ImportArgs {
    /// Files, or directories with `.md` files or an issues.csv.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Say what would be added, and add nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Give stories that are there already the title and text of their file.
    #[arg(long)]
    update: bool,
    /// Where stories begin whose file says nothing of it; in the first stage if not said.
    #[arg(long, value_name = "STAGE", value_parser = NonEmptyStringValueParser::new())]
    stage: Option<String>,
    /// Of an export with several projects: which.
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
}

/// A bound, or none.
#[derive(Clone, Copy, Debug)]
struct Bound<T>(Option<T>);

impl<T: FromStr<Err: Display>> FromStr for Bound<T> {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        if word == "none" {
            return Ok(Self(None));
        }
        word.parse().map(|bound| Self(Some(bound))).map_err(|e: T::Err| format!("{e}, or `none`"))
    }
}

#[derive(Clone, Copy, Debug)]
struct Dollars(f64);

impl FromStr for Dollars {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        dollars(word).map(Self)
    }
}

fn dollars(word: &str) -> Result<f64, String> {
    let amount = word.parse::<f64>().ok().filter(|amount| amount.is_finite() && *amount >= 0.0);
    amount.ok_or_else(|| "use an amount such as 2.50".to_owned())
}

pub(crate) fn story(args: StoryArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let place = Place { client, dir: directory(args.dir)? };
    match args.what {
        What::Add(args) => add(&args, &place, out),
        What::List(ListArgs { all, watch: true }) => watch::watch(all, &place, out),
        What::List(ListArgs { all, watch: false }) => list(all, &place, out),
        What::Show(IdArgs { id }) => {
            let story = place.story(&id)?;
            out.answer(&story, || words::description(&story, Time::now()))?;
            Ok(0)
        }
        What::Move(MoveArgs { id, stage }) => {
            let body = wire::StoryMove { dir: place.text(), stage };
            let story = client.post(&place.path(&id, "/move"), &body)?;
            came_of_it(&story, out)
        }
        What::Edit(args) => edit(&args, &place, out),
        What::Block(IdArgs { id }) => came_of_it(&place.act(&id, "/block")?, out),
        What::Unblock(args) => unblock(&args, &place, out),
        What::Freeze(IdArgs { id }) => came_of_it(&place.act(&id, "/freeze")?, out),
        What::Archive(IdArgs { id }) => came_of_it(&place.act(&id, "/archive")?, out),
        What::Rm(IdArgs { id }) => {
            let path = format!("{}?{}", place.path(&id, ""), place.query());
            came_of_it(&client.delete_for(&path)?, out)
        }
        What::Wait(args) => watch::wait(&args, &place, out),
        What::Import(args) => import::import(&args, &place, out),
    }
}

/// Where stories are asked about: the daemon, and a directory of their repository.
struct Place<'a> {
    client: &'a Client,
    dir: PathBuf,
}

impl Place<'_> {
    fn text(&self) -> Text {
        Text::from(self.dir.as_os_str())
    }

    fn query(&self) -> String {
        format!("dir={}", escaped(self.dir.as_os_str().as_bytes()))
    }

    fn path(&self, id: &str, action: &str) -> String {
        format!("/v1/stories/{}{action}", segment(id))
    }

    fn story(&self, id: &str) -> Result<wire::Story, Failure> {
        self.client.get(&format!("{}?{}", self.path(id, ""), self.query()))
    }

    fn list(&self, all: bool) -> Result<wire::Stories, Failure> {
        self.client.get(&format!("/v1/stories?{}&all={all}", self.query()))
    }

    /// The same, once something is newer than this or the time is over.
    fn list_after(&self, all: bool, seq: u64, wait_ms: u64) -> Result<wire::Stories, Failure> {
        let query = self.query();
        self.client.get(&format!("/v1/stories?{query}&all={all}&after={seq}&wait_ms={wait_ms}"))
    }

    fn add(&self, request: &wire::StoryRequest) -> Result<wire::Story, Failure> {
        self.client.post("/v1/stories", request)
    }

    fn edit(&self, id: &str, edit: &wire::StoryEdit) -> Result<wire::Story, Failure> {
        self.client.patch(&self.path(id, ""), edit)
    }

    fn act(&self, id: &str, action: &str) -> Result<wire::Story, Failure> {
        self.client.post(&self.path(id, action), &wire::StoryPlace { dir: self.text() })
    }
}

fn directory(dir: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let failed = |e| Failure::new(FAILED, "bad_directory", format!("failed to find DIR: {e}"));
    match dir {
        Some(dir) => std::path::absolute(dir).map_err(failed),
        None => std::env::current_dir().map_err(failed),
    }
}

/// What makes a request that is sent twice one story.
fn new_key() -> Result<Option<String>, Failure> {
    new_run_id().map(Some).map_err(|e| Failure::new(FAILED, "internal", e.to_string()))
}

fn add(args: &AddArgs, place: &Place<'_>, out: &Out) -> Result<u8, Failure> {
    let request = wire::StoryRequest {
        dir: place.text(),
        id: args.id.clone(),
        title: args.title.clone(),
        text: args.text.read()?.unwrap_or_default(),
        stage: args.stage.clone(),
        agent: args.agent.clone(),
        depends_on: named(&args.depends_on),
        priority: args.priority,
        ceilings: wire::StoryCeilings {
            max_turns: args.max_turns,
            max_budget_usd: args.max_budget_usd,
            max_retries: args.max_retries,
        },
        key: new_key()?,
    };
    let story = place.add(&request)?;
    out.answer(&story, || story.id.clone())?;
    Ok(0)
}

impl TextArgs {
    fn read(&self) -> Result<Option<String>, Failure> {
        let Some(file) = &self.file else { return Ok(self.text.clone()) };
        let mut text = String::new();
        let (name, read) = if file.as_os_str() == "-" {
            ("the standard input".into(), std::io::stdin().read_to_string(&mut text).map(|_| text))
        } else {
            (file.display().to_string(), std::fs::read_to_string(file))
        };
        let failed = |e| Failure::new(FAILED, "text", format!("failed to read {name}: {e}"));
        read.map(Some).map_err(failed)
    }
}

/// Names without the empty ones that stand for none.
fn named(names: &[String]) -> Vec<String> {
    let names = names.iter().map(|name| name.trim());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn list(all: bool, place: &Place<'_>, out: &Out) -> Result<u8, Failure> {
    let stories = place.list(all)?;
    if out.json {
        stories.stories.iter().try_for_each(|story| out.answer(story, String::new))?;
    } else {
        line(&words::overview(&stories, Time::now(), Out::style()))?;
    }
    Ok(0)
}

fn edit(args: &EditArgs, place: &Place<'_>, out: &Out) -> Result<u8, Failure> {
    let EditArgs { id, title, text, agent, depends_on, priority, .. } = args;
    let edit = wire::StoryEdit {
        dir: place.text(),
        title: title.clone(),
        text: text.read()?,
        agent: agent.clone(),
        depends_on: depends_on.as_deref().map(named),
        priority: *priority,
        ceilings: ceilings(args, place)?,
    };
    let wire::StoryEdit { title, text, agent, depends_on, priority, ceilings, .. } = &edit;
    let nothing = title.is_none() && text.is_none() && agent.is_none() && depends_on.is_none();
    if nothing && priority.is_none() && ceilings.is_none() {
        let message = "say what is to be different: --title, --text, --agent or another";
        return Err(Failure::new(USAGE, "usage", message));
    }
    let story = place.edit(id, &edit)?;
    out.answer(&story, || format!("{}: changed", story.id))?;
    Ok(0)
}

/// All ceilings with those that are to be different; none if all stay.
fn ceilings(args: &EditArgs, place: &Place<'_>) -> Result<Option<wire::StoryCeilings>, Failure> {
    let EditArgs { max_turns, max_budget_usd, max_retries, .. } = args;
    if max_turns.is_none() && max_budget_usd.is_none() && max_retries.is_none() {
        return Ok(None);
    }
    let mut ceilings = place.story(&args.id)?.ceilings;
    if let Some(Bound(turns)) = max_turns {
        ceilings.max_turns = *turns;
    }
    if let Some(Bound(budget)) = max_budget_usd {
        ceilings.max_budget_usd = budget.map(|Dollars(amount)| amount);
    }
    if let Some(Bound(retries)) = max_retries {
        ceilings.max_retries = *retries;
    }
    Ok(Some(ceilings))
}

fn unblock(args: &UnblockArgs, place: &Place<'_>, out: &Out) -> Result<u8, Failure> {
    if let Some(provider) = &args.provider {
        let request = wire::UnpauseRequest { provider: provider.clone() };
        place.client.tell("/v1/providers/unpause", &request)?;
        out.answer(&request, || format!("{provider}: is asked again"))?;
        return Ok(0);
    }
    let id = args.id.as_deref().unwrap_or_default();
    came_of_it(&place.act(id, "/unblock")?, out)
}

fn came_of_it(story: &wire::Story, out: &Out) -> Result<u8, Failure> {
    out.answer(story, || words::came_of_it(story))?;
    Ok(0)
}
