//! The daemon, the keepers, or both are killed, and afterwards everything is as it is: states,
//! statuses and output are compared with files that the agents wrote themselves.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel_tests::{agent, pass, until};
use serde_json::{Value, json};

use super::home::Home;

/// A run that is to write so many lines and exit with a code.
#[derive(Clone, Copy, Debug)]
struct Plan {
    lines: u32,
    pause_us: u32,
    code: u8,
}

fn start(home: &Home, name: &str, plan: Plan) -> String {
    let Plan { lines, pause_us, code } = plan;
    let words = [
        agent("chatty").to_string_lossy().into_owned(),
        home.truth(name).to_string_lossy().into_owned(),
        lines.to_string(),
        pause_us.to_string(),
        code.to_string(),
    ];
    let mut args = vec!["--slot", name, "--"];
    args.extend(words.iter().map(String::as_str));
    home.start(&args)
}

/// What the agent itself said: the code it meant to exit with, if it came that far.
fn truth(home: &Home, name: &str) -> (bool, Option<i64>) {
    let told = fs::read_to_string(home.truth(name)).unwrap_or_default();
    let done = told.lines().find_map(|line| line.strip_prefix("done ")?.parse().ok());
    (told.contains("began"), done)
}

/// Both streams are whole and in order.
fn check_output(home: &Home, run: &str, plan: Plan) {
    let said = home.kennel(&["logs", run]);
    for (stream, shown) in [("out", &said.out), ("err", &said.err)] {
        let expected: String = (0..plan.lines).map(|n| format!("{stream} {n}\n")).collect();
        assert!(
            *shown == expected,
            "{run}: {stream} has {} bytes of {}",
            shown.len(),
            expected.len()
        );
    }
}

/// What there is of both streams is in order and has no hole.
fn check_prefix(home: &Home, run: &str) {
    let said = home.kennel(&["logs", run]);
    for (stream, shown) in [("out", &said.out), ("err", &said.err)] {
        let mut lines = shown.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let ordered = lines.by_ref().enumerate().all(|(n, line)| line == format!("{stream} {n}\n"));
        assert!(ordered, "{run}: {stream} is not in order");
    }
}

fn over(home: &Home, run: &str) -> Value {
    until("the run is over", || {
        let shown = home.show(run);
        (shown["state"] == "dead" || shown["state"] == "stuck").then_some(shown)
    })
}

#[test]
fn fifty_chatty_runs_outlive_the_daemon_and_are_known_again() {
    let home = Home::new();
    let mut runs = BTreeMap::new();
    for n in 0..50_u32 {
        // A third of them end while nobody is there, the others later.
        let lines = if n % 3 == 0 { 200 } else { 1500 };
        let plan = Plan { lines, pause_us: 1000, code: (n % 7) as u8 };
        let name = format!("s{n}");
        runs.insert(name.clone(), (start(&home, &name, plan), plan));
    }
    home.kill_daemon();
    for (name, (_, plan)) in &runs {
        if plan.lines < 1000 {
            until("it ends while nobody is there", || truth(&home, name).1);
        }
    }
    home.ok(&["ps"]);
    home.kill_daemon();
    for (name, (run, plan)) in &runs {
        let shown = over(&home, run);
        assert_eq!(shown["state"], "dead", "{shown}");
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        assert_eq!(shown["end"]["status"], json!({"exited": plan.code}), "{shown}");
        assert_eq!(truth(&home, name), (true, Some(i64::from(plan.code))));
        check_output(&home, run, *plan);
    }
    home.check();
}

/// A small generator: the same seed gives the same crashes.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// How many rounds of random crashes; more for a long night.
fn rounds() -> u64 {
    std::env::var("KENNEL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}

fn seed() -> u64 {
    let given = std::env::var("KENNEL_SEED").ok().and_then(|n| n.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
    given.unwrap_or(now) | 1
}

#[test]
fn whoever_is_killed_at_whatever_moment_the_truth_is_told() {
    let seed = seed();
    println!("KENNEL_SEED={seed}");
    let mut dice = Dice(seed);
    let home = Home::new();
    for round in 0..rounds() {
        let mut runs = Vec::new();
        for n in 0..1 + dice.below(3) {
            let plan = Plan {
                lines: dice.below(40) as u32,
                pause_us: dice.below(3000) as u32,
                code: dice.below(100) as u8,
            };
            let name = format!("r{round}-{n}");
            let run = start(&home, &name, plan);
            runs.push((name, run, plan, false));
        }
        pass(Duration::from_micros(dice.below(60_000)));
        let (kill_daemon, kill_keepers) = match dice.below(4) {
            0 => (true, false),
            1 => (false, true),
            _ => (true, true),
        };
        // Without a cgroup nobody can say anything of a run whose keeper is gone.
        let proves = home.show(&runs[0].1)["containment"] == "cgroup";
        if kill_keepers && proves {
            for (_, run, _, killed) in &mut runs {
                if dice.below(2) == 0 {
                    let shown = home.show(run);
                    let pid = shown["keeper"]["pid"].as_u64().expect("it has one") as u32;
                    // It may be gone by now, and its number nobody's or a stranger's.
                    if shown["state"] == "running"
                        && let Ok(keeper) = kennel_process::Process::from_number(pid)
                        && home.show(run)["state"] == "running"
                    {
                        *killed = keeper.signal(kennel_process::Signal::KILL).is_ok();
                    }
                }
            }
        }
        if kill_daemon {
            home.kill_daemon();
        }
        for (name, run, plan, killed) in &runs {
            let shown = over(&home, run);
            let (began, done) = truth(&home, name);
            assert_eq!(shown["state"], "dead", "round {round}: {shown}");
            assert!(began, "round {round}: {shown}");
            let status = &shown["end"]["status"];
            match (done, status["exited"].as_i64()) {
                // What it meant is what is told, unless nobody was left who could know.
                (Some(code), Some(told)) => assert_eq!(code, told, "round {round}: {shown}"),
                (Some(_), None) => assert!(
                    *killed && (status["unknown"].is_string() || status["signaled"].is_i64()),
                    "round {round}: {shown}"
                ),
                // Its pipe was closed with its keeper: that is the one exit it did not announce.
                (None, Some(told)) => assert!(*killed && told == 98, "round {round}: {shown}"),
                (None, None) => assert!(*killed, "round {round}: {shown}"),
            }
            if *killed {
                check_prefix(&home, run);
            } else {
                check_output(&home, run, *plan);
            }
        }
    }
    home.check();
}
