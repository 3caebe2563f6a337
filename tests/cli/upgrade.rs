//! Another kennel takes over: a daemon from another file adopts what keepers from the first one
//! hold, also after that file is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kennel_tests::until;
use serde_json::Value;

use super::home::{Home, make_program};

fn install(home: &Home, name: &str) -> PathBuf {
    let file = home.path().join(name);
    make_program(Path::new(env!("CARGO_BIN_EXE_kennel")), &file);
    file
}

fn run(kennel: &Path, home: &Home, args: &[&str]) -> String {
    let mut command = Command::new(kennel);
    command.args(args).env("KENNEL_HOME", home.path()).current_dir(home.work());
    let output = command.stdin(Stdio::null()).output().expect("it can be run");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[test]
fn a_new_binary_adopts_what_the_old_one_s_keepers_hold() {
    let home = Home::new();
    let old = install(&home, "old");
    let script = "echo one; read line; echo $line; exit 5";
    let args = ["run", "-d", "--stdin", "--slot", "s", "--", "sh", "-c", script];
    let kept = run(&old, &home, &args);
    let long = run(&old, &home, &["run", "-d", "--", "sleep", "1000"]);
    run(&old, &home, &["down"]);
    fs::remove_file(&old).expect("it can be removed");

    let new = install(&home, "new");
    let shown: Value = serde_json::from_str(&run(&new, &home, &["--json", "show", &kept])).unwrap();
    assert_eq!(shown["state"], "running", "{shown}");
    run(&new, &home, &["send", "s", "two"]);
    let ended = until("it ends", || {
        let shown: Value =
            serde_json::from_str(&run(&new, &home, &["--json", "show", &kept])).unwrap();
        (shown["state"] == "dead").then_some(shown)
    });
    assert_eq!(ended["end"]["status"]["exited"], 5, "{ended}");
    assert_eq!(run(&new, &home, &["logs", &kept]), "one\ntwo");
    run(&new, &home, &["stop", &long]);
    // New runs are kept by the new binary: the old one is not needed for anything.
    run(&new, &home, &["run", "--", "true"]);
    home.check();
}
