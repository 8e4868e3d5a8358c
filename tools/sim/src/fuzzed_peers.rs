//! Peers that do whatever the input of a fuzzer says, to the whole server.
//!
//! [`serve_fuzzed_peers`] reads its input as a list of actions: raw frames, frames addressed to us,
//! handshakes, requests, valid and invalid acknowledgments, segments with any flags, resets, ICMP
//! Packet Too Big, ClientHellos and records of TLS, an interface that goes down, and time that
//! passes. Whatever they are, the server must not panic, and once the peers are silent and its
//! timeouts have passed, it must hold no slots, reads, connections or objects.
//!
//! It refuses to read more than [`ACTIONS_MAX`] actions.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use clock::Instant;
use link::sim::{PathConfig, SimPort};
use wire::{MacAddress, Route, SackBlocks, SeqNumber, TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::atlas::{self, Atlas, MAC};
use crate::crafted;
use crate::scenario::{Event, PORT, SECURE_PORT, SERVER_V4, SERVER_V6, Scenario, Theme};
use crate::segment::Segment;

/// Most actions read of one input.
const ACTIONS_MAX: usize = 400;
/// In the bytes of a SYN's source port: the SYN goes to the TLS port.
const SECURE_BIT: u16 = 1 << 15;
/// Number of peers; those with odd numbers use IPv6.
const PEERS: usize = 4;
/// Rounds of the worker at one moment.
const ROUNDS_MAX: u32 = 10_000;
/// Size of the object they request.
const OBJECT_BYTES: u64 = 9_000;
/// Frames that arrive within this arrive before the next action.
const ON_THE_LINE: Duration = Duration::from_millis(1);
/// Virtual time after the last action within which the server must free everything.
const QUIET_AFTER: Duration = Duration::from_secs(2 * 3600);

/// A peer and its connection.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    number: u8,
    source_port: u16,
    /// Whether it connects to the TLS port.
    is_secure: bool,
    /// SND.NXT.
    next: u32,
    /// RCV.NXT.
    rcv_nxt: u32,
}

/// The server and the peers.
struct FuzzedServer {
    server: Atlas,
    port: SimPort,
    now: Instant,
    peers: [Peer; PEERS],
    /// The last data frame the server sent, which Packet Too Big quotes.
    last_data: Vec<u8>,
}

/// The rest of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn short(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// A 16-bit two's complement number, extended to 32 bits.
    fn delta(&mut self) -> Option<u32> {
        Some(i32::from(self.short()?.cast_signed()).cast_unsigned())
    }

    /// Up to 255 bytes, as many as there are.
    fn some(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.byte()?).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(taken)
    }
}

/// Performs the actions of `input` on a server; the first byte is the seed of its scenario.
///
/// # Panics
/// If a check fails.
pub fn serve_fuzzed_peers(input: &[u8]) {
    act_all(input);
}

/// The same; returns the server's counters, for a test of what the seed inputs reach.
fn act_all(input: &[u8]) -> Vec<(&'static str, u64)> {
    let mut input = Input(input);
    let seed = input.byte().unwrap_or_default();
    let theme = Theme::named("famine").expect("invariant: a theme of that name");
    let mut scenario = Scenario::draw(seed.into(), theme);
    // No delay: an answer arrives before the next action.
    scenario.link.to_link = PathConfig::default();
    scenario.link.to_port = PathConfig::default();
    // One object, of a few segments and blocks.
    scenario.objects.truncate(1);
    for object in &mut scenario.objects {
        object.size_bytes = OBJECT_BYTES;
    }
    let path = scenario
        .objects
        .first()
        .map(|object| object.path())
        .unwrap_or_default();
    let (server, port) = atlas::assemble(&scenario);
    let mut fuzzed = FuzzedServer {
        server,
        port,
        now: scenario.epoch,
        peers: core::array::from_fn(|number| Peer {
            number: u8::try_from(number).expect("invariant: few"),
            ..Peer::default()
        }),
        last_data: Vec::new(),
    };
    for _ in 0..ACTIONS_MAX {
        if fuzzed.act(&mut input, &path).is_none() {
            break;
        }
        fuzzed.settle();
    }
    fuzzed.expect_quiet();
    fuzzed.server.counters()
}

impl FuzzedServer {
    /// The next action; `None` when the input is at its end.
    fn act(&mut self, input: &mut Input<'_>, path: &str) -> Option<()> {
        let (action, who) = (input.byte()?, usize::from(input.byte()?) % PEERS);
        match action % 16 {
            0 => self.send(input.some()?.to_vec()),
            1 => self.send_addressed(input)?,
            2 => self.send_syn(who, input)?,
            3 => self.send_next(who, TcpFlags::ACK, u16::MAX, &[]),
            4 | 5 => self.ask(who, input, path)?,
            6 => self.send_next(who, TcpFlags::ACK, input.short()?, &[]),
            7 => self.send_false_ack(who, input)?,
            8 => self.send_any_segment(who, input)?,
            9 => self.send_next(who, TcpFlags::FIN.union(TcpFlags::ACK), u16::MAX, &[]),
            10 => self.reset(who, input)?,
            11 => self.send_packet_too_big(who, input)?,
            12 => {
                let up = [Event::Up, Event::Down][usize::from(input.byte()? % 2)];
                self.server.handle_event(self.now, up);
            }
            14 => self.send_client_hello(who, input)?,
            15 => self.send_record(who, input)?,
            _ => self.now += Duration::from_micros(1 << (input.byte()? % 28)),
        }
        Some(())
    }

    fn send_addressed(&mut self, input: &mut Input<'_>) -> Option<()> {
        let kind: &[u8] =
            [&[0x08, 0x00], &[0x08, 0x06], &[0x86, 0xdd]][usize::from(input.byte()?) % 3];
        let source = self.route(0).source_mac;
        self.send([&MAC.0, &source.0, kind, input.some()?].concat());
        Some(())
    }

    fn send_syn(&mut self, who: usize, input: &mut Input<'_>) -> Option<()> {
        let (wishes, window) = (input.byte()?, input.short()?);
        let peer = &mut self.peers[who];
        let place = input.short()?;
        peer.source_port = 1024 + place % 4;
        peer.is_secure = place & SECURE_BIT != 0;
        peer.next = u32::from(input.short()?) << 16 | 0xfff0;
        let wants = |bit: u8| wishes & bit != 0;
        let options = TcpOptions {
            mss: wants(1).then_some(window % 3000),
            window_scale: wants(2).then_some((wishes >> 4).min(14)),
            sack_permitted: wants(4),
            timestamps: wants(8).then_some(Timestamps { value: 7, echo: 0 }),
            ..TcpOptions::default()
        };
        self.segment(who, TcpFlags::SYN, window, options, &[]);
        let peer = &mut self.peers[who];
        peer.next = peer.next.wrapping_add(1);
        Some(())
    }

    fn ask(&mut self, who: usize, input: &mut Input<'_>, path: &str) -> Option<()> {
        let get = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let text = match input.byte()? % 7 {
            0 => get.clone() + &get,
            1 => get[..get.len() / 2].to_owned(),
            2 => format!("HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n"),
            3 => format!("GET {path} HTTP/1.1\r\nHost: h\r\nRange: bytes=1-9,20-,-3\r\n\r\n"),
            4 => format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
            5 => "GET /none HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
            _ => get,
        };
        self.send_next(
            who,
            TcpFlags::PSH.union(TcpFlags::ACK),
            u16::MAX,
            text.as_bytes(),
        );
        Some(())
    }

    /// A ClientHello, perhaps with one byte changed, perhaps truncated.
    fn send_client_hello(&mut self, who: usize, input: &mut Input<'_>) -> Option<()> {
        let mut hello = client_hello();
        let (place, flip, left) = (input.byte()?, input.byte()?, input.byte()?);
        if let Some(byte) = hello.get_mut(usize::from(place)) {
            *byte ^= flip;
        }
        hello.truncate(usize::from(left));
        self.send_next(who, TcpFlags::PSH.union(TcpFlags::ACK), u16::MAX, &hello);
        Some(())
    }

    /// A TLS record, whose length field may be wrong.
    fn send_record(&mut self, who: usize, input: &mut Input<'_>) -> Option<()> {
        let (kind, length) = (20 + input.byte()? % 6, input.delta()?);
        let content = input.some()?;
        let length = u32::try_from(content.len())
            .expect("invariant: a short content")
            .wrapping_add(length);
        let [_, _, high, low] = length.to_be_bytes();
        let record = [&[kind, 3, 3, high, low], content].concat();
        self.send_next(who, TcpFlags::PSH.union(TcpFlags::ACK), u16::MAX, &record);
        Some(())
    }

    fn send_false_ack(&mut self, who: usize, input: &mut Input<'_>) -> Option<()> {
        let (window, ack) = (input.short()?, input.delta()?);
        let mut sack = SackBlocks::default();
        for _ in 0..input.byte()? % 5 {
            let left = self.peers[who].rcv_nxt.wrapping_add(input.delta()?);
            sack.push(
                SeqNumber(left),
                SeqNumber(left.wrapping_add(input.delta()?)),
            );
        }
        let options = TcpOptions {
            sack,
            ..TcpOptions::default()
        };
        let rcv_nxt = self.peers[who].rcv_nxt;
        self.peers[who].rcv_nxt = rcv_nxt.wrapping_add(ack);
        self.segment(who, TcpFlags::ACK, window, options, &[]);
        self.peers[who].rcv_nxt = rcv_nxt;
        Some(())
    }

    fn send_any_segment(&mut self, who: usize, input: &mut Input<'_>) -> Option<()> {
        let (flags, window) = (TcpFlags(input.byte()? & 0x3f), input.short()?);
        let (next, rcv_nxt) = (input.delta()?, input.delta()?);
        let times = (input.byte()?, input.byte()?);
        let before = self.peers[who];
        self.peers[who].next = before.next.wrapping_add(next);
        self.peers[who].rcv_nxt = before.rcv_nxt.wrapping_add(rcv_nxt);
        let timestamps = (times.0 & 1 != 0).then(|| Timestamps {
            value: times.0.into(),
            echo: times.1.into(),
        });
        let options = TcpOptions {
            timestamps,
            ..TcpOptions::default()
        };
        self.segment(who, flags, window, options, input.some()?);
        self.peers[who] = before;
        Some(())
    }

    fn reset(&mut self, who: usize, input: &mut Input<'_>) -> Option<()> {
        let before = self.peers[who];
        self.peers[who].next = before.next.wrapping_add(input.delta()?);
        self.send_next(who, TcpFlags::RST, 0, &[]);
        self.peers[who] = before;
        Some(())
    }

    fn send_packet_too_big(&mut self, who: usize, input: &mut Input<'_>) -> Option<()> {
        let (mtu_bytes, place) = (input.short()?, usize::from(input.byte()?));
        let mut quoted = self.last_data.clone();
        if let Some(byte) = quoted.get_mut(place) {
            *byte ^= input.byte()?;
        }
        if let Some(frame) = crafted::packet_too_big(&self.route(who), &quoted, mtu_bytes) {
            self.send(frame);
        }
        Some(())
    }

    /// Sends the next segment in order, and advances SND.NXT.
    fn send_next(&mut self, who: usize, flags: TcpFlags, window: u16, payload: &[u8]) {
        self.segment(who, flags, window, TcpOptions::default(), payload);
        let fin = u32::from(flags.contains(TcpFlags::FIN));
        let sent = u32::try_from(payload.len()).expect("invariant: a short payload") + fin;
        let peer = &mut self.peers[who];
        peer.next = peer.next.wrapping_add(sent);
    }

    fn segment(
        &mut self,
        who: usize,
        flags: TcpFlags,
        window: u16,
        options: TcpOptions,
        payload: &[u8],
    ) {
        let peer = self.peers[who];
        let segment = TcpRepr {
            source_port: peer.source_port,
            destination_port: if peer.is_secure { SECURE_PORT } else { PORT },
            sequence: SeqNumber(peer.next),
            acknowledgment: SeqNumber(peer.rcv_nxt),
            flags,
            window,
            options,
        };
        self.send(crafted::tcp(&self.route(who), &segment, payload));
    }

    fn send(&mut self, frame: Vec<u8>) {
        self.port.send(self.now, frame);
    }

    fn route(&self, who: usize) -> Route {
        let number = self.peers[who].number;
        let (source, destination) = if number % 2 == 1 {
            let source = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 9, number.into());
            (source.into(), SERVER_V6.into())
        } else {
            (
                IpAddr::from(Ipv4Addr::new(10, 9, 9, number)),
                SERVER_V4.into(),
            )
        };
        let source_mac = MacAddress([2, 0, 0, 0, 9, number]);
        Route {
            source_mac,
            destination_mac: MAC,
            source,
            destination,
        }
    }

    /// Runs the server until it has nothing to do, and delivers what it sends.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "the server is busy for ever");
            let progressed = self.server.step(self.now);
            while let Some(frame) = self.port.receive(self.now) {
                self.handle_frame(frame);
            }
            if progressed {
                continue;
            }
            // Frames in flight arrive before the next action.
            match self.port.next_event() {
                Some(arrival) if arrival <= self.now + ON_THE_LINE => {
                    self.now = self.now.max(arrival);
                }
                _ => break,
            }
        }
        assert_eq!(self.server.failure(), None, "the server gave up");
    }

    fn handle_frame(&mut self, frame: Vec<u8>) {
        let Some(segment) = Segment::parse(&frame) else {
            return;
        };
        let number = usize::from(segment.destination_mac[5]);
        let Some(peer) = self.peers.get_mut(number) else {
            return;
        };
        if segment.destination.1 != peer.source_port || segment.is_reset {
            return;
        }
        if segment.is_syn || segment.sequence == peer.rcv_nxt {
            peer.rcv_nxt = segment.end();
        }
        if !segment.payload.is_empty() {
            self.last_data = frame;
        }
    }

    /// Lets time pass without actions until the server holds nothing.
    fn expect_quiet(&mut self) {
        let until = self.now + QUIET_AFTER;
        self.server.handle_event(self.now, Event::Up);
        self.settle();
        loop {
            let next = [self.server.poll_timeout(), self.port.next_event()];
            let Some(next) = next.into_iter().flatten().min() else {
                break;
            };
            assert!(next <= until, "not quiet: {:?}", self.server.resources());
            self.now = self.now.max(next);
            self.settle();
        }
        assert_eq!(
            self.server.resources().leak(),
            None,
            "resources are still held"
        );
        assert_eq!(
            self.server.held_objects(self.now),
            0,
            "objects are held without a connection"
        );
    }
}

/// A valid ClientHello (RFC 8446 s4.1.2): both versions, algorithms every server has.
fn client_hello() -> Vec<u8> {
    let extensions: [&[u8]; 4] = [
        // supported_versions
        &[0, 43, 0, 5, 4, 3, 4, 3, 3],
        // supported_groups: x25519
        &[0, 10, 0, 4, 0, 2, 0, 29],
        // signature_algorithms: Ed25519
        &[0, 13, 0, 4, 0, 2, 8, 7],
        // key_share: one of x25519
        &[[0, 51, 0, 38, 0, 36, 0, 29, 0, 32].as_slice(), &[9; 32]].concat(),
    ];
    let extensions = extensions.concat();
    let short = |bytes: usize| u8::try_from(bytes).expect("invariant: a short hello");
    // No session; AES-128-GCM of both versions; no compression.
    let suites = [0, 0, 4, 0x13, 0x01, 0xc0, 0x2b, 1, 0];
    let head = [&[3, 3], [7; 32].as_slice(), &suites].concat();
    let body = [&head[..], &[0, short(extensions.len())], &extensions].concat();
    let message = [&[1, 0, 0, short(body.len())], &body[..]].concat();
    [&[22, 3, 1, 0, short(message.len())], &message[..]].concat()
}

/// A seed corpus for the fuzzer: inputs that reach handshakes, replies and retransmissions.
#[must_use]
pub fn fuzz_seeds() -> Vec<Vec<u8>> {
    (0..4).flat_map(seeds_of).collect()
}

/// Seed inputs for the scenario of this first byte.
fn seeds_of(server: u8) -> Vec<Vec<u8>> {
    let send_syn = [2, 0, 0x75, 0xff, 0xff, 0, 1, 0, 9];
    let established = [&[server][..], &send_syn, &[3, 0]].concat();
    let tick = [13, 0, 16];
    let actions: [&[u8]; 9] = [
        &[4, 0, 6],
        &[4, 0, 3],
        &[9, 0],
        &[10, 0, 0, 0],
        &[6, 0, 0, 9],
        &[7, 0, 0xff, 0xff, 0, 0, 1, 0x20, 0, 0x08, 0],
        &[11, 0, 3, 0, 200, 0],
        &[14, 0, 0, 0, 255],
        &[15, 0, 3, 0, 0, 2, 1, 0],
    ];
    let mut seeds = vec![vec![server, 0, 0, 4, 1, 2, 3, 4], established.clone()];
    for first in actions {
        let asked = [&established[..], &[4, 0, 6], &tick, first, &tick].concat();
        seeds.push([&asked[..], &[6, 0, 0xff, 0xff], &tick, &[9, 0]].concat());
        seeds.push(asked);
    }
    let secure = [2, 0, 0x75, 0xff, 0xff, 0x80, 1, 0, 9];
    let greeted = [&[server][..], &secure, &[3, 0, 14, 0, 0, 0, 255], &tick].concat();
    let acknowledged = [&greeted[..], &[3, 0], &tick].concat();
    for first in actions {
        seeds.push([&acknowledged[..], first, &tick, &[9, 0]].concat());
    }
    seeds.push(greeted);
    seeds
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{act_all, fuzz_seeds, serve_fuzzed_peers};
    use crate::rng::Rng;

    #[test]
    fn the_client_hello_of_the_seeds_is_accepted() {
        let send_syn = [0, 2, 0, 0x75, 0xff, 0xff, 0x80, 1, 0, 9];
        let greeted = [
            &send_syn[..],
            &[3, 0, 14, 0, 0, 0, 255, 13, 0, 16, 3, 0, 13, 0, 16],
        ]
        .concat();
        let counters: BTreeMap<_, _> = act_all(&greeted).into_iter().collect();
        assert_eq!(counters["tls_handshake_records"], 1);
        // The server waits for a Finished that never arrives.
        assert_eq!(counters["tls_handshake_refused_count"], 0);
        assert_eq!(counters["tls_handshake_timeout_count"], 1);
    }

    #[test]
    fn fuzzed_peers_leave_nothing_allocated() {
        let seeds = fuzz_seeds();
        let mut rng = Rng::new(4, 4);
        let mut reached = BTreeMap::new();
        for seed in &seeds {
            for (name, value) in act_all(seed) {
                *reached.entry(name).or_insert(0) += value;
            }
            for _ in 0..10 {
                let mut input = seed.clone();
                for _ in 0..rng.range(0..=3) {
                    let other = &seeds[rng.size(0..=seeds.len() - 1)];
                    input.extend_from_slice(&other[1..]);
                }
                for _ in 0..rng.range(1..=8) {
                    let place = rng.size(0..=input.len() - 1);
                    input[place] = rng.bits().to_le_bytes()[0];
                }
                serve_fuzzed_peers(&input);
            }
        }
        // Otherwise mutations of the seeds would reach little of the server.
        for name in [
            "tcp_established_count",
            "http_reply_count",
            "tcp_finished_count",
            "tcp_reset_count",
            "tcp_timeout_count",
            "tcp_retransmit_segments",
            "tcp_packet_too_big_count",
            "tls_handshake_records",
            "tls_handshake_refused_count",
            "tls_handshake_timeout_count",
        ] {
            assert!(reached[name] > 0, "{name} was not moved: {reached:?}");
        }
    }
}
