//! What is tried with AF_XDP sockets whose memory the device accesses itself (zero copy).
//!
//! The server says what the kernel told it of each socket (`XDP_OPTIONS`). At addresses of its own all
//! ways are tried, at the guest's two; then all with slots on loan, which the kernel reads. After each, every descriptor that was sent must have come back.
//! It refuses a server whose sockets copy, frames and descriptors that were lost, and descriptors that
//! the kernel found invalid (`XDP_STATISTICS`). Bounded by what bounds the checks.

use anyhow::{Result, ensure};

use super::Trial;
use super::checks::{self, Said, Start, Way};
use testbed::suite::{Outcome, Suite};

impl Trial<'_> {
    /// Starts the server with each choice of `zero_copy`, and fetches with zero copy and with loans.
    pub(super) fn try_xdp(&mut self, suite: &mut Suite) -> Result<()> {
        suite.run(&format!("{}: zero_copy = \"off\"", self.name), || {
            let said = self.start_xdp("off", false)?;
            checks::stop_server(&mut self.guest)?;
            ensure!(!is_zero_copy(&said), "atlas says {}", said.sockets);
            Ok(Outcome::Passed)
        });
        for is_shared in [false, true] {
            let said = self.start_xdp("auto", is_shared)?;
            println!("        atlas says {}", said.sockets);
            ensure!(is_zero_copy(&said), "zero_copy = \"auto\" copies");
            let is_tried = |way: &Way| !is_shared || (!way.has_loss && way.is_v6 == way.is_tls);
            for way in Way::all(is_shared).filter(is_tried) {
                self.try_way(suite, way, |_, guest| {
                    checks::await_descriptors(guest).map(drop)
                });
            }
            checks::stop_server(&mut self.guest)?;
        }
        // Neither driver takes frames of several buffers in zero copy: the kernel reads the slots. Of
        // virtio_net's frames it attaches the pages, so that the device reads them, late.
        let said = self.start_xdp("on", false)?;
        println!("        atlas says {}", said.sockets);
        ensure!(
            said.lends == "yes",
            "zero_copy = \"on\": it says {}",
            said.lends
        );
        for way in Way::all(false) {
            self.try_way(suite, way, |counts, guest| {
                checks::await_descriptors(guest)?;
                counts.check_lent(way)
            });
        }
        checks::stop_server(&mut self.guest).map(drop)
    }

    fn start_xdp(&mut self, choice: &'static str, is_shared: bool) -> Result<Said> {
        let start = Start {
            link: "xdp",
            choice,
            is_shared,
            disk: self.disk,
        };
        checks::start_server(&mut self.guest, start)
    }
}

/// Whether the device accesses the sockets' memory itself, and the program runs in its driver.
pub(super) fn is_zero_copy(said: &Said) -> bool {
    said.sockets.contains(" in_driver=true") && said.sockets.contains(" zero_copy=true")
}
