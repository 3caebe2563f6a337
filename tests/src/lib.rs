//! What the end-to-end tests share: scratch places, runs, bystanders, and the checker after each
//! test.
//!
//! No test sleeps for a guess: [`until`] waits for a condition and fails loudly at its deadline.

mod family;
pub mod model;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kennel_process::{
    Adopted, Chunk, Containment, End, ExitStatus, KeeperProgram, Proof, Run, RunId, Spec, Stdin,
    Stream, Streams, TerminalSize, Verdict, Waited, read_output,
};

pub use family::Family;

/// How long anything may take on a loaded machine before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A grace that is over soon, for agents that will not use it.
pub const SHORT: Duration = Duration::from_millis(50);
/// A grace nobody waits for: a stop that takes this long is a failure.
pub const LONG: Duration = Duration::from_secs(30);

/// The path of a badly behaved agent.
#[must_use]
pub fn agent(name: &str) -> PathBuf {
    let path = Path::new(env!("AGENTS_DIR")).join(name);
    assert!(path.exists(), "there is no agent {name}");
    path
}

/// Waits until `found` gives something; panics with `what` when patience is over.
#[track_caller]
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(thing) = found() {
            return thing;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets time pass, for a crash that is meant to come at no particular moment. Nothing is waited
/// for.
pub fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// A directory of one test, removed with all that is in it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    name: String,
    canaries: Vec<Canary>,
}

/// A bystander. It must outlive everything a test does.
#[derive(Debug)]
struct Canary {
    child: Child,
    who: &'static str,
}

static COUNTER: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    /// Makes the directory, and bystanders of the kinds that pattern-killers hit.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(format!("kennel-it-{name}"));
        fs::create_dir_all(path.join("work")).expect("a temporary directory can be made");
        Self { path, name, canaries: Vec::new() }
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where runs work.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    /// A file agents report to.
    #[must_use]
    pub fn truth(&self) -> PathBuf {
        self.path.join("truth")
    }

    /// What agents have reported so far.
    #[must_use]
    pub fn told(&self) -> String {
        fs::read_to_string(self.truth()).unwrap_or_default()
    }

    /// The directory of the run of this name.
    #[must_use]
    pub fn run_dir(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The id of the run of this name, unique over all tests.
    #[must_use]
    pub fn run_id(&self, name: &str) -> RunId {
        RunId::new(format!("t-{}-{name}", self.name)).expect("names of tests are fit for ids")
    }

    /// A spec that runs an agent in the working directory, told where to report the truth.
    #[must_use]
    pub fn spec(&self, name: &str, agent_name: &str, args: &[&str]) -> Spec {
        let mut spec = Spec::new(self.run_id(name), agent(agent_name));
        spec.args = args.iter().map(OsString::from).collect();
        spec.cwd = Some(self.work());
        spec.env.set.push(("TRUTH".into(), self.truth().into()));
        spec
    }

    /// Starts a run with the test keeper.
    #[track_caller]
    pub fn start(&self, name: &str, spec: &Spec) -> Run {
        match self.try_start(name, spec, &test_keeper()) {
            Ok(run) => run,
            Err(e) => panic!("{name} does not start: {e}"),
        }
    }

    /// Starts a run with a keeper of the caller's.
    pub fn try_start(
        &self,
        name: &str,
        spec: &Spec,
        keeper: &KeeperProgram,
    ) -> Result<Run, kennel_process::StartError> {
        kennel_process::start_with(spec, &self.run_dir(name), keeper)
    }

    /// Adds bystanders that look like the run of this spec: same arguments, same directory, the
    /// working directory's path among their arguments, and neighbours whose names begin with its
    /// name.
    pub fn add_bystanders(&mut self, spec: &Spec) {
        let work = self.work();
        let sleeper = |who: &'static str, cwd: &Path, argv0: &Path, extra: &[OsString]| {
            use std::os::unix::process::CommandExt;
            let child = Command::new(agent("bystander"))
                .arg0(argv0)
                .args(extra)
                .current_dir(cwd)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("a bystander starts");
            Canary { child, who }
        };
        let program = PathBuf::from(&spec.program);
        let inside = work.join("inside");
        let longer = self.path.join("work6");
        for dir in [&inside, &longer] {
            fs::create_dir_all(dir).expect("it can be made");
        }
        self.canaries.push(sleeper("same argv", Path::new("/"), &program, &spec.args));
        self.canaries.push(sleeper("same cwd", &work, Path::new("editor"), &[]));
        self.canaries.push(sleeper("cwd inside", &inside, Path::new("shell"), &[]));
        let path = [work.clone().into_os_string()];
        self.canaries.push(sleeper("path in argv", Path::new("/"), Path::new("tail"), &path));
        self.canaries.push(sleeper(
            "longer name",
            &longer,
            Path::new("agent"),
            &[longer.clone().into()],
        ));
    }

    /// The checker, after a run has ended: nothing that carries its cookie, no cgroup, no socket,
    /// no keeper is left, the lock is free, every bystander lives.
    #[track_caller]
    pub fn check_gone(&mut self, name: &str) {
        let run = self.run_id(name);
        let dir = self.run_dir(name);
        until("the keeper lets go of its lock", || lock_is_free(&dir).then_some(()));
        let carriers = carriers_of(run.as_str());
        assert!(carriers.is_empty(), "{name}: processes carry its cookie: {carriers:?}");
        let leaves = leaves_of(run.as_str());
        assert!(leaves.is_empty(), "{name}: cgroups are left: {leaves:?}");
        assert!(!dir.join("control").exists(), "{name}: its socket is left");
        self.check_bystanders();
    }

    /// Ends what a failed test leaves behind, as far as that can be done.
    fn end_runs(&self) {
        let deadline = Instant::now() + LONG;
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let dir = entry.path();
            if !dir.join("record").exists() {
                continue;
            }
            match kennel_process::adopt(&dir) {
                Ok(Adopted::Running { mut connection, .. }) => {
                    let _ = connection.kill();
                    // A stuck one is tried again and again; its bound has passed once already.
                    while let Ok(Waited::Stuck { .. }) = connection.wait_end(LONG) {
                        if Instant::now() >= deadline {
                            break;
                        }
                        std::thread::sleep(SHORT);
                    }
                }
                Ok(Adopted::Orphaned(mut orphan)) => drop(orphan.kill()),
                Ok(Adopted::Ended(_) | Adopted::NeverStarted | Adopted::Unreadable(_)) | Err(_) => {
                }
            }
        }
    }

    /// Every bystander lives.
    #[track_caller]
    pub fn check_bystanders(&mut self) {
        for canary in &mut self.canaries {
            let ended = canary.child.try_wait().expect("we are its parent");
            assert!(ended.is_none(), "bystander {:?} was hurt: {ended:?}", canary.who);
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end_runs();
        }
        for canary in &mut self.canaries {
            let _ = canary.child.kill();
            let _ = canary.child.wait();
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The keeper of the tests, which has failpoints.
#[must_use]
pub fn test_keeper() -> KeeperProgram {
    KeeperProgram::new(test_keeper_path())
}

/// The executable of the keeper of the tests: beside the test binary's own directory.
#[must_use]
pub fn test_keeper_path() -> PathBuf {
    let mut path = std::env::current_exe().expect("we run from a file");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.join("test-keeper")
}

/// Both kinds of streams, for tests that must hold in either.
#[must_use]
pub fn both_streams() -> [Streams; 2] {
    [Streams::Pipes { stdin: Stdin::Closed }, Streams::Terminal { size: TerminalSize::default() }]
}

/// The containments that can be had on this machine, found out by doing. Says which cannot.
#[must_use]
pub fn containments() -> Vec<Containment> {
    use std::sync::OnceLock;
    static HAD: OnceLock<bool> = OnceLock::new();
    let cgroup = *HAD.get_or_init(|| {
        let scratch = Scratch::new("probe");
        let mut run = scratch.start("probe", &scratch.spec("probe", "bystander", &[]));
        let had = run.started.containment == Containment::Cgroup;
        run.connection.kill().expect("it can be killed");
        let _ = end_of(&mut run);
        if !had {
            skipped("every test in a cgroup", &format!("{:?}", run.started.containment_because));
        }
        had
    });
    let mut list = vec![Containment::Subreaper];
    if cgroup {
        list.insert(0, Containment::Cgroup);
    }
    list
}

/// Waits for the end of a run, which must be with proof.
#[track_caller]
pub fn end_of(run: &mut Run) -> End {
    match run.connection.wait_end(PATIENCE) {
        Ok(Waited::Ended(end)) => *end,
        other => panic!("the run does not end: {other:?}"),
    }
}

/// The proof in an end.
#[track_caller]
#[must_use]
pub fn proof_of(end: &End) -> &Proof {
    match &end.verdict {
        Verdict::Dead(proof) => proof,
        Verdict::Lost(lost) => panic!("lost: {lost:?}"),
    }
}

/// Stops a run and checks that its end says what the caller expects of the leader.
#[track_caller]
pub fn stop_and_expect(run: &mut Run, grace: Duration, status: ExitStatus) -> End {
    run.connection.stop(Some(grace)).expect("it can be stopped");
    let end = end_of(run);
    assert_eq!(end.status, status, "{end:?}");
    assert_eq!(proof_of(&end).leader(), status);
    end
}

/// Every process whose environment holds this run's cookie, with its state and command line.
#[must_use]
pub fn carriers_of(run: &str) -> Vec<String> {
    let cookie = format!("KENNEL_RUN={run}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("it is there").flatten() {
        let path = entry.path();
        let environ = fs::read(path.join("environ")).unwrap_or_default();
        if environ.split(|b| *b == 0).any(|e| e == cookie.as_bytes()) {
            let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
            let state = stat.rsplit(')').next().and_then(|s| s.split_whitespace().next());
            let command = fs::read(path.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            found.push(format!("{} {state:?} {command}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

/// Every cgroup v2 directory named after this run, wherever the hierarchy is mounted.
#[must_use]
pub fn leaves_of(run: &str) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let point = fields.nth(1)?;
        (fields.next() == Some("cgroup2")).then(|| PathBuf::from(point))
    });
    let name = format!("kennel-{run}");
    let mut found = Vec::new();
    for point in points {
        find_directories(&point, &name, &mut found);
    }
    found
}

fn find_directories(at: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            if entry.file_name().to_string_lossy() == name {
                found.push(entry.path());
            }
            find_directories(&entry.path(), name, found);
        }
    }
}

fn lock_is_free(dir: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let Ok(file) = fs::File::open(dir) else { return true };
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Says that a test, or a part of one, was not run, past the capturing of what tests print. The
/// file that `KENNEL_SKIPPED` names gets a line for each, to be counted.
pub fn skipped(name: &str, why: &str) {
    use std::io::Write;
    let line = format!("SKIPPED: {name}: {why}\n");
    let _ = std::io::stdout().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("KENNEL_SKIPPED") {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// True if we are root.
#[must_use]
pub fn are_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs one agent in every containment and kind of streams, among bystanders, with the checker
/// after each. The closure gets the scratch place, what to call this combination in a message, and
/// the spec of the run `run`.
#[track_caller]
pub fn each(name: &str, args: &[&str], test: impl Fn(&mut Scratch, &str, Spec)) {
    for containment in containments() {
        for (n, streams) in both_streams().into_iter().enumerate() {
            let mut scratch = Scratch::new(name);
            let mut spec = scratch.spec("run", name, args);
            spec.containment = containment;
            spec.streams = streams;
            scratch.add_bystanders(&spec);
            let label = format!("{containment}, {}", ["pipes", "terminal"][n]);
            test(&mut scratch, &label, spec);
            scratch.check_gone("run");
        }
    }
}

/// Waits until the agents have told this.
#[track_caller]
pub fn wait_for(scratch: &Scratch, word: &str) {
    until(&format!("the agent says {word:?}"), || scratch.told().contains(word).then_some(()));
}

/// The numbers that follow a word in what the agents told.
#[must_use]
pub fn numbers_after(scratch: &Scratch, word: &str) -> Vec<u32> {
    let told = scratch.told();
    let lines = told.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok());
    lines.collect()
}

/// The state letter of a process, as `/proc` has it.
#[must_use]
pub fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Everything a run wrote to a stream, of which nothing may be missing.
#[track_caller]
#[must_use]
pub fn output_of(dir: &Path, stream: Stream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = read_output(dir, stream, all.len() as u64).expect("it can be read") {
        match chunk {
            Chunk::Bytes { offset, bytes } => {
                assert_eq!(offset, all.len() as u64, "offsets follow each other");
                all.extend(bytes);
            }
            Chunk::Gap { from, to } => panic!("output from {from} to {to} is missing"),
        }
    }
    all
}

/// What was shown on the terminal of a run, by its recording, which must be a valid asciicast of
/// version 2: a header, then lines of time, code and data in the order of time.
#[track_caller]
#[must_use]
pub fn shown_by_recording(dir: &Path) -> String {
    let text = String::from_utf8(output_of(dir, Stream::Terminal)).expect("JSON is UTF-8");
    let mut lines = text.lines().map(|line| {
        serde_json::from_str::<serde_json::Value>(line).expect("every line is a JSON value")
    });
    let header = lines.next().expect("there is a header");
    assert_eq!(header["version"], 2);
    assert!(header["width"].as_u64() > Some(0) && header["height"].as_u64() > Some(0), "{header}");
    let (mut shown, mut last) = (String::new(), 0.0);
    for line in lines {
        let time = line[0].as_f64().expect("the time is a number");
        let data = line[2].as_str().expect("the data is text");
        assert!(time >= last, "time goes forward: {line}");
        last = time;
        match line[1].as_str() {
            Some("o") => shown.push_str(data),
            Some("i" | "r" | "m") => {}
            other => panic!("no such code in an asciicast: {other:?}"),
        }
    }
    shown
}

/// What a run showed, whichever kind of streams it has.
#[track_caller]
#[must_use]
pub fn shown_by(run: &Run) -> Vec<u8> {
    match run.started.streams {
        Streams::Pipes { .. } => output_of(run.dir(), Stream::Stdout),
        Streams::Terminal { .. } => shown_by_recording(run.dir()).into_bytes(),
    }
}

/// A program of this crate: beside the test binary's own directory.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    test_keeper_path().with_file_name(name)
}
