//! Named points at which a test may kill, stop or fail this process. Nothing at all in shipped
//! builds.
//!
//! With the feature `failpoints`, the variable `KENNEL_FAILPOINT` holds `NAME=ACTION` pairs,
//! separated by `;`. The actions: `kill` (SIGKILL ourselves), `stop` (SIGSTOP ourselves, until
//! somebody sends SIGCONT or SIGKILL), `errno:N` (fail with that error), `panic`.

use std::io;

/// Does what a test asked to happen here; in shipped builds an empty function.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[expect(clippy::unnecessary_wraps, reason = "it fails in builds with failpoints")]
pub(crate) fn failpoint(_name: &str) -> io::Result<()> {
    Ok(())
}

/// Does what a test asked to happen here.
#[cfg(feature = "failpoints")]
pub(crate) fn failpoint(name: &str) -> io::Result<()> {
    let Ok(wanted) = std::env::var("KENNEL_FAILPOINT") else {
        return Ok(());
    };
    let action = wanted.split(';').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let action = action.filter(|action| match action.split_once('@') {
        Some((_, nth)) => nth.parse() == Ok(passed(name)),
        None => true,
    });
    match action.map(|action| action.split('@').next().unwrap_or(action)) {
        None => Ok(()),
        Some("kill") => raise(rustix::process::Signal::KILL),
        Some("stop") => raise(rustix::process::Signal::STOP),
        Some("panic") => panic!("failpoint {name}"),
        Some(other) => {
            let errno = other.strip_prefix("errno:").and_then(|n| n.parse().ok());
            Err(io::Error::from_raw_os_error(errno.expect("a known failpoint action")))
        }
    }
}

/// How often this point has been passed, this time included.
#[cfg(feature = "failpoints")]
fn passed(name: &str) -> u32 {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};
    static PASSED: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    let times = passed.entry(name.to_owned()).or_insert(0);
    *times += 1;
    *times
}

#[cfg(feature = "failpoints")]
#[expect(clippy::disallowed_methods, reason = "ourselves, who cannot be anybody else")]
fn raise(signal: rustix::process::Signal) -> io::Result<()> {
    Ok(rustix::process::kill_process(rustix::process::getpid(), signal)?)
}
