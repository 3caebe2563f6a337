//! One file per command: its arguments, whose doc is the help, and one function.

pub(crate) mod attach;
pub(crate) mod channels;
pub(crate) mod config;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod mcp;
pub(crate) mod notices;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod service;
pub(crate) mod show;
pub(crate) mod stop;
pub(crate) mod story;
pub(crate) mod usage;
pub(crate) mod wait;
