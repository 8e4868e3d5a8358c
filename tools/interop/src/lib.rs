//! TCPs of others as clients of the real server, over paths that lose, reorder and double frames.
//!
//! The server runs in a network namespace of its own, on a TAP. The middlebox of `bottleneck` takes
//! its frames, does what a [`scenario`] says, and hands them to a client through a socket pair, one
//! frame a message; there is no kernel's TCP between them, and nothing leaves the namespace:
//!
//! ```text
//!  server's namespace       |  middlebox's thread                      |  client
//!  atlas -> TAP (wire0) ----|--> loss, delay, reordering, doubling ----|--> socket pair -> TCP
//!  atlas <- TAP <-----------|-------- loss, delay, ... <---------------|--- socket pair <- TCP
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`scenario`] | the paths, and what is fetched over them |
//! | [`client`] | gVisor's netstack (a Go program), lwIP (a C program) |
//! | [`observed`] | what the wire shows: options, SACK, bytes sent again, damaged frames |
//! | [`run`] | one client over one path, and what must hold |
//!
//! It refuses to call a run good that was not disturbed as planned. Bounded by: [`run::LIMIT`] for a
//! client; [`scenario::CONNECTIONS`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail there"))]

pub mod client;
pub mod observed;
pub mod run;
pub mod scenario;
