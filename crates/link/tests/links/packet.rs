//! A packet socket on a veth pair beside the kernel's own stack, each test in its own network
//! namespace with a peer in another.

use std::io::Write as _;
use std::net::UdpSocket;

use crate::common::{
    Peer, RawSocket, Segment, become_nobody, connect, eventually, in_namespace, ip, is_large,
    is_ready, kernels_talk, receive_until, receive_until_gone, run, send, send_at, send_large,
    set_segmentation, talk, wait_writable,
};
use clock::{Duration, Instant};
use link::{
    CopyReason, InterfaceWatch, Link, LinkError, MacChoice, Packet, PacketConfig, REFUSED_FOR_MAX,
    Sent, SetupError, Tap, TapConfig, TransmitError, ZeroCopy, interface_mac,
};
use memory::{Arena, ArenaConfig, FilledSlot, PageKind};
use wire::MacAddress;

const V4: &str = "10.77.0.9";
const V6: &str = "fd77::9";

fn usual() -> PacketConfig {
    PacketConfig::new("v0", &[V4.parse().unwrap(), V6.parse().unwrap()])
}

fn open() -> Packet {
    Packet::open(&usual()).unwrap()
}

#[test]
fn a_neighbour_s_stack_talks_to_us_and_to_the_kernel_beside_us() {
    in_namespace(|| {
        let peer = connect();
        let mut link = open();
        assert!(link.bypasses_qdisc());
        kernels_talk(&peer);
        assert_eq!(
            link.receive(Instant::ZERO, 64, &mut |_| ()),
            Ok(0),
            "not ours to see"
        );
        talk(&mut link, &peer, "10.77.0.2", V4);
        talk(&mut link, &peer, "fd77::2", V6);
        kernels_talk(&peer);
        assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
        let counters = link.counters();
        assert!(
            counters.transmitted_frames >= 4,
            "two answers, two datagrams"
        );
        assert_eq!((counters.lost_frames, counters.full_frames), (0, 0));
    });
}

#[test]
fn a_neighbour_s_stack_talks_to_us_at_the_interface_s_mac() {
    in_namespace(|| {
        let peer = connect();
        let config = PacketConfig {
            mac: MacChoice::Interface,
            ..usual()
        };
        let mut link = Packet::open(&config).unwrap();
        assert_eq!(Some(link.capabilities().mac), interface_mac("v0").unwrap());
        kernels_talk(&peer);
        assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
        talk(&mut link, &peer, "10.77.0.2", V4);
        talk(&mut link, &peer, "fd77::2", V6);
        let given = MacAddress([0x02, 7, 7, 7, 7, 7]);
        let config = PacketConfig {
            mac: MacChoice::Given(given),
            ..usual()
        };
        assert_eq!(Packet::open(&config).unwrap().capabilities().mac, given);
    });
}

#[test]
fn the_kernel_runs_the_filter_as_the_interpreter_does() {
    in_namespace(|| {
        let peer = connect();
        let mut link = open();
        let mac = link.capabilities().mac.0;
        let frame = move |destination: [u8; 6], address: [u8; 4], marker: u8| {
            let mut frame = vec![0; 60];
            frame[..6].copy_from_slice(&destination);
            frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x99]);
            frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
            frame[30..34].copy_from_slice(&address);
            frame[59] = marker;
            frame
        };
        peer.run(move || {
            let mut socket = RawSocket::open("v1");
            let ours = [10, 77, 0, 9];
            socket.send(&frame(mac, [10, 77, 0, 10], 1));
            socket.send(&frame([2, 0, 0, 0, 0, 0x98], ours, 2));
            socket.send(&frame([0xff; 6], ours, 3));
            let mut tagged = frame(mac, ours, 4);
            tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
            socket.send(&tagged);
            let mut priority = frame(mac, ours, 5);
            priority.splice(12..12, [0x81, 0x00, 0xe0, 0x00]);
            socket.send(&priority);
            socket.send(&frame(mac, ours, 6));
        });
        let mut markers: Vec<u8> = Vec::new();
        receive_until(&mut link, |received| {
            markers.extend(received.frame.last());
            (markers.last() == Some(&6)).then_some(())
        });
        assert_eq!(markers, [5, 6]);
    });
}

#[test]
fn the_largest_packet_leaves_whole_and_one_byte_more_is_lost() {
    in_namespace(|| {
        let peer = connect();
        let mut link = open();
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let largest = link.capabilities().segmentation_bytes_max as usize;
        assert_eq!(largest, 65_521, "65,536 less the Ethernet header and one");
        for packet_bytes in [1_500, 1_501, largest] {
            send_large(&mut link, MacAddress([2; 6]), packet_bytes).unwrap();
            let (header, frame) = socket.receive(is_large);
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
        let lost = send_large(&mut link, MacAddress([2; 6]), largest + 1);
        assert_eq!(lost, Err(TransmitError::Lost(libc::EMSGSIZE)));
        let lost = send(&mut link, &[0; 14 + 1_500 + 5]);
        assert_eq!(
            lost,
            Err(TransmitError::Lost(libc::EMSGSIZE)),
            "and without segmentation"
        );
        assert_eq!(link.counters().lost_frames, 2);
    });
}

fn arena_config(slot_count: u32) -> ArenaConfig {
    ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(slot_count)
    }
}

fn arena(slot_count: u32) -> Arena {
    Arena::new(arena_config(slot_count)).unwrap()
}

/// Slots in ordinary pages, lent to a link that was told to send from them.
fn lending(slot_count: u32) -> (Arena, Packet) {
    let config = PacketConfig {
        zero_copy: ZeroCopy::On,
        ..usual()
    };
    let mut link = Packet::open(&config).unwrap();
    let config = arena_config(slot_count);
    let stride_bytes = link.lent_stride_bytes(config.stride_bytes());
    let arena = Arena::new(config.with_stride_bytes(stride_bytes)).unwrap();
    assert_eq!(arena.slot_memory().stride_bytes(), 128 << 10);
    link.borrow_slots(arena.slot_memory()).unwrap();
    (arena, link)
}

/// Bytes that differ by place and by `round`.
fn pattern(length: usize, round: usize) -> Vec<u8> {
    let byte = |n| u8::try_from((n + round) % 251).unwrap();
    (0..length).map(byte).collect()
}

/// A slot with these bytes.
fn filled(arena: &mut Arena, bytes: &[u8]) -> FilledSlot {
    let slot = arena.reserve().unwrap().into_reading();
    let mut slot = slot.into_filled(u32::try_from(bytes.len()).unwrap());
    arena.payload_mut(&mut slot).copy_from_slice(bytes);
    slot
}

/// Slots that come back, until there are `count`.
fn given_back(link: &mut Packet, count: usize) -> Vec<u32> {
    let mut slots = Vec::new();
    eventually(|| {
        link.give_back(Instant::ZERO, &mut |slot| slots.push(slot));
        slots.len() >= count
    });
    slots
}

#[test]
fn a_frame_is_sent_from_its_slot_which_may_then_be_overwritten() {
    const BYTES: usize = 61_440;
    in_namespace(|| {
        let peer = connect();
        let (mut arena, mut link) = lending(4);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let mac = link.capabilities().mac;
        for round in 0..20_usize {
            let head = vec![b'h'; 10 * round];
            let body = pattern(BYTES, round);
            // Payloads of odd slots begin elsewhere.
            let even = (round % 2 == 1).then(|| arena.reserve().unwrap());
            let slot = filled(&mut arena, &body);
            assert_eq!(slot.index() as usize, round % 2);
            let segment = Segment::new(mac, MacAddress([2; 6]), 40 + head.len() + BYTES);
            let sent = segment.send_with(&mut link, &[&head, arena.payload(&slot)]);
            assert_eq!(sent, Ok(Sent::Lent(slot.index())));
            arena.lend(&slot);
            assert_eq!(given_back(&mut link, 1), [slot.index()]);
            arena.give_back(slot.index());
            let mut slot = slot;
            arena.payload_mut(&mut slot).fill(0xee);
            arena.release(slot.into_free());
            even.into_iter().for_each(|even| arena.release(even));
            let (_, frame) = socket.receive(is_large);
            assert_eq!(frame[54..], [head, body].concat(), "round {round}");
        }
        let counters = link.counters();
        assert_eq!(
            (counters.lent_frames, counters.transmitted_frames),
            (20, 20)
        );
    });
}

/// How many parts of the arena's memory are rings of packet sockets.
fn mapped_rings(arena: &Arena) -> usize {
    let slots = arena.slot_memory();
    let start = slots.address().addr();
    let end = start + slots.slot_count() as usize * slots.stride_bytes();
    let is_ring = |line: &&str| {
        let address = line.split('-').next().unwrap();
        let address = usize::from_str_radix(address, 16).unwrap();
        (start..end).contains(&address) && line.contains("socket:[")
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(is_ring).count()
}

#[test]
fn returned_slots_are_ordinary_memory_and_frames_are_copied() {
    in_namespace(|| {
        let peer = connect();
        // More slots than threads that close them, and not a multiple.
        const SLOTS: u32 = 130;
        let (mut arena, mut link) = lending(SLOTS);
        assert_eq!(mapped_rings(&arena), SLOTS as usize);
        link.return_slots();
        assert_eq!(mapped_rings(&arena), 0);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let body = pattern(8_192, 0);
        let slot = filled(&mut arena, &body);
        let mac = link.capabilities().mac;
        let segment = Segment::new(mac, MacAddress([2; 6]), 40 + body.len());
        let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
        assert_eq!(sent, Ok(Sent::Copied));
        let (_, frame) = socket.receive(is_large);
        assert_eq!(frame[54..], body);
        arena.release(slot.into_free());
        // Again: there is nothing left to return.
        link.return_slots();
    });
}

#[test]
fn a_frame_that_cannot_be_lent_is_copied() {
    in_namespace(|| {
        let peer = connect();
        let (mut arena, mut link) = lending(4);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let mac = link.capabilities().mac;
        let body = pattern(8_192, 0);
        let slot = filled(&mut arena, &body);
        let payload = arena.payload(&slot);
        let head = [b'h'; 4_096];
        // Small, not in a slot, behind much text, behind another part of the slot.
        for parts in [
            &[&payload[..4_095]],
            [&body[..]].as_slice(),
            &[&head, payload],
            &[&payload[..4_096], &payload[4_096..]],
        ] {
            let bytes = parts.concat();
            let segment = Segment::new(mac, MacAddress([2; 6]), 40 + bytes.len());
            assert_eq!(segment.send_with(&mut link, parts), Ok(Sent::Copied));
            let (_, frame) = socket.receive(is_large);
            assert_eq!(frame[54..], bytes);
        }
        let segment = Segment::new(mac, MacAddress([2; 6]), 40 + 4_096);
        let sent = segment.send_with(&mut link, &[&payload[..4_096]]);
        assert_eq!(sent, Ok(Sent::Lent(slot.index())));
        // The device has read it, but the slot is on loan until it is given back.
        socket.receive(is_large);
        let sent = segment.send_with(&mut link, &[&payload[4_096..]]);
        assert_eq!(sent, Ok(Sent::Copied));
        assert_eq!(link.counters().lent_frames, 1);
        assert_eq!(given_back(&mut link, 1), [slot.index()]);
        arena.release(slot.into_free());
    });
}

#[test]
fn slots_are_on_loan_while_frames_wait_and_come_back_when_the_interface_is_removed() {
    in_namespace(|| {
        let _peer = connect();
        // A queue that sends almost nothing.
        run(
            "tc",
            "qdisc add dev v0 root tbf rate 8kbit burst 70000 limit 10000000",
        );
        let config = PacketConfig {
            qdisc_bypass: false,
            zero_copy: ZeroCopy::On,
            ..usual()
        };
        let mut arena = arena(8);
        let mut link = Packet::open(&config).unwrap();
        link.borrow_slots(arena.slot_memory()).unwrap();
        let mac = link.capabilities().mac;
        let mut lent = Vec::new();
        for _ in 0..8 {
            let slot = filled(&mut arena, &pattern(61_440, 0));
            let segment = Segment::new(mac, MacAddress([2; 6]), 40 + 61_440);
            let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
            if sent == Ok(Sent::Lent(slot.index())) {
                arena.lend(&slot);
                lent.push(slot.index());
            }
            arena.release(slot.into_free());
        }
        assert_eq!(lent.len(), 6, "two of eight slots are for reads");
        // The burst lets one frame pass.
        let first = given_back(&mut link, 1);
        assert_eq!(first, lent[..1]);
        arena.give_back(first[0]);
        assert_eq!((arena.parked_count(), arena.free_count()), (5, 3));
        ip("link delete v0");
        for slot in given_back(&mut link, 5) {
            arena.give_back(slot);
        }
        assert_eq!((arena.lent_count(), arena.free_count()), (0, 8));
        assert!(matches!(receive_until_gone(&mut link), LinkError::Gone(_)));
    });
}

#[test]
fn frames_are_copied_where_it_is_not_known_when_they_were_read() {
    in_namespace(|| {
        let _peer = connect();
        let zero_copy = |zero_copy| {
            let config = PacketConfig {
                zero_copy,
                ..usual()
            };
            Packet::open(&config).unwrap().zero_copy()
        };
        let driver = "veth".to_owned();
        assert_eq!(zero_copy(ZeroCopy::On), Ok(()));
        assert_eq!(zero_copy(ZeroCopy::Off), Err(CopyReason::Off));
        assert_eq!(
            zero_copy(ZeroCopy::Auto),
            Err(CopyReason::UnknownDriver { driver })
        );
        set_segmentation("v0", false);
        assert_eq!(zero_copy(ZeroCopy::Auto), Err(CopyReason::NoSegmentation));
    });
}

#[test]
fn what_an_interface_offers_is_told() {
    in_namespace(|| {
        let _peer = connect();
        assert!(link::interface_offers("v0").unwrap().segments_tcp);
        set_segmentation("v0", false);
        let offers = link::interface_offers("v0").unwrap();
        assert_eq!(offers.driver.as_deref(), Some("veth"));
        assert_eq!((offers.mtu_bytes, offers.receive_queues), (1500, Some(1)));
        assert!(!offers.segments_tcp && !offers.tells_when_read);
        let refusals = ["lo", "no-such-link", ""];
        let refusals = refusals.map(|name| link::interface_offers(name).unwrap_err());
        assert!(matches!(
            refusals,
            [
                SetupError::NotEthernet { .. },
                SetupError::NoInterface { .. },
                SetupError::BadName { .. }
            ]
        ));
    });
}

#[test]
fn a_device_without_segmentation_is_not_bypassed_and_the_kernel_cuts() {
    in_namespace(|| {
        let peer = connect();
        set_segmentation("v0", false);
        let mut link = open();
        assert!(!link.bypasses_qdisc());
        let mut socket = peer.run(|| RawSocket::open("v1"));
        send_large(&mut link, MacAddress([2; 6]), 65_521).unwrap();
        assert_eq!(socket.receive(is_large).1.len(), 14 + 40 + 1_448);
    });
}

#[test]
fn a_device_that_stops_segmenting_ends_the_bypass_and_not_the_traffic() {
    in_namespace(|| {
        let peer = connect();
        let mut link = open();
        let mut socket = peer.run(|| RawSocket::open("v1"));
        set_segmentation("v0", false);
        assert!(link.bypasses_qdisc());
        send_large(&mut link, MacAddress([2; 6]), 65_521).unwrap();
        assert_eq!(socket.receive(is_large).1.len(), 14 + 40 + 1_448);
        assert!(!link.bypasses_qdisc());
        assert_eq!(link.counters().full_frames, 0);
    });
}

#[test]
fn a_device_that_stops_segmenting_ends_loans_and_not_the_traffic() {
    in_namespace(|| {
        let peer = connect();
        let (mut arena, mut link) = lending(4);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let body = pattern(61_440, 0);
        let segment = Segment::new(link.capabilities().mac, MacAddress([2; 6]), 40 + body.len());
        let slot = filled(&mut arena, &body);
        let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
        assert_eq!(sent, Ok(Sent::Lent(slot.index())));
        assert_eq!(socket.receive(is_large).1.len(), 14 + 40 + body.len());
        set_segmentation("v0", false);
        // Another slot: the first is still on loan, and must come back.
        let other = filled(&mut arena, &body);
        let sent = segment.send_with(&mut link, &[arena.payload(&other)]);
        assert_eq!(sent, Ok(Sent::Copied));
        assert_eq!(socket.receive(is_large).1.len(), 14 + 40 + 1_448);
        assert!(!link.bypasses_qdisc());
        assert_eq!(given_back(&mut link, 1), [slot.index()]);
        // For good, as the bypass.
        set_segmentation("v0", true);
        let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
        assert_eq!(sent, Ok(Sent::Copied));
        let counters = link.counters();
        assert_eq!((counters.lent_frames, counters.lost_frames), (1, 0));
        for slot in [slot, other] {
            arena.release(slot.into_free());
        }
    });
}

#[test]
fn an_interface_that_was_down_carries_frames_again() {
    in_namespace(|| {
        let peer = connect();
        let mut link = open();
        ip("link set v0 down");
        let mut nothing = |_: link::Received<'_>| panic!("nothing was sent");
        assert_eq!(link.receive(Instant::ZERO, 64, &mut nothing), Ok(0));
        assert_eq!(link.counters().down_events, 1);
        assert_eq!(
            send(&mut link, &[0; 60]),
            Err(TransmitError::Lost(libc::ENETDOWN))
        );
        assert_eq!(link.counters().down_events, 2);
        assert_eq!(
            link.receive(Instant::from_millis(1_000), 64, &mut nothing),
            Ok(0)
        );
        ip("link set v0 up");
        talk(&mut link, &peer, "10.77.0.2", V4);
    });
}

#[test]
fn without_carrier_frames_are_lost_and_not_held() {
    in_namespace(|| {
        let peer = connect();
        let mut link = open();
        peer.run(|| ip("link set v1 down"));
        let down = Err(TransmitError::Lost(libc::ENETDOWN));
        assert_eq!(send(&mut link, &[0; 60]), down);
        assert_eq!(link.counters().down_events, 1);
        peer.run(|| ip("link set v1 up"));
        talk(&mut link, &peer, "10.77.0.2", V4);
    });
}

#[test]
fn a_link_opened_while_the_interface_is_down_works_once_it_is_up() {
    in_namespace(|| {
        let peer = connect();
        ip("link set v0 down");
        let mut link = open();
        assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
        ip("link set v0 up");
        talk(&mut link, &peer, "10.77.0.2", V4);
    });
}

#[test]
fn a_removal_is_noticed_at_whatever_moment_the_link_asks() {
    in_namespace(|| {
        for _ in 0..8 {
            let _peer = connect();
            let mut link = open();
            // A thread is in the namespace of the one that starts it.
            let remove = std::thread::spawn(|| ip("link delete v0"));
            // Each call asks for the state, also while the interface is on its way out.
            let mut now = Instant::ZERO;
            eventually(|| {
                now += Duration::from_millis(5);
                link.receive(now, 64, &mut |_| ()).is_err()
            });
            remove.join().unwrap();
        }
    });
}

#[test]
fn a_removal_is_noticed_after_a_renaming() {
    in_namespace(|| {
        let _peer = connect();
        let mut link = open();
        ip("link set v0 down");
        ip("link set v0 name renamed0");
        assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
        ip("link delete renamed0");
        assert!(matches!(receive_until_gone(&mut link), LinkError::Gone(_)));
    });
}

#[test]
fn a_removed_interface_is_gone_whether_it_was_up_or_down() {
    in_namespace(|| {
        for take_down_first in [false, true] {
            let _peer = connect();
            let mut link = open();
            if take_down_first {
                ip("link set v0 down");
                assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
            }
            ip("link delete v0");
            assert!(matches!(receive_until_gone(&mut link), LinkError::Gone(_)));
            assert_eq!(
                send(&mut link, &[0; 60]),
                Err(TransmitError::Lost(libc::ENXIO))
            );
        }
    });
}

#[test]
fn a_full_send_buffer_returns_full_and_polls_writable_when_it_has_room() {
    in_namespace(|| {
        let _peer = connect();
        // A queue that sends almost nothing, so that frames stay charged to our socket.
        run(
            "tc",
            "qdisc add dev v0 root tbf rate 8kbit burst 2000 limit 10000000",
        );
        let config = PacketConfig {
            send_buffer_bytes: Some(1),
            qdisc_bypass: false,
            ..usual()
        };
        let mut link = Packet::open(&config).unwrap();
        let fill = |link: &mut Packet| {
            (0..100).position(|_| send(link, &[0; 1_000]) == Err(TransmitError::Full))
        };
        let taken = fill(&mut link).expect("4,608 bytes are full before 100 frames");
        assert!(taken >= 1, "an empty buffer takes a frame of any size");
        assert!(!is_ready(link.writable_fd().unwrap(), libc::POLLOUT));
        assert_eq!(link.counters().full_frames, 1);
        run("tc", "qdisc delete dev v0 root");
        wait_writable(&link);
        assert_eq!(send(&mut link, &[0; 1_000]), Ok(Sent::Copied));
    });
}

#[test]
fn a_full_device_queue_returns_full_although_the_descriptor_polls_writable() {
    in_namespace(|| {
        let (mut tap, mut link) = stuck_device();
        assert!(link.bypasses_qdisc());
        let full = (0..10_000).find(|_| send(&mut link, &[0; 60]).is_err());
        assert!(full.is_some_and(|taken| taken > 0));
        assert_eq!(send(&mut link, &[0; 60]), Err(TransmitError::Full));
        assert_eq!(link.counters().full_frames, 2);
        assert!(
            is_ready(link.writable_fd().unwrap(), libc::POLLOUT),
            "why time has to pass"
        );
        assert!(
            tap.receive(Instant::ZERO, 1_000, &mut |_| ())
                .is_ok_and(|handed| handed > 0)
        );
        assert_eq!(send(&mut link, &[0; 60]), Ok(Sent::Copied));
    });
}

/// A device whose queue fills, because its frames are not read: a tap.
fn stuck_device() -> (Tap, Packet) {
    let config = TapConfig {
        name: "t0".to_owned(),
        host_addresses: Vec::new(),
    };
    let tap = Tap::open(&config).unwrap();
    let link = Packet::open(&PacketConfig::new("t0", &[V4.parse().unwrap()])).unwrap();
    (tap, link)
}

/// Sends frames at `now` until one is not taken; how that one ended.
fn fill(link: &mut Packet, now: Instant) -> TransmitError {
    let refusals = (0..100_000).find_map(|_| send_at(link, now, &[0; 60]).err());
    refusals.expect("a queue has an end")
}

/// The smallest step of the clock.
const STEP: Duration = Duration::from_nanos(1);

#[test]
fn a_device_that_refuses_for_the_limit_ends_the_bypass() {
    in_namespace(|| {
        let (_tap, mut link) = stuck_device();
        run("tc", "qdisc add dev t0 root pfifo limit 100");
        assert!(link.bypasses_qdisc());
        let start = Instant::from_millis(5);
        assert_eq!(fill(&mut link, start), TransmitError::Full);
        let just_before = start + (REFUSED_FOR_MAX - STEP);
        assert_eq!(fill(&mut link, just_before), TransmitError::Full);
        assert!(link.bypasses_qdisc());
        assert_eq!(link.counters().bypass_end_events, 0);
        // The device is as full as before; the queueing discipline takes the frame.
        let end = start + REFUSED_FOR_MAX;
        assert_eq!(send_at(&mut link, end, &[0; 60]), Ok(Sent::Copied));
        assert!(!link.bypasses_qdisc());
        let counters = link.counters();
        assert_eq!((counters.bypass_end_events, counters.lost_frames), (1, 0));
    });
}

#[test]
fn a_frame_that_is_refused_for_ever_is_lost_after_the_limit_and_those_behind_it_go() {
    in_namespace(|| {
        let _peer = connect();
        // It refuses every frame larger than its burst, with the errno of a full queue.
        run(
            "tc",
            "qdisc add dev v0 root tbf rate 8kbit burst 500 limit 100000",
        );
        let config = PacketConfig {
            qdisc_bypass: false,
            ..usual()
        };
        let mut link = Packet::open(&config).unwrap();
        let start = Instant::from_millis(5);
        let large = [0; 1_000];
        let full = Err(TransmitError::Full);
        assert_eq!(send_at(&mut link, start, &large), full);
        let just_before = start + (REFUSED_FOR_MAX - STEP);
        assert_eq!(send_at(&mut link, just_before, &large), full);
        assert_eq!(link.counters().refused_frames, 0);
        let end = start + REFUSED_FOR_MAX;
        let lost = Err(TransmitError::Lost(libc::ENOBUFS));
        assert_eq!(send_at(&mut link, end, &large), lost);
        assert_eq!(send_at(&mut link, end, &[0; 60]), Ok(Sent::Copied));
        // The next one has all the time again.
        assert_eq!(send_at(&mut link, end, &large), full);
        let counters = link.counters();
        assert_eq!((counters.refused_frames, counters.lost_frames), (1, 1));
        assert_eq!((counters.full_frames, counters.bypass_end_events), (3, 0));
    });
}

/// Lets the peer's kernel know our MAC, and gives it a socket.
fn introduce(peer: &Peer, mac: MacAddress) -> UdpSocket {
    peer.run(move || {
        let [a, b, c, d, e, f] = mac.0;
        let lladdr = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        ip(&format!("neighbour add {V4} dev v1 lladdr {lladdr}"));
        UdpSocket::bind("10.77.0.2:0").unwrap()
    })
}

#[test]
fn frames_are_handed_up_in_order_all_around_the_ring_and_no_more_than_asked() {
    in_namespace(|| {
        let peer = connect();
        let mut link = open();
        let socket = introduce(&peer, link.capabilities().mac);
        let mut numbers: Vec<u16> = Vec::new();
        // The ring has 2,048 entries.
        for start in (0..5_000_u16).step_by(250) {
            for number in start..start + 250 {
                socket.send_to(&number.to_be_bytes(), (V4, 7)).unwrap();
            }
            while numbers.len() < usize::from(start) + 250 {
                let before = numbers.len();
                let mut take = |received: link::Received<'_>| {
                    numbers.push(u16::from_be_bytes([received.frame[42], received.frame[43]]));
                };
                let handed = link.receive(Instant::ZERO, 70, &mut take).unwrap();
                assert!(handed <= 70 && numbers.len() == before + handed);
            }
        }
        assert!(numbers.into_iter().eq(0..5_000));
        assert_eq!(link.counters().overflow_frames, 0);
    });
}

#[test]
fn frames_that_overflow_the_ring_are_counted_when_the_next_frame_arrives() {
    in_namespace(|| {
        let peer = connect();
        let mut link = open();
        let socket = introduce(&peer, link.capabilities().mac);
        let mut received = 0;
        // A veth delivers while the sender sends, so all have come when the loop ends.
        for _ in 0..2_048 + 100 {
            socket.send_to(b"x", (V4, 7)).unwrap();
        }
        eventually(|| {
            received += link.receive(Instant::ZERO, 4_096, &mut |_| ()).unwrap();
            received == 2_048
        });
        assert_eq!(link.counters().overflow_frames, 0, "not reported yet");
        socket.send_to(b"x", (V4, 7)).unwrap();
        receive_until(&mut link, |_| Some(()));
        assert_eq!(link.counters().overflow_frames, 100);
        socket.send_to(b"x", (V4, 7)).unwrap();
        receive_until(&mut link, |_| Some(()));
        assert_eq!(link.counters().overflow_frames, 100);
    });
}

#[test]
fn frames_too_large_for_the_ring_arrive_whole_and_in_their_turn() {
    in_namespace(|| {
        let peer = connect();
        let receiver = PacketConfig::new("v0", &["10.77.0.99".parse().unwrap()]);
        let mut link = Packet::open(&receiver).unwrap();
        let mac = link.capabilities().mac;
        // Around the size of an entry (2,048 bytes with its own header), and the largest.
        let sizes: Vec<usize> = (1_940..2_000).chain([60, 65_521, 100, 30_000]).collect();
        let expected = sizes.clone();
        peer.run(move || {
            let mut sender =
                Packet::open(&PacketConfig::new("v1", &[V4.parse().unwrap()])).unwrap();
            for packet_bytes in sizes {
                send_large(&mut sender, mac, packet_bytes).unwrap();
            }
        });
        let mut received = Vec::new();
        receive_until(&mut link, |frame| {
            assert_eq!(frame.checksum, wire::ChecksumState::Trusted);
            let payload = frame.frame[54..].iter().enumerate();
            assert!(
                payload
                    .into_iter()
                    .all(|(n, byte)| usize::from(*byte) == n % 251)
            );
            received.push(frame.frame.len() - 14);
            (received.len() == expected.len()).then_some(())
        });
        assert_eq!(received, expected);
        assert_eq!(link.counters().truncated_frames, 0);
    });
}

#[test]
fn a_frame_with_an_offload_unknown_to_virtio_net_does_not_stop_the_ring() {
    in_namespace(|| {
        // What a neighbouring guest sends: the device hands it to the stack with its offload.
        let tap = TapConfig {
            name: "t0".to_owned(),
            host_addresses: Vec::new(),
        };
        let neighbour = Tap::open(&tap).unwrap();
        let fd = neighbour.poll_fd().unwrap().try_clone_to_owned().unwrap();
        let mut wire = std::fs::File::from(fd);
        let config = PacketConfig::new("t0", &[V4.parse().unwrap()]);
        let mut link = Packet::open(&config).unwrap();
        let mac = link.capabilities().mac.0;
        let mut write = |header: [u8; 10], payload_bytes: usize, marker: u8| {
            let ip_bytes = u16::try_from(28 + payload_bytes).unwrap();
            let mut frame = header.to_vec();
            frame.extend_from_slice(&mac);
            frame.extend_from_slice(&[2, 0, 0, 0, 0, 0x99, 0x08, 0x00, 0x45, 0]);
            frame.extend_from_slice(&ip_bytes.to_be_bytes());
            frame.extend_from_slice(&[0, 1, 0, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 9]);
            frame.extend_from_slice(&[0, 7, 0, 7]);
            frame.extend_from_slice(&(ip_bytes - 20).to_be_bytes());
            frame.extend_from_slice(&[0, 0]);
            frame.resize(frame.len() + payload_bytes, marker);
            wire.write_all(&frame).unwrap();
        };
        // virtio-net: NEEDS_CSUM, GSO_UDP, 42 bytes of headers, cut to 1,472, checksum at 34 + 6.
        let [size_low, size_high] = 1_472_u16.to_ne_bytes();
        write([1, 3, 42, 0, size_low, size_high, 34, 0, 6, 0], 4_000, 1);
        write([0; 10], 20, 2);
        let mut markers = Vec::new();
        receive_until(&mut link, |received| {
            markers.extend(received.frame.last());
            (markers.last() == Some(&2)).then_some(())
        });
        assert_eq!(markers, [1, 2]);
    });
}

#[test]
fn going_down_loses_neither_a_queued_large_frame_nor_the_pending_error() {
    in_namespace(|| {
        let peer = connect();
        let receiver = PacketConfig::new("v0", &["10.77.0.99".parse().unwrap()]);
        let mut link = Packet::open(&receiver).unwrap();
        let mac = link.capabilities().mac;
        let send = move |sizes: &'static [usize]| {
            let config = PacketConfig::new("v1", &[V4.parse().unwrap()]);
            let mut sender = Packet::open(&config).unwrap();
            for &packet_bytes in sizes {
                send_large(&mut sender, mac, packet_bytes).unwrap();
            }
        };
        peer.run(move || send(&[20_000, 30_000, 100]));
        ip("link set v0 down");
        let mut sizes = Vec::new();
        let mut note = |received: link::Received<'_>| sizes.push(received.frame.len() - 14);
        while link.receive(Instant::ZERO, 1, &mut note).unwrap() > 0 {}
        assert_eq!(link.counters().down_events, 1);
        ip("link set v0 up");
        peer.run(move || send(&[40_000]));
        receive_until(&mut link, |received| {
            sizes.push(received.frame.len() - 14);
            Some(())
        });
        assert_eq!(sizes, [20_000, 30_000, 100, 40_000]);
        assert_eq!(link.counters().truncated_frames, 0);
        // And that it was down is remembered until it is up: removal is noticed.
        peer.run(move || send(&[20_000, 100]));
        ip("link set v0 down");
        for _ in 0..2 {
            assert_eq!(link.receive(Instant::ZERO, 1, &mut |_| ()), Ok(1));
        }
        ip("link delete v0");
        assert!(matches!(receive_until_gone(&mut link), LinkError::Gone(_)));
    });
}

#[test]
fn without_privileges_the_error_names_the_capability() {
    in_namespace(|| {
        let _peer = connect();
        become_nobody();
        let error = Packet::open(&usual()).unwrap_err();
        assert!(matches!(error, SetupError::NotPermitted { .. }));
        assert!(error.to_string().contains("setcap cap_net_raw"), "{error}");
    });
}

#[test]
fn segments_that_the_kernel_makes_have_no_page_of_a_slot() {
    in_namespace(|| {
        let peer = connect();
        set_segmentation("v0", false);
        // The queue keeps the segments long after the frame was handed over.
        run(
            "tc",
            "qdisc add dev v0 root tbf rate 8mbit burst 2000 limit 10000000",
        );
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let config = PacketConfig {
            zero_copy: ZeroCopy::On,
            ..usual()
        };
        let mut arena = arena(4);
        let mut link = Packet::open(&config).unwrap();
        assert!(!link.bypasses_qdisc());
        link.borrow_slots(arena.slot_memory()).unwrap();
        let body = pattern(30_000, 0);
        let mut slot = filled(&mut arena, &body);
        let segment = Segment::new(link.capabilities().mac, MacAddress([2; 6]), 40 + 30_000);
        let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
        assert_eq!(sent, Ok(Sent::Lent(slot.index())));
        arena.lend(&slot);
        assert_eq!(given_back(&mut link, 1), [slot.index()]);
        arena.give_back(slot.index());
        arena.payload_mut(&mut slot).fill(0xee);
        let mut received = Vec::new();
        while received.len() < body.len() {
            received.extend_from_slice(&socket.receive(|it| it.len() > 600).1[54..]);
        }
        assert!(received == body);
        arena.release(slot.into_free());
    });
}

#[test]
fn changes_are_followed_after_a_renaming() {
    in_namespace(|| {
        let peer = connect();
        let mut watch = InterfaceWatch::open("v0").unwrap();
        let mut link = open();
        ip("link set v0 name renamed0");
        ip("link set renamed0 mtu 1400");
        let state = watch.take_change().unwrap().unwrap();
        assert_eq!((watch.name(), state.mtu_bytes), ("renamed0", 1_400));
        // Another interface may have the old name.
        ip("link add v0 type veth peer name other0");
        assert_eq!(watch.take_change(), Ok(None));
        talk(&mut link, &peer, "10.77.0.2", V4);
        ip("link delete renamed0");
        for _ in 0..2 {
            let refusal = watch.take_change().unwrap_err();
            assert!(matches!(refusal, SetupError::NoInterface { .. }));
        }
    });
}

#[test]
fn addresses_and_routes_that_come_and_go_are_notified_and_a_neighbour_is_known() {
    in_namespace(|| {
        let peer = connect();
        let mut watch = InterfaceWatch::open("v0").unwrap();
        ip("addr add 10.77.0.50/24 dev v0");
        assert_eq!(watch.take_change(), Ok(None));
        assert!(!watch.take_address_change(), "only if they are followed");
        watch.follow_addresses().unwrap();
        assert!(watch.take_address_change(), "they may have changed before");
        assert!(!watch.take_address_change());
        for change in [
            "addr add 10.77.0.51/32 dev lo",
            "addr del 10.77.0.51/32 dev lo",
            "addr add fd77::51/128 dev lo",
            "addr del fd77::51/128 dev lo",
            "addr del 10.77.0.50/24 dev v0",
            "route add default via 10.77.0.2",
            "route del default",
        ] {
            ip(change);
            assert!(is_ready(watch.poll_fd(), libc::POLLIN), "{change}");
            assert_eq!(watch.take_change(), Ok(None), "{change}");
            assert!(watch.take_address_change(), "{change}");
        }
        let there = "10.77.0.2".parse().unwrap();
        ip("neighbor flush dev v0");
        assert_eq!(watch.neighbor(there), Ok(None));
        let mac = peer.run(|| interface_mac("v1").unwrap());
        ip(&format!(
            "neighbor add 10.77.0.2 lladdr {} dev v0",
            mac.unwrap()
        ));
        assert_eq!(watch.neighbor(there), Ok(mac));
    });
}
