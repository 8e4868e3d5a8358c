//! One turn of one server at one point: started, loaded, checked, ended.
//!
//! A turn **fails** if the server does wrong: a reply of another status or length, a byte of the sample
//! that differs, a connection that breaks. It is **void** if it says nothing of the server: replies that
//! came out of the page cache in a cold run, a window that is too short, clients that did not keep up, a
//! hypervisor that took the cores. It refuses to count either. Bounded by: the deadlines of the
//! instruments, [`RETAKES_SHARE`] of all turns taken again.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use testbed::bench_disk::{Objects, drop_caches, read_bytes};
use testbed::rivals::Peer;
use testbed::server::{Server, Stopped};

use super::cell::Cell;
use super::results::{Effort, Measured, Outcome};
use crate::lab::{Contender, Lab, address};
use crate::stored::float;
use crate::wire;

/// What the hypervisor may take of the server's core in a window.
const STOLEN_SHARE_MAX: f64 = 0.05;

/// Part of all turns that may be taken again.
pub(crate) const RETAKES_SHARE: f64 = 0.15;

/// Bytes read from the disk for each that was served, above what is under way at the end.
const READ_SHARE_MAX: f64 = 1.05;

/// The same for servers that read past the page cache: what they read too much is not kept for anybody,
/// and is a cost of theirs.
const DIRECT_READ_SHARE_MAX: f64 = 1.25;

/// The same at least: what is missing was in the page cache.
const READ_SHARE_MIN: f64 = 0.98;

/// What a warm rival may read of what it serves: metadata and stray evictions.
const WARM_READ_SHARE_MAX: f64 = 0.02;

/// Median replies that a window holds.
const MEDIAN_REPLIES_MIN: f64 = 5.0;

/// Objects read into the page cache where some requests are for those.
const HOT_OBJECTS: u64 = 3000;

/// Requests for other objects where some are for those.
const COLD_REQUESTS: u64 = 100_000;

/// Objects that Atlas may have open in a cold run beside one for each connection.
const SPARE_OBJECTS: u64 = 256;

/// Most objects that Atlas may have open: one is open only while it is being sent, and a descriptor
/// limit of 20,000 holds as many.
const OBJECTS_MAX: u64 = 16_000;

/// Connections that Atlas may have beside those of the clients.
const SPARE_CONNECTIONS: u32 = 64;

/// Passes over a warm set until one finds all of it cached.
const WARM_PASSES_MAX: u32 = 5;

/// What turns have in common.
pub(crate) struct Turns<'a> {
    pub(crate) lab: &'a Lab,
    /// `atlas-bench`.
    pub(crate) instruments: &'a Path,
    /// Where lists of paths and configurations are written.
    pub(crate) directory: &'a Path,
    /// Further arguments of `atlas serve`.
    pub(crate) atlas_arguments: &'a str,
    /// Those of the baseline.
    pub(crate) baseline_arguments: &'a str,
    /// MTU of the wire, bytes.
    pub(crate) mtu: u16,
}

impl Turns<'_> {
    /// One turn. An error is ours, not the server's.
    pub(crate) fn run(&self, contender: &Contender, cell: &Cell, seed: u64) -> Result<Outcome> {
        drop_caches()?;
        if cell.cached_percent > 0 {
            self.warm()?;
        }
        let (objects, device) = self.lab.storage(contender)?;
        let paths = self.paths(cell, objects)?;
        let run = wire::Run {
            lab: self.lab,
            instruments: self.instruments,
            cell,
            server: address(contender, cell.is_tls)?,
            paths: &paths,
            mtu: self.mtu,
            seed,
            visits: None,
        };
        let _tap = wire::Tap::new(&self.lab.wire, self.mtu)?;
        let start = || {
            let arguments = self.arguments(contender, cell)?;
            self.lab.start(contender, cell.is_tls, &arguments)
        };
        // What a server reads to get ready is not counted, except of Atlas: it waits for a carrier, which
        // the clients' end is. The others, and their caches, are ready before anybody asks.
        let first = (!contender.is_atlas()).then(start);
        let before = read_bytes(device)?;
        let clients = run.start()?;
        let server = match first.unwrap_or_else(start) {
            Ok(server) => server,
            Err(error) => return failed(error),
        };
        let report = clients.finish()?;
        let read = read_bytes(device)? - before;
        let server_memory = memory(&server);
        let (sent, effort) = match end(contender, server) {
            Ok(counted) => counted,
            Err(error) => return failed(error),
        };
        let report = match report {
            Ok(report) => report,
            Err(why) => return Ok(Outcome::Failed(why)),
        };
        if let Some(fault) = wire::fault(&report) {
            return Ok(Outcome::Failed(fault));
        }
        let core = report.server_core.context("the wire watched no core")?;
        let served = report.counts_since_start.body_bytes;
        let measured = Measured {
            seconds: report.seconds,
            body_bytes: report.counts.body_bytes,
            replies: report.counts.replies,
            verified_replies: match report.counts_since_start {
                counts if counts.compared_bytes > 0 => counts.sampled_replies,
                _ => 0,
            },
            server_busy: core.busy,
            client_busy: report.client_core_working * report.seconds,
            stolen: core.steal,
            disk_share: float(read) / float(served.max(1)),
            server_share: sent.map(|sent| float(sent) / float(served.max(1))),
            first_byte: report.first_byte.into(),
            whole: report.whole.into(),
            fairness: Some(report.fairness),
            server_memory,
            filter: wire::filter_seconds(&report),
            effort,
            memory: report.memory,
        };
        let under_way = float(u64::from(cell.connections) * objects.bytes) / float(served.max(1));
        let why = wire::defect(&report)
            .or_else(|| {
                let share = report.warm_share;
                (share < 1.0)
                    .then(|| format!("only {:.1} % of the connections were warm", share * 100.0))
            })
            .or_else(|| {
                let held = report.window_median_replies;
                (cell.every_seconds == 0 && held < MEDIAN_REPLIES_MIN)
                    .then(|| format!("the window held {held:.1} median replies"))
            })
            .or_else(|| {
                let is_repeated = report.passes_begun > 1 && !self.lab.has_raw_device(contender);
                (cell.cached_percent < 100 && is_repeated)
                    .then(|| "objects were asked for twice".to_owned())
            })
            .or_else(|| void(contender, cell, &measured, under_way));
        Ok(match why {
            Some(why) => Outcome::Void(why, Some(measured)),
            None => Outcome::Measured(measured),
        })
    }

    /// Writes the list of what is asked.
    fn paths(&self, cell: &Cell, objects: Objects) -> Result<PathBuf> {
        let file = self.directory.join("paths");
        let mut text = String::new();
        for index in indices(cell.cached_percent, objects) {
            let _ = writeln!(text, "{} {}", objects.path(index), objects.bytes);
        }
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        Ok(file)
    }

    /// What Atlas is told: in a cold run it has no objects open but those being sent. The wire completes
    /// frames as a NIC does, but its driver's name is a TAP's.
    fn arguments(&self, contender: &Contender, cell: &Cell) -> Result<String> {
        let file = self.directory.join("atlas.toml");
        let connections = cell.connections + SPARE_CONNECTIONS;
        // Clients behind headers go without a word: nobody takes what is left to send.
        // As long as its rivals, clients may wait for the first request, until all have connected, and between two.
        let mut text = format!(
            "connections_max = {connections}\nshutdown_grace_seconds = 1\nhead_timeout_seconds = 3600\n\
             idle_timeout_seconds = 3600\n"
        );
        if cell.cached_percent == 0 {
            let objects = (u64::from(cell.connections) + SPARE_OBJECTS).min(OBJECTS_MAX);
            let _ = writeln!(text, "objects_max = {objects}");
        }
        // As the rivals' TCP.
        text.push_str("slow_start_after_idle = false\n");
        fs::write(&file, text)?;
        let further = match contender {
            Contender::AtlasBaseline(_) => self.baseline_arguments,
            _ => self.atlas_arguments,
        };
        let mut arguments = format!("--config {} {further}", file.display());
        if !further.contains("--zero-copy") {
            arguments.push_str(" --zero-copy on");
        }
        Ok(arguments)
    }

    /// Reads the hot objects into the page cache, and shows that they stay there.
    fn warm(&self) -> Result<()> {
        let disk = self.lab.disk();
        let count = HOT_OBJECTS.min(disk.objects.count);
        let read_all = || {
            (0..count).try_for_each(|index| {
                let path = disk.root.join(&disk.objects.path(index)[1..]);
                let read = fs::read(&path).with_context(|| format!("reading {path:?}"))?;
                ensure!(read.len() as u64 == disk.objects.bytes, "{path:?} is short");
                Ok(())
            })
        };
        for _ in 0..WARM_PASSES_MAX {
            let before = read_bytes(&disk.device)?;
            read_all()?;
            if read_bytes(&disk.device)? == before {
                return Ok(());
            }
        }
        anyhow::bail!("the objects do not stay in the page cache, {WARM_PASSES_MAX} times read");
    }
}

/// Which objects are asked for: a share of requests for the hot ones, all others for one each of the
/// copies, which have places of their own in the page cache.
fn indices(cached_percent: u8, objects: Objects) -> Vec<u64> {
    let hot = HOT_OBJECTS.min(objects.count);
    match u64::from(cached_percent) {
        0 => (0..objects.total()).collect(),
        percent if percent >= 100 => (0..hot).collect(),
        percent => {
            let cold = COLD_REQUESTS.min(objects.total() - objects.count);
            let hot_requests = cold * percent / (100 - percent);
            let cold = objects.count..objects.count + cold;
            cold.chain((0..hot_requests).map(|index| index % hot))
                .collect()
        }
    }
}

/// Why a window says nothing of the server, if it does not; `under_way` is what replies under way at the
/// end may have read and not served, as a share of what was served.
fn void(contender: &Contender, cell: &Cell, measured: &Measured, under_way: f64) -> Option<String> {
    let cold = 1.0 - f64::from(cell.cached_percent) / 100.0;
    let share = measured.disk_share;
    let from_disk = format!("{share:.3} bytes were read from the disk for each that was served");
    // Atlas has no cache: it reads everything, whatever the page cache has.
    let expected = if contender.is_atlas() { 1.0 } else { cold };
    // Requests are drawn from a list: their shares are nearly those of the list.
    let slack = if cold < 1.0 && expected > 0.0 {
        0.05
    } else {
        0.0
    };
    let least = (expected * READ_SHARE_MIN - slack - WARM_READ_SHARE_MAX * (1.0 - cold)).max(0.0);
    let is_direct = match contender {
        Contender::TrafficServer => true,
        Contender::Nginx(mode) => mode.is_direct(),
        // It reads again what was lost.
        other => other.is_atlas(),
    };
    let read_share_max = if is_direct {
        DIRECT_READ_SHARE_MAX
    } else {
        READ_SHARE_MAX
    };
    let most = (expected * read_share_max + slack).max(WARM_READ_SHARE_MAX) + under_way;
    if share < least {
        return Some(format!("{from_disk}: the page cache had the rest"));
    }
    if share > most {
        return Some(from_disk);
    }
    if measured.verified_replies == 0 {
        return Some("no reply of the sample was whole".to_owned());
    }
    let sent = measured.server_share.unwrap_or(1.0);
    if !(READ_SHARE_MIN..=READ_SHARE_MAX + under_way).contains(&sent) {
        return Some(format!(
            "the server says it sent {sent:.3} bytes for each that came"
        ));
    }
    let stolen = measured.stolen_share();
    (stolen > STOLEN_SHARE_MAX).then(|| {
        format!(
            "the hypervisor took {:.0} % of the server's core",
            stolen * 100.0
        )
    })
}

/// Whether what made a turn void lies outside of server, clients and disk: another turn may go better, and
/// if too many were taken again, it can be counted all the same.
pub(crate) fn is_disturbed_only(why: &str) -> bool {
    why.starts_with("the hypervisor")
}

/// A turn that a server failed, unless it was an interrupt that broke it off.
fn failed(error: anyhow::Error) -> Result<Outcome> {
    testbed::interrupt::check()?;
    Ok(Outcome::Failed(format!("{error:#}")))
}

/// Ends a server; what Atlas says it sent, bytes of TCP text that were not sent before, and what its worker did.
fn end(contender: &Contender, server: Server) -> Result<(Option<u64>, Option<Effort>)> {
    if !contender.is_atlas() {
        // How rivals end is not measured: some call it a failure to have connections then. One process
        // that waits for them to go is not waited for.
        if *contender == Contender::Peer(Peer::H2o) {
            server.signal(Signal::KILL)?;
        }
        drop(server);
        return Ok((None, None));
    }
    let stopped = server.stop()?;
    let sent = stopped.counter("tcp_send_bytes")?;
    let again = stopped.counter("tcp_retransmit_bytes")?;
    Ok((Some(sent.saturating_sub(again)), effort(&stopped).ok()))
}

/// What the worker of an Atlas that has ended did; a baseline may not count all of it.
fn effort(stopped: &Stopped) -> Result<Effort> {
    Ok(Effort {
        replies: stopped.counter("http_reply_count")?,
        rounds: stopped.counter("server_step_rounds")?,
        sleeps: stopped.counter("server_sleep_events")? + stopped.counter("server_pause_events")?,
        disk_calls: stopped.counter("disk_enter_calls")?,
        frames: stopped.counter("tcp_send_segments")? + stopped.counter("tcp_control_segments")?,
    })
}

/// Resident bytes of a server and its children, shared pages in equal parts, huge pages included; 0 if
/// they cannot be read.
fn memory(server: &Server) -> u64 {
    let mut left = vec![server.id()];
    let mut total = 0;
    while let Some(id) = left.pop() {
        let file =
            |name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
        total += kibibytes(&file("smaps_rollup"), "Pss:");
        total += kibibytes(&file("status"), "HugetlbPages:");
        let children = file(&format!("task/{id}/children"));
        left.extend(
            children
                .split_whitespace()
                .filter_map(|it| it.parse::<u32>().ok()),
        );
    }
    total * 1024
}

/// The number behind a name in a file of `/proc`.
fn kibibytes(text: &str, name: &str) -> u64 {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|it| it.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use testbed::rivals::NginxMode;

    use super::*;

    fn measured(disk_share: f64) -> Measured {
        Measured {
            seconds: 4.0,
            body_bytes: 1_000_000_000,
            verified_replies: 1,
            disk_share,
            ..Measured::default()
        }
    }

    #[test]
    fn cold_runs_read_what_they_serve_and_no_more_than_what_is_under_way() {
        let peer = Contender::Peer(Peer::H2o);
        let cell = Cell::cold(false, 1000);
        let is_void = |share, under_way| void(&peer, &cell, &measured(share), under_way).is_some();
        assert!(is_void(0.979, 0.0) && !is_void(0.981, 0.0));
        assert!(!is_void(1.049, 0.0) && is_void(1.051, 0.0));
        assert!(!is_void(1.149, 0.1) && is_void(1.151, 0.1));
        for direct in [
            Contender::TrafficServer,
            Contender::Nginx(NginxMode::Directio),
            Contender::Atlas("atlas".into()),
        ] {
            let of_server = |share| void(&direct, &cell, &measured(share), 0.0);
            assert!(of_server(1.249).is_none() && of_server(1.251).is_some());
        }
    }

    #[test]
    fn what_is_cached_is_not_read_but_by_atlas() {
        let warm = Cell {
            cached_percent: 100,
            ..Cell::cold(false, 1000)
        };
        let half = Cell {
            cached_percent: 50,
            ..warm
        };
        let peer = Contender::Peer(Peer::H2o);
        let atlas = Contender::Atlas("atlas".into());
        let is_void =
            |contender, cell, share| void(contender, cell, &measured(share), 0.0).is_some();
        assert!(!is_void(&peer, &warm, 0.02) && is_void(&peer, &warm, 0.021));
        assert!(!is_void(&atlas, &warm, 1.0) && is_void(&atlas, &warm, 0.02));
        assert!(!is_void(&peer, &half, 0.5));
        assert!(is_void(&peer, &half, 0.4) && is_void(&peer, &half, 0.6));
        assert!(!is_void(&atlas, &half, 1.0));
    }

    #[test]
    fn what_the_server_counted_is_what_came() {
        let atlas = Contender::Atlas("atlas".into());
        let cell = Cell::cold(true, 64);
        let is_void = |sent| {
            let measured = Measured {
                server_share: Some(sent),
                ..measured(1.0)
            };
            void(&atlas, &cell, &measured, 0.0).is_some()
        };
        assert!(is_void(0.979) && !is_void(0.98) && !is_void(1.05) && is_void(1.051));
        let nothing = Measured {
            verified_replies: 0,
            ..measured(1.0)
        };
        assert!(void(&atlas, &cell, &nothing, 0.0).is_some());
    }

    #[test]
    fn the_hypervisor_may_take_five_percent() {
        let atlas = Contender::Atlas("atlas".into());
        let of = |stolen| {
            let measured = Measured {
                stolen,
                ..measured(1.0)
            };
            void(&atlas, &Cell::cold(true, 64), &measured, 0.0)
        };
        assert_eq!(of(0.2), None);
        assert!(of(0.21).is_some_and(|why| is_disturbed_only(&why)));
        assert!(!is_disturbed_only("objects were asked for twice"));
    }

    #[test]
    fn a_list_has_its_share_of_hot_objects_and_no_cold_one_twice() {
        let objects = Objects {
            count: 4000,
            bytes: 4096,
            copies: 5,
        };
        assert_eq!(indices(0, objects).len(), 20_000);
        assert_eq!(indices(100, objects).len(), 3000);
        for (percent, hot) in [(25, 5_333), (50, 16_000), (75, 48_000)] {
            let list = indices(percent, objects);
            let cold = list.iter().filter(|it| **it >= 4000);
            let mut cold: Vec<_> = cold.collect();
            assert_eq!(list.len() - cold.len(), hot);
            cold.sort();
            cold.dedup();
            assert_eq!(cold.len(), 16_000);
        }
    }

    #[test]
    fn a_number_of_proc_is_found_by_its_name() {
        let text = "Rss: 10 kB\nPss:                7 kB\nPss_Anon: 3 kB\n";
        assert_eq!(kibibytes(text, "Pss:"), 7);
        assert_eq!(kibibytes(text, "HugetlbPages:"), 0);
    }
}
