//! The `atlas` binary's insides: command line, settings, worker loop, signals.
//!
//! **The only place that reads a clock, spawns, logs or exits.** The rooms below think or do; this
//! one asks the host what it has, gives each room its limits, hands down the time and carries
//! things from one room to the next. [`worker`] is the same code in the simulator.
//!
//! It refuses to serve half: what is missing at start is said in one line with the remedy, and the
//! process ends with exit code 2.

pub mod access_log;
pub mod cidr;
pub mod claim;
pub mod cli;
pub mod config;
pub mod failure;
pub mod host;
pub mod limiter;
pub mod link_watch;
pub mod log;
pub mod metrics;
pub mod notify;
pub mod output;
pub mod privileges;
pub mod report;
pub mod run;
pub mod settings;
pub mod signals;
pub mod start;
pub mod tls;
pub mod wait;
pub mod wall_clock;
pub mod warnings;
pub mod watch;
pub mod worker;
