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
    match action {
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

#[cfg(feature = "failpoints")]
fn raise(signal: rustix::process::Signal) -> io::Result<()> {
    Ok(rustix::process::kill_process(rustix::process::getpid(), signal)?)
}
