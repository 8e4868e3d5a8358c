//! Congestion control: how many bytes may be in the network (RFC 5681, RFC 9438).
//!
//! Windows are in bytes. Recovery after a loss ([`crate::recovery`]) moves the window itself while
//! it lasts; the controller decides how it grows, and how far it falls.

mod cubic;

pub use cubic::{Cubic, Snapshot};

/// Initial window in segments (RFC 6928 s2).
pub const INITIAL_WINDOW_SEGMENTS: u64 = 10;
/// Greatest congestion window, bytes. 16 MiB carries 10 Gb/s over 13 ms; it bounds what one
/// connection can have in the network and so the length of its transmission log.
pub const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// Least slow-start threshold, segments (RFC 5681 s3.1 eq. 4).
pub const THRESHOLD_SEGMENTS_MIN: u64 = 2;
