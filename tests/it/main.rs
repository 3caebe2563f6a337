//! The end-to-end tests of kennel: real processes, a real kernel, and a checker after each.

mod survive;
