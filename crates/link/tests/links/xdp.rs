//! AF_XDP sockets on a veth pair beside the kernel's own stack, each test in its own network
//! namespace with a peer in another.
#![allow(
    clippy::print_stdout,
    reason = "a process tells its parent that it is ready"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

use crate::common::{
    Peer, QueueHolder, RawSocket, become_nobody, connect, connect_queues, eventually, in_namespace,
    ip, is_large, is_ready, keep_capabilities, kernels_talk, receive_until, receive_until_gone,
    run, send, send_at, send_large, talk,
};
use clock::{Duration, Instant};
use link::xdp::{CELLS_MIN, MTU_BYTES_MAX};
use link::{
    AttachMode, Checksums, CopyReason, FramePath, Link, LinkError, MacChoice, Packet, PacketConfig,
    ProgramPlace, REFUSED_FOR_MAX, Received, SetupError, TransmitError, Xdp, XdpConfig, ZeroCopy,
    interface_mac,
};
use wire::{ChecksumState, Incoming, MacAddress, parse_frame};

const V4: &str = "10.77.0.9";
const V6: &str = "fd77::9";
/// The address of the host's that is shared, and our port there.
const HOST: &str = "10.77.0.1";
const HOST_V6: &str = "fd77::1";
const PORT: u16 = 8_080;

const MODES: [AttachMode; 2] = [AttachMode::Driver, AttachMode::Generic];

fn usual() -> XdpConfig {
    XdpConfig::new("v0", &[V4.parse().unwrap(), V6.parse().unwrap()])
}

fn shared() -> XdpConfig {
    let addresses = [HOST.parse().unwrap(), HOST_V6.parse().unwrap()];
    XdpConfig::shared("v0", &addresses, &[PORT])
}

/// Few cells, so that the rings wrap soon.
fn small() -> XdpConfig {
    XdpConfig {
        receive_cells: CELLS_MIN,
        transmit_cells: CELLS_MIN,
        ..usual()
    }
}

/// The only link of an interface with one queue.
fn open(config: &XdpConfig) -> Xdp {
    let mut links = Vec::new();
    // A process that another test forks holds a program that we have just let go of until it execs.
    eventually(|| match Xdp::open_queues(config) {
        Err(SetupError::ProgramAttached { .. }) => false,
        opened => {
            links = opened.unwrap();
            true
        }
    });
    assert_eq!(links.len(), 1);
    links.remove(0)
}

fn refusal(config: &XdpConfig) -> SetupError {
    Xdp::open_queues(config).unwrap_err()
}

/// Runs `test` in a new network namespace, or says why it cannot.
fn with_xdp(test: impl FnOnce() + Send + 'static) {
    in_namespace(|| {
        ip("link add try0 type veth peer name try1");
        let config = XdpConfig {
            interface: "try0".to_owned(),
            ..small()
        };
        match Xdp::open_queues(&config) {
            Err(error @ (SetupError::NoXdp | SetupError::NotPermitted { .. })) => {
                eprintln!("SKIPPED: {error}");
            }
            opened => {
                drop(opened.unwrap());
                ip("link delete try0");
                test();
            }
        }
    });
}

/// Whether an XDP program is attached to the interface.
fn has_program(interface: &str) -> bool {
    let output = Command::new("ip")
        .args(["link", "show", "dev", interface])
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().contains("xdp")
}

/// A UDP frame to one of our addresses, of `bytes` bytes that differ by `number`.
fn numbered(mac: MacAddress, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = mac.0.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0x99, 0x08, 0x00, 0x45, 0]);
    frame.extend(u16::try_from(bytes - 14).unwrap().to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 9]);
    frame.extend(number.to_be_bytes());
    let filler = |n: usize| u8::try_from((n + number as usize) % 251).unwrap();
    frame.extend((frame.len()..bytes).map(filler));
    frame
}

/// How long the frame with this number is: from 60 bytes to the largest.
fn length_of(number: u32) -> usize {
    60 + (number as usize * 97) % (1_514 - 60 + 1)
}

fn is_numbered(frame: &[u8]) -> bool {
    frame.get(23) == Some(&17) && frame.get(26..30) == Some(&[10, 77, 0, 2])
}

#[test]
fn a_neighbour_s_stack_talks_to_us_and_to_the_kernel_beside_us() {
    with_xdp(|| {
        let peer = connect();
        for attach in MODES {
            let mut link = open(&XdpConfig { attach, ..usual() });
            assert_eq!(link.is_in_driver(), attach == AttachMode::Driver);
            assert!(!link.is_zero_copy(), "not on a veth");
            let program = match attach {
                AttachMode::Generic => ProgramPlace::Generic,
                _ => ProgramPlace::Driver,
            };
            let path = FramePath {
                program: Some(program),
                is_zero_copy: false,
                checksums: Checksums::Software,
            };
            assert_eq!(link.frame_path(), path);
            assert_eq!((link.interface(), link.queue_index()), ("v0", 0));
            kernels_talk(&peer);
            let nothing = link.receive(Instant::ZERO, 64, &mut |_| ());
            assert_eq!(nothing, Ok(0), "not ours to see");
            talk(&mut link, &peer, "10.77.0.2", V4);
            talk(&mut link, &peer, "fd77::2", V6);
            kernels_talk(&peer);
            assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
            let counters = link.counters();
            assert!(counters.transmitted_frames >= 2);
            assert_eq!((counters.lost_frames, counters.full_frames), (0, 0));
            assert_eq!((counters.receive_errors, counters.overflow_frames), (0, 0));
        }
    });
}

#[test]
fn a_neighbour_s_stack_talks_to_us_at_the_interface_s_mac_or_a_given_one() {
    with_xdp(|| {
        let peer = connect();
        let given = MacAddress([0x02, 7, 7, 7, 7, 7]);
        for (choice, expected) in [
            (MacChoice::Interface, interface_mac("v0").unwrap().unwrap()),
            (MacChoice::Given(given), given),
        ] {
            let config = XdpConfig {
                address_use: link::AddressUse::Own { mac: choice },
                ..usual()
            };
            let mut link = open(&config);
            assert_eq!(link.capabilities().mac, expected);
            peer.run(|| ip("neighbor flush dev v1"));
            talk(&mut link, &peer, "10.77.0.2", V4);
            talk(&mut link, &peer, "fd77::2", V6);
        }
        let own = open(&usual()).capabilities().mac;
        let addresses = usual().addresses;
        let packet = Packet::open(&PacketConfig::new("v0", &addresses)).unwrap();
        assert_eq!(own, packet.capabilities().mac, "neighbours need not learn");
    });
}

#[test]
fn a_local_sender_s_unfinished_checksum_is_trusted_and_others_are_not() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&usual());
        let mac = link.capabilities().mac;
        peer.run(move || {
            let [a, b, c, d, e, f] = mac.0;
            let mac = format!("{a:x}:{b:x}:{c:x}:{d:x}:{e:x}:{f:x}");
            ip(&format!("neighbor add {V4} lladdr {mac} dev v1"));
            let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
            socket.send_to(b"unfinished", (V4, 7)).unwrap();
            RawSocket::open("v1").send(&numbered(mac_of(&mac), 1, 60));
        });
        let mut states = Vec::new();
        receive_until(&mut link, |received| {
            states.extend(is_numbered(received.frame).then_some(received.checksum));
            (states.len() == 2).then_some(())
        });
        assert_eq!(states, [ChecksumState::Trusted, ChecksumState::Unverified]);
    });
}

fn mac_of(text: &str) -> MacAddress {
    let mut bytes = [0; 6];
    for (byte, digits) in bytes.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(digits, 16).unwrap();
    }
    MacAddress(bytes)
}

/// Sends and receives `count` frames through the fewest cells.
fn pass_frames(attach: AttachMode, count: u32) {
    let peer = connect();
    let mut link = open(&XdpConfig { attach, ..small() });
    let mac = link.capabilities().mac;
    let mut socket = peer.run(|| RawSocket::open("v1"));
    // No more at once than there are cells.
    let batch = CELLS_MIN / 2;
    for first in (0..count).step_by(batch as usize) {
        let numbers = first..first + batch;
        for number in numbers.clone() {
            socket.send(&numbered(mac, number, length_of(number)));
        }
        let mut expected = numbers.clone();
        receive_until(&mut link, |received| {
            let number = expected.next().unwrap();
            assert_eq!(received.frame, numbered(mac, number, length_of(number)));
            expected.is_empty().then_some(())
        });
        for number in numbers.clone() {
            let frame = numbered(MacAddress([4; 6]), number, length_of(number));
            send(&mut link, &frame).unwrap();
        }
        for number in numbers {
            let (_, frame) = socket.receive(is_numbered);
            assert_eq!(
                frame,
                numbered(MacAddress([4; 6]), number, length_of(number))
            );
        }
    }
    let counters = link.counters();
    let frames = u64::from(count.next_multiple_of(batch));
    assert_eq!(counters.received_frames, frames);
    assert_eq!(counters.transmitted_frames, frames);
    assert_eq!((counters.overflow_frames, counters.lost_frames), (0, 0));
    let statistics = link.statistics();
    assert_eq!(statistics.receive_invalid_descriptors, 0);
    assert_eq!(statistics.transmit_invalid_descriptors, 0);
    assert_eq!(
        statistics.fill_ring_empty_events, 0,
        "the fill ring is kept full"
    );
    assert_eq!(counters.received_cells, frames);
    assert_eq!(counters.accepted_cells, frames, "the kernel keeps none");
    assert_eq!(counters.offered_cells, frames + u64::from(CELLS_MIN));
}

#[test]
fn thousands_of_frames_pass_small_rings_unchanged_in_the_driver() {
    with_xdp(|| pass_frames(AttachMode::Driver, 5_000));
}

#[test]
fn thousands_of_frames_pass_small_rings_unchanged_behind_the_driver() {
    with_xdp(|| pass_frames(AttachMode::Generic, 5_000));
}

#[test]
fn cells_come_back_early_and_the_one_freed_last_is_used_first() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&usual());
        let mut socket = peer.run(|| RawSocket::open("v1"));
        for number in 0..1_000 {
            let frame = numbered(MacAddress([4; 6]), number, 60);
            send(&mut link, &frame).unwrap();
            socket.receive(is_numbered);
            assert!(link.in_flight_cells() <= 2, "those before are back");
        }
    });
}

#[test]
fn a_large_segment_is_cut_into_frames_with_good_checksums() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&usual());
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let capabilities = link.capabilities();
        // What a packet socket takes, which sends once another process has taken over. There are cells for more.
        assert_eq!(capabilities.segmentation_bytes_max, 65_521);
        assert!(capabilities.checksum_offload);
        for packet_bytes in [1_500, 1_501, 40 + 1_448 * 2, 65_535] {
            send_large(&mut link, MacAddress([2; 6]), packet_bytes).unwrap();
            let mut received = 0;
            while received < packet_bytes - 40 {
                let (_, frame) = socket.receive(is_large);
                assert!(frame.len() <= 1_514);
                let parsed = parse_frame(&frame, ChecksumState::Unverified).unwrap();
                let Incoming::Tcp {
                    segment, payload, ..
                } = parsed
                else {
                    panic!("not TCP");
                };
                assert_eq!(segment.sequence.0 as usize, received);
                for byte in payload {
                    assert_eq!(usize::from(*byte), received % 251);
                    received += 1;
                }
            }
            assert_eq!(received, packet_bytes - 40);
        }
        let counters = link.counters();
        assert_eq!((counters.transmitted_frames, counters.lost_frames), (4, 0));
    });
}

#[test]
fn a_frame_too_large_is_lost_whole() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&small());
        // Frames of 1,448 bytes: 64 cells hold them all, but not a byte beyond what is promised.
        assert_eq!(link.capabilities().segmentation_bytes_max, 32_768);
        let lost = Err(TransmitError::Lost(libc::EMSGSIZE));
        assert!(send_large(&mut link, MacAddress([2; 6]), 65_535).is_ok());
        assert!(send(&mut link, &[0; 1_514]).is_ok());
        assert_eq!(send(&mut link, &[0; 1_515]), lost);
        assert_eq!(link.counters().lost_frames, 1);
        ip("link set v0 mtu 3000");
        peer.run(|| ip("link set v1 mtu 3000"));
        let mut watch = link::InterfaceWatch::open("v0").unwrap();
        assert_eq!(watch.take_change(), Ok(None));
        assert_eq!(link.apply_interface_state(&watch.state()).mtu_bytes, 3_000);
        assert!(send(&mut link, &[0; 3_014]).is_ok());
        assert_eq!(send(&mut link, &[0; 3_015]), lost);
        let state = link::InterfaceState {
            mtu_bytes: 9_000,
            ..watch.state()
        };
        let capabilities = link.apply_interface_state(&state);
        assert_eq!(capabilities.mtu_bytes, MTU_BYTES_MAX);
        assert_eq!(capabilities.segmentation_bytes_max, 32_768);
    });
}

#[test]
fn the_request_descriptor_is_readable_for_a_frame_longer_than_an_acknowledgment_until_cleared() {
    with_xdp(|| {
        let peer = connect();
        for attach in MODES {
            let mut link = open(&XdpConfig { attach, ..small() });
            let mac = link.capabilities().mac;
            let mut socket = peer.run(|| RawSocket::open("v1"));
            let has_request = |link: &Xdp| is_ready(link.request_fd().unwrap(), libc::POLLIN);
            for bytes in [118, 119, 1_514, 118, 119] {
                socket.send(&numbered(mac, 1, bytes));
                eventually(|| is_ready(link.poll_fd().unwrap(), libc::POLLIN));
                if bytes > 118 {
                    eventually(|| has_request(&link));
                } else {
                    assert!(!has_request(&link), "{bytes} bytes");
                }
                assert!(link.clear_requests(), "it waits to be received");
                assert!(!has_request(&link), "{bytes} bytes");
                receive_until(&mut link, |received| {
                    is_numbered(received.frame).then_some(())
                });
                while link.receive(Instant::ZERO, 64, &mut |_| ()).unwrap() > 0 {}
                assert!(!link.clear_requests() && !has_request(&link));
            }
            // More than the ring has records, and than there are cells.
            for _ in 0..300 {
                socket.send(&numbered(mac, 1, 119));
            }
            eventually(|| has_request(&link));
            eventually(|| link.counters().overflow_frames == 300 - u64::from(CELLS_MIN));
            while link.receive(Instant::ZERO, 64, &mut |_| ()).unwrap() > 0 {}
            assert!(!link.clear_requests() && !has_request(&link));
            socket.send(&numbered(mac, 1, 119));
            eventually(|| has_request(&link));
        }
    });
}

#[test]
fn frames_that_were_not_taken_in_time_are_counted_and_later_ones_arrive() {
    with_xdp(|| {
        let peer = connect();
        for attach in MODES {
            let mut link = open(&XdpConfig { attach, ..small() });
            let mac = link.capabilities().mac;
            let mut socket = peer.run(|| RawSocket::open("v1"));
            for number in 0..3 * CELLS_MIN {
                socket.send(&numbered(mac, number, 60));
            }
            let dropped = u64::from(2 * CELLS_MIN);
            eventually(|| link.counters().overflow_frames == dropped);
            for number in 0..CELLS_MIN {
                receive_until(&mut link, |received| {
                    assert_eq!(received.frame, numbered(mac, number, 60));
                    Some(())
                });
            }
            for number in 1_000..1_000 + CELLS_MIN {
                socket.send(&numbered(mac, number, 61));
                receive_until(&mut link, |received| {
                    assert_eq!(received.frame, numbered(mac, number, 61));
                    Some(())
                });
            }
            let counters = link.counters();
            assert_eq!(counters.overflow_frames, dropped);
            // The kernel keeps the cell of the frame that it dropped last.
            let all = counters.offered_cells - counters.received_cells;
            assert_eq!(all, u64::from(CELLS_MIN));
            assert!(counters.accepted_cells - counters.received_cells <= 1);
        }
    });
}

#[test]
fn without_free_cells_a_frame_waits_and_is_lost_after_the_limit() {
    with_xdp(|| {
        let peer = connect();
        // Frames of the one interface wait in a queue of the other that sends almost nothing.
        ip("link add link v0 name m0 type macvlan");
        ip("link set m0 up");
        run(
            "tc",
            "qdisc add dev v0 root tbf rate 8kbit burst 1600 limit 10000000",
        );
        let config = XdpConfig {
            interface: "m0".to_owned(),
            ..small()
        };
        let mut link = open(&config);
        let frame = |number| numbered(MacAddress([4; 6]), number, 1_000);
        let start = Instant::from_millis(1);
        let mut taken = 0;
        while send_at(&mut link, start, &frame(taken)).is_ok() {
            taken += 1;
            assert!(taken <= 2 * CELLS_MIN, "frames wait");
        }
        // One or two have left.
        assert!(taken >= CELLS_MIN && link.in_flight_cells() == CELLS_MIN as usize);
        let full = Err(TransmitError::Full);
        assert_eq!(send_at(&mut link, start, &frame(taken)), full);
        assert_eq!(link.counters().full_frames, 2);
        let step = Duration::from_nanos(1);
        let sent = send_at(&mut link, start + (REFUSED_FOR_MAX - step), &frame(taken));
        assert_eq!(sent, full);
        let sent = send_at(&mut link, start + REFUSED_FOR_MAX, &frame(taken));
        assert_eq!(sent, Err(TransmitError::Lost(libc::ENOBUFS)));
        let counters = link.counters();
        assert_eq!((counters.refused_frames, counters.lost_frames), (1, 1));
        // A large segment needs more cells than come back one by one: it waits as a whole.
        let before = link.counters().transmitted_frames;
        assert_eq!(send_large(&mut link, MacAddress([2; 6]), 30_000), full);
        assert_eq!(link.counters().transmitted_frames, before);
        run("tc", "qdisc del dev v0 root");
        let mut socket = peer.run(|| RawSocket::open("v1"));
        eventually(|| send_large(&mut link, MacAddress([2; 6]), 30_000).is_ok());
        let mut received = 0;
        while received < 30_000 - 40 {
            received += socket.receive(is_large).1.len() - 54;
        }
        assert_eq!(link.counters().transmitted_frames, before + 1);
    });
}

/// A TCP segment with SYN from the peer to the host's address, at made-up ports.
fn syn(to: MacAddress, from: MacAddress, port: u16) -> Vec<u8> {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let route = wire::Route {
        source_mac: from,
        destination_mac: to,
        source: ip("10.77.0.2"),
        destination: ip(HOST),
    };
    let header = wire::TcpRepr {
        source_port: 5_555,
        destination_port: port,
        flags: wire::TcpFlags::SYN,
        ..wire::TcpRepr::default()
    };
    let mut buffer = [0; wire::HEADERS_BYTES_MAX];
    let full = wire::TcpChecksum::Full;
    let length = wire::emit_tcp(&mut buffer, &route, &header, &[], full, 1);
    buffer[..length].to_vec()
}

/// The destination port of a TCP frame.
fn destination_port(frame: &[u8]) -> Option<u16> {
    (frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&6))
        .then(|| u16::from_be_bytes([frame[36], frame[37]]))
}

#[test]
fn of_a_shared_address_only_our_port_is_taken_and_the_kernel_keeps_the_rest() {
    with_xdp(|| {
        let peer = connect();
        let kernel_s = TcpListener::bind((HOST, 0)).unwrap();
        let address = kernel_s.local_addr().unwrap();
        for attach in MODES {
            let mut link = open(&XdpConfig { attach, ..shared() });
            let mac = interface_mac("v0").unwrap().unwrap();
            assert_eq!(link.capabilities().mac, mac);
            // ARP and UDP.
            peer.run(|| ip("neighbor flush dev v1"));
            kernels_talk(&peer);
            echo(&peer, mac);
            transfer(&peer, &kernel_s, address);
            assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
            // A port of ours, and one that is nobody's, which the kernel answers with a reset.
            let mut socket = peer.run(|| RawSocket::open("v1"));
            let peer_mac = peer.run(|| interface_mac("v1").unwrap().unwrap());
            socket.send(&syn(mac, peer_mac, PORT));
            socket.send(&syn(mac, peer_mac, PORT + 1));
            let reset = socket.receive(|frame| destination_port(frame) == Some(5_555));
            let (from, flags) = (&reset.1[34..36], reset.1[47]);
            assert_eq!(from, (PORT + 1).to_be_bytes(), "no reset for our port");
            assert_eq!(flags & 4, 4, "RST");
            let ours = receive_until(&mut link, |received| Some(received.frame.to_vec()));
            assert_eq!(destination_port(&ours), Some(PORT));
            assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
            transfer(&peer, &kernel_s, address);
        }
        // The kernel has our port again.
        let listener = TcpListener::bind((HOST, PORT)).unwrap();
        transfer(
            &peer,
            &listener,
            (HOST.parse::<IpAddr>().unwrap(), PORT).into(),
        );
    });
}

#[test]
fn an_address_shared_later_is_taken_and_one_given_back_is_the_kernel_s() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&XdpConfig::shared(
            "v0",
            &["10.77.0.9".parse().unwrap()],
            &[PORT],
        ));
        let mac = link.capabilities().mac;
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let peer_mac = peer.run(|| interface_mac("v1").unwrap().unwrap());
        let reset = |socket: &mut RawSocket| {
            socket.send(&syn(mac, peer_mac, PORT));
            socket.receive(|frame| destination_port(frame) == Some(5_555));
        };
        reset(&mut socket);
        // Without a capability, as a server that has dropped its own.
        let host: IpAddr = HOST.parse().unwrap();
        let mut link = std::thread::spawn(move || {
            keep_capabilities(&[]);
            link.share_addresses(&[host, HOST_V6.parse().unwrap()])
                .unwrap();
            link
        })
        .join()
        .unwrap();
        socket.send(&syn(mac, peer_mac, PORT));
        let ours = receive_until(&mut link, |received| Some(received.frame.to_vec()));
        assert_eq!(destination_port(&ours), Some(PORT));
        link.share_addresses(&[]).unwrap();
        reset(&mut socket);
        assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
        // As many as there may be, twice: those of before have left room.
        for net in [1, 2] {
            let address = |n: u8| IpAddr::from([10, 78, net, n]);
            let most: Vec<IpAddr> = (0..64).map(address).collect();
            link.share_addresses(&most).unwrap();
        }
        let refused = link.share_addresses(
            &(0..65)
                .map(|n| IpAddr::from([10, 78, 3, n]))
                .collect::<Vec<_>>(),
        );
        assert_eq!(refused, Err(libc::E2BIG));
    });
}

/// The peer asks the kernel's ICMP for an echo.
fn echo(peer: &Peer, mac: MacAddress) {
    peer.run(move || {
        let from = interface_mac("v1").unwrap().unwrap();
        let mut frame = [mac.0, from.0].concat();
        frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 1, 0, 0]);
        frame.extend([10, 77, 0, 2, 10, 77, 0, 1]);
        let header = wire::checksum::complete(0, &[&frame[14..]]);
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        let mut message = [8, 0, 0, 0, 0x12, 0x34, 0, 1];
        let checksum = wire::checksum::complete(0, &[&message]);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(message);
        let mut socket = RawSocket::open("v1");
        socket.send(&frame);
        let is_reply = |frame: &[u8]| frame.get(23) == Some(&1) && frame.get(34) == Some(&0);
        let (_, reply) = socket.receive(is_reply);
        assert_eq!(reply[38..42], message[4..]);
    });
}

/// A connection to the kernel's TCP that carries a megabyte each way.
fn transfer(peer: &Peer, listener: &TcpListener, address: SocketAddr) {
    const BYTES: usize = 1 << 20;
    let client = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = vec![0; BYTES];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let received = peer.run(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let bytes: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
            stream.write_all(&bytes).unwrap();
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            back == bytes
        });
        server.join().unwrap();
        received
    });
    assert!(client);
}

#[test]
fn an_icmp_error_about_our_port_is_ours_and_another_is_the_kernel_s() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&shared());
        let mac = link.capabilities().mac;
        let error = move |port: u16| {
            let mut frame = [mac.0, [2; 6]].concat();
            frame.extend([0x08, 0x00, 0x45, 0, 0, 56, 0, 0, 0x40, 0, 64, 1, 0, 0]);
            frame.extend([10, 77, 0, 2, 10, 77, 0, 1, 3, 4, 0, 0, 0, 0, 5, 0]);
            frame.extend([0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 6, 0, 0]);
            frame.extend([10, 77, 0, 1, 10, 77, 0, 2]);
            frame.extend(port.to_be_bytes());
            frame.extend([0; 6]);
            frame
        };
        peer.run(move || {
            let mut socket = RawSocket::open("v1");
            socket.send(&error(PORT + 1));
            socket.send(&error(PORT));
        });
        let frame = receive_until(&mut link, |received| Some(received.frame.to_vec()));
        assert_eq!(frame, error(PORT));
    });
}

#[test]
fn each_queue_has_a_link_which_may_move_to_a_thread_and_the_last_takes_the_program_along() {
    const QUEUES: usize = 4;
    const FLOWS: u16 = 64;
    with_xdp(|| {
        let peer = connect_queues(4);
        let mut links = Xdp::open_queues(&usual()).unwrap();
        let numbers: Vec<u32> = links.iter().map(Xdp::queue_index).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        let mac = links[0].capabilities().mac;
        peer.run(move || {
            let text: Vec<String> = mac.0.iter().map(|byte| format!("{byte:x}")).collect();
            ip(&format!(
                "neighbor add {V4} lladdr {} dev v1",
                text.join(":")
            ));
            let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
            for port in 1..=FLOWS {
                socket.send_to(b"flow", (V4, port)).unwrap();
            }
        });
        let mut counts = [0_usize; QUEUES];
        eventually(|| {
            for (link, count) in links.iter_mut().zip(&mut counts) {
                let mut count_flow = |received: Received<'_>| {
                    *count += usize::from(is_numbered(received.frame));
                };
                link.receive(Instant::ZERO, 64, &mut count_flow).unwrap();
            }
            counts.iter().sum::<usize>() == usize::from(FLOWS)
        });
        let used = counts.iter().filter(|count| **count > 0).count();
        assert!(used > 1, "{counts:?}");
        // From each queue, driven by a thread of its own.
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let threads: Vec<_> = (0..).zip(links.drain(1..)).collect();
        let threads = threads.into_iter().map(|(number, mut link)| {
            std::thread::spawn(move || {
                let frame = numbered(MacAddress([4; 6]), number, 60);
                send(&mut link, &frame).unwrap();
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().unwrap();
        }
        for _ in 1..QUEUES {
            socket.receive(is_numbered);
        }
        assert!(has_program("v0"), "one link is left");
        drop(links);
        eventually(|| !has_program("v0"));
    });
}

#[test]
fn a_dropped_link_leaves_no_program_and_the_next_opens_at_once() {
    with_xdp(|| {
        let peer = connect();
        for attach in [AttachMode::Driver, AttachMode::Generic, AttachMode::Auto] {
            assert!(!has_program("v0"));
            let config = XdpConfig { attach, ..usual() };
            let mut link = open(&config);
            assert!(has_program("v0"));
            assert_eq!(
                refusal(&config),
                SetupError::ProgramAttached {
                    name: "v0".to_owned()
                }
            );
            talk(&mut link, &peer, "10.77.0.2", V4);
            drop(link);
            eventually(|| !has_program("v0"));
            kernels_talk(&peer);
        }
    });
}

/// Names the variable that makes [`holds_a_link_until_it_is_killed`] do so.
const HOLD: &str = "ATLAS_TEST_HOLD_XDP_LINK";

/// Not a test, but the process that another test kills.
#[test]
#[ignore = "started by a_killed_process_leaves_no_program"]
fn holds_a_link_until_it_is_killed() {
    if std::env::var_os(HOLD).is_none() {
        return;
    }
    let _link = open(&shared());
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_killed_process_leaves_no_program() {
    with_xdp(|| {
        let peer = connect();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "xdp::holds_a_link_until_it_is_killed"])
            .args(["--ignored", "--nocapture"])
            .env(HOLD, "yes")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let is_ready = output.lines().any(|line| line.unwrap() == "ready");
        assert!(is_ready && has_program("v0"));
        // SIGKILL.
        process.kill().unwrap();
        process.wait().unwrap();
        eventually(|| !has_program("v0"));
        let listener = TcpListener::bind((HOST, PORT)).unwrap();
        transfer(
            &peer,
            &listener,
            (HOST.parse::<IpAddr>().unwrap(), PORT).into(),
        );
        // The queue is free, too.
        open(&shared());
    });
}

#[test]
fn an_interface_that_was_down_carries_frames_again() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&usual());
        ip("link set v0 down");
        let mut nothing = |_: Received<'_>| panic!("nothing was sent");
        assert_eq!(link.receive(Instant::ZERO, 64, &mut nothing), Ok(0));
        assert_eq!(link.counters().down_events, 1);
        let down = Err(TransmitError::Lost(libc::ENETDOWN));
        assert_eq!(send(&mut link, &[0; 60]), down);
        assert_eq!(link.in_flight_cells(), 0, "nothing waits until it is up");
        let later = Instant::from_millis(1_000);
        assert_eq!(link.receive(later, 64, &mut nothing), Ok(0));
        assert_eq!(
            link.counters().down_events,
            1,
            "it is down still, not again"
        );
        ip("link set v0 up");
        talk(&mut link, &peer, "10.77.0.2", V4);
        ip("link set v0 down");
        // Nobody has asked for its state: the frame is queued, and reported as lost all the same.
        let frame = numbered(MacAddress([4; 6]), 1, 60);
        assert_eq!(send(&mut link, &frame), down);
        assert_eq!(send(&mut link, &frame), down);
        assert_eq!(link.in_flight_cells(), 1);
        assert_eq!(link.counters().down_events, 2);
        ip("link set v0 up");
        let mut socket = peer.run(|| RawSocket::open("v1"));
        eventually(|| send(&mut link, &numbered(MacAddress([4; 6]), 2, 60)).is_ok());
        let numbers = [1, 2].map(|_| socket.receive(is_numbered).1[37]);
        assert_eq!(numbers, [1, 2], "late, as an old duplicate");
    });
}

#[test]
fn without_carrier_frames_are_lost_and_not_held() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&usual());
        peer.run(|| ip("link set v1 down"));
        let lost = Err(TransmitError::Lost(libc::EBUSY));
        assert_eq!(send(&mut link, &[0; 60]), lost);
        assert_eq!(send_large(&mut link, MacAddress([2; 6]), 65_535), lost);
        assert_eq!(link.counters().lost_frames, 2);
        peer.run(|| ip("link set v1 up"));
        talk(&mut link, &peer, "10.77.0.2", V4);
    });
}

#[test]
fn a_link_opened_while_the_interface_is_down_works_once_it_is_up() {
    with_xdp(|| {
        let peer = connect();
        ip("link set v0 down");
        let config = XdpConfig {
            attach: AttachMode::Generic,
            ..usual()
        };
        let mut link = open(&config);
        assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
        ip("link set v0 up");
        talk(&mut link, &peer, "10.77.0.2", V4);
    });
}

#[test]
fn a_removed_interface_is_gone_whether_it_was_up_or_down() {
    with_xdp(|| {
        for take_down_first in [false, true] {
            let _peer = connect();
            let mut link = open(&usual());
            if take_down_first {
                ip("link set v0 down");
                assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
            }
            ip("link delete v0");
            assert!(matches!(receive_until_gone(&mut link), LinkError::Gone(_)));
            let later = Instant::ZERO + Duration::from_millis(1);
            let sent = send_at(&mut link, later, &[0; 60]);
            assert_eq!(sent, Err(TransmitError::Lost(libc::ENXIO)));
        }
    });
}

#[test]
fn what_an_interface_cannot_do_is_refused_with_its_remedy() {
    with_xdp(|| {
        let _peer = connect();
        let zero_copy = XdpConfig {
            zero_copy: ZeroCopy::On,
            ..usual()
        };
        let refused = refusal(&zero_copy);
        assert!(matches!(refused, SetupError::NoZeroCopy { queue: 0, .. }));
        // Nothing is left.
        eventually(|| !has_program("v0"));
        for zero_copy in [ZeroCopy::Auto, ZeroCopy::Off] {
            let link = open(&XdpConfig {
                zero_copy,
                ..usual()
            });
            assert!(!link.is_zero_copy());
            assert_eq!(link.zero_copy(), Err(CopyReason::Unsupported));
            drop(link);
            eventually(|| !has_program("v0"));
        }
        // Its driver runs no XDP program, and does not tell how many queues it has.
        ip("link add b0 type bridge");
        ip("link set b0 up");
        let on_bridge = |attach| XdpConfig {
            interface: "b0".to_owned(),
            attach,
            ..usual()
        };
        let refused = refusal(&on_bridge(AttachMode::Driver));
        assert!(matches!(refused, SetupError::NoDriverMode { .. }));
        assert!(!open(&on_bridge(AttachMode::Auto)).is_in_driver());
    });
}

#[test]
fn a_queue_that_another_socket_has_is_busy_until_that_is_closed() {
    with_xdp(|| {
        let _peer = connect();
        let holder = QueueHolder::bind("v0");
        let name = "v0".to_owned();
        assert_eq!(refusal(&usual()), SetupError::QueueBusy { name, queue: 0 });
        drop(holder);
        open(&usual());
    });
}

#[test]
fn without_capabilities_the_error_names_them() {
    with_xdp(|| {
        let _peer = connect();
        become_nobody();
        let text = refusal(&usual()).to_string();
        assert!(
            text.contains("setcap cap_net_raw,cap_net_admin,cap_bpf+ep"),
            "{text}"
        );
    });
}

#[test]
fn three_capabilities_are_enough_and_none_of_them_is_too_much() {
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    const BPF: u32 = 39;
    with_xdp(|| {
        let _peer = connect();
        let own = small();
        let of_host = XdpConfig {
            receive_cells: CELLS_MIN,
            transmit_cells: CELLS_MIN,
            ..shared()
        };
        let with = |kept: &'static [u32], config: &XdpConfig| {
            let config = config.clone();
            let opening = std::thread::spawn(move || {
                keep_capabilities(kept);
                let mut result = Ok(());
                // A process that another test forks holds a program until it execs.
                eventually(|| {
                    result = Xdp::open_queues(&config).map(drop);
                    !matches!(result, Err(SetupError::ProgramAttached { .. }))
                });
                result
            });
            opening.join().unwrap()
        };
        for config in [own, of_host] {
            assert_eq!(with(&[NET_ADMIN, NET_RAW, BPF], &config), Ok(()));
            for kept in [&[NET_ADMIN, NET_RAW], &[NET_ADMIN, BPF], &[NET_RAW, BPF]] {
                let refused = with(kept, &config).unwrap_err();
                assert!(
                    matches!(refused, SetupError::NotPermitted { .. }),
                    "{refused}"
                );
            }
        }
    });
}
