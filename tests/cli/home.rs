//! A home of one test: the binary, its daemon, and the checker when the test is over.
//!
//! Owns: ending everything a test started, by the numbers it was told, and the comparison of what
//! kennel reported with what is there.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kennel_process::{Process, Signal};
use kennel_tests::{PATIENCE, carriers_of, leaves_of, until};
use serde_json::Value;

/// A home, removed with all that lives in it.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    /// Variables every command gets.
    env: Vec<(String, String)>,
    /// Whose every command is, if not ours.
    user: Option<u32>,
}

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// What a command said and how it exited.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    /// A new one. Its path is short: a socket's may have 107 bytes.
    pub(crate) fn new() -> Self {
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kn-{}-{n}", std::process::id()));
        let home = Self { path, env: Vec::new(), user: None };
        fs::create_dir_all(home.work()).expect("it can be made");
        home
    }

    /// The one that another process of this test made and did not come to remove.
    pub(crate) fn left_by(pid: u32) -> Self {
        let path = std::env::temp_dir().join(format!("kn-{pid}-0"));
        Self { path, env: Vec::new(), user: None }
    }

    /// Gives every command from here on a variable.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    /// Gives the home, and every command from here on, to another user.
    pub(crate) fn give_to(&mut self, user: u32) {
        for path in [self.path.clone(), self.work()] {
            std::os::unix::fs::chown(path, Some(user), Some(user)).expect("we are root");
        }
        self.user = Some(user);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    /// Where commands are run. Called as no other home's: runs of stories are named after their
    /// repository's directory, and what two homes call the same could not be told apart.
    pub(crate) fn work(&self) -> PathBuf {
        self.path.join(self.path.file_name().expect("it has a name"))
    }

    pub(crate) fn run_dir(&self, run: &str) -> PathBuf {
        self.state().join("runs").join(run)
    }

    /// A file agents tell the truth in.
    pub(crate) fn truth(&self, name: &str) -> PathBuf {
        self.path.join(format!("truth-{name}"))
    }

    /// The command, not yet started.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        command.args(args).env("KENNEL_HOME", &self.path).current_dir(self.work());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Runs a command to its end.
    pub(crate) fn kennel<S: AsRef<OsStr>>(&self, args: &[S]) -> Said {
        let output = self.command(args).output().expect("it can be run");
        Said::of(&output)
    }

    /// Runs a command that must succeed, and returns what it printed.
    #[track_caller]
    pub(crate) fn ok<S: AsRef<OsStr>>(&self, args: &[S]) -> String {
        let said = self.kennel(args);
        assert_eq!(said.code, 0, "{said:?}");
        said.out.trim_end().to_owned()
    }

    /// Runs a reading command and returns its first line as JSON.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(args);
        let out = self.ok(&all);
        serde_json::from_str(out.lines().next().unwrap_or_default()).expect("it is JSON")
    }

    /// Starts a detached run and returns its id.
    #[track_caller]
    pub(crate) fn start(&self, args: &[&str]) -> String {
        let mut all = vec!["run", "-d"];
        all.extend(args);
        self.ok(&all)
    }

    /// A run as it is shown.
    #[track_caller]
    pub(crate) fn show(&self, run: &str) -> Value {
        self.json(&["show", run])
    }

    /// Every run there ever was.
    #[track_caller]
    pub(crate) fn all_runs(&self) -> Vec<Value> {
        let out = self.ok(&["--json", "ps", "-a", "-n", "10000"]);
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
    }

    /// Asks the API: status and body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, body) = self.ask_text(method, path, body);
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    pub(crate) fn ask_text(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: kennel\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, body.to_owned())
    }

    /// A connection to the daemon, which must be up.
    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.state().join("socket")).expect("a daemon is up");
        stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
        stream
    }

    /// The daemon's process, held.
    pub(crate) fn daemon(&self) -> Option<Process> {
        let note = fs::read_to_string(self.state().join("lock")).ok()?;
        let pid = note.lines().next()?.strip_prefix("process ")?.trim().parse().ok()?;
        let process = Process::from_number(pid).ok()?;
        // The note may be of a daemon that is gone, and its number another's.
        let socket = UnixStream::connect(self.state().join("socket")).ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
        (peer.pid.as_raw_nonzero().get() as u32 == pid).then_some(process)
    }

    /// Kills the daemon without a word, and waits until it is gone.
    #[track_caller]
    pub(crate) fn kill_daemon(&self) {
        let daemon = until("a daemon is up", || self.daemon());
        let pid = daemon.identity().pid;
        daemon.signal(Signal::KILL).expect("it can be killed");
        until("the daemon is gone", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
            let gone = stat.as_deref().is_none_or(|s| s.contains(") Z "));
            gone.then_some(())
        });
        // A thread of it that waits for the disk holds its files a while longer. Somebody who waits
        // may have started the next one already.
        until("its lock is free, or another's", || {
            let lock = self.state().join("lock");
            let note = fs::read_to_string(&lock).ok()?;
            let own = note.lines().next() == Some(&*format!("process {pid}"));
            (!own || fs::File::open(&lock).ok()?.try_lock().is_ok()).then_some(())
        });
    }

    /// Kills the keeper of a run without a word.
    #[track_caller]
    pub(crate) fn kill_keeper(&self, run: &str) {
        let shown = self.show(run);
        let pid = shown["keeper"]["pid"].as_u64().expect("it has a keeper") as u32;
        let keeper = Process::from_number(pid).expect("it lives");
        keeper.signal(Signal::KILL).expect("it can be killed");
    }

    /// A daemon in the foreground, ready to serve.
    pub(crate) fn up(&self, args: &[&str]) -> Foreground {
        let mut all = vec!["up"];
        all.extend(args);
        let mut command = self.command(&all);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it can be run");
        let mut log = BufReader::new(child.stderr.take().expect("it is a pipe"));
        let mut seen = String::new();
        while !seen.contains("serving on") || !seen.contains("/socket") {
            let mut line = String::new();
            if log.read_line(&mut line).expect("it can be read") == 0 {
                let ended = child.wait().expect("it is ours");
                panic!("the daemon did not come up ({ended}): {seen}");
            }
            seen.push_str(&line);
        }
        // Nobody may stop it by not reading.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Foreground { child, seen }
    }

    /// The checker: every run is dead with proof or is known to have never started, exactly one end
    /// of each is in the journal, and nothing of any of them is left. Then the daemon goes.
    #[track_caller]
    pub(crate) fn check(&self) {
        let runs = self.all_runs();
        for run in runs.iter().filter(|run| run["state"] != "dead") {
            let id = run["id"].as_str().expect("it is text");
            let said = self.kennel(&["kill", id]);
            assert_eq!(said.code, 0, "{id} cannot be ended: {said:?}");
        }
        let ends = self.ends();
        let notices = self.end_notices();
        for run in self.all_runs() {
            let id = run["id"].as_str().expect("it is text").to_owned();
            assert_eq!(run["state"], "dead", "{run}");
            let never = run["end"]["cause"] == "never_started";
            assert!(never || run["proof"].is_object(), "{run}");
            let count = ends.iter().filter(|ended| **ended == id).count();
            assert_eq!(count, 1, "{id} ended {count} times");
            self.check_notice(&run, &id, &notices);
            assert_eq!(carriers_of(&id), Vec::<String>::new(), "{id} is said to be dead");
            let gone = || leaves_of(&id).is_empty().then_some(());
            until("its cgroup is gone", gone);
        }
        self.down();
    }

    /// One terminal notice, and it says what is known of the run: at once, or when it was settled.
    #[track_caller]
    fn check_notice(&self, run: &Value, id: &str, notices: &[Value]) {
        let own: Vec<&Value> = notices.iter().filter(|notice| notice["run"] == *id).collect();
        let ended: Vec<_> = own.iter().filter(|notice| notice["kind"] == "ended").collect();
        assert_eq!(ended.len(), 1, "terminal notices of {run}: {own:#?}");
        assert_eq!(ended[0]["id"], format!("{id}/ended/1"));
        let last = own.last().expect("there is one");
        assert_eq!(last["end"], run["end"], "what was told is not what is shown");
    }

    /// Every notice of an end, quiet ones too.
    fn end_notices(&self) -> Vec<Value> {
        let mut ends = Vec::new();
        let mut after = 0;
        loop {
            let path = format!("/v1/notices?all=true&after={after}");
            let (status, page) = self.ask("GET", &path, "");
            assert_eq!(status, 200, "{page}");
            let notices = page["notices"].as_array().cloned().unwrap_or_default();
            if notices.is_empty() {
                return ends;
            }
            let is_end = |n: &Value| n["kind"] == "ended" || n["kind"] == "settled";
            ends.extend(notices.into_iter().filter(is_end));
            after = page["next"].as_u64().expect("it is a number");
        }
    }

    /// The runs whose end is in the journal, each as often as it is there.
    pub(crate) fn ends(&self) -> Vec<String> {
        let mut ends = Vec::new();
        let mut after = 0;
        loop {
            let (status, page) = self.ask("GET", &format!("/v1/events?after={after}"), "");
            assert_eq!(status, 200, "{page}");
            let events = page["events"].as_array().cloned().unwrap_or_default();
            if events.is_empty() {
                return ends;
            }
            for event in &events {
                if event["kind"] == "ended" {
                    ends.push(event["run"].as_str().expect("it is text").to_owned());
                }
            }
            after = page["next"].as_u64().expect("it is a number");
        }
    }

    /// Changes the store behind the daemon's back, or asks it for one value.
    #[track_caller]
    pub(crate) fn sql(&self, statement: &str) -> String {
        let store = rusqlite::Connection::open(self.state().join("kennel.db"));
        let store = store.expect("it is there");
        store.busy_timeout(PATIENCE).expect("it can be set");
        if !statement.starts_with("SELECT") {
            store.execute_batch(statement).expect("it is done");
            return String::new();
        }
        let value = store.query_row(statement, [], |row| row.get::<_, i64>(0));
        value.expect("it is a number").to_string()
    }

    /// Has the daemon leave, if there is one, and waits until its keepers have let go.
    pub(crate) fn down(&self) {
        drop(self.kennel(&["down"]));
        let runs = fs::read_dir(self.state().join("runs")).into_iter().flatten().flatten();
        for dir in runs.map(|entry| entry.path()) {
            until("its keeper has left", || is_free(&dir).then_some(()));
        }
    }
}

impl Home {
    /// Ends what a failed test leaves behind, without the daemon, as far as that can be done.
    fn end_runs(&self) {
        use kennel_process::{Adopted, adopt};
        let runs = fs::read_dir(self.state().join("runs")).into_iter().flatten().flatten();
        for dir in runs.map(|entry| entry.path()) {
            match adopt(&dir) {
                Ok(Adopted::Running { mut connection, .. }) => {
                    let _ = connection.kill();
                    let _ = connection.wait_end(SOON);
                }
                Ok(Adopted::Orphaned(mut orphan)) => drop(orphan.kill()),
                Ok(Adopted::Ended(_) | Adopted::NeverStarted | Adopted::Unreadable(_)) | Err(_) => {
                }
            }
        }
    }
}

fn is_free(dir: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let Ok(file) = fs::File::open(dir) else { return true };
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

impl Drop for Home {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.command(&["down", "--stop-runs", "--grace", "0s"]).output();
            self.end_runs();
        } else {
            self.down();
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Said {
    pub(crate) fn of(output: &Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let status = output.status;
        Self {
            code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A daemon in the foreground.
#[derive(Debug)]
pub(crate) struct Foreground {
    pub(crate) child: Child,
    /// What it said until it served.
    pub(crate) seen: String,
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a program of a file. By another process: a descriptor of ours that is open for writing may
/// be inherited for a moment by what another test starts, and what is open for writing cannot be
/// executed.
pub(crate) fn make_program(from: &Path, to: &Path) {
    let mut install = Command::new("install");
    let made = install.args(["-m", "755"]).arg(from).arg(to).status().expect("it can be run");
    assert!(made.success(), "{} is not made", to.display());
}

/// A bound for commands that must not take long.
pub(crate) const SOON: Duration = Duration::from_secs(20);
