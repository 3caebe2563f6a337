//! The end-to-end tests of the `kennel` command: the binary as it ships, its daemon, its keepers
//! and real agents, each test in a home of its own, with a checker after it.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests start the binary as its users do, and say with which seed"
)]

mod api;
mod channels;
mod config;
mod example;
mod faults;
mod followed;
mod foreground;
mod generated;
mod home;
mod limits;
mod mcp;
mod meter;
mod names;
mod notices;
mod openapi;
mod real;
mod real_sessions;
mod real_stories;
mod receiver;
mod records;
mod recovery;
mod review;
mod sessions;
mod slots;
mod storied;
mod stories;
mod stories_crashes;
mod stories_disks;
mod stories_faults;
mod stories_meddled;
mod stories_review;
mod stories_survive;
mod terminal;
mod upgrade;
mod user;
mod vm;
