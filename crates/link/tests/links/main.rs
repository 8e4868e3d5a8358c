//! Every link beside the kernel's own stack, over interfaces that each test makes in network namespaces of its own.
//!
//! Needs root; without it each test says SKIPPED and returns.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "what fails in a test shall fail loudly, and says on stderr what it skips"
)]

mod common;
mod measure;
mod packet;
mod queues;
mod tap;
mod xdp;
mod xdp_busy_poll;
mod xdp_checksums;
mod xdp_large;
mod xdp_loans;
mod xdp_packet;
mod xdp_sharing;
mod xdp_vlan;
