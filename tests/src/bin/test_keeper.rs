//! A keeper and nothing else, with failpoints: what the end-to-end tests start their runs with.

use std::process::ExitCode;

fn main() -> ExitCode {
    kennel_process::keeper::enter().unwrap_or(ExitCode::FAILURE)
}
