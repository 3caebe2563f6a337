//! The terminal we were started on, lent to a run and given back.
//!
//! Owns: its settings. Whatever the way out is, a return, an error, a panic or a signal, it is left
//! as it was found. Draws nothing of its own.
//!
//! The signals that end us are awaited in a thread, not in the loop that copies: that one may be
//! stuck in a write to the very terminal that has to be given back.

use std::io::{self, IsTerminal, Read};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use kennel_daemon::wire;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr,
    tcgetwinsize, tcsetattr,
};
use rustix::time::Timespec;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use signal_hook::low_level::pipe;

use crate::error::Failure;
use crate::output;

/// Switches off what a program may have switched on and never came to switch off: attributes,
/// hidden cursor, key modes (cursor, keypad, kitty, modifyOtherKeys), mouse and focus reports,
/// bracketed paste, held-back drawing, and the scroll region, without moving the cursor.
const RESET: &[u8] = b"\x1b[m\x1b[?25h\x1b[?1l\x1b>\x1b[=0u\x1b[>4;0m\x1b[?1000l\x1b[?1002l\
    \x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?2004l\x1b[?2026l\x1b7\x1b[r\x1b8";
const ALTERNATE_ON: &[u8] = b"\x1b[?1049h";
const ALTERNATE_OFF: &[u8] = b"\x1b[?1049l";
/// What is told of a run that somebody turned away from.
pub(crate) const DETACHED: &str = "kennel: detached; the run goes on";

/// How much of the terminal a run gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Every key as it is pressed, every byte as it is written: the run has a terminal of its own.
    Raw,
    /// Lines, edited here. This key ends one too, and is seen at once.
    Lines(u8),
}

/// A terminal that is lent.
#[derive(Debug)]
pub(crate) struct Terminal {
    found: Arc<Found>,
    mode: Mode,
    changes: UnixStream,
    /// The end of the last piece that was shown: a sequence may come in two.
    tail: Vec<u8>,
}

/// What is to be given back, and how.
#[derive(Debug)]
struct Found(Mutex<State>);

#[derive(Debug)]
struct State {
    /// None once it is given back.
    settings: Option<Termios>,
    /// A program of the run drew on it as on a screen.
    raw: bool,
    /// It is on its other screen, which has no history.
    alternate: bool,
}

impl Terminal {
    /// Borrows the terminal that is our standard input. `None` if that is something else.
    pub(crate) fn borrow(mode: Mode) -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let settings = tcgetattr(stdin())?;
        let raw = mode == Mode::Raw;
        let state = State { settings: Some(settings), raw, alternate: false };
        let found = Arc::new(Found(Mutex::new(state)));
        // All watches are set before anything is changed: no way out is without one.
        leave_on_signals(found.clone())?;
        give_back_on_panic(found.clone());
        let changes = watch_changes()?;
        let terminal = Self { found, mode, changes, tail: Vec::new() };
        terminal.set()?;
        Ok(Some(terminal))
    }

    /// Sets the mode, again after we were stopped and continued: the shell had the terminal then.
    pub(crate) fn set(&self) -> io::Result<()> {
        let Some(mut settings) = self.found.lock().settings.clone() else { return Ok(()) };
        match self.mode {
            Mode::Raw => settings.make_raw(),
            Mode::Lines(key) => {
                settings.special_codes[SpecialCodeIndex::VEOL] = key;
                settings.local_modes |= LocalModes::ICANON;
            }
        }
        tcsetattr(stdin(), OptionalActions::Now, &settings)?;
        Ok(())
    }

    /// Readable when the size may have changed, or we were continued.
    pub(crate) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Takes note of all changes so far.
    pub(crate) fn changed(&mut self) {
        let mut bytes = [0; 64];
        while self.changes.read(&mut bytes).is_ok_and(|n| n == bytes.len()) {}
        // If it fails there is no terminal any more, and we hear of that otherwise.
        let _ = self.set();
    }

    /// Shows what a run's terminal was sent.
    pub(crate) fn show(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.tail.extend_from_slice(bytes);
        if let Some(alternate) = last_switch(&self.tail) {
            self.found.lock().alternate = alternate;
        }
        let keep = self.tail.len().saturating_sub(ALTERNATE_ON.len() - 1);
        self.tail.drain(..keep);
        output::bytes(bytes, io::stdout())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.found.give_back();
    }
}

impl Found {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the terminal back. True if it had not been already.
    fn give_back(&self) -> bool {
        let mut state = self.lock();
        let Some(settings) = state.settings.take() else { return false };
        // Not drained first: a terminal that takes no more output would keep us for ever.
        if state.raw {
            let _ = tcflush(stdin(), QueueSelector::IFlush);
        }
        let _ = tcsetattr(stdin(), OptionalActions::Now, &settings);
        if state.raw && io::stdout().is_terminal() {
            tell_if_it_can_hear(stdout(), RESET);
            if state.alternate {
                tell_if_it_can_hear(stdout(), ALTERNATE_OFF);
            }
        }
        true
    }
}

/// The size of our terminal, if we have one.
pub(crate) fn size() -> Option<wire::Size> {
    let of = |fd: BorrowedFd<'_>| {
        let size = tcgetwinsize(fd).ok()?;
        let (rows, cols) = (NonZeroU16::new(size.ws_row)?, NonZeroU16::new(size.ws_col)?);
        Some(wire::Size { rows, cols })
    };
    of(stdout()).or_else(|| of(stdin()))
}

/// The last switch between the two screens of a terminal: true for the one without a history.
fn last_switch(bytes: &[u8]) -> Option<bool> {
    bytes.windows(ALTERNATE_ON.len()).rev().find_map(|window| match window {
        ALTERNATE_ON => Some(true),
        ALTERNATE_OFF => Some(false),
        _ => None,
    })
}

fn leave_on_signals(found: Arc<Found>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            if found.give_back() {
                tell_if_it_can_hear(stderr(), format!("\n{DETACHED}\n").as_bytes());
            }
            crate::leave(u8::try_from(128 + signal).unwrap_or(u8::MAX));
        }
    })?;
    Ok(())
}

/// Before the panic is told, so that it can be read.
fn give_back_on_panic(found: Arc<Found>) {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        found.give_back();
        told(panic);
    }));
}

fn watch_changes() -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    pipe::register(SIGWINCH, theirs.try_clone()?)?;
    pipe::register(SIGCONT, theirs)?;
    Ok(ours)
}

/// Without the locks of the standard library, and only if it does not have to wait: another thread
/// may hold those, stuck in a write to the same terminal.
fn tell_if_it_can_hear(to: BorrowedFd<'_>, bytes: &[u8]) {
    let mut fds = [PollFd::new(&to, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0) {
        let _ = rustix::io::write(to, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_switch_of_screens_counts() {
        for (bytes, switch) in [
            (&b"text"[..], None),
            (b"\x1b[?1049h", Some(true)),
            (b"x\x1b[?1049hy\x1b[?1049lz", Some(false)),
            (b"\x1b[?1049l\x1b[?1049h\x1b[2J", Some(true)),
            (b"\x1b[?1049", None),
        ] {
            assert_eq!(last_switch(bytes), switch, "{bytes:?}");
        }
    }
}
