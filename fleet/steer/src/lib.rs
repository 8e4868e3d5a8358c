//! `atlas-steer`: tells players which edges of a fleet to ask, in which order.
//!
//! A request names a path and comes from an address. The answer is the edges that hold the path's title
//! ([`placement::Fleet`]), those of the client's zone first, less those that drain, are not well or are busy: as a
//! content steering manifest ([`manifest`]), as JSON, or as a redirect. The same manifests can be written as files,
//! which Atlas serves itself ([`mod@write`]). It tells an edge's filler its
//! share of the library ([`share`]). And it publishes the edge that it runs beside ([`registry::publish`]).
//!
//! It is stateless: as many of them run as are wanted, and none knows of another. It fails static: while the registry
//! is down it answers by the last known members, and says so at `/health`. It proxies nothing and stores nothing.
//! Bounded by: [`settings`]: connections, the bytes of a head and of a target.

#![forbid(unsafe_code)]

pub mod manifest;
pub mod metrics;
pub mod networks;
pub mod publish;
pub mod request;
pub mod serve;
pub mod settings;
pub mod share;
pub mod steering;
pub mod write;
