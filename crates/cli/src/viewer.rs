//! Our side of an attachment, over all its connections: what is shown, typed and told.
//!
//! Owns: one loop that copies both ways and never waits for one side only, and who may write.
//! Makes no connection but the one it was asked to make anew. The terminal's settings are
//! `terminal.rs`'s, keys are `keys.rs`'s.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kennel_daemon::wire::{self, AttachMessage};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::stdin;
use rustix::time::Timespec;

use crate::client::Client;
use crate::commands::send::{self, Feed};
use crate::error::{Failure, RUN_FAILED};
use crate::keys::{DetachKey, Keys, Typed};
use crate::output::{self, say};
use crate::socket::{Gone, Heard, Link};
use crate::terminal::{self, Mode, Terminal};

/// Pause before a screen is asked for again that came faster than our terminal takes it.
const REDRAW_PAUSE: Duration = Duration::from_millis(200);
/// How often the right to write is asked back after a connection was made again, 20 ms apart: the
/// daemon may not have noticed yet that the old one is gone.
const REGAIN_TRIES: u32 = 25;
const REGAIN_PAUSE: Duration = Duration::from_millis(20);
/// The most that is typed or pasted in one piece.
const TYPED_BYTES: usize = 16 << 10;
/// How much is shown before what is typed gets its turn, in messages.
const MESSAGES_PER_TURN: u32 = 64;
/// The bytes that say which stream output belongs to.
const STDERR: u8 = 2;

/// How somebody wants to be attached.
pub(crate) struct How {
    pub(crate) read_only: bool,
    pub(crate) key: DetachKey,
    /// Its command was given here: what it does is expected, and all it wrote is wanted.
    pub(crate) begun_here: bool,
}

/// Why a connection is not used any more.
pub(crate) enum Left {
    /// The run is over, or its keeper is gone.
    Ended,
    /// We were told to leave it.
    Detached,
    /// The daemon is gone.
    Gone(Gone),
    /// It has to be made anew, after a pause.
    Again(Duration),
}

impl From<Gone> for Left {
    fn from(gone: Gone) -> Self {
        Self::Gone(gone)
    }
}

/// Our side of an attachment, over all its connections.
pub(crate) struct Viewer<'a> {
    client: &'a Client,
    run: &'a wire::Run,
    how: &'a How,
    terminal: Option<Terminal>,
    keys: Keys,
    right: Right,
    /// How often the right to write was asked back.
    regained: u32,
    fed: Option<Fed>,
    /// Something of the run was shown.
    shown: bool,
    /// The last refusal that was told: one sentence for a whole paste is enough.
    refused: Option<String>,
}

/// What we may do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Right {
    /// Not known yet.
    Unknown,
    /// Write; so we do, unless the run has no input or it was closed.
    Write {
        open: bool,
    },
    Look,
}

/// The thread that passes on an input of ours that is no terminal.
struct Fed {
    /// Readable when it is done.
    done: UnixStream,
    result: mpsc::Receiver<Result<(), Failure>>,
}

/// What became ready.
#[derive(Default)]
struct Ready {
    typed: bool,
    changed: bool,
    fed: bool,
}

impl<'a> Viewer<'a> {
    pub(crate) fn new(
        client: &'a Client,
        run: &'a wire::Run,
        how: &'a How,
    ) -> Result<Self, Failure> {
        let mode = if run.pty { Mode::Raw } else { Mode::Lines(how.key.byte()) };
        let terminal = Terminal::borrow(mode).map_err(|e| {
            Failure::new(RUN_FAILED, "terminal", format!("failed to use the terminal: {e}"))
        })?;
        Ok(Self {
            client,
            run,
            how,
            terminal,
            keys: Keys::new(&how.key),
            right: Right::Unknown,
            regained: 0,
            fed: None,
            shown: false,
            refused: None,
        })
    }

    /// Copies both ways until there is a reason to leave.
    pub(crate) fn serve(&mut self, link: &mut Link) -> Result<Left, Failure> {
        loop {
            let more = match self.hear(link)? {
                Turn::Left(left) => return Ok(left),
                Turn::More => true,
                Turn::Over => false,
            };
            let ready = self.wait(link, more)?;
            let sent = if link.is_behind() { link.flush() } else { Ok(()) };
            if let Err(gone) = sent {
                return Ok(gone.into());
            }
            if ready.changed
                && let Err(gone) = self.resized(link)
            {
                return Ok(gone.into());
            }
            if ready.typed
                && let Some(left) = self.take_typed(link)?
            {
                return Ok(left);
            }
            if ready.fed
                && let Some(left) = self.take_fed()?
            {
                return Ok(left);
            }
            if self.keys.deadline().is_some_and(|at| Instant::now() >= at) {
                return Ok(Left::Detached);
            }
        }
    }

    /// Shows what has come, a bounded amount.
    fn hear(&mut self, link: &mut Link) -> Result<Turn, Failure> {
        for _ in 0..MESSAGES_PER_TURN {
            let heard = match link.hear() {
                Ok(Some(heard)) => heard,
                Ok(None) => return Ok(Turn::Over),
                Err(gone) => return Ok(Turn::Left(gone.into())),
            };
            let left = match heard {
                Heard::Output(bytes) => {
                    self.show(&bytes)?;
                    None
                }
                Heard::Message(message) => self.told(message, link),
                Heard::Other => None,
            };
            if let Some(left) = left {
                return Ok(Turn::Left(left));
            }
        }
        Ok(Turn::More)
    }

    fn show(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let Some((stream, bytes)) = bytes.split_first() else { return Ok(()) };
        self.shown = true;
        match &mut self.terminal {
            _ if *stream == STDERR => output::bytes(bytes, io::stderr()),
            Some(terminal) if self.run.pty => terminal.show(bytes),
            Some(_) | None => output::bytes(bytes, io::stdout()),
        }
    }

    fn told(&mut self, message: AttachMessage, link: &mut Link) -> Option<Left> {
        match message {
            AttachMessage::Attached { writer, .. } => self.attached(writer, link),
            AttachMessage::Ended => Some(Left::Ended),
            // What is on the screen does not fit together any more: it has to come anew.
            AttachMessage::Skipped(_) if self.run.pty => Some(Left::Again(REDRAW_PAUSE)),
            AttachMessage::Skipped(bytes) => {
                self.note(&format!("kennel: {bytes} bytes came too fast; `kennel logs` has them"));
                None
            }
            AttachMessage::Refused(error) => {
                if self.refused.as_ref() != Some(&error.code) {
                    self.note(&format!("kennel: input was not taken: {}", error.message));
                    self.refused = Some(error.code);
                }
                None
            }
            AttachMessage::Resize(_) | AttachMessage::CloseStdin => None,
        }
    }

    /// The first word of every connection.
    fn attached(&mut self, writer: bool, link: &mut Link) -> Option<Left> {
        let before = self.right;
        match before {
            Right::Unknown => self.greet(writer),
            Right::Write { .. } if !writer && self.regained < REGAIN_TRIES => {
                self.regained += 1;
                return Some(Left::Again(REGAIN_PAUSE));
            }
            Right::Write { .. } if !writer => {
                self.note("kennel: somebody else writes to this run now; you can look");
            }
            Right::Write { .. } | Right::Look if !self.run.pty => {
                self.note("kennel: attached again; `kennel logs` has what was written meanwhile");
            }
            Right::Write { .. } | Right::Look => {}
        }
        self.regained = 0;
        self.right = match (writer, before) {
            (false, _) => Right::Look,
            // What was closed stays closed.
            (true, Right::Write { open }) => Right::Write { open },
            (true, Right::Unknown | Right::Look) => {
                Right::Write { open: self.run.pty || self.run.stdin }
            }
        };
        if self.right == (Right::Write { open: true })
            && self.terminal.is_none()
            && self.fed.is_none()
        {
            self.feed();
        }
        self.resized(link).err().map(Left::from)
    }

    /// Told once, before the screen comes.
    fn greet(&self, writer: bool) {
        let id = &self.run.id;
        let only = match (writer, self.how.read_only) {
            (true, _) | (false, true) => "",
            (false, false) => "; somebody else writes to it, you can look",
        };
        if self.terminal.is_none() {
            if !only.is_empty() {
                self.note(&format!("kennel: attached to run {id}{only}"));
            }
            return;
        }
        let key = self.how.key.name();
        self.note(&format!("kennel: attached to run {id}; {key} detaches{only}"));
        // The screen comes next and begins by clearing ours: what is on it is scrolled away first.
        if let Some(size) = terminal::size().filter(|_| self.run.pty) {
            let _ = output::bytes(&b"\n".repeat(usize::from(size.rows.get())), io::stdout());
        }
    }

    /// The size is the writer's: tells the run ours.
    fn resized(&mut self, link: &mut Link) -> Result<(), Gone> {
        if let Some(terminal) = &mut self.terminal {
            terminal.changed();
        }
        match (self.right, terminal::size()) {
            (Right::Write { .. }, Some(size)) if self.run.pty => {
                link.say(&AttachMessage::Resize(size))
            }
            (Right::Write { .. } | Right::Look | Right::Unknown, Some(_) | None) => Ok(()),
        }
    }

    /// Passes on what is typed.
    fn take_typed(&mut self, link: &mut Link) -> Result<Option<Left>, Failure> {
        let mut buffer = [0; TYPED_BYTES];
        let n = match rustix::io::read(stdin(), &mut buffer) {
            Ok(n) => n,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(None),
            Err(_) => return Err(Failure::TerminalClosed),
        };
        if n == 0 {
            return self.end_of_typing(link);
        }
        let Typed { bytes, detach } = self.keys.take(&buffer[..n], Instant::now());
        if self.right == (Right::Write { open: true })
            && !bytes.is_empty()
            && let Err(gone) = link.send(bytes)
        {
            return Ok(Some(gone.into()));
        }
        Ok(detach.then_some(Left::Detached))
    }

    /// Ctrl-D on an empty line: for a run without a terminal it is the end of its input. A raw
    /// terminal has no end but its own.
    fn end_of_typing(&mut self, link: &mut Link) -> Result<Option<Left>, Failure> {
        if self.run.pty {
            return Err(Failure::TerminalClosed);
        }
        if self.right == (Right::Write { open: true }) {
            self.right = Right::Write { open: false };
            return Ok(link.say(&AttachMessage::CloseStdin).err().map(Left::from));
        }
        Ok(None)
    }

    /// Has a thread pass on an input of ours that is no terminal. By requests that are answered,
    /// not over the connection: a script's input is long, and no piece of it may get lost.
    fn feed(&mut self) {
        let Ok((done, theirs)) = UnixStream::pair() else { return };
        let (tell, result) = mpsc::sync_channel(1);
        let (client, id, pty) = (self.client.clone(), self.run.id.clone(), self.run.pty);
        std::thread::spawn(move || {
            let mut feed = Feed::new(&client, &id, None);
            let copied = feed.copy(send::stdin());
            let _ = tell.send(copied.and_then(|()| if pty { Ok(()) } else { feed.close() }));
            drop(theirs);
        });
        self.fed = Some(Fed { done, result });
    }

    /// The end of an input of ours that is no terminal.
    fn take_fed(&mut self) -> Result<Option<Left>, Failure> {
        let Some(fed) = &self.fed else { return Ok(None) };
        let result = fed.result.try_recv();
        self.right = Right::Write { open: false };
        match result {
            Ok(Ok(())) if self.run.pty => Ok(Some(Left::Detached)),
            Ok(Err(Failure::Told { error, .. })) if send::is_over(&error.code) => Ok(None),
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(())) | Err(_) => Ok(None),
        }
    }

    /// Waits until something is ready, or a key that was pressed once is to be obeyed.
    fn wait(&self, link: &Link, more: bool) -> Result<Ready, Failure> {
        let behind = link.is_behind();
        let flags = if behind { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let (stdin, changes) = (stdin(), self.terminal.as_ref().map(Terminal::changes));
        let feeding = self.fed.as_ref().filter(|_| self.right == (Right::Write { open: true }));
        let mut fds = vec![PollFd::new(link, flags)];
        let mut add = |fd| {
            fds.push(fd);
            fds.len() - 1
        };
        let changed = changes.as_ref().map(|fd| add(PollFd::new(fd, PollFlags::IN)));
        // Nothing more is taken from the terminal than the other side takes from us.
        let types = self.terminal.is_some() && !behind;
        let typed = types.then(|| add(PollFd::new(&stdin, PollFlags::IN)));
        let fed = feeding.map(|fed| add(PollFd::new(&fed.done, PollFlags::IN)));
        let left = if more { Some(Duration::ZERO) } else { self.time_left() };
        let left = left.map(|left| Timespec::try_from(left).unwrap_or_default());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(e) => {
                let message = format!("failed to wait for the terminal: {e}");
                return Err(Failure::new(RUN_FAILED, "internal", message));
            }
        }
        let is = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        Ok(Ready { typed: is(typed), changed: is(changed), fed: is(fed) })
    }

    fn time_left(&self) -> Option<Duration> {
        self.keys.deadline().map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// True if a connection that is made anew must not ask for the right to write: whoever could
    /// only look does not take it from who had it.
    pub(crate) fn only_looks(&self) -> bool {
        self.how.read_only || self.right == Right::Look
    }

    pub(crate) fn has_shown(&self) -> bool {
        self.shown
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.terminal.is_some() && self.run.pty
    }

    /// Says something to people in between. A raw terminal needs to be told to begin a line.
    fn note(&self, text: &str) {
        if self.is_raw() {
            say(&format!("\r{text}\r"));
        } else {
            say(text);
        }
    }
}

/// What a turn of listening came to.
enum Turn {
    Left(Left),
    /// There may be more.
    More,
    /// There is no more for now.
    Over,
}
