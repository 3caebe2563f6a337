//! `kennel attach`: our terminal becomes a run's, until we detach or it ends.
//!
//! Owns: what a lost connection means: the daemon is started again and the screen comes again; and
//! how it all ends. The run never notices who looks on. What happens meanwhile is `viewer.rs`'s.

use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kennel_daemon::wire;

use super::logs::{Follower, Until, follow};
use super::wait::until_over;
use crate::client::{Client, segment};
use crate::error::{Failure, NO_DAEMON, RUN_FAILED};
use crate::keys::DetachKey;
use crate::output::{Out, say};
use crate::render;
use crate::socket::{Gone, Link, NotOpened};
use crate::terminal::{self, DETACHED};
use crate::viewer::{How, Left, Viewer};

/// How often in a row a connection may be lost before it has held for `SETTLED`: more than a person
/// kills a daemon, fewer than one that always dies would keep us busy with.
const MAX_LOSSES: u32 = 20;
/// How long it may take to have a connection again: a daemon's start, and once more.
const RECONNECT_BOUND: Duration = Duration::from_secs(20);
/// A connection that held this long was a good one.
const SETTLED: Duration = Duration::from_secs(10);
/// Pause before a connection is made again: time for a daemon to go.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How long a run that takes nobody in may take to be known as over.
const OVER_BOUND: Duration = Duration::from_secs(5);

/// Attach this terminal to a run that has one, and see and type as if it ran here.
///
/// Ctrl-] detaches and leaves the run alone; pressed twice it is sent to the run. One terminal at a
/// time can write, and its size is the run's; others look. When the run ends, we exit as it did.
///
/// A run without a terminal shows what it writes from now on, and gets what is typed as lines if it
/// was started with --stdin. If our input is no terminal, it is passed on as it is; its end
/// detaches, or closes the input of a run without a terminal.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// A run, the beginning of its id, or a slot.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    /// Only look.
    #[arg(long)]
    read_only: bool,
    /// The key that detaches: `ctrl-` and a letter, or one of ] \ ^ _.
    #[arg(long, value_name = "KEY", default_value = "ctrl-]", value_parser = DetachKey::parse)]
    detach_key: DetachKey,
}

pub(crate) fn attach(args: AttachArgs, client: &Client) -> Result<u8, Failure> {
    let run: Result<wire::Run, _> = client.get(&format!("/v1/runs/{}", segment(&args.run)));
    let how = How { read_only: args.read_only, key: args.detach_key, begun_here: false };
    stay(client, &run.map_err(Failure::of_run)?, &how).map_err(Failure::of_run)
}

/// Attaches to a run that was just started from here.
pub(crate) fn attach_to(client: &Client, run: &wire::Run) -> Result<u8, Failure> {
    let key = DetachKey::parse("ctrl-]");
    let key = key.map_err(|e| Failure::new(RUN_FAILED, "internal", e))?;
    stay(client, run, &How { read_only: false, key, begun_here: true })
}

/// The size a run should have that is attached to from here.
pub(crate) fn own_size() -> Option<wire::Size> {
    terminal::size()
}

fn stay(client: &Client, run: &wire::Run, how: &How) -> Result<u8, Failure> {
    let mut link = match Link::open(client, &path(run, how.read_only)) {
        Ok(link) => link,
        Err(NotOpened::Refused(failure)) if says_over(&failure) => {
            return already_over(client, run, how, failure);
        }
        Err(NotOpened::Refused(failure) | NotOpened::Gone(failure)) => return Err(failure),
    };
    let mut viewer = Viewer::new(client, run, how)?;
    let mut losses = 0;
    loop {
        let since = Instant::now();
        match viewer.serve(&mut link)? {
            Left::Ended => break,
            Left::Detached => {
                // The terminal first: whoever detached has turned to something else. A line may
                // have begun where the run's screen left the cursor.
                let begun = if viewer.is_raw() { "\n" } else { "" };
                drop(viewer);
                link.leave();
                say(&format!("{begun}{DETACHED}"));
                return Ok(0);
            }
            Left::Again(pause) => {
                link.leave();
                std::thread::sleep(pause);
            }
            Left::Gone(Gone::ToldToLeave) => {
                losses = 1;
                if !client.comes_back() {
                    drop(viewer);
                    return Err(given_up(run, "the daemon was told to leave"));
                }
            }
            Left::Gone(Gone::Lost) if since.elapsed() >= SETTLED => losses = 1,
            Left::Gone(Gone::Lost) => losses += 1,
        }
        if losses > MAX_LOSSES {
            drop(viewer);
            return Err(given_up(run, "the daemon keeps dying"));
        }
        match reconnect(client, run, viewer.only_looks())? {
            Some(again) => link = again,
            None => break,
        }
    }
    let missed = how.begun_here && !viewer.has_shown();
    drop(viewer);
    conclude(client, run, how, missed)
}

fn given_up(run: &wire::Run, why: &str) -> Failure {
    Failure::new(NO_DAEMON, "daemon_left", format!("{why}; the run goes on"))
        .hint(format!("`kennel attach {}` starts it again", run.id))
}

/// Makes the connection anew. `None` if the run is over.
fn reconnect(client: &Client, run: &wire::Run, read_only: bool) -> Result<Option<Link>, Failure> {
    let deadline = Instant::now() + RECONNECT_BOUND;
    loop {
        let failure = match Link::open(client, &path(run, read_only)) {
            Ok(link) => return Ok(Some(link)),
            Err(NotOpened::Refused(failure)) if says_over(&failure) => return Ok(None),
            Err(NotOpened::Refused(failure) | NotOpened::Gone(failure)) => failure,
        };
        if Instant::now() >= deadline {
            let hint = format!("the run goes on; `kennel attach {}` tries again", run.id);
            return Err(failure.hint(hint));
        }
        std::thread::sleep(RECONNECT_PAUSE);
    }
}

fn path(run: &wire::Run, read_only: bool) -> String {
    format!("/v1/runs/{}/attach?read_only={read_only}", run.id)
}

fn says_over(failure: &Failure) -> bool {
    matches!(failure, Failure::Told { error, .. } if error.code == "not_live")
}

/// Nobody can be attached to it. Mostly because it is over; else that is the answer.
fn already_over(
    client: &Client,
    run: &wire::Run,
    how: &How,
    failure: Failure,
) -> Result<u8, Failure> {
    match until_over(client, &run.id, Some(OVER_BOUND))? {
        Some(run) => conclude(client, &run, how, how.begun_here),
        None => Err(failure),
    }
}

/// Says how it ended, and gives the code for it. What it wrote comes first if that was missed: a
/// run may be over before anybody can be attached to it.
fn conclude(client: &Client, run: &wire::Run, how: &How, missed: bool) -> Result<u8, Failure> {
    let Some(run) = until_over(client, &run.id, None)? else { return Ok(RUN_FAILED) };
    if missed {
        let followers = follow(client, &run, Until::NoMore, Out { json: false });
        followers.into_iter().try_for_each(Follower::join)?;
    }
    let by_itself = run.end.as_ref().is_some_and(|end| end.cause == wire::Cause::Exit);
    if let Some(text) = render::ending(&run).filter(|_| !(how.begun_here && by_itself)) {
        say(&format!("kennel: run {} {text}", run.id));
    }
    Ok(render::exit_code(&run))
}
