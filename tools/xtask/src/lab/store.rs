//! What is tried with a raw store on an NVMe controller that Atlas drives itself: clients fetch all files
//! from it.
//!
//! No byte of a file is touched by the guest's processor in plaintext: the controller writes it into a slot,
//! and the NIC reads it there. So the counters must tell of no system call for a read, and of frames on loan;
//! and the IOMMU must have stopped nothing, which the guest is asked at the end. Bounded by what bounds the
//! checks.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::checks::{self, Start, Way};
use super::guest::GuestLink;
use super::{Row, Trial};
use testbed::suite::{Outcome, Suite};

/// Longest time for the kernel to give the controller away.
const BIND_LIMIT: Duration = Duration::from_secs(60);

impl Trial<'_> {
    /// Gives the controller to VFIO, and fetches all files every way.
    pub(super) fn try_store(&mut self, suite: &mut Suite, rows: &mut Vec<Row>) -> Result<()> {
        self.guest.tell("bind")?;
        self.guest.await_line("lab: bound", BIND_LIMIT)?;
        let start = Start {
            link: GuestLink::Packet,
            choice: "on",
            is_shared: false,
            disk: self.disk,
        };
        let said = checks::start_server(&mut self.guest, start)?;
        ensure!(
            said.lends == "yes",
            "zero_copy = \"on\": it says {}",
            said.lends
        );
        for way in Way::all(false) {
            self.try_way(suite, rows, way, |counts, _| {
                ensure!(counts.disk_reads > 0, "nothing was read");
                ensure!(
                    counts.disk_calls == 0,
                    "{} system calls for the disk",
                    counts.disk_calls
                );
                counts.check_lent(way)
            });
        }
        suite.run(&format!("{}: the end", self.name), || {
            checks::stop_server(&mut self.guest).map(|_| Outcome::Passed)
        });
        Ok(())
    }
}
