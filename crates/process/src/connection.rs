//! A connection to a keeper: ask it, watch it, follow its output.
//!
//! Owns: the client's side of the protocol of [`control`](crate::control). Blocking, with a
//! deadline on every wait; [`AsFd`] lets an event loop wait instead. What it says of a run is what
//! the keeper said.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::control::{
    Answer, Do, Event, Frame, MAX_FRAME_BYTES, PROTOCOL, Refusal, Reply, Request, Status,
    input_frame, json_frame,
};
use crate::identity::{Identity, Liveness};
use crate::keeper::through;
use crate::output::Stream;
use crate::record::{Cause, End, History, RunDir};
use crate::{Signal, TerminalSize};

/// How long a keeper may take to answer. It is single-threaded and never waits for anybody, so this
/// only passes on a machine in trouble.
pub const ANSWER_BOUND: Duration = Duration::from_secs(10);
/// The most input in one frame.
const INPUT_FRAME_BYTES: usize = 64 << 10;
/// Events and output that wait to be taken while an answer is awaited.
const MAX_WAITING: usize = 4096;

/// A connection to the keeper of one run.
#[derive(Debug)]
pub struct Connection {
    dir: RunDir,
    stream: UnixStream,
    received: Vec<u8>,
    waiting: VecDeque<Told>,
    next_id: u64,
}

/// A request whose answer is still to come.
#[derive(Debug)]
#[must_use]
pub struct Asked(u64);

/// Something a keeper tells without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Something happened.
    Event(Event),
    /// Output of the run, for those who attached.
    Output {
        /// Which stream.
        stream: Stream,
        /// Where in it the bytes begin.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// What draws the current screen of a terminal.
    Screen {
        /// Up to which byte of the terminal's stream it stands for.
        offset: u64,
        /// The bytes to write to a terminal of the same size.
        bytes: Vec<u8>,
    },
}

impl Connection {
    /// Connects to the keeper of the run in this directory.
    pub fn open(dir: &Path) -> Result<Self, ConnectionError> {
        let held = File::open(dir).map_err(ConnectionError::NoKeeper)?;
        let stream = UnixStream::connect(through(&held)).map_err(ConnectionError::NoKeeper)?;
        let dir = RunDir::new(dir);
        check_peer(&dir, &stream)?;
        let mut connection = Self::new(dir, stream, Vec::new());
        match connection.ask(Do::Hello { protocol: PROTOCOL })? {
            Reply::Hello { .. } => Ok(connection),
            Reply::Done | Reply::Status(_) | Reply::StartFailed(_) => Err(unexpected()),
        }
    }

    pub(crate) fn new(dir: RunDir, stream: UnixStream, received: Vec<u8>) -> Self {
        Self { dir, stream, received, waiting: VecDeque::new(), next_id: 1 }
    }

    /// What the keeper knows of its run.
    pub fn status(&mut self) -> Result<Status, ConnectionError> {
        self.ask_status(Do::Status)
    }

    /// Asks the run to stop, and has it forced after `grace` (the run's own grace if `None`).
    /// Returns when the stop is recorded and under way; [`wait_end`](Self::wait_end) waits for the
    /// proof.
    pub fn stop(&mut self, grace: Option<Duration>) -> Result<(), ConnectionError> {
        self.stop_because(Cause::Stopped, grace)
    }

    /// Like [`stop`](Self::stop), with a cause to be recorded if this is the first request.
    pub fn stop_because(
        &mut self,
        cause: Cause,
        grace: Option<Duration>,
    ) -> Result<(), ConnectionError> {
        let grace_ms = grace.map(|g| g.as_millis() as u64);
        let asked = self.ask_done(Do::Stop { cause, grace_ms });
        self.unless_ended(asked)
    }

    /// Has the run forced to end now.
    pub fn kill(&mut self) -> Result<(), ConnectionError> {
        let asked = self.ask_done(Do::Kill { cause: Cause::Killed });
        self.unless_ended(asked)
    }

    /// Sends a signal to the leader.
    pub fn signal(&mut self, signal: Signal) -> Result<(), ConnectionError> {
        self.ask_done(Do::Signal { signal: signal.number() })
    }

    /// Writes to the run's standard input or terminal. The keeper queues a bounded amount for a run
    /// that does not read, then refuses with [`InputFull`](crate::RefusalCode::InputFull).
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        for part in bytes.chunks(INPUT_FRAME_BYTES) {
            let id = self.take_id();
            self.send(&input_frame(id, part))?;
            self.reply_to(id)?;
        }
        Ok(())
    }

    /// Closes the run's standard input once it has read all that was written.
    pub fn close_stdin(&mut self) -> Result<(), ConnectionError> {
        self.ask_done(Do::CloseStdin)
    }

    /// Changes the size of the run's terminal.
    pub fn resize(&mut self, size: TerminalSize) -> Result<(), ConnectionError> {
        self.ask_done(Do::Resize(size))
    }

    /// Asks to be told of every event from here on; the status is that of the same moment.
    pub fn watch(&mut self) -> Result<Status, ConnectionError> {
        self.ask_status(Do::Watch { ack: false })
    }

    /// Like [`watch`](Self::watch), and has the keeper wait, a bounded time, for [`ack`](Self::ack)
    /// after the end: for whoever keeps the books.
    pub fn watch_and_ack(&mut self) -> Result<Status, ConnectionError> {
        let asked = self.ask_to_watch_and_ack()?;
        self.status_asked_for(asked)
    }

    /// Asks for the same and does not wait for the answer: a short run is over before who started
    /// it has come to that, and a keeper that is busy with an end answers after it.
    pub fn ask_to_watch_and_ack(&mut self) -> Result<Asked, ConnectionError> {
        self.send_request(Do::Watch { ack: true })
    }

    /// Waits for the status that was asked for.
    pub fn status_asked_for(&mut self, Asked(id): Asked) -> Result<Status, ConnectionError> {
        status_in(self.reply_to(id)?)
    }

    /// Says that the end has been stored: the keeper may leave.
    pub fn ack(&mut self) -> Result<(), ConnectionError> {
        self.ask_done(Do::Ack)
    }

    /// Tells the run's meter what others used on its behalf: all of it, in the meter's own words.
    /// A keeper from before there were charges refuses.
    pub fn charge(&mut self, charge: &str) -> Result<(), ConnectionError> {
        self.ask_done(Do::Charge(charge.to_owned()))
    }

    /// Asks for the output as it comes. For a terminal its current screen comes first.
    pub fn attach(&mut self) -> Result<Status, ConnectionError> {
        self.ask_status(Do::Attach)
    }

    /// Asks for no more output.
    pub fn detach(&mut self) -> Result<(), ConnectionError> {
        self.ask_done(Do::Detach)
    }

    /// Waits for the next thing the keeper tells; `Ok(None)` when the time is over.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Told>, ConnectionError> {
        if let Some(told) = self.waiting.pop_front() {
            return Ok(Some(told));
        }
        let deadline = Instant::now() + timeout;
        loop {
            match self.receive(deadline)? {
                None => return Ok(None),
                Some(Heard::Told(told)) => return Ok(Some(told)),
                // An answer to nobody: a refusal for the connection as a whole.
                Some(Heard::Reply { result: Err(refusal), .. }) => {
                    return Err(ConnectionError::Refused(refusal));
                }
                Some(Heard::Reply { .. }) => {}
            }
        }
    }

    /// Watches until the run has ended, or is stuck, or the time is over. A keeper leaves when its
    /// work is done: then its record answers. An error therefore means that the keeper died before
    /// the end.
    pub fn wait_end(&mut self, timeout: Duration) -> Result<Waited, ConnectionError> {
        let watched = self.watch_end(timeout);
        if watched.is_err()
            && let Some(end) = self.recorded_end()
        {
            return Ok(Waited::Ended(Box::new(end)));
        }
        watched
    }

    /// The end, if the run's record has one.
    fn recorded_end(&self) -> Option<End> {
        History::read(&self.dir).ok().flatten().and_then(|history| history.end().cloned())
    }

    /// To stop what has ended is to have it so already.
    fn unless_ended(&self, asked: Result<(), ConnectionError>) -> Result<(), ConnectionError> {
        match asked {
            Err(ConnectionError::KeeperLeft | ConnectionError::Broken(_))
                if self.recorded_end().is_some() =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn watch_end(&mut self, timeout: Duration) -> Result<Waited, ConnectionError> {
        let deadline = Instant::now() + timeout;
        let status = self.watch()?;
        if let Some(end) = status.end {
            return Ok(Waited::Ended(Box::new(end)));
        }
        if status.state == crate::State::Stuck {
            let count = status.survivor_count;
            return Ok(Waited::Stuck { survivors: status.survivors, count });
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next(left)? {
                None => return Ok(Waited::TimedOut),
                Some(Told::Event(Event::Ended(end))) => return Ok(Waited::Ended(end)),
                Some(Told::Event(Event::Stuck { survivors, count })) => {
                    return Ok(Waited::Stuck { survivors, count });
                }
                Some(Told::Event(
                    Event::Stopping(_)
                    | Event::Exited(_)
                    | Event::Warned(_)
                    | Event::Usage(_)
                    | Event::Outside { .. }
                    | Event::Skipped { .. },
                )) => {}
                Some(Told::Output { .. } | Told::Screen { .. }) => {}
            }
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn ask_done(&mut self, what: Do) -> Result<(), ConnectionError> {
        match self.ask(what)? {
            Reply::Done => Ok(()),
            Reply::Hello { .. } | Reply::Status(_) | Reply::StartFailed(_) => Err(unexpected()),
        }
    }

    fn ask_status(&mut self, what: Do) -> Result<Status, ConnectionError> {
        status_in(self.ask(what)?)
    }

    fn ask(&mut self, what: Do) -> Result<Reply, ConnectionError> {
        let Asked(id) = self.send_request(what)?;
        self.reply_to(id)
    }

    fn send_request(&mut self, what: Do) -> Result<Asked, ConnectionError> {
        let id = self.take_id();
        self.send(&json_frame(&Request { id, what }))?;
        Ok(Asked(id))
    }

    fn send(&mut self, mut frame: &[u8]) -> Result<(), ConnectionError> {
        let deadline = Instant::now() + ANSWER_BOUND;
        while !frame.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if !ready(&self.stream, PollFlags::OUT, left)? {
                return Err(ConnectionError::NoAnswer);
            }
            // Never waits, also if an event loop has not made the descriptor so.
            match rustix::net::send(&self.stream, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            {
                Ok(n) => frame = &frame[n..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(ConnectionError::Broken(e.into())),
            }
        }
        Ok(())
    }

    pub(crate) fn reply_to(&mut self, id: u64) -> Result<Reply, ConnectionError> {
        let deadline = Instant::now() + ANSWER_BOUND;
        loop {
            match self.receive(deadline)? {
                None => return Err(ConnectionError::NoAnswer),
                Some(Heard::Told(told)) => {
                    if self.waiting.len() >= MAX_WAITING {
                        self.waiting.pop_front();
                    }
                    self.waiting.push_back(told);
                }
                Some(Heard::Reply { id: of, result }) if of == id || of == 0 => {
                    return result.map_err(ConnectionError::Refused);
                }
                Some(Heard::Reply { .. }) => {}
            }
        }
    }

    /// The next whole frame, or `None` at the deadline.
    fn receive(&mut self, deadline: Instant) -> Result<Option<Heard>, ConnectionError> {
        let malformed =
            |why: String| ConnectionError::Broken(io::Error::new(io::ErrorKind::InvalidData, why));
        loop {
            let taken = Frame::take(&mut self.received, MAX_FRAME_BYTES);
            match taken.map_err(|bad| malformed(bad.to_string()))? {
                Some(Frame::Json(json)) => {
                    let answer: Answer =
                        serde_json::from_slice(&json).map_err(|e| malformed(e.to_string()))?;
                    return Ok(Some(match answer {
                        Answer::Reply { id, result } => Heard::Reply { id, result },
                        Answer::Event(event) => Heard::Told(Told::Event(event)),
                    }));
                }
                Some(Frame::Output { stream, offset, bytes }) => {
                    return Ok(Some(Heard::Told(Told::Output { stream, offset, bytes })));
                }
                Some(Frame::Screen { offset, bytes }) => {
                    return Ok(Some(Heard::Told(Told::Screen { offset, bytes })));
                }
                Some(Frame::Input { .. }) => {
                    return Err(malformed("input goes the other way".to_owned()));
                }
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !ready(&self.stream, PollFlags::IN, left)? {
                return Ok(None);
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Result<(), ConnectionError> {
        let mut buffer = [0_u8; 16 << 10];
        match rustix::net::recv(&self.stream, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(ConnectionError::KeeperLeft),
            Ok((n, _)) => {
                self.received.extend_from_slice(&buffer[..n]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(Errno::CONNRESET) => Err(ConnectionError::KeeperLeft),
            Err(e) => Err(ConnectionError::Broken(e.into())),
        }
    }
}

/// Waits until a stream can be read or written, at most so long.
fn ready(stream: &UnixStream, what: PollFlags, timeout: Duration) -> Result<bool, ConnectionError> {
    let mut fds = [PollFd::new(stream, what)];
    // Longer than the kernel counts is for ever, which nobody asks for.
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    match poll(&mut fds, Some(&timeout)) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(true),
        Err(e) => Err(ConnectionError::Broken(e.into())),
    }
}

impl AsFd for Connection {
    /// Readable when the keeper has something to say.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Whoever listens there must be the keeper that the lock's note names: an agent can bind a socket
/// of its own in its place.
fn check_peer(dir: &RunDir, stream: &UnixStream) -> Result<(), ConnectionError> {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    let peer = peer.map_err(|e| ConnectionError::NoKeeper(e.into()))?.pid.as_raw_nonzero().get();
    let keeper = dir.read_note().map(|note| note.keeper);
    let lives = |k: &Identity| matches!(k.find(), Liveness::Alive(_) | Liveness::Unknown(_));
    match keeper {
        Some(keeper) if i64::from(keeper.pid) == i64::from(peer) && lives(&keeper) => Ok(()),
        Some(_) | None => {
            let why = "whoever listens on the run's socket is not its keeper";
            Err(ConnectionError::NoKeeper(io::Error::new(io::ErrorKind::PermissionDenied, why)))
        }
    }
}

enum Heard {
    Reply { id: u64, result: Result<Reply, Refusal> },
    Told(Told),
}

/// What came of waiting for an end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Waited {
    /// It has ended, with proof, and that is recorded.
    Ended(Box<End>),
    /// The bound of the stop has passed and these are left. The keeper goes on trying.
    Stuck {
        /// The first of them.
        survivors: Vec<crate::Survivor>,
        /// How many.
        count: u64,
    },
    /// Neither, so far.
    TimedOut,
}

/// What can go wrong between us and a keeper. None of it says anything about the run: look into its
/// directory with [`adopt`](crate::adopt).
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectionError {
    /// Nobody listens there.
    NoKeeper(io::Error),
    /// The keeper closed the connection: it has left, or was killed.
    KeeperLeft,
    /// The keeper does not answer.
    NoAnswer,
    /// The keeper refused.
    Refused(Refusal),
    /// The connection failed, or what came through it makes no sense.
    Broken(io::Error),
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKeeper(e) => write!(f, "failed to reach the keeper: {e}"),
            Self::KeeperLeft => f.write_str("the keeper closed the connection"),
            Self::NoAnswer => write!(f, "the keeper did not answer within {ANSWER_BOUND:?}"),
            Self::Refused(refusal) => write!(f, "the keeper refused: {}", refusal.message),
            Self::Broken(e) => write!(f, "the connection to the keeper failed: {e}"),
        }
    }
}

impl std::error::Error for ConnectionError {}

fn status_in(reply: Reply) -> Result<Status, ConnectionError> {
    match reply {
        Reply::Status(status) => Ok(*status),
        Reply::Hello { .. } | Reply::Done | Reply::StartFailed(_) => Err(unexpected()),
    }
}

fn unexpected() -> ConnectionError {
    let why = "the keeper's answer does not fit the question";
    ConnectionError::Broken(io::Error::new(io::ErrorKind::InvalidData, why))
}
