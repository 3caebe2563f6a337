//! One run per slot and per worktree, whoever asks and whatever is killed meanwhile.

use std::fs;
use std::process::Stdio;

use kennel_tests::{agent, until};

use super::home::{Home, Said};

/// A run that screams if anybody else is in its worktree.
fn exclusive(home: &Home, name: &str) -> Vec<String> {
    let lock = home.path().join(format!("lock-{name}"));
    let truth = home.truth(name);
    let words = [agent("exclusive").into_os_string(), lock.into(), truth.into()];
    words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn screams(home: &Home, name: &str) -> usize {
    let told = fs::read_to_string(home.truth(name)).unwrap_or_default();
    told.lines().filter(|line| line.starts_with("held")).count()
}

#[test]
fn of_fifty_clients_one_wins_and_the_others_are_told_who() {
    let home = Home::new();
    home.ok(&["ps"]);
    let command = exclusive(&home, "slot");
    let mut args = vec!["run", "-d", "--slot", "s", "--"];
    args.extend(command.iter().map(String::as_str));
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let mut client = home.command(&args);
            client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run")
        })
        .collect();
    let said: Vec<Said> = clients
        .into_iter()
        .map(|client| Said::of(&client.wait_with_output().expect("it ends")))
        .collect();
    let winners: Vec<&Said> = said.iter().filter(|said| said.code == 0).collect();
    assert_eq!(winners.len(), 1, "{said:?}");
    let winner = winners[0].out.trim();
    for loser in said.iter().filter(|said| said.code != 0) {
        assert_eq!(loser.code, 125, "{loser:?}");
        assert!(loser.err.contains(&format!("taken by run {winner}")), "{loser:?}");
    }
    assert_eq!(screams(&home, "slot"), 0);
    home.check();
}

#[test]
fn nobody_wins_twice_when_the_daemon_is_killed_in_the_middle() {
    for round in 0..4 {
        let home = Home::new();
        home.ok(&["ps"]);
        let command = exclusive(&home, "slot");
        let mut args = vec!["run", "-d", "--slot", "s", "--"];
        args.extend(command.iter().map(String::as_str));
        let clients: Vec<_> = (0..20)
            .map(|_| {
                let mut client = home.command(&args);
                client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run")
            })
            .collect();
        kennel_tests::pass(std::time::Duration::from_millis(5 + 7 * round));
        home.kill_daemon();
        let said: Vec<Said> = clients
            .into_iter()
            .map(|client| Said::of(&client.wait_with_output().expect("it ends")))
            .collect();
        let winners = said.iter().filter(|said| said.code == 0).count();
        assert_eq!(winners, 1, "{said:?}");
        let live = home.ok(&["--json", "ps"]).lines().count();
        assert_eq!(live, 1);
        assert_eq!(screams(&home, "slot"), 0);
        home.check();
    }
}

#[test]
fn a_worktree_is_one_run_s_whatever_path_leads_to_it() {
    let home = Home::new();
    let tree = home.path().join("tree");
    fs::create_dir(&tree).unwrap();
    std::os::unix::fs::symlink(&tree, home.path().join("link")).unwrap();
    let path = |name: &str| home.path().join(name).to_string_lossy().into_owned();
    let first = home.start(&["--worktree", &path("tree"), "--", "sleep", "1000"]);
    for other in ["tree", "link", "tree/../tree"] {
        let said = home.kennel(&["run", "-d", "--worktree", &path(other), "--", "true"]);
        assert_eq!(said.code, 125, "{said:?}");
        assert!(said.err.contains(&format!("run {first} works in")), "{said:?}");
    }
    assert_eq!(home.show(&first)["worktree"], path("tree"));
    home.ok(&["kill", &first]);
    home.ok(&["run", "--worktree", &path("link"), "--", "true"]);
    home.check();
}

#[test]
fn a_slot_is_taken_while_its_run_is_stopping_and_free_with_the_proof() {
    let home = Home::new();
    let stubborn = agent("ignore_term").to_string_lossy().into_owned();
    let run = home.start(&["--slot", "s", "--grace", "60s", "--", &stubborn]);
    let mut stopping = home.command(&["stop", "s"]);
    let stopping = stopping.stdout(Stdio::piped()).spawn().expect("it can be run");
    until("it is stopping", || (home.show(&run)["state"] == "stopping").then_some(()));
    let said = home.kennel(&["run", "--slot", "s", "--", "true"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains(&run), "{said:?}");
    home.kill_daemon();
    let said = home.kennel(&["run", "--slot", "s", "--", "true"]);
    assert_eq!(said.code, 125, "a restart forgets no stop: {said:?}");
    home.ok(&["kill", "s"]);
    let stopped = stopping.wait_with_output().expect("it ends");
    assert!(stopped.status.success());
    assert_eq!(home.kennel(&["run", "--slot", "s", "--", "true"]).code, 0);
    home.check();
}
