//! A router fails under a download, and another takes its addresses over: the client only receives, so nothing of
//! its own tells the server. Its file comes whole all the same.
//!
//! | the router that takes over | as with | how the server learns of it |
//! |---|---|---|
//! | announces its addresses | VRRP (keepalived) | from the announcement |
//! | has the link-local address of the first, and says nothing | two routers that an operator switches | it asks for the address |
//!
//! The namespace of the clients is the switch here. Bounded by curl's own limit.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::files::{self, Access, Library};
use super::setup::{Family, LinkKind, Setup};
use testbed::curl::Curl;
use testbed::namespace::{Namespace, VethPair};
use testbed::scratch_directory;
use testbed::suite::{Outcome, Suite};

/// How long there is no router: some retransmissions are lost.
const OUTAGE: Duration = Duration::from_secs(1);
/// What is fetched of it, bytes, and how fast (bits a second): the rate is the server's, so that the client's
/// window stays open.
const FILE_BYTES: u64 = files::LARGE_BYTES;
const RATE: &str = "16777216";
/// What is fetched before the router fails, bytes, and in all: some that was sent after the failover, and not more.
const BEFORE_BYTES: u64 = 1 << 20;
const ALL_BYTES: u64 = 4 << 20;
/// A pause is looked for between pieces of this size, bytes.
const PIECE_BYTES: u64 = 64 << 10;

/// How the other router takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Takeover {
    /// Linux sends the same ARP requests and neighbour advertisements as keepalived, if it is told to.
    Announced,
    /// Of IPv6: it has the same link-local address.
    Silent,
}

/// The routers' link-local address on both sides, if they have the same.
const LINK_LOCAL: &str = "fe80::fe";

/// Both families, with one worker and with two.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, library: &Library) {
    for (family, workers, takeover, what) in [
        (Family::V4, 1, Takeover::Announced, "fails over"),
        (Family::V6, 2, Takeover::Announced, "fails over"),
        (Family::V6, 1, Takeover::Silent, "fails over in silence"),
    ] {
        let what = format!("packet {} file while the router {what}", family.name());
        suite.run(&what, || through(atlas, library, family, workers, takeover));
    }
}

fn through(
    atlas: &Path,
    library: &Library,
    family: Family,
    workers: u32,
    takeover: Takeover,
) -> Result<Outcome> {
    let setup = Setup::usual(LinkKind::Packet, atlas, workers)?;
    let switch = setup.client();
    switch.ip("link add near type bridge")?;
    switch.ip(&format!(
        "link set {} master near",
        VethPair::CLIENT_INTERFACE
    ))?;
    switch.ip("link add far type bridge")?;
    switch.bring_up("near", &[])?;
    switch.bring_up("far", &[])?;
    let first = router(switch, 1, takeover)?;
    let second = router(switch, 2, takeover)?;
    raise(&first, takeover)?;
    let client = Namespace::new("viewer")?;
    client.join_bridge(switch, "far", "viewer0")?;
    client.bring_up("viewer0", &["10.79.0.9/24", "fd79::9/64"])?;
    client.ip("route add 10.77.0.0/24 via 10.79.0.254")?;
    let way = match takeover {
        Takeover::Announced => "fd79::fe".to_owned(),
        Takeover::Silent => format!("{LINK_LOCAL} dev viewer0"),
    };
    client.ip(&format!("route add fd77::/64 via {way}"))?;

    let scratch = scratch_directory("failover")?;
    let config = scratch.path().join("rate.toml");
    fs::write(&config, format!("connection_rate_max = {RATE}\n")).context("writing the rate")?;
    let server = setup.start(library.root(), Some(&config), None)?;
    let url = Access::Http.url(&setup, family, &files::name(FILE_BYTES))?;
    let mut curl = Curl::start(&client, &[url])?;
    curl.read_checked(files::content(FILE_BYTES), 0, BEFORE_BYTES)?;
    let (raised, last, pause) = thread::scope(|scope| {
        // Meanwhile the client goes on reading, and has nothing to say.
        let failover = scope.spawn(|| {
            lower(&first)?;
            thread::sleep(OUTAGE);
            raise(&second, takeover).map(|()| Instant::now())
        });
        let (mut last, mut pause) = (Instant::now(), Duration::ZERO);
        let mut offset = BEFORE_BYTES;
        while offset < ALL_BYTES {
            curl.read_checked(files::content(FILE_BYTES), offset, PIECE_BYTES)?;
            offset += PIECE_BYTES;
            pause = pause.max(last.elapsed());
            last = Instant::now();
        }
        let raised = failover
            .join()
            .map_err(|_| anyhow!("the failover panicked"))??;
        anyhow::Ok((raised, last, pause))
    })?;
    ensure!(last > raised, "the download was over before the failover");
    println!(
        "longest pause {:.2} s, of which {:.2} s without a router",
        pause.as_secs_f64(),
        OUTAGE.as_secs_f64()
    );
    curl.kill()?;
    let changes = server.stop()?.counter("tcp_next_hop_change_count")?;
    ensure!(changes > 0, "no next hop changed");
    Ok(Outcome::Passed)
}

/// A router between the two bridges, with the same addresses as any other, and down.
fn router(switch: &Namespace, number: u8, takeover: Takeover) -> Result<Namespace> {
    let router = Namespace::new(&format!("router{number}"))?;
    if takeover == Takeover::Announced {
        router.set("ipv4/conf/default/arp_notify", "1")?;
        router.set("ipv6/conf/default/ndisc_notify", "1")?;
    }
    router.forward()?;
    for (bridge, net) in [("near", 77), ("far", 79)] {
        let interface = format!("{bridge}{number}");
        router.join_bridge(switch, bridge, &interface)?;
        router.ip(&format!("addr add 10.{net}.0.254/24 dev {interface}"))?;
        if takeover == Takeover::Silent {
            router.ip(&format!("link set {interface} addrgenmode none"))?;
        }
    }
    Ok(router)
}

/// Lets a router forward.
fn raise(router: &Namespace, takeover: Takeover) -> Result<()> {
    // The far end first: it announces itself to the server when it can forward.
    let mut ends = ends(router)?;
    ends.sort();
    for (interface, net) in ends {
        router.ip(&format!("link set {interface} up"))?;
        if takeover == Takeover::Silent {
            router.ip(&format!("addr add {LINK_LOCAL}/64 dev {interface}"))?;
        }
        router.ip(&format!("addr add fd{net}::fe/64 dev {interface}"))?;
    }
    Ok(())
}

fn lower(router: &Namespace) -> Result<()> {
    for (interface, _) in ends(router)? {
        router.ip(&format!("link set {interface} down"))?;
    }
    Ok(())
}

/// A router's interfaces, each with the number of its network.
fn ends(router: &Namespace) -> Result<Vec<(String, u8)>> {
    let links = router.ip("-brief link")?;
    let names = links
        .lines()
        .filter_map(|line| line.split(['@', ' ']).next());
    let end = |name: &str| match name {
        name if name.starts_with("near") => Some((name.to_owned(), 77)),
        name if name.starts_with("far") => Some((name.to_owned(), 79)),
        _ => None,
    };
    Ok(names.filter_map(end).collect())
}
