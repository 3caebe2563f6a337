//! `GET` and `POST /v1/doctor`: how everything is, and the repair of what is safe to repair.
//!
//! Owns: what is looked at and how it is put. Repairs only what nobody can miss: leftovers of runs
//! that are over, empty cgroups. Never signals anything.

use axum::Json;
use axum::extract::State;
use kennel_process::{Binds, Containment, strongest_bindings, strongest_containment};

use super::error::ApiError;
use super::{App, wire};
use crate::found::{Finder, Stray};
use crate::store::kept::Standing;
use crate::store::unfit_file_system;
use wire::{Finding, Level};

/// Less free space than this is worth a word.
const LITTLE_SPACE: u64 = 512 << 20;
/// Less than this, and starts will soon be refused.
const NO_SPACE: u64 = 16 << 20;
/// Where systemd notes whose services outlive their sessions.
const LINGER_DIR: &str = "/var/lib/systemd/linger";
/// There only where systemd runs.
const SYSTEMD_DIR: &str = "/run/systemd/system";

/// Looks at everything and changes nothing.
#[utoipa::path(get, path = "/v1/doctor", responses((status = 200, body = wire::Doctor)))]
pub(super) async fn examine(State(app): State<App>) -> Result<Json<wire::Doctor>, ApiError> {
    Ok(Json(look(&app, Repair::No).await?))
}

/// Looks at everything and repairs what is safe to repair.
#[utoipa::path(post, path = "/v1/doctor", responses((status = 200, body = wire::Doctor)))]
pub(super) async fn fix(
    State(app): State<App>,
    _body: axum::body::Bytes,
) -> Result<Json<wire::Doctor>, ApiError> {
    Ok(Json(look(&app, Repair::Yes).await?))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Repair {
    Yes,
    No,
}

async fn look(app: &App, repair: Repair) -> Result<wire::Doctor, ApiError> {
    let finder =
        Finder { home: app.home.clone(), store: app.store.clone(), inbox: app.inbox.clone() };
    let mut findings = vec![containment(), bindings(), file_system(app), space(app)];
    findings.push(store(&finder).await);
    findings.extend(runs(app));
    findings.extend(leftovers(&finder, repair).await);
    findings.extend(cgroups(&finder, repair).await);
    findings.extend(config(app).await?);
    findings.extend(channels(app).await);
    findings.extend(linger());
    Ok(wire::Doctor { findings })
}

fn finding(check: &str, level: Level, message: impl Into<String>) -> Finding {
    Finding {
        check: check.to_owned(),
        level,
        message: message.into(),
        hint: None,
        fixable: false,
        fixed: false,
    }
}

impl Finding {
    fn hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.to_owned());
        self
    }
}

fn containment() -> Finding {
    let (strongest, why) = strongest_containment();
    let because = why.map(|why| format!(": {why}")).unwrap_or_default();
    match strongest {
        Containment::Cgroup => {
            finding("containment", Level::Ok, "runs are held by a cgroup and a subreaper")
        }
        Containment::Subreaper | Containment::Group => {
            let message = format!("runs are held by {strongest} only{because}");
            finding("containment", Level::Note, message).hint(
                "every descendant is still found and ended; but if a run's keeper is killed, its \
                 end can be proven only by a reboot. Run kennel where a cgroup v2 can be written: \
                 as a service with Delegate=yes (`kennel service install`)",
            )
        }
    }
}

fn bindings() -> Finding {
    let found = strongest_bindings();
    let sampled = |(name, binds): (&str, Option<Binds>)| match binds {
        Some(Binds::Sampled { because }) => Some(format!("{name}: {because}")),
        Some(Binds::Hard { .. }) | None => None,
    };
    let both = [("memory", found.memory), ("pids", found.pids)];
    let weaker: Vec<String> = both.into_iter().filter_map(sampled).collect();
    if weaker.is_empty() {
        let message = "limits on memory and processes are kept by the kernel";
        return finding("limits", Level::Ok, message);
    }
    let message = format!("limits are sampled, not kept by the kernel: {}", weaker.join("; "));
    finding("limits", Level::Note, message).hint(
        "they bind all the same, a quarter of a second late. Run kennel where it is given these \
         controllers: as a service (`kennel service install`, with systemd 254 or later), or \
         alone in a cgroup of its own (`systemd-run --user --scope -p Delegate=yes kennel up`)",
    )
}

fn file_system(app: &App) -> Finding {
    let state = app.home.state().join("kennel.db");
    match unfit_file_system(&state) {
        Ok(None) => finding("store", Level::Ok, "the home is on a local file system"),
        Ok(Some(kind)) => finding("store", Level::Problem, format!("the home is on {kind}"))
            .hint("set KENNEL_HOME to a directory on a local disk"),
        Err(e) => finding("store", Level::Problem, format!("failed to ask for its kind: {e}")),
    }
}

fn space(app: &App) -> Finding {
    let left = match rustix::fs::statvfs(app.home.state()) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(e) => {
            return finding("space", Level::Problem, format!("failed to ask for free space: {e}"));
        }
    };
    let message = format!("{} MB are free in the home", left >> 20);
    match left {
        0..NO_SPACE => finding("space", Level::Problem, message)
            .hint("starts are refused when it is full; runs that are alive go on"),
        NO_SPACE..LITTLE_SPACE => finding("space", Level::Note, message),
        LITTLE_SPACE.. => finding("space", Level::Ok, message),
    }
}

async fn store(finder: &Finder) -> Finding {
    match finder.store_is_sound().await {
        Ok(None) => finding("store", Level::Ok, "the store is sound"),
        Ok(Some(wrong)) => {
            finding("store", Level::Problem, format!("the store is damaged: {wrong}"))
                .hint("copies from before migrations lie beside it; runs that are alive go on")
        }
        Err(e) => finding("store", Level::Problem, e.to_string()),
    }
}

fn runs(app: &App) -> Vec<Finding> {
    let runs = app.live.all();
    let mut findings = vec![finding("runs", Level::Ok, format!("{} runs are live", runs.len()))];
    for run in runs.iter().filter(|run| run.state == Standing::Stuck) {
        let why = run.stuck.as_ref().map_or("it is lost", |stuck| &stuck.reason);
        let message = format!("run {} in slot {} is stuck: {why}", run.id, run.slot);
        findings.push(
            finding("runs", Level::Problem, message)
                .hint("`kennel show` names what is left; its slot stays taken until it is gone"),
        );
    }
    findings
}

async fn leftovers(finder: &Finder, repair: Repair) -> Vec<Finding> {
    let strays = match finder.directories() {
        Ok(directories) => finder.strays(directories).await,
        Err(e) => Err(e),
    };
    let strays = match strays {
        Ok(strays) => strays,
        Err(e) => {
            let message = format!("failed to look for leftovers: {e}");
            return vec![finding("leftovers", Level::Problem, message)];
        }
    };
    let mut findings = Vec::new();
    for stray in strays {
        findings.push(match stray {
            Stray::Run(run, label) => {
                let message = format!("run {run} is there and the store does not know it");
                let fixed = repair == Repair::Yes && finder.take_in(&run, label).await;
                Finding { fixable: true, fixed, ..finding("leftovers", Level::Problem, message) }
            }
            Stray::Leftover(run) => {
                let message = format!("the directory of run {run}, which is over, is nobody's");
                let fixed = repair == Repair::Yes && finder.remove(&run).await.is_ok();
                Finding { fixable: true, fixed, ..finding("leftovers", Level::Note, message) }
            }
        });
    }
    if findings.is_empty() {
        findings.push(finding("leftovers", Level::Ok, "every run's directory is known"));
    }
    findings
}

async fn cgroups(finder: &Finder, repair: Repair) -> Vec<Finding> {
    let leaves = match finder.stray_leaves().await {
        Ok(leaves) => leaves,
        Err(e) => {
            let message = format!("failed to look for cgroups: {e}");
            return vec![finding("cgroups", Level::Note, message)];
        }
    };
    let mut findings = Vec::new();
    for leaf in leaves {
        let path = leaf.path.display();
        findings.push(if leaf.populated {
            let message = format!("{path} has processes in it and no run here knows it");
            finding("cgroups", Level::Note, message)
                .hint("it may belong to a kennel with another home; nobody in it is touched")
        } else {
            let fixed = repair == Repair::Yes && leaf.remove().unwrap_or(false);
            let message = format!("{path} is empty and no run here knows it");
            Finding { fixable: true, fixed, ..finding("cgroups", Level::Note, message) }
        });
    }
    if findings.is_empty() {
        findings.push(finding("cgroups", Level::Ok, "every cgroup of ours belongs to a run"));
    }
    findings
}

/// What is wrong with files of configuration, as far as they have been asked for.
async fn config(app: &App) -> Result<Vec<Finding>, ApiError> {
    let settings = app.settings.clone();
    let problems = tokio::task::spawn_blocking(move || settings.problems()).await;
    let problems = problems.map_err(|_| ApiError::leaving())?;
    let wrong = |problem: &crate::config::Problem| {
        finding("config", Level::Problem, problem.to_string()).hint(
            "what it said last counts for new runs; if it said nothing since the daemon started, \
             they are refused; runs that are alive keep their limits",
        )
    };
    if problems.is_empty() {
        return Ok(vec![finding("config", Level::Ok, "the configuration is in order")]);
    }
    Ok(problems.iter().map(wrong).collect())
}

/// What channels gave up on, or are about to. Nothing is said where there are none.
async fn channels(app: &App) -> Vec<Finding> {
    let (views, buried) = match (app.channel_views().await, app.store.buried().await) {
        (Ok(views), Ok(buried)) => (views, buried),
        (Err(e), _) => {
            let message = format!("failed to look at channels: {}", e.into_wire().message);
            return vec![finding("channels", Level::Problem, message)];
        }
        (_, Err(e)) => return vec![finding("channels", Level::Problem, e.to_string())],
    };
    let mut findings = Vec::new();
    for view in &views {
        let wire::Channel { name, kind, pending, dead_letters, last_error, .. } = view;
        if kind == "desktop" && !crate::channel::has_notifier() {
            let message = format!("channel {name} needs notify-send, which is not in PATH");
            findings.push(
                finding("channels", Level::Problem, message)
                    .hint("it is in the package libnotify, or libnotify-bin"),
            );
        }
        if let Some(error) = last_error {
            let message = format!("channel {name} does not deliver, {pending} wait: {error}");
            findings.push(finding("channels", Level::Problem, message));
        }
        if *dead_letters > 0 {
            findings.push(given_up(name, *dead_letters, view.letters.first()));
        }
    }
    let is_known = |name: &String| views.iter().any(|view| view.name == *name);
    for (name, count) in buried.into_iter().filter(|(name, _)| !is_known(name)) {
        let message =
            format!("channel {name}, which is not configured, gave up on {count} notices");
        findings.push(finding("channels", Level::Note, message));
    }
    if findings.is_empty() && !views.is_empty() {
        findings.push(finding("channels", Level::Ok, format!("{} channels deliver", views.len())));
    }
    findings
}

fn given_up(name: &str, count: u64, newest: Option<&wire::DeadLetter>) -> Finding {
    let why = newest.map(|letter| format!(", the last {}: {}", letter.notice, letter.error));
    let why = why.unwrap_or_default();
    let message = format!("channel {name} has given up on {count} notices{why}");
    finding("channels", Level::Problem, message)
        .hint(&format!("`kennel channels retry {name}` delivers them again"))
}

/// Without it a user's services end with the last session, and the daemon with them.
fn linger() -> Option<Finding> {
    let user = std::env::var("USER").ok().filter(|user| !user.contains('/'))?;
    if !std::path::Path::new(SYSTEMD_DIR).exists() || rustix::process::geteuid().is_root() {
        return None;
    }
    if std::path::Path::new(LINGER_DIR).join(&user).exists() {
        return Some(finding("linger", Level::Ok, "services of this user outlive their sessions"));
    }
    let message = "services of this user, kennel's too, end when the last session does";
    Some(
        finding("linger", Level::Note, message)
            .hint("`loginctl enable-linger` lets the daemon and its runs go on after you log out"),
    )
}
