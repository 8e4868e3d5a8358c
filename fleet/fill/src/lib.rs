//! `atlas-fill`: keeps what an edge serves equal to what it should hold of an object store.
//!
//! A program of its own, with an asynchronous runtime and the clients of object stores; Atlas has none of it, and waits for
//! no network but its clients'. What decides is pure: it is told what is there, what is wanted and what time it is.
//!
//! | Pure | Decides |
//! |---|---|
//! | [`plan`] | what is fetched, leaves and is removed, in which order |
//! | [`policy`] | which object leaves when there is no room: S3-FIFO |
//! | [`backoff`], [`rate`] | when who failed is asked again; how fast, and when in the day |
//! | [`health`] | whether the origin fails, or one object of it |
//! | [`stamp`] | of which version a copy is |
//! | [`checks`] | what an origin says of an object's content |
//! | [`manifest`], [`settings`] | what was written |
//!
//! | With the network and the disk | Does |
//! |---|---|
//! | [`origin`] | asks S3, Google, Azure, HTTP or a directory |
//! | [`fetch`], [`partial`] | brings an object in parts, resumed and compared |
//! | [`copies`] | gives copies their names |
//! | [`feed`] | asks the server what viewers missed and asked for |
//! | [`filler`] | the loop |
//! | [`report`], [`metrics`] | tell |

#![forbid(unsafe_code)]

pub mod backoff;
pub mod checks;
pub mod cli;
pub mod copies;
pub mod fault;
pub mod feed;
pub mod fetch;
pub mod filler;
pub mod health;
pub mod manifest;
pub mod metrics;
pub mod origin;
pub mod partial;
pub mod plan;
pub mod policy;
pub mod random;
pub mod rate;
pub mod report;
pub mod settings;
pub mod stamp;
