//! How the leader ended. Owns the only conversions from what the kernel says to what kennel says.
//!
//! Never invents a status: what nobody can know any more is [`ExitStatus::Unknown`], with the
//! reason.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sys::wait::WaitStatus;

/// How the leader ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It called `exit` with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// The kernel no longer knows, and why.
    Unknown(UnknownStatus),
}

/// Why a status cannot be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownStatus {
    /// The machine was started anew since.
    Reboot,
    /// The keeper died first, and the leader was collected by somebody else.
    KeeperLost,
    /// It never became the program that was asked for.
    NeverStarted,
}

impl ExitStatus {
    /// The code a shell would report: the exit code, or 128 plus the signal. `None` if unknown.
    #[must_use]
    pub fn shell_code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            Self::Signaled(signal) => Some(128 + signal),
            Self::Unknown(_) => None,
        }
    }

    /// True for exit code 0 alone.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// From the status word of `wait(2)`, as a pidfd tells it after the process was reaped.
    pub(crate) fn from_wait_word(word: i32) -> Self {
        match word & 0x7f {
            0 => Self::Exited((word >> 8) & 0xff),
            signal => Self::Signaled(signal),
        }
    }
}

impl From<WaitStatus> for ExitStatus {
    fn from(status: WaitStatus) -> Self {
        match status {
            WaitStatus::Exited(code) => Self::Exited(code),
            WaitStatus::Signaled(signal) => Self::Signaled(signal),
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with {code}"),
            Self::Signaled(n) => match crate::Signal::new(*n) {
                Some(signal) => write!(f, "ended by {signal}"),
                None => write!(f, "ended by signal {n}"),
            },
            Self::Unknown(why) => write!(f, "status unknown: {why}"),
        }
    }
}

impl fmt::Display for UnknownStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reboot => "the machine was restarted",
            Self::KeeperLost => "the keeper died before it could record one",
            Self::NeverStarted => "it never started",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_words_convert_like_the_macros_of_wait_h() {
        for (word, expected) in [
            (0x0000, ExitStatus::Exited(0)),
            (0x0100, ExitStatus::Exited(1)),
            (0xff00, ExitStatus::Exited(255)),
            (0x0009, ExitStatus::Signaled(9)),
            (0x008b, ExitStatus::Signaled(11)),
        ] {
            assert_eq!(ExitStatus::from_wait_word(word), expected, "{word:#x}");
        }
    }

    #[test]
    fn the_json_is_the_contract_of_the_command_line() {
        let json = |s: ExitStatus| serde_json::to_string(&s).unwrap();
        assert_eq!(json(ExitStatus::Exited(3)), r#"{"exited":3}"#);
        assert_eq!(json(ExitStatus::Signaled(9)), r#"{"signaled":9}"#);
        let unknown = ExitStatus::Unknown(UnknownStatus::KeeperLost);
        assert_eq!(json(unknown), r#"{"unknown":"keeper_lost"}"#);
    }
}
