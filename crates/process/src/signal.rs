//! Signals by name. A [`Signal`] is always one the kernel has; sending one needs a process held
//! open.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::sys::signals::LAST_SIGNAL;

/// A signal of this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i32", into = "i32")]
pub struct Signal(i32);

const NAMES: &[(&str, i32)] = &[
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

impl Signal {
    /// Hang-up.
    pub const HUP: Self = Self(libc::SIGHUP);
    /// Interrupt, as Ctrl-C.
    pub const INT: Self = Self(libc::SIGINT);
    /// Quit.
    pub const QUIT: Self = Self(libc::SIGQUIT);
    /// The polite request to end.
    pub const TERM: Self = Self(libc::SIGTERM);
    /// The end, without asking.
    pub const KILL: Self = Self(libc::SIGKILL);
    /// Go on after a stop.
    pub const CONT: Self = Self(libc::SIGCONT);
    /// Stand still.
    pub const STOP: Self = Self(libc::SIGSTOP);
    /// First of the two without a meaning of their own.
    pub const USR1: Self = Self(libc::SIGUSR1);
    /// Second of the two without a meaning of their own.
    pub const USR2: Self = Self(libc::SIGUSR2);

    /// The signal with this number, if there is one. Zero is a probe, not a signal.
    #[must_use]
    pub fn new(number: i32) -> Option<Self> {
        (1..=LAST_SIGNAL).contains(&number).then_some(Self(number))
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }
}

/// A name or number that is no signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASignal(String);

impl fmt::Display for NotASignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a signal: use a name such as TERM or a number from 1 to 64", self.0)
    }
}

impl std::error::Error for NotASignal {}

impl FromStr for Signal {
    type Err = NotASignal;

    /// Reads `TERM`, `sigterm` or `15`.
    fn from_str(text: &str) -> Result<Self, NotASignal> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let named = NAMES.iter().find(|(n, _)| *n == name).map(|(_, number)| *number);
        let number = named.or_else(|| name.parse().ok());
        number.and_then(Self::new).ok_or_else(|| NotASignal(text.to_owned()))
    }
}

impl TryFrom<i32> for Signal {
    type Error = NotASignal;

    fn try_from(number: i32) -> Result<Self, NotASignal> {
        Self::new(number).ok_or_else(|| NotASignal(number.to_string()))
    }
}

impl From<Signal> for i32 {
    fn from(signal: Signal) -> Self {
        signal.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => write!(f, "SIG{name}"),
            None => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_nonsense() {
        for text in ["TERM", "term", "SIGTERM", "sigterm", "15"] {
            assert_eq!(text.parse(), Ok(Signal::TERM), "{text}");
        }
        for text in ["0", "65", "-9", "", "SIG", "TERMINATE", "SIGSIGTERM"] {
            assert!(text.parse::<Signal>().is_err(), "{text}");
        }
        assert_eq!(Signal::KILL.to_string(), "SIGKILL");
        assert_eq!(Signal::new(40).unwrap().to_string(), "signal 40");
    }
}
