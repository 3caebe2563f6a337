//! Pseudo-terminals: opening a pair, its size, reading the master.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::spec::TerminalSize;

/// Both ends of a new terminal. The master stays with the keeper: closing it hangs up the session.
pub(crate) struct Pair {
    pub(crate) master: OwnedFd,
    pub(crate) slave: OwnedFd,
}

pub(crate) fn open(size: TerminalSize) -> io::Result<Pair> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    resize(&master, size)?;
    Ok(Pair { master, slave })
}

/// Sets the size; the kernel tells the foreground group by SIGWINCH if it changed.
pub(crate) fn resize(master: impl AsFd, size: TerminalSize) -> io::Result<()> {
    let (ws_row, ws_col) = (size.rows.get(), size.cols.get());
    let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}
