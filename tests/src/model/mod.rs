//! A model that says what it is told to: the other end of a real agent that can reach no real one.
//!
//! ```text
//! agent --HTTP, loopback--> http.rs --> the step of the script --> anthropic.rs | responses.rs
//! ```
//!
//! Keeps no conversation. A prompt names its script by a [`tag`]; the step to play is the number of
//! the model's own answers that follow the last tag in the request. So a resumed session, and a
//! sub-agent whose prompt has a tag of its own, come out right by themselves. What has no tag, or
//! offers no tools although the script asks for some, is a client's side request (a title, a probe)
//! and gets one short answer. Every request is remembered.

mod anthropic;
mod http;
mod responses;
mod script;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use script::{Answer, Ask, Refusal, Step, Tokens, answer, tag};

/// How long one read or write may take. A client that is killed says nothing more.
const IO_BOUND: Duration = Duration::from_secs(30);
/// How often an answer that hangs looks whether it may go.
const HANGING: Duration = Duration::from_millis(100);

/// A model server on the loopback device. Gone when dropped, but for answers that are being given.
#[derive(Debug)]
pub struct Model {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// A request for an answer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it was there in full.
    pub at: Instant,
    /// The script it was for; none for a side request.
    pub script: Option<String>,
    /// The step that was played.
    pub step: usize,
    /// The model that was asked for.
    pub model: String,
    /// All that was told to it so far, results of tools included, oldest first.
    pub told: Vec<String>,
}

#[derive(Debug)]
struct Shared {
    scripts: BTreeMap<String, Vec<Step>>,
    calls: Mutex<Vec<Call>>,
    /// Paths that were asked for and are no calls.
    others: Mutex<Vec<String>>,
    /// How often a step that refuses a few times has refused.
    refused: Mutex<BTreeMap<(String, usize), u32>>,
    names: AtomicU64,
    over: AtomicBool,
}

impl Model {
    /// Serves these scripts on a port of the kernel's choice.
    pub fn start<S: Into<String>>(
        scripts: impl IntoIterator<Item = (S, Vec<Step>)>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let scripts = scripts.into_iter().map(|(name, steps)| (name.into(), steps)).collect();
        let shared = Arc::new(Shared {
            scripts,
            calls: Mutex::default(),
            others: Mutex::default(),
            refused: Mutex::default(),
            names: AtomicU64::new(1),
            over: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if served.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&served);
                // A client that went away in the middle is not the server's trouble.
                std::thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Ok(Self { address, shared })
    }

    /// Where it is, without a path.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every call so far, oldest first.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        held(&self.shared.calls).clone()
    }

    /// The steps of a script that were played so far, oldest first.
    #[must_use]
    pub fn played(&self, script: &str) -> Vec<usize> {
        let calls = self.calls();
        let of_it = calls.iter().filter(|call| call.script.as_deref() == Some(script));
        of_it.map(|call| call.step).collect()
    }

    /// What else was asked for: method and path.
    #[must_use]
    pub fn others(&self) -> Vec<String> {
        held(&self.shared.others).clone()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wakes whoever waits for the next one.
        drop(TcpStream::connect(self.address));
    }
}

/// What one line of a conversation is to us.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    /// What somebody tells the model, tags included.
    Told(String),
    /// An answer of the model's.
    Answered,
    /// A result, or something else.
    Other,
}

impl Shared {
    /// One request on one connection: every answer closes it.
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(IO_BOUND))?;
        stream.set_write_timeout(Some(IO_BOUND))?;
        let Some(request) = http::Request::read(&stream)? else { return Ok(()) };
        let mut reply = http::Reply::new(stream);
        let body: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        match (request.method.as_str(), request.route()) {
            ("POST", route) if route.ends_with("/messages") => {
                anthropic::answer(self, &mut reply, &body)
            }
            ("POST", route) if route.ends_with("/responses") => {
                responses::answer(self, &mut reply, &body)
            }
            (method, route) => {
                held(&self.others).push(format!("{method} {route}"));
                let counts = route.ends_with("/count_tokens");
                match method {
                    "HEAD" => reply.whole(200, &[], ""),
                    "POST" if counts => reply.json(200, &[], &json!({"input_tokens": 1234})),
                    "GET" if route.ends_with("/models") => {
                        let models = json!({"object": "list", "data": []});
                        reply.json(200, &[], &models)
                    }
                    _ => reply.json(404, &[], &error("not_found_error")),
                }
            }
        }
    }

    /// What to say to this request, which is remembered.
    fn step_for(&self, lines: &[Line], model: &str, has_tools: bool) -> Step {
        let (script, at) = self.chosen(lines, has_tools);
        let step = match script.as_ref().and_then(|name| Some((name, self.scripts.get(name)?))) {
            Some((name, steps)) => self.step_of(name, steps, at),
            None => (at, answer("Untitled").step()),
        };
        let model = model.to_owned();
        let told = lines.iter().filter_map(|line| match line {
            Line::Told(text) => Some(text.clone()),
            Line::Answered | Line::Other => None,
        });
        let told = told.collect();
        held(&self.calls).push(Call { at: Instant::now(), script, step: step.0, model, told });
        step.1
    }

    /// The script whose tag comes last, and how many answers follow it.
    fn chosen(&self, lines: &[Line], has_tools: bool) -> (Option<String>, usize) {
        let (mut chosen, mut answers) = (None, 0);
        for line in lines {
            match line {
                Line::Told(text) => {
                    let tags = script::tags_in(text);
                    let known = tags.filter(|name| self.scripts.contains_key(*name));
                    if let Some(name) = known.last() {
                        (chosen, answers) = (Some(name.to_owned()), 0);
                    }
                }
                Line::Answered => answers += 1,
                Line::Other => {}
            }
        }
        let steps = chosen.as_ref().and_then(|name| self.scripts.get(name));
        let needs_tools = steps.is_some_and(|steps| steps.iter().any(Step::asks));
        if needs_tools && !has_tools { (None, 0) } else { (chosen, answers) }
    }

    /// The step to play, without refusals that have been given often enough. The last is repeated.
    fn step_of(&self, name: &str, steps: &[Step], at: usize) -> (usize, Step) {
        let mut refused = held(&self.refused);
        let mut index = 0;
        let mut left = at;
        while index + 1 < steps.len() {
            let given = refused.get(&(name.to_owned(), index)).copied().unwrap_or(0);
            let is_over = matches!(&steps[index], Step::Refuse(r) if r.times <= given);
            if left == 0 && !is_over {
                break;
            }
            left -= usize::from(!is_over);
            index += 1;
        }
        if matches!(steps[index], Step::Refuse(_)) {
            *refused.entry((name.to_owned(), index)).or_default() += 1;
        }
        (index, steps[index].clone())
    }

    /// A name nobody else has.
    fn name(&self, kind: &str) -> String {
        format!("{kind}_{:024}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Says nothing until the model is gone: not even that it is still there, or the client would
    /// have something to do.
    fn hang(&self) {
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(HANGING);
        }
    }
}

fn error(kind: &str) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": kind, "code": kind}})
}

/// All text in a message's content, whatever its shape.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text_of).collect::<Vec<_>>().join("\n"),
        Value::Object(part) => {
            let inner = ["text", "content"].iter().filter_map(|key| part.get(*key));
            inner.map(text_of).collect::<Vec<_>>().join("\n")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

/// The first of these names that the client offers.
fn tool_named<'n>(offered: &[&str], names: &[&'n str]) -> Option<&'n str> {
    names.iter().find(|name| offered.contains(name)).copied()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
