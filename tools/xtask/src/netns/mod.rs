//! `cargo xtask netns`: the server, whole, against real clients in network namespaces.
//!
//! Each check prints one line; the checks of two links run at once. It refuses to touch the host's own interfaces: clients, servers and
//! loss live in namespaces made here and deleted afterwards. Bounded by: a limit on every wait.

mod addresses;
mod black_hole;
mod changing;
mod files;
mod https;
mod identities;
mod setup;
mod strays;
mod take_over;
mod trouble;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum as _};

use self::files::{Access, Library};
use self::https::Fixture;
use self::identities::Identities;
use self::setup::{LinkKind, Setup, Subject, USUAL_MTU_BYTES};
use crate::rights;
use testbed::program::Program;
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};
use testbed::{find_program, interrupt, scratch_directory};

/// Options of `netns`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NetnsOptions {
    /// Leaves out the 1 GB transfer, the players and the faults that last
    #[arg(long)]
    quick: bool,
    /// The server to test (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
    /// Only with so many workers, comma-separated
    #[arg(long, value_name = "N", value_delimiter = ',')]
    workers: Vec<u32>,
    /// Only over these links, comma-separated
    #[arg(long, value_enum, value_delimiter = ',')]
    links: Vec<LinkKind>,
    /// Only content that changes, each kind for so long, with more workers and paces
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    changes: Option<u64>,
    /// Only viewers in mid-stream while other processes take over so many times, and nginx reloads
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(2..=1_000))]
    take_over: Option<u32>,
    /// Viewers of --take-over, half of them over TLS
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(4..=10_000))]
    viewers: u32,
    /// Spreads the take-overs of --take-over over so many minutes, and compares what processes hold
    #[arg(long, value_name = "M", requires = "take_over", value_parser = clap::value_parser!(u32).range(1..=600))]
    minutes: Option<u32>,
}

/// Numbers of workers, the links that are tried with each number unless others are asked for, whether
/// they borrow slots, and the MTU.
const PLAN: [(u32, &[LinkKind], bool, u32); 4] = [
    (
        1,
        &[
            LinkKind::Packet,
            LinkKind::Xdp,
            LinkKind::XdpPacket,
            LinkKind::Tap,
            LinkKind::Relay,
        ],
        false,
        USUAL_MTU_BYTES,
    ),
    (2, &[LinkKind::Packet, LinkKind::Tap], true, USUAL_MTU_BYTES),
    (5, &[LinkKind::XdpPacket], true, USUAL_MTU_BYTES),
    (1, &[LinkKind::Xdp, LinkKind::XdpPacket], true, 9_000),
];

impl NetnsOptions {
    /// What is tried, in this order.
    fn passes(&self) -> Vec<Pass> {
        let links = match self.links.as_slice() {
            [] => LinkKind::value_variants(),
            chosen => chosen,
        };
        let is_narrowed = !self.links.is_empty() || !self.workers.is_empty();
        let named: Vec<_> = match self.workers.as_slice() {
            [] => vec![1, 2, 5],
            workers => workers.to_vec(),
        };
        let named = named
            .iter()
            .map(|workers| (*workers, links, false, USUAL_MTU_BYTES));
        let parts: Vec<_> = if is_narrowed {
            named.collect()
        } else {
            PLAN.to_vec()
        };
        let mut passes = Vec::new();
        for (place, (workers, links, lends, mtu_bytes)) in parts.into_iter().enumerate() {
            // A relay has one worker.
            let links = links
                .iter()
                .filter(|&&link| workers == 1 || link != LinkKind::Relay);
            passes.extend(links.map(|&link| Pass {
                workers,
                link,
                lends: lends && link != LinkKind::Tap,
                mtu_bytes,
                is_first: place == 0,
                has_all: false,
            }));
        }
        if let Some(first) = passes.first_mut() {
            first.has_all = true;
        }
        passes
    }
}

/// Runs all checks; fails if one does.
pub(crate) fn run_command(options: &NetnsOptions) -> Result<()> {
    let mut suite = Suite::default();
    match options.changes {
        Some(seconds) => {
            let atlas = Program::Atlas.find(options.atlas.as_deref())?;
            let time = Duration::from_secs(seconds);
            changing::run_for(&mut suite, &atlas, &Identities::new()?, time);
        }
        None if let Some(times) = options.take_over => {
            let atlas = Program::Atlas.find(options.atlas.as_deref())?;
            let library = Library::new()?;
            let (viewers, minutes) = (options.viewers, options.minutes);
            let links = match options.links.as_slice() {
                [] => LinkKind::value_variants(),
                chosen => chosen,
            };
            let extent = take_over::Extent {
                times,
                viewers,
                minutes,
            };
            take_over::run(&mut suite, &atlas, &library, links, extent);
        }
        None => run(&mut suite, options),
    }
    suite.close()
}

/// Runs all checks into a suite, through sudo if this process may not make namespaces itself.
pub(crate) fn run_with_rights(suite: &mut Suite) {
    run_options_with_rights(suite, &NetnsOptions::default());
}

/// The same of this server, over one link with one worker, without what takes long.
pub(crate) fn run_once_with_rights(suite: &mut Suite, atlas: &Path) {
    let options = NetnsOptions {
        quick: true,
        atlas: Some(atlas.to_path_buf()),
        links: vec![LinkKind::Packet],
        workers: vec![1],
        ..NetnsOptions::default()
    };
    run_options_with_rights(suite, &options);
}

fn run_options_with_rights(suite: &mut Suite, options: &NetnsOptions) {
    let here = |suite: &mut Suite| run(suite, options);
    rights::run(suite, "netns", here, |_| arguments(options));
}

/// The command line of these options.
fn arguments(options: &NetnsOptions) -> Result<Vec<OsString>> {
    let atlas = Program::Atlas.find(options.atlas.as_deref())?;
    let mut arguments = vec!["netns".into(), "--atlas".into(), atlas.into_os_string()];
    if options.quick {
        arguments.push("--quick".into());
    }
    for link in &options.links {
        let name = link.to_possible_value().context("a link has a name")?;
        arguments.extend(["--links".into(), name.get_name().into()]);
    }
    for workers in &options.workers {
        arguments.extend(["--workers".into(), workers.to_string().into()]);
    }
    Ok(arguments)
}

/// Runs all checks into a suite.
fn run(suite: &mut Suite, options: &NetnsOptions) {
    if interrupt::is_set() {
        return suite.skip("netns", "interrupted");
    }
    if let Err(reason) = rights::can_make_namespaces(&["ip", "curl"]) {
        return suite.skip("netns", &reason);
    }
    match run_on_links(suite, options) {
        Err(_) if interrupt::is_set() => suite.skip("netns", "interrupted"),
        Err(error) => suite.fail("netns", &format!("{error:#}")),
        Ok(()) => {}
    }
}

fn run_on_links(suite: &mut Suite, options: &NetnsOptions) -> Result<()> {
    let library = Library::new().context("writing the files to serve")?;
    let identities = Identities::new()?;
    let run = Run {
        atlas: Program::Atlas.find(options.atlas.as_deref())?,
        files: &library,
        identities: &identities,
        quick: options.quick,
    };
    let passes = VecDeque::from(options.passes());
    let passes = Mutex::new(passes);
    let run_some = || {
        let mut suite = Suite::default();
        while let Some(pass) = passes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
        {
            if let Err(error) = run.try_pass(&mut suite, pass) {
                suite.fail(&format!("{pass:?}"), &format!("{error:#}"));
            }
        }
        suite
    };
    thread::scope(|scope| {
        let threads = [(); AT_ONCE].map(|()| scope.spawn(run_some));
        for thread in threads {
            match thread.join() {
                Ok(part) => suite.add(part),
                Err(_) => suite.fail("netns", "a thread of checks panicked"),
            }
        }
    });
    Ok(())
}

/// Passes at once: they mostly wait. More would keep a machine of two processors from others' deadlines.
const AT_ONCE: usize = 3;

/// How often other processes take over, and how many watch meanwhile.
const TAKE_OVERS: take_over::Extent = take_over::Extent {
    times: 4,
    viewers: 64,
    minutes: None,
};

/// A link, and a number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pass {
    workers: u32,
    link: LinkKind,
    /// Whether it borrows slots.
    lends: bool,
    mtu_bytes: u32,
    /// Whether it is of the first number of workers.
    is_first: bool,
    /// Whether what depends on no link is tried, too.
    has_all: bool,
}

/// What all passes share.
struct Run<'a> {
    atlas: PathBuf,
    files: &'a Library,
    identities: &'a Identities,
    quick: bool,
}

impl Run<'_> {
    /// The checks of any link, then those that one link or number of workers has.
    fn try_pass(&self, suite: &mut Suite, pass: Pass) -> Result<()> {
        let (link, is_first) = (pass.link, pass.is_first);
        if link == LinkKind::Tap && !Path::new("/dev/net/tun").exists() {
            suite.skip("tap", "no /dev/net/tun");
            return Ok(());
        }
        let (atlas, library) = (&self.atlas, self.files);
        let subject = Subject {
            program: atlas.clone(),
            workers: pass.workers,
            lends: pass.lends,
            mtu_bytes: pass.mtu_bytes,
        };
        let setup = Setup::new(link, subject)?;
        let scratch = scratch_directory("config")?;
        let checks = LinkChecks {
            fixture: Fixture {
                setup: &setup,
                library,
                identities: self.identities,
            },
            scratch: scratch.path(),
            pass,
            quick: self.quick,
        };
        checks.run(suite);
        if link != LinkKind::Relay && is_first && !self.quick {
            take_over::run_one(suite, atlas, library, link, TAKE_OVERS);
        }
        match link {
            LinkKind::Packet if is_first && !self.quick => {
                black_hole::run(suite, atlas, library);
                changing::run(suite, atlas, self.identities);
            }
            LinkKind::Xdp if is_first => {
                addresses::run(suite, atlas, library);
            }
            _ => {}
        }
        if link.has_xdp() && pass.workers > 1 {
            let label = format!("{} a client's segments change worker", setup.name());
            suite.run(&label, || strays::run(&setup, library));
        }
        Ok(())
    }
}

/// All checks on one link.
struct LinkChecks<'a> {
    fixture: Fixture<'a>,
    /// Where configurations are.
    scratch: &'a Path,
    pass: Pass,
    quick: bool,
}

impl LinkChecks<'_> {
    /// What a link does to a gigabyte, it does to eight megabytes; and players see no link.
    const fn has_huge(&self) -> bool {
        self.pass.has_all && !self.quick
    }
}

/// How the server of a group is configured.
#[derive(Clone, Copy, Debug)]
enum Settings {
    /// A client whose SYN was lost waits 3 s before it repeats a lost request (RFC 6298 s5.7):
    /// under loss the server needs its ordinary timeouts.
    Ordinary,
    /// A long grace for transfers when the server ends.
    LongGrace,
    /// Keys change as often as a key may.
    ManyKeys,
}

/// A group of checks that share a server.
struct Group {
    name: &'static str,
    checks: fn(&mut Suite, &LinkChecks<'_>),
    settings: Settings,
    is_https: bool,
    /// Whether it has frames lost, or an interface down.
    needs_wire: bool,
    /// What the server must have counted beside replies and reads.
    nonzero_counters: &'static [&'static str],
}

/// Of plain HTTP, and of TLS.
const HTTP: Group = Group {
    name: "files",
    checks: |suite, link| {
        let Fixture { setup, library, .. } = link.fixture;
        files::run(suite, setup, library, Access::Http, link.has_huge());
    },
    settings: Settings::LongGrace,
    is_https: false,
    needs_wire: false,
    nonzero_counters: &[],
};
const HTTPS: Group = Group {
    name: "https",
    checks: |suite, link| {
        let fixture = link.fixture;
        let (setup, library) = (fixture.setup, fixture.library);
        files::run(suite, setup, library, fixture.access(), link.has_huge());
        https::run_transfers(suite, fixture);
        if link.has_huge() {
            https::run_players(suite, fixture);
        }
    },
    is_https: true,
    nonzero_counters: &["tls_handshake_count", "record_seal_count"],
    ..HTTP
};

const GROUPS: [Group; 7] = [
    HTTP,
    Group {
        name: "loss",
        needs_wire: true,
        checks: |suite, link| files::run_lossy(suite, link.fixture.setup, Access::Http),
        settings: Settings::Ordinary,
        nonzero_counters: &["tcp_retransmit_segments"],
        ..HTTP
    },
    Group {
        name: "trouble",
        needs_wire: true,
        checks: |suite, link| trouble::run(suite, link.fixture, Access::Http),
        nonzero_counters: &["tcp_reset_count", "link_down_events"],
        ..HTTP
    },
    HTTPS,
    Group {
        name: "https loss",
        needs_wire: true,
        checks: |suite, link| files::run_lossy(suite, link.fixture.setup, link.fixture.access()),
        settings: Settings::Ordinary,
        nonzero_counters: &["tcp_retransmit_segments", "record_reseal_count"],
        ..HTTPS
    },
    Group {
        name: "https trouble",
        needs_wire: true,
        checks: |suite, link| trouble::run(suite, link.fixture, link.fixture.access()),
        nonzero_counters: &["record_seal_count", "tcp_reset_count", "link_down_events"],
        ..HTTPS
    },
    Group {
        name: "https keys",
        checks: |suite, link| https::run_many_keys(suite, link.fixture),
        settings: Settings::ManyKeys,
        nonzero_counters: &["tls_key_update_count"],
        ..HTTPS
    },
];

impl LinkChecks<'_> {
    /// Groups that share a server, then checks that end theirs.
    fn run(&self, suite: &mut Suite) {
        let setup = self.fixture.setup;
        let groups = GROUPS.iter();
        for group in groups.filter(|group| setup.has_wire() || !group.needs_wire) {
            self.run_group(suite, group);
        }
        for access in [Access::Http, self.fixture.access()] {
            let label = format!(
                "{} {} SIGTERM in mid-transfer",
                setup.name(),
                access.scheme()
            );
            suite.run(&label, || {
                let config = self.config(Settings::LongGrace)?;
                trouble::terminate(self.fixture, access, config.as_deref())
            });
        }
        // Each kind of link is waited for in its own way.
        if self.pass.is_first {
            suite.run(&format!("{} idle uses no CPU", setup.name()), || {
                trouble::idle(setup, self.fixture.library)
            });
        }
    }

    fn run_group(&self, suite: &mut Suite, group: &Group) {
        let Fixture {
            setup,
            library,
            identities,
        } = self.fixture;
        let label = format!("{} {}: the server ends well", setup.name(), group.name);
        let needs_loss = group.nonzero_counters.contains(&"tcp_retransmit_segments");
        if needs_loss && find_program("iptables").is_none() {
            return suite.skip(&label, "iptables is not installed");
        }
        let server = self.config(group.settings).and_then(|config| {
            let identities = group.is_https.then_some(identities);
            setup.start(library.root(), config.as_deref(), identities)
        });
        match server {
            Ok(server) => {
                (group.checks)(suite, self);
                suite.run(&label, || ended_well(server, setup, group.nonzero_counters));
            }
            Err(error) => suite.fail(&label, &format!("{error:#}")),
        }
    }

    /// The configuration file of a group, written anew; `None`: the defaults.
    fn config(&self, settings: Settings) -> Result<Option<PathBuf>> {
        let text = match settings {
            Settings::Ordinary => return Ok(None),
            // The grace must outlast the large file, whatever else the machine is doing.
            Settings::LongGrace => "shutdown_grace_seconds = 60\n".to_owned(),
            Settings::ManyKeys => format!("tls_key_records_max = {}\n", https::KEY_RECORDS_MAX),
        };
        let file = self.scratch.join(format!("{settings:?}.toml"));
        fs::write(&file, text)?;
        Ok(Some(file))
    }
}

/// Ends the server of a group: it must be alive, and have counted what it went through.
fn ended_well(server: Server, setup: &Setup, nonzero_counters: &[&str]) -> Result<Outcome> {
    let stopped = server.stop()?;
    let lent: &[&str] = if setup.lends() {
        &["link_lent_frames"]
    } else {
        &[]
    };
    for counter in ["http_reply_count", "session_read_count"]
        .iter()
        .chain(lent)
        .chain(nonzero_counters)
    {
        if *counter == "link_down_events" && !setup.is_told_of_down() {
            continue;
        }
        ensure!(
            stopped.counter(counter)? > 0,
            "{counter} is 0 after all this"
        );
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::{LinkKind, NetnsOptions};

    #[test]
    fn what_is_named_is_tried_and_by_default_some_of_all() {
        let usual = NetnsOptions::default().passes();
        assert_eq!(usual.len(), 10);
        assert_eq!(usual.iter().filter(|pass| pass.lends).count(), 4);
        assert_eq!(
            usual.iter().filter(|pass| pass.mtu_bytes == 9_000).count(),
            2
        );
        assert!(usual[0].has_all && usual[0].link == LinkKind::Packet);
        let taps = NetnsOptions {
            workers: vec![2, 3],
            links: vec![LinkKind::Tap],
            ..NetnsOptions::default()
        };
        let taps = taps.passes();
        assert!(
            taps.iter()
                .all(|pass| pass.link == LinkKind::Tap && !pass.lends)
        );
        let of = |pass: &super::Pass| (pass.workers, pass.is_first, pass.has_all);
        assert_eq!(
            taps.iter().map(of).collect::<Vec<_>>(),
            [(2, true, true), (3, false, false)]
        );
        let links = NetnsOptions {
            links: vec![LinkKind::Xdp],
            ..NetnsOptions::default()
        };
        assert_eq!(links.passes().len(), 3, "with each number of workers");
    }
}
