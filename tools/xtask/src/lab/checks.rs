//! What is tried with a guest that serves: clients fetch all files, at once, and compare every byte.
//!
//! curl is the client, beside two slow ones that go away in the middle of the largest file, so that
//! slots on loan lose their owners. It refuses a file that differs by a byte, a client that was not
//! served, and frames with data that were not lent. Bounded by: [`FETCH_SECONDS_MAX`].

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::guest::{Guest, GuestDisk, TAP};
use super::images::LARGEST;
use testbed::process::{Process, output};
use testbed::undo::Undo;

/// Part of the packets that are dropped, in each direction.
const LOSS: &str = "0.01";

/// All files, with loss, on an emulated processor.
const FETCH_SECONDS_MAX: u64 = 180;

/// How long the server may take to answer the console.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How long frames that were sent may be on their way: clients that went away are sent to again for a while.
const COMPLETION_LIMIT: Duration = Duration::from_secs(20);

/// Cells to receive into of the one queue of an AF_XDP link.
const CELLS: u64 = 2_048;

/// Most of them that the device may have: igb's ring and virtio's have 256 entries.
const DEVICE_CELLS_MAX: u64 = 512;

/// What curl exits with when its time is over.
const CURL_TIMEOUT: i32 = 28;

/// How an error begins that says that a byte was wrong: in plaintext it is found here, over TLS by the
/// client, when it opens the record.
const WRONG: &str = "wrong from byte";
const WRONG_RECORD: &str = "bad record mac";

/// Whether an error of [`fetch`] says that other bytes arrived than were to be sent.
pub(super) fn is_wrong_byte(error: &anyhow::Error, way: Way) -> bool {
    let text = format!("{error:#}");
    let mark = if way.is_tls { WRONG_RECORD } else { WRONG };
    text.contains(mark)
}

/// One way of fetching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) is_v6: bool,
    pub(super) is_tls: bool,
    pub(super) has_loss: bool,
    /// Whether the address is the guest's as well.
    pub(super) is_shared: bool,
}

impl Way {
    /// All of them, at an address of the server's own or at one that it shares.
    pub(super) fn all(is_shared: bool) -> impl Iterator<Item = Self> {
        (0..8).map(move |bits| Self {
            is_v6: bits & 1 != 0,
            is_tls: bits & 2 != 0,
            has_loss: bits & 4 != 0,
            is_shared,
        })
    }

    /// What distinguishes it, for the name of a check.
    pub(super) fn name(self) -> String {
        let address = if self.is_shared { "the guest's " } else { "" };
        let (ip, protocol, loss) = (self.ip(), self.protocol(), self.loss());
        format!("{address}{ip}, {protocol}, loss {loss}")
    }

    pub(super) fn ip(self) -> &'static str {
        if self.is_v6 { "IPv6" } else { "IPv4" }
    }

    pub(super) fn protocol(self) -> &'static str {
        if self.is_tls { "TLS" } else { "plaintext" }
    }

    pub(super) fn loss(self) -> &'static str {
        if self.has_loss { LOSS } else { "0" }
    }

    fn url(self, name: &str) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        let host = match (self.is_v6, self.is_shared) {
            (false, false) => "10.77.0.2",
            (false, true) => "10.77.0.1",
            (true, false) => "[fd77::2]",
            (true, true) => "[fd77::1]",
        };
        format!("{scheme}://{host}/{name}")
    }
}

macro_rules! counts {
    ($($(#[$text:meta])* $field:ident: $($name:literal)+,)*) => {
        /// What the server counted.
        #[derive(Clone, Copy, Default, Debug)]
        pub(super) struct Counts { $($(#[$text])* pub(super) $field: u64,)* }

        impl Counts {
            fn read(count: impl Fn(&str) -> Result<u64>) -> Result<Self> {
                Ok(Self { $($field: 0 $(+ count($name)?)+,)* })
            }

            pub(super) fn since(self, before: Self) -> Self {
                Self { $($field: self.$field - before.$field,)* }
            }
        }
    };
}

// The name of a field, and the server's counters that add up to it.
counts! {
    lent_frames: "link_lent_frames",
    sent_frames: "link_transmitted_frames",
    /// Times the link stopped lending for good.
    bypass_ends: "link_bypass_end_events",
    /// Descriptors of AF_XDP sockets that were sent, and those that came back.
    queued_descriptors: "link_queued_descriptors",
    completed_descriptors: "link_completed_descriptors",
    /// Cells offered to the kernel to receive into, those that it took, and those that came back.
    offered_cells: "link_offered_cells",
    accepted_cells: "link_accepted_cells",
    received_cells: "link_received_cells",
    /// Frames that were not sent, and cells that the kernel refused, gave back or lost against the rules.
    lost_frames: "link_lost_frames",
    /// Those of them that the device had no room for, for 20 ms.
    refused_frames: "link_refused_frames",
    receive_errors: "link_receive_errors",
    /// Reads of the disk, and system calls made for them.
    disk_reads: "disk_read_commands",
    disk_calls: "disk_enter_calls" "disk_check_calls",
    /// Doorbells that Atlas rang itself, and resets of its controllers: only its own driver has them.
    doorbells: "nvme_doorbell_count",
    resets: "nvme_reset_count",
}

impl Counts {
    /// Those of a line of the server's log.
    fn parse(line: &str) -> Result<Self> {
        let json = line.split_once(' ').map_or("", |(_, json)| json);
        let counters: serde_json::Value =
            serde_json::from_str(json).with_context(|| format!("not JSON: {line}"))?;
        Self::read(|name| match counters.get(name) {
            None if name.starts_with("nvme_") => Ok(0),
            value => value
                .and_then(serde_json::Value::as_u64)
                .with_context(|| format!("no counter {name}")),
        })
    }

    /// Fails unless most frames were lent, with loss a quarter: a copy is made of those without data, of short pieces,
    /// which there are more of with loss, and of what a slot on loan has to send again, or is kept to send.
    pub(super) fn check_lent(self, way: Way) -> Result<()> {
        let lent_of_four_min = if way.has_loss { 1 } else { 3 };
        ensure!(
            self.bypass_ends == 0,
            "the NIC took no frame for 20 ms, so frames are copied since: is the machine busy?"
        );
        ensure!(
            self.lent_frames * 4 >= self.sent_frames * lent_of_four_min,
            "only {} of {} frames were lent",
            self.lent_frames,
            self.sent_frames
        );
        Ok(())
    }

    /// Fails unless every cell to receive into is accounted for: in the fill ring, with the device, or in
    /// the receive ring. The device has as many as its own ring holds, or it loses some.
    fn check_cells(self) -> Result<()> {
        let all = self.offered_cells - self.received_cells;
        ensure!(all == CELLS, "{all} cells to receive into, of {CELLS}");
        let away = self.accepted_cells - self.received_cells;
        ensure!(
            away <= DEVICE_CELLS_MAX,
            "{away} cells are with a device whose ring has {DEVICE_CELLS_MAX} at most"
        );
        Ok(())
    }
}

/// How the server is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// What `--link` says before the interface's name.
    pub(super) link: &'static str,
    /// Of `zero_copy`.
    pub(super) choice: &'static str,
    /// Whether it serves at the guest's addresses.
    pub(super) is_shared: bool,
    /// What it serves.
    pub(super) disk: GuestDisk,
}

/// What the server's log says of its zero copy.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// Whether frames are sent from their slots: `yes`, or `no (why)`.
    pub(super) lends: String,
    /// How AF_XDP sockets pass frames; empty with another link.
    pub(super) sockets: String,
}

/// Starts the server, and returns what its log says.
pub(super) fn start_server(guest: &mut Guest, start: Start) -> Result<Said> {
    let config = match (start.disk, start.is_shared) {
        (GuestDisk::Passthrough, _) => "passthrough",
        (GuestDisk::Vfio, _) => "vfio",
        (_, true) => "shared",
        (_, false) => "own",
    };
    let (link, choice) = (start.link, start.choice);
    let path = start.disk.path();
    guest.tell(&format!("start {link} {choice} {config} {path}"))?;
    let sockets = match link {
        "packet" => String::new(),
        _ => guest.await_line("AF_XDP sockets", ANSWER_LIMIT)?,
    };
    let line = guest.await_line("zero_copy=", ANSWER_LIMIT)?;
    guest.await_line("ready ", ANSWER_LIMIT)?;
    let value = line.trim_start_matches("zero_copy=");
    // The next field follows.
    let end = value.find(" objects_max=").unwrap_or(value.len());
    Ok(Said {
        lends: value[..end].to_owned(),
        sockets,
    })
}

/// Starts a server that must refuse to serve, and say these words of the reason.
pub(super) fn start_in_vain(guest: &mut Guest, start: Start, words: &str) -> Result<String> {
    let (link, choice, path) = (start.link, start.choice, start.disk.path());
    guest.tell(&format!("start {link} {choice} own {path}"))?;
    let said = guest.await_line(words, ANSWER_LIMIT)?;
    guest.tell("stop")?;
    let end = guest.await_line("lab: ended with ", ANSWER_LIMIT)?;
    ensure!(end == "lab: ended with 2", "atlas: {end}");
    Ok(said)
}

/// Ends the server, which must end well; what it counted.
pub(super) fn stop_server(guest: &mut Guest) -> Result<Counts> {
    guest.tell("stop")?;
    let counts = Counts::parse(&guest.await_line("summary {", ANSWER_LIMIT)?)?;
    let end = guest.await_line("lab: ended with ", ANSWER_LIMIT)?;
    ensure!(end == "lab: ended with 0", "atlas: {end}");
    Ok(counts)
}

/// What the server has counted so far.
pub(super) fn counts(guest: &mut Guest) -> Result<Counts> {
    guest.tell("counters")?;
    Counts::parse(&guest.await_line("counters {", ANSWER_LIMIT)?)
}

/// Waits until every descriptor of AF_XDP sockets has come back, since no client is there any more; fails
/// if one does not, or the kernel refused something.
pub(super) fn await_descriptors(guest: &mut Guest) -> Result<Counts> {
    let deadline = Instant::now() + COMPLETION_LIMIT;
    loop {
        let counts = counts(guest)?;
        // A trunk is a process of this machine's, which may have to wait for longer.
        let excused = match &guest.trunk {
            Some(_) => counts.refused_frames,
            None => 0,
        };
        let lost = counts.lost_frames - excused;
        ensure!(
            lost == 0 && counts.receive_errors == 0,
            "{lost} frames were lost, and {} times receiving failed",
            counts.receive_errors
        );
        counts.check_cells()?;
        let missing = counts.queued_descriptors - counts.completed_descriptors;
        if missing == 0 {
            return Ok(counts);
        }
        ensure!(
            Instant::now() < deadline,
            "{missing} of {} descriptors have not come back",
            counts.queued_descriptors
        );
    }
}

/// Fetches all files one way and compares them.
pub(super) fn fetch(
    guest: &Guest,
    way: Way,
    (content, names): (&Path, &[String]),
    authority: &Path,
    to: &Path,
) -> Result<()> {
    let _loss = match way
        .has_loss
        .then(|| guest.namespace.lose_packets(TAP, LOSS))
    {
        Some(undo) => undo.map_err(anyhow::Error::msg)?,
        None => Undo::default(),
    };
    let curl = |seconds: u64| {
        let mut command = guest.namespace.command("curl");
        command.args(["-g", "--silent", "--show-error", "--fail", "--max-time"]);
        command
            .arg(seconds.to_string())
            .arg("--cacert")
            .arg(authority);
        command
    };
    let mut vanishing = Vec::new();
    for _ in 0..2 {
        let mut command = curl(2);
        command.args(["--limit-rate", "2M", &way.url(LARGEST)]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        vanishing.push(Process::spawn("curl", &mut command)?);
    }
    let mut command = curl(FETCH_SECONDS_MAX);
    command.args(["--parallel", "--parallel-immediate", "--remote-name-all"]);
    command.arg("--output-dir").arg(to);
    command.args(names.iter().map(|name| way.url(name)));
    let fetched = output(&mut command, Duration::from_secs(FETCH_SECONDS_MAX + 10))?;
    if !fetched.status.success() {
        let stderr = String::from_utf8_lossy(&fetched.stderr);
        // With transfers in parallel it also shows how far it is.
        let mut complaints = stderr.lines().filter(|line| line.starts_with("curl: "));
        bail!(
            "{}",
            complaints.next().unwrap_or("curl failed and said nothing")
        );
    }
    for mut curl in vanishing {
        let status = curl.wait(Duration::from_secs(10))?;
        ensure!(
            status.code() == Some(CURL_TIMEOUT),
            "a client that was to go away was served otherwise: {status}"
        );
    }
    for name in names {
        compare(&content.join(name), &to.join(name))?;
    }
    Ok(())
}

/// Compares two files. The one that was fetched is removed.
fn compare(expected: &Path, fetched: &Path) -> Result<()> {
    let is = fs::read(fetched).with_context(|| format!("reading {}", fetched.display()))?;
    let wanted = fs::read(expected).with_context(|| format!("reading {}", expected.display()))?;
    fs::remove_file(fetched)?;
    let name = expected.file_name().unwrap_or_default().to_string_lossy();
    if let Some(at) = is.iter().zip(&wanted).position(|(is, wanted)| is != wanted) {
        let bytes = &is[at..is.len().min(at + 8)];
        bail!("{name}: {WRONG} {at}: {bytes:02x?}");
    }
    ensure!(is.len() == wanted.len(), "{name}: {} bytes", is.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Counts, Way};

    #[test]
    fn counters_are_read_from_a_line_of_the_log() {
        let line = "counters {\"link_lent_frames\":7,\"link_transmitted_frames\": 9,\"link_bypass_end_events\":0,\
                    \"link_queued_descriptors\":5,\
                    \"link_completed_descriptors\":4,\"link_offered_cells\":2050,\"link_accepted_cells\":3,\"link_received_cells\":2,\"link_lost_frames\":0,\"link_refused_frames\":0,\"link_receive_errors\":0,\
                    \"disk_read_commands\":8,\"disk_enter_calls\":3,\"disk_check_calls\":1}";
        let counts = Counts::parse(line).expect("it has them all");
        assert_eq!(
            (counts.disk_reads, counts.disk_calls, counts.doorbells),
            (8, 4, 0)
        );
        assert_eq!((counts.lent_frames, counts.sent_frames), (7, 9));
        assert!(counts.check_cells().is_ok());
        let lost = Counts {
            received_cells: 1,
            ..counts
        };
        assert!(lost.check_cells().is_err());
        let most = Counts {
            accepted_cells: 2 + 512,
            ..counts
        };
        assert!(most.check_cells().is_ok());
        let kept = Counts {
            accepted_cells: 2 + 513,
            ..counts
        };
        assert!(kept.check_cells().is_err());
        assert!(Counts::parse("summary {}").is_err());
    }

    #[test]
    fn frames_that_are_copied_fail() {
        let way = |has_loss| Way {
            is_v6: false,
            is_tls: false,
            has_loss,
            is_shared: false,
        };
        let counts = Counts {
            lent_frames: 70,
            sent_frames: 100,
            ..Counts::default()
        };
        assert!(counts.check_lent(way(true)).is_ok());
        assert!(counts.check_lent(way(false)).is_err());
        let ended = Counts {
            bypass_ends: 1,
            ..counts
        };
        assert!(ended.check_lent(way(true)).is_err());
    }

    #[test]
    fn every_way_is_tried_once() {
        let all = Way::all(false).chain(Way::all(true));
        let mut urls: Vec<_> = all.map(|way| (way.url("1"), way.loss())).collect();
        urls.sort();
        urls.dedup();
        assert_eq!(urls.len(), 16);
    }
}
