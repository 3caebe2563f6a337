//! The keeper's connections: who is connected, what they are owed, how much may wait for them.
//!
//! Owns: the listening socket, the frames in and out, and every bound on both. A client that does
//! not read loses output (and is told how much) and then the connection; it never slows the agent
//! down.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::streams::Piece;
use crate::control::{
    Answer, BadFrame, Event, Frame, MAX_FRAME_BYTES, Refusal, RefusalCode, Reply, json_frame,
    output_frame, screen_frame,
};
use crate::output::Stream;

/// The most connections at once.
const MAX_CLIENTS: usize = 32;
/// The most that waits for one client; output beyond it is skipped.
const MAX_OWED_BYTES: usize = 1 << 20;
/// Replies and events may go this far beyond; then the client is let go.
const MAX_OWED_REPLIES_BYTES: usize = 2 << 20;
/// The largest piece of output in one frame.
const OUTPUT_FRAME_BYTES: usize = 64 << 10;
/// The name of the socket in the run's directory.
const SOCKET_FILE: &str = "control";

/// The listening socket of a run.
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens in the run's directory. Bound through the directory's descriptor, because a socket's
    /// path may have at most 107 bytes and a home may be deeper than that.
    pub(crate) fn bind(dir: &Path) -> io::Result<Self> {
        let path = dir.join(SOCKET_FILE);
        remove_socket(dir)?;
        let held = fs::File::open(dir)?;
        let socket = UnixListener::bind(through(&held))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path })
    }

    /// Takes one waiting connection. Nothing comes of one whose peer is neither our user nor root.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(peer_is_allowed(&stream).then_some(stream)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the socket a dead keeper left. The caller holds the run's lock.
pub(crate) fn remove_socket(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(SOCKET_FILE)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The path of the socket by way of an open directory.
pub(crate) fn through(dir: &fs::File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_FILE}", dir.as_raw_fd()))
}

fn peer_is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|p| p.uid == own || p.uid.is_root())
}

/// One connection.
pub(crate) struct Client {
    stream: UnixStream,
    received: Vec<u8>,
    owed: VecDeque<u8>,
    skipped: Vec<(Stream, u64)>,
    pub(crate) greeted: bool,
    pub(crate) watching: bool,
    /// The end must be acknowledged by this one, as far as the bound allows.
    pub(crate) must_ack: bool,
    pub(crate) attached: bool,
    broken: bool,
}

impl Client {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            received: Vec::new(),
            owed: VecDeque::new(),
            skipped: Vec::new(),
            greeted: false,
            watching: false,
            must_ack: false,
            attached: false,
            broken: false,
        })
    }

    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Reads what has come and gives the whole frames among it.
    pub(crate) fn receive(&mut self) -> Vec<Frame> {
        let mut buffer = [0_u8; 4 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.broken = true;
                    break;
                }
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.broken = true;
                    break;
                }
            }
            if self.received.len() > MAX_FRAME_BYTES {
                break;
            }
        }
        let (frames, bad) = Frame::take_all(&mut self.received, MAX_FRAME_BYTES);
        if let Some(bad) = bad {
            self.refuse_frame(&bad);
        }
        frames
    }

    fn refuse_frame(&mut self, bad: &BadFrame) {
        self.reply(0, Err(refusal(RefusalCode::UnknownRequest, &bad.to_string())));
        self.flush();
        self.broken = true;
    }

    /// Says that there is no room, and means it.
    fn turn_away(&mut self) {
        let message = format!("this keeper serves {MAX_CLIENTS} connections and no more");
        self.reply(0, Err(refusal(RefusalCode::Busy, &message)));
        self.flush();
        self.broken = true;
    }

    pub(crate) fn reply(&mut self, id: u64, result: Result<Reply, Refusal>) {
        self.owe(&json_frame(&Answer::Reply { id, result }));
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.owe(&json_frame(&Answer::Event(event.clone())));
    }

    pub(crate) fn show_screen(&mut self, offset: u64, drawn: &[u8]) {
        // A screen larger than a frame cannot be drawn; the client follows from here on.
        if drawn.len() + 16 < MAX_FRAME_BYTES {
            self.owe(&screen_frame(offset, drawn));
        }
    }

    /// Passes output on, or counts it as skipped if too much waits already.
    pub(crate) fn output(&mut self, piece: &Piece<'_>) {
        if self.owed.len() + piece.bytes.len() > MAX_OWED_BYTES {
            match self.skipped.iter_mut().find(|(stream, _)| *stream == piece.stream) {
                Some((_, bytes)) => *bytes += piece.bytes.len() as u64,
                None => self.skipped.push((piece.stream, piece.bytes.len() as u64)),
            }
            return;
        }
        self.tell_skipped();
        for (n, part) in piece.bytes.chunks(OUTPUT_FRAME_BYTES).enumerate() {
            let offset = piece.offset + (n * OUTPUT_FRAME_BYTES) as u64;
            self.owe(&output_frame(piece.stream, offset, part));
        }
    }

    fn tell_skipped(&mut self) {
        for (stream, bytes) in std::mem::take(&mut self.skipped) {
            self.event(&Event::Skipped { stream, bytes });
        }
    }

    fn owe(&mut self, bytes: &[u8]) {
        if self.owed.len() + bytes.len() > MAX_OWED_REPLIES_BYTES {
            self.broken = true;
            return;
        }
        self.owed.extend(bytes);
    }

    /// Sends what the client takes now.
    pub(crate) fn flush(&mut self) {
        while !self.owed.is_empty() && !self.broken {
            let (front, _) = self.owed.as_slices();
            match self.stream.write(front) {
                Ok(n) => drop(self.owed.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.broken = true,
            }
        }
        // Whoever fell behind learns of it as soon as there is room again.
        if self.owed.is_empty() {
            self.owed = VecDeque::new();
            if !self.skipped.is_empty() {
                self.tell_skipped();
                self.flush();
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Adds a client, or turns it away with the reason.
pub(crate) fn admit(clients: &mut Vec<Client>, stream: UnixStream) {
    let Ok(mut client) = Client::new(stream) else {
        return;
    };
    if clients.len() >= MAX_CLIENTS {
        // Who connected and never said hello makes room, the oldest first.
        match clients.iter_mut().find(|c| !c.greeted && !c.broken) {
            Some(mute) => mute.turn_away(),
            None => return client.turn_away(),
        }
    }
    clients.push(client);
}

pub(crate) fn refusal(code: RefusalCode, message: &str) -> Refusal {
    Refusal { code, message: message.to_owned() }
}
