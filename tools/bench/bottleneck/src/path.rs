//! Two network namespaces with a TAP each, and the middlebox between them.
//!
//! Addresses are those of `testbed`'s veth pair, so servers are started on either the same way. IPv6
//! is off: what it announces by itself would use the bottleneck. It refuses to report a run in which a
//! TAP lost a frame as an undisturbed one ([`Report::tap_drops`]). Bounded by: [`QUEUE_FRAMES`].

use anyhow::Result;
use nic_wire::tap::{dropped_frames, open_plain};

use crate::leg::LegPlan;
use crate::middlebox::{Middlebox, PathCounts};
use testbed::namespace::{Namespace, VethPair};

/// Frames that may wait in a TAP for the middlebox: the largest window any server sends at once, and
/// more.
pub const QUEUE_FRAMES: u32 = 30_000;

/// What a path does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathPlan {
    /// From the server to the client.
    pub forth: LegPlan,
    /// From the client to the server.
    pub back: LegPlan,
}

/// What a path did, and what it may have done wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Of the middlebox.
    pub counts: PathCounts,
    /// Frames that found no room in a TAP: nobody asked for these losses.
    pub tap_drops: u64,
}

/// See the module. Fields are undone in the order they stand here.
#[derive(Debug)]
pub struct Path {
    middlebox: Middlebox,
    /// Where servers run; the interface is [`VethPair::SERVER_INTERFACE`].
    pub server: Namespace,
    /// Where clients run; the interface is [`VethPair::CLIENT_INTERFACE`].
    pub client: Namespace,
}

impl Path {
    /// The client's address; the server's kernel has [`VethPair::KERNEL_V4`].
    pub const CLIENT_V4: &str = "10.77.0.3";

    /// Makes namespaces and TAPs, addresses set, both up, and starts the middlebox.
    ///
    /// # Errors
    /// What cannot be made.
    pub fn new(plan: &PathPlan) -> Result<Self> {
        let (server, client) = (Namespace::new("ps")?, Namespace::new("pc")?);
        let open = |namespace: &Namespace, name: &'static str, address: &str| {
            for name in ["all", "default"] {
                namespace.set(&format!("ipv6/conf/{name}/disable_ipv6"), "1")?;
            }
            let tap = namespace.enter(|| open_plain(name))?;
            namespace.ip(&format!("addr add {address}/24 dev {name}"))?;
            namespace.ip(&format!(
                "link set {name} mtu 1500 txqueuelen {QUEUE_FRAMES} up"
            ))?;
            anyhow::Ok(tap)
        };
        let server_tap = open(&server, VethPair::SERVER_INTERFACE, VethPair::KERNEL_V4)?;
        let client_tap = open(&client, VethPair::CLIENT_INTERFACE, Self::CLIENT_V4)?;
        Ok(Self {
            middlebox: Middlebox::start(server_tap, client_tap, plan.forth, plan.back)?,
            server,
            client,
        })
    }

    /// Ends the middlebox and deletes the namespaces; what the path did. Processes in them must have
    /// ended before.
    ///
    /// # Errors
    /// What made the middlebox end before.
    pub fn close(self) -> Result<Report> {
        let drops = |namespace: &Namespace, name| namespace.enter(|| dropped_frames(name));
        let tap_drops = drops(&self.server, VethPair::SERVER_INTERFACE)?
            + drops(&self.client, VethPair::CLIENT_INTERFACE)?;
        let counts = self.middlebox.stop()?;
        Ok(Report { counts, tap_drops })
    }
}
