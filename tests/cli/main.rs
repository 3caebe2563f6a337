//! The end-to-end tests of the `kennel` command: the binary as it ships, its daemon, its keepers
//! and real agents, each test in a home of its own, with a checker after it.

mod api;
mod faults;
mod foreground;
mod generated;
mod home;
mod openapi;
mod records;
mod recovery;
mod slots;
mod terminal;
mod upgrade;
