//! Checksums of frames from AF_XDP sockets that are left to the kernel by metadata, on a veth pair: what
//! arrives unfinished is marked so, what passes a device that must not be handed such frames is right, and
//! slots on loan are sent with every byte as it was.

use crate::common::{
    Peer, RawSocket, Segment, connect, eventually, in_namespace, ip, is_large, open_xdp,
    set_tag_removal, set_transmit_checksum, talk,
};
use clock::Instant;
use link::xdp::{CELLS_MIN, MTU_BYTES_MAX_IN_CELLS};
use link::{AttachMode, ChecksumOffload, Checksums, Link, Sent, VlanTag, Xdp, XdpConfig, ZeroCopy};
use memory::{Arena, ArenaConfig, FilledSlot, PageKind};
use wire::{ChecksumState, Incoming, MacAddress, parse_frame};

const MODES: [AttachMode; 2] = [AttachMode::Driver, AttachMode::Generic];
const SLOTS: u32 = 4;
/// The kernel counts a page for each piece: more would not fit the buffer of a socket that receives later.
const BODY_BYTES: usize = 14_000;
const PAGE_BYTES: usize = 4_096;
/// What the kernel keeps free at a page's start for the metadata.
const METADATA_BYTES: usize = 24;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;

fn config(attach: AttachMode) -> XdpConfig {
    XdpConfig {
        attach,
        checksum_offload: ChecksumOffload::On,
        ..XdpConfig::new("v0", &["10.77.0.9".parse().unwrap()])
    }
}

/// A link that leaves checksums to the kernel; `None`, and a word of it, where there is no such kernel.
fn open(config: &XdpConfig) -> Option<Xdp> {
    let link = open_xdp(config)?;
    if link.frame_path().checksums == Checksums::Software {
        eprintln!("SKIPPED: the kernel knows no metadata of frames that are sent");
        return None;
    }
    Some(link)
}

/// Takes the frames of one large segment and finishes their checksums if `is_unfinished`: so they must be
/// marked, with the place where the checksum belongs. How many frames, and their payload.
fn receive(socket: &mut RawSocket, payload_bytes: usize, is_unfinished: bool) -> (usize, Vec<u8>) {
    let (mut frames, mut received) = (0, Vec::new());
    while received.len() < payload_bytes {
        let (header, mut frame) = socket.receive(is_large);
        let number = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let unfinished = header[0] & NEEDS_CHECKSUM != 0;
        assert_eq!(unfinished, is_unfinished, "{header:?}");
        if unfinished {
            let place = wire::PartialChecksum {
                start: number(6),
                offset: number(8),
            };
            assert_eq!((place.start, place.offset), (34, 16));
            assert!(
                parse_frame(&frame, ChecksumState::Unverified).is_err(),
                "it is marked as unfinished and is not"
            );
            wire::complete_checksum(&mut frame, place);
        }
        let parsed = parse_frame(&frame, ChecksumState::Unverified).unwrap();
        let Incoming::Tcp { payload, .. } = parsed else {
            panic!("not TCP");
        };
        frames += 1;
        received.extend_from_slice(payload);
    }
    (frames, received)
}

/// Waits until all descriptors are back, and has the kernel's word that none was refused.
fn check_descriptors(link: &mut Xdp) {
    eventually(|| {
        let _ = link.receive(Instant::ZERO, 64, &mut |_| ());
        link.give_back(Instant::ZERO, &mut |_| ());
        let counters = link.counters();
        counters.queued_descriptors == counters.completed_descriptors
    });
    assert_eq!(link.in_flight_cells(), 0);
    assert_eq!(link.statistics().transmit_invalid_descriptors, 0);
    let counters = link.counters();
    assert_eq!((counters.lost_frames, counters.receive_errors), (0, 0));
}

/// Bytes that differ by place and by `round`.
fn pattern(length: usize, round: usize) -> Vec<u8> {
    let byte = |n| u8::try_from((n * 3 + round) % 251).unwrap();
    (0..length).map(byte).collect()
}

#[test]
fn a_device_that_finishes_checksums_is_handed_unfinished_ones_and_others_finished_ones() {
    in_namespace(|| {
        let peer = connect();
        for attach in MODES {
            let Some(mut link) = open(&config(attach)) else {
                return;
            };
            let mut socket = peer.run(|| RawSocket::open("v1"));
            for is_finished_by_device in [true, false] {
                set_transmit_checksum("v0", is_finished_by_device);
                // One frame, some, and the largest segment.
                for packet_bytes in [1_500, 1_501, 30_000, 65_535] {
                    let payload = pattern(packet_bytes - 40, packet_bytes);
                    let mac = link.capabilities().mac;
                    let segment = Segment::new(mac, MacAddress([2; 6]), packet_bytes);
                    let (first, second) = payload.split_at(500);
                    segment.send_with(&mut link, &[first, second]).unwrap();
                    let (frames, received) =
                        receive(&mut socket, payload.len(), is_finished_by_device);
                    let expected = match packet_bytes {
                        1_500 => 1,
                        _ => payload.len().div_ceil(1_448),
                    };
                    assert_eq!(frames, expected);
                    assert!(received == payload, "other bytes of {packet_bytes}");
                }
            }
            check_descriptors(&mut link);
        }
    });
}

#[test]
fn a_neighbour_s_stack_takes_what_is_left_to_the_kernel_and_what_has_no_checksum() {
    in_namespace(|| {
        let peer = connect();
        for attach in MODES {
            for is_finished_by_device in [true, false] {
                let both = XdpConfig {
                    checksum_offload: ChecksumOffload::On,
                    attach,
                    ..XdpConfig::new(
                        "v0",
                        &["10.77.0.9".parse().unwrap(), "fd77::9".parse().unwrap()],
                    )
                };
                set_transmit_checksum("v0", is_finished_by_device);
                let Some(mut link) = open(&both) else {
                    return;
                };
                // Answers to ARP and neighbour solicitations are finished frames, without metadata.
                talk(&mut link, &peer, "10.77.0.2", "10.77.0.9");
                talk(&mut link, &peer, "fd77::2", "fd77::9");
                check_descriptors(&mut link);
            }
        }
    });
}

#[test]
fn on_a_veth_the_link_makes_checksums_unless_told_not_to() {
    in_namespace(|| {
        let _peer = connect();
        let checksums = |checksum_offload| {
            let config = XdpConfig {
                checksum_offload,
                ..config(AttachMode::Auto)
            };
            open_xdp(&config).map(|link| link.frame_path().checksums)
        };
        let software = checksums(ChecksumOffload::Auto);
        assert!(software.is_none_or(|it| it == Checksums::Software));
        let software = checksums(ChecksumOffload::Off);
        assert!(software.is_none_or(|it| it == Checksums::Software));
    });
}

#[test]
fn in_a_vlan_the_checksum_is_behind_the_tag() {
    in_namespace(|| {
        let peer = connect();
        set_tag_removal("v0", false);
        let tagged = XdpConfig {
            vlan: Some(VlanTag {
                protocol: 0x8100,
                id: 100,
            }),
            ..config(AttachMode::Driver)
        };
        let Some(mut link) = open(&tagged) else {
            return;
        };
        let mut socket = peer.run(|| RawSocket::open("v1"));
        // The kernel finishes them, so that a wrong place would give a wrong checksum.
        set_transmit_checksum("v0", false);
        for packet_bytes in [600, 20_000] {
            let payload = pattern(packet_bytes - 40, 1);
            let mac = link.capabilities().mac;
            let segment = Segment::new(mac, MacAddress([2; 6]), packet_bytes);
            segment.send_with(&mut link, &[&payload]).unwrap();
            let (_, received) = receive(&mut socket, payload.len(), false);
            assert!(received == payload);
        }
        check_descriptors(&mut link);
    });
}

/// A link that was lent slots.
fn lending(config: &XdpConfig) -> Option<(Arena, Xdp)> {
    let config = XdpConfig {
        loans: ZeroCopy::On,
        slots_bytes: ArenaConfig::new(SLOTS).slots_bytes(),
        ..config.clone()
    };
    let mut link = open(&config)?;
    let arena = Arena::new(ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(SLOTS)
    });
    let arena = arena.unwrap();
    link.borrow_slots(arena.slot_memory()).unwrap();
    Some((arena, link))
}

fn filled(arena: &mut Arena, bytes: &[u8]) -> FilledSlot {
    let slot = arena.reserve().unwrap().into_reading();
    let mut slot = slot.into_filled(u32::try_from(bytes.len()).unwrap());
    arena.payload_mut(&mut slot).copy_from_slice(bytes);
    slot
}

/// Descriptors of one frame: its bytes are copied but for those from `lent` on, which are in a slot
/// from `address` on. Counted byte by byte.
fn descriptors(frame_bytes: usize, lent: usize, address: usize) -> u64 {
    let (mut count, mut room, mut is_piece) = (0, 0, false);
    for byte in 0..frame_bytes {
        let in_page = (address + byte.saturating_sub(lent)) % PAGE_BYTES;
        if byte >= lent && in_page >= METADATA_BYTES {
            count += u64::from(!is_piece || in_page == METADATA_BYTES);
            (is_piece, room) = (true, 0);
            continue;
        }
        is_piece = false;
        if room == 0 {
            count += 1;
            room = PAGE_BYTES - METADATA_BYTES;
        }
        room -= 1;
    }
    count
}

/// The descriptors of a segment that begins with `head_bytes` and goes on in a slot, from `address` on.
fn descriptors_of_segment(
    segment_bytes: usize,
    (head_bytes, body_bytes): (usize, usize),
    address: usize,
) -> u64 {
    let frames = (0..head_bytes + body_bytes).step_by(segment_bytes);
    let count = |from: usize| {
        let bytes = segment_bytes.min(head_bytes + body_bytes - from);
        let copied = head_bytes.saturating_sub(from).min(bytes);
        let lent_from = address + from.saturating_sub(head_bytes);
        descriptors(54 + bytes, 54 + copied, lent_from)
    };
    frames.map(count).sum()
}

/// Sends a head and what is in a slot from its byte `from` on, overwrites the slot when it came back, and
/// compares what arrives.
fn lend_and_overwrite(
    (link, arena): (&mut Xdp, &mut Arena),
    socket: &mut RawSocket,
    segment_bytes: u16,
    (head_bytes, from, round): (usize, usize, usize),
) {
    let head = vec![b'h'; head_bytes];
    let body = pattern(BODY_BYTES, round);
    let mut slot = filled(arena, &body);
    let lent = &arena.payload(&slot)[from..];
    let mac = link.capabilities().mac;
    let bytes = 40 + head.len() + lent.len();
    let segment = Segment::new(mac, MacAddress([2; 6]), bytes).cut_to(segment_bytes);
    let address = lent.as_ptr().addr();
    let sizes = (head.len(), lent.len());
    let before = link.counters().queued_descriptors;
    let sent = segment.send_with(link, &[&head, lent]).unwrap();
    assert_eq!(sent, Sent::Lent(slot.index()));
    let queued = link.counters().queued_descriptors - before;
    let expected = descriptors_of_segment(segment_bytes.into(), sizes, address);
    assert_eq!(queued, expected, "cut to {segment_bytes}, from byte {from}");
    arena.lend(&slot);
    let mut back = Vec::new();
    eventually(|| {
        link.give_back(Instant::ZERO, &mut |slot| back.push(slot));
        !back.is_empty()
    });
    assert_eq!(back, [slot.index()]);
    arena.give_back(slot.index());
    arena.payload_mut(&mut slot).fill(0xee);
    arena.release(slot.into_free());
    let expected = [&head, &body[from..]].concat();
    let (frames, received) = receive(socket, expected.len(), true);
    assert_eq!(frames, expected.len().div_ceil(segment_bytes.into()));
    assert!(received == expected, "other bytes in round {round}");
}

fn set_mtu(peer: &Peer, mtu_bytes: u32) {
    ip(&format!("link set v0 mtu {mtu_bytes}"));
    peer.run(move || ip(&format!("link set v1 mtu {mtu_bytes}")));
}

#[test]
fn slots_on_loan_are_sent_whole_wherever_their_bytes_begin_in_a_page() {
    in_namespace(|| {
        let peer = connect();
        for (mtu, segment_bytes) in [(1_500, 1_448), (9_000, 8_948)] {
            set_mtu(&peer, mtu);
            for attach in MODES {
                let Some((mut arena, mut link)) = lending(&config(attach)) else {
                    return;
                };
                let mut socket = peer.run(|| RawSocket::open("v1"));
                // All places around the start of a page, and of a frame in a page.
                let mut round = 0;
                for from in (0..30).chain(4_090..4_126).chain((200..4_000).step_by(811)) {
                    // No head, some, and so much that a frame's cell is full.
                    for head_bytes in [0, 100 + round, 4_018] {
                        let places = (head_bytes, from, round);
                        let link = (&mut link, &mut arena);
                        lend_and_overwrite(link, &mut socket, segment_bytes, places);
                        round += 1;
                    }
                }
                assert_eq!(link.counters().lent_frames, round as u64);
                check_descriptors(&mut link);
                link.return_slots();
            }
        }
    });
}

#[test]
fn the_fewest_cells_are_enough_for_the_largest_segment_from_a_slot() {
    in_namespace(|| {
        let peer = connect();
        let fewest = XdpConfig {
            receive_cells: CELLS_MIN,
            transmit_cells: CELLS_MIN,
            ..config(AttachMode::Driver)
        };
        let Some((mut arena, mut link)) = lending(&fewest) else {
            return;
        };
        let packet_bytes = link.capabilities().segmentation_bytes_max as usize;
        assert_eq!(packet_bytes, 24 * 1_024);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        socket.enlarge();
        let body = pattern(packet_bytes - 40, 7);
        let slot = filled(&mut arena, &body);
        let mac = link.capabilities().mac;
        let segment = Segment::new(mac, MacAddress([2; 6]), packet_bytes).cut_to(524);
        let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
        assert_eq!(sent, Ok(Sent::Lent(slot.index())));
        arena.lend(&slot);
        let (frames, received) = receive(&mut socket, body.len(), true);
        assert_eq!(frames, body.len().div_ceil(524));
        assert!(received == body);
        let mut back = Vec::new();
        eventually(|| {
            link.give_back(Instant::ZERO, &mut |slot| back.push(slot));
            !back.is_empty()
        });
        arena.give_back(back[0]);
        arena.release(slot.into_free());
        check_descriptors(&mut link);
    });
}

#[test]
fn the_largest_frames_fill_three_cells_without_their_metadata() {
    in_namespace(|| {
        let peer = connect();
        set_mtu(&peer, MTU_BYTES_MAX_IN_CELLS.into());
        let Some(mut link) = open(&config(AttachMode::Driver)) else {
            return;
        };
        let mtu_bytes = MTU_BYTES_MAX_IN_CELLS - 3 * 24;
        assert_eq!(link.capabilities().mtu_bytes, mtu_bytes);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        // Both sides of one cell, of two, and the largest.
        for packet_bytes in [4_058, 4_059, 8_130, 8_131, usize::from(mtu_bytes)] {
            let payload = pattern(packet_bytes - 40, packet_bytes);
            let mac = link.capabilities().mac;
            let segment = Segment::new(mac, MacAddress([2; 6]), packet_bytes);
            let segment = segment.cut_to(u16::try_from(payload.len()).unwrap());
            let before = link.counters().queued_descriptors;
            segment.send_with(&mut link, &[&payload]).unwrap();
            let queued = link.counters().queued_descriptors - before;
            let cells = (packet_bytes + 14).div_ceil(PAGE_BYTES - METADATA_BYTES);
            assert_eq!(queued, cells as u64, "{packet_bytes}");
            let (frames, received) = receive(&mut socket, payload.len(), true);
            assert!(frames == 1 && received == payload, "{packet_bytes}");
        }
        check_descriptors(&mut link);
    });
}
