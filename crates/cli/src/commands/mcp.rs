//! `kennel mcp`: lines of MCP on our input and output, copied to the daemon and back.
//!
//! ```text
//! client --lines--> stdin -+-> WebSocket --> daemon
//!                          |                   |
//! client <--lines-- stdout +<-- answers -------+
//! ```
//!
//! Owns: that the client is never left waiting. If the daemon goes away, every call under way is
//! answered with an error that says so, and with the client's next line there is a new connection,
//! greeted in the client's own words. Knows no tool.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use kennel_daemon::{Text, wire};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::Client;
use crate::error::{FAILED, Failure};
use crate::output::say;
use crate::socket::{Gone, Link, NotOpened};

/// What is read from our input at once.
const PIECE_BYTES: usize = 64 << 10;
/// How much of a line that is too long is kept, to find its id in.
const HEAD_BYTES: usize = 4 << 10;
/// Calls under way: more than the daemon takes at once.
const MAX_WAITING: usize = 1024;
/// How long answers are waited for when our input has ended: whoever closes it first is answered,
/// and whoever is gone does not keep us.
const LAST_ANSWERS_BOUND: Duration = Duration::from_secs(2);
/// How long a new daemon may take to answer the greeting.
const GREETING_BOUND: Duration = Duration::from_secs(10);
/// How often a connection is tried for one line: a daemon may be killed the moment it is reached.
const CONNECT_TRIES: u32 = 3;
/// The id under which the client's greeting is said again.
const GREETING_ID: &str = "kennel-again";
/// JSON-RPC's number for what is not JSON.
const PARSE_ERROR: i32 = -32_700;
/// JSON-RPC's number for what is no request.
const INVALID_REQUEST: i32 = -32_600;
/// Ours, from the range for servers: the daemon is not there, or left.
const NO_DAEMON: i32 = -32_001;

/// Speak MCP: the tools an agent uses to start and watch runs of its own.
///
/// For an agent's configuration: it starts `kennel mcp` and speaks JSON-RPC with it, a line for
/// each message. An agent that is itself a run sees and stops only what it started.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {}

pub(crate) fn mcp(_: &McpArgs, client: &Client) -> Result<u8, Failure> {
    if io::stdin().is_terminal() {
        say("kennel: speaking MCP with whoever types; agents are configured to start this");
    }
    let mut pipe = Pipe {
        client,
        hello: hello()?,
        link: None,
        greeting: Greeting::default(),
        waiting: BTreeMap::new(),
        input: Input::default(),
    };
    pipe.run()?;
    Ok(0)
}

/// Where we are, for the runs that are started from here.
fn hello() -> Result<String, Failure> {
    let failed = |e: String| Failure::new(FAILED, "internal", e);
    let cwd = std::env::current_dir()
        .map_err(|e| failed(format!("failed to find the working directory: {e}")))?;
    let env = std::env::vars_os().map(|(name, value)| (Text(name), Text(value))).collect();
    let hello = wire::McpHello { cwd: Text(cwd.into_os_string()), env };
    serde_json::to_string(&hello).map_err(|e| failed(e.to_string()))
}

/// What the client said first, to be said again to a new daemon.
#[derive(Default)]
struct Greeting {
    initialize: Option<String>,
    initialized: Option<String>,
}

struct Pipe<'a> {
    client: &'a Client,
    hello: String,
    link: Option<Link>,
    greeting: Greeting,
    /// Requests without an answer, by their ids: the line itself, if it is harmless to repeat.
    waiting: BTreeMap<String, Option<String>>,
    input: Input,
}

/// What can be seen of a message.
#[derive(Deserialize)]
struct Looks {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
}

impl Pipe<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        loop {
            let behind = self.link.as_ref().is_some_and(Link::is_behind);
            let ready = self.wait(!behind, None)?;
            if ready.socket {
                self.hear()?;
            }
            if ready.stdin && !behind {
                match self.input.read()? {
                    Read::Nothing => {}
                    Read::Over => return self.finish(),
                }
                while let Some(line) = self.input.take() {
                    self.take(line)?;
                }
            }
        }
    }

    /// The client says no more: what it asked before is still answered.
    fn finish(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + LAST_ANSWERS_BOUND;
        while !self.waiting.is_empty() && self.link.is_some() && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.wait(false, Some(left))?.socket {
                self.hear()?;
            }
        }
        if let Some(link) = self.link.take() {
            link.leave();
        }
        Ok(())
    }

    /// Waits for our input, if it is wanted, and for the daemon.
    fn wait(&self, stdin: bool, bound: Option<Duration>) -> Result<Ready, Failure> {
        let own = io::stdin();
        let mut fds = Vec::with_capacity(2);
        if stdin {
            fds.push(PollFd::new(&own, PollFlags::IN));
        }
        if let Some(link) = &self.link {
            let out = if link.is_behind() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(link, PollFlags::IN | out));
        }
        let bound = bound.map(|bound| Timespec::try_from(bound).unwrap_or_default());
        match poll(&mut fds, bound.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Failure::new(FAILED, "internal", format!("failed to wait: {e}"))),
        }
        let ready = |n: usize| fds.get(n).is_some_and(|fd| !fd.revents().is_empty());
        Ok(Ready { stdin: stdin && ready(0), socket: ready(usize::from(stdin)) })
    }

    /// Takes a line of the client's.
    fn take(&mut self, line: Line) -> Result<(), Failure> {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong { head } => {
                let most = wire::MAX_MCP_BYTES;
                let why = format!("a message may have {most} bytes: put what is large into a file");
                return answer_error(id_in(&head), INVALID_REQUEST, &why);
            }
        };
        if line.trim().is_empty() {
            return Ok(());
        }
        if let Err(e) = serde_json::from_str::<serde::de::IgnoredAny>(&line) {
            return answer_error(None, PARSE_ERROR, &format!("this is not JSON: {e}"));
        }
        // What looks like nothing at all is the daemon's to refuse.
        let looks = serde_json::from_str::<Looks>(&line).ok();
        let (id, method) = looks.map_or((None, None), |looks| (looks.id, looks.method));
        match method.as_deref() {
            Some("initialize") => {
                self.greeting = Greeting { initialize: Some(line.clone()), initialized: None };
            }
            Some("notifications/initialized") => self.greeting.initialized = Some(line.clone()),
            Some(_) | None => {}
        }
        if let (Some(id), Some(method)) = (&id, &method) {
            if self.waiting.len() >= MAX_WAITING {
                let why = format!("{MAX_WAITING} requests are without an answer already");
                return answer_error(Some(id.clone()), INVALID_REQUEST, &why);
            }
            let harmless = ["initialize", "ping", "tools/list", "server/discover"];
            let again = harmless.contains(&method.as_str()).then(|| line.clone());
            self.waiting.insert(id.to_string(), again);
        }
        self.pass_on(line)
    }

    /// Hands a line to the daemon, over a new connection if there is none.
    fn pass_on(&mut self, line: String) -> Result<(), Failure> {
        for _ in 0..CONNECT_TRIES {
            if self.link.is_none() {
                match self.connect() {
                    Ok(Some(link)) => self.link = Some(link),
                    Ok(None) => continue,
                    Err(e) => return self.answer_all(&message_of(&e)),
                }
            }
            let Some(link) = &mut self.link else { continue };
            match link.say_text(line.clone()) {
                Ok(()) => return Ok(()),
                Err(_) => self.link = None,
            }
        }
        self.answer_all("the daemon leaves as often as it is started")
    }

    /// A connection that has been greeted. `None` if the daemon left meanwhile.
    fn connect(&mut self) -> Result<Option<Link>, Failure> {
        let mut link = match Link::open(self.client, "/v1/mcp") {
            Ok(link) => link,
            Err(NotOpened::Refused(failure)) => return Err(failure),
            Err(NotOpened::Gone(_)) => return Ok(None),
        };
        if link.say_text(self.hello.clone()).is_err() {
            return Ok(None);
        }
        let Some(initialize) = &self.greeting.initialize else { return Ok(Some(link)) };
        let Ok(mut again) = serde_json::from_str::<Value>(initialize) else {
            return Ok(Some(link));
        };
        // One that was not answered yet is said by the client itself.
        if self.waiting.contains_key(&again["id"].to_string()) {
            return Ok(Some(link));
        }
        again["id"] = GREETING_ID.into();
        if link.say_text(again.to_string()).is_err() || !heard_greeting(&mut link) {
            return Ok(None);
        }
        if let Some(initialized) = &self.greeting.initialized
            && link.say_text(initialized.clone()).is_err()
        {
            return Ok(None);
        }
        Ok(Some(link))
    }

    /// Passes on what the daemon said.
    fn hear(&mut self) -> Result<(), Failure> {
        loop {
            let Some(link) = &mut self.link else { return Ok(()) };
            let heard = link.flush().and_then(|()| link.hear_text());
            match heard {
                Ok(None) => return Ok(()),
                Ok(Some(text)) => {
                    let looks = serde_json::from_str::<Looks>(&text).ok();
                    if let Some(Looks { id: Some(id), method: None }) = looks {
                        self.waiting.remove(&id.to_string());
                    }
                    print(&text)?;
                }
                Err(gone) => return self.lost(gone),
            }
        }
    }

    /// The daemon is gone. What is harmless is asked again of the next one, unless it was told to
    /// leave; all else may have been done or not, and only the client can say what to do about it.
    fn lost(&mut self, gone: Gone) -> Result<(), Failure> {
        self.link = None;
        let again: Vec<String> = match gone {
            Gone::Lost => self.waiting.values().flatten().cloned().collect(),
            Gone::ToldToLeave => Vec::new(),
        };
        if gone == Gone::Lost {
            let (harmless, others) =
                std::mem::take(&mut self.waiting).into_iter().partition(|(_, line)| line.is_some());
            self.waiting = others;
            self.answer_all(LEFT)?;
            self.waiting = harmless;
        } else {
            self.answer_all(TOLD_TO_LEAVE)?;
        }
        again.into_iter().try_for_each(|line| self.pass_on(line))
    }

    /// Answers all that waits with an error.
    fn answer_all(&mut self, why: &str) -> Result<(), Failure> {
        for (id, _) in std::mem::take(&mut self.waiting) {
            answer_error(serde_json::from_str(&id).ok(), NO_DAEMON, why)?;
        }
        Ok(())
    }
}

/// What is said of a call that the daemon did not come to answer.
const LEFT: &str = "the daemon left before it had answered: what was asked for may have been done \
    or not. Runs go on. Call `list` to see, then ask again";
/// The same of one that was told to leave.
const TOLD_TO_LEAVE: &str = "the daemon was told to leave before it had answered: what was asked \
    for may have been done or not. Runs go on. The next call starts the daemon again";

struct Ready {
    stdin: bool,
    socket: bool,
}

/// Waits for the answer to our own greeting, which is nobody else's to see.
fn heard_greeting(link: &mut Link) -> bool {
    let deadline = Instant::now() + GREETING_BOUND;
    loop {
        match link.flush().and_then(|()| link.hear_text()) {
            Ok(Some(text)) => {
                let looks = serde_json::from_str::<Looks>(&text).ok();
                if looks.and_then(|looks| looks.id).is_some_and(|id| id == GREETING_ID) {
                    return true;
                }
            }
            Ok(None) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() || !link.readable(left) {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
}

fn message_of(failure: &Failure) -> String {
    match failure {
        Failure::Told { error, .. } => {
            let hint = error.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{}: {}{hint}", error.code, error.message)
        }
        Failure::ReaderLeft | Failure::TerminalClosed => "the reader left".to_owned(),
    }
}

fn answer_error(id: Option<Value>, code: i32, message: &str) -> Result<(), Failure> {
    let error = json!({"code": code, "message": message});
    print(&json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
}

/// One message is one line, whole or not at all.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush());
    written.map_err(|_| Failure::ReaderLeft)
}

/// Our input, in lines.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    /// The rest of a line that is too long is left out.
    skipping: bool,
}

enum Read {
    Nothing,
    Over,
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Whole(String),
    TooLong { head: Vec<u8> },
}

impl Input {
    fn read(&mut self) -> Result<Read, Failure> {
        let mut piece = [0; PIECE_BYTES];
        match rustix::io::read(io::stdin(), &mut piece[..]) {
            Ok(0) => Ok(Read::Over),
            Ok(n) => {
                self.bytes.extend_from_slice(&piece[..n]);
                Ok(Read::Nothing)
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(Read::Nothing),
            Err(e) => {
                Err(Failure::new(FAILED, "internal", format!("failed to read the input: {e}")))
            }
        }
    }

    /// The next whole line. What is no text has its bytes replaced: in JSON they can only be wrong.
    fn take(&mut self) -> Option<Line> {
        loop {
            let end = self.bytes.iter().position(|b| *b == b'\n');
            let length = end.unwrap_or(self.bytes.len());
            let taken = end.map_or(length, |end| end + 1);
            if std::mem::take(&mut self.skipping) {
                self.bytes.drain(..taken);
                self.skipping = end.is_none();
                if self.skipping {
                    return None;
                }
                continue;
            }
            if length > wire::MAX_MCP_BYTES {
                let head = self.bytes[..HEAD_BYTES].to_vec();
                self.bytes.drain(..taken);
                self.skipping = end.is_none();
                return Some(Line::TooLong { head });
            }
            end?;
            let line = String::from_utf8_lossy(&self.bytes[..length]).into_owned();
            self.bytes.drain(..taken);
            return Some(Line::Whole(line));
        }
    }
}

/// The id of a message of which only the beginning is known, if it is there.
fn id_in(head: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(head);
    let (_, after) = text.split_once("\"id\"")?;
    let after = after.trim_start().strip_prefix(':')?;
    let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
    values.next()?.ok().filter(|id| id.is_number() || id.is_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_one_that_is_too_long_costs_no_other() {
        let mut input = Input::default();
        input.bytes.extend_from_slice(b"one\ntw");
        assert_eq!(input.take(), Some(Line::Whole("one".to_owned())));
        assert_eq!(input.take(), None);
        input.bytes.extend_from_slice(b"o\n");
        assert_eq!(input.take(), Some(Line::Whole("two".to_owned())));
        input.bytes.extend_from_slice(br#"{"jsonrpc":"2.0","id":"a7","params":""#);
        input.bytes.extend(std::iter::repeat_n(b'x', wire::MAX_MCP_BYTES));
        let Some(Line::TooLong { head }) = input.take() else { panic!("it is too long") };
        assert_eq!(id_in(&head), Some("a7".into()));
        assert_eq!(input.take(), None);
        input.bytes.extend_from_slice(b"more of it\"}\nthree\n");
        assert_eq!(input.take(), Some(Line::Whole("three".to_owned())));
        assert_eq!(id_in(br#"{"id" : 12, "method""#), Some(12.into()));
        assert_eq!(id_in(br#"{"method":"x","params":{"#), None);
    }
}
