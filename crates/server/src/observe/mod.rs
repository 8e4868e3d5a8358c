//! What operators see of a server that runs: log, access log, trace, metrics, connections, counters.
//!
//! It refuses to make the worker wait: what is written to files, sockets and terminals goes through threads. Bounds:
//! those of each module.

pub(crate) mod access_log;
pub(crate) mod capture;
pub(crate) mod configuration;
pub(crate) mod connections;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod monitoring;
pub(crate) mod output;
pub(crate) mod report;
pub(crate) mod requests;
pub(crate) mod trace;
