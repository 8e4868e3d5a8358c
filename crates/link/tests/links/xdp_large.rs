//! Frames larger than a cell of an AF_XDP socket, on a veth pair with jumbo frames: sent and received in
//! several cells, by copying and from slots, and every byte compared.

use crate::common::{
    Peer, RawSocket, Segment, connect, eventually, in_namespace, ip, is_large, open_xdp,
    receive_until, send, set_tag_removal,
};
use clock::Instant;
use link::xdp::{CELLS_MIN, MTU_BYTES_MAX, MTU_BYTES_MAX_IN_CELLS};
use link::{
    AttachMode, Link, Sent, SetupError, TransmitError, VlanTag, XdpConfig, XdpPacket, ZeroCopy,
};
use memory::{Arena, ArenaConfig, PageKind};
use wire::{ChecksumState, Incoming, MacAddress, parse_frame};

const MODES: [AttachMode; 2] = [AttachMode::Driver, AttachMode::Generic];
/// Frames on both sides of a cell with and without headroom, of two cells, and of the largest at MTU 9,000.
const FRAME_BYTES: [usize; 9] = [60, 3_840, 3_841, 4_096, 4_097, 7_936, 7_937, 8_193, 9_014];
const SLOTS: u32 = 4;

fn config(attach: AttachMode) -> XdpConfig {
    XdpConfig {
        attach,
        receive_cells: CELLS_MIN,
        transmit_cells: CELLS_MIN,
        ..XdpConfig::new("v0", &["10.77.0.9".parse().unwrap()])
    }
}

/// A veth pair with this MTU.
fn connect_with(mtu_bytes: u32) -> Peer {
    let peer = connect();
    set_mtu(&peer, mtu_bytes);
    peer
}

fn set_mtu(peer: &Peer, mtu_bytes: u32) {
    ip(&format!("link set v0 mtu {mtu_bytes}"));
    peer.run(move || ip(&format!("link set v1 mtu {mtu_bytes}")));
}

/// A UDP frame to our address, of `bytes` bytes that differ by `number`.
fn numbered(mac: MacAddress, number: usize, bytes: usize) -> Vec<u8> {
    let mut frame = mac.0.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0x99, 0x08, 0x00, 0x45, 0]);
    frame.extend(u16::try_from(bytes - 14).unwrap().to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 9]);
    let filler = |n: usize| u8::try_from((n * 7 + number) % 251).unwrap();
    frame.extend((frame.len()..bytes).map(filler));
    frame
}

/// Frames of all sizes, many times what the rings hold, there and back.
fn pass_frames(link: &mut impl Link, peer: &Peer) {
    let mac = link.capabilities().mac;
    assert_eq!(link.capabilities().mtu_bytes, 9_000);
    let mut socket = peer.run(|| RawSocket::open("v1"));
    let other = MacAddress([4; 6]);
    for round in 0..40 {
        for bytes in FRAME_BYTES {
            let frame = numbered(mac, round, bytes);
            socket.send(&frame);
            let received = receive_until(link, |it| Some(it.frame.to_vec()));
            assert!(received == frame, "{bytes} bytes received");
            let frame = numbered(other, round, bytes);
            send(link, &frame).unwrap();
            let (_, sent) = socket.receive(|frame| frame.get(..6) == Some(&other.0));
            assert!(sent == frame, "{bytes} bytes sent");
        }
    }
    let too_large = Err(TransmitError::Lost(libc::EMSGSIZE));
    assert_eq!(send(link, &numbered(other, 1, 9_015)), too_large);
    let counters = link.counters();
    assert_eq!(counters.received_frames, 40 * FRAME_BYTES.len() as u64);
    assert_eq!((counters.receive_errors, counters.truncated_frames), (0, 0));
    assert_eq!((counters.overflow_frames, counters.lost_frames), (0, 1));
    // One, two or three cells each.
    let cells: usize = FRAME_BYTES.iter().map(|it| it.div_ceil(3_840)).sum();
    assert_eq!(counters.received_cells, 40 * cells as u64);
    assert_eq!(counters.accepted_cells, counters.received_cells);
    let all = counters.offered_cells - counters.received_cells;
    assert_eq!(all, u64::from(CELLS_MIN));
}

#[test]
fn frames_of_several_cells_come_and_go_unchanged() {
    in_namespace(|| {
        let peer = connect_with(9_000);
        for attach in MODES {
            let Some(mut link) = open_xdp(&config(attach)) else {
                return;
            };
            assert_eq!(link.is_in_driver(), attach == AttachMode::Driver);
            pass_frames(&mut link, &peer);
            eventually(|| {
                let _ = link.receive(Instant::ZERO, 64, &mut |_| ());
                link.in_flight_cells() == 0
            });
            let counters = link.counters();
            assert_eq!(counters.queued_descriptors, counters.completed_descriptors);
        }
    });
}

#[test]
fn frames_of_several_cells_come_through_xdp_and_go_through_a_packet_socket() {
    in_namespace(|| {
        let peer = connect_with(9_000);
        for attach in MODES {
            // Says so where it can't be.
            if open_xdp(&config(attach)).is_none() {
                return;
            }
            let mut links = Vec::new();
            eventually(|| match XdpPacket::open_queues(&config(attach)) {
                Err(SetupError::ProgramAttached { .. }) => false,
                opened => {
                    links = opened.unwrap();
                    true
                }
            });
            let link = links.first_mut().unwrap();
            assert_eq!(link.capabilities().mtu_bytes, 9_000);
            let mac = link.capabilities().mac;
            let mut socket = peer.run(|| RawSocket::open("v1"));
            for bytes in FRAME_BYTES {
                let frame = numbered(mac, bytes, bytes);
                socket.send(&frame);
                let received = receive_until(link, |it| Some(it.frame.to_vec()));
                assert!(received == frame, "{bytes} bytes received");
            }
            let frame = numbered(MacAddress([4; 6]), 1, 9_014);
            send(link, &frame).unwrap();
            let (_, sent) = socket.receive(|frame| frame.get(..6) == Some(&[4; 6]));
            assert!(sent == frame);
        }
    });
}

#[test]
fn a_vlan_s_frames_of_several_cells_come_and_go_unchanged() {
    in_namespace(|| {
        let peer = connect_with(9_004);
        set_tag_removal("v0", false);
        let tag = VlanTag {
            protocol: 0x8100,
            id: 100,
        };
        let tagged = XdpConfig {
            vlan: Some(tag),
            ..config(AttachMode::Driver)
        };
        let Some(mut link) = open_xdp(&tagged) else {
            return;
        };
        let mac = link.capabilities().mac;
        let mut socket = peer.run(|| RawSocket::open("v1"));
        for bytes in FRAME_BYTES {
            let frame = numbered(mac, 3, bytes);
            let mut on_wire = frame.clone();
            on_wire.splice(12..12, [0x81, 0x00, 0xa0, 100]);
            socket.send(&on_wire);
            let received = receive_until(&mut link, |it| Some(it.frame.to_vec()));
            assert!(received == frame, "{bytes} bytes received");
            send(&mut link, &numbered(MacAddress([4; 6]), 3, bytes)).unwrap();
            // Its tag has been taken off by the kernel.
            let (_, sent) = socket.receive(|frame| frame.get(..6) == Some(&[4; 6]));
            assert!(sent == numbered(MacAddress([4; 6]), 3, bytes), "{bytes}");
        }
    });
}

/// Takes the frames of one large segment, whose checksums must be right; how many frames, and their payload.
fn receive_segments(socket: &mut RawSocket, payload_bytes: usize) -> (usize, Vec<u8>) {
    let (mut frames, mut received) = (0, Vec::new());
    while received.len() < payload_bytes {
        let (_, frame) = socket.receive(is_large);
        assert!(frame.len() <= 9_014);
        let parsed = parse_frame(&frame, ChecksumState::Unverified).unwrap();
        let Incoming::Tcp { payload, .. } = parsed else {
            panic!("not TCP");
        };
        frames += 1;
        received.extend_from_slice(payload);
    }
    (frames, received)
}

#[test]
fn large_segments_are_cut_into_large_frames_copied_and_from_slots() {
    in_namespace(|| {
        let peer = connect_with(9_000);
        for attach in MODES {
            let lending = XdpConfig {
                loans: ZeroCopy::On,
                slots_bytes: ArenaConfig::new(SLOTS).slots_bytes(),
                ..config(attach)
            };
            let Some(mut link) = open_xdp(&lending) else {
                return;
            };
            let arena = Arena::new(ArenaConfig {
                pages: PageKind::Ordinary,
                ..ArenaConfig::new(SLOTS)
            });
            let mut arena = arena.unwrap();
            link.borrow_slots(arena.slot_memory()).unwrap();
            let mut socket = peer.run(|| RawSocket::open("v1"));
            for round in 0..60_usize {
                // The body begins and ends at other places of a page in each round.
                let head = vec![b'h'; 50 + 83 * round];
                let body: Vec<u8> = (0..40_000 - 311 * round)
                    .map(|n| u8::try_from((n * 3 + round) % 251).unwrap())
                    .collect();
                let slot = arena.reserve().unwrap().into_reading();
                let mut slot = slot.into_filled(u32::try_from(body.len()).unwrap());
                arena.payload_mut(&mut slot).copy_from_slice(&body);
                let from = 97 * round;
                let lent = &arena.payload(&slot)[from..];
                let bytes = 40 + head.len() + lent.len();
                let mac = link.capabilities().mac;
                let segment = Segment::new(mac, MacAddress([2; 6]), bytes).cut_to(8_948);
                let sent = segment.send_with(&mut link, &[&head, lent]).unwrap();
                assert_eq!(sent, Sent::Lent(slot.index()));
                arena.lend(&slot);
                let mut back = Vec::new();
                eventually(|| {
                    link.give_back(Instant::ZERO, &mut |slot| back.push(slot));
                    !back.is_empty()
                });
                arena.give_back(back[0]);
                arena.payload_mut(&mut slot).fill(0xee);
                arena.release(slot.into_free());
                let expected = [&head, &body[from..]].concat();
                let (frames, received) = receive_segments(&mut socket, expected.len());
                assert_eq!(frames, expected.len().div_ceil(8_948));
                assert!(received == expected, "other bytes in round {round}");
                // The same, copied.
                segment.send_with(&mut link, &[&expected]).unwrap();
                let (frames, received) = receive_segments(&mut socket, expected.len());
                assert_eq!(frames, expected.len().div_ceil(8_948));
                assert!(received == expected, "other bytes copied in round {round}");
            }
            let counters = link.counters();
            assert_eq!((counters.lent_frames, counters.lost_frames), (60, 0));
            assert_eq!(counters.receive_errors, 0);
            eventually(|| {
                let _ = link.receive(Instant::ZERO, 64, &mut |_| ());
                let counters = link.counters();
                counters.queued_descriptors == counters.completed_descriptors
            });
            link.return_slots();
        }
    });
}

#[test]
fn a_segment_that_nobody_has_cut_is_received_whole_and_trusted() {
    in_namespace(|| {
        let peer = connect();
        // With a program in the driver, a veth's other end cuts.
        let attach = AttachMode::Generic;
        for mtu_bytes in [9_000, 1_500] {
            set_mtu(&peer, mtu_bytes);
            let address = XdpConfig::new("v0", &["10.77.0.99".parse().unwrap()]);
            let Some(mut link) = open_xdp(&XdpConfig { attach, ..address }) else {
                return;
            };
            let mac = link.capabilities().mac;
            let mut socket = peer.run(|| RawSocket::open("v1"));
            // The last is the largest that a device takes uncut.
            for packet_bytes in [10_000, 30_000, 65_521] {
                let segment = Segment::new(MacAddress([2; 6]), mac, packet_bytes);
                socket.send_segment(&segment);
                let (frame, checksum) =
                    receive_until(&mut link, |it| Some((it.frame.to_vec(), it.checksum)));
                assert_eq!(frame.len(), 14 + packet_bytes);
                assert_eq!(checksum, ChecksumState::Trusted);
                let Ok(Incoming::Tcp { payload, .. }) = parse_frame(&frame, checksum) else {
                    panic!("not TCP");
                };
                let is_right = |(n, byte): (usize, &u8)| usize::from(*byte) == n % 251;
                assert!(payload.iter().enumerate().all(is_right));
            }
            assert_eq!(link.counters().receive_errors, 0);
        }
    });
}

#[test]
fn what_does_not_fit_a_cell_is_counted_where_frames_have_one() {
    in_namespace(|| {
        let peer = connect_with(MTU_BYTES_MAX.into());
        peer.run(|| ip("link set v1 mtu 9000"));
        let Some(mut link) = open_xdp(&config(AttachMode::Driver)) else {
            return;
        };
        assert_eq!(link.capabilities().mtu_bytes, MTU_BYTES_MAX);
        let mac = link.capabilities().mac;
        let mut socket = peer.run(|| RawSocket::open("v1"));
        // A veth lets a tag's four bytes more through.
        for (dropped, bytes) in [(0, 3_840), (1, 3_841), (2, 3_844)] {
            socket.send(&numbered(mac, 1, bytes));
            if dropped == 0 {
                let received = receive_until(&mut link, |it| Some(it.frame.len()));
                assert_eq!(received, bytes);
            }
            eventually(|| link.counters().overflow_frames == dropped);
        }
        let counters = link.counters();
        assert_eq!((counters.received_frames, counters.receive_errors), (1, 0));
    });
}

#[test]
fn an_mtu_above_what_cells_hold_is_taken_for_that() {
    in_namespace(|| {
        let peer = connect();
        for (mtu_bytes, expected) in [
            (12_273, 12_273),
            (12_274, MTU_BYTES_MAX_IN_CELLS),
            (12_275, MTU_BYTES_MAX_IN_CELLS),
            (65_535, MTU_BYTES_MAX_IN_CELLS),
        ] {
            set_mtu(&peer, mtu_bytes);
            let Some(link) = open_xdp(&config(AttachMode::Auto)) else {
                return;
            };
            assert_eq!(link.capabilities().mtu_bytes, expected);
        }
    });
}
