//! Each fault on and off, each bound on both sides, and that the seed decides everything.

use clock::{Duration, Instant};
use memory::{Arena, ArenaConfig, FilledSlot};
use wire::{
    ChecksumState, Incoming, MacAddress, Offload, Outgoing, PartialChecksum, Segmentation,
    SegmentationKind, parse_frame,
};

use super::{
    MILLION, NicConfig, PathConfig, PathCounters, SimConfig, SimLink, SimNic, SimPort, SlotRead,
    pair,
};
use crate::{Capabilities, CopyReason, Link, Sent, TransmitError};

const FRAMES: u16 = 2_000;

fn at(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

/// A frame of one number, its bytes not IP.
fn numbered(number: u16) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..16].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[14], frame[15]])
}

fn transmit(link: &mut SimLink, now: Instant, frame: &[u8]) -> Result<Sent, TransmitError> {
    let (headers, payload) = frame.split_at(14);
    link.transmit(
        now,
        &Outgoing {
            headers,
            payload: &[payload],
            offload: Offload::default(),
        },
    )
}

/// Follows the wire's events to their end and returns the numbers that arrived, by moment.
fn arrivals(port: &mut SimPort) -> Vec<(Instant, u16)> {
    let mut arrived = Vec::new();
    while let Some(now) = port.next_event() {
        while let Some(frame) = port.receive(now) {
            arrived.push((now, number(&frame)));
        }
    }
    arrived
}

/// Sends numbered frames, one a microsecond, over a wire with these faults.
fn run(to_port: PathConfig, seed: u64) -> (Vec<(Instant, u16)>, PathCounters) {
    let (mut link, mut port) = pair(
        SimConfig {
            to_port,
            ..SimConfig::default()
        },
        seed,
    );
    for number in 0..FRAMES {
        transmit(&mut link, at(number.into()), &numbered(number)).unwrap();
    }
    (arrivals(&mut port), port.counters_to_port())
}

/// A large segment of `payload_bytes`, as [`wire::emit_tcp`] would leave it for this link.
fn large_headers(payload_bytes: usize) -> [u8; 54] {
    let mut headers = [0; 54];
    headers[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    headers[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    headers[12..14].copy_from_slice(&[0x08, 0x00]);
    headers[14..16].copy_from_slice(&[0x45, 0]);
    let total_bytes = u16::try_from(40 + payload_bytes).unwrap();
    headers[16..18].copy_from_slice(&total_bytes.to_be_bytes());
    headers[20] = 0x40;
    headers[22..24].copy_from_slice(&[64, 6]);
    headers[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let header_sum = sum(&headers[14..34]);
    headers[24..26].copy_from_slice(&(!header_sum).to_be_bytes());
    headers[34..38].copy_from_slice(&[0, 80, 0x10, 0]);
    headers[46..50].copy_from_slice(&[0x50, 0x18, 0x10, 0]);
    let mut pseudo = headers[26..34].to_vec();
    pseudo.extend_from_slice(&[0, 6]);
    pseudo.extend_from_slice(&(total_bytes - 20).to_be_bytes());
    headers[50..52].copy_from_slice(&sum(&pseudo).to_be_bytes());
    headers
}

/// RFC 1071: the ones' complement sum of 16-bit words.
fn sum(bytes: &[u8]) -> u16 {
    let total: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    let folded = (total & 0xffff) + (total >> 16);
    u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}

fn large_offload(segment_bytes: u16) -> Offload {
    Offload {
        checksum: Some(PartialChecksum {
            start: 34,
            offset: 16,
        }),
        segmentation: Some(Segmentation {
            kind: SegmentationKind::TcpV4,
            segment_bytes,
        }),
    }
}

fn transmit_large(link: &mut SimLink, payload: &[u8]) -> Result<Sent, TransmitError> {
    let headers = large_headers(payload.len());
    let (first, second) = payload.split_at(payload.len() / 3);
    let offload = large_offload(1_460);
    link.transmit(
        at(0),
        &Outgoing {
            headers: &headers,
            payload: &[first, second],
            offload,
        },
    )
}

#[test]
fn without_faults_everything_arrives_in_order_and_on_time() {
    let delay = Duration::from_micros(250);
    let (arrived, counters) = run(
        PathConfig {
            delay,
            ..PathConfig::default()
        },
        1,
    );
    let expected: Vec<_> = (0..FRAMES).map(|n| (at(u64::from(n) + 250), n)).collect();
    assert_eq!(arrived, expected);
    let expected = PathCounters {
        carried_frames: FRAMES.into(),
        ..PathCounters::default()
    };
    assert_eq!(counters, expected);
}

#[test]
fn frames_of_one_moment_keep_their_order() {
    let (mut link, mut port) = pair(SimConfig::default(), 1);
    for number in 0..50 {
        transmit(&mut link, at(7), &numbered(number)).unwrap();
    }
    let order: Vec<u16> = arrivals(&mut port)
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    assert!(order.into_iter().eq(0..50));
}

#[test]
fn the_seed_decides_everything_and_only_the_seed() {
    let faults = PathConfig {
        loss_ppm: 100_000,
        duplicate_ppm: 100_000,
        reorder_ppm: 100_000,
        reorder_delay: Duration::from_micros(50),
        ..PathConfig::default()
    };
    assert_eq!(run(faults, 5), run(faults, 5));
    assert_ne!(run(faults, 5), run(faults, 6));
    // Pinned, so that a change of the generator or of the order of draws is seen: seeds kept in
    // files would mean other runs after it.
    assert_eq!(run(faults, 5).1.lost_frames, PINNED_LOST_FRAMES);
}

/// Of [`FRAMES`] with seed 5 and a rate of a tenth.
const PINNED_LOST_FRAMES: u64 = 204;

#[test]
fn the_two_directions_draw_their_faults_independently() {
    let lossy = PathConfig {
        loss_ppm: MILLION / 2,
        ..PathConfig::default()
    };
    let config = SimConfig {
        to_port: lossy,
        to_link: lossy,
        ..SimConfig::default()
    };
    let (mut link, mut port) = pair(config, 3);
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for number in 0..64 {
        transmit(&mut link, at(0), &numbered(number)).unwrap();
        port.send(at(0), numbered(number));
    }
    while let Some(frame) = port.receive(at(0)) {
        there.push(number(&frame));
    }
    let handed = link.receive(at(0), 64, &mut |received| back.push(number(received.frame)));
    assert_eq!(handed, Ok(back.len()));
    assert_ne!(there, back);
}

#[test]
fn rates_are_kept_near_enough_and_at_their_ends_exactly() {
    type Set = fn(&mut PathConfig, u32);
    type Read = fn(&PathCounters) -> u64;
    let faults: [(Set, Read); 3] = [
        (
            |config, rate| config.loss_ppm = rate,
            |counters| counters.lost_frames,
        ),
        (
            |config, rate| config.duplicate_ppm = rate,
            |counters| counters.duplicated_frames,
        ),
        (
            |config, rate| config.reorder_ppm = rate,
            |counters| counters.reordered_frames,
        ),
    ];
    for (set, read) in faults {
        let happened = |rate| {
            let mut config = PathConfig::default();
            set(&mut config, rate);
            read(&run(config, 11).1)
        };
        assert_eq!(happened(0), 0);
        assert_eq!(happened(MILLION), u64::from(FRAMES));
        // 200 expected, standard deviation 13.4: six of them to each side.
        assert!(
            (120..=280).contains(&happened(100_000)),
            "{}",
            happened(100_000)
        );
    }
}

#[test]
fn lost_frames_do_not_arrive_and_duplicates_arrive_twice() {
    let lossy = PathConfig {
        loss_ppm: 200_000,
        ..PathConfig::default()
    };
    let (arrived, counters) = run(lossy, 2);
    assert_eq!(arrived.len() as u64 + counters.lost_frames, FRAMES.into());
    let doubling = PathConfig {
        duplicate_ppm: MILLION,
        ..PathConfig::default()
    };
    let (arrived, _) = run(doubling, 2);
    assert_eq!(arrived.len(), 2 * usize::from(FRAMES));
    assert!(arrived.chunks(2).all(|twins| twins[0] == twins[1]));
}

#[test]
fn reordered_frames_are_overtaken_and_never_later_than_the_limit() {
    let late = PathConfig {
        reorder_ppm: 100_000,
        reorder_delay: Duration::from_micros(20),
        ..PathConfig::default()
    };
    let (arrived, _) = run(late, 4);
    assert_eq!(arrived.len(), usize::from(FRAMES));
    assert!(!arrived.is_sorted_by_key(|(_, number)| *number));
    for (moment, number) in arrived {
        assert!(moment.since(at(number.into())) <= Duration::from_micros(20));
    }
}

#[test]
fn switching_one_fault_off_does_not_move_the_others() {
    let lossy = PathConfig {
        loss_ppm: 100_000,
        ..PathConfig::default()
    };
    let both = PathConfig {
        duplicate_ppm: 300_000,
        ..lossy
    };
    let mut numbers: Vec<u16> = run(both, 9)
        .0
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    numbers.dedup();
    assert!(
        run(lossy, 9)
            .0
            .into_iter()
            .map(|(_, number)| number)
            .eq(numbers)
    );
}

#[test]
fn a_corrupted_packet_differs_in_one_bit_and_is_refused_by_the_parser() {
    let corrupt = PathConfig {
        corrupt_ppm: MILLION,
        ..PathConfig::default()
    };
    let (mut link, mut port) = pair(
        SimConfig {
            to_port: corrupt,
            ..SimConfig::default()
        },
        8,
    );
    let (mut clean_link, mut clean_port) = pair(SimConfig::default(), 8);
    let payload = vec![0x5a; 40_000];
    transmit_large(&mut link, &payload).unwrap();
    transmit_large(&mut clean_link, &payload).unwrap();
    let mut frames = 0;
    while let Some(clean) = clean_port.receive(at(0)) {
        let dirty = port.receive(at(0)).unwrap();
        let flips: u32 = clean
            .iter()
            .zip(&dirty)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        assert_eq!((flips, clean.len()), (1, dirty.len()));
        assert_eq!(
            clean[..14],
            dirty[..14],
            "Ethernet's own checksum guards its header"
        );
        assert!(parse_frame(&dirty, ChecksumState::Unverified).is_err());
        frames += 1;
    }
    assert_eq!(port.counters_to_port().corrupted_frames, frames);
    // What is not IP has no checksum that would catch it.
    transmit(&mut link, at(0), &numbered(7)).unwrap();
    assert_eq!(port.receive(at(0)), Some(numbered(7)));
}

#[test]
fn a_large_frame_arrives_as_complete_frames_of_the_mtu() {
    let (mut link, mut port) = pair(SimConfig::default(), 1);
    let pattern: Vec<u8> = (0..65_495_u32)
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect();
    transmit_large(&mut link, &pattern).unwrap();
    let mut text = Vec::new();
    while let Some(frame) = port.receive(at(0)) {
        assert!(frame.len() <= 14 + 1_500);
        match parse_frame(&frame, ChecksumState::Unverified) {
            Ok(Incoming::Tcp {
                segment, payload, ..
            }) => {
                assert_eq!(segment.sequence.0 as usize, text.len());
                text.extend_from_slice(payload);
            }
            other => panic!("cut into {other:?}"),
        }
    }
    assert_eq!(text, pattern);
    assert_eq!(link.counters().transmitted_frames, 1);
    assert_eq!(port.counters_to_port().carried_frames, 45);
}

#[test]
fn the_largest_sizes_pass_and_one_byte_more_is_lost() {
    let segmentation_bytes_max = 20_000;
    let (mut link, _port) = pair(
        SimConfig {
            segmentation_bytes_max,
            ..SimConfig::default()
        },
        1,
    );
    assert_eq!(
        transmit_large(&mut link, &vec![0; 20_000 - 40]),
        Ok(Sent::Copied)
    );
    let lost = Err(TransmitError::Lost(libc::EMSGSIZE));
    assert_eq!(transmit_large(&mut link, &vec![0; 20_000 - 39]), lost);
    assert_eq!(transmit(&mut link, at(0), &[0; 1_514]), Ok(Sent::Copied));
    assert_eq!(transmit(&mut link, at(0), &[0; 1_515]), lost);
    assert_eq!(link.counters().lost_frames, 2);
}

#[test]
fn the_port_refuses_frames_larger_than_the_mtu() {
    let (mut link, mut port) = pair(SimConfig::default(), 1);
    port.send(at(0), vec![0; 1_514]);
    port.send(at(0), vec![0; 1_515]);
    let mut sizes = Vec::new();
    let handed = link.receive(at(0), 8, &mut |received| sizes.push(received.frame.len()));
    assert_eq!((handed, sizes), (Ok(1), vec![1_514]));
    assert_eq!(port.counters_to_link().oversize_frames, 1);
}

#[test]
fn capabilities_follow_the_configuration() {
    let config = SimConfig {
        mtu_bytes: 9_000,
        segmentation_bytes_max: 0,
        checksum_offload: false,
        ..SimConfig::default()
    };
    let expected = Capabilities {
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        mtu_bytes: 9_000,
        segmentation_bytes_max: 0,
        checksum_offload: false,
    };
    assert_eq!(pair(config, 1).0.capabilities(), expected);
}

#[test]
#[should_panic(expected = "a large frame for a link without segmentation")]
fn an_offload_that_was_not_offered_is_a_programming_error() {
    let config = SimConfig {
        segmentation_bytes_max: 0,
        ..SimConfig::default()
    };
    let _ = transmit_large(&mut pair(config, 1).0, &[0; 4_000]);
}

#[test]
#[should_panic(expected = "a partial checksum for a link without checksum offload")]
fn a_partial_checksum_that_was_not_offered_is_a_programming_error() {
    let config = SimConfig {
        segmentation_bytes_max: 0,
        checksum_offload: false,
        ..SimConfig::default()
    };
    let headers = large_headers(0);
    let offload = Offload {
        segmentation: None,
        ..large_offload(1)
    };
    let frame = Outgoing {
        headers: &headers,
        payload: &[],
        offload,
    };
    let _ = pair(config, 1).0.transmit(at(0), &frame);
}

#[test]
fn a_full_transmit_queue_has_room_again_at_the_announced_time() {
    // 60 bytes at 480,000 bits per second: one frame in a millisecond.
    let config = SimConfig {
        transmit_bits_per_second: 480_000,
        transmit_queue_frames_max: 2,
        ..SimConfig::default()
    };
    let (mut link, mut port) = pair(config, 1);
    assert_eq!(transmit(&mut link, at(0), &numbered(0)), Ok(Sent::Copied));
    assert_eq!(transmit(&mut link, at(0), &numbered(1)), Ok(Sent::Copied));
    assert_eq!(
        transmit(&mut link, at(0), &numbered(2)),
        Err(TransmitError::Full)
    );
    assert_eq!(link.next_event(), Some(at(1_000)));
    assert_eq!(
        transmit(&mut link, at(999), &numbered(2)),
        Err(TransmitError::Full)
    );
    assert_eq!(
        transmit(&mut link, at(1_000), &numbered(2)),
        Ok(Sent::Copied)
    );
    assert_eq!(link.counters().full_frames, 2);
    let expected = [(at(1_000), 0), (at(2_000), 1), (at(3_000), 2)];
    assert_eq!(arrivals(&mut port), expected);
}

#[test]
fn room_is_announced_until_the_next_call() {
    let config = SimConfig {
        transmit_bits_per_second: 480_000,
        transmit_queue_frames_max: 1,
        to_port: PathConfig {
            loss_ppm: MILLION,
            ..PathConfig::default()
        },
        ..SimConfig::default()
    };
    let (mut link, _port) = pair(config, 1);
    transmit(&mut link, at(0), &numbered(0)).unwrap();
    assert_eq!(
        transmit(&mut link, at(0), &numbered(1)),
        Err(TransmitError::Full)
    );
    let mut nothing = |_: crate::Received<'_>| panic!("nothing was sent to the link");
    assert_eq!(link.receive(at(999), 1, &mut nothing), Ok(0));
    assert_eq!(link.next_event(), Some(at(1_000)));
    assert_eq!(link.receive(at(1_000), 1, &mut nothing), Ok(0));
    assert_eq!(link.next_event(), None);
}

#[test]
fn a_bottleneck_spaces_frames_and_drops_beyond_its_queue() {
    let narrow = PathConfig {
        bits_per_second: 480_000,
        queue_frames_max: 2,
        delay: Duration::from_millis(5),
        ..PathConfig::default()
    };
    let (mut link, mut port) = pair(
        SimConfig {
            to_port: narrow,
            ..SimConfig::default()
        },
        1,
    );
    for number in 0..5 {
        transmit(&mut link, at(0), &numbered(number)).unwrap();
    }
    // One passes, two wait.
    let expected = [(at(6_000), 0), (at(7_000), 1), (at(8_000), 2)];
    assert_eq!(arrivals(&mut port), expected);
    assert_eq!(port.counters_to_port().queue_dropped_frames, 2);
}

#[test]
fn an_interface_that_is_down_loses_both_ways_and_comes_back() {
    let (mut link, mut port) = pair(SimConfig::default(), 1);
    let mut received = Vec::new();
    port.send(at(0), numbered(0));
    port.set_link_up(at(1), false);
    port.send(at(2), numbered(1));
    assert_eq!(
        transmit(&mut link, at(2), &numbered(2)),
        Err(TransmitError::Lost(libc::ENETDOWN))
    );
    port.send(at(3), numbered(3));
    let handed = link.receive(at(2), 8, &mut |frame| received.push(number(frame.frame)));
    assert_eq!(handed, Ok(0));
    link.set_up(at(4), true);
    port.send(at(5), numbered(4));
    let handed = link.receive(at(5), 8, &mut |frame| received.push(number(frame.frame)));
    assert_eq!((handed, received), (Ok(1), vec![4]));
    assert_eq!(port.counters_to_link().arrived_down_frames, 3);
    assert_eq!(
        link.counters().down_events,
        2,
        "once going down, once transmitting"
    );
    assert_eq!(transmit(&mut link, at(5), &numbered(5)), Ok(Sent::Copied));
}

#[test]
fn receiving_takes_no_more_than_asked() {
    let (mut link, mut port) = pair(SimConfig::default(), 1);
    for number in 0..3 {
        port.send(at(0), numbered(number));
    }
    let mut count = 0;
    assert_eq!(link.receive(at(0), 2, &mut |_| count += 1), Ok(2));
    assert_eq!(link.receive(at(0), 2, &mut |_| count += 1), Ok(1));
    assert_eq!((count, link.next_event()), (3, None));
}

#[test]
#[should_panic(expected = "a rate of 1000001 in a million")]
fn a_rate_above_a_million_is_a_programming_error() {
    let to_port = PathConfig {
        loss_ppm: MILLION + 1,
        ..PathConfig::default()
    };
    let _ = pair(
        SimConfig {
            to_port,
            ..SimConfig::default()
        },
        1,
    );
}

/// A link that borrows the slots of an arena, and reads them `DEVICE_DELAY` after a frame was sent.
fn lending(arena: &Arena) -> (SimLink, SimPort) {
    let config = SimConfig {
        borrows_slots: true,
        device_delay: DEVICE_DELAY,
        mtu_bytes: 9_000,
        ..SimConfig::default()
    };
    let (mut link, port) = pair(config, 1);
    link.borrow_slots(arena.slot_memory()).unwrap();
    (link, port)
}

const DEVICE_DELAY: Duration = Duration::from_micros(10);

/// A slot whose bytes are all `mark`.
fn marked(arena: &mut Arena, mark: u8) -> FilledSlot {
    let slot = arena.reserve().expect("a free slot");
    let mut slot = slot.into_reading().into_filled(5_000);
    arena.payload_mut(&mut slot).fill(mark);
    slot
}

fn send_slot(link: &mut SimLink, now: Instant, payload: &[&[u8]]) -> Result<Sent, TransmitError> {
    link.transmit(
        now,
        &Outgoing {
            headers: &[0xaa; 14],
            payload,
            offload: Offload::default(),
        },
    )
}

fn given_back(link: &mut SimLink, now: Instant) -> Vec<u32> {
    let mut slots = Vec::new();
    link.give_back(now, &mut |slot| slots.push(slot));
    slots
}

#[test]
fn a_slot_is_read_when_the_frame_leaves_and_given_back_then() {
    let mut arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let (mut link, mut port) = lending(&arena);
    let slot = marked(&mut arena, 7);
    let head = [1; 3];
    let sent = send_slot(&mut link, at(0), &[&head, arena.payload(&slot)]);
    assert_eq!(sent, Ok(Sent::Lent(slot.index())));
    assert_eq!(link.next_event(), Some(at(10)));
    assert_eq!(given_back(&mut link, at(9)), [0; 0]);
    assert_eq!(port.receive(at(9)), None);
    assert_eq!(given_back(&mut link, at(10)), [slot.index()]);
    let frame = port.receive(at(10)).expect("it has left");
    assert_eq!(frame[14..17], head);
    assert!(frame[17..].iter().all(|byte| *byte == 7));
    assert_eq!(frame.len(), 14 + 3 + 5_000);
    assert_eq!(port.link_counters().lent_frames, 1);
    arena.release(slot.into_free());
}

#[test]
fn what_is_not_at_the_end_or_in_no_slot_or_on_loan_is_copied() {
    let mut arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let (mut link, _port) = lending(&arena);
    let slot = marked(&mut arena, 7);
    let other = vec![0; 5_000];
    let payload = arena.payload(&slot);
    assert_eq!(send_slot(&mut link, at(0), &[&other]), Ok(Sent::Copied));
    assert_eq!(
        send_slot(&mut link, at(0), &[&payload[..10], &other]),
        Ok(Sent::Copied)
    );
    let sent = send_slot(&mut link, at(0), &[&payload[..10]]);
    assert_eq!(sent, Ok(Sent::Lent(slot.index())));
    assert_eq!(
        send_slot(&mut link, at(0), &[&payload[10..]]),
        Ok(Sent::Copied),
        "one loan at a time"
    );
    assert_eq!(given_back(&mut link, at(10)), [slot.index()]);
    let again = send_slot(&mut link, at(10), &[&payload[10..]]);
    assert_eq!(again, Ok(Sent::Lent(slot.index())));
    arena.release(slot.into_free());
}

#[test]
fn three_of_four_slots_are_lent_and_no_more() {
    let mut arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let (mut link, _port) = lending(&arena);
    let slots: Vec<_> = (0..7).map(|mark| marked(&mut arena, mark)).collect();
    let sent: Vec<_> = slots
        .iter()
        .map(|slot| send_slot(&mut link, at(0), &[arena.payload(slot)]).expect("room"))
        .collect();
    let lent = sent.iter().filter(|sent| matches!(sent, Sent::Lent(_)));
    assert_eq!(lent.count(), 6);
    assert_eq!(sent[6], Sent::Copied);
    for slot in slots {
        arena.release(slot.into_free());
    }
}

#[test]
fn a_device_that_stops_completing_keeps_its_slots_until_it_goes_on() {
    let mut arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let (mut link, mut port) = lending(&arena);
    let slot = marked(&mut arena, 7);
    link.set_stopped(at(0), true);
    let sent = send_slot(&mut link, at(0), &[arena.payload(&slot)]);
    assert_eq!(sent, Ok(Sent::Lent(slot.index())));
    assert_eq!(given_back(&mut link, at(1_000_000)), [0; 0]);
    assert_eq!(link.next_event(), None);
    link.set_stopped(at(1_000_000), false);
    assert_eq!(given_back(&mut link, at(1_000_000)), [slot.index()]);
    assert!(port.receive(at(1_000_000)).is_some());
    arena.release(slot.into_free());
}

#[test]
fn a_device_that_keeps_slots_gets_no_more_than_three_of_four() {
    let mut arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let config = SimConfig {
        borrows_slots: true,
        kept_slots_ppm: MILLION,
        mtu_bytes: 9_000,
        ..SimConfig::default()
    };
    let (mut link, mut port) = pair(config, 1);
    link.borrow_slots(arena.slot_memory()).unwrap();
    for round in 0..20 {
        let slot = marked(&mut arena, 7);
        let sent = send_slot(&mut link, at(round), &[arena.payload(&slot)]).expect("room");
        assert_eq!(matches!(sent, Sent::Lent(_)), round < 6, "round {round}");
        if sent != Sent::Copied {
            arena.lend(&slot);
        }
        arena.release(slot.into_free());
        assert_eq!(given_back(&mut link, at(round)), [0; 0]);
        assert!(port.receive(at(round)).is_some());
    }
    assert_eq!((arena.parked_count(), arena.free_count()), (6, 2));
}

#[test]
fn an_interface_that_is_down_gives_slots_back_and_sends_nothing() {
    let mut arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let (mut link, mut port) = lending(&arena);
    let slot = marked(&mut arena, 7);
    let sent = send_slot(&mut link, at(0), &[arena.payload(&slot)]);
    assert_eq!(sent, Ok(Sent::Lent(slot.index())));
    link.set_up(at(5), false);
    assert_eq!(given_back(&mut link, at(10)), [slot.index()]);
    assert_eq!(port.receive(at(10)), None);
    arena.release(slot.into_free());
}

#[test]
fn a_link_that_borrows_nothing_says_so() {
    let arena = Arena::new(ArenaConfig::new(1)).expect("a slot");
    let (mut link, _port) = pair(SimConfig::default(), 1);
    assert_eq!(link.borrow_slots(arena.slot_memory()), Err(CopyReason::Off));
}

/// Links that are queues of one NIC, of a bit in 8 ns: a byte in 64 ns.
fn attached<const LINKS: usize>(
    arena: &Arena,
    ring_bytes_max: usize,
) -> (SimNic, [Attached; LINKS]) {
    let nic = SimNic::new(NicConfig {
        bits_per_second: 125_000_000,
        ring_bytes_max,
    });
    let links = core::array::from_fn(|_| {
        let (mut link, port) = lending(arena);
        link.attach(&nic);
        (link, port)
    });
    (nic, links)
}

type Attached = (SimLink, SimPort);

/// When a frame without payload has passed: 14 bytes and 24 that Ethernet adds.
const HEADER_TIME: Duration = Duration::from_nanos(38 * 64);

#[test]
fn a_nic_takes_frames_from_its_queues_in_turns_at_its_rate() {
    let arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let (nic, mut links) = attached::<2>(&arena, usize::MAX);
    for _ in 0..3 {
        send_slot(&mut links[0].0, at(0), &[]).unwrap();
    }
    send_slot(&mut links[1].0, at(0), &[]).unwrap();
    assert_eq!(nic.next_turn(), Some(at(0)));
    nic.advance(at(1_000));
    let arrival = |port: &mut SimPort| {
        let at = port.next_event().unwrap();
        port.receive(at).unwrap();
        at
    };
    let turn = |count: u32| at(0) + HEADER_TIME * count;
    // The queue after the first begins.
    assert_eq!(arrival(&mut links[1].1), turn(1));
    assert_eq!(
        [2, 3, 4].map(|_| arrival(&mut links[0].1)),
        [2, 3, 4].map(turn)
    );
}

#[test]
fn a_nic_sends_nothing_before_it_was_handed_over_or_it_is_told_to_go_on() {
    let arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let (nic, mut links) = attached::<2>(&arena, usize::MAX);
    send_slot(&mut links[0].0, at(30), &[]).unwrap();
    // Another worker's round that began later, and got to its frame sooner.
    send_slot(&mut links[1].0, at(20), &[]).unwrap();
    assert_eq!(nic.next_turn(), Some(at(20)));
    assert_eq!(links[1].1.receive(at(1_000)), None);
    nic.advance(at(19));
    assert_eq!(links[1].1.receive(at(1_000)), None);
    nic.advance(at(20));
    assert!(links[1].1.receive(at(20)).is_none());
    assert!(links[1].1.receive(at(20) + HEADER_TIME).is_some());
    assert_eq!(nic.next_turn(), Some(at(30)));
}

#[test]
fn a_slot_comes_back_when_the_nic_has_read_it_and_a_full_ring_takes_no_frame() {
    let mut arena = Arena::new(ArenaConfig::new(8)).expect("slots");
    let (nic, [(mut link, _port)]) = attached::<1>(&arena, 10_000);
    let slots = [1, 2, 3].map(|mark| marked(&mut arena, mark));
    let frame_time = HEADER_TIME + Duration::from_nanos(5_000 * 64);
    let send =
        |link: &mut SimLink, slot: &FilledSlot| send_slot(link, at(0), &[arena.payload(slot)]);
    assert_eq!(send(&mut link, &slots[0]), Ok(Sent::Lent(slots[0].index())));
    // 5,014 bytes each.
    assert_eq!(send(&mut link, &slots[1]), Err(TransmitError::Full));
    nic.advance(at(0));
    assert_eq!(send(&mut link, &slots[1]), Ok(Sent::Lent(slots[1].index())));
    nic.advance(at(1_000));
    let first_read = at(0) + frame_time;
    assert_eq!(given_back(&mut link, at(320)), [0; 0]);
    assert_eq!(given_back(&mut link, first_read), [slots[0].index()]);
    let record = |at, slot: &FilledSlot| SlotRead {
        at,
        slot: slot.index(),
        from_bytes: ArenaConfig::HEADROOM_BYTES as usize,
        bytes: 5_000,
    };
    assert_eq!(link.take_slot_reads(), [record(first_read, &slots[0])]);
    assert_eq!(given_back(&mut link, at(1_000)), [slots[1].index()]);
    for slot in slots {
        arena.release(slot.into_free());
    }
}
