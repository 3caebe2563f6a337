//! The daemon's life: lock, store, adoption, service, leaving.
//!
//! Owns: the order of these. Runs are never stopped by it, neither when it leaves nor when it is
//! killed: their keepers need no daemon.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use kennel_supervisor::{Event, Phase, RunId, State};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::api::{self, App, listen};
use crate::channel::Channels;
use crate::config::settings::Settings;
use crate::event_loop::{self, EventLoop, Inbox};
use crate::feed::Feed;
use crate::found::Finder;
use crate::home::{Home, HomeError};
use crate::live::Live;
use crate::metrics::Metrics;
use crate::observe::Observer;
use crate::perform::Performer;
use crate::retain::retain_for_ever;
use crate::store::format::Detail;
use crate::store::retention::Keep;
use crate::store::{Opened, Store, StoreError};
use crate::story::clock;
use crate::story::hands::Hands;
use crate::story::now::{Projects, StoriesNow};
use crate::time::Time;

/// How long requests under way may take to finish when the daemon leaves.
const LEAVE_BOUND: Duration = Duration::from_secs(1);
/// How often the daemon looks whether its socket is still there.
const SOCKET_LOOK: Duration = Duration::from_secs(2);
/// Threads for what may wait: starts, looks, questions to the store.
const BLOCKING_THREADS: usize = 128;
/// Descriptors one live run needs here: its keeper's connection, twice, and its leader.
const DESCRIPTORS_PER_RUN: u64 = 3;
/// Descriptors for everything else: the store, clients, their questions to keepers.
const OTHER_DESCRIPTORS: u64 = 256;

/// How a daemon is to be.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What is kept of the dead, and for how long.
    pub keep: Keep,
    /// How many runs may live at once; what the system allows if not said.
    pub max_runs: Option<usize>,
    /// Serve the API here too, on this machine, to those who have the token.
    pub listen: Option<SocketAddr>,
}

/// Runs the daemon until it is told to leave. `ready` is called once it serves.
pub fn serve(home: &Home, options: &Options, ready: impl FnOnce()) -> Result<(), ServeError> {
    home.make().map_err(ServeError::Home)?;
    let _lock = home.lock().map_err(ServeError::Home)?;
    // Whatever directory it was started from must stay removable.
    std::env::set_current_dir("/").map_err(ServeError::Io)?;
    // Before there is any keeper: they are where we are.
    if let Err(why) = kennel_process::settle_in_cgroup() {
        tracing::debug!("not in a cgroup of its own, limits may be sampled: {why}");
    }
    let room = room(options).map_err(ServeError::Io)?;
    let opened =
        Store::open(&home.store(), State::with_room_for(room)).map_err(ServeError::Store)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(ServeError::Io)?;
    let served = runtime.block_on(serve_until_told(home, options, opened, room, ready));
    // Threads that wait for runs or for output are not waited for: nothing depends on them.
    runtime.shutdown_background();
    served
}

/// The OpenAPI document of the API.
#[must_use]
pub fn openapi() -> String {
    api::document()
}

/// How many runs fit: as many as were asked for, or as there are descriptors for.
fn room(options: &Options) -> io::Result<usize> {
    let descriptors = kennel_process::raise_descriptor_limit()?;
    let fit = descriptors.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_PER_RUN;
    let fit = usize::try_from(fit).unwrap_or(usize::MAX).max(1);
    Ok(options.max_runs.map_or(fit, |asked| asked.min(fit)))
}

async fn serve_until_told(
    home: &Home,
    options: &Options,
    opened: Opened,
    room: usize,
    ready: impl FnOnce(),
) -> Result<(), ServeError> {
    let Opened { store, writer, state, live, last_seq, stories } = opened;
    let boot = kennel_process::boot_id().map_err(|e| ServeError::Io(io::Error::other(e)))?;
    let listener = bind(home).map_err(ServeError::Io)?;
    let tcp = match options.listen {
        Some(address) => Some(bind_tcp(home, address).await.map_err(ServeError::Io)?),
        None => None,
    };
    let (inbox, outbox) = event_loop::inbox();
    let (leaving, mut left) = watch::channel(false);
    let (live, feed, metrics) =
        (Live::new(live), Feed::new(store.clone(), last_seq), Metrics::new());
    let observer =
        Observer::new(home.clone(), inbox.clone(), live.clone(), metrics.clone(), store.clone());
    adopt_all(&state, &observer);
    let charges = observer.charges.clone();
    tokio::spawn(charges.clone().tell_for_ever(home.clone(), live.clone()));
    let (earlier, kept) = (charges.clone(), store.clone());
    tokio::spawn(async move {
        if let Err(e) = earlier.load(&kept).await {
            tracing::error!("failed to add up what earlier runs used: {e}");
        }
    });
    let finder = Finder { home: home.clone(), store: store.clone(), inbox: inbox.clone() };
    let directories = finder.directories().map_err(ServeError::Io)?;
    let keep = options.keep.clone();
    tokio::spawn(async move {
        finder.take_in_all(directories).await;
        // Afterwards: a directory that is just being removed looks like one that lost its record.
        retain_for_ever(finder, keep).await;
    });
    leave_on_signals(inbox.clone(), live.clone(), leaving.clone()).map_err(ServeError::Io)?;

    let projects = Projects::in_store(&store).await.map_err(ServeError::Store)?;
    let stories_now = StoriesNow::new(stories.clone());
    let app = App {
        home: home.clone(),
        store: store.clone(),
        inbox,
        live: live.clone(),
        feed: feed.clone(),
        metrics: metrics.clone(),
        leaving: left.clone(),
        writers: Default::default(),
        talks: Default::default(),
        charges,
        readers: Default::default(),
        channels: Channels::after(last_seq),
        settings: Settings::of(home),
        stories: stories_now.clone(),
        projects,
        troubles: Default::default(),
        landed: Default::default(),
        agent_starts: Default::default(),
        story_words: Default::default(),
        boot,
        started_at: Time::now(),
        room,
    };
    let unreachable = leaving.clone();
    let performer = Performer { observer, leaving };
    let hands = Hands::new(app.clone());
    let event_loop = EventLoop {
        state,
        stories,
        stories_now,
        hands: hands.clone(),
        writer,
        live,
        feed,
        metrics,
        performer,
    };
    let mind = on_own_thread(event_loop, outbox).map_err(ServeError::Io)?;
    if let Some((tcp, guard)) = tcp {
        serve_tcp(tcp, guard, app.clone());
    }
    tokio::spawn(app.channels.clone().serve(app.clone()));
    tokio::spawn(clock::run(hands));
    let mut told = left.clone();
    let service = api::router(app).into_make_service_with_connect_info::<listen::Asker>();
    let server = axum::serve(listen::OwnersOnly::new(listener), service)
        .with_graceful_shutdown(async move { drop(told.wait_for(|leaving| *leaving).await) });
    let bound = async {
        drop(left.wait_for(|leaving| *leaving).await);
        tokio::time::sleep(LEAVE_BOUND).await;
    };
    tokio::spawn(leave_if_unreachable(home.clone(), unreachable));
    tracing::info!("serving on {}", home.socket().display());
    ready();
    tokio::select! {
        served = server.into_future() => served.map_err(ServeError::Io)?,
        () = bound => {}
        // A daemon that can decide nothing must not keep the next one from coming.
        _ = mind => return Err(ServeError::Io(io::Error::other("the event loop ended"))),
    }
    // Gone before the lock is: whoever connects from here on starts the next daemon. The lock is
    // still ours, so that nobody else's can be there.
    let _ = fs::remove_file(home.socket());
    tracing::info!("left; runs go on");
    Ok(())
}

/// Runs the loop in a thread of its own, within this runtime. The receiver hears when it ends.
fn on_own_thread(
    event_loop: EventLoop,
    outbox: event_loop::Outbox,
) -> io::Result<oneshot::Receiver<()>> {
    let runtime = tokio::runtime::Handle::current();
    let (ends, ended) = oneshot::channel();
    std::thread::Builder::new().name("mind".to_owned()).spawn(move || {
        // Dropped last, also by a panic.
        let _ends = ends;
        let _within = runtime.enter();
        event_loop.run(outbox);
    })?;
    Ok(ended)
}

/// Serves the same routes over TCP, behind every check there is.
fn serve_tcp(listener: TcpListener, guard: listen::Guard, app: App) {
    let mut told = app.leaving.clone();
    let checks = axum::middleware::from_fn_with_state(guard, listen::guarded);
    let router = api::router(app).layer(checks);
    let service = router.into_make_service_with_connect_info::<listen::Asker>();
    tokio::spawn(async move {
        let server = axum::serve(listen::Bounded::new(listener), service)
            .with_graceful_shutdown(async move { drop(told.wait_for(|leaving| *leaving).await) });
        if let Err(e) = server.await {
            tracing::error!("failed to serve over TCP: {e}");
        }
    });
}

async fn bind_tcp(home: &Home, address: SocketAddr) -> io::Result<(TcpListener, listen::Guard)> {
    listen::check_address(address)?;
    let token = listen::token(&home.token())?;
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    tracing::info!("serving on http://{address}; its token is in {}", home.token().display());
    Ok((listener, listen::Guard::new(token, address)))
}

/// Binds the socket. What is there already was left by a daemon that is dead: the lock is ours.
fn bind(home: &Home) -> io::Result<UnixListener> {
    match fs::remove_file(home.socket()) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(home.socket())?;
    fs::set_permissions(home.socket(), Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Takes back every run that has no proof of death, each in a task of its own. The API answers
/// meanwhile.
fn adopt_all(state: &State, observer: &Observer) {
    for (run, known) in state.runs() {
        // If its keeper is gone, nobody but the journal knows how soon it is to end.
        if let Phase::Starting { stop: Some(stop) } | Phase::Stopping { stop, .. } = known.phase {
            observer.hurry(run, stop);
        }
        let (run, observer): (RunId, Observer) = (run.clone(), observer.clone());
        tokio::spawn(async move { observer.adopt_and_watch(&run).await });
    }
}

/// A daemon whose socket somebody removed can be asked nothing any more, and keeps the next one
/// from coming: it leaves.
async fn leave_if_unreachable(home: Home, leaving: watch::Sender<bool>) {
    let own = fs::metadata(home.socket()).map(|meta| meta.ino()).ok();
    loop {
        tokio::time::sleep(SOCKET_LOOK).await;
        if fs::metadata(home.socket()).map(|meta| meta.ino()).ok() != own {
            tracing::error!("somebody removed {}; leaving", home.socket().display());
            leaving.send_replace(true);
            return;
        }
    }
}

fn leave_on_signals(inbox: Inbox, live: Live, leaving: watch::Sender<bool>) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        drop(inbox.tell(Event::ShutdownRequested { stop: None }, Detail::Nothing).await);
        live.starts_settle(api::daemon::START_BOUND).await;
        // Also if the store did not take it: a full disk must not keep a daemon alive.
        leaving.send_replace(true);
    });
    Ok(())
}

/// Why the daemon could not serve.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// Its home cannot be used.
    Home(HomeError),
    /// Its store cannot be used.
    Store(StoreError),
    /// The system refused.
    Io(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Home(e) => e.fmt(f),
            Self::Store(e) => e.fmt(f),
            Self::Io(e) => write!(f, "failed to serve: {e}"),
        }
    }
}

impl std::error::Error for ServeError {}
