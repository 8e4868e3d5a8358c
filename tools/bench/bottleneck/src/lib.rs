//! A path between two network namespaces with a bottleneck in it: a rate, a buffer of bytes, a fixed
//! delay, and losses drawn from a seed.
//!
//! It is for kernels without `netem`, and for knowing exactly what a path did. One thread takes every
//! frame from a TAP in one namespace and writes it to a TAP in the other when its time has come:
//!
//! ```text
//!  server's namespace          |  middlebox's thread                    |  client's namespace
//!  TCP -> TAP (wire0) ---------|--> leg: buffer, rate, loss, delay -----|--> TAP (wire1) -> TCP
//!  TCP <- TAP <----------------|--------------------- leg <-------------|---------- TAP <- TCP
//! ```
//!
//! The TAPs take no large segments and no unfinished checksums, so the kernel segments before the
//! middlebox sees a frame, as a NIC does before the wire.
//!
//! | module | what it is |
//! |---|---|
//! | [`leg`] | one direction, without a clock: what becomes of a frame, and when it arrives |
//! | [`sack_blocks`] | SACK blocks that name bytes that were never sent |
//! | [`flows`] | bytes sent and sent again, by connection |
//! | [`middlebox`] | the thread |
//! | [`path`] | namespaces, TAPs and the middlebox between them |
//!
//! It refuses to call a run undisturbed that it disturbed itself: it counts how late frames left it,
//! and what found no room before it. It changes no frame but as [`sack_blocks`] says, and keeps their
//! order and number, unless [`leg::Disorder`] asks for something else. Bounds: the legs' buffers and delays;
//! [`path::QUEUE_FRAMES`] frames that wait to be taken; [`flows::FLOWS_MAX`] connections.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail there"))]

pub mod flows;
pub mod leg;
pub mod middlebox;
pub mod path;
pub mod sack_blocks;

pub use flows::{FlowCounts, Flows};
pub use leg::{Disorder, Fate, Leg, LegCounts, LegPlan};
pub use middlebox::{Direction, Middlebox, Observer, PathCounts};
pub use path::{Path, PathPlan};
