//! Limits through the command: they bind, also while nobody is there to watch, and are told.

use kennel_tests::{agent, until};
use serde_json::Value;

use super::home::Home;

fn path(name: &str) -> String {
    agent(name).to_string_lossy().into_owned()
}

#[test]
fn a_limit_ends_the_run_with_its_own_code_and_its_numbers() {
    let home = Home::new();
    let said = home.kennel(&["run", "--wall", "200ms", "--grace", "1s", "--", "sleep", "1000"]);
    assert_eq!(said.code, 124, "{said:?}");
    assert!(said.err.contains("limit wall reached"), "{said:?}");
    let run = home.all_runs().remove(0);
    assert_eq!(run["end"]["cause"], "limit", "{run}");
    assert_eq!(run["end"]["limit"]["kind"], "wall", "{run}");
    assert_eq!(run["end"]["limit"]["max"], 0.2, "{run}");
    assert!(run["proof"].is_object(), "{run}");
    let report = home.json(&["limits", run["id"].as_str().expect("text")]);
    assert_eq!(report["limits"][0]["kind"], "wall", "{report}");
    assert!(report["limits"][0]["used"].as_f64() >= Some(0.2), "{report}");
    home.check();
}

#[test]
fn limits_bind_while_the_daemon_is_dead_and_are_told_when_it_is_back() {
    let home = Home::new();
    let stubborn = path("ignore_term");
    let idle = home.start(&["--idle", "500ms", "--grace", "50ms", "--", &stubborn]);
    let flood = path("bench_flood");
    let output = home.start(&["--output", "1M", "--grace", "50ms", "--", &flood, "100000"]);
    let wall = home.start(&["--wall", "500ms", "--grace", "50ms", "--", &stubborn]);
    home.kill_daemon();
    let dirs = [&idle, &output, &wall].map(|run| home.run_dir(run));
    for dir in &dirs {
        until("its keeper ends it alone", || {
            let record = std::fs::read_to_string(dir.join("record")).ok()?;
            record.contains("\"ended\"").then_some(())
        });
    }
    for (run, kind) in [(&idle, "idle"), (&output, "output"), (&wall, "wall")] {
        let shown = until("it is known", || {
            let shown = home.show(run);
            (shown["state"] == "dead").then_some(shown)
        });
        assert_eq!(shown["end"]["cause"], "limit", "{shown}");
        assert_eq!(shown["end"]["limit"]["kind"], kind, "{shown}");
        let limit = &shown["end"]["limit"];
        assert!(limit["used"].as_f64() >= limit["max"].as_f64(), "{shown}");
    }
    home.check();
}

#[test]
fn who_computes_behind_a_leader_that_only_waits_is_not_idle() {
    let home = Home::new();
    let busy = path("busy");
    for (script, ends) in [(format!("{busy} & wait"), "wall"), ("sleep 1000 & wait".into(), "idle")]
    {
        let args =
            ["--idle", "500ms", "--wall", "3s", "--grace", "50ms", "--", "sh", "-c", &script];
        let run = home.start(&args);
        let shown = until("it is ended", || {
            let shown = home.show(&run);
            (shown["state"] == "dead").then_some(shown)
        });
        assert_eq!(shown["end"]["limit"]["kind"], ends, "{script}: {shown}");
    }
    home.check();
}

/// Either grade: the keeper ends the run a moment late, or the kernel refuses the processes. That
/// of the kernel is tested where it can be had for sure, in `vm`.
#[test]
fn so_many_processes_and_no_more_and_the_grade_is_told() {
    let home = Home::new();
    let (many, truth) = (path("bench_many"), home.truth("many"));
    let env = format!("TRUTH={}", truth.display());
    let args = ["--pids", "30", "--grace", "50ms", "--env", &env, "--", &many, "50"];
    let run = home.start(&args);
    let report = home.json(&["limits", &run]);
    let pids = &report["limits"][0];
    assert_eq!(pids["kind"], "pids", "{report}");
    match pids["binds"].as_str() {
        Some("hard") => {
            assert!(pids["because"].is_null(), "{report}");
            until("it is refused", || {
                let report = home.json(&["limits", &run]);
                assert!(report["limits"][0]["used"].as_f64() <= Some(30.0), "{report}");
                (report["limits"][0]["warned"] == true).then_some(())
            });
        }
        Some("sampled") => {
            assert!(pids["because"].as_str().is_some_and(|why| !why.is_empty()), "{report}");
            let shown = until("it is ended", || {
                let shown = home.show(&run);
                (shown["state"] == "dead").then_some(shown)
            });
            assert_eq!(shown["end"]["cause"], "limit", "{shown}");
            assert_eq!(shown["end"]["limit"]["kind"], "pids", "{shown}");
        }
        other => panic!("{other:?}: {report}"),
    }
    home.check();
}

#[test]
fn where_a_run_stands_is_told_and_bad_limits_are_refused() {
    let home = Home::new();
    let args =
        ["--wall", "1h", "--memory", "4G", "--pids", "100", "--output", "1G", "--idle", "1h"];
    let mut all = args.to_vec();
    all.extend(["--", "sleep", "1000"]);
    let run = home.start(&all);
    let report = home.json(&["limits", &run]);
    let limits = report["limits"].as_array().expect("a list");
    let kinds: Vec<&str> = limits.iter().filter_map(|limit| limit["kind"].as_str()).collect();
    assert_eq!(kinds, ["wall", "idle", "output", "memory", "pids"]);
    for limit in limits {
        let (used, max) = (limit["used"].as_f64(), limit["max"].as_f64());
        assert!(used.is_some() && used < max, "{limit}");
        assert!(["hard", "sampled"].contains(&limit["binds"].as_str().unwrap_or_default()));
    }
    let pids = limits.iter().find(|limit| limit["kind"] == "pids").expect("it is there");
    assert_eq!(pids["used"], 1.0, "{pids}");
    assert!(home.ok(&["limits", &run]).contains("memory"));
    for bad in [
        ["--wall", "0s"],
        ["--memory", "0"],
        ["--pids", "0"],
        ["--max-budget-usd", "-1"],
        ["--max-budget-usd", "NaN"],
        ["--max-turns", "0"],
        ["--output", "x"],
    ] {
        let said = home.kennel(&["run", bad[0], bad[1], "--", "true"]);
        assert_eq!(said.code, 125, "{bad:?}: {said:?}");
        assert!(said.err.contains(bad[0]), "{bad:?}: {said:?}");
    }
    let refused = home.kennel(&["--json", "run", "--max-turns", "3", "--", "true"]);
    assert_eq!(refused.code, 125, "{refused:?}");
    let error: Value = serde_json::from_str(&refused.err).expect("it is JSON");
    assert_eq!(error["error"]["code"], "limit_not_enforceable", "{error}");
    home.ok(&["run", "--max-turns", "3", "--unenforced-ok", "--", "true"]);
    home.check();
}
