//! The figures of limits in an agent's own words: how soon they bind, what it costs to follow files
//! in which nothing happens, and how much memory a large transcript takes.
//!
//! `cargo run --release -p kennel-tests --no-default-features --bin bench-limits -- KENNEL
//! [bind|rest|memory]` prints tables; KENNEL is the shipped binary. Nothing here is an assertion.

#![expect(clippy::print_stdout, reason = "the table is the purpose of the program")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kennel_process::{Process, Signal};
use kennel_tests::{agent, until};

/// Runs that reach a limit, of each kind.
const ROUNDS: usize = 300;
/// Keepers at rest, each with a file to follow.
const KEEPERS: usize = 100;
/// How long they are watched doing nothing.
const IDLE: Duration = Duration::from_secs(10);
/// Bytes of a large transcript, and of one as they usually are.
const LARGE: u64 = 1 << 30;
const USUAL: u64 = 1 << 20;

fn main() {
    let Some(kennel) = std::env::args_os().nth(1).map(PathBuf::from) else {
        println!("usage: bench-limits KENNEL [bind|rest|memory]");
        return;
    };
    // It is run from other directories.
    let kennel = kennel.canonicalize().expect("KENNEL is there");
    let only = std::env::args().nth(2);
    let wanted = |section: &str| only.as_deref().is_none_or(|only| only == section);
    let root = std::env::temp_dir().join(format!("kl-{}", std::process::id()));
    let mut sections = 0;
    let mut world = |shell: Option<&'static str>| {
        sections += 1;
        World::new(&kennel, root.join(sections.to_string()), shell)
    };
    if wanted("bind") {
        bind(&world(None));
    }
    if wanted("rest") {
        println!("| {KEEPERS} keepers that follow a file each, for {IDLE:?} | ticks | wake-ups |");
        println!("|---|---|---|");
        floor_at_rest();
        rest("woken by changes", &world(None));
        // A user who may watch nothing.
        let none = "echo 0 >/proc/sys/user/max_inotify_instances && exec \"$@\"";
        rest("by the clock, where nothing can be watched", &world(Some(none)));
    }
    if wanted("memory") {
        memory(&world(None));
    }
    let _ = fs::remove_dir_all(&root);
}

/// A home with its daemon, and one for the agents.
struct World {
    kennel: PathBuf,
    path: PathBuf,
}

impl World {
    /// Its daemon is started through this script in a namespace of users, if one is given.
    fn new(kennel: &Path, path: PathBuf, shell: Option<&str>) -> Self {
        let world = Self { kennel: kennel.to_owned(), path };
        fs::create_dir_all(world.project()).expect("it can be made");
        fs::create_dir_all(world.work()).expect("it can be made");
        let ours = world.command(&["ps"]);
        let mut first = match shell {
            Some(shell) => {
                let mut unshare = Command::new("unshare");
                unshare.args(["-Ur", "sh", "-c", shell, "sh"]).arg(&world.kennel).arg("ps");
                unshare
            }
            None => Command::new(&world.kennel),
        };
        if shell.is_none() {
            first.arg("ps");
        }
        first.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = first.current_dir(world.work()).output().expect("it can be run");
        assert!(output.status.success(), "{output:?}");
        world
    }

    fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    /// Where Claude Code keeps the transcripts of what is run in our directory.
    fn project(&self) -> PathBuf {
        let dash = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = self.work().to_string_lossy().chars().map(dash).collect();
        self.path.join("agent/.claude/projects").join(name)
    }

    fn session(&self, n: usize) -> (String, PathBuf) {
        let id = format!("00000000-0000-4000-8000-{n:012}");
        let file = self.project().join(format!("{id}.jsonl"));
        (id, file)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kennel);
        command.args(args).current_dir(self.work()).stdin(Stdio::null());
        command.env("KENNEL_HOME", self.path.join("h")).env("HOME", self.path.join("agent"));
        command.env("TRUTH", self.path.join("truth"));
        command
    }

    fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("it can be run");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Starts an agent of ours as if it were Claude Code, in the session of that number.
    fn start(&self, n: usize, limit: [&str; 2], program: &[&str]) -> String {
        let (id, _) = self.session(n);
        let mut args = vec!["run", "-d", "--grace", "5s", "--format", "claude"];
        args.extend(limit);
        args.push("--");
        args.extend(program);
        args.extend(["--session-id", &id]);
        let run = self.run(&args);
        assert!(!run.is_empty(), "{args:?}");
        run
    }

    fn over(&self, run: &str) {
        self.run(&["wait", "--timeout", "1m", run]);
    }

    fn keeper(&self, run: &str) -> u64 {
        let shown: serde_json::Value =
            serde_json::from_str(&self.run(&["--json", "show", run])).expect("it is JSON");
        shown["keeper"]["pid"].as_u64().expect("a number")
    }

    /// Waits until this many responses of a run are counted.
    fn counted(&self, run: &str, turns: u64) {
        until("it is counted", || {
            let shown =
                serde_json::from_str::<serde_json::Value>(&self.run(&["--json", "show", run]));
            (shown.ok()?["usage"]["turns"].as_u64()? >= turns).then_some(())
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.run(&["down", "--stop-runs", "--grace", "0s"]);
    }
}

/// From the line that reaches a limit to the arrival of the signal, as the agent saw both.
fn bind(world: &World) {
    println!("| limit reached to stop begun, {ROUNDS} runs | p50 | p99 | ratio of p50 |");
    println!("|---|---|---|---|");
    let program = agent("bench_limit").to_string_lossy().into_owned();
    let floor = times(world, |_| {
        let mut child = Command::new(&program)
            .args(["line", "-"])
            .env("TRUTH", world.path.join("truth"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let _ = BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line);
        let held = Process::from_number(child.id()).expect("it lives");
        held.signal(Signal::TERM).expect("it is ours");
        let _ = child.wait();
    });
    row("floor: read a pipe, signal", &floor, &floor);
    let line = times(world, |n| {
        let run = world.start(n, ["--max-tool-turns", "1"], &[&program, "line", "-"]);
        world.over(&run);
    });
    row("a turn that is said, by `--max-tool-turns`", &line, &floor);
    let file = times(world, |n| {
        let (_, file) = world.session(n + ROUNDS);
        let file = file.to_string_lossy().into_owned();
        let limit = ["--max-budget-usd", "0.001"];
        let run = world.start(n + ROUNDS, limit, &[&program, "file", &file]);
        world.over(&run);
    });
    row("money that a file alone tells, by `--max-budget-usd`", &file, &floor);
}

/// What the agents said, in order of size, in microseconds.
fn times(world: &World, mut once: impl FnMut(usize)) -> Vec<f64> {
    let truth = world.path.join("truth");
    let _ = fs::remove_file(&truth);
    (0..ROUNDS).for_each(&mut once);
    let text = fs::read_to_string(&truth).unwrap_or_default();
    let mut all: Vec<f64> =
        text.lines().filter_map(|line| line.parse::<f64>().ok()).map(|ns| ns / 1e3).collect();
    assert_eq!(all.len(), ROUNDS, "each of them was asked");
    all.sort_by(f64::total_cmp);
    all
}

fn row(what: &str, ours: &[f64], floor: &[f64]) {
    let (p50, p99) = (ours[ours.len() / 2], ours[ours.len() * 99 / 100]);
    let ratio = p50 / floor[floor.len() / 2];
    println!("| {what} | {:.2} ms | {:.2} ms | {ratio:.1} |", p50 / 1e3, p99 / 1e3);
}

fn rest(what: &str, world: &World) {
    let program = agent("bench_limit").to_string_lossy().into_owned();
    let limit = ["--max-budget-usd", "1000"];
    let keepers: Vec<u64> = (0..KEEPERS)
        .map(|n| {
            let (_, file) = world.session(n);
            let run = world.start(n, limit, &[&program, "quiet", &file.to_string_lossy()]);
            world.counted(&run, 1);
            world.keeper(&run)
        })
        .collect();
    watch(what, &keepers);
    let (_, file) = world.session(KEEPERS);
    let run = world.start(KEEPERS, limit, &[&program, "quiet", &file.to_string_lossy()]);
    world.counted(&run, 1);
    usual_lines(&file, LARGE / 8);
    world.counted(&run, LARGE / 8 / LINE_BYTES + 1);
    watch(&format!("{what}; one keeper, file of {} MB", (LARGE / 8) >> 20), &[world.keeper(&run)]);
}

/// Processes that only sleep.
fn floor_at_rest() {
    let sleeps = || Command::new("sleep").arg("1000").spawn().expect("it starts");
    let mut children: Vec<_> = (0..KEEPERS).map(|_| sleeps()).collect();
    let pids: Vec<u64> = children.iter().map(|child| child.id().into()).collect();
    watch("floor: as many `sleep`", &pids);
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn watch(what: &str, pids: &[u64]) {
    // What was just told settles.
    std::thread::sleep(Duration::from_secs(2));
    let sum = |of: fn(u64) -> u64| pids.iter().map(|pid| of(*pid)).sum::<u64>();
    let before = (sum(ticks), sum(wakes));
    std::thread::sleep(IDLE);
    println!("| {what} | {} | {} |", sum(ticks) - before.0, sum(wakes) - before.1);
}

fn ticks(pid: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    let field = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    field(12) + field(13)
}

/// How often its threads have waited.
fn wakes(pid: u64) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|task| number(&task.path().join("status"), "voluntary_ctxt_switches")).sum()
}

fn number(file: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The length of each line that [`usual_lines`] writes.
const LINE_BYTES: u64 = 4096;

/// Adds so many bytes to a transcript, a response in each line. Only what is written while a run
/// lives is counted for it.
fn usual_lines(path: &Path, bytes: u64) {
    let file = File::options().append(true).create(true).open(path).expect("it can be made");
    let mut file = std::io::BufWriter::new(file);
    for n in 0..bytes / LINE_BYTES {
        let head = format!(
            "{{\"type\":\"assistant\",\"requestId\":\"q{n}\",\"message\":{{\"id\":\"m{n}\",\
             \"model\":\"claude-sonnet-5\",\"usage\":{{\"input_tokens\":1,\"output_tokens\":1}},\
             \"content\":[{{\"type\":\"text\",\"text\":\""
        );
        let text = "a".repeat(LINE_BYTES as usize - head.len() - 6);
        file.write_all(format!("{head}{text}\"}}]}}}}\n").as_bytes()).expect("there is room");
    }
    file.flush().expect("there is room");
}

/// The most memory a keeper had, for transcripts of several shapes.
fn memory(world: &World) {
    println!("| transcript | keeper's most memory | of that its own (anonymous) at the end |");
    println!("|---|---|---|");
    let quiet = agent("bench_limit").to_string_lossy().into_owned();
    let pours = agent("pours").to_string_lossy().into_owned();
    let shapes = [
        ("1 MB in lines, file", USUAL),
        ("1 GB in lines, file", LARGE),
        ("1 GB in one line, file", LARGE),
        ("1 MB in one line, said", USUAL),
        ("1 GB in one line, said", LARGE),
    ];
    for (n, (what, bytes)) in shapes.into_iter().enumerate() {
        let (_, file) = world.session(n);
        let path = file.to_string_lossy().into_owned();
        let said = what.ends_with("said");
        let script = if said { format!("{pours} {bytes} letters; echo; ") } else { String::new() };
        // In a file of its own: flags of the client are put behind the program's name.
        let program = world.path.join(format!("shape{n}"));
        fs::write(&program, format!("#!/bin/sh\n{script}exec {quiet} quiet {path}\n"))
            .expect("there is room");
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, all).expect("it is ours");
        let run = world.start(n, ["--max-budget-usd", "1000"], &[&program.to_string_lossy()]);
        world.counted(&run, 1);
        let more = match (what.contains("one line"), said) {
            (false, _) => bytes,
            (true, false) => {
                hole(&file, bytes);
                // It has been read when what comes after it is counted.
                LINE_BYTES
            }
            (true, true) => 0,
        };
        usual_lines(&file, more);
        world.counted(&run, more / LINE_BYTES + 1);
        let status = PathBuf::from(format!("/proc/{}/status", world.keeper(&run)));
        let (most, own) = (number(&status, "VmHWM"), number(&status, "RssAnon"));
        println!("| {what} | {most} kB | {own} kB |");
        world.run(&["kill", &run]);
        let _ = fs::remove_file(&file);
    }
}

/// One line of so many bytes, which takes no room on the disk.
fn hole(path: &Path, bytes: u64) {
    let mut file = File::options().append(true).create(true).open(path).expect("it can be made");
    file.write_all(b"{").expect("there is room");
    file.set_len(bytes).expect("it is ours");
    file.write_all(b"\n").expect("there is room");
}
