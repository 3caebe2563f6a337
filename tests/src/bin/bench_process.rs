//! The figures of the process library, each beside its floor or peer in the same run.
//!
//! `cargo run --release -p kennel-tests --no-default-features --bin bench-process [-- KEEPER
//! [SECTION]]` prints a table; KEEPER is the executable to use as keeper, so that the shipped
//! `kennel` can be measured beside the bare one; SECTION is `start`, `forced`, `gentle`, `output`
//! or `rest`. Nothing here is an assertion: machines differ, ratios tell.

#![expect(clippy::print_stdout, reason = "the table is the purpose of the program")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kennel_process::{
    Containment, DEFAULT_GRACE, Event, KeeperProgram, Process, Run, Spec, Told, Waited,
};
use kennel_tests::{Scratch, agent, end_of, test_keeper_path, until};

/// Rounds of each short measurement.
const ROUNDS: usize = 60;
/// Rounds where one round takes long.
const FEW_ROUNDS: usize = 7;
/// Keepers at rest.
const KEEPERS: usize = 100;
/// Megabytes through the output path.
const FLOOD_MB: u64 = 2048;

fn main() {
    if std::env::args_os().nth(1).is_some_and(|a| a == kennel_process::keeper::KEEPER_ARG) {
        return;
    }
    let keeper = std::env::args_os().nth(1).map_or_else(test_keeper_path, PathBuf::from);
    println!("keeper: {}", keeper.file_name().unwrap_or_default().to_string_lossy());
    println!("machine: {}", machine());
    println!("| what | ours p50 | ours p99 | floor or peer | its p50 | its p99 | ratio of p50 |");
    println!("|---|---|---|---|---|---|---|");
    let program = KeeperProgram::new(&keeper);
    let only = std::env::args().nth(2);
    let wanted = |section: &str| only.as_deref().is_none_or(|only| only == section);
    if wanted("start") {
        start(&keeper, &program);
    }
    if wanted("forced") {
        for members in [1, 10, 100, 1000] {
            forced_stop(members, &program);
        }
    }
    if wanted("gentle") {
        gentle_stop(&program);
    }
    if wanted("output") {
        output(&program);
    }
    if wanted("rest") {
        at_rest(&program);
    }
}

/// A sorted list of durations.
struct Times(Vec<Duration>);

impl Times {
    fn measure(rounds: usize, mut once: impl FnMut() -> Duration) -> Self {
        let mut times: Vec<Duration> = (0..rounds).map(|_| once()).collect();
        times.sort_unstable();
        Self(times)
    }

    fn p50(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    fn p99(&self) -> Duration {
        self.0[(self.0.len() * 99 / 100).min(self.0.len() - 1)]
    }
}

fn row(what: &str, ours: &Times, peer: &str, theirs: &Times) {
    let ratio = ours.p50().as_secs_f64() / theirs.p50().as_secs_f64();
    println!(
        "| {what} | {} | {} | {peer} | {} | {} | {ratio:.2} |",
        show(ours.p50()),
        show(ours.p99()),
        show(theirs.p50()),
        show(theirs.p99()),
    );
}

fn show(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("?");
    let model = model.trim_start_matches(['\t', ' ', ':']);
    format!("Linux {}, {cpus} cores, {model}", kernel.trim())
}

fn begin(scratch: &Scratch, name: &str, spec: &Spec, program: &KeeperProgram) -> Run {
    scratch.try_start(name, spec, program).unwrap_or_else(|e| panic!("{e}"))
}

/// From the request to the exec.
fn start(keeper: &Path, program: &KeeperProgram) {
    let scratch = Scratch::new("bench-start");
    let mut n = 0;
    let ours = Times::measure(ROUNDS, || {
        n += 1;
        let name = format!("r{n}");
        let mut spec = scratch.spec(&name, "bystander", &[]);
        spec.run = scratch.run_id(&name);
        let begun = Instant::now();
        let mut run = begin(&scratch, &name, &spec, program);
        let taken = begun.elapsed();
        run.connection.kill().expect("it can be killed");
        let _ = end_of(&mut run);
        taken
    });
    let spawn = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let mut child = command.spawn().expect("it starts");
        let taken = begun.elapsed();
        let _ = child.kill();
        let _ = child.wait();
        taken
    };
    let bare = Times::measure(ROUNDS, || spawn(&mut Command::new(agent("bystander"))));
    row("start to exec", &ours, "bare posix_spawn", &bare);
    let with_keeper = Times::measure(ROUNDS, || {
        let exec = Instant::now();
        let mut first = Command::new(keeper);
        let first = first.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        let _ = first.status();
        let exec = exec.elapsed();
        exec + spawn(&mut Command::new(agent("bystander")))
    });
    row("start to exec", &ours, "bare spawn + one exec of the keeper's file", &with_keeper);
    let scratch = Scratch::new("bench-shell");
    let shell = Times::measure(ROUNDS, || {
        let _ = fs::remove_file(scratch.truth());
        let begun = Instant::now();
        let mut child = Command::new("setsid")
            .args(["sh", "-c", "exec \"$0\" 1"])
            .arg(agent("bench_many"))
            .env("TRUTH", scratch.truth())
            .spawn()
            .expect("it starts");
        until("ready", || scratch.told().contains("ready").then_some(()));
        let taken = begun.elapsed();
        let _ = child.kill();
        let _ = child.wait();
        taken
    });
    row("start to exec", &ours, "setsid sh -c, until its first instruction", &shell);
}

/// From the request to the proof, nobody asked.
fn forced_stop(members: u32, program: &KeeperProgram) {
    let rounds = if members >= 1000 { FEW_ROUNDS } else { ROUNDS };
    let what = format!("forced stop to proof, {members} in the cohort");
    let ours = |containment: Containment| {
        Times::measure(rounds, || {
            let scratch = Scratch::new("bench-forced");
            let mut spec = scratch.spec("r", "bench_many", &[&members.to_string()]);
            spec.containment = containment;
            let mut run = begin(&scratch, "r", &spec, program);
            until("ready", || scratch.told().contains("ready").then_some(()));
            let _ = run.connection.watch().expect("it answers");
            let begun = Instant::now();
            run.connection.kill().expect("it can be killed");
            await_end(&mut run);
            begun.elapsed()
        })
    };
    let by_cgroup = ours(Containment::Cgroup);
    if let Some(parent) = cgroup_directory() {
        let floor = Times::measure(rounds, || cgroup_floor(&parent, members));
        row(&what, &by_cgroup, "cgroup.kill, wait for empty, reap, rmdir", &floor);
    }
    let walk = Times::measure(rounds, || walk_kill(members));
    row(&what, &by_cgroup, "walk of /proc, kill, until none", &walk);
    row(&format!("{what}, subreaper only"), &ours(Containment::Subreaper), "same walk", &walk);
}

fn await_end(run: &mut Run) {
    loop {
        match run.connection.next(Duration::from_secs(60)).expect("it tells") {
            Some(Told::Event(Event::Ended(_))) => return,
            Some(_) => {}
            None => panic!("no end"),
        }
    }
}

/// Where this process's own cgroup is, if leaves can be made there.
fn cgroup_directory() -> Option<PathBuf> {
    let scratch = Scratch::new("bench-probe");
    let spec = scratch.spec("r", "bystander", &[]);
    let mut run = scratch.start("r", &spec);
    let leaf = run.started.leaf.clone();
    run.connection.kill().ok()?;
    let Ok(Waited::Ended(_)) = run.connection.wait_end(DEFAULT_GRACE) else { return None };
    leaf?.path.parent().map(Path::to_path_buf)
}

/// What the kernel alone needs.
fn cgroup_floor(parent: &Path, members: u32) -> Duration {
    let scratch = Scratch::new("bench-floor");
    let leaf = parent.join(format!("kennel-floor-{}", std::process::id()));
    fs::create_dir(&leaf).expect("leaves can be made here");
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("always allowed");
    let script = format!("echo $$ > {}/cgroup.procs; exec \"$0\" {members}", leaf.display());
    let child = Command::new("sh")
        .args(["-c", &script])
        .arg(agent("bench_many"))
        .env("TRUTH", scratch.truth())
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    until("ready", || scratch.told().contains("ready").then_some(()));
    let mut kill = File::options().write(true).open(leaf.join("cgroup.kill")).expect("it is there");
    let begun = Instant::now();
    kill.write_all(b"1").expect("it takes it");
    while fs::read_to_string(leaf.join("cgroup.events")).expect("it reads").contains("populated 1")
    {
        std::thread::yield_now();
    }
    drop(child);
    reap_all();
    fs::remove_dir(&leaf).expect("it is empty");
    let taken = begun.elapsed();
    rustix::process::set_child_subreaper(None).expect("always allowed");
    taken
}

/// Collects every child there is or will be: the bench has no other.
#[expect(clippy::disallowed_methods, reason = "the floor is what the bare calls need")]
fn reap_all() {
    use rustix::process::{WaitOptions, wait};
    while wait(WaitOptions::empty()).is_ok() {}
}

/// The way of ps and psutil: scan, kill what descends from the root, until a scan finds none.
fn walk_kill(members: u32) -> Duration {
    let scratch = Scratch::new("bench-walk");
    let mut child = Command::new(agent("bench_many"))
        .arg(members.to_string())
        .env("TRUTH", scratch.truth())
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    until("ready", || scratch.told().contains("ready").then_some(()));
    let begun = Instant::now();
    let victims = below(child.id());
    let held: Vec<Process> = victims.iter().filter_map(|p| Process::from_number(*p).ok()).collect();
    for victim in &held {
        let _ = victim.signal(kennel_process::Signal::KILL);
    }
    while !held.iter().all(|p| p.has_ended().unwrap_or(true)) {
        std::thread::yield_now();
    }
    let _ = child.wait();
    begun.elapsed()
}

/// The root and everybody below it, by the parents a full scan shows.
fn below(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").expect("it is there").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent =
            stat.rsplit(')').next().and_then(|s| s.split_whitespace().nth(1)?.parse().ok());
        parents.extend(parent.map(|parent: u32| (pid, parent)));
    }
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let of = found[next];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// From the leader's own exit, on request, to the proof.
fn gentle_stop(program: &KeeperProgram) {
    let one = |notice: bool| {
        let scratch = Scratch::new("bench-gentle");
        let spec = scratch.spec("r", "bench_term", &[]);
        let mut run = begin(&scratch, "r", &spec, program);
        until("ready", || scratch.told().contains("ready").then_some(()));
        let _ = run.connection.watch().expect("it answers");
        run.connection.stop(Some(DEFAULT_GRACE)).expect("it can be stopped");
        let seen = if notice { leader_seen(&run) } else { None };
        await_end(&mut run);
        let now = seen.unwrap_or_else(monotonic);
        let left = scratch.told();
        let left = left.lines().find_map(|l| l.strip_prefix("left ")?.parse::<u64>().ok());
        now.saturating_sub(Duration::from_nanos(left.expect("it said when")))
    };
    let ours = Times::measure(ROUNDS, || one(false));
    let floor = Times::measure(ROUNDS, || one(true));
    row("gentle stop: leader's exit to proof", &ours, "its exit seen by poll on a pidfd", &floor);
}

fn leader_seen(run: &Run) -> Option<Duration> {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(&run.leader, PollFlags::IN)];
    poll(&mut fds, None).ok()?;
    Some(monotonic())
}

fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// From a pipe to files.
fn output(program: &KeeperProgram) {
    let megabytes = FLOOD_MB.to_string();
    let mut peak_kb = 0;
    let ours = Times::measure(FEW_ROUNDS, || {
        let scratch = Scratch::new("bench-output");
        let mut spec = scratch.spec("r", "bench_flood", &[&megabytes]);
        spec.keep_bytes = 4 * (FLOOD_MB << 20);
        let begun = Instant::now();
        let mut run = begin(&scratch, "r", &spec, program);
        let keeper = run.started.keeper.pid;
        let mut connection = run.connection;
        let waited = loop {
            peak_kb = peak_kb.max(peak_memory_kb(keeper).unwrap_or(0));
            match connection.wait_end(Duration::from_millis(200)).expect("it answers") {
                Waited::TimedOut => {}
                over @ (Waited::Ended(_) | Waited::Stuck { .. }) => break over,
            }
        };
        assert!(matches!(waited, Waited::Ended(_)));
        run.connection = connection;
        begun.elapsed()
    });
    let cat = Times::measure(FEW_ROUNDS, || {
        let scratch = Scratch::new("bench-cat");
        let script = format!("\"$0\" {megabytes} | cat > {}/out", scratch.path().display());
        let begun = Instant::now();
        let status = Command::new("sh").args(["-c", &script]).arg(agent("bench_flood")).status();
        assert!(status.expect("it runs").success());
        begun.elapsed()
    });
    row(&format!("output, {FLOOD_MB} MiB from pipe to file"), &ours, "cat > file", &cat);
    let rate = |times: &Times| FLOOD_MB as f64 / 1024.0 / times.p50().as_secs_f64();
    println!("\noutput path: ours {:.2} GiB/s, cat {:.2} GiB/s", rate(&ours), rate(&cat));
    println!("keeper's peak memory while copying: {peak_kb} kB resident\n");
}

fn peak_memory_kb(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Keepers with nothing to do.
fn at_rest(program: &KeeperProgram) {
    let scratch = Scratch::new("bench-rest");
    let mut runs: Vec<Run> = (0..KEEPERS)
        .map(|n| {
            let name = format!("r{n}");
            let mut spec = scratch.spec(&name, "bystander", &[]);
            spec.run = scratch.run_id(&name);
            begin(&scratch, &name, &spec, program)
        })
        .collect();
    let pids: Vec<u32> = runs.iter().map(|r| r.started.keeper.pid).collect();
    std::thread::sleep(Duration::from_secs(1));
    let before: (u64, u64) = activity(&pids);
    std::thread::sleep(Duration::from_secs(5));
    let after = activity(&pids);
    let pss: u64 = pids.iter().filter_map(|p| pss_kb(*p)).sum();
    println!(
        "keepers at rest, {KEEPERS} of them: {:.0} kB PSS each; in 5 s all together {} ticks of \
         CPU and {} wake-ups",
        pss as f64 / KEEPERS as f64,
        after.0 - before.0,
        after.1 - before.1,
    );
    for run in &mut runs {
        run.connection.kill().expect("it can be killed");
        let _ = end_of(run);
    }
}

fn pss_kb(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// CPU ticks and voluntary switches of all of them.
fn activity(pids: &[u32]) -> (u64, u64) {
    let one = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((ticks, line.trim().parse::<u64>().ok()?))
    };
    pids.iter().filter_map(one).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}
