//! Which Atlas this is: version, commit, what it is built for.
//!
//! It refuses to ask git at run time: `build.rs` did. Bound: fixed texts.

/// The commit that it is built from, or `unknown`.
pub(crate) const COMMIT: &str = env!("ATLAS_COMMIT");

/// What `atlas -V` says behind the name.
pub(crate) const SHORT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("ATLAS_COMMIT"), ")");

/// What `atlas --version` says behind the name.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("ATLAS_COMMIT"),
    ")\ntarget: ",
    env!("ATLAS_TARGET"),
    "\nlinks: tap packet xdp xdp+packet relay\nstorage: directory, raw store, nvme\nTLS: 1.2 1.3; AEAD: aws-lc, ring"
);
