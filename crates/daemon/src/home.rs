//! Where kennel keeps what it knows: one private directory, one lock, one socket.
//!
//! ```text
//! KENNEL_HOME/state, or $XDG_STATE_HOME/kennel (0700)
//!   lock         held by the daemon while it lives; names its process and its socket
//!   socket       the API (0600); in $XDG_RUNTIME_DIR/kennel if there is one and no KENNEL_HOME
//!   kennel.db    the store
//!   daemon.log   what a daemon that started by itself has to say
//!   runs/ID/     one directory per run, its keeper's
//!   worktrees/   those of stories, one directory per project, where its file names no other place
//!   trust.json   which repositories' files may be used, as they were then
//!   trusted/     these files, as they were then
//! KENNEL_HOME/config, or $XDG_CONFIG_HOME/kennel
//!   config.toml  caps, agents and channels of the user's own
//!   prices.json  prices of the user's own, before those that are shipped
//! ```
//!
//! Owns: these names and their permissions. Never follows what is inside a run's directory.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kennel_process::{Peer, Started};

/// The longest path a socket can have: the kernel's 108 bytes with the closing zero.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// How long a daemon may take from closing its socket, or from being killed, to letting go of its
/// lock: one that was killed while the disk was writing holds it until the disk is done.
const LEAVING_BOUND: Duration = Duration::from_secs(20);
/// Pause between two looks at its lock.
const LEAVING_PAUSE: Duration = Duration::from_millis(5);
/// More than any note of ours in the lock file.
const MAX_NOTE_BYTES: u64 = 512;

/// The places of one kennel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    state: PathBuf,
    socket: PathBuf,
    config: PathBuf,
}

impl Home {
    /// The home this process's environment names.
    pub fn find() -> Result<Self, HomeError> {
        Self::from_env(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, HomeError> {
        let (state, socket, config) = if let Some(home) = get("KENNEL_HOME") {
            let home = std::path::absolute(&home).map_err(|e| HomeError::Io(home.into(), e))?;
            (home.join("state"), home.join("state/socket"), home.join("config"))
        } else {
            let config = match (get("XDG_CONFIG_HOME"), get("HOME")) {
                (Some(config), _) => PathBuf::from(config),
                (None, Some(home)) => PathBuf::from(home).join(".config"),
                (None, None) => return Err(HomeError::Nowhere),
            };
            let state = match (get("XDG_STATE_HOME"), get("HOME")) {
                (Some(state), _) => PathBuf::from(state),
                (None, Some(home)) => PathBuf::from(home).join(".local/state"),
                (None, None) => return Err(HomeError::Nowhere),
            };
            let state = state.join("kennel");
            let socket = match get("XDG_RUNTIME_DIR") {
                Some(runtime) => PathBuf::from(runtime).join("kennel/socket"),
                None => state.join("socket"),
            };
            (state, socket, config.join("kennel"))
        };
        if socket.as_os_str().as_bytes().len() > MAX_SOCKET_PATH_BYTES {
            return Err(HomeError::SocketPathTooLong(socket));
        }
        Ok(Self { state, socket, config })
    }

    /// A home of a test's own.
    #[cfg(test)]
    pub(crate) fn below(dir: &Path) -> Self {
        let [state, config] = ["state", "config"].map(|name| dir.join(name));
        Self { socket: state.join("socket"), state, config }
    }

    /// The API's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where a daemon that was started by itself writes what it has to say.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }

    /// The directory of everything.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The user's own configuration, if there is any.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.config.join("config.toml")
    }

    /// Which repositories' files are trusted.
    pub(crate) fn trust(&self) -> PathBuf {
        self.state.join("trust.json")
    }

    /// Their bytes as they were trusted, each under its SHA-256.
    pub(crate) fn trusted(&self) -> PathBuf {
        self.state.join("trusted")
    }

    /// Held by whoever changes who is trusted.
    pub(crate) fn trust_lock(&self) -> PathBuf {
        self.state.join("trust.lock")
    }

    /// The user's own prices, if there are any.
    pub(crate) fn prices(&self) -> PathBuf {
        self.config.join("prices.json")
    }

    /// What whoever asks over TCP has to show.
    pub(crate) fn token(&self) -> PathBuf {
        self.state.join("token")
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.state.join("runs")
    }

    pub(crate) fn worktrees(&self) -> PathBuf {
        self.state.join("worktrees")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.state.join("kennel.db")
    }

    /// The run of this home that this very process is in, if it is in one.
    pub fn own_run(&self) -> io::Result<Option<String>> {
        let mut known = Vec::new();
        for entry in fs::read_dir(self.state.join("runs")).into_iter().flatten() {
            let dir = entry?.path();
            // Nobody is in a run that is over.
            if kennel_process::has_keeper(&dir) {
                known.extend(kennel_process::recorded_start(&dir).ok().flatten());
            }
        }
        let known: Vec<&Started> = known.iter().collect();
        let found = Peer::above_us()?.run_among(&known)?;
        Ok(found.map(|started| started.run.as_str().to_owned()))
    }

    /// The directory of the run of this id.
    #[must_use]
    pub fn run_dir(&self, run: &str) -> PathBuf {
        self.state.join("runs").join(run)
    }

    /// Makes the directories, for nobody but us.
    pub fn make(&self) -> Result<(), HomeError> {
        let of_socket = self.socket.parent().unwrap_or(&self.state);
        for dir in [&self.state, of_socket, &self.state.join("runs")] {
            make_private(dir).map_err(|e| HomeError::Io(dir.to_owned(), e))?;
        }
        Ok(())
    }

    /// Makes the directory of a run that is about to be admitted. Not made durable: if it is lost,
    /// the machine was started anew, and the intent says when it was made.
    pub(crate) fn make_run_dir(&self, run: &str) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(self.run_dir(run))
    }

    /// Where the daemon that has this home says its socket is.
    #[must_use]
    pub fn noted_socket(&self) -> Option<PathBuf> {
        let note = self.note().ok()?;
        let socket = note.splitn(2, |b| *b == b'\n').nth(1).filter(|path| !path.is_empty())?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(socket)))
    }

    /// True if a daemon has this home, also one that does not serve yet.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let lock = File::open(self.state.join("lock"));
        lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    fn note(&self) -> io::Result<Vec<u8>> {
        let mut note = Vec::new();
        File::open(self.state.join("lock"))?.take(MAX_NOTE_BYTES).read_to_end(&mut note)?;
        Ok(note)
    }

    /// Takes the home for this process, for as long as the returned file is open.
    pub(crate) fn lock(&self) -> Result<File, HomeError> {
        let path = self.state.join("lock");
        let mut how = File::options();
        how.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = how.open(&path).map_err(|e| HomeError::Io(path.clone(), e))?;
        let deadline = Instant::now() + LEAVING_BOUND;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // Who does not answer is just leaving, or just coming: it may be gone in a moment.
                Err(TryLockError::WouldBlock)
                    if Instant::now() < deadline && UnixStream::connect(&self.socket).is_err() =>
                {
                    std::thread::sleep(LEAVING_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    let holder = self.note().unwrap_or_default();
                    let holder = holder.split(|b| *b == b'\n').next().unwrap_or_default();
                    let holder = String::from_utf8_lossy(holder).into_owned();
                    return Err(HomeError::Held { home: self.state.clone(), holder });
                }
                Err(TryLockError::Error(e)) => return Err(HomeError::Io(path, e)),
            }
        }
        // Over the old one and cut afterwards: that needs no space, of which there may be none.
        // With the way to it: whoever has another runtime directory looks for it elsewhere.
        let mut note = format!("process {}\n", std::process::id()).into_bytes();
        note.extend(self.socket.as_os_str().as_bytes());
        let written = file.write_all(&note).and_then(|()| file.set_len(note.len() as u64));
        written.map_err(|e| HomeError::Io(path, e))?;
        Ok(file)
    }
}

fn make_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let found = fs::metadata(dir)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Why there is no home to use.
#[derive(Debug)]
#[non_exhaustive]
pub enum HomeError {
    /// The environment names none.
    Nowhere,
    /// The socket's path is longer than the kernel takes.
    SocketPathTooLong(PathBuf),
    /// Another daemon has it.
    Held {
        /// The directory.
        home: PathBuf,
        /// What its holder says of itself.
        holder: String,
    },
    /// The system refused.
    Io(PathBuf, io::Error),
}

impl fmt::Display for HomeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("neither KENNEL_HOME nor HOME is set: set one of them"),
            Self::SocketPathTooLong(path) => write!(
                f,
                "the socket's path {} has {} bytes and may have {MAX_SOCKET_PATH_BYTES}: \
                 set KENNEL_HOME to a shorter directory",
                path.display(),
                path.as_os_str().as_bytes().len()
            ),
            Self::Held { home, holder } => {
                let holder = if holder.is_empty() { "just starting" } else { holder };
                write!(f, "another daemon ({holder}) has {}", home.display())
            }
            Self::Io(path, e) => write!(f, "failed to use {}: {e}", path.display()),
        }
    }
}

impl std::error::Error for HomeError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(env: &[(&str, &str)]) -> Result<Home, HomeError> {
        Home::from_env(|name| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
    }

    #[test]
    fn kennel_home_comes_before_xdg_before_home() {
        let all = [("KENNEL_HOME", "/k"), ("XDG_STATE_HOME", "/s"), ("HOME", "/h")];
        let with_runtime = [("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/user/1")];
        for (env, state, socket) in [
            (&all[..], "/k/state", "/k/state/socket"),
            (&all[1..], "/s/kennel", "/s/kennel/socket"),
            (&with_runtime[..], "/h/.local/state/kennel", "/run/user/1/kennel/socket"),
        ] {
            let home = home(env).unwrap();
            assert_eq!((home.state, home.socket), (state.into(), socket.into()));
        }
        assert!(matches!(home(&[]), Err(HomeError::Nowhere)));
    }

    #[test]
    fn a_socket_path_the_kernel_would_cut_is_refused_with_the_way_out() {
        let deep = format!("/{}", "d".repeat(100));
        let error = home(&[("KENNEL_HOME", &deep)]).unwrap_err();
        assert!(error.to_string().contains("KENNEL_HOME"), "{error}");
    }
}
