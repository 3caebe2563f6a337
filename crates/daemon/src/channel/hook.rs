//! A program that is told of a notice: a run like any other, in the channel's own slot.
//!
//! Owns: what it is started with, and that it is started once for each try. Its id is made of the
//! channel, the notice and the try, so that a daemon that died in between asks for the same run.
//! Its own ends are told to nobody: a hook that tells of hooks would never end.

use std::time::Duration;

use kennel_process::{Cause, ExitStatus};
use sha2::{Digest, Sha256};

use super::deliver::Postman;
use super::{Failed, body_of, words};
use crate::api::start::begin;
use crate::api::wire;
use crate::store::channel::consumer_of;
use crate::store::format::Ended;
use crate::store::kept::KeptRun;
use crate::text::Text;

/// A hook's time, if nothing is said: it tells somebody, and does no work of its own.
const WALL: Duration = Duration::from_secs(60);
/// Its output, if nothing is said.
const OUTPUT: u64 = 1 << 20;
/// Between asking and forcing it: it has nothing to save.
const GRACE: Duration = Duration::from_secs(2);
/// How long one look for its end waits; then it looks again.
const LOOK: Duration = Duration::from_secs(60);
/// What of the daemon's environment a hook gets. Nothing else of whoever's shell started it.
const PASSED: [&str; 11] = [
    // Who asks kennel for more asks the one that told it.
    "KENNEL_HOME",
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "SHELL",
    "TMPDIR",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Starts a program, or finds the one that was started, and waits for its end.
pub(super) async fn run(
    postman: &Postman,
    words: Vec<String>,
    limits: &wire::Limits,
    notice: &wire::Notice,
    tries: u32,
) -> Result<String, Failed> {
    // Never closed.
    let _turn = postman.hooks.acquire().await;
    let id = run_id(&postman.channel.name, &[&notice.id], tries);
    if known(postman, &id).await?.is_none() {
        let request = request(postman, id.clone(), words, limits, notice).await;
        begin(&postman.app, request, None).await.map_err(refused)?;
    }
    loop {
        let run = postman.app.until(&id, LOOK, KeptRun::is_over).await.map_err(refused)?;
        if run.is_over() {
            return how(&run);
        }
    }
}

/// The words that show a notice on the desktop.
pub(super) fn desktop(notice: &wire::Notice) -> Vec<String> {
    let kind = words::kind_word(notice.kind).replace('_', " ");
    let title = format!("kennel: {kind}");
    // Taken for markup by those who show it.
    let text = words::line(notice).replace('&', "&amp;").replace('<', "&lt;");
    let urgent = if words::is_failure(notice) { "critical" } else { "normal" };
    let urgency = format!("--urgency={urgent}");
    ["notify-send", "--app-name=kennel", &urgency, "--", &title, &text].map(str::to_owned).to_vec()
}

/// An id that is the same for the same notices and try, in whichever daemon.
pub(super) fn run_id(channel: &str, notices: &[&str], tries: u32) -> String {
    let mut hash = Sha256::new();
    for part in std::iter::once(&channel).chain(notices) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(tries.to_le_bytes());
    let hex: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("ch-{hex}")
}

/// The run of this id, if there is one, whatever it was asked for with.
pub(super) async fn known(postman: &Postman, id: &str) -> Result<Option<KeptRun>, Failed> {
    if let Some(run) = postman.app.live.get(id) {
        return Ok(Some(run));
    }
    postman.app.store.run(id).await.map_err(|e| Failed::later(e.to_string()))
}

pub(super) fn refused(error: crate::api::ApiError) -> Failed {
    let wire::Error { message, hint, .. } = error.into_wire();
    let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    Failed::later(format!("{message}{hint}"))
}

/// What every run that a channel asks for is given of the daemon's environment.
pub(super) fn environment() -> Vec<(Text, Text)> {
    let own = std::env::vars_os().filter(|(name, _)| {
        let Some(name) = name.to_str() else { return false };
        PASSED.contains(&name) || name.starts_with("XDG_") || name.starts_with("LC_")
    });
    own.map(|(name, value)| (Text(name), Text(value))).collect()
}

async fn request(
    postman: &Postman,
    id: String,
    command: Vec<String>,
    limits: &wire::Limits,
    notice: &wire::Notice,
) -> wire::RunRequest {
    let mut env = environment();
    let own = [
        ("KENNEL_NOTICE", body_of(notice)),
        ("KENNEL_NOTICE_ID", notice.id.clone()),
        ("KENNEL_NOTICE_KIND", words::kind_word(notice.kind).to_owned()),
        ("KENNEL_NOTICE_RUN", notice.run.clone()),
        ("KENNEL_NOTICE_SLOT", notice.slot.clone().unwrap_or_default()),
    ];
    env.extend(own.map(|(name, value)| (Text(name.into()), Text(value.into()))));
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let settings = postman.app.settings.clone();
    let now = tokio::task::spawn_blocking(move || settings.in_force()).await;
    let caps = now.ok().and_then(Result::ok).map(|now| now.user.caps.clone()).unwrap_or_default();
    let lowest = |usual: u64, cap: Option<u64>| cap.map_or(usual, |cap| cap.min(usual));
    let wall_ms = limits.wall_ms.unwrap_or(lowest(WALL.as_millis() as u64, caps.wall_ms));
    let output = limits.output.unwrap_or(lowest(OUTPUT, caps.output));
    wire::RunRequest {
        id: Some(id),
        command: command.into_iter().map(|word| Text(word.into())).collect(),
        cwd: Text(home.unwrap_or_else(|| "/".into())),
        env,
        slot: Some(consumer_of(&postman.channel.name)),
        limits: wire::Limits { wall_ms: Some(wall_ms), output: Some(output), ..limits.clone() },
        format: Some("none".to_owned()),
        grace_ms: Some(GRACE.as_millis() as u64),
        notify: wire::Notify::Never,
        ..wire::RunRequest::default()
    }
}

/// Delivered if it exited by itself with 0.
fn how(run: &KeptRun) -> Result<String, Failed> {
    let id = &run.id;
    let Some(ended) = &run.ended else {
        return Err(Failed::later(format!("its run {id} is stuck")));
    };
    match &**ended {
        Ended::NeverStarted { message, .. } => Err(Failed::later(message.clone())),
        Ended::Recorded(end) => match (&end.cause, end.status) {
            (Cause::Exit, ExitStatus::Exited(0)) => Ok(format!("run {id} exited with 0")),
            (Cause::Limit(limit), _) => {
                Err(Failed::later(format!("its run {id} was ended by its limit {}", limit.kind)))
            }
            (Cause::Stopped | Cause::Killed, _) => {
                Err(Failed::later(format!("its run {id} was stopped")))
            }
            (Cause::Exit, ExitStatus::Exited(code)) => {
                Err(Failed::later(format!("its run {id} exited with {code}")))
            }
            (
                Cause::Exit | Cause::Oom(_) | Cause::Lost | Cause::NeverStarted,
                ExitStatus::Exited(_) | ExitStatus::Signaled(_) | ExitStatus::Unknown(_),
            ) => Err(Failed::later(format!("its run {id} ended without an exit code"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_notice_and_try_are_the_same_run_and_no_other() {
        let one = run_id("c", &["r/ended/1"], 1);
        assert_eq!(one, run_id("c", &["r/ended/1"], 1));
        assert_eq!(one.len(), "ch-".len() + 24);
        for other in [
            run_id("d", &["r/ended/1"], 1),
            run_id("c", &["r/ended/2"], 1),
            run_id("c", &["r/ended/1"], 2),
            run_id("c", &["r/ended/1", ""], 1),
            run_id("cr", &["/ended/1"], 1),
        ] {
            assert_ne!(one, other);
        }
    }
}
