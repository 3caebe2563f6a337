//! Another kernel than this machine's, in an emulated machine: one where kennel is given the
//! controllers of cgroups, and an older one.
//!
//! One test starts the machine with this very binary in it, at the path it has here; there the same
//! test runs the scenarios, one after the other. `tests/vm/install` gets what is needed. What
//! cannot be had is skipped by name.
//!
//! Any other test can be run there by hand: `tests/vm/run` says how.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kennel_process::{Process, Signal};
use kennel_tests::{agent, skipped, until};
use serde_json::Value;

use super::home::Home;

/// Set in the machine.
const INSIDE: &str = "KENNEL_VM_INSIDE";
/// How long the machine may take for everything. It computes for some 70 s, which took 200 s where
/// ten others wanted the two processors.
const BOUND: Duration = Duration::from_secs(400);
/// The test that starts the machine, as the test runner calls it.
const NAME: &str = "vm::another_kernel_keeps_every_promise";
/// The user in the machine who is not root.
const USER: u32 = 1000;
/// What the runs may have, in the words of the command.
const MEMORY: u64 = 16 << 20;
/// Where cgroups are in the machine.
const CGROUPS: &str = "/sys/fs/cgroup";

#[test]
fn another_kernel_keeps_every_promise() {
    if std::env::var_os(INSIDE).is_some() {
        return scenarios();
    }
    let from = match machine() {
        Ok(from) => from,
        Err(why) => return skipped(NAME, &why),
    };
    let (said, kernel) = boot(&from);
    let results: Vec<&str> = said.lines().filter_map(|l| l.strip_prefix("RESULT ")).collect();
    println!("{results:#?}");
    let all = results.len() == SCENARIOS.len();
    let passed = all && results.iter().all(|result| result.starts_with("ok "));
    assert!(passed, "{results:#?}\nit said:\n{said}\nits kernel said:\n{kernel}");
}

/// Where the kernel is, or what is missing.
fn machine() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let emulator = |dir: PathBuf| dir.join("qemu-system-x86_64").exists();
    if !std::env::split_paths(&path).any(emulator) {
        return Err("there is no qemu-system-x86_64: tests/vm/install gets it".to_owned());
    }
    let here = std::env::current_exe().expect("we run from a file");
    let places = match std::env::var_os("KENNEL_VM") {
        Some(place) => vec![PathBuf::from(place)],
        None => here.ancestors().map(|dir| dir.join("vm")).collect(),
    };
    let found = places.into_iter().find(|dir| dir.join("vmlinuz").exists());
    found.ok_or_else(|| "there is no kernel for it: tests/vm/install gets one".to_owned())
}

/// Boots the machine, and returns what was said in it and what its kernel said.
fn boot(from: &Path) -> (String, String) {
    let here = std::env::current_exe().expect("we run from a file");
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vm/run");
    let inside = format!("{INSIDE}=1 {} --exact {NAME} --nocapture", here.display());
    let ran = Command::new(run)
        .arg(from)
        .arg(BOUND.as_secs().to_string())
        .arg(inside)
        .args([env!("CARGO_BIN_EXE_kennel").as_ref(), here.as_os_str()])
        .args(agents())
        .stdin(Stdio::null())
        .output()
        .expect("it can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\r', "");
    (text(&ran.stdout), text(&ran.stderr))
}

/// Every agent.
fn agents() -> impl Iterator<Item = PathBuf> {
    let any = agent("eats");
    let dir = fs::read_dir(any.parent().expect("it is in a directory")).expect("it reads");
    dir.map(|entry| entry.expect("it reads").path()).filter(|path| path.is_file())
}

/// What is tried in the machine. Those that do not need a daemon of their own share one: to load a
/// program takes seconds there.
type Scenario = (&'static str, fn(&Home));

const SCENARIOS: &[Scenario] = &[
    ("a run over its memory is ended by the kernel, whole", over_memory),
    ("a plain kill stays what it is", plain_kill),
    ("what the machine itself lacks is told without a limit", machine_out_of_memory),
    ("a storm stays below its bound and is told of once", storm),
    ("a bound of the kernel's that its agent raises is kept all the same", raised),
    ("time asleep counts for the wall clock and not as idleness", asleep),
    ("a stop ends in a proof", stop),
    ("nothing is left of any of them", Home::check),
    ("a run whose keeper is gone is still told to be out of memory", over_memory_alone),
    ("a daemon alone in its cgroup makes room for controllers", alone),
    ("a user does too, where a cgroup is delegated", delegated),
    ("a daemon among others samples, says why, and contains all the same", among_others),
];

/// In the machine: every scenario, one line for each.
fn scenarios() {
    let home = Home::new();
    let _daemon = home.up(&[]);
    for (name, scenario) in SCENARIOS {
        let begun = Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(|| scenario(&home))).is_ok();
        let word = if passed { "ok" } else { "FAILED" };
        println!("RESULT {word} {name} ({:.1} s)", begun.elapsed().as_secs_f64());
    }
}

fn path(name: &str) -> String {
    agent(name).to_string_lossy().into_owned()
}

/// What the daemon says. Without a command, which takes long to load in an emulated machine.
fn asked(home: &Home, path: &str) -> Value {
    let (status, said) = home.ask("GET", path, "");
    assert_eq!(status, 200, "{path}: {said}");
    said
}

/// Where a run stands with a limit.
fn limit(home: &Home, run: &str, kind: &str) -> Value {
    of_kind(&asked(home, &format!("/v1/runs/{run}/limits")), kind)
}

fn of_kind(report: &Value, kind: &str) -> Value {
    let limits = report["limits"].as_array().expect("a list");
    limits.iter().find(|limit| limit["kind"] == kind).expect("it has one").clone()
}

fn shown(home: &Home, run: &str) -> Value {
    asked(home, &format!("/v1/runs/{run}"))
}

fn ended(home: &Home, run: &str) -> Value {
    until("it has ended", || {
        let shown = shown(home, run);
        (shown["state"] == "dead").then_some(shown)
    })
}

#[track_caller]
fn out_of_memory(run: &Value, max: u64) {
    assert_eq!(run["end"]["cause"], "oom", "{run}");
    assert_eq!(run["end"]["limit"]["kind"], "memory", "{run}");
    assert_eq!(run["end"]["limit"]["max"], max as f64, "{run}");
    assert_eq!(run["end"]["limit"]["used"], max as f64, "{run}");
    assert!(run["proof"].is_object(), "{run}");
}

fn over_memory(home: &Home) {
    let run = home.start(&["--memory", "16M", "--", &path("eats"), "500"]);
    let said = home.kennel(&["wait", &run]);
    assert_eq!(said.code, 124, "{said:?}");
    let run = shown(home, &run);
    out_of_memory(&run, MEMORY);
    assert_eq!(run["end"]["status"]["signaled"], 9, "{run}");
    assert_eq!(run["containment"], "cgroup", "{run}");
    // Neither the leader nor its other child has eaten anything.
    let script = format!("sleep 1000 & {} 500 & wait", path("eats"));
    let run = home.start(&["--memory", "16M", "--on-exit", "wait", "--", "sh", "-c", &script]);
    let standing = of_kind(&home.json(&["limits", &run]), "memory");
    assert_eq!(standing["binds"], "hard", "{standing}");
    assert!(standing["because"].is_null(), "{standing}");
    let run = ended(home, &run);
    out_of_memory(&run, MEMORY);
    assert_eq!(run["proof"]["rounds"], 0, "nobody was left to be forced: {run}");
}

fn plain_kill(home: &Home) {
    let run = home.start(&["--memory", "16M", "--pids", "20", "--", "sleep", "1000"]);
    let memory = limit(home, &run, "memory");
    assert!(memory["used"].as_f64() > Some(0.0), "{memory}");
    assert_eq!(limit(home, &run, "pids")["used"], 1.0);
    let leader = shown(home, &run)["leader"]["pid"].as_u64().expect("it has one") as u32;
    let leader = Process::from_number(leader).expect("it lives");
    leader.signal(Signal::KILL).expect("it can be killed");
    let shown = ended(home, &run);
    assert_eq!(shown["end"]["cause"], "exit", "{shown}");
    assert_eq!(shown["end"]["status"]["signaled"], 9, "{shown}");
    assert!(shown["end"]["limit"].is_null(), "{shown}");
    assert_eq!(home.kennel(&["wait", &run]).code, 137);
}

fn machine_out_of_memory(home: &Home) {
    // A run before it has had the controller given to all leaves here.
    let run = home.start(&["--", &path("eats"), "100000"]);
    assert_eq!(home.kennel(&["wait", &run]).code, 137);
    let run = shown(home, &run);
    assert_eq!(run["end"]["cause"], "oom", "{run}");
    assert!(run["end"]["limit"].is_null(), "{run}");
}

fn storm(home: &Home) {
    let run = home.start(&["--pids", "30", "--", &path("storm"), "300"]);
    let told = until("it is told", || {
        let pids = limit(home, &run, "pids");
        assert_eq!(pids["binds"], "hard", "{pids}");
        assert!(pids["used"].as_f64() <= Some(30.0), "{pids}");
        (pids["warned"] == true).then_some(pids)
    });
    assert_eq!(told["used"], 30.0, "{told}");
    assert_eq!(shown(home, &run)["state"], "running");
    home.ok(&["kill", &run]);
    let events = asked(home, "/v1/events")["events"].as_array().expect("a list").clone();
    let warnings = events.iter().filter(|event| event["run"] == *run && event["kind"] == "warned");
    assert_eq!(warnings.count(), 1, "{events:?}");
    let run = shown(home, &run);
    assert_eq!(run["end"]["cause"], "killed", "{run}");
    assert!(run["proof"]["processes"].as_u64() <= Some(30), "{run}");
}

/// An agent of the same user may write to its own cgroup.
fn raised(home: &Home) {
    let eats = format!("exec {} 100", path("eats"));
    let storm = format!("exec {} 300", path("storm"));
    for (flag, bound, file, then) in
        [("--memory", "16M", "memory.max", eats), ("--pids", "30", "pids.max", storm)]
    {
        let script = format!(
            "leaf={CGROUPS}$(sed s/^0::// /proc/self/cgroup); echo max >$leaf/{file}; \
             cat $leaf/{file}; {then}"
        );
        let run = home.start(&[flag, bound, "--grace", "1s", "--", "sh", "-c", &script]);
        let kind = flag.trim_start_matches('-');
        assert_eq!(limit(home, &run, kind)["binds"], "hard");
        let shown = ended(home, &run);
        assert_eq!(home.ok(&["logs", &run]), "max", "it was raised: {shown}");
        assert_eq!(shown["end"]["cause"], "limit", "{shown}");
        let reached = &shown["end"]["limit"];
        assert_eq!(reached["kind"], kind, "{shown}");
        assert!(reached["used"].as_f64() > reached["max"].as_f64(), "{shown}");
        assert!(shown["proof"].is_object(), "{shown}");
    }
}

/// How long a run may take and may be idle here, and how long the machine sleeps: longer.
const AWAKE: f64 = 16.0;
const ASLEEP: u32 = 20;

/// The machine sleeps for real, until the alarm of its clock.
fn asleep(home: &Home) {
    let wall = home.start(&["--wall", "16s", "--", "sleep", "1000"]);
    let idle = home.start(&["--idle", "16s", "--", "sleep", "1000"]);
    let alarm = Path::new("/sys/class/rtc/rtc0/wakealarm");
    fs::write(alarm, format!("+{ASLEEP}")).expect("it has a clock");
    let before = (Instant::now(), uptime());
    fs::write("/sys/power/state", "mem").expect("it goes to sleep");
    // The first of these clocks stands still while the machine sleeps.
    let (awake, all) = (before.0.elapsed().as_secs_f64(), uptime() - before.1);
    assert!(all > AWAKE && all - awake > AWAKE - 4.0, "it slept: {all} s, {awake} s of it awake");
    let shown = ended(home, &wall);
    assert_eq!(shown["end"]["limit"]["kind"], "wall", "{shown}");
    // Who counts only the time awake ends it after that much more.
    let used = shown["end"]["limit"]["used"].as_f64().expect("a number");
    assert!(used < all + AWAKE / 2.0, "{all} s: {shown}");
    let shown = self::shown(home, &idle);
    assert_eq!(shown["state"], "running", "it was not idle, it slept: {shown}");
    let shown = ended(home, &idle);
    assert_eq!(shown["end"]["limit"]["kind"], "idle", "{shown}");
    assert!(shown["end"]["limit"]["used"].as_f64() < Some(all + AWAKE), "{shown}");
}

/// Seconds since the machine was started, asleep or not.
fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").expect("it is there");
    text.split(' ').next().and_then(|seconds| seconds.parse().ok()).expect("a number")
}

fn over_memory_alone(_: &Home) {
    let home = Home::new();
    let daemon = home.up(&[]);
    let go = home.path().join("go");
    let script =
        format!("while [ ! -e {} ]; do sleep 0.1; done; exec {} 500", go.display(), path("eats"));
    let run = home.start(&["--memory", "16M", "--", "sh", "-c", &script]);
    let leaf = Path::new(CGROUPS).join(format!("kennel-{run}"));
    let keeper = shown(&home, &run)["keeper"]["pid"].as_u64().expect("it has one") as u32;
    let keeper = Process::from_number(keeper).expect("it lives");
    // Without a word, and waits for it.
    drop(daemon);
    keeper.signal(Signal::KILL).expect("it can be killed");
    fs::write(&go, "").expect("it can be written");
    until("the kernel has ended it", || {
        let events = fs::read_to_string(leaf.join("cgroup.events")).ok()?;
        events.contains("populated 0").then_some(())
    });
    let _daemon = home.up(&[]);
    let shown = ended(&home, &run);
    out_of_memory(&shown, MEMORY);
    home.check();
}

/// A cgroup of a test's own, empty and with controllers for whoever is in it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Self {
        let path = Path::new(CGROUPS).join(name);
        let control = Path::new(CGROUPS).join("cgroup.subtree_control");
        fs::write(control, "+memory +pids").expect("they are there");
        fs::create_dir(&path).expect("it can be made");
        Self(path)
    }

    fn add(&self, process: &Child) {
        let written = fs::write(self.0.join("cgroup.procs"), process.id().to_string());
        written.expect("it is let in");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0.join("kennel.keepers"));
        let _ = fs::remove_dir(&self.0);
    }
}

/// A daemon in a cgroup, of some user, until it is told to leave.
fn daemon_in(home: &Home, cgroup: &Cgroup, user: u32) -> Child {
    let script = format!("read go; exec {} up", env!("CARGO_BIN_EXE_kennel"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("KENNEL_HOME", home.path()).uid(user).gid(user);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = shell.spawn().expect("it can be started");
    cgroup.add(&daemon);
    let mut stdin = daemon.stdin.take().expect("it is a pipe");
    stdin.write_all(b"go\n").expect("it reads");
    until("it serves", || home.path().join("state/socket").exists().then_some(()));
    daemon
}

fn alone(_: &Home) {
    let home = Home::new();
    let cgroup = Cgroup::new("alone");
    let mut daemon = daemon_in(&home, &cgroup, 0);
    held_by_the_kernel(&home);
    daemon.wait().expect("it is ours");
}

/// Runs held to memory and processes by the kernel, and nothing left of them.
fn held_by_the_kernel(home: &Home) {
    let run = home.start(&["--memory", "16M", "--pids", "20", "--", "sleep", "1000"]);
    for kind in ["memory", "pids"] {
        let standing = limit(home, &run, kind);
        assert_eq!(standing["binds"], "hard", "{standing}");
    }
    home.ok(&["stop", "--grace", "5s", &run]);
    let said = home.kennel(&["run", "--memory", "16M", "--", &path("eats"), "500"]);
    assert_eq!(said.code, 124, "{said:?}");
    home.check();
}

fn delegated(_: &Home) {
    let mut home = Home::new();
    let cgroup = Cgroup::new("delegated");
    for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
        chown(cgroup.0.join(name), Some(USER), Some(USER)).expect("we are root");
    }
    home.give_to(USER);
    let mut daemon = daemon_in(&home, &cgroup, USER);
    held_by_the_kernel(&home);
    daemon.wait().expect("it is ours");
}

fn among_others(_: &Home) {
    let home = Home::new();
    let cgroup = Cgroup::new("among");
    let mut other = Command::new("sleep").arg("1000").spawn().expect("it can be started");
    cgroup.add(&other);
    let mut daemon = daemon_in(&home, &cgroup, 0);
    let run = home.start(&["--memory", "16M", "--pids", "20", "--", "sleep", "1000"]);
    for kind in ["memory", "pids"] {
        let standing = limit(&home, &run, kind);
        assert_eq!(standing["binds"], "sampled", "{standing}");
        let why = standing["because"].as_str().unwrap_or_default();
        assert!(why.contains("processes of its own"), "{standing}");
    }
    assert_eq!(shown(&home, &run)["containment"], "cgroup");
    let said = home.kennel(&["run", "--memory", "16M", "--", &path("eats"), "500"]);
    assert_eq!(said.code, 124, "{said:?}");
    assert!(said.err.contains("limit memory reached"), "{said:?}");
    home.check();
    daemon.wait().expect("it is ours");
    other.kill().expect("it is ours");
    other.wait().expect("it is ours");
}

fn stop(home: &Home) {
    let truth = home.truth("fork");
    let env = format!("TRUTH={}", truth.display());
    let run = home.start(&["--env", &env, "--", &path("double_fork")]);
    until("it has forked", || truth.exists().then_some(()));
    home.ok(&["stop", "--grace", "100ms", &run]);
    let run = shown(home, &run);
    assert_eq!(run["end"]["cause"], "stopped", "{run}");
    assert!(run["proof"]["rests_on"].as_array().is_some_and(|on| !on.is_empty()), "{run}");
}
