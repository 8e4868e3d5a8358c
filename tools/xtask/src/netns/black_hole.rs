//! A router whose next link takes smaller packets, and whose reports of that are filtered: the client
//! behind it, a kernel's TCP, gets its file all the same (RFC 4821).
//!
//! The namespace of the clients is the router here. It forwards in software, so it judges each packet of
//! a large frame on its own. Bounded by curl's own limit.

use std::path::Path;

use anyhow::{Result, ensure};

use super::files::{self, Access, Library};
use super::setup::{Family, LinkKind, Setup};
use testbed::curl::Curl;
use testbed::find_program;
use testbed::namespace::Namespace;
use testbed::process::run as run_program;
use testbed::suite::{Outcome, Suite};

/// MTU of the router's link to the client, bytes.
const MTU_BYTES: u32 = 1400;
/// What is fetched, bytes.
const FILE_BYTES: u64 = files::LARGE_BYTES;

/// Both families, each with a link and a server of its own.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, library: &Library) {
    for family in Family::BOTH {
        let what = format!("packet {} file through a black hole", family.name());
        suite.run(&what, || through(atlas, library, family));
    }
}

fn through(atlas: &Path, library: &Library, family: Family) -> Result<Outcome> {
    let (filter, report) = match family {
        Family::V4 => ("iptables", "-p icmp --icmp-type fragmentation-needed"),
        Family::V6 => ("ip6tables", "-p icmpv6 --icmpv6-type packet-too-big"),
    };
    if find_program(filter).is_none() {
        return Ok(Outcome::Skipped(format!("{filter} is not installed")));
    }
    let setup = Setup::usual(LinkKind::Packet, atlas, 1)?;
    let router = setup.client();
    let far = Namespace::new("far")?;
    join(router, &far, MTU_BYTES)?;
    let mut drop_reports = router.command(filter);
    drop_reports.args(["-w", "-A", "OUTPUT"]);
    drop_reports
        .args(report.split_whitespace())
        .args(["-j", "DROP"]);
    if let Err(error) = run_program(&mut drop_reports) {
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let server = setup.start(library.root(), None, None)?;
    let url = Access::Http.url(&setup, family, &files::name(FILE_BYTES))?;
    let mut curl = Curl::start(&far, &[url])?;
    curl.read_checked(files::content(FILE_BYTES), 0, FILE_BYTES)?;
    curl.finish()?;
    let stopped = server.stop()?;
    let holes = stopped.counter("tcp_mtu_black_hole_count")?;
    ensure!(holes == 1, "{holes} black holes");
    let reports = stopped.counter("tcp_packet_too_big_count")?;
    ensure!(reports == 0, "{reports} reports arrived");
    Ok(Outcome::Passed)
}

/// Makes a link from the router to a client far away, whose MTU is `mtu_bytes` at the router's end, and the
/// routes between client and server.
pub(super) fn join(router: &Namespace, far: &Namespace, mtu_bytes: u32) -> Result<()> {
    far.ip(&format!(
        "link add far1 mtu 1500 type veth peer name far0 mtu {mtu_bytes} netns {}",
        router.name()
    ))?;
    for (namespace, interface, host) in [(router, "far0", 1), (far, "far1", 2)] {
        let addresses = [format!("10.79.0.{host}/24"), format!("fd79::{host}/64")];
        namespace.bring_up(interface, &addresses.each_ref().map(String::as_str))?;
    }
    far.ip("route add 10.77.0.0/24 via 10.79.0.1")?;
    far.ip("route add fd77::/64 via fd79::1")?;
    router.forward()
}
