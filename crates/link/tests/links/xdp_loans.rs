//! Slots on loan to AF_XDP sockets, on a veth pair whose kernel copies them: every byte that is sent is
//! compared, after the slot was overwritten.

use crate::common::{
    RawSocket, Segment, connect, eventually, in_namespace, ip, is_large, open_xdp,
    receive_until_gone, run, set_tag_removal,
};
use clock::Instant;
use link::{
    AttachMode, CopyReason, Link, LinkError, Sent, TransmitError, Xdp, XdpConfig, ZeroCopy,
};
use memory::{Arena, ArenaConfig, FilledSlot, PageKind};
use wire::{ChecksumState, Incoming, MacAddress, parse_frame};

const SLOTS: u32 = 4;
/// The kernel counts a page for each piece: more would not fit the buffer of a socket that receives later.
const BODY_BYTES: usize = 14_000;

fn config(interface: &str, attach: AttachMode) -> XdpConfig {
    XdpConfig {
        attach,
        loans: ZeroCopy::On,
        slots_bytes: ArenaConfig::new(SLOTS).slots_bytes(),
        ..XdpConfig::new(interface, &["10.77.0.9".parse().unwrap()])
    }
}

/// A link that was lent slots.
fn lending(config: &XdpConfig) -> Option<(Arena, Xdp)> {
    let mut link = open_xdp(config)?;
    let arena = Arena::new(ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(SLOTS)
    });
    let arena = arena.unwrap();
    assert_eq!(link.zero_copy(), Ok(()));
    link.borrow_slots(arena.slot_memory()).unwrap();
    Some((arena, link))
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

/// Sends a head and a slot's bytes.
fn send(link: &mut Xdp, head: &[u8], body: &[u8]) -> Sent {
    let mac = link.capabilities().mac;
    let bytes = 40 + head.len() + body.len();
    let segment = Segment::new(mac, MacAddress([2; 6]), bytes);
    segment.send_with(link, &[head, body]).unwrap()
}

/// Slots that come back, until there are `count`.
fn given_back(link: &mut Xdp, count: usize) -> Vec<u32> {
    let mut slots = Vec::new();
    eventually(|| {
        link.give_back(Instant::ZERO, &mut |slot| slots.push(slot));
        slots.len() >= count
    });
    slots
}

/// Takes the frames of one large segment, whose checksums must be right, and compares their payload.
fn receive(socket: &mut RawSocket, expected: &[u8]) {
    let mut received = Vec::new();
    while received.len() < expected.len() {
        let (_, frame) = socket.receive(is_large);
        assert!(frame.len() <= 1_514);
        let parsed = parse_frame(&frame, ChecksumState::Unverified).unwrap();
        let Incoming::Tcp { payload, .. } = parsed else {
            panic!("not TCP");
        };
        received.extend_from_slice(payload);
    }
    assert!(received == expected, "other bytes");
}

/// Sends a frame, of which all but `head_bytes` is in a slot, overwrites the slot once it came back, and
/// compares what arrives.
fn lend_and_overwrite(
    (link, arena): (&mut Xdp, &mut Arena),
    socket: &mut RawSocket,
    round: usize,
    head_bytes: usize,
) {
    let head = vec![b'h'; head_bytes];
    let body = pattern(BODY_BYTES - head_bytes, round);
    let mut slot = filled(arena, &body);
    let sent = send(link, &head, arena.payload(&slot));
    assert_eq!(sent, Sent::Lent(slot.index()));
    arena.lend(&slot);
    assert_eq!(given_back(link, 1), [slot.index()]);
    arena.give_back(slot.index());
    arena.payload_mut(&mut slot).fill(0xee);
    arena.release(slot.into_free());
    receive(socket, &[head, body].concat());
}

#[test]
fn a_frame_is_sent_from_its_slot_which_may_then_be_overwritten() {
    in_namespace(|| {
        let peer = connect();
        for attach in [AttachMode::Driver, AttachMode::Generic] {
            let Some((mut arena, mut link)) = lending(&config("v0", attach)) else {
                return;
            };
            let mut socket = peer.run(|| RawSocket::open("v1"));
            for round in 0..40 {
                lend_and_overwrite((&mut link, &mut arena), &mut socket, round, 90 * round);
            }
            let counters = link.counters();
            assert_eq!(counters.lent_frames, 40);
            assert_eq!((counters.lost_frames, counters.receive_errors), (0, 0));
            assert_eq!(
                counters.queued_descriptors, counters.completed_descriptors,
                "headers and pieces all came back"
            );
            assert!(counters.queued_descriptors > 40 * 20, "in pieces");
            link.return_slots();
        }
    });
}

#[test]
fn small_frames_slots_on_loan_and_returned_slots_are_copied() {
    in_namespace(|| {
        let peer = connect();
        let Some((mut arena, mut link)) = lending(&config("v0", AttachMode::Auto)) else {
            return;
        };
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let body = pattern(BODY_BYTES, 3);
        let slot = filled(&mut arena, &body);
        for (bytes, is_lent) in [(4_095, false), (4_096, true), (4_096, false)] {
            let sent = send(&mut link, &[], &arena.payload(&slot)[..bytes]);
            assert_eq!(matches!(sent, Sent::Lent(_)), is_lent, "{bytes}");
            receive(&mut socket, &body[..bytes]);
        }
        arena.lend(&slot);
        arena.give_back(given_back(&mut link, 1)[0]);
        arena.release(slot.into_free());
        link.return_slots();
        let slot = filled(&mut arena, &body);
        assert_eq!(send(&mut link, &[], arena.payload(&slot)), Sent::Copied);
        receive(&mut socket, &body);
        arena.release(slot.into_free());
    });
}

#[test]
fn late_completions_cost_three_of_four_slots_and_not_the_link() {
    in_namespace(|| {
        let peer = connect();
        // Frames of the one interface wait in a queue of the other that sends almost nothing.
        ip("link add link v0 name m0 type macvlan");
        ip("link set m0 up");
        let slow = "qdisc add dev v0 root tbf rate 8kbit burst 1600 limit 10000000";
        run("tc", slow);
        let Some((mut arena, mut link)) = lending(&config("m0", AttachMode::Auto)) else {
            return;
        };
        let bodies: Vec<_> = (0..SLOTS).map(|n| pattern(20_000, n as usize)).collect();
        let mut lent = Vec::new();
        for body in &bodies {
            let slot = filled(&mut arena, body);
            if let Sent::Lent(index) = send(&mut link, &[], arena.payload(&slot)) {
                arena.lend(&slot);
                lent.push(index);
            }
            arena.release(slot.into_free());
        }
        assert_eq!(lent.len(), 3, "one of four slots is for reads");
        assert_eq!((arena.parked_count(), arena.free_count()), (3, 1));
        link.give_back(Instant::ZERO, &mut |slot| {
            panic!("slot {slot} was not read")
        });
        run("tc", "qdisc del dev v0 root");
        // The frames of the queue that was removed are gone; their slots come back all the same.
        let mut back = given_back(&mut link, 3);
        back.sort_unstable();
        lent.sort_unstable();
        assert_eq!(back, lent);
        back.iter().for_each(|slot| arena.give_back(*slot));
        assert_eq!((arena.lent_count(), arena.free_count()), (0, 4));
        let slot = filled(&mut arena, &bodies[1]);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        let sent = send(&mut link, &[], arena.payload(&slot));
        assert_eq!(sent, Sent::Lent(slot.index()));
        arena.lend(&slot);
        receive(&mut socket, &bodies[1]);
        assert_eq!(given_back(&mut link, 1), [slot.index()]);
        arena.give_back(slot.index());
        arena.release(slot.into_free());
    });
}

#[test]
fn slots_on_loan_when_the_interface_goes_down_or_away_are_not_named_too_early() {
    in_namespace(|| {
        let peer = connect();
        let Some((mut arena, mut link)) = lending(&config("v0", AttachMode::Auto)) else {
            return;
        };
        let body = pattern(BODY_BYTES, 9);
        ip("link set v0 down");
        let mut slot = filled(&mut arena, &body);
        // It is not known to be down: the frame is queued, and its slot stays on loan.
        let sent = send(&mut link, &[], arena.payload(&slot));
        assert_eq!(sent, Sent::Lent(slot.index()));
        arena.lend(&slot);
        link.give_back(Instant::ZERO, &mut |slot| {
            panic!("slot {slot} was not read")
        });
        assert_eq!(link.counters().down_events, 1);
        let mut socket = peer.run(|| RawSocket::open("v1"));
        ip("link set v0 up");
        let mut back = Vec::new();
        eventually(|| {
            let _ = link.receive(Instant::ZERO, 64, &mut |_| ());
            link.give_back(Instant::ZERO, &mut |slot| back.push(slot));
            !back.is_empty()
        });
        arena.give_back(back[0]);
        arena.payload_mut(&mut slot).fill(0xee);
        // Frames may be dropped while the carrier comes up; none has other bytes.
        let place = |byte: u8| body.iter().position(|other| *other == byte);
        let (_, frame) = socket.receive(is_large);
        let from = place(frame[54]).unwrap();
        assert!(body[from..].starts_with(&frame[54..]));
        ip("link delete v0");
        let sent = link.transmit(
            Instant::ZERO,
            &wire::Outgoing {
                headers: &[0; 60],
                payload: &[],
                offload: wire::Offload::default(),
            },
        );
        assert!(sent.is_err());
        arena.release(slot.into_free());
    });
}

#[test]
fn slots_on_loan_when_the_interface_is_removed_come_back_with_its_frames() {
    in_namespace(|| {
        let _peer = connect();
        // Frames of the one interface wait in a queue of the other that sends almost nothing.
        ip("link add link v0 name m0 type macvlan");
        ip("link set m0 up");
        let slow = "qdisc add dev v0 root tbf rate 8kbit burst 1600 limit 10000000";
        run("tc", slow);
        let Some((mut arena, mut link)) = lending(&config("m0", AttachMode::Auto)) else {
            return;
        };
        let body = pattern(20_000, 5);
        for _ in 0..2 {
            let slot = filled(&mut arena, &body);
            let sent = send(&mut link, &[], arena.payload(&slot));
            assert_eq!(sent, Sent::Lent(slot.index()));
            arena.lend(&slot);
            arena.release(slot.into_free());
        }
        ip("link delete m0");
        assert!(matches!(receive_until_gone(&mut link), LinkError::Gone(_)));
        let slot = filled(&mut arena, &body);
        let segment = Segment::new(MacAddress([2; 6]), MacAddress([2; 6]), 40 + body.len());
        let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
        assert!(matches!(sent, Err(TransmitError::Lost(_))), "{sent:?}");
        arena.release(slot.into_free());
        link.give_back(Instant::ZERO, &mut |slot| {
            panic!("slot {slot} was not read")
        });
        assert_eq!(arena.lent_count(), 2);
        // With the queue that the frames wait in, they are gone, and their slots come back.
        ip("link delete v0");
        for slot in given_back(&mut link, 2) {
            arena.give_back(slot);
        }
        assert_eq!(
            (arena.lent_count(), arena.free_count()),
            (0, SLOTS as usize)
        );
        let counters = link.counters();
        assert_eq!(counters.queued_descriptors, counters.completed_descriptors);
        link.return_slots();
    });
}

#[test]
fn a_kernel_that_copies_is_lent_slots_only_if_that_is_chosen() {
    in_namespace(|| {
        let _peer = connect();
        let reason = |loans| {
            let config = XdpConfig {
                loans,
                ..config("v0", AttachMode::Auto)
            };
            open_xdp(&config).map(|link| link.zero_copy())
        };
        let Some(auto) = reason(ZeroCopy::Auto) else {
            return;
        };
        assert_eq!(auto, Err(CopyReason::OneBuffer));
        assert_eq!(reason(ZeroCopy::Off), Some(Err(CopyReason::Off)));
        assert_eq!(reason(ZeroCopy::On), Some(Ok(())));
        // More slots than there is memory for.
        let mut link = open_xdp(&config("v0", AttachMode::Auto)).unwrap();
        let arena = Arena::new(ArenaConfig {
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(SLOTS + 1)
        });
        let refused = link.borrow_slots(arena.unwrap().slot_memory());
        assert_eq!(refused, Err(CopyReason::NoRing(libc::EINVAL)));
    });
}

#[test]
fn a_frame_of_a_vlan_is_sent_from_its_slot() {
    in_namespace(|| {
        let peer = connect();
        set_tag_removal("v0", false);
        let config = XdpConfig {
            vlan: Some(link::VlanTag {
                protocol: 0x8100,
                id: 100,
            }),
            ..config("v0", AttachMode::Auto)
        };
        let Some((mut arena, mut link)) = lending(&config) else {
            return;
        };
        let mut socket = peer.run(|| RawSocket::open("v1"));
        for round in 0..10 {
            lend_and_overwrite((&mut link, &mut arena), &mut socket, round, 200 * round);
        }
        let counters = link.counters();
        assert_eq!((counters.lent_frames, counters.receive_errors), (10, 0));
        assert_eq!(counters.queued_descriptors, counters.completed_descriptors);
    });
}
