//! Who was trusted: a file in the home with the path and the SHA-256 of each repository's file that
//! the user has let run, and beside it these files' bytes, so that what was trusted last can count
//! after a restart too, whatever was made of the repository's file since.
//!
//! Owns: that file and the copies. They are written by the command alone, under a lock, whole and
//! durable before they count; the daemon only reads them, so that no request over the API can trust
//! anything. Damage is told and never read as nothing; a copy that is damaged or gone is none,
//! which costs no more than to trust again.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::MAX_FILE_BYTES;
use crate::home::Home;
use crate::time::Time;

/// The version of the file's shape.
const VERSION: u32 = 1;
/// More than ten thousand entries take: what is larger is no file of ours.
const MAX_TRUST_BYTES: u64 = 4 << 20;

/// A file that was trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trusted {
    /// Its path, with links resolved.
    pub file: String,
    /// The SHA-256 of its bytes, in hexadecimal digits.
    pub sha256: String,
    /// When.
    pub at: Time,
}

#[derive(Serialize, Deserialize)]
struct Written {
    v: u32,
    trusted: Vec<Trusted>,
}

/// Why trust could not be read or given.
#[derive(Debug)]
pub enum TrustError {
    /// The system refused.
    Io(PathBuf, io::Error),
    /// What lies there is not what was written.
    Damaged(PathBuf, String),
    /// A later kennel wrote it.
    TooNew(PathBuf, u32),
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, e) => write!(f, "failed to use {}: {e}", path.display()),
            Self::Damaged(path, why) => {
                let path = path.display();
                write!(f, "{path} does not read: {why}; remove it, and trust again what you trust")
            }
            Self::TooNew(path, v) => {
                write!(f, "{} is of version {v}, and {VERSION} is known here", path.display())
            }
        }
    }
}

impl std::error::Error for TrustError {}

/// The SHA-256 of some bytes, in hexadecimal digits.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a file that may be configuration: an ordinary one, whole, and not more than one may have.
/// `None` if there is none.
pub fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut how = File::options();
    // Without this a pipe in its place would be waited for.
    how.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let file = match how.open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not an ordinary file"));
    }
    let mut bytes = Vec::new();
    // One byte more than it may have, so that too much is seen to be too much.
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Every file that is trusted.
pub fn list(home: &Home) -> Result<Vec<Trusted>, TrustError> {
    let path = home.trust();
    let mut text = String::new();
    let read = File::open(&path).and_then(|f| f.take(MAX_TRUST_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(TrustError::Io(path, e)),
    }
    match serde_json::from_str::<Written>(&text) {
        Ok(written) if written.v > VERSION => Err(TrustError::TooNew(path, written.v)),
        Ok(written) => Ok(written.trusted),
        Err(e) => Err(TrustError::Damaged(path, e.to_string())),
    }
}

/// The bytes that were trusted under this SHA-256, if they are kept and are still these.
pub(super) fn kept(home: &Home, digest: &str) -> Option<Vec<u8>> {
    // A name that is no digest may be any path: then its bytes are not the ones it says.
    let bytes = read_file(&home.trusted().join(digest)).ok().flatten()?;
    (sha256(&bytes) == digest).then_some(bytes)
}

/// Trusts a file with exactly these bytes, in the place of what was trusted before.
pub fn give(home: &Home, file: &str, bytes: &[u8]) -> Result<Trusted, TrustError> {
    let trusted = Trusted { file: file.to_owned(), sha256: sha256(bytes), at: Time::now() };
    let new = trusted.clone();
    change(home, |all| {
        all.retain(|other| other.file != new.file);
        all.push(new);
        let copy = home.trusted().join(&trusted.sha256);
        keep(&copy, bytes).map_err(|e| TrustError::Io(copy, e))
    })?;
    Ok(trusted)
}

/// Trusts a file no more. False if it was not trusted.
pub fn revoke(home: &Home, file: &str) -> Result<bool, TrustError> {
    let mut was = false;
    change(home, |all| {
        let before = all.len();
        all.retain(|other| other.file != file);
        was = all.len() < before;
        Ok(())
    })?;
    Ok(was)
}

fn change(
    home: &Home,
    edit: impl FnOnce(&mut Vec<Trusted>) -> Result<(), TrustError>,
) -> Result<(), TrustError> {
    let path = home.trust();
    let failed = |e: io::Error| TrustError::Io(path.clone(), e);
    home.make().map_err(|e| failed(io::Error::other(e)))?;
    let lock = File::options().create(true).append(true).mode(0o600).open(home.trust_lock());
    let lock = lock.map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut all = list(home)?;
    edit(&mut all)?;
    let written = Written { v: VERSION, trusted: all };
    let json = serde_json::to_vec(&written).map_err(|e| failed(io::Error::other(e)))?;
    replace(&path, &json).map_err(failed)?;
    sweep(home, &written.trusted);
    Ok(())
}

/// Keeps a copy of what is about to be trusted.
fn keep(copy: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = copy.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    replace(copy, bytes)
}

/// Removes copies of what is trusted no more. One that stays is in nobody's way.
fn sweep(home: &Home, trusted: &[Trusted]) {
    for entry in fs::read_dir(home.trusted()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !trusted.iter().any(|known| name == known.sha256.as_str()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Puts a file in the place of another at once, and on the disk.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut how = File::options();
    let mut file = how.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}
