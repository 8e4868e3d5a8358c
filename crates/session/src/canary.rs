//! Faults of kept slots ([`crate::kept_slots`]) for the simulator to put in, whose checks must find each.
//!
//! The feature `canaries` makes that possible; only `tools/sim` turns it on. Without it a [`Canary`] has no size and can
//! hold no fault, as that of `tcp`.

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// What is kept is not given up when its time is over.
    KeptTooLong,
    /// A client sends from a copy that was given up, and so what took its place.
    SentAfterGivenUp,
}

/// The fault that a conductor has, if any. The default has none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Canary {
    #[cfg(feature = "canaries")]
    fault: Option<Fault>,
}

impl Canary {
    /// A conductor with this fault.
    #[cfg(feature = "canaries")]
    #[must_use]
    pub const fn of(fault: Fault) -> Self {
        Self { fault: Some(fault) }
    }

    /// Whether it is this fault.
    #[cfg(feature = "canaries")]
    pub(crate) fn is(self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether it is this fault: never.
    #[cfg(not(feature = "canaries"))]
    #[expect(clippy::unused_self, reason = "the same call as with the feature")]
    pub(crate) const fn is(self, _fault: Fault) -> bool {
        false
    }
}

#[cfg(not(feature = "canaries"))]
const _: () = assert!(size_of::<Canary>() == 0, "the product pays for canaries");
