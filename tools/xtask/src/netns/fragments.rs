//! A client whose packets have no DF, behind a router whose next link takes smaller ones: the router cuts
//! a request with three kilobytes of cookies, and it is answered all the same.
//!
//! The namespace of the clients is the router here. Only over IPv4: a router does not cut what is IPv6.
//! The control is the same request from packets with DF, which the client makes smaller after the router's report.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::black_hole::join;
use super::files::{self, Library};
use super::setup::{Family, LinkKind, Setup, USUAL_MTU_BYTES};
use testbed::client::Client;
use testbed::namespace::{Namespace, VethPair};
use testbed::suite::{Outcome, Suite};

/// MTU of the router's way to the server, bytes.
const MTU_BYTES: u32 = 1400;
/// What is fetched, bytes.
const FILE_BYTES: u64 = 300_000;
/// Bytes of the cookie.
const COOKIE_BYTES: usize = 3_000;

/// One worker; and two, where fragments reach another one than the connection's.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, library: &Library) {
    for (kind, workers) in [
        (LinkKind::Packet, 1),
        (LinkKind::Packet, 2),
        (LinkKind::Xdp, 1),
    ] {
        match Setup::usual(kind, atlas, workers) {
            Ok(setup) => {
                let what = format!("{} request in fragments", setup.name());
                suite.run(&what, || ask(&setup, library));
            }
            Err(error) => suite.fail("request in fragments", &format!("{error:#}")),
        }
    }
}

fn ask(setup: &Setup, library: &Library) -> Result<Outcome> {
    let router = setup.client();
    let far = Namespace::new("far")?;
    join(router, &far, USUAL_MTU_BYTES)?;
    let (server, interface) = (VethPair::ATLAS_V4, VethPair::CLIENT_INTERFACE);
    router.ip(&format!(
        "route add {server}/32 dev {interface} mtu {MTU_BYTES}"
    ))?;
    let server = setup.start(library.root(), None, None)?;
    let cookie = format!("Cookie: a={}\r\n", "x".repeat(COOKIE_BYTES));
    // 1: packets leave without DF.
    for (no_discovery, is_cut) in [("1", true), ("0", false)] {
        far.set("ipv4/ip_no_pmtu_disc", no_discovery)?;
        let before = fragments_made(router)?;
        // Several, since one of two workers may have both the connection and the fragments.
        for _ in 0..4 {
            let mut client = Client::connect(&far, setup.address(Family::V4)?)?;
            client.ask("GET", &files::name(FILE_BYTES), &cookie)?;
            let head = client.read_head()?;
            ensure!(head.status == 200, "status {}", head.status);
            client.read_checked(files::content(FILE_BYTES), 0, FILE_BYTES)?;
        }
        let made = fragments_made(router)? - before;
        ensure!((made > 0) == is_cut, "the router made {made} fragments");
    }
    let stopped = server.stop()?;
    let whole = stopped.counter("wire_reassembled_count")?;
    ensure!(whole >= 4, "{whole} packets were put together");
    Ok(Outcome::Passed)
}

/// Fragments of IPv4 that the namespace's kernel has made.
fn fragments_made(namespace: &Namespace) -> Result<u64> {
    let text = namespace.enter(|| {
        let file = "/proc/thread-self/net/snmp";
        fs::read_to_string(file).with_context(|| format!("reading {file}"))
    })?;
    let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
    let (names, values) = lines
        .next()
        .zip(lines.next())
        .context("no counters of IP")?;
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let found = pairs.find(|(name, _)| *name == "FragCreates");
    let (_, value) = found.context("no FragCreates")?;
    value.parse().context("FragCreates is no number")
}
