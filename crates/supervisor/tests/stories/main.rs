//! The mind of stories, tested three ways: rule by rule, against a model, and in a simulated world.

mod figures;
mod mind;
mod model;
mod rules;
#[path = "../seeded/mod.rs"]
mod seeded;
mod world;
