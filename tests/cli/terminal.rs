//! `attach` and `send` on real terminals: what is typed arrives, and the terminal is given back
//! however we leave it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use kennel_process::{Process, Signal};
use kennel_tests::{SHORT, pass, until};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::ioctl_fionread;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use super::home::{Home, Said};

/// Ctrl-], the key that detaches.
const DETACH: &str = "\x1d";
/// The system's number for "the window changed".
const WINDOW_CHANGED: i32 = 28;
/// More than a keeper keeps for a run that does not read.
const MUCH_BYTES: usize = 3 << 20;

/// A terminal with a command on it.
struct Seat {
    master: File,
    /// Our own hold on the command's side, to look at its settings.
    slave: OwnedFd,
    before: String,
    child: Child,
    seen: Vec<u8>,
}

impl Seat {
    fn new(mut command: Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal can be had");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let slave = ioctl_tiocgptpeer(&master, flags).expect("it has another side");
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK).expect("it can be set");
        set_size(&master, 33, 101);
        let side = || Stdio::from(slave.try_clone().expect("it can be had twice"));
        let before = settings(&slave);
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn();
        let child = child.expect("it can be run");
        Self { master: master.into(), slave, before, child, seen: Vec::new() }
    }

    fn attach(home: &Home, run: &str, flags: &[&str]) -> Self {
        let mut args = vec!["attach", run];
        args.extend(flags);
        let mut seat = Self::new(home.command(&args));
        seat.sees("kennel: attached to run");
        seat
    }

    #[track_caller]
    fn types(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).expect("it is taken");
    }

    /// Everything that was shown so far.
    fn shown(&mut self) -> String {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = self.master.read(&mut buffer) {
            self.seen.extend_from_slice(&buffer[..n]);
        }
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    #[track_caller]
    fn sees(&mut self, text: &str) {
        let mut last = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(text, || {
                last = self.shown();
                last.contains(text).then_some(())
            });
        }));
        assert!(found.is_ok(), "{text:?} is not in {last:?}");
    }

    fn forgets(&mut self) {
        self.shown();
        self.seen.clear();
    }

    /// Reads nothing until nothing more comes: the command is stuck in a write.
    #[track_caller]
    fn fills_up(&self) {
        let mut last = 0;
        until("the terminal is full", || {
            pass(SHORT);
            let now = ioctl_fionread(&self.master).expect("it can be asked");
            let full = now > 0 && now == last;
            last = now;
            full.then_some(())
        });
    }

    fn signal(&self, signal: Signal) {
        let process = Process::from_number(self.child.id()).expect("it lives");
        process.signal(signal).expect("it is ours");
    }

    /// The code it exits with, after which the terminal must be as it was.
    #[track_caller]
    fn leaves(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let status = until("it leaves the terminal", || {
            self.shown();
            self.child.try_wait().expect("it is ours")
        });
        assert_eq!(settings(&self.slave), self.before, "the terminal is not as it was");
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn settings(slave: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(slave).expect("it is a terminal"))
}

fn set_size(master: impl std::os::fd::AsFd, rows: u16, cols: u16) {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).expect("it can be set");
}

/// A shell with a terminal that says nothing by itself.
fn shell(home: &Home) -> String {
    home.start(&["--pty", "--env", "PS1=", "--", "sh"])
}

fn pipe_to(home: &Home, args: &[&str], input: &[u8]) -> Said {
    let mut command = home.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be run");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    // It may leave before it has read all.
    let _ = stdin.write_all(input);
    drop(stdin);
    Said::of(&child.wait_with_output().expect("it ends"))
}

#[test]
fn what_is_typed_reaches_the_run_and_its_code_comes_back() {
    let home = Home::new();
    let run = shell(&home);
    let mut seat = Seat::attach(&home, &run, &[]);
    seat.types("echo a$((1+1))b\r");
    seat.sees("a2b");
    // A Ctrl-C is the run's: it ends what the shell runs, and not us.
    seat.types("echo s$((2+2))p; sleep 1000\r");
    seat.sees("s4p");
    // Again and again: a shell that is just starting the command may hear it and go on.
    until("the command is interrupted", || {
        seat.types("\x03");
        pass(SHORT);
        seat.types("echo c$((1+2))d\r");
        pass(SHORT);
        seat.shown().contains("c3d").then_some(())
    });
    seat.sees("^C");
    seat.types("exit 5\r");
    assert_eq!(seat.leaves(), 5);
    seat.sees("exited with 5 by itself");
    home.check();
}

#[test]
fn the_run_has_the_size_of_the_terminal_that_writes_to_it() {
    let home = Home::new();
    let run = shell(&home);
    let mut seat = Seat::attach(&home, &run, &[]);
    seat.types("stty size\r");
    seat.sees("33 101");
    set_size(&seat.master, 40, 120);
    seat.signal(Signal::new(WINDOW_CHANGED).expect("it is one"));
    until("the new size arrives", || {
        seat.types("stty size\r");
        seat.shown().contains("40 120").then_some(())
    });
    seat.types("exit\r");
    assert_eq!(seat.leaves(), 0);
    home.check();
}

#[test]
fn the_key_detaches_and_pressed_twice_is_the_runs() {
    let home = Home::new();
    let run = home.start(&["--pty", "--", "cat", "-v"]);
    for (flags, key) in [(&[][..], DETACH), (&["--detach-key", "ctrl-x"], "\x18")] {
        let mut seat = Seat::attach(&home, &run, flags);
        seat.types(&format!("{key}{key}twice\r"));
        let name = if key == DETACH { "^]" } else { "^X" };
        seat.sees(&format!("{name}twice\r\n{name}twice\r\n"));
        seat.types(key);
        assert_eq!(seat.leaves(), 0);
        seat.sees("kennel: detached; the run goes on");
        assert_eq!(home.show(&run)["state"], "running");
    }
    // Also if the agent has switched the terminal to another way of sending keys.
    let mut seat = Seat::attach(&home, &run, &[]);
    seat.types("\x1b[93;5u");
    assert_eq!(seat.leaves(), 0);
    home.check();
}

#[test]
fn a_screen_without_history_is_left_on_the_way_out() {
    let home = Home::new();
    let run = home.start(&["--pty", "--", "sh", "-c", "read x; printf '\\033[?1049hon\\n'; cat"]);
    let mut seat = Seat::attach(&home, &run, &[]);
    seat.types("go\r");
    seat.sees("\x1b[?1049hon");
    seat.types(DETACH);
    assert_eq!(seat.leaves(), 0);
    seat.sees("\x1b[?1049l");
    seat.sees("\x1b[?25h");
    home.check();
}

#[test]
fn signals_give_the_terminal_back_and_leave_the_run_alone() {
    let home = Home::new();
    let run = shell(&home);
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut seat = Seat::attach(&home, &run, &[]);
        assert_ne!(settings(&seat.slave), seat.before, "it is not raw");
        seat.signal(signal);
        assert_eq!(seat.leaves(), 128 + signal.number());
        seat.sees("kennel: detached; the run goes on");
        assert_eq!(home.show(&run)["state"], "running");
    }
    home.check();
}

#[test]
fn a_terminal_that_takes_no_more_is_given_back_all_the_same() {
    let home = Home::new();
    let run = home.start(&["--pty", "--", "yes"]);
    let mut seat = Seat::attach(&home, &run, &[]);
    seat.fills_up();
    seat.signal(Signal::TERM);
    let status = until("it leaves", || seat.child.try_wait().expect("it is ours"));
    assert_eq!(status.code(), Some(143));
    assert_eq!(settings(&seat.slave), seat.before);
    home.check();
}

#[test]
fn what_comes_too_fast_is_left_out_and_the_screen_is_right_in_the_end() {
    let home = Home::new();
    let run = shell(&home);
    let mut seat = Seat::attach(&home, &run, &[]);
    seat.types("yes | head -c 3000000; echo d$((1+1))ne; touch written\r");
    seat.fills_up();
    // All that time the run is not held up.
    until("the run has written all", || home.work().join("written").exists().then_some(()));
    seat.sees("d2ne");
    // It was drawn once when we came and again after what was left out.
    assert!(seat.shown().matches("\x1b[H\x1b[J").count() > 1, "nothing was left out");
    seat.types("echo a$((2+2))ter\r");
    seat.sees("a4ter");
    seat.types(DETACH);
    assert_eq!(seat.leaves(), 0);
    home.check();
}

#[test]
fn one_writes_and_the_others_look() {
    let home = Home::new();
    let run = shell(&home);
    let mut writer = Seat::attach(&home, &run, &[]);
    let mut viewer = Seat::attach(&home, &run, &[]);
    viewer.sees("somebody else writes to it, you can look");
    viewer.types("echo from-the-viewer\r");
    writer.types("echo w$((1+1))r; stty size\r");
    for seat in [&mut writer, &mut viewer] {
        seat.sees("w2r");
    }
    let mut guest = Seat::attach(&home, &run, &["--read-only"]);
    assert!(!guest.shown().contains("somebody else"), "{}", guest.shown());
    guest.sees("w2r");
    writer.types(DETACH);
    assert_eq!(writer.leaves(), 0);
    // The right is free at once, and nobody who only looked has taken it.
    let mut next = Seat::attach(&home, &run, &[]);
    next.types("echo n$((2+2))t; exit 3\r");
    for seat in [&mut next, &mut viewer, &mut guest] {
        seat.sees("n4t");
        assert!(!seat.shown().contains("from-the-viewer"));
        assert_eq!(seat.leaves(), 3);
    }
    home.check();
}

#[test]
fn a_killed_daemon_is_started_again_and_the_screen_comes_again() {
    let home = Home::new();
    let run = shell(&home);
    let mut seat = Seat::attach(&home, &run, &[]);
    let mut viewer = Seat::attach(&home, &run, &[]);
    seat.types("echo k$((1+1))pt\r");
    seat.sees("k2pt");
    for round in 0..3 {
        seat.forgets();
        viewer.forgets();
        home.kill_daemon();
        seat.sees("k2pt");
        viewer.sees("k2pt");
        until("the next daemon is up", || home.daemon());
        // Whoever wrote before writes again, and not whoever only looked.
        viewer.types("echo never\r");
        seat.types(&format!("echo round{round}$((4+4))\r"));
        seat.sees(&format!("round{round}8"));
        viewer.sees(&format!("round{round}8"));
    }
    seat.types("exit 6\r");
    assert_eq!(seat.leaves(), 6);
    assert_eq!(viewer.leaves(), 6);
    assert!(!viewer.shown().contains("never"), "{}", viewer.shown());
    home.check();
}

#[test]
fn a_daemon_that_was_told_to_leave_is_not_started_again() {
    let home = Home::new();
    let run = shell(&home);
    let mut seat = Seat::attach(&home, &run, &[]);
    home.ok(&["down"]);
    assert_eq!(seat.leaves(), 125);
    seat.sees("the daemon was told to leave; the run goes on");
    assert!(home.daemon().is_none(), "somebody started it again");
    // If another one comes soon, nothing was the matter.
    let mut seat = Seat::attach(&home, &run, &[]);
    home.ok(&["down"]);
    let daemon = home.up(&[]);
    seat.types("echo b$((3+3))ck\r");
    seat.sees("b6ck");
    seat.types("exit\r");
    assert_eq!(seat.leaves(), 0);
    home.check();
    drop(daemon);
}

#[test]
fn a_run_in_the_foreground_with_an_input_has_our_terminal() {
    let home = Home::new();
    let begin = |script: &str| {
        Seat::new(home.command(&["run", "--pty", "--stdin", "--", "sh", "-c", script]))
    };
    let mut seat = begin("stty size; read x; echo \"got $x\"; exit 3");
    seat.sees("33 101");
    seat.types("it\r");
    seat.sees("got it");
    assert_eq!(seat.leaves(), 3);
    // It may be over before we can be attached to it: what it wrote is shown all the same.
    for round in 0..10 {
        let mut seat = begin(&format!("echo quick{round}; exit 2"));
        seat.sees(&format!("quick{round}"));
        assert_eq!(seat.leaves(), 2);
    }
    home.check();
}

#[test]
fn a_run_that_is_killed_or_over_says_how_it_ended() {
    let home = Home::new();
    let run = shell(&home);
    let mut seat = Seat::attach(&home, &run, &[]);
    home.ok(&["kill", &run]);
    assert_eq!(seat.leaves(), 137);
    seat.sees("ended by SIGKILL");
    let late = home.kennel(&["attach", &run]);
    assert_eq!(late.code, 137);
    assert!(late.err.contains("ended by SIGKILL"), "{late:?}");
    let nobody = home.kennel(&["attach", "nobody"]);
    assert_eq!(nobody.code, 125, "{nobody:?}");
    home.check();
}

#[test]
fn a_run_without_a_terminal_gets_lines_and_the_end_of_them() {
    let home = Home::new();
    let script = "while read x; do echo \"got $x\"; echo \"err $x\" >&2; done; exit 4";
    let run = home.start(&["--stdin", "--", "sh", "-c", script]);
    let mut seat = Seat::attach(&home, &run, &[]);
    seat.types("one\n");
    seat.sees("got one");
    seat.sees("err one");
    // The key is seen without Enter.
    seat.types(DETACH);
    assert_eq!(seat.leaves(), 0);
    let mut seat = Seat::attach(&home, &run, &[]);
    seat.types("two\n");
    seat.sees("got two");
    home.kill_daemon();
    seat.sees("attached again");
    seat.types("three\n");
    seat.sees("got three");
    seat.types("\x04");
    assert_eq!(seat.leaves(), 4);
    home.check();
}

#[test]
fn scripts_attach_without_a_terminal() {
    let home = Home::new();
    let run = home.start(&["--stdin", "--", "sh", "-c", "cat; echo end; exit 3"]);
    let said = pipe_to(&home, &["attach", &run], b"a\nb\n");
    assert_eq!((said.code, said.out.as_str()), (3, "a\nb\nend\n"), "{said:?}");

    let run = home.start(&["--pty", "--", "sh"]);
    let said = pipe_to(&home, &["attach", &run], b"echo p$((1+1))q\r");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("detached"), "{said:?}");
    home.ok(&["send", &run, "exit 9"]);
    assert_eq!(home.kennel(&["wait", &run]).code, 9);
    assert!(home.ok(&["logs", &run]).contains("p2q"));

    // Without an input there is nothing to end: it looks until the run is over.
    let run = home.start(&["--", "sh", "-c", "sleep 0.3; echo late; exit 2"]);
    let said = home.kennel(&["attach", &run]);
    assert_eq!((said.code, said.out.as_str()), (2, "late\n"), "{said:?}");
    home.check();
}

#[test]
fn sent_words_arrive_as_they_would_be_typed() {
    let home = Home::new();
    let run = home.start(&["--stdin", "--", "cat"]);
    home.ok(&["send", &run, "go", "on"]);
    home.ok(&["send", "-n", &run, "half"]);
    home.ok(&["send", &run, "-n", "--", "-way"]);
    let piped = pipe_to(&home, &["send", &run, "-"], b" and\0 raw\xff\n");
    assert_eq!(piped.code, 0, "{piped:?}");
    home.ok(&["send", "--eof", &run]);
    assert_eq!(home.kennel(&["wait", &run]).code, 0);
    let written = home.command(&["logs", &run]).output().expect("it can be run").stdout;
    assert_eq!(written, b"go on\nhalf-way and\0 raw\xff\n");

    let pty = shell(&home);
    home.ok(&["send", &pty, "exit", "8"]);
    assert_eq!(home.kennel(&["wait", &pty]).code, 8);
    home.check();
}

#[test]
fn nothing_that_is_sent_gets_lost_while_a_run_does_not_read() {
    let home = Home::new();
    let run = home.start(&["--stdin", "--", "sh", "-c", "sleep 1; wc -c"]);
    let said = pipe_to(&home, &["send", &run, "-", "--eof"], &vec![b'x'; MUCH_BYTES]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(home.kennel(&["wait", &run]).code, 0);
    assert_eq!(home.ok(&["logs", &run]).trim(), MUCH_BYTES.to_string());
    home.check();
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_way_out() {
    let home = Home::new();
    let deaf = home.start(&["--", "sleep", "1000"]);
    let said = home.kennel(&["send", &deaf, "hello"]);
    assert_eq!(said.code, 4, "{said:?}");
    assert!(said.err.contains("--stdin"), "{said:?}");
    home.ok(&["kill", &deaf]);
    assert_eq!(home.kennel(&["send", &deaf, "hello"]).code, 4);
    assert_eq!(home.kennel(&["send", "nobody", "hello"]).code, 3);
    assert_eq!(home.kennel(&["send", &deaf]).code, 2);
    home.check();
}
