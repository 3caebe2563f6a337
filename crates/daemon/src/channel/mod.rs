//! Channels: notices go to where the user's configuration says, each through a task of its own.
//!
//! ```text
//! config.toml --> Channels: one task per channel, begun anew when its table changes
//!   task: notices after its place, in order --> webhook | hook (a run) | wake (a run)
//!         delivered: the place moves            failed: later, at last a dead letter
//! ```
//!
//! Owns: which channels there are, and what is known of each. A channel is a consumer of the
//! journal: its place is durable and moves after the delivery, so that a crash may deliver again
//! and never loses; receivers know a notice by its id, and a run that is started for one has an id
//! that is made of it. Decides nothing about runs.

mod deliver;
mod hook;
mod resume;
mod wake;
mod webhook;
mod words;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use crate::api::{App, wire};
use crate::config::{Channel, Delivery};
use crate::notice::kind_of_word;
use crate::time::Time;
use deliver::Postman;

/// How often the configuration is looked at: somebody who has just repaired a channel should not
/// have to wait longer.
const LOOK: Duration = Duration::from_secs(5);
/// Programs that are told of notices at once, those of all channels together.
const MAX_HOOKS: usize = 8;
/// The largest notice that is handed on: one variable of a program holds it with room to spare.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Why something could not be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) error: String,
    again: Again,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Again {
    /// After the usual pause, or after this one if it is longer.
    Later(Option<Duration>),
    Never,
}

impl Failed {
    fn later(error: String) -> Self {
        Self { error, again: Again::Later(None) }
    }

    fn never(error: String) -> Self {
        Self { error, again: Again::Never }
    }

    fn not_before(mut self, pause: Option<Duration>) -> Self {
        self.again = Again::Later(pause);
        self
    }
}

/// All channels. Copies are the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Channels(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: Mutex<BTreeMap<String, Running>>,
    hooks: Arc<Semaphore>,
    /// The newest line when the configuration was last looked at: a channel that is new is told of
    /// what came after, for it was not there then.
    seen: AtomicU64,
}

/// A channel that is served.
#[derive(Debug)]
struct Running {
    channel: Arc<Channel>,
    known: Arc<Mutex<Known>>,
    poke: Arc<Poke>,
    task: JoinHandle<()>,
}

/// How a channel hears that its dead letters are wanted again, and that it need not wait any
/// longer.
#[derive(Debug)]
struct Poke {
    wanted: AtomicBool,
    heard: Notify,
}

impl Default for Poke {
    /// What was wanted from an earlier daemon still is.
    fn default() -> Self {
        Self { wanted: AtomicBool::new(true), heard: Notify::new() }
    }
}

/// What is known of a channel beside its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) delivered: u64,
    pub(crate) failed: u64,
    pub(crate) last_delivered: Option<Time>,
    pub(crate) last_error: Option<String>,
    /// When the notice it is at is tried again.
    pub(crate) next_try: Option<Time>,
    /// Of a channel that wakes: notices that wait for somebody who still lives.
    pub(crate) waiting: u64,
}

impl Channels {
    /// None yet. What came before this line is nothing to any that is new.
    pub(crate) fn after(last_seq: u64) -> Self {
        Self(Arc::new(Inner {
            all: Mutex::default(),
            hooks: Arc::new(Semaphore::new(MAX_HOOKS)),
            seen: AtomicU64::new(last_seq),
        }))
    }

    /// Serves what is configured until the daemon leaves.
    pub(crate) async fn serve(self, app: App) {
        let mut leaving = app.leaving.clone();
        loop {
            self.look(&app).await;
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = leaving.wait_for(|leaving| *leaving) => break,
            }
        }
        self.locked().values().for_each(|running| running.task.abort());
    }

    /// Looks at the configuration, and begins and ends what has changed.
    async fn look(&self, app: &App) {
        let last = app.feed.last();
        let settings = app.settings.clone();
        let now = tokio::task::spawn_blocking(move || settings.in_force()).await;
        // If it does not read, nobody can say which are meant: `doctor` has the reason, and places
        // are kept.
        let Ok(Ok(now)) = now else { return };
        let configured = &now.user.channels;
        let mut all = self.locked();
        let from = self.0.seen.swap(last, Ordering::Relaxed);
        let names: HashSet<&str> = configured.iter().map(|channel| channel.name.as_str()).collect();
        all.retain(|name, running| {
            let stays = names.contains(name.as_str());
            if !stays {
                running.task.abort();
            }
            stays
        });
        for channel in configured {
            if all.get(&channel.name).is_some_and(|known| *known.channel == *channel) {
                continue;
            }
            if let Some(old) = all.remove(&channel.name) {
                old.task.abort();
            }
            all.insert(channel.name.clone(), self.begin(app, channel.clone(), from));
        }
    }

    fn begin(&self, app: &App, channel: Channel, from: u64) -> Running {
        let channel = Arc::new(channel);
        let (known, poke): (Arc<Mutex<Known>>, Arc<Poke>) = Default::default();
        let postman = Postman {
            app: app.clone(),
            channel: channel.clone(),
            known: known.clone(),
            poke: poke.clone(),
            hooks: self.0.hooks.clone(),
        };
        let task = tokio::spawn(async move {
            match &postman.channel.delivery {
                Delivery::Webhook { .. } | Delivery::Command { .. } | Delivery::Desktop => {
                    postman.serve(from).await;
                }
                Delivery::Wake { .. } => wake::serve(postman, from).await,
            }
        });
        Running { channel, known, poke, task }
    }

    /// The channels there are now, with what is known of each.
    pub(crate) async fn all(&self, app: &App) -> Vec<(Arc<Channel>, Known)> {
        self.look(app).await;
        let all = self.locked();
        let known = |running: &Running| {
            let known = running.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
            (running.channel.clone(), known)
        };
        all.values().map(known).collect()
    }

    /// Has the configuration looked at, and returns the channel of this name.
    pub(crate) async fn get(&self, app: &App, name: &str) -> Option<Arc<Channel>> {
        self.look(app).await;
        self.locked().get(name).map(|running| running.channel.clone())
    }

    /// Has a channel look for dead letters that are to be delivered again.
    pub(crate) fn poke(&self, name: &str) {
        if let Some(running) = self.locked().get(name) {
            running.poke.wanted.store(true, Ordering::Relaxed);
            running.poke.heard.notify_one();
        }
    }

    /// Tries a channel with a notice that is about nothing, once. What came of it.
    pub(crate) async fn test(
        &self,
        app: &App,
        channel: Arc<Channel>,
        notice: &wire::Notice,
    ) -> Result<String, Failed> {
        let postman = Postman {
            app: app.clone(),
            channel,
            known: Arc::default(),
            poke: Arc::default(),
            hooks: self.0.hooks.clone(),
        };
        postman.deliver(notice, 1).await
    }

    /// Every change is one call, so that whoever panicked left nothing half-done.
    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if there is a program that shows notices on the desktop.
pub(crate) fn has_notifier() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("notify-send").is_file())
}

/// The word for how a channel delivers.
pub(crate) fn kind_word(delivery: &Delivery) -> &'static str {
    match delivery {
        Delivery::Webhook { .. } => "webhook",
        Delivery::Command { .. } => "command",
        Delivery::Desktop => "desktop",
        Delivery::Wake { .. } => "wake",
    }
}

/// True if a channel is to be told of a notice.
pub(crate) fn wants(channel: &Channel, notice: &wire::Notice) -> bool {
    // Whoever is woken goes on after an end; other kinds have to be asked for.
    let usual = || match &channel.delivery {
        Delivery::Wake { .. } => notice.kind == wire::NoticeKind::Ended,
        Delivery::Webhook { .. } | Delivery::Command { .. } | Delivery::Desktop => true,
    };
    let named = |kind: &String| kind_of_word(kind) == words::kind_of(notice.kind);
    let kind = match channel.kinds.is_empty() {
        true => usual(),
        false => channel.kinds.iter().any(named),
    };
    kind && (!channel.failures_only || words::is_failure(notice))
}

/// A notice as JSON, cut to what can be handed on.
fn body_of(notice: &wire::Notice) -> String {
    let json = |notice: &wire::Notice| serde_json::to_string(notice).unwrap_or_default();
    let whole = json(notice);
    if whole.len() <= MAX_BODY_BYTES {
        return whole;
    }
    let survivors = Vec::new();
    json(&wire::Notice { tail: None, proof: None, watch: None, survivors, ..notice.clone() })
}
