//! How often a byte crosses the memory bus on its way from the disk to the NIC: a model of last-level cache, DDIO and
//! DRAM in lines of 64 B.
//!
//! A simulation reports what touches which bytes of which slot ([`trace`]). [`replay`] puts them into physical memory
//! ([`layout`]) and through the caches of a machine ([`machine`]), and counts what DRAM reads and writes.
//!
//! It refuses to tell times: nothing waits for DRAM here. No room of the product depends on it.

#![forbid(unsafe_code)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a model's numbers are far below what their types hold"
)]

pub mod cache;
pub mod closed_loop;
pub mod layout;
pub mod machine;
pub mod replay;
pub mod rivals;
pub mod rng;
pub mod tables;
pub mod trace;
pub mod validation;
