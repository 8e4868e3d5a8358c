//! What a store has to say for the log.
//!
//! It refuses to log. No bound of its own: a store keeps a few.

use std::path::PathBuf;

/// Something for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A raw store has a new catalogue.
    Catalogue {
        /// Its sequence number.
        sequence: u64,
        /// Objects in it.
        objects: usize,
    },
    /// The newest catalogue of a raw store is damaged; the one before is served.
    Damaged(String),
    /// The devices of a raw store cannot be read; the last catalogue is served on.
    Failed(String),
    /// This served path leads to another directory, which is served from now on.
    Switched(PathBuf),
    /// The served path cannot be followed to where it leads, and why; the old directory is served on.
    NotFollowed(String),
}
