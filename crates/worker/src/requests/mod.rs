//! What is known of requests by the names they ask for: which are not there, which wait until they are, and which are asked for most.
//!
//! It refuses to know more than its parts have room for.

mod counted;
mod held;
mod missed;

pub use counted::{COUNTED_MAX, Counted};
pub use missed::{MISSED_OF_WORKER_MAX, Missed};

pub(crate) use counted::CountedObjects;
pub(crate) use held::{Due, HeldLookups, NotHeld};
#[cfg(test)]
pub(crate) use held::{HELD_NAMES_MAX, LOOK_EVERY};
pub(crate) use missed::MissedNames;

/// Longest name that is told, bytes.
pub const NAME_BYTES_MAX: usize = 1024;

/// Most bytes of the names that a worker keeps ([`crate::Worker::keep_names`]).
pub const KEPT_BYTES_MAX: usize = missed::BYTES_MAX + counted::BYTES_MAX;
