//! A tap and a macvtap against the kernel's own stack, each test in its own network namespace.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;

use crate::common::{
    Peer, RawSocket, Segment, answer_until_udp, become_nobody, eventually, in_namespace, ip,
    is_large, receive_until, receive_until_gone, send, send_large, udp_echo,
};
use clock::Instant;
use link::{
    InterfaceAddress, Link, LinkError, SetupError, Tap, TapConfig, TransmitError, interface_exists,
    interface_mac, interface_mtu_bytes, is_macvtap,
};
use wire::{ChecksumState, Incoming, MacAddress, Outgoing, parse_frame};

fn config(name: &str, addresses: &[&str]) -> TapConfig {
    let parse = |text: &&str| {
        let (address, bits) = text.split_once('/').unwrap();
        InterfaceAddress {
            address: address.parse().unwrap(),
            prefix_bits: bits.parse().unwrap(),
        }
    };
    TapConfig {
        name: name.to_owned(),
        host_addresses: addresses.iter().map(parse).collect(),
    }
}

fn open(name: &str, addresses: &[&str]) -> Tap {
    Tap::open(&config(name, addresses)).unwrap()
}

/// The host sends a datagram to `ours`, we answer, the host receives the answer.
fn talk(link: &mut impl Link, host: &str, ours: &str) {
    // At once: an IPv6 address under duplicate detection could not be bound.
    let socket = UdpSocket::bind(SocketAddr::new(host.parse().unwrap(), 0)).unwrap();
    let ours: IpAddr = ours.parse().unwrap();
    socket.send_to(b"are you there?", (ours, 7)).unwrap();
    let (question, checksum) = answer_until_udp(link, ours);
    assert_eq!(
        checksum,
        ChecksumState::Trusted,
        "the host leaves the checksum to us"
    );
    let (answer, offload) = udp_echo(&question);
    let (headers, payload) = answer.split_at(42);
    let frame = Outgoing {
        headers,
        payload: &[payload],
        offload,
    };
    link.transmit(Instant::ZERO, &frame).unwrap();
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..length], from.ip()),
        (b"are you there?".as_slice(), ours)
    );
}

#[test]
fn the_host_s_stack_talks_to_us_over_both_ip_versions() {
    in_namespace(|| {
        let mut tap = open("t0", &["10.77.0.1/24", "fd77::1/64"]);
        talk(&mut tap, "10.77.0.1", "10.77.0.9");
        talk(&mut tap, "fd77::1", "fd77::9");
        let counters = tap.counters();
        assert!(counters.received_frames >= 4 && counters.transmitted_frames >= 4);
        assert_eq!((counters.lost_frames, counters.full_frames), (0, 0));
    });
}

#[test]
fn capabilities_say_what_the_interface_is() {
    in_namespace(|| {
        let tap = open("t0", &[]);
        let capabilities = tap.capabilities();
        assert_eq!(Some(capabilities.mtu_bytes), interface_mtu_bytes("t0").ok());
        assert_eq!(capabilities.segmentation_bytes_max, 65_535);
        assert!(capabilities.checksum_offload);
        assert_ne!(Some(capabilities.mac), interface_mac("t0").unwrap());
        assert_eq!(is_macvtap("t0"), Ok(false));
    });
}

#[test]
fn the_largest_packet_reaches_the_host_whole_and_one_byte_more_is_lost() {
    in_namespace(|| {
        let mut tap = open("t0", &["10.77.0.1/24"]);
        let mut host = RawSocket::open("t0");
        let host_mac = interface_mac("t0").unwrap().unwrap();
        for packet_bytes in [1_500, 1_501, 65_535] {
            send_large(&mut tap, host_mac, packet_bytes).unwrap();
            let (header, frame) = host.receive(is_large);
            assert_eq!(frame.len(), 14 + packet_bytes);
            assert_eq!(
                header[1],
                u8::from(packet_bytes > 1_500),
                "GSO_TCPV4 or none"
            );
            assert!(
                frame[54..]
                    .iter()
                    .enumerate()
                    .all(|(n, byte)| usize::from(*byte) == n % 251)
            );
        }
        let too_large = vec![0; 14 + 65_536];
        assert_eq!(
            send(&mut tap, &too_large),
            Err(TransmitError::Lost(libc::EMSGSIZE))
        );
        assert_eq!(tap.counters().lost_frames, 1);
    });
}

/// The kernel tells where the checksum is in the frame with its tag.
#[test]
fn a_large_segment_with_a_priority_tag_is_the_one_without() {
    in_namespace(|| {
        let mut tap = open("t0", &[]);
        let mut host = RawSocket::open("t0");
        for packet_bytes in [1_000, 30_000] {
            let segment = || Segment::new(MacAddress([2; 6]), tap.capabilities().mac, packet_bytes);
            let (plain, priority) = (segment(), segment().tagged(0xe000));
            let frames = [&plain, &priority].map(|segment| {
                host.send_segment(segment);
                receive_until(&mut tap, |it| {
                    let is_ours =
                        matches!(parse_frame(it.frame, it.checksum), Ok(Incoming::Tcp { .. }));
                    is_ours.then(|| (it.frame.to_vec(), it.checksum))
                })
            });
            let [plain, priority] = frames.each_ref().map(|(frame, checksum)| {
                assert_eq!(
                    *checksum,
                    ChecksumState::Trusted,
                    "the host leaves it to us"
                );
                parse_frame(frame, *checksum)
            });
            assert_eq!(plain, priority);
            assert_eq!(frames[1].0.len(), 14 + 4 + packet_bytes);
        }
    });
}

#[test]
fn a_tap_we_made_vanishes_with_us() {
    in_namespace(|| {
        let tap = open("t0", &["10.77.0.1/24"]);
        assert_eq!(interface_exists("t0"), Ok(true));
        drop(tap);
        eventually(|| interface_exists("t0") == Ok(false));
    });
}

#[test]
fn a_persistent_tap_stays_and_loses_only_our_addresses() {
    in_namespace(|| {
        let is_ours = |address: &str| UdpSocket::bind((address, 0)).is_ok();
        ip("tuntap add mode tap name t0");
        ip("address add 10.77.0.2/24 dev t0");
        drop(open("t0", &["10.77.0.1/24", "10.77.0.2/24", "fd77::1/64"]));
        assert_eq!(interface_exists("t0"), Ok(true));
        assert!(is_ours("10.77.0.2"), "it was there before us");
        assert!(!is_ours("10.77.0.1"));
        assert!(!is_ours("fd77::1"));
    });
}

#[test]
fn bad_names_and_missing_rights_are_refused_with_their_reason() {
    in_namespace(|| {
        let refusal = |config| Tap::open(&config).unwrap_err();
        let _tap = open("t0", &[]);
        assert_eq!(
            refusal(config("t0", &[])),
            SetupError::Busy {
                name: "t0".to_owned()
            }
        );
        ip("link add v0 type veth peer name v1");
        let not_a_tap = SetupError::NotATap {
            name: "v0".to_owned(),
            kind: "veth".to_owned(),
        };
        assert_eq!(refusal(config("v0", &[])), not_a_tap);
        let not_a_tap = SetupError::NotATap {
            name: "lo".to_owned(),
            kind: "device".to_owned(),
        };
        assert_eq!(refusal(config("lo", &[])), not_a_tap);
        let bad = refusal(config("a name too long for it", &[]));
        assert!(matches!(bad, SetupError::BadName { .. }));
        let prefix = refusal(config("t1", &["10.77.0.1/33"]));
        assert!(
            matches!(
                prefix,
                SetupError::Address {
                    prefix_bits: 33,
                    ..
                }
            ),
            "{prefix}"
        );
        eventually(|| interface_exists("t1") == Ok(false));
        become_nobody();
        let denied = refusal(config("t2", &[]));
        // A missing capability and a node's mode have different remedies.
        let node = std::fs::metadata("/dev/net/tun").unwrap();
        if node.permissions().mode() & 0o006 == 0o006 {
            assert!(
                matches!(denied, SetupError::NotPermitted { .. }),
                "{denied}"
            );
        } else {
            let errno = libc::EACCES;
            let path = "/dev/net/tun".to_owned();
            assert_eq!(denied, SetupError::NodeNotPermitted { path, errno });
            assert!(denied.to_string().contains("chmod 0666 /dev/net/tun"));
        }
    });
}

#[test]
fn an_interface_that_was_down_carries_frames_again() {
    in_namespace(|| {
        let mut tap = open("t0", &["10.77.0.1/24"]);
        ip("link set t0 down");
        assert_eq!(
            send(&mut tap, &[0; 60]),
            Err(TransmitError::Lost(libc::EIO))
        );
        assert_eq!(tap.counters().down_events, 1);
        assert!(tap.receive(Instant::ZERO, 64, &mut |_| ()).is_ok());
        ip("link set t0 up");
        talk(&mut tap, "10.77.0.1", "10.77.0.9");
    });
}

#[test]
fn a_removed_interface_is_gone() {
    in_namespace(|| {
        let mut tap = open("t0", &[]);
        ip("link delete t0");
        assert_eq!(receive_until_gone(&mut tap), LinkError::Gone(libc::EBADFD));
        assert_eq!(
            send(&mut tap, &[0; 60]),
            Err(TransmitError::Lost(libc::EBADFD))
        );
    });
}

#[test]
fn receiving_takes_no_more_than_asked() {
    in_namespace(|| {
        let mut tap = open("t0", &["10.77.0.1/24"]);
        let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
        ip("neighbour add 10.77.0.9 dev t0 lladdr 02:00:00:00:00:09");
        for number in 0..5_u8 {
            socket.send_to(&[number], "10.77.0.9:7").unwrap();
        }
        let mut numbers: Vec<u8> = Vec::new();
        while numbers.len() < 5 {
            let mut frames = 0;
            let handed = tap.receive(Instant::ZERO, 2, &mut |received| {
                frames += 1;
                if received.frame.get(23) == Some(&17) {
                    numbers.extend(received.frame.get(42));
                }
            });
            assert!(frames <= 2 && handed == Ok(frames));
        }
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    });
}

#[test]
fn a_macvtap_is_a_station_with_the_interface_s_mac() {
    in_namespace(|| {
        let peer = Peer::connect("v0", "v1");
        peer.run(|| ip("address add 10.77.0.2/24 dev v1"));
        peer.run(|| ip("address add fd77::2/64 dev v1 nodad"));
        // Nodes are numbered by interface index in one /dev for all namespaces: a number that
        // no other namespace counts up to.
        let index = 1_000_000 + std::process::id();
        ip(&format!(
            "link add link v0 name m0 index {index} type macvtap mode bridge"
        ));
        assert_eq!(is_macvtap("m0"), Ok(true));
        let node = format!("/dev/tap{index}");
        if !std::path::Path::new(&node).exists() {
            eprintln!("SKIPPED: {node} was not made; /dev is no devtmpfs here");
            return;
        }
        let mut link = open("m0", &["10.77.0.1/24"]);
        assert_eq!(Some(link.capabilities().mac), interface_mac("m0").unwrap());
        assert_eq!(link.capabilities().segmentation_bytes_max, 65_521);
        assert!(
            UdpSocket::bind("10.77.0.1:0").is_err(),
            "the host end gets no address"
        );
        for (host, ours) in [("10.77.0.2", "10.77.0.9"), ("fd77::2", "fd77::9")] {
            let ours: IpAddr = ours.parse().unwrap();
            let socket = peer.run(move || {
                let socket = UdpSocket::bind((host, 0)).unwrap();
                socket.send_to(b"hello", (ours, 7)).unwrap();
                socket
            });
            let (question, _) = answer_until_udp(&mut link, ours);
            let (answer, offload) = udp_echo(&question);
            let frame = Outgoing {
                headers: &answer,
                payload: &[],
                offload,
            };
            link.transmit(Instant::ZERO, &frame).unwrap();
            let mut buffer = [0; 64];
            assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
        }
        let mut host = peer.run(|| RawSocket::open("v1"));
        send_large(&mut link, MacAddress([2; 6]), 65_521).unwrap();
        assert_eq!(host.receive(is_large).1.len(), 14 + 65_521);
        let lost = send_large(&mut link, MacAddress([2; 6]), 65_522);
        assert_eq!(lost, Err(TransmitError::Lost(libc::EMSGSIZE)));
        ip("link delete m0");
        let gone = receive_until_gone(&mut link);
        assert_eq!(gone, LinkError::Gone(libc::ENOLINK));
        let lost = send(&mut link, &[0; 60]);
        assert_eq!(lost, Err(TransmitError::Lost(libc::ENOLINK)));
    });
}

#[test]
fn a_node_of_another_namespace_s_macvtap_is_refused() {
    in_namespace(|| {
        let peer = Peer::connect("v0", "v1");
        let index = 2_000_000 + std::process::id();
        // The first of the two gets the node.
        let add = move |lower| {
            ip(&format!(
                "link add link {lower} name m0 index {index} type macvtap mode bridge"
            ));
        };
        peer.run(move || add("v1"));
        if !std::path::Path::new(&format!("/dev/tap{index}")).exists() {
            eprintln!("SKIPPED: no node was made; /dev is no devtmpfs here");
            return;
        }
        add("v0");
        let error = Tap::open(&config("m0", &[])).unwrap_err();
        assert!(matches!(error, SetupError::WrongDevice { .. }), "{error}");
    });
}

#[test]
fn a_host_that_receives_a_large_segment_hands_us_one() {
    in_namespace(|| {
        // What the host's stack sends in one piece arrives in one piece: a TCP SYN is enough to
        // see that the offloads are taken, its checksum being left to us.
        let mut tap = open("t0", &["10.77.0.1/24"]);
        ip("neighbour add 10.77.0.9 dev t0 lladdr 02:00:00:00:00:09");
        let client = std::thread::scope(|scope| {
            // A connection without a peer: only its first segment matters. In our namespace.
            let connect = || {
                let address = "10.77.0.9:80".parse().unwrap();
                let limit = std::time::Duration::from_millis(200);
                std::net::TcpStream::connect_timeout(&address, limit).is_err()
            };
            let client = scope.spawn(connect);
            let state = receive_until(&mut tap, |received| {
                (received.frame.get(23) == Some(&6)).then_some(received.checksum)
            });
            assert_eq!(state, ChecksumState::Trusted);
            client.join().unwrap()
        });
        assert!(client);
    });
}
