//! Controller properties: where they are and what their bits mean (NVM Express Base Specification 2.0,
//! Controller Properties).
//!
//! Values come from the device: [`Capabilities::parse`] answers impossible ones with a
//! [`CapabilityError`]. Bounded by nothing but the registers' width.

use clock::Duration;

/// Controller Capabilities, 64 bits.
pub(super) const CAP: u64 = 0x00;
/// Version, 32 bits.
pub(super) const VS: u64 = 0x08;
/// Interrupt Mask Set, 32 bits.
pub(super) const INTMS: u64 = 0x0c;
/// Controller Configuration, 32 bits.
pub(super) const CC: u64 = 0x14;
/// Controller Status, 32 bits.
pub(super) const CSTS: u64 = 0x1c;
/// Admin Queue Attributes, 32 bits.
pub(super) const AQA: u64 = 0x24;
/// Admin Submission Queue Base Address, 64 bits.
pub(super) const ASQ: u64 = 0x28;
/// Admin Completion Queue Base Address, 64 bits.
pub(super) const ACQ: u64 = 0x30;
/// The first doorbell (NVMe over PCIe Transport Specification 1.0, Submission Queue y Tail Doorbell).
pub(super) const DOORBELLS: u64 = 0x1000;

/// CC.EN: Enable.
pub(super) const CC_ENABLE: u32 = 1;
/// CC.SHN: Shutdown Notification, two bits.
pub(super) const CC_SHUTDOWN_MASK: u32 = 0b11 << 14;
/// CC.SHN: a normal shutdown.
pub(super) const CC_SHUTDOWN_NORMAL: u32 = 0b01 << 14;
/// CC.IOSQES and CC.IOCQES: entries of 2^6 and 2^4 bytes. CC.CSS, CC.MPS and CC.AMS are 0: the NVM
/// command set, pages of 4 KiB, round robin.
pub(super) const CC_ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;

/// The oldest version accepted, 1.1: it has the list of active namespaces.
pub(super) const VERSION_MIN: u32 = 0x0001_0100;

/// What a register reads when the controller is gone.
pub(super) const ALL_ONES: u32 = u32::MAX;

/// CAP.TO counts in these.
const TIMEOUT_UNIT: Duration = Duration::from_millis(500);

/// Why a controller's capabilities do not fit this driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CapabilityError {
    /// CAP.CSS lacks the NVM command set.
    #[error("it does not offer the NVM command set (CAP.CSS)")]
    CommandSet,
    /// CAP.MPSMIN is more than 4 KiB.
    #[error("its smallest page is 2^{0} bytes; 4 KiB are needed (CAP.MPSMIN)")]
    PageSize(u32),
    /// CAP.MQES is below 1: a queue has at least two entries.
    #[error("its queues have {0} entries at most; two are needed (CAP.MQES)")]
    QueueEntries(u32),
    /// VS is older than 1.1.
    #[error("its version {}.{} is older than 1.1 (VS)", .0 >> 16, .0 >> 8 & 0xff)]
    Version(u32),
}

/// What CAP and VS say, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Capabilities {
    /// Most entries of an I/O queue, 2..=65,536 (CAP.MQES + 1).
    pub(super) queue_entries_max: u32,
    /// Longest time that CSTS.RDY takes to follow CC.EN (CAP.TO).
    pub(super) ready_timeout: Duration,
    /// Distance of doorbells (CAP.DSTRD), bytes.
    doorbell_stride_bytes: u64,
}

impl Capabilities {
    /// Reads the fields of CAP and VS.
    pub(super) fn parse(cap: u64, version: u32) -> Result<Self, CapabilityError> {
        let field = |shift: u32, mask: u64| {
            u32::try_from(cap >> shift & mask).expect("invariant: masked to 16 bits")
        };
        if field(37, 1) == 0 {
            return Err(CapabilityError::CommandSet);
        }
        let page_shift = 12 + field(48, 0xf);
        if page_shift > 12 {
            return Err(CapabilityError::PageSize(page_shift));
        }
        let queue_entries_max = field(0, 0xffff) + 1;
        if queue_entries_max < 2 {
            return Err(CapabilityError::QueueEntries(queue_entries_max));
        }
        if version < VERSION_MIN {
            return Err(CapabilityError::Version(version));
        }
        Ok(Self {
            queue_entries_max,
            // A controller that promises none gets a unit all the same.
            ready_timeout: TIMEOUT_UNIT * field(24, 0xff).max(1),
            doorbell_stride_bytes: 4 << field(32, 0xf),
        })
    }

    /// Where the tail doorbell of a submission queue is.
    pub(super) fn submission_doorbell(&self, queue_id: u16) -> u64 {
        DOORBELLS + 2 * u64::from(queue_id) * self.doorbell_stride_bytes
    }

    /// Where the head doorbell of a completion queue is.
    pub(super) fn completion_doorbell(&self, queue_id: u16) -> u64 {
        self.submission_doorbell(queue_id) + self.doorbell_stride_bytes
    }
}

/// A value of CSTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ControllerStatus(pub(super) u32);

impl ControllerStatus {
    /// The controller does not answer at all.
    pub(super) const fn is_gone(self) -> bool {
        self.0 == ALL_ONES
    }

    /// CSTS.RDY.
    pub(super) const fn is_ready(self) -> bool {
        self.0 & 1 != 0
    }

    /// CSTS.CFS: Controller Fatal Status.
    pub(super) const fn is_fatal(self) -> bool {
        self.0 & 2 != 0
    }

    /// CSTS.SHST says that shutdown processing is complete.
    pub(super) const fn is_shut_down(self) -> bool {
        self.0 >> 2 & 0b11 == 0b10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two entries, 500 ms, stride 4, NVM command set, pages of 4 KiB.
    const LEAST: u64 = 1 | 1 << 24 | 1 << 37;
    const V1_4: u32 = 0x0001_0400;

    #[test]
    fn capabilities_on_both_sides_of_each_limit() {
        let least = Capabilities::parse(LEAST, VERSION_MIN).unwrap();
        assert_eq!(least.queue_entries_max, 2);
        assert_eq!(least.ready_timeout, Duration::from_millis(500));
        let none = Capabilities::parse(LEAST - 1, V1_4);
        assert_eq!(none, Err(CapabilityError::QueueEntries(1)));
        let pages = Capabilities::parse(LEAST | 1 << 48, V1_4);
        assert_eq!(pages, Err(CapabilityError::PageSize(13)));
        let set = Capabilities::parse(LEAST ^ 1 << 37, V1_4);
        assert_eq!(set, Err(CapabilityError::CommandSet));
        let old = Capabilities::parse(LEAST, VERSION_MIN - 1);
        assert_eq!(old, Err(CapabilityError::Version(VERSION_MIN - 1)));
        let text = CapabilityError::Version(0x0001_0000).to_string();
        assert_eq!(text, "its version 1.0 is older than 1.1 (VS)");
        let most = Capabilities::parse(LEAST | 0xffff, V1_4).unwrap();
        assert_eq!(most.queue_entries_max, 65_536);
    }

    #[test]
    fn doorbells_follow_the_stride() {
        let near = Capabilities::parse(LEAST, V1_4).unwrap();
        assert_eq!(near.submission_doorbell(0), 0x1000);
        assert_eq!(near.completion_doorbell(0), 0x1004);
        assert_eq!(near.submission_doorbell(3), 0x1018);
        let far = Capabilities::parse(LEAST | 15 << 32, V1_4).unwrap();
        assert_eq!(far.completion_doorbell(0), 0x1000 + (4 << 15));
        assert_eq!(far.submission_doorbell(1), 0x1000 + (8 << 15));
    }

    #[test]
    fn a_promise_of_no_time_is_half_a_second() {
        let hasty = Capabilities::parse(LEAST ^ 1 << 24, V1_4).unwrap();
        assert_eq!(hasty.ready_timeout, Duration::from_millis(500));
    }
}
