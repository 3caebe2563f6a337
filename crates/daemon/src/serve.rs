//! The daemon's life: lock, store, adoption, service, leaving.
//!
//! Owns: the order of these. Runs are never stopped by it, neither when it leaves nor when it is
//! killed: their keepers need no daemon.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use kennel_supervisor::{Event, RunId, State};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::api;
use crate::event_loop::{self, Inbox};
use crate::home::{Home, HomeError};
use crate::observe::{Observer, RUN_STACK_BYTES};
use crate::perform::Performer;
use crate::store::format::Detail;
use crate::store::{Store, StoreError};

/// How long requests under way may take to finish when the daemon leaves.
const LEAVE_BOUND: Duration = Duration::from_secs(1);

/// Runs the daemon until it is told to leave.
pub fn serve(home: &Home) -> Result<(), ServeError> {
    home.make().map_err(ServeError::Home)?;
    let _lock = home.lock().map_err(ServeError::Home)?;
    // Whatever directory it was started from must stay removable.
    std::env::set_current_dir("/").map_err(ServeError::Io)?;
    let (store, state) = Store::open(&home.store()).map_err(ServeError::Store)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Io)?;
    let served = runtime.block_on(serve_until_told(home, store, state));
    // Threads that wait for runs or for output are not waited for: nothing depends on them.
    runtime.shutdown_background();
    served
}

async fn serve_until_told(home: &Home, store: Store, state: State) -> Result<(), ServeError> {
    let listener = listen(home).map_err(ServeError::Io)?;
    let (inbox, ends) = event_loop::inbox();
    let (leaving, mut left) = watch::channel(false);
    let observer = Observer { home: home.clone(), inbox: inbox.clone() };
    adopt_all(&state, &observer)?;
    leave_on_signals(inbox.clone(), leaving.clone()).map_err(ServeError::Io)?;
    tracing::info!("serving on {}", home.socket().display());

    let app = api::App::new(home.clone(), store.clone(), inbox, left.clone());
    let performer = Performer { observer, leaving };
    tokio::spawn(event_loop::run(state, store, performer, ends));
    let mut told = left.clone();
    let server = axum::serve(api::OwnersOnly(listener), api::router(app))
        .with_graceful_shutdown(async move { drop(told.wait_for(|leaving| *leaving).await) });
    let bound = async {
        drop(left.wait_for(|leaving| *leaving).await);
        tokio::time::sleep(LEAVE_BOUND).await;
    };
    tokio::select! {
        served = server.into_future() => served.map_err(ServeError::Io)?,
        () = bound => {}
    }
    // Gone before the lock is: whoever connects from here on starts the next daemon.
    let _ = fs::remove_file(home.socket());
    tracing::info!("left; runs go on");
    Ok(())
}

/// Binds the socket. What is there already was left by a daemon that is dead: the lock is ours.
fn listen(home: &Home) -> io::Result<UnixListener> {
    match fs::remove_file(home.socket()) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(home.socket())?;
    fs::set_permissions(home.socket(), Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Takes back every run that has no proof of death, each in a thread of its own.
fn adopt_all(state: &State, observer: &Observer) -> Result<(), ServeError> {
    for (run, _) in state.runs() {
        let (run, observer): (RunId, Observer) = (run.clone(), observer.clone());
        std::thread::Builder::new()
            .name(format!("run {run}"))
            .stack_size(RUN_STACK_BYTES)
            .spawn(move || observer.adopt_and_watch(&run))
            .map_err(ServeError::Io)?;
    }
    Ok(())
}

fn leave_on_signals(inbox: Inbox, leaving: watch::Sender<bool>) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        drop(inbox.tell(Event::ShutdownRequested, Detail::Nothing, None).await);
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
