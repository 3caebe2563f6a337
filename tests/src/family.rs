//! A run with everybody around it who can be killed: its keeper, its starter, and an init of its
//! own above both.
//!
//! The init collects orphans at once and says how each ended, which is the kernel's own word to
//! compare a run's end with; and it ends only when no descendant is left, wherever that descendant
//! went. The keeper is found among the init's children, never by a pattern over all processes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use kennel_process::{ExitStatus, Process, Signal, Spec, descendants};

use crate::{PATIENCE, state_of, test_keeper_path, until};

/// A starter, its keeper and all that comes of them.
#[derive(Debug)]
pub struct Family {
    init: Child,
    orders: Option<ChildStdin>,
    said: Arc<Mutex<Vec<String>>>,
    listener: Option<JoinHandle<()>>,
}

impl Family {
    /// Has a starter of its own start a run, with a failpoint for the keeper.
    #[must_use]
    pub fn start(spec: &Spec, dir: &Path, failpoint: &str) -> Self {
        let spec = serde_json::to_string(spec).expect("every spec is JSON");
        let mut init = Command::new(crate::program("crash-starter"))
            .arg("init")
            .arg(test_keeper_path())
            .arg(dir)
            .args([failpoint, &spec])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = Arc::new(Mutex::new(Vec::new()));
        let orders = init.stdin.take();
        let stdout = BufReader::new(init.stdout.take().expect("it is a pipe"));
        let heard = Arc::clone(&said);
        let listener = std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { init, orders, said, listener: Some(listener) }
    }

    /// Everything the family has said so far.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The rest of the first line that begins with this word.
    #[must_use]
    pub fn word(&self, word: &str) -> Option<String> {
        let rest = |line: &String| line.strip_prefix(word).map(|rest| rest.trim().to_owned());
        self.said().iter().find_map(rest)
    }

    /// Tells the starter what to do: `stop MILLISECONDS` or `wait`.
    pub fn order(&mut self, order: &str) {
        if let Some(orders) = &mut self.orders {
            writeln!(orders, "{order}").expect("the starter listens");
        }
    }

    /// The starter, held open. It must not have been killed yet.
    #[track_caller]
    #[must_use]
    pub fn starter(&self) -> Process {
        let number = until("the starter is there", || self.word("starter"));
        let number = number.parse().expect("a number follows");
        Process::from_number(number).expect("it waits for orders")
    }

    /// The keeper, held open, if it stands at its failpoint.
    #[must_use]
    pub fn frozen_keeper(&self) -> Option<Process> {
        self.keeper_that(|state| state == 'T')
    }

    /// The keeper, held open, whatever it does.
    #[must_use]
    pub fn keeper(&self) -> Option<Process> {
        self.keeper_that(|_| true)
    }

    fn keeper_that(&self, fits: impl Fn(char) -> bool) -> Option<Process> {
        let init = self.init.id();
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).ok()?;
        let numbers = children.split_whitespace().filter_map(|n| n.parse::<u32>().ok());
        numbers.into_iter().find_map(|number| {
            let name = fs::read(format!("/proc/{number}/comm")).ok()?;
            let keeps = name == b"kennel-keeper\n";
            let fits = keeps && fits(state_of(number)?);
            fits.then(|| Process::from_number(number).ok()).flatten()
        })
    }

    /// How this process ended, if it became an orphan and was collected.
    #[must_use]
    pub fn collected(&self, pid: u32) -> Option<ExitStatus> {
        let line = self.word(&format!("reaped {pid} "))?;
        let (how, number) = line.split_once(' ')?;
        let number = number.parse().ok()?;
        Some(if how == "exited" {
            ExitStatus::Exited(number)
        } else {
            ExitStatus::Signaled(number)
        })
    }

    /// Waits until nobody of the family is left. It says no more after that.
    #[track_caller]
    pub fn await_end(&mut self) {
        self.orders = None;
        until("nobody of the family is left", || {
            self.init.try_wait().expect("we are its parent").map(|_| ())
        });
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

impl Drop for Family {
    /// After a failed test: whoever is below the init, which none can leave.
    fn drop(&mut self) {
        self.orders = None;
        let deadline = Instant::now() + PATIENCE;
        while let Ok(None) = self.init.try_wait() {
            let Ok(init) = Process::from_number(self.init.id()) else { break };
            for member in descendants(&init) {
                let _ = member.signal(Signal::KILL);
            }
            if Instant::now() > deadline {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
