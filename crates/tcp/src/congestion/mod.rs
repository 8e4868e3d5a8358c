//! Congestion control: how many bytes may be in the network (RFC 5681, RFC 9438).
//!
//! Windows are in bytes. During a recovery ([`crate::recovery`]) rate reduction sets the window; the
//! controller decides how the window grows, and how far a loss reduces it.

mod cubic;

pub use cubic::{Cubic, Snapshot};

/// Initial window in segments (RFC 6928 s2).
pub const INITIAL_WINDOW_SEGMENTS: u64 = 10;
/// Greatest congestion window, bytes. 16 MiB is enough for 10 Gb/s at an RTT of 13 ms. It bounds the
/// flight of one connection, and so the length of its transmission log.
pub const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// Least slow-start threshold, segments (RFC 5681 s3.1 eq. 4).
pub const THRESHOLD_SEGMENTS_MIN: u64 = 2;
