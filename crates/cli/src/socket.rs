//! One connection to a run that is attached: a WebSocket on the daemon's socket.
//!
//! Owns: its frames, and that neither side waits for the other: what cannot be sent now is kept,
//! and whoever keeps too much here takes no more. Knows nothing of terminals.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kennel_daemon::wire::{AttachMessage, ErrorBody};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use tungstenite::handshake::HandshakeError;
use tungstenite::handshake::client::Response;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Bytes, Message, WebSocket};

use crate::client::Client;
use crate::error::{FAILED, Failure, NO_DAEMON};

/// How long the daemon may take to attach: it asks the run's keeper twice, which has 10 s for each
/// answer.
const OPEN_BOUND: Duration = Duration::from_secs(30);
/// How long the other side may take to let go of us. It only drops what it holds.
const CLOSE_BOUND: Duration = Duration::from_secs(1);
/// The most of an error's text that is read.
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// A connection to a run.
pub(crate) struct Link {
    socket: WebSocket<UnixStream>,
    unsent: bool,
}

/// Something that was heard over it.
pub(crate) enum Heard {
    /// Bytes of a run's output, after one that says which.
    Output(Bytes),
    Message(AttachMessage),
    /// Nothing that matters to anybody here.
    Other,
}

/// The connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The daemon died, or let go of us.
    Lost,
    /// The daemon was told to leave, and said so.
    ToldToLeave,
}

/// Why there is no connection.
pub(crate) enum NotOpened {
    /// The daemon says why.
    Refused(Failure),
    /// The daemon left before it had answered.
    Gone(Failure),
}

impl Link {
    /// Attaches. Starts the daemon if there is none.
    pub(crate) fn open(client: &Client, path: &str) -> Result<Self, NotOpened> {
        let stream = client.connect().map_err(NotOpened::Refused)?;
        let gone = |e: io::Error| NotOpened::Gone(cut_off(&e));
        stream.set_read_timeout(Some(OPEN_BOUND)).map_err(gone)?;
        stream.set_write_timeout(Some(OPEN_BOUND)).map_err(gone)?;
        // A copy, because an answer that refuses is read to its end from the other.
        let copy = stream.try_clone().map_err(gone)?;
        match tungstenite::client(format!("ws://kennel{path}"), copy) {
            Ok((socket, _)) => {
                stream.set_nonblocking(true).map_err(gone)?;
                Ok(Self { socket, unsent: false })
            }
            Err(HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
                Err(NotOpened::Refused(refusal(*answer, stream)))
            }
            Err(e) => Err(NotOpened::Gone(cut_off(&io::Error::other(e.to_string())))),
        }
    }

    /// What has come, if anything has.
    pub(crate) fn hear(&mut self) -> Result<Option<Heard>, Gone> {
        Ok(match self.next()? {
            Some(Message::Binary(bytes)) => Some(Heard::Output(bytes)),
            // A message of a later daemon is nothing to us.
            Some(Message::Text(text)) => {
                Some(serde_json::from_str(&text).map_or(Heard::Other, Heard::Message))
            }
            Some(Message::Ping(_) | Message::Pong(_) | Message::Frame(_) | Message::Close(_)) => {
                Some(Heard::Other)
            }
            None => None,
        })
    }

    /// The next text that has come, if any has, for those who speak something of their own.
    pub(crate) fn hear_text(&mut self) -> Result<Option<String>, Gone> {
        loop {
            match self.next()? {
                Some(Message::Text(text)) => return Ok(Some(text.as_str().to_owned())),
                Some(
                    Message::Binary(_)
                    | Message::Ping(_)
                    | Message::Pong(_)
                    | Message::Frame(_)
                    | Message::Close(_),
                ) => {}
                None => return Ok(None),
            }
        }
    }

    fn next(&mut self) -> Result<Option<Message>, Gone> {
        match self.socket.read() {
            Ok(Message::Close(Some(frame))) if frame.code == CloseCode::Away => {
                Err(Gone::ToldToLeave)
            }
            Ok(Message::Close(_)) => Err(Gone::Lost),
            Ok(message) => Ok(Some(message)),
            Err(tungstenite::Error::Io(e)) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(_) => Err(Gone::Lost),
        }
    }

    /// Waits until something may have come, at most so long.
    pub(crate) fn readable(&self, within: Duration) -> bool {
        readable(self.as_fd(), within)
    }

    pub(crate) fn send(&mut self, bytes: Vec<u8>) -> Result<(), Gone> {
        self.keep(Message::Binary(bytes.into()))
    }

    pub(crate) fn say(&mut self, message: &AttachMessage) -> Result<(), Gone> {
        self.say_text(serde_json::to_string(message).map_err(|_| Gone::Lost)?)
    }

    pub(crate) fn say_text(&mut self, text: String) -> Result<(), Gone> {
        self.keep(Message::Text(text.into()))
    }

    fn keep(&mut self, message: Message) -> Result<(), Gone> {
        self.unsent = true;
        match self.socket.write(message) {
            Ok(()) => self.flush(),
            Err(tungstenite::Error::Io(e)) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(Gone::Lost),
        }
    }

    /// Sends what can be sent now.
    pub(crate) fn flush(&mut self) -> Result<(), Gone> {
        match self.socket.flush() {
            Ok(()) => self.unsent = false,
            Err(tungstenite::Error::Io(e)) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Err(Gone::Lost),
        }
        Ok(())
    }

    /// True if something waits to be sent: nothing should be added to it.
    pub(crate) fn is_behind(&self) -> bool {
        self.unsent
    }

    /// Says goodbye and waits until the other side has let go, so that whoever comes next can be
    /// the one who writes. What was still to be sent goes first.
    pub(crate) fn leave(mut self) {
        let deadline = Instant::now() + CLOSE_BOUND;
        let _ = self.socket.close(None);
        loop {
            match self.socket.read() {
                Ok(_) => {}
                Err(tungstenite::Error::Io(e)) if e.kind() == ErrorKind::WouldBlock => {
                    let _ = self.socket.flush();
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() || !readable(self.as_fd(), left) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

fn readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let within = Timespec::try_from(within).unwrap_or_default();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&within)).is_ok_and(|n| n > 0)
}

/// Reads what is left of an answer that refuses.
fn refusal(answer: Response, stream: UnixStream) -> Failure {
    let status = answer.status();
    let length = answer.headers().get("content-length").and_then(|value| value.to_str().ok());
    let length = length.and_then(|value| value.parse().ok()).unwrap_or(0).min(MAX_ERROR_BYTES);
    let mut body = answer.into_body().unwrap_or_default();
    let missing = length.saturating_sub(body.len() as u64);
    // What cannot be read is missing from the error, which is told all the same.
    let _ = stream.take(missing).read_to_end(&mut body);
    match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(body) => Failure::from_wire(body.error),
        Err(_) => Failure::new(FAILED, "internal", format!("the daemon answered {status}")),
    }
}

fn cut_off(error: &io::Error) -> Failure {
    let message = format!("failed to attach: the daemon left before it had answered: {error}");
    Failure::new(NO_DAEMON, "daemon_unreachable", message)
}
