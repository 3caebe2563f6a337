//! The git steps of stories: real git, real repositories, every step an owned run.
//!
//! Every test ends with [`World::check_main`]: the main checkout is byte for byte as it was, but
//! for what a landing moved.

mod crash;
mod merge;
mod places;
mod prepare;
mod projects;
mod remove;
mod save;
mod world;

use world::World;
