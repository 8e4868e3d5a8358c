//! More handshakes than a busy worker can complete: real clients, real worker, virtual time.
//!
//! A round takes [`ROUND`], as with streams at full speed, plus the cost of its handshakes by
//! constants of this file, independent of the worker's own estimates.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::sync::Arc;

use clock::{Duration, Instant};
use diskmap::sim::SimDisk;
use link::Link as _;
use link::sim::{PathConfig, SimConfig as LinkConfig, SimLink, SimPort};
use rustls::ClientConfig;
use rustls::client::{ClientConnection, Resumption};
use rustls::version::TLS13;
use wire::{
    ChecksumState, HEADERS_BYTES_MAX, Incoming, Route, SeqNumber, TcpChecksum, TcpFlags,
    TcpOptions, TcpRepr,
};

use crate::Worker;
use crate::testing::{CLIENT, CLIENT_MAC, HTTPS_PORT, SERVER, Setup, arena, conductor, store};
use crate::tls::Handshaker;
use crate::tls::tests::{NAME, client_of, config, connect};

/// Everything else in a round under full load: some 120 frames of 64 KiB.
const ROUND: Duration = Duration::from_micros(2_500);
/// Answering a hello with an ECDSA key.
const HELLO: Duration = Duration::from_micros(80);
/// Checking a Finished, and making tickets.
const FINISHED: Duration = Duration::from_micros(25);
/// Each way.
const DELAY: Duration = Duration::from_millis(10);
/// After which a SYN is sent again, once (RFC 6298 s2).
const SYN_AGAIN: Duration = Duration::from_secs(1);
/// From here on completed handshakes count.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long they count.
const WINDOW: Duration = Duration::from_secs(1);
/// Connections at once.
const CONNECTIONS_MAX: usize = 40_000;

/// A client that wants a handshake and nothing else.
struct Client {
    /// `None` before its SYN is answered.
    tls: Option<ClientConnection>,
    next: SeqNumber,
    expected: SeqNumber,
}

struct Crowd {
    worker: Worker<SimLink, SimDisk>,
    port: SimPort,
    now: Instant,
    config: Arc<ClientConfig>,
    /// By their ports.
    clients: BTreeMap<u16, Client>,
    next_port: u16,
    /// When which SYN is sent again.
    again: BinaryHeap<Reverse<(Instant, u16)>>,
    /// Time that handshakes took.
    spent: Duration,
}

/// What came of an offered load.
#[derive(Debug)]
struct Outcome {
    completed_per_second: f64,
    /// Part of the time that handshakes took, 0 to 1.
    share: f64,
}

impl Crowd {
    fn new() -> Self {
        let path = PathConfig {
            delay: DELAY,
            ..PathConfig::default()
        };
        let link = LinkConfig {
            to_port: path,
            to_link: path,
            ..LinkConfig::default()
        };
        let (link, port) = link::sim::pair(link, 1);
        let setup = Setup::default();
        let conductor = conductor(
            link.capabilities(),
            CONNECTIONS_MAX,
            crate::testing::SLOTS as usize,
        );
        let tls = Some(Handshaker::new(config(), CONNECTIONS_MAX));
        let disk = SimDisk::new(setup.disk);
        let worker = Worker::new(link, disk, store(&setup), conductor, arena(), tls);
        let mut config = (*client_of(&TLS13)).clone();
        config.resumption = Resumption::disabled();
        Self {
            worker,
            port,
            now: Instant::from_millis(1),
            config: Arc::new(config),
            clients: BTreeMap::new(),
            next_port: 1_024,
            again: BinaryHeap::new(),
            spent: Duration::ZERO,
        }
    }

    /// Handshakes offered at that rate, whatever becomes of them.
    fn offer(mut self, per_second: u32) -> Outcome {
        let begin = self.now;
        let apart = Duration::from_secs(1) / per_second;
        let mut arrival = begin;
        let mut at_begin = None;
        while self.now < begin + WARM_UP + WINDOW {
            if at_begin.is_none() && self.now >= begin + WARM_UP {
                at_begin = Some((self.now, self.completed(), self.spent));
            }
            while arrival <= self.now {
                self.begin_client();
                arrival += apart;
            }
            self.round();
        }
        let (since, completed, spent) = at_begin.expect("the window began");
        let seconds = self.now.since(since).as_secs_f64();
        let completed = u32::try_from(self.completed() - completed).unwrap();
        Outcome {
            completed_per_second: f64::from(completed) / seconds,
            share: (self.spent - spent).as_secs_f64() / seconds,
        }
    }

    fn begin_client(&mut self) {
        let client = Client {
            tls: None,
            next: SeqNumber(1_000),
            expected: SeqNumber(0),
        };
        let port = self.next_port;
        self.next_port += 1;
        self.clients.insert(port, client);
        self.send_syn(port);
        self.again.push(Reverse((self.now + SYN_AGAIN, port)));
    }

    fn send_syn(&mut self, port: u16) {
        let options = TcpOptions {
            mss: Some(1_460),
            window_scale: Some(4),
            ..TcpOptions::default()
        };
        self.send(port, SeqNumber(999), TcpFlags::SYN, options, b"");
    }

    fn round(&mut self) {
        while let Some(Reverse((at, port))) = self.again.peek().copied()
            && at <= self.now
        {
            self.again.pop();
            if self
                .clients
                .get(&port)
                .is_some_and(|client| client.tls.is_none())
            {
                self.send_syn(port);
            }
        }
        let completed = self.completed();
        self.worker.step(self.now).unwrap();
        let finished = u32::try_from(self.completed() - completed).unwrap();
        let cost = HELLO * self.receive() + FINISHED * finished;
        self.spent += cost;
        self.now += ROUND + cost;
    }

    /// Takes what arrived; says how many hellos it answers.
    fn receive(&mut self) -> u32 {
        let mut flights = 0;
        while let Some(frame) = self.port.receive(self.now) {
            let incoming = wire::parse_frame(&frame, ChecksumState::Trusted);
            if let Ok(Incoming::Tcp {
                segment,
                payload: text,
                ..
            }) = incoming
            {
                flights += u32::from(self.receive_segment(&segment, text));
            }
        }
        flights
    }

    /// Says whether a hello is answered by it.
    fn receive_segment(&mut self, segment: &TcpRepr, text: &[u8]) -> bool {
        let port = segment.destination_port;
        let Some(client) = self.clients.get_mut(&port) else {
            return false;
        };
        if segment.flags.contains(TcpFlags::RST) {
            self.clients.remove(&port);
            return false;
        }
        if segment.flags.contains(TcpFlags::SYN) {
            if client.tls.is_none() {
                client.expected = segment.sequence.wrapping_add(1);
                client.tls = Some(connect(&self.config, NAME));
                self.say(port);
            }
            return false;
        }
        if segment.sequence != client.expected || text.is_empty() {
            return false;
        }
        let bytes = u32::try_from(text.len()).unwrap();
        client.expected = client.expected.wrapping_add(bytes);
        let tls = client.tls.as_mut().expect("it is connected");
        let is_flight = tls.is_handshaking();
        let mut rest = text;
        while !rest.is_empty() {
            tls.read_tls(&mut rest).unwrap();
            tls.process_new_packets().unwrap();
        }
        if is_flight {
            self.say(port);
        } else {
            // The tickets: it is done, and goes.
            let (next, options) = (client.next, TcpOptions::default());
            self.send(port, next, TcpFlags::RST, options, b"");
            self.clients.remove(&port);
        }
        is_flight
    }

    /// Sends what the client has to say.
    fn say(&mut self, port: u16) {
        let client = self.clients.get_mut(&port).expect("it is there");
        let (next, mut text) = (client.next, Vec::new());
        let tls = client.tls.as_mut().expect("it is connected");
        while tls.wants_write() {
            tls.write_tls(&mut text).unwrap();
        }
        client.next = next.wrapping_add(u32::try_from(text.len()).unwrap());
        assert!(text.len() <= 1_460, "one segment");
        self.send(port, next, TcpFlags::ACK, TcpOptions::default(), &text);
    }

    fn send(
        &mut self,
        port: u16,
        sequence: SeqNumber,
        flags: TcpFlags,
        options: TcpOptions,
        text: &[u8],
    ) {
        let client = self.clients.get(&port);
        let segment = TcpRepr {
            source_port: port,
            destination_port: HTTPS_PORT,
            sequence,
            acknowledgment: client.map_or(SeqNumber(0), |client| client.expected),
            flags,
            window: u16::MAX,
            options,
        };
        let route = Route {
            source_mac: CLIENT_MAC,
            destination_mac: LinkConfig::default().mac,
            source: IpAddr::V4(CLIENT),
            destination: IpAddr::V4(SERVER),
        };
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let length = wire::emit_tcp(&mut buffer, &route, &segment, &[text], TcpChecksum::Full, 0);
        self.port.send(self.now, [&buffer[..length], text].concat());
    }

    fn completed(&self) -> u64 {
        self.worker.conductor().counters().tls_handshake_count
    }
}

/// Handshakes a second that a quarter of the core is enough for:
/// 0.25 / (80 us + 25 us), and what the worker charges more than they cost.
const PLATEAU: f64 = 2_000.0;

#[test]
fn ten_times_the_handshake_capacity_still_completes_handshakes() {
    let outcomes = [500, 2_000, 4_000, 20_000].map(|offered| Crowd::new().offer(offered));
    println!("{outcomes:?}");
    let completed = outcomes
        .each_ref()
        .map(|outcome| outcome.completed_per_second);
    assert!(completed[0] > 490.0, "what is little is done: {outcomes:?}");
    let best = completed.into_iter().fold(0.0, f64::max);
    assert!(best > PLATEAU, "{outcomes:?}");
    assert!(completed[3] > 0.8 * best, "it collapses: {outcomes:?}");
    for outcome in &outcomes {
        assert!(
            outcome.share < 0.27,
            "streams keep three quarters: {outcome:?}"
        );
    }
}
