//! A receiver of webhooks: takes requests on loopback, keeps each, and answers as it was told.
//!
//! Owns: one thread that accepts. Nobody but its test decides how long an answer takes.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use kennel_tests::{PATIENCE, until};
use serde_json::Value;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    head: String,
    pub(crate) body: String,
}

impl Post {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim())
    }

    /// What tells it from every other notice.
    #[track_caller]
    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").expect("every request has a key")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("it is JSON")
    }
}

/// What is done with a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// A status, with a header.
    Status(u16, &'static str, String),
    /// Half of a head, and then nothing more.
    CloseEarly,
    /// 200, once the test says so.
    Hold,
}

#[derive(Debug, Default)]
struct State {
    posts: Vec<Post>,
    answers: VecDeque<Answer>,
    usual: Option<Answer>,
    released: u32,
    /// Answers that were written to their end.
    answered: u32,
    over: bool,
}

/// The receiver.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
    accepts: Option<JoinHandle<()>>,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let state: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let own = state.clone();
        let accepts = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if own.0.lock().expect("nobody panicked").over {
                    return;
                }
                let own = own.clone();
                std::thread::spawn(move || serve(&own, stream));
            }
        });
        Self { address, state, accepts: Some(accepts) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/kennel?from=test", self.address)
    }

    /// Answers the next requests so; those after them with 200.
    pub(crate) fn then(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state.0.lock().expect("nobody panicked").answers.extend(answers);
    }

    /// Answers every request so that nothing else was said for; `None` is 200.
    pub(crate) fn usually(&self, answer: Option<Answer>) {
        self.state.0.lock().expect("nobody panicked").usual = answer;
    }

    pub(crate) fn posts(&self) -> Vec<Post> {
        self.state.0.lock().expect("nobody panicked").posts.clone()
    }

    /// What has come, as soon as it is so much.
    #[track_caller]
    pub(crate) fn wait(&self, count: usize) -> Vec<Post> {
        until(&format!("{count} requests have come"), || {
            Some(self.posts()).filter(|posts| posts.len() >= count)
        })
    }

    /// Lets one request go on that is held, and waits until its answer is written.
    #[track_caller]
    pub(crate) fn release(&self) {
        let (state, changed) = &*self.state;
        let mut held = state.lock().expect("nobody panicked");
        held.released += 1;
        let before = held.answered;
        changed.notify_all();
        let written = |state: &mut State| state.answered == before;
        let (_held, waited) =
            changed.wait_timeout_while(held, PATIENCE, written).expect("nobody panicked");
        assert!(!waited.timed_out(), "the answer was not written");
    }
}

fn serve(state: &(Mutex<State>, Condvar), mut stream: TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
    let Some(post) = read(&stream) else { return };
    let (state, changed) = state;
    let mut held = state.lock().expect("nobody panicked");
    held.posts.push(post);
    let usual = held.usual.clone();
    match held.answers.pop_front().or(usual) {
        None => answer(&mut stream, 200, "x-none", ""),
        Some(Answer::Status(status, name, value)) => answer(&mut stream, status, name, &value),
        Some(Answer::CloseEarly) => drop(stream.write_all(b"HTTP/1.1 200")),
        Some(Answer::Hold) => {
            let waits = |state: &mut State| state.released == 0 && !state.over;
            let waited = changed.wait_timeout_while(held, PATIENCE, waits);
            held = waited.expect("nobody panicked").0;
            held.released = held.released.saturating_sub(1);
            answer(&mut stream, 200, "x-none", "");
        }
    }
    held.answered += 1;
    changed.notify_all();
}

fn read(stream: &TcpStream) -> Option<Post> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let post = Post { head, body: String::new() };
    let length: usize = post.header("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Post { body: String::from_utf8(body).ok()?, ..post })
}

/// Whoever asked may be gone.
fn answer(stream: &mut TcpStream, status: u16, name: &str, value: &str) {
    let text = format!(
        "HTTP/1.1 {status} X\r\n{name}: {value}\r\ncontent-length: 4\r\nconnection: close\r\n\r\n\
         said"
    );
    let _ = stream.write_all(text.as_bytes());
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.state.0.lock().expect("nobody panicked").over = true;
        self.state.1.notify_all();
        // Wakes the one that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(accepts) = self.accepts.take() {
            drop(accepts.join());
        }
    }
}
