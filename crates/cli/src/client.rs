//! The client of the API: one request, one connection, on the daemon's socket.
//!
//! Owns: finding the daemon, starting it if there is none, and reading an HTTP answer. Knows
//! nothing of runs but the wire. Only a request that cannot do something twice is repeated.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use kennel_daemon::{Home, wire};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{FAILED, Failure, NO_DAEMON, NOT_FOUND};

/// How long a daemon may take from its start until it answers.
const READY_BOUND: Duration = Duration::from_secs(30);
/// How long a daemon may take from its start until it has the home.
const DEAD_AFTER: Duration = Duration::from_secs(3);
/// Pause between two attempts to reach a daemon that was just started.
const READY_PAUSE: Duration = Duration::from_millis(2);
/// Longer than any answer may take: the API's own bounds come first.
const REPLY_BOUND: Duration = Duration::from_secs(150);
/// How often something is asked again if its answer was cut off: daemons that are killed one after
/// the other are an accident, not a rule.
const TRIES: u32 = 20;
/// How long a daemon that was told to leave may take to be replaced.
const COMES_BACK_BOUND: Duration = Duration::from_secs(3);
/// Pause between two looks for it.
const COMES_BACK_PAUSE: Duration = Duration::from_millis(50);
/// The most headers an answer of ours has.
const MAX_HEADERS: usize = 32;
/// HTTP's word for a path that is longer than a server takes.
const URI_TOO_LONG: u16 = 414;
/// How much of the daemon's log is quoted.
const LOG_TAIL_BYTES: usize = 400;

/// The way to the daemon.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) home: Home,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn find() -> Result<Self, Failure> {
        let home = Home::find();
        Ok(Self { home: home.map_err(|e| Failure::new(FAILED, "home", e.to_string()))? })
    }

    /// Asks for something to read.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.get_bytes(path)?.json()
    }

    pub(crate) fn get_bytes(&self, path: &str) -> Result<Reply, Failure> {
        self.request("GET", path, b"", TRIES)
    }

    /// Has something done that is harmless to do twice.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.request("POST", path, &encode(body)?, TRIES)?.json()
    }

    /// The same, where nothing is answered.
    pub(crate) fn tell(&self, path: &str, body: &impl Serialize) -> Result<(), Failure> {
        self.request("POST", path, &encode(body)?, TRIES).map(drop)
    }

    /// Has something changed.
    pub(crate) fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.request("PATCH", path, &encode(body)?, TRIES)?.json()
    }

    /// Has something removed.
    pub(crate) fn delete(&self, path: &str) -> Result<(), Failure> {
        self.request("DELETE", path, b"", TRIES).map(drop)
    }

    /// Has something removed, and is told what came of it.
    pub(crate) fn delete_for<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.request("DELETE", path, b"", TRIES)?.json()
    }

    /// Hands over bytes, which must not be taken twice: asked again only if nobody can have heard.
    pub(crate) fn post_bytes(&self, path: &str, body: &[u8]) -> Result<(), Failure> {
        let asked = Asked { method: "POST", path, kind: "application/octet-stream", body };
        let mut tries = 1;
        loop {
            let mut stream = self.connect()?;
            match ask(&mut stream, &asked, REPLY_BOUND) {
                Err(e) if tries >= TRIES => return Err(cut_off(&e)),
                Err(_) => tries += 1,
                Ok(()) => {
                    let reply = answer(&mut stream).map_err(|e| perhaps_taken(&e))?;
                    return reply.checked().map(drop);
                }
            }
        }
    }

    /// Asks until there is an answer: if a daemon dies before it has given one, the next one is
    /// asked. One that was told to leave is not started again; whoever replaces it is waited for.
    fn request(&self, how: &str, path: &str, body: &[u8], tries: u32) -> Result<Reply, Failure> {
        let mut left = tries;
        loop {
            let reply = exchange(&mut self.connect()?, how, path, body);
            left = left.saturating_sub(1);
            match reply.map(Reply::checked) {
                Ok(Err(Failure::Told { error, .. }))
                    if how == "GET" && error.code == "shutting_down" && left > 0 =>
                {
                    if !self.comes_back() {
                        let message = "the daemon was told to leave; runs go on without it";
                        return Err(Failure::new(NO_DAEMON, "daemon_left", message)
                            .hint("ask again: any command starts it"));
                    }
                }
                Ok(checked) => return checked,
                Err(_) if left > 0 => {}
                Err(e) => return Err(cut_off(&e)),
            }
        }
    }

    /// Waits a while for a daemon that somebody else starts, as an update does.
    pub(crate) fn comes_back(&self) -> bool {
        let deadline = Instant::now() + COMES_BACK_BOUND;
        // The one that leaves may still answer for a moment.
        std::thread::sleep(COMES_BACK_PAUSE);
        while Instant::now() < deadline {
            if self.is_up() {
                return true;
            }
            std::thread::sleep(COMES_BACK_PAUSE);
        }
        false
    }

    /// Has the daemon leave, and says what it leaves behind. `None` if there is none.
    pub(crate) fn shut_down(
        &self,
        request: &wire::ShutdownRequest,
        bound: Duration,
    ) -> Result<Option<wire::Shutdown>, Failure> {
        let Ok(mut stream) = self.reach() else {
            return Ok(None);
        };
        let body = encode(request)?;
        let bound = bound.saturating_add(REPLY_BOUND);
        let reply = exchange_within(&mut stream, "POST", "/v1/shutdown", &body, bound);
        let shutdown = reply.map_err(|e| cut_off(&e))?.checked()?.json()?;
        let deadline = Instant::now() + READY_BOUND;
        while self.is_up() {
            if Instant::now() >= deadline {
                return Err(Failure::new(FAILED, "daemon", "the daemon does not leave"));
            }
            std::thread::sleep(READY_PAUSE);
        }
        Ok(Some(shutdown))
    }

    /// True if a daemon answers; starts none.
    pub(crate) fn is_up(&self) -> bool {
        self.reach().is_ok()
    }

    /// A connection to the daemon, where we would have it, or where it says it is. A request holds
    /// the whole environment: nobody gets it but our own user, or root.
    fn reach(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(self.home.socket()).or_else(|e| {
            let noted = self.home.noted_socket().filter(|noted| noted != self.home.socket());
            noted.and_then(|noted| UnixStream::connect(noted).ok()).ok_or(e)
        })?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
        if peer != rustix::process::geteuid() && !peer.is_root() {
            let why = format!("user {} listens there, and not you", peer.as_raw());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(stream)
    }

    /// Connects to the daemon, starting it if there is none.
    pub(crate) fn connect(&self) -> Result<UnixStream, Failure> {
        match self.reach() {
            Ok(stream) => return Ok(stream),
            Err(e) if nobody_there(&e) => {}
            Err(e) => return Err(unreachable(self.home.socket(), &e.to_string())),
        }
        self.refuse_inside_a_run()?;
        self.start_daemon().map_err(|e| {
            Failure::new(
                NO_DAEMON,
                "daemon_unreachable",
                format!("failed to start the daemon: {e}"),
            )
        })?;
        let begun = Instant::now();
        // One that has not even taken the home by then has ended, and its log says why.
        let dead = || begun.elapsed() >= DEAD_AFTER && !self.home.is_held();
        loop {
            match self.reach() {
                Ok(stream) => return Ok(stream),
                Err(e) if nobody_there(&e) && begun.elapsed() < READY_BOUND && !dead() => {
                    std::thread::sleep(READY_PAUSE);
                }
                Err(_) => {
                    let why = format!("it does not come up; its log ends: {}", self.log_tail());
                    let failure = unreachable(self.home.socket(), &why);
                    return Err(match self.no_room() {
                        Some(hint) => failure.hint(hint),
                        None => failure,
                    });
                }
            }
        }
    }

    /// A daemon that is started by a process of a run would be one of that run's own: it would end
    /// with it, and every run it starts until then too.
    fn refuse_inside_a_run(&self) -> Result<(), Failure> {
        // What cannot be told keeps nobody from the daemon.
        let Ok(Some(run)) = self.home.own_run() else { return Ok(()) };
        let message =
            format!("there is no daemon, and run {run} must not start one: it would own it");
        Err(Failure::new(NO_DAEMON, "daemon_unreachable", message)
            .hint("any kennel command outside of a run starts it; `kennel service` keeps it there"))
    }

    fn start_daemon(&self) -> io::Result<()> {
        self.home.make().map_err(io::Error::other)?;
        let own = std::env::current_exe()?;
        let log = self.home.log();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", log.display()));
        kennel_process::start_detached(&own, &["up".into()], &log).map_err(named)
    }

    /// Why a daemon cannot say in its log why it does not come up, if that is so.
    fn no_room(&self) -> Option<String> {
        let left = rustix::fs::statvfs(self.home.state()).ok()?.f_bavail;
        (left == 0)
            .then(|| format!("there is no room in {}: make some", self.home.state().display()))
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(self.home.log()).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL_BYTES)..];
        String::from_utf8_lossy(tail).trim().to_owned()
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn checked(self) -> Result<Self, Failure> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        // Only a name can make a path too long, and no run or slot has such a name.
        if self.status == URI_TOO_LONG {
            let message = "there is no run or slot with so long a name";
            return Err(Failure::new(NOT_FOUND, "run_not_found", message));
        }
        let text = String::from_utf8_lossy(&self.body);
        Err(match serde_json::from_slice::<wire::ErrorBody>(&self.body) {
            Ok(body) => Failure::from_wire(body.error),
            Err(_) => Failure::new(FAILED, "internal", format!("status {}: {text}", self.status)),
        })
    }

    fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|e| {
            Failure::new(FAILED, "internal", format!("failed to read the daemon's answer: {e}"))
        })
    }
}

/// A part of a path, with everything that means something in one escaped.
pub(crate) fn segment(name: &str) -> String {
    escaped(name.as_bytes())
}

/// The same of what need not be text.
pub(crate) fn escaped(name: &[u8]) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    name.iter().copied().map(escape).collect()
}

fn encode(body: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(body).map_err(|e| Failure::new(FAILED, "internal", e.to_string()))
}

fn exchange(stream: &mut UnixStream, method: &str, path: &str, body: &[u8]) -> io::Result<Reply> {
    exchange_within(stream, method, path, body, REPLY_BOUND)
}

fn exchange_within(
    stream: &mut UnixStream,
    method: &str,
    path: &str,
    body: &[u8],
    bound: Duration,
) -> io::Result<Reply> {
    ask(stream, &Asked { method, path, kind: "application/json", body }, bound)?;
    answer(stream)
}

/// A request.
struct Asked<'a> {
    method: &'a str,
    path: &'a str,
    kind: &'a str,
    body: &'a [u8],
}

/// Sends a request. If this fails, not all of it was sent, and nobody acts on a part of one.
fn ask(stream: &mut UnixStream, asked: &Asked<'_>, bound: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(bound))?;
    stream.set_write_timeout(Some(bound))?;
    let Asked { method, path, kind, body } = asked;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: kennel\r\nconnection: close\r\n\
         content-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())
}

fn answer(stream: &mut UnixStream) -> io::Result<Reply> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse_reply(&bytes)
}

fn parse_reply(bytes: &[u8]) -> io::Result<Reply> {
    let malformed = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut reply = httparse::Response::new(&mut headers);
    let parsed = reply.parse(bytes).map_err(|e| malformed(&e.to_string()))?;
    let httparse::Status::Complete(head) = parsed else {
        return Err(malformed("the answer was cut off"));
    };
    let text = |h: &httparse::Header<'_>| {
        (h.name.to_owned(), String::from_utf8_lossy(h.value).into_owned())
    };
    let reply = Reply {
        status: reply.code.unwrap_or_default(),
        headers: reply.headers.iter().map(text).collect(),
        body: bytes[head..].to_vec(),
    };
    // The daemon always says the length: anything else is an answer it did not finish.
    let length = reply.header("content-length").and_then(|value| value.parse().ok());
    if length.unwrap_or(0) != reply.body.len() {
        return Err(malformed("the answer was cut off"));
    }
    Ok(reply)
}

fn nobody_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn unreachable(socket: &Path, why: &str) -> Failure {
    let message = format!("failed to reach the daemon at {}: {why}", socket.display());
    Failure::new(NO_DAEMON, "daemon_unreachable", message)
}

fn cut_off(error: &io::Error) -> Failure {
    let message = format!("the daemon left before it had answered: {error}");
    Failure::new(NO_DAEMON, "daemon_unreachable", message)
}

fn perhaps_taken(error: &io::Error) -> Failure {
    let message = format!("the daemon left before it had answered: {error}");
    Failure::new(NO_DAEMON, "perhaps_taken", message)
        .hint("the run may have been given this input or not; look before you send it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_meaning_in_paths_are_escaped() {
        assert_eq!(segment("story-1:fix/it ä"), "story-1%3Afix%2Fit%20%C3%A4");
        assert_eq!(segment(".."), "%2E%2E");
    }

    #[test]
    fn an_answer_that_was_cut_off_is_none() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX: y\r\n\r\n{}";
        let reply = parse_reply(whole).unwrap();
        assert_eq!(
            (reply.status, reply.header("x"), &reply.body[..]),
            (200, Some("y"), &b"{}"[..])
        );
        for end in 0..whole.len() {
            assert!(parse_reply(&whole[..end]).is_err(), "{end}");
        }
    }
}
