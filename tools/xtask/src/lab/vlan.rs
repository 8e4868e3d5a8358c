//! What is tried on a VLAN device: each kind of link there, while the guest's kernel has the interface below.
//!
//! Clients are in the VLAN, at the far end of a trunk (`trunk`). At addresses of the server's own and at
//! the VLAN device's, every byte is compared; frames without a tag must go to the guest's kernel; and the
//! server must go on when the VLAN device was down. igb removes tags as it comes up: there, XDP must be
//! refused with the remedy. It refuses frames of the guest with another tag, and descriptors that were lost.
//! Bounded by what bounds the checks.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Trial;
use super::checks::{self, Start, Way};
use super::guest::{Guest, Nic};
use super::xdp::is_zero_copy;
use testbed::process::output;
use testbed::suite::{Outcome, Suite};

/// What curl exits with when the connection was refused: by a kernel that has no server there.
const CURL_REFUSED: i32 = 7;

/// How long the guest may take to set an interface up or down.
const SET_LIMIT: Duration = Duration::from_secs(20);

impl Trial<'_> {
    pub(super) fn try_vlan(&mut self, suite: &mut Suite) -> Result<()> {
        let start = |link, is_shared, disk| Start {
            link,
            choice: "auto",
            is_shared,
            disk,
        };
        let disk = self.disk;
        let removes_tags = self.nic == Nic::Igb;
        let links: &[&str] = if removes_tags {
            &["packet"]
        } else {
            &["packet", "xdp+packet", "xdp"]
        };
        if removes_tags {
            suite.run(&format!("{}: tags are removed", self.name), || {
                let start = start("xdp", false, disk);
                let said = checks::start_in_vain(&mut self.guest, start, "removes the tags")?;
                ensure!(said.contains("rxvlan off"), "it says {said}");
                Ok(Outcome::Passed)
            });
        }
        let case = self.name.clone();
        for &link in links {
            self.name = format!("{case}, {link}");
            for is_shared in [false, true] {
                if is_shared && link == "packet" {
                    continue;
                }
                let said = checks::start_server(&mut self.guest, start(link, is_shared, disk))?;
                println!("        atlas says {} {}", said.lends, said.sockets);
                ensure!(
                    link == "packet" || is_zero_copy(&said) || link == "xdp+packet",
                    "zero_copy = \"auto\" copies"
                );
                let is_tried = |way: &Way| way.is_v6 == way.is_tls && !(is_shared && way.has_loss);
                for way in Way::all(is_shared).filter(is_tried) {
                    self.try_way(suite, way, |_, guest| match link {
                        "packet" => Ok(()),
                        _ => checks::await_descriptors(guest).map(drop),
                    });
                }
                if is_shared {
                    suite.run(&format!("{}: frames without a tag", self.name), || {
                        refuse_plain(&self.guest)
                    });
                } else {
                    self.try_down(suite)?;
                }
                checks::stop_server(&mut self.guest)?;
            }
        }
        self.name = case;
        let trunk = self.guest.trunk.as_ref();
        let refused = trunk.map_or(0, super::trunk::Trunk::refused_frames);
        ensure!(refused == 0, "{refused} frames had another tag");
        Ok(())
    }

    /// The VLAN device goes down and comes up again, while the interface below stays up.
    fn try_down(&mut self, suite: &mut Suite) -> Result<()> {
        for state in ["down", "up"] {
            self.guest.tell(&format!("set {state}"))?;
            self.guest
                .await_line(&format!("lab: set {state}"), SET_LIMIT)?;
            if state == "down" {
                self.guest.await_line("is down", SET_LIMIT)?;
            }
        }
        self.guest.await_line("carries frames again", SET_LIMIT)?;
        let name = self.name.clone();
        self.name += ", after it was down";
        let is_tried = |way: &Way| !way.is_v6 && !way.is_tls && !way.has_loss;
        for way in Way::all(false).filter(is_tried) {
            self.try_way(suite, way, |_, _| Ok(()));
        }
        self.name = name;
        Ok(())
    }
}

/// The guest's kernel has no server at the address that it has beside the VLAN, and says so itself.
fn refuse_plain(guest: &Guest) -> Result<Outcome> {
    let mut command = guest.namespace.command("curl");
    command.args(["--silent", "--show-error", "--max-time", "20"]);
    command.arg("http://10.78.0.1/0.bin").stdin(Stdio::null());
    let fetched = output(&mut command, Duration::from_secs(30))?;
    let code = fetched.status.code();
    ensure!(code == Some(CURL_REFUSED), "curl exits with {code:?}");
    Ok(Outcome::Passed)
}
