//! What is made from the command line itself, the service's unit, and readers that leave early.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use super::home::{Home, Said};

/// Every command there is, from the help itself.
fn commands(home: &Home) -> Vec<String> {
    let help = home.ok(&["--help"]);
    let list = help.split("Commands:\n").nth(1).expect("it lists commands");
    let lines = list.lines().take_while(|line| !line.trim().is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    let names: Vec<String> = names.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(names.iter().any(|name| name == "attach"), "{help}");
    names
}

/// A command that is given no home, nor anything to find one by.
fn homeless(home: &Home, args: &[&str]) -> Said {
    let mut command = home.command(args);
    command.env_remove("KENNEL_HOME").env_remove("HOME").env_remove("XDG_STATE_HOME");
    Said::of(&command.output().expect("it can be run"))
}

#[test]
fn every_shell_completes_every_command() {
    let home = Home::new();
    let commands = commands(&home);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = homeless(&home, &["completions", shell]);
        assert_eq!(script.code, 0, "{script:?}");
        for command in &commands {
            assert!(script.out.contains(command.as_str()), "{shell} lacks {command}");
        }
    }
    assert_eq!(home.kennel(&["completions", "csh"]).code, 2);
    assert!(!home.state().exists(), "a home was made");
}

#[test]
fn every_command_has_a_page_in_the_manual() {
    let home = Home::new();
    let dir = home.path().join("man");
    let said = homeless(&home, &["man", dir.to_str().expect("it is text")]);
    assert_eq!(said.code, 0, "{said:?}");
    for command in commands(&home).iter().map(|name| format!("kennel-{name}")) {
        let page = fs::read_to_string(dir.join(format!("{command}.1"))).expect("it is there");
        assert!(page.contains(&format!(".TH {command} 1")), "{command}: {page}");
    }
    assert!(dir.join("kennel-service-install.1").exists());
    let main = fs::read_to_string(dir.join("kennel.1")).expect("it is there");
    assert_eq!(homeless(&home, &["man"]).out, main);
    assert!(!home.state().exists(), "a home was made");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let home = Home::new();
    let run = home.start(&["--", "sh", "-c", "yes | head -100000"]);
    assert_eq!(home.kennel(&["wait", &run]).code, 0);
    for args in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["completions", "bash"],
        &["man"],
        &["service", "install", "--print"],
        &["ps", "-a"],
        &["--json", "ps", "-a"],
        &["show", &run],
        &["logs", &run],
        &["attach", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().expect("it can be made");
        drop(reader);
        let mut command = home.command(args);
        command.stdout(OwnedFd::from(writer)).stderr(Stdio::piped());
        let said = Said::of(&command.output().expect("it can be run"));
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
    }
    home.check();
}

#[test]
fn help_is_plain_where_colours_are_not_wanted() {
    let home = Home::new();
    assert!(!home.ok(&["--help"]).contains('\x1b'));
    for (name, value, coloured) in
        [("CLICOLOR_FORCE", "1", true), ("NO_COLOR", "1", false), ("CLICOLOR", "0", false)]
    {
        let output = home.command(&["--help"]).env(name, value).output().expect("it can be run");
        assert_eq!(Said::of(&output).out.contains('\x1b'), coloured, "{name}={value}");
    }
    assert_eq!(home.ok(&["--version"]), format!("kennel {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_unit_is_written_once_and_nobody_elses_is_touched() {
    let home = Home::new();
    let dir = home.path().join("a b/user");
    let dir_text = dir.to_str().expect("it is text");
    let unit = dir.join("kennel.service");
    let install = ["service", "install", "--user-unit-dir", dir_text];
    let status = ["service", "status", "--user-unit-dir", dir_text];
    assert_eq!(home.kennel(&status).code, 3);

    let printed = home.ok(&["service", "install", "--print"]);
    assert!(!dir.exists());
    assert!(printed.contains("KillMode=process\n"), "{printed}");
    let environment = format!("Environment=\"KENNEL_HOME={}\"\n", home.path().display());
    assert!(printed.contains(&environment), "{printed}");
    let program = env!("CARGO_BIN_EXE_kennel");
    assert!(printed.contains(&format!("ExecStart=\"{program}\" up\n")), "{printed}");

    assert_eq!(home.ok(&install), unit.to_str().expect("it is text"));
    let written = fs::read_to_string(&unit).expect("it is there");
    assert_eq!(written.trim_end(), printed);
    let again = home.json(&install);
    assert_eq!(again["changed"], false, "{again}");
    assert_eq!(again["commands"][0], "systemctl --user daemon-reload");
    assert_eq!(fs::read_dir(&dir).expect("it is there").count(), 1, "something is left");
    let found = home.json(&status);
    assert_eq!((&found["installed"], &found["current"]), (&true.into(), &true.into()), "{found}");

    // What somebody else wrote is neither overwritten nor removed, unless that is meant.
    let foreign = "[Service]\nExecStart=/usr/bin/true\n";
    fs::write(&unit, foreign).expect("it can be written");
    let uninstall = ["service", "uninstall", "--user-unit-dir", dir_text];
    for args in [install, uninstall] {
        let refused = home.kennel(&args);
        assert_eq!(refused.code, 4, "{refused:?}");
        assert!(refused.err.contains("--force"), "{refused:?}");
        assert_eq!(fs::read_to_string(&unit).expect("it is there"), foreign);
    }
    home.ok(&["service", "install", "--force", "--user-unit-dir", dir_text]);
    assert_eq!(fs::read_to_string(&unit).expect("it is there"), written);

    let wants = dir.join("default.target.wants");
    fs::create_dir(&wants).expect("it can be made");
    std::os::unix::fs::symlink(&unit, wants.join("kennel.service")).expect("it can be made");
    assert_eq!(home.json(&status)["enabled"], true);
    home.ok(&uninstall);
    assert!(!unit.exists() && !wants.join("kennel.service").is_symlink());
    assert_eq!(home.json(&uninstall)["changed"], false);
    assert!(!home.state().exists(), "a daemon was started");
}

#[test]
fn the_service_manager_hears_when_the_daemon_serves() {
    let mut home = Home::new();
    let path = home.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("it can be made");
    home.set("NOTIFY_SOCKET", path.to_str().expect("it is text"));
    let daemon = home.up(&[]);
    let mut word = [0; 64];
    let n = socket.recv(&mut word).expect("it is told");
    assert_eq!(&word[..n], b"READY=1");
    home.ok(&["down"]);
    let n = socket.recv(&mut word).expect("it is told");
    assert_eq!(&word[..n], b"STOPPING=1");
    drop(daemon);
}
