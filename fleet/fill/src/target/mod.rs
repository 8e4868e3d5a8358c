//! Where copies are kept: what is there, and how a copy gets its name or loses it.

mod directory;

pub use directory::Directory;
