//! Faults of this driver that the emulated controller must find: tests put them in one at a time.
//!
//! Outside tests a [`Canary`] has no size and can hold no fault.

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// Completion entries are taken whatever their phase tag.
    PhaseIgnored,
    /// Generations of command identifiers are not compared.
    GenerationIgnored,
    /// Commands are taken back and end when a reset begins, before the controller has stopped.
    TakenBackEarly,
    /// PRP lists begin one entry late.
    ListShifted,
    /// SGL descriptors are a page too long.
    DescriptorLong,
    /// Commands that a reset ended are not issued again.
    NotReissued,
    /// The doorbell rings without the fence.
    DoorbellBeforeFence,
}

/// The fault that a driver has, if any.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Canary {
    #[cfg(test)]
    pub(super) fault: Option<Fault>,
}

impl Canary {
    /// Whether it is this fault.
    #[cfg(test)]
    pub(super) fn is(self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether it is this fault: never.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the same call as in tests")]
    pub(super) const fn is(self, _fault: Fault) -> bool {
        false
    }
}

#[cfg(not(test))]
const _: () = assert!(size_of::<Canary>() == 0, "the product pays for canaries");
