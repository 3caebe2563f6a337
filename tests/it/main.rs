//! The end-to-end tests of kennel: real processes, a real kernel, and a checker after each.

mod bystanders;
mod containment;
mod control;
mod crash;
mod faults;
mod foreign;
mod limits;
mod nursery;
mod peer;
mod records;
mod review;
mod streams;
mod survive;
