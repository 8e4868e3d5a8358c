//! A router takes the timestamps option out of segments, after both ends agreed on it or so that only one believes
//! it is agreed: the client, a kernel's TCP, gets its file all the same (RFC 7323 s3.2).
//!
//! The namespace of the clients is the router here. Bounded by curl's own limit.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::black_hole::join;
use super::files::{self, Access, Library};
use super::setup::{Family, LinkKind, Setup, USUAL_MTU_BYTES};
use testbed::curl::Curl;
use testbed::find_program;
use testbed::namespace::Namespace;
use testbed::process::run as run_program;
use testbed::suite::{Outcome, Suite};

/// What is fetched, bytes.
const FILE_BYTES: u64 = 300_000;
/// Which segments lose the option, and how iptables chooses them.
const PLACES: [(&str, &str); 3] = [
    ("the SYN-ACK", "-i wire1 --tcp-flags SYN,ACK SYN,ACK"),
    (
        "the client's later segments",
        "-o wire1 --tcp-flags SYN NONE",
    ),
    (
        "the server's later segments",
        "-i wire1 --tcp-flags SYN NONE",
    ),
];

/// Each place, with a link and a server of its own.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, library: &Library) {
    for (place, choice) in PLACES {
        let what = format!("packet file, timestamps stripped from {place}");
        suite.run(&what, || through(atlas, library, choice));
    }
}

fn through(atlas: &Path, library: &Library, choice: &str) -> Result<Outcome> {
    if find_program("iptables").is_none() {
        return Ok(Outcome::Skipped("iptables is not installed".to_owned()));
    }
    let setup = Setup::usual(LinkKind::Packet, atlas, 1)?;
    let router = setup.client();
    let far = Namespace::new("far")?;
    join(router, &far, USUAL_MTU_BYTES)?;
    if let Err(error) = strip(router, choice) {
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let server = setup.start(library.root(), None, None)?;
    let url = Access::Http.url(&setup, Family::V4, &files::name(FILE_BYTES))?;
    let mut curl = Curl::start(&far, &[url])?;
    curl.read_checked(files::content(FILE_BYTES), 0, FILE_BYTES)?;
    curl.finish()?;
    server.stop()?;
    let stripped = stripped(router)?;
    ensure!(stripped > 0, "no segment met the rule");
    Ok(Outcome::Passed)
}

fn strip(router: &Namespace, choice: &str) -> Result<()> {
    let mut command = router.command("iptables");
    command.args(["-w", "-t", "mangle", "-A", "FORWARD", "-p", "tcp"]);
    command.args(choice.split_whitespace());
    command.args(["-j", "TCPOPTSTRIP", "--strip-options", "timestamp"]);
    run_program(&mut command).map(drop)
}

/// Segments that met the rule.
fn stripped(router: &Namespace) -> Result<u64> {
    let mut command = router.command("iptables");
    command.args(["-w", "-t", "mangle", "-L", "FORWARD", "-v", "-x", "-n"]);
    let text = run_program(&mut command)?;
    let line = text.lines().find(|line| line.contains("TCPOPTSTRIP"));
    let count = line.and_then(|line| line.split_whitespace().next());
    count
        .context("no rule")?
        .parse()
        .context("no count of packets")
}
