//! Links that receive through AF_XDP and send through packet sockets, on a veth pair beside the kernel's
//! own stack, each test in its own network namespace with a peer in another. What each half does alone
//! is tried in `xdp.rs` and `packet.rs`.

use crate::common::{
    RawSocket, Segment, connect, connect_queues, eventually, in_namespace, ip, is_large,
    kernels_talk, receive_until_gone, send, send_at, send_large, talk,
};
use clock::{Duration, Instant};
use link::{
    CopyReason, Link, LinkError, Sent, SetupError, TransmitError, XdpConfig, XdpPacket, ZeroCopy,
    interface_mac,
};
use memory::{Arena, ArenaConfig, PageKind};
use wire::MacAddress;

const V4: &str = "10.77.0.9";
const V6: &str = "fd77::9";
const HOST: &str = "10.77.0.1";
const PORT: u16 = 8_080;

fn usual() -> XdpConfig {
    XdpConfig::new("v0", &[V4.parse().unwrap(), V6.parse().unwrap()])
}

/// All queues of the interface.
fn open_queues(config: &XdpConfig) -> Vec<XdpPacket> {
    let mut links = Vec::new();
    // A process that another test forks holds a program that we have just let go of until it execs.
    eventually(|| match XdpPacket::open_queues(config) {
        Err(SetupError::ProgramAttached { .. }) => false,
        opened => {
            links = opened.unwrap();
            true
        }
    });
    links
}

/// The only link of an interface with one queue.
fn open(config: &XdpConfig) -> XdpPacket {
    let mut links = open_queues(config);
    assert_eq!(links.len(), 1);
    links.remove(0)
}

/// Runs `test` in a new network namespace, or says why it cannot.
fn with_xdp(test: impl FnOnce() + Send + 'static) {
    in_namespace(|| {
        ip("link add try0 type veth peer name try1");
        let config = XdpConfig {
            interface: "try0".to_owned(),
            ..usual()
        };
        match XdpPacket::open_queues(&config) {
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

#[test]
fn a_neighbour_s_stack_talks_to_us_and_to_the_kernel_beside_us() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&usual());
        kernels_talk(&peer);
        let nothing = link.receive(Instant::ZERO, 64, &mut |_| ());
        assert_eq!(nothing, Ok(0), "not ours to see");
        talk(&mut link, &peer, "10.77.0.2", V4);
        talk(&mut link, &peer, "fd77::2", V6);
        kernels_talk(&peer);
        let nothing = link.receive(Instant::ZERO, 64, &mut |_| ());
        assert_eq!(nothing, Ok(0), "what we send does not come back");
        let counters = link.counters();
        assert!(counters.received_frames >= 2, "of the AF_XDP socket");
        assert!(counters.transmitted_frames >= 2, "of the packet socket");
        assert_eq!((counters.lost_frames, counters.full_frames), (0, 0));
        assert_eq!((counters.receive_errors, counters.overflow_frames), (0, 0));
    });
}

#[test]
fn a_shared_address_is_reached_at_the_interface_s_mac_and_the_kernel_keeps_the_rest() {
    with_xdp(|| {
        let peer = connect();
        let config = XdpConfig::shared("v0", &[HOST.parse().unwrap()], &[PORT]);
        let mut link = open(&config);
        let mac = interface_mac("v0").unwrap().unwrap();
        assert_eq!(link.capabilities().mac, mac);
        kernels_talk(&peer);
        assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
        // From our port, beside the kernel's own frames from the same address.
        let mut socket = peer.run(|| RawSocket::open("v1"));
        send_large(&mut link, MacAddress([2; 6]), 3_000).unwrap();
        let (_, frame) = socket.receive(is_large);
        assert_eq!(frame[6..12], mac.0);
        kernels_talk(&peer);
    });
}

#[test]
fn the_largest_packet_leaves_in_one_piece_and_one_byte_more_is_lost() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&usual());
        assert!(link.bypasses_qdisc());
        let largest = link.capabilities().segmentation_bytes_max as usize;
        assert_eq!(largest, 65_521, "the device's limit, not AF_XDP's");
        let mut socket = peer.run(|| RawSocket::open("v1"));
        send_large(&mut link, MacAddress([2; 6]), largest).unwrap();
        let (_, frame) = socket.receive(is_large);
        assert_eq!(frame.len(), 14 + largest);
        let lost = Err(TransmitError::Lost(libc::EMSGSIZE));
        let too_large = send_large(&mut link, MacAddress([2; 6]), largest + 1);
        assert_eq!(too_large, lost);
        assert_eq!(link.counters().lost_frames, 1);
        let state = link::InterfaceState {
            mtu_bytes: 1_400,
            segmentation_bytes_max: 30_000,
            ..link::InterfaceWatch::open("v0").unwrap().state()
        };
        let capabilities = link.apply_interface_state(&state);
        let limits = (capabilities.mtu_bytes, capabilities.segmentation_bytes_max);
        assert_eq!(limits, (1_400, 30_000));
        assert!(send_large(&mut link, MacAddress([2; 6]), 30_000).is_ok());
        assert_eq!(
            send_large(&mut link, MacAddress([2; 6]), 30_001),
            lost,
            "it is the sender's limit, too"
        );
    });
}

#[test]
fn a_frame_is_sent_from_its_slot() {
    const BYTES: usize = 61_440;
    with_xdp(|| {
        let peer = connect();
        let on = XdpConfig {
            zero_copy: ZeroCopy::On,
            ..usual()
        };
        let mut link = open(&on);
        let config = ArenaConfig {
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(4)
        };
        let mut arena = Arena::new(config).unwrap();
        assert_eq!(link.zero_copy(), Ok(()));
        link.borrow_slots(arena.slot_memory()).unwrap();
        let mut far_end = peer.run(|| RawSocket::open("v1"));
        let segment = Segment::new(link.capabilities().mac, MacAddress([2; 6]), 40 + BYTES);
        let slot = arena.reserve().unwrap().into_reading();
        let mut slot = slot.into_filled(u32::try_from(BYTES).unwrap());
        arena.payload_mut(&mut slot).fill(7);
        let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
        assert_eq!(sent, Ok(Sent::Lent(slot.index())));
        arena.lend(&slot);
        assert_eq!(far_end.receive(is_large).1[54..], [7; BYTES]);
        eventually(|| {
            let mut back = Vec::new();
            link.give_back(Instant::ZERO, &mut |slot| back.push(slot));
            back == [slot.index()]
        });
        arena.give_back(slot.index());
        arena.release(slot.into_free());
        link.return_slots();
        assert_eq!((arena.lent_count(), arena.free_count()), (0, 4));
        assert_eq!(link.counters().lent_frames, 1);
        drop(link);
        let off = XdpConfig {
            zero_copy: ZeroCopy::Off,
            ..usual()
        };
        assert_eq!(open(&off).zero_copy(), Err(CopyReason::Off));
        // Received frames are copied on a veth, which is no reason not to open it.
        assert!(!open(&on).receiver().is_zero_copy());
    });
}

#[test]
fn each_queue_has_a_link_and_all_of_them_send() {
    with_xdp(|| {
        let peer = connect_queues(2);
        let mut links = open_queues(&usual());
        assert_eq!(links.len(), 2);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        for (place, link) in (0..).zip(&mut links) {
            assert_eq!(link.receiver().queue_index(), place);
            send_large(link, MacAddress([2; 6]), 3_000).unwrap();
            assert_eq!(socket.receive(is_large).1.len(), 3_014);
        }
    });
}

#[test]
fn a_removed_interface_is_gone() {
    with_xdp(|| {
        for sends_first in [false, true] {
            let _peer = connect();
            let mut link = open(&usual());
            ip("link delete v0");
            let later = Instant::ZERO + Duration::from_millis(1);
            if sends_first {
                let sent = send_at(&mut link, later, &[0; 60]);
                assert_eq!(sent, Err(TransmitError::Lost(libc::ENXIO)));
            }
            assert!(matches!(receive_until_gone(&mut link), LinkError::Gone(_)));
        }
    });
}

#[test]
fn an_interface_that_was_down_carries_frames_again() {
    with_xdp(|| {
        let peer = connect();
        let mut link = open(&usual());
        ip("link set v0 down");
        let lost = send(&mut link, &[0; 60]);
        assert_eq!(lost, Err(TransmitError::Lost(libc::ENETDOWN)));
        assert_eq!(link.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
        assert!(link.counters().down_events > 0);
        ip("link set v0 up");
        talk(&mut link, &peer, "10.77.0.2", V4);
    });
}
