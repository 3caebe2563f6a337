//! The figures of the daemon: a thousand live runs, and the journal beside bare SQLite.
//!
//! `cargo run --release -p kennel-tests --no-default-features --features bench --bin bench-daemon
//! -- KENNEL [live|journal|notices]` prints a table; KENNEL is the shipped binary. Starts and short
//! runs are measured beside other programs by `tests/compare`. Nothing here is an assertion.

#![expect(clippy::print_stdout, reason = "the table is the purpose of the program")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kennel_tests::{PATIENCE, until};

/// Runs that live at once.
const LIVE: usize = 1000;
/// Rounds of each short measurement.
const ROUNDS: usize = 20;
/// How long the daemon is watched doing nothing.
const IDLE: Duration = Duration::from_secs(10);
/// Runs whose facts are committed.
const JOURNAL_RUNS: usize = 500;
/// Rounds of the journal, ours and bare in turn: the disk's mood changes.
const JOURNAL_ROUNDS: usize = 5;

/// Notices that are told, and to how many.
const TOLD: usize = 20_000;
const CONSUMERS: usize = 10;
/// Programs that die while so many follow.
const DEATHS: usize = 200;
const FOLLOWERS: usize = 100;

fn main() {
    let Some(kennel) = std::env::args_os().nth(1).map(PathBuf::from) else {
        println!("usage: bench-daemon KENNEL [live|journal|notices]");
        return;
    };
    let only = std::env::args().nth(2);
    let wanted = |section: &str| only.as_deref().is_none_or(|only| only == section);
    let dir = std::env::temp_dir().join(format!("kb-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("it can be made");
    if wanted("journal") {
        journal(&dir);
    }
    let home = Home { kennel, path: dir.join("h") };
    if wanted("notices") {
        told(&dir);
        deaths(&home);
    }
    if wanted("live") {
        live(&home);
    }
    let _ = fs::remove_dir_all(&dir);
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn journal(dir: &Path) {
    use kennel_daemon::bench::{FACTS_PER_RUN, bare, through_the_store};
    println!("| facts at once | ours, facts/s | bare SQLite, facts/s | bare / ours |");
    println!("|---|---|---|---|");
    for at_once in [1, 8, 64] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..JOURNAL_ROUNDS {
            let file = |who: &str| dir.join(format!("{who}-{at_once}-{round}.db"));
            ours.push(through_the_store(&file("ours"), JOURNAL_RUNS, at_once));
            theirs.push(bare(&file("bare"), JOURNAL_RUNS, at_once));
        }
        let rate = |time: Duration| (JOURNAL_RUNS * FACTS_PER_RUN) as f64 / time.as_secs_f64();
        let (ours, theirs) = (rate(median(ours)), rate(median(theirs)));
        println!("| {at_once} | {ours:.0} | {theirs:.0} | {:.2} |", theirs / ours);
    }
}

/// Notices through the journal to those who follow it.
fn told(dir: &Path) {
    use kennel_daemon::bench::{bare_notices, told_to};
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..JOURNAL_ROUNDS {
        ours.push(told_to(&dir.join(format!("told-{round}.db")), TOLD, CONSUMERS));
        theirs.push(bare_notices(&dir.join(format!("bare-told-{round}.db")), TOLD));
    }
    let rate = |time: Duration| TOLD as f64 / time.as_secs_f64();
    let (ours, theirs) = (rate(median(ours)), rate(median(theirs)));
    println!(
        "{TOLD} notices, each told to {CONSUMERS} consumers who acknowledge: {ours:.0}/s; bare \
         SQLite inserts of the same rows, told to nobody: {theirs:.0}/s; bare / ours {:.2}",
        theirs / ours
    );
}

fn now_ns() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("it is after 1970").as_nanos()
}

/// Programs that say when they end: one right after its start, which is still being told to all
/// who follow, and one that has run for a while.
const PROGRAMS: [(&str, &[&str]); 2] = [
    ("at once", &["date", "+%s%N"]),
    ("after 50 ms", &["sh", "-c", "sleep 0.05; exec date +%s%N"]),
];

/// From the last instruction of a program to the notice of its end at each follower.
fn deaths(home: &Home) {
    home.run(&["ps"]);
    for followers in [1, FOLLOWERS] {
        let (tell, heard) = std::sync::mpsc::channel();
        for n in 0..followers {
            let tell = tell.clone();
            let path = home.path.join("state/socket");
            // Those of the round before still follow, and each has a name of its own.
            let n = followers * FOLLOWERS + n;
            std::thread::spawn(move || follow(&path, n, &tell));
        }
        for _ in 0..followers {
            let ready = heard.recv_timeout(PATIENCE).expect("it follows");
            assert!(ready.is_none(), "nobody has died yet");
        }
        for (when, program) in PROGRAMS {
            deaths_of(home, followers, when, program, &heard);
        }
    }
    home.run(&["down"]);
}

fn deaths_of(
    home: &Home,
    followers: usize,
    when: &str,
    program: &[&str],
    heard: &std::sync::mpsc::Receiver<Option<Duration>>,
) {
    let (mut took, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..DEATHS {
        home.run(&[&["run", "-d", "--"], program].concat());
        for _ in 0..followers {
            let told = heard.recv_timeout(PATIENCE).expect("it is told");
            took.push(told.expect("a death"));
        }
        floor.push(bare_death(&home.path.join("floor")));
    }
    let at = |times: &mut Vec<Duration>, part: f64| {
        times.sort_unstable();
        times[((times.len() - 1) as f64 * part) as usize]
    };
    println!(
        "- {DEATHS} deaths {when}, {followers} followers: p50 {:.2?}, p99 {:.2?}; floor (exit, \
         wait, synced append, one socket): p50 {:.2?}, p99 {:.2?}; p50 is {:.1} of it",
        at(&mut took, 0.5),
        at(&mut took, 0.99),
        at(&mut floor, 0.5),
        at(&mut floor, 0.99),
        at(&mut took, 0.5).as_secs_f64() / at(&mut floor, 0.5).as_secs_f64(),
    );
}

/// Follows notices as server-sent events; tells how long after its program's own time each end
/// came. The first word says that it follows.
fn follow(socket: &Path, n: usize, tell: &std::sync::mpsc::Sender<Option<Duration>>) {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("it is up");
    let head = format!(
        "GET /v1/notices?consumer=f{n} HTTP/1.1\r\nhost: kennel\r\n\
         accept: text/event-stream\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("it is taken");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let begun = now_ns();
    let mut headers = true;
    for line in lines {
        if headers && line.is_empty() {
            headers = false;
            if tell.send(None).is_err() {
                return;
            }
        }
        let Some(stamp) = line.split("\"text\":\"").nth(1) else { continue };
        let stamp = stamp.chars().take_while(char::is_ascii_digit).collect::<String>();
        let Ok(stamp) = stamp.parse::<u128>() else { continue };
        if stamp < begun {
            continue;
        }
        let late = Duration::from_nanos(now_ns().saturating_sub(stamp) as u64);
        if tell.send(Some(late)).is_err() {
            return;
        }
    }
}

/// The least that could be done: wait for the program, sync a line, tell one socket.
fn bare_death(file: &Path) -> Duration {
    use std::io::{Read, Write};
    let output = Command::new("date").arg("+%s%N").output().expect("it can be run");
    let mut log = fs::File::options().append(true).create(true).open(file).expect("it opens");
    log.write_all(&output.stdout).and_then(|()| log.sync_data()).expect("it is written");
    let (mut one, mut two) = std::os::unix::net::UnixStream::pair().expect("it can be made");
    one.write_all(&output.stdout).expect("it is taken");
    let mut told = [0; 64];
    let _ = two.read(&mut told).expect("it is told");
    let stamp = String::from_utf8_lossy(&output.stdout);
    let stamp: u128 = stamp.trim().parse().expect("a number");
    Duration::from_nanos(now_ns().saturating_sub(stamp) as u64)
}

struct Home {
    kennel: PathBuf,
    path: PathBuf,
}

impl Home {
    fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new(&self.kennel);
        command.args(args).env("KENNEL_HOME", &self.path).stdin(Stdio::null());
        let output = command.output().expect("it can be run");
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn daemon(&self) -> u32 {
        let note = fs::read_to_string(self.path.join("state/lock")).expect("it is there");
        let first = note.lines().next().unwrap_or_default();
        first.trim_start_matches("process ").trim().parse().expect("a number")
    }
}

/// Kilobytes of a process by a name in its `smaps_rollup` or `status`.
fn kilobytes(pid: u32, file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Ticks of processor time a process has used.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    field(11) + field(12)
}

fn live(home: &Home) {
    home.run(&["ps"]);
    let empty = kilobytes(home.daemon(), "smaps_rollup", "Pss:");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..LIVE / 8 {
                    home.run(&["run", "-d", "--", "sleep", "100000"]);
                }
            });
        }
    });
    let started = begun.elapsed();
    let pid = home.daemon();
    println!("{LIVE} live runs, started through the command line in {started:.1?}:");
    let threads = kilobytes(pid, "status", "Threads:");
    let now = kilobytes(pid, "smaps_rollup", "Pss:");
    println!("- daemon: {now} kB PSS ({empty} kB without runs), {threads} threads");
    let list = |args: &[&str]| {
        median(
            (0..ROUNDS)
                .map(|_| {
                    let begun = Instant::now();
                    home.run(args);
                    begun.elapsed()
                })
                .collect(),
        )
    };
    println!("- ps: {:.1?}; ps --json: {:.1?}", list(&["ps"]), list(&["--json", "ps"]));
    let before = ticks(pid);
    std::thread::sleep(IDLE);
    println!("- idle for {IDLE:?}: {} ticks of processor time", ticks(pid) - before);
    restart(home, pid);
    let begun = Instant::now();
    home.run(&["down", "--stop-runs", "--deadline", "2m"]);
    println!("- down --stop-runs: all stopped with proof in {:.1?}", begun.elapsed());
}

/// From the killing of the daemon until the next one has adopted every run.
fn restart(home: &Home, pid: u32) {
    let daemon = kennel_process::Process::from_number(pid).expect("it lives");
    daemon.signal(kennel_process::Signal::KILL).expect("it can be killed");
    until("it is gone", || (!home_answers(home)).then_some(()));
    let begun = Instant::now();
    home.run(&["ps"]);
    let answers = begun.elapsed();
    while adopted(home) < LIVE as f64 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    let all = begun.elapsed();
    println!(
        "- killed and started again: answers after {answers:.1?}, all adopted after {all:.1?}"
    );
}

fn home_answers(home: &Home) -> bool {
    std::os::unix::net::UnixStream::connect(home.path.join("state/socket")).is_ok()
}

fn adopted(home: &Home) -> f64 {
    use std::io::{Read, Write};
    let socket = home.path.join("state/socket");
    let Ok(mut stream) = std::os::unix::net::UnixStream::connect(socket) else { return 0.0 };
    let head = "GET /metrics HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\r\n";
    let mut text = String::new();
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.read_to_string(&mut text);
    let line = text.lines().find(|line| line.starts_with("kennel_runs_adopted_total"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}
