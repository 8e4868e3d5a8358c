//! What is tried with a raw store on two NVMe controllers: clients fetch all files from it, through the kernel's
//! driver by passthrough, and then by Atlas's own driver.
//!
//! With its own, no byte of a file is touched by the guest's processor in plaintext: the controller writes it into a slot,
//! and the NIC reads it there. So the counters must tell of no system call for a read, and of frames on loan;
//! and the IOMMU must have stopped nothing, which the guest is asked at the end. Then the guest's kernel resets one of
//! the controllers again and again while files are fetched: every byte must still be right. Bounded by what
//! bounds the checks.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Trial;
use super::checks::{self, Start, Way};
use super::guest::GuestDisk;
use testbed::suite::{Outcome, Suite};

/// Longest time for the kernel to give the controller away.
const BIND_LIMIT: Duration = Duration::from_secs(60);

impl Trial<'_> {
    /// Fetches some ways through the kernel's driver, then gives the controller to VFIO, and fetches all ways.
    pub(super) fn try_store(&mut self, suite: &mut Suite) -> Result<()> {
        let name = std::mem::take(&mut self.name);
        self.name = format!("{name}, passthrough");
        self.start_lending(GuestDisk::Passthrough)?;
        for way in Way::all(false).filter(|way| way.has_loss && way.is_v6 == way.is_tls) {
            self.try_way(suite, way, |counts, _| {
                ensure!(
                    counts.disk_reads > 0 && counts.disk_calls > 0 && counts.doorbells == 0,
                    "not read by passthrough: {counts:?}"
                );
                counts.check_lent(way)
            });
        }
        checks::stop_server(&mut self.guest)?;
        self.guest.tell("bind")?;
        self.guest.await_line("lab: bound", BIND_LIMIT)?;
        self.name = format!("{name}, VFIO");
        self.start_lending(GuestDisk::Vfio)?;
        for way in Way::all(false) {
            self.try_way(suite, way, |counts, _| {
                ensure!(
                    counts.disk_reads > 0 && counts.disk_calls == 0 && counts.doorbells > 0,
                    "not read by Atlas's own driver: {counts:?}"
                );
                counts.check_lent(way)
            });
        }
        self.check_beside(suite);
        self.try_resets(suite)?;
        suite.run(&format!("{}: the end", self.name), || {
            checks::stop_server(&mut self.guest).map(|_| Outcome::Passed)
        });
        Ok(())
    }

    /// A check of the configuration takes nothing from the server that runs.
    fn check_beside(&mut self, suite: &mut Suite) {
        let name = format!("{}: atlas serve --check beside it", self.name);
        suite.run(&name, || {
            let path = GuestDisk::Vfio.path();
            self.guest.tell(&format!("check packet on vfio {path}"))?;
            let said = self.guest.await_line("lab: checked, ", BIND_LIMIT)?;
            ensure!(said.contains("ok: could serve"), "{said}");
            ensure!(
                said.contains("the NVMe controllers were left alone"),
                "{said}"
            );
            Ok(Outcome::Passed)
        });
    }

    /// Fetches while one of the controllers is reset every few seconds by the guest's kernel, over Atlas's head.
    fn try_resets(&mut self, suite: &mut Suite) -> Result<()> {
        let name = std::mem::take(&mut self.name);
        self.name = format!("{name}, resets");
        self.guest.tell("resets")?;
        let said = self.guest.await_line("lab: resets ", BIND_LIMIT)?;
        println!("        {said}");
        let before = checks::counts(&mut self.guest)?;
        for way in Way::all(false).filter(|way| !way.has_loss) {
            self.try_way(suite, way, |_, _| Ok(()));
        }
        self.guest.tell("calm")?;
        self.guest.await_line("lab: calm", BIND_LIMIT)?;
        suite.run(&format!("{}: they are counted", self.name), || {
            let counts = checks::counts(&mut self.guest)?.since(before);
            println!("        {} resets", counts.resets);
            ensure!(counts.resets > 0, "no reset was counted: {counts:?}");
            Ok(Outcome::Passed)
        });
        self.name = name;
        Ok(())
    }

    /// Starts the server, whose slots must be lent to the NIC.
    fn start_lending(&mut self, disk: GuestDisk) -> Result<()> {
        let start = Start {
            link: "packet",
            choice: "on",
            is_shared: false,
            disk,
        };
        let said = checks::start_server(&mut self.guest, start)?;
        ensure!(
            said.lends == "yes",
            "zero_copy = \"on\": it says {}",
            said.lends
        );
        Ok(())
    }
}
