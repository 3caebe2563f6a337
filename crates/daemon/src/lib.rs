//! The hands of kennel: one event loop, one store, one API on a private socket.
//!
//! ```text
//! api --event--> event_loop: decide -> commit -> apply -> perform --> a thread per run
//!                     ^                                                    |
//!                     `------------- observe: what its keeper says <-------'
//! ```
//!
//! Owns: order. A fact is durable before it is believed, and believed before it is acted on. Holds
//! no truth about processes of its own: that is the keepers'. Never prints and never exits.

#![forbid(unsafe_code)]

mod api;
#[cfg(feature = "bench")]
pub mod bench;
mod channel;
mod charge;
pub mod config;
mod event_loop;
mod feed;
mod found;
mod home;
mod live;
mod mcp;
mod meter;
mod metrics;
mod notice;
mod observe;
mod perform;
mod random;
mod redact;
mod retain;
mod serve;
mod session;
pub mod steps;
mod store;
mod story;
mod tail;
mod text;
mod time;
pub mod units;
mod watch;

pub use api::wire;
pub use home::{Home, HomeError};
pub use meter::make_meter;
pub use random::new_run_id;
pub use serve::{Options, ServeError, openapi, serve};
pub use store::StoreError;
pub use store::retention::Keep;
pub use text::Text;
pub use time::Time;
