//! The whole tool between network namespaces of the test's own.
//!
//! No test asserts that anything was quick: a frame may be late on a busy machine, but never early.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use testbed::namespace::Namespace;
use testbed::process::run;

use crate::ending::Ending;
use crate::flow::{Traffic, classify};
use crate::middlebox::{DropReason, Middlebox, VNET_HEADER_BYTES};
use crate::report::Report;
use crate::{DelayArgs, run_until};

/// How long an event may take before a test fails.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.3";

/// Network namespaces joined by veth pairs.
struct Lab {
    namespaces: Vec<Namespace>,
}

impl Lab {
    /// Makes the namespaces; `None`, with a line that says why, where that is not possible.
    fn new(count: usize) -> Option<Self> {
        match (0..count).map(|_| Namespace::new("delay")).collect() {
            Ok(namespaces) => Some(Self { namespaces }),
            Err(error) => {
                eprintln!("SKIPPED: no network namespace of our own ({error:#}); run as root");
                None
            }
        }
    }

    /// A client's namespace (0) and a server's (1), with a veth pair `c0` to `s0`, and what leaves
    /// `c0` redirected to `hold1`: the commands of `--help`.
    fn redirected() -> Option<Self> {
        let lab = Self::new(2)?;
        lab.join((0, "c0"), (1, "s0"));
        lab.ip(0, &format!("addr add {CLIENT}/24 dev c0"));
        lab.ip(1, &format!("addr add {SERVER}/24 dev s0"));
        lab.ip(0, "link add hold0 type veth peer name hold1");
        for interface in ["hold0", "hold1"] {
            lab.silence_ipv6(0, interface);
            lab.ip(0, &format!("link set {interface} arp off up"));
        }
        let name = lab.namespaces[0].name();
        for arguments in [
            "qdisc add dev c0 clsact",
            "filter add dev c0 egress protocol all u32 match u32 0 0 action mirred egress \
             redirect dev hold0",
        ] {
            let mut tc = Command::new("tc");
            tc.args(["-n", name]).args(arguments.split_whitespace());
            run(&mut tc).unwrap();
        }
        Some(lab)
    }

    /// A veth pair between two namespaces.
    fn join(&self, (near, one): (usize, &str), (far, other): (usize, &str)) {
        let far_name = self.namespaces[far].name();
        self.ip(
            near,
            &format!("link add {one} type veth peer name {other} netns {far_name}"),
        );
        for (namespace, interface) in [(near, one), (far, other)] {
            // Its solicitations would be counted among the test's own frames.
            self.silence_ipv6(namespace, interface);
            self.ip(namespace, &format!("link set {interface} up"));
        }
    }

    fn silence_ipv6(&self, namespace: usize, interface: &str) {
        let setting = format!("ipv6/conf/{interface}/disable_ipv6");
        self.namespaces[namespace].set(&setting, "1").unwrap();
    }

    fn ip(&self, namespace: usize, words: &str) {
        self.namespaces[namespace].ip(words).unwrap();
    }

    /// Starts `work` on a thread inside a namespace.
    fn start<T: Send + 'static>(
        &self,
        namespace: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.namespaces[namespace].spawn(work).unwrap()
    }

    /// Runs `work` inside a namespace.
    fn enter<T: Send + 'static>(
        &self,
        namespace: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.start(namespace, work).join().unwrap()
    }

    /// Starts the tool inside a namespace and waits until frames pass.
    fn start_tool(&self, namespace: usize, words: &str) -> Tool {
        let args = arguments(words);
        let ending = Ending::by_request().unwrap();
        let (ready, started) = mpsc::channel();
        let for_thread = ending.clone();
        let thread = self.start(namespace, move || {
            run_until(&args, &for_thread, |line| {
                ready.send(line.to_owned()).unwrap()
            })
        });
        let line = started.recv_timeout(EVENT_LIMIT).unwrap();
        assert!(line.starts_with("ready from="), "{line}");
        Tool { ending, thread }
    }
}

/// The tool, running.
struct Tool {
    ending: Ending,
    thread: JoinHandle<Result<(Report, Result<()>)>>,
}

impl Tool {
    /// Asks it to end; its report.
    fn end(self) -> Report {
        self.ending.request();
        let (report, outcome) = self.thread.join().unwrap().unwrap();
        outcome.unwrap();
        report
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    delay: DelayArgs,
}

fn arguments(words: &str) -> DelayArgs {
    Cli::try_parse_from(["delay"].into_iter().chain(words.split_whitespace()))
        .unwrap()
        .delay
}

/// The virtio-net header and frame of a datagram from a port of the client to the server's 5000.
fn datagram(port: u16) -> Vec<u8> {
    let mut packet = vec![0; VNET_HEADER_BYTES + 12];
    packet.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend([10, 77, 0, 3, 10, 77, 0, 1]);
    packet.extend(port.to_be_bytes());
    packet.extend(5000_u16.to_be_bytes());
    packet
}

/// What the tool should hold datagrams from this port for.
fn delay_of(args: &DelayArgs, port: u16) -> Duration {
    match classify(&datagram(port)[VNET_HEADER_BYTES..]) {
        Traffic::Flow(flow) => Middlebox::new(args.config()).delay_of(&flow),
        Traffic::AtOnce => panic!("a datagram without a flow"),
    }
}

fn udp(address: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((address, port)).unwrap();
    socket.set_read_timeout(Some(EVENT_LIMIT)).unwrap();
    socket
}

/// Sends back what arrives, until an empty datagram does.
fn start_echo(lab: &Lab, namespace: usize) -> JoinHandle<()> {
    let (ready, started) = mpsc::channel();
    let thread = lab.start(namespace, move || {
        let socket = udp(SERVER, 5000);
        ready.send(()).unwrap();
        let mut bytes = [0; 100];
        loop {
            let (length, peer) = socket.recv_from(&mut bytes).unwrap();
            if length == 0 {
                return;
            }
            socket.send_to(&bytes[..length], peer).unwrap();
        }
    });
    started.recv_timeout(EVENT_LIMIT).unwrap();
    thread
}

#[test]
fn every_flow_is_held_for_its_own_time_and_in_order() {
    const FLOWS: u16 = 12;
    const EACH: u32 = 5;
    let Some(lab) = Lab::redirected() else {
        return;
    };
    let words = "--from hold1 --to c0 --bands 5-20/5 --seed 42";
    let args = arguments(words);
    let tool = lab.start_tool(0, words);
    let echo = start_echo(&lab, 1);
    let round_trips = lab.enter(0, || {
        let server: SocketAddr = (SERVER.parse::<std::net::IpAddr>().unwrap(), 5000).into();
        let mut round_trips = BTreeMap::new();
        for port in 40_000..40_000 + FLOWS {
            let socket = udp(CLIENT, port);
            let begun = Instant::now();
            for number in 1..=EACH {
                socket.send_to(&number.to_be_bytes(), server).unwrap();
            }
            for number in 1..=EACH {
                let mut bytes = [0; 4];
                socket.recv(&mut bytes).unwrap();
                assert_eq!(u32::from_be_bytes(bytes), number, "port {port}");
            }
            round_trips.insert(port, begun.elapsed());
        }
        udp(CLIENT, 39_999).send_to(&[], server).unwrap();
        round_trips
    });
    echo.join().unwrap();
    let way = tool.end().forward;
    for (port, round_trip) in round_trips {
        let delay = delay_of(&args, port);
        assert!(
            round_trip >= delay,
            "port {port}: {round_trip:?} of {delay:?}"
        );
    }
    let frames = u64::from(FLOWS) * u64::from(EACH) + 1;
    assert_eq!(
        way.bands.iter().map(|band| band.frames).sum::<u64>(),
        frames
    );
    assert!(way.bands.iter().filter(|band| band.frames > 0).count() > 1);
    assert_eq!(
        way.lateness
            .steps
            .iter()
            .map(|step| step.frames)
            .sum::<u64>(),
        frames
    );
    // ARP passed besides, or no datagram would have.
    assert_eq!(way.sent_frames, frames + way.at_once_frames);
    assert!(way.at_once_frames > 0);
    assert_eq!(way.dropped, crate::report::Dropped::default());
    assert_eq!((way.missed_frames, way.receive_errors), (0, 0));
}

#[test]
fn losses_on_the_link_are_those_of_the_seed() {
    // Few enough that those not lost fit the server's receive buffer, however late it looks.
    const FRAMES: u64 = 150;
    let Some(lab) = Lab::redirected() else {
        return;
    };
    // Known before, or the first frames would wait for ARP in a queue that has a limit as well.
    lab.ip(1, "link set s0 address 02:00:00:00:00:01");
    lab.ip(
        0,
        &format!("neigh replace {SERVER} lladdr 02:00:00:00:00:01 dev c0 nud permanent"),
    );
    let words = "--from hold1 --to c0 --bands 1 --seed 3 --loss 200";
    let mut twin = Middlebox::new(arguments(words).config());
    for _ in 0..FRAMES {
        let _ = twin.handle_frame(clock::Instant::ZERO, &datagram(40_000));
    }
    let lost = twin.counters().dropped[DropReason::Loss as usize];
    assert!((10..60).contains(&lost), "{lost} of {FRAMES}");
    let tool = lab.start_tool(0, words);
    let (ready, started) = mpsc::channel();
    let server = lab.start(1, move || {
        let socket = udp(SERVER, 5000);
        ready.send(()).unwrap();
        for _ in 0..FRAMES - lost {
            socket.recv(&mut [0; 8]).unwrap();
        }
    });
    started.recv_timeout(EVENT_LIMIT).unwrap();
    lab.enter(0, || {
        let socket = udp(CLIENT, 40_000);
        for _ in 0..FRAMES {
            socket.send_to(&[1; 8], (SERVER, 5000)).unwrap();
        }
    });
    server.join().unwrap();
    let way = tool.end().forward;
    assert_eq!(way.dropped.loss, lost);
    assert_eq!(way.sent_frames, FRAMES - lost + way.at_once_frames);
}

/// Large frames and unfinished checksums come through whole: the server's kernel would drop what
/// does not add up, and the upload would stall.
#[test]
fn an_upload_comes_through_with_its_offloads() {
    const BYTES: usize = 16 << 20;
    let Some(lab) = Lab::redirected() else {
        return;
    };
    let tool = lab.start_tool(0, "--from hold1 --to c0 --bands 1");
    let (ready, started) = mpsc::channel();
    let server = lab.start(1, move || {
        let listener = TcpListener::bind((SERVER, 5000)).unwrap();
        ready.send(()).unwrap();
        let (mut connection, _) = listener.accept().unwrap();
        connection.set_read_timeout(Some(EVENT_LIMIT)).unwrap();
        let mut received = Vec::new();
        connection.read_to_end(&mut received).unwrap();
        received
    });
    started.recv_timeout(EVENT_LIMIT).unwrap();
    let content = |index: usize| u8::try_from(index * 31 % 251).unwrap();
    lab.enter(0, move || {
        let bytes: Vec<u8> = (0..BYTES).map(content).collect();
        TcpStream::connect((SERVER, 5000))
            .unwrap()
            .write_all(&bytes)
            .unwrap();
    });
    let received = server.join().unwrap();
    assert_eq!(received.len(), BYTES);
    assert!(
        received
            .iter()
            .enumerate()
            .all(|(index, byte)| *byte == content(index))
    );
    let way = tool.end().forward;
    let segments = u64::try_from(BYTES / 1_448).unwrap();
    assert!(
        way.received_frames < segments / 2,
        "{} frames",
        way.received_frames
    );
    assert_eq!(
        (way.dropped.refused, way.dropped.failed, way.dropped.size),
        (0, 0, 0)
    );
}

#[test]
fn both_ways_between_two_links() {
    let Some(lab) = Lab::new(3) else { return };
    lab.join((0, "c0"), (2, "in0"));
    lab.join((1, "s0"), (2, "out0"));
    lab.ip(0, &format!("addr add {CLIENT}/24 dev c0"));
    lab.ip(1, &format!("addr add {SERVER}/24 dev s0"));
    let tool = lab.start_tool(2, "--from in0 --to out0 --bands 15 --both-ways");
    let echo = start_echo(&lab, 1);
    let round_trip = lab.enter(0, || {
        let socket = udp(CLIENT, 40_000);
        let begun = Instant::now();
        socket.send_to(b"x", (SERVER, 5000)).unwrap();
        socket.recv(&mut [0; 1]).unwrap();
        let round_trip = begun.elapsed();
        socket.send_to(&[], (SERVER, 5000)).unwrap();
        round_trip
    });
    echo.join().unwrap();
    let report = tool.end();
    assert!(round_trip >= Duration::from_millis(15), "{round_trip:?}");
    let backward = report.backward.unwrap();
    assert_eq!(
        (report.forward.bands[0].frames, backward.bands[0].frames),
        (2, 1)
    );
    assert_eq!(
        (backward.from.as_str(), backward.bands[0].delay_ms),
        ("out0", 0.0)
    );
}

#[test]
fn an_interface_that_vanishes_ends_the_run_with_its_name_and_a_report() {
    for gone in ["hold1", "c0"] {
        let Some(lab) = Lab::redirected() else {
            return;
        };
        let tool = lab.start_tool(0, "--from hold1 --to c0 --bands 1");
        lab.ip(0, &format!("link del {gone}"));
        if gone == "c0" {
            // A sender notices when it sends.
            lab.ip(0, "addr add 10.78.0.1/24 dev hold0");
            let send = || udp("10.78.0.1", 40_000).send_to(b"x", ("10.78.0.2", 5000));
            lab.enter(0, send).unwrap();
        }
        let (report, outcome) = tool.thread.join().unwrap().unwrap();
        let error = outcome.unwrap_err().to_string();
        assert_eq!(error, format!("the interface {gone:?} was removed"));
        assert!(report.seconds > 0.0);
    }
}

#[test]
fn an_interface_that_is_down_for_a_while_is_waited_for() {
    let Some(lab) = Lab::redirected() else {
        return;
    };
    let tool = lab.start_tool(0, "--from hold1 --to c0 --bands 1");
    lab.ip(0, "link set hold1 down");
    lab.ip(0, "link set hold1 up");
    let echo = start_echo(&lab, 1);
    lab.enter(0, || {
        let socket = udp(CLIENT, 40_000);
        socket.send_to(b"x", (SERVER, 5000)).unwrap();
        socket.recv(&mut [0; 1]).unwrap();
        socket.send_to(&[], (SERVER, 5000)).unwrap();
    });
    echo.join().unwrap();
    let way = tool.end().forward;
    assert_eq!((way.bands[0].frames, way.receive_errors), (2, 1));
}

#[test]
fn a_run_that_cannot_begin_says_why() {
    let Some(lab) = Lab::new(1) else { return };
    lab.ip(0, "link add in0 type veth peer name out0");
    lab.ip(0, "tuntap add tun0 mode tun");
    let refusal = |words: &str| {
        let args = arguments(words);
        lab.enter(0, move || {
            let ending = Ending::by_request().unwrap();
            let error = run_until(&args, &ending, |_| panic!("it began")).unwrap_err();
            format!("{error:#}")
        })
    };
    for (words, reason) in [
        ("--from in0 --to in0", "both \"in0\""),
        ("--from x --to in0", "--from: there is no interface \"x\""),
        (
            "--from in0 --to out0",
            "--from: \"in0\" is down; `ip link set in0 up`",
        ),
        (
            "--from tun0 --to out0",
            "--from: \"tun0\" does not carry Ethernet frames",
        ),
    ] {
        let text = refusal(words);
        assert!(text.contains(reason), "{words}: {text}");
    }
    lab.ip(0, "link set in0 up");
    assert!(refusal("--from in0 --to out0").contains("--to: \"out0\" is down"));
}

#[test]
fn flags_are_refused_outside_their_limits() {
    let base = ["delay", "--from", "a", "--to", "b"];
    for (flag, good, bad) in [
        ("--loss", "1000", "1001"),
        ("--reorder", "1000", "1001"),
        ("--reorder-by", "1", "0"),
        ("--band-mib", "1024", "1025"),
        ("--round-us", "10000", "10001"),
        ("--round-us", "1", "0"),
        ("--bands", "10-40/2", "40-10"),
    ] {
        let parse = |value| Cli::try_parse_from(base.into_iter().chain([flag, value]));
        assert!(parse(good).is_ok(), "{flag} {good}");
        assert!(parse(bad).is_err(), "{flag} {bad}");
    }
}

#[test]
fn a_run_ends_by_its_time() {
    let Some(lab) = Lab::redirected() else {
        return;
    };
    let tool = lab.start_tool(0, "--from hold1 --to c0 --seconds 1");
    let (report, outcome) = tool.thread.join().unwrap().unwrap();
    outcome.unwrap();
    assert!(report.seconds >= 1.0, "{}", report.seconds);
    let json: serde_json::Value =
        serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(json["forward"]["bands"].as_array().unwrap().len(), 31);
    assert!(json.get("backward").is_none());
    assert!(report.to_string().contains("hold1 -> c0"));
}
