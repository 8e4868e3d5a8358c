//! etcd, by its JSON gateway (`/v3/...`, etcd 3.4 and later): a key for each edge, with a lease.
//!
//! The gateway is part of every etcd server. It saves gRPC and the compiler of its protocol; what it costs is base64 and
//! JSON, which at a few hundred bytes for each edge is nothing, see the decision note on fleets. Numbers of 64 bits are strings there.

mod client;
mod lease;
mod watcher;

pub(crate) use client::Etcd;
pub(crate) use lease::Lease;
pub(crate) use watcher::follow;
