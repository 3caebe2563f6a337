//! A starter that can be killed, below an init of its own: what the crash tests kill keepers and
//! their parents with. [`kennel_tests::Family`] is its other side.
//!
//! ```text
//! crash-starter init  KEEPER DIR FAILPOINT SPEC   collects every orphan at once, tells its status,
//!                                                 ends when no descendant is left
//! crash-starter start KEEPER DIR FAILPOINT SPEC   starts the run, then does what it reads
//! crash-starter adopt DIR                         adopts the run and ends it if it is an orphan
//! ```

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use kennel_process::{
    Adopted, KeeperProgram, Run, Spec, StartError, Swept, Waited, adopt, start_with,
};

/// Longer than any test is patient.
const FOR_EVER: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["init", rest @ ..] => be_init(rest),
        ["start", keeper, dir, failpoint, spec] => be_starter(keeper, dir, failpoint, spec),
        ["adopt", dir] => be_adopter(Path::new(dir)),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

/// One line, in one write, so that two processes can share the pipe.
fn say(line: &str) {
    let _ = io::stdout().write_all(format!("{line}\n").as_bytes());
    let _ = io::stdout().flush();
}

/// The init of a machine may take seconds to collect an orphan, and tells nobody how it ended.
#[expect(clippy::disallowed_methods, reason = "an init collects whoever comes")]
#[expect(clippy::zombie_processes, reason = "the starter among them")]
fn be_init(args: &[&str]) {
    use rustix::process::{WaitOptions, getpid, set_child_subreaper, wait};
    set_child_subreaper(Some(getpid())).expect("every kernel has subreapers");
    let own = std::env::current_exe().expect("we run from a file");
    let starter = Command::new(own).arg("start").args(args).spawn().expect("we start again");
    say(&format!("starter {}", starter.id()));
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let pid = pid.as_raw_nonzero();
                match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => say(&format!("reaped {pid} exited {code}")),
                    (None, Some(signal)) => say(&format!("reaped {pid} signaled {signal}")),
                    (None, None) => {}
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn be_starter(keeper: &str, dir: &str, failpoint: &str, spec: &str) {
    let spec: Spec = serde_json::from_str(spec).expect("the test sent a spec");
    let mut keeper = KeeperProgram::new(keeper);
    if !failpoint.is_empty() {
        keeper = keeper.env("KENNEL_FAILPOINT", failpoint);
    }
    match start_with(&spec, Path::new(dir), &keeper) {
        Ok(run) => {
            say("started");
            serve(run);
        }
        Err(e) => {
            say(&error_line(&e));
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
        }
    }
}

fn error_line(error: &StartError) -> String {
    let (kind, errno) = match error {
        StartError::Directory(e) => ("directory", e.raw_os_error()),
        StartError::Launch(e) => ("launch", e.raw_os_error()),
        StartError::Failed(failure) => ("failed", failure.errno),
        StartError::KeeperDied => ("died", None),
        StartError::NoAnswer => ("silent", None),
        StartError::Spec(_) | StartError::TooLarge(_) | _ => ("other", None),
    };
    format!("error {kind} {} {error}", errno.unwrap_or(0))
}

fn serve(mut run: Run) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if let Some(grace) = line.strip_prefix("stop ") {
            let grace = grace.parse().expect("milliseconds");
            // A keeper that is killed now is what the test is about.
            let _ = run.connection.stop(Some(Duration::from_millis(grace)));
        }
        match run.connection.wait_end(FOR_EVER) {
            Ok(Waited::Ended(_)) => say("ended"),
            Ok(other) => say(&format!("not ended {other:?}")),
            Err(e) => say(&format!("broken {e}")),
        }
    }
}

fn be_adopter(dir: &Path) {
    match adopt(dir) {
        Ok(Adopted::Orphaned(mut orphan)) => match orphan.kill() {
            Ok(Swept::Ended(end)) => say(&format!("swept {:?}", end.status)),
            other => say(&format!("not swept {other:?}")),
        },
        Ok(Adopted::Running { .. }) => say("running"),
        Ok(Adopted::Ended(end)) => say(&format!("ended {:?} {:?}", end.cause, end.status)),
        Ok(Adopted::NeverStarted) => say("never started"),
        Ok(Adopted::Unreadable(e)) => say(&format!("unreadable {e}")),
        Err(e) => say(&format!("error {e}")),
    }
}
