//! `kennel up` and `kennel down`: the daemon in the foreground, and its leaving.

use std::io;

use kennel_daemon::wire;

use crate::client::Client;
use crate::error::{FAILED, Failure};
use crate::output::{Out, say};

/// Runs the daemon until it is told to leave. Its log goes to stderr.
pub(crate) fn up(client: &Client) -> Result<u8, Failure> {
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_target(false).init();
    kennel_daemon::serve(&client.home)
        .map_err(|e| Failure::new(FAILED, "daemon", e.to_string()))?;
    Ok(0)
}

/// Has the daemon leave. Says what goes on without it.
pub(crate) fn down(client: &Client, out: &Out) -> Result<u8, Failure> {
    let live = if std::os::unix::net::UnixStream::connect(client.home.socket()).is_ok() {
        client.get::<Vec<wire::Run>>("/v1/runs")?.len()
    } else {
        0
    };
    match client.shut_down()? {
        None => say("kennel: no daemon is running"),
        Some(()) if out.json || live == 0 => {}
        Some(()) if live == 1 => say("kennel: the daemon left; 1 run goes on under its keeper"),
        Some(()) => {
            say(&format!("kennel: the daemon left; {live} runs go on under their keepers"));
        }
    }
    Ok(0)
}
