//! Fragments by hand and at random, beside a reassembly that looks at single bytes.

use core::net::IpAddr;

use clock::{Duration, Instant};
use proptest::prelude::*;
use wire::{Ecn, Fragment, FragmentPlace, MacAddress, Path};

use super::{
    DATAGRAM_BYTES_MAX, DATAGRAMS_MAX, DATAGRAMS_PER_SOURCE_MAX, FRAGMENTS_MAX, REASSEMBLY_TIME,
    Reassembly,
};
use crate::Counters;

const PEER: &str = "192.0.2.1";
const PEER_V6: &str = "2001:db8::1";

/// A part of some packet, as it is sent.
#[derive(Clone, Debug)]
struct Part {
    source: IpAddr,
    protocol: u8,
    ecn: Ecn,
    place: FragmentPlace,
    payload: Vec<u8>,
}

impl Part {
    fn new(source: &str, identification: u32, start: usize, payload: &[u8], is_last: bool) -> Self {
        Self {
            source: source.parse().unwrap(),
            protocol: 6,
            ecn: Ecn::NotEct,
            place: FragmentPlace {
                identification,
                offset_bytes: u16::try_from(start).unwrap(),
                is_last,
            },
            payload: payload.to_vec(),
        }
    }

    fn as_fragment(&self) -> Fragment<'_> {
        let ours = match self.source {
            IpAddr::V4(_) => "192.0.2.2",
            IpAddr::V6(_) => "2001:db8::2",
        };
        Fragment {
            path: Path {
                source_mac: MacAddress([2; 6]),
                destination_mac: MacAddress([4; 6]),
                source: self.source,
                destination: ours.parse().unwrap(),
            },
            place: self.place,
            protocol: self.protocol,
            ecn: self.ecn,
            payload: &self.payload,
        }
    }
}

/// A reassembly, its counters and the time.
struct Bench {
    reassembly: Reassembly,
    counters: Counters,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self {
            reassembly: Reassembly::new(),
            counters: Counters::default(),
            now: Instant::from_millis(1),
        }
    }

    /// A part arrives; the content that it completes.
    fn take(&mut self, part: &Part) -> Option<Vec<u8>> {
        self.take_with_ecn(part).map(|(content, _)| content)
    }

    fn take_with_ecn(&mut self, part: &Part) -> Option<(Vec<u8>, Ecn)> {
        let fragment = part.as_fragment();
        let whole = (self.reassembly).take(self.now, &fragment, &mut self.counters)?;
        let found = (whole.content().to_vec(), whole.ecn);
        assert_eq!(whole.protocol, 6);
        self.reassembly.give_back(whole);
        Some(found)
    }

    /// Packets begun, and neither whole nor given up.
    fn waiting(&self) -> usize {
        let datagrams = self.reassembly.datagrams.iter();
        datagrams.filter(|it| it.name.is_some()).count()
    }
}

/// Bytes that differ by their place.
fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect()
}

/// A packet in parts of so many bytes.
fn parts_of(source: &str, identification: u32, content: &[u8], part_bytes: usize) -> Vec<Part> {
    let count = content.len().div_ceil(part_bytes);
    let parts = content.chunks(part_bytes).enumerate();
    let part = |(n, part)| Part::new(source, identification, n * part_bytes, part, n + 1 == count);
    parts.map(part).collect()
}

/// Looks at single bytes, and has no bounds but those of the table in the module.
#[derive(Default)]
struct Naive {
    seen: Vec<(usize, usize)>,
    bytes: Vec<Option<u8>>,
    total: Option<usize>,
    is_discarded: bool,
}

impl Naive {
    fn take(&mut self, part: &Part) -> Option<Vec<u8>> {
        let start = usize::from(part.place.offset_bytes);
        let end = start + part.payload.len();
        if self.is_discarded || self.seen.contains(&(start, end)) {
            return None;
        }
        let is_there = |at: usize| self.bytes.get(at).is_some_and(Option::is_some);
        let last = self.bytes.iter().rposition(Option::is_some);
        let is_beyond = self.total.is_some_and(|total| end > total)
            || part.place.is_last && last.is_some_and(|last| last >= end)
            || part.place.is_last && self.total.is_some();
        let is_many = self.seen.len() == FRAGMENTS_MAX || end > DATAGRAM_BYTES_MAX;
        if (start..end).any(is_there) || is_beyond || is_many {
            self.is_discarded = true;
            return None;
        }
        self.seen.push((start, end));
        let length = self.bytes.len().max(end);
        self.bytes.resize(length, None);
        for (place, byte) in self.bytes[start..end].iter_mut().zip(&part.payload) {
            *place = Some(*byte);
        }
        if part.place.is_last {
            self.total = Some(end);
        }
        let found: Vec<u8> = self.bytes.iter().map_while(|byte| *byte).collect();
        (self.total == Some(found.len())).then(|| {
            // The next one with its name begins anew.
            *self = Self::default();
            found
        })
    }
}

/// Parts that may touch, overlap, repeat and contradict each other.
fn any_parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (0usize..10, 1usize..5, any::<bool>(), any::<u8>()).prop_map(
        |(start, units, is_last, byte)| {
            let bytes = units * 8 - usize::from(is_last);
            Part::new(PEER, 7, start * 8, &vec![byte; bytes], is_last)
        },
    );
    proptest::collection::vec(part, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_arrives_the_outcome_is_that_of_a_naive_reassembly(parts in any_parts()) {
        let (mut bench, mut naive) = (Bench::new(), Naive::default());
        for part in &parts {
            prop_assert_eq!(bench.take(part), naive.take(part), "{:?}", parts);
        }
    }

    #[test]
    fn parts_in_any_order_and_some_of_them_twice_make_their_packets(
        lengths in proptest::collection::vec(9usize..3_000, 1..6),
        units in 12usize..200,
        is_v6 in any::<bool>(),
        order in any::<u64>(),
    ) {
        let source = if is_v6 { PEER_V6 } else { PEER };
        let mut parts = Vec::new();
        for (identification, length) in (0..).zip(&lengths) {
            let of_this = parts_of(source, identification, &content(*length), units * 8);
            prop_assume!(of_this.len() <= FRAGMENTS_MAX);
            parts.extend(of_this);
        }
        let mut state = order | 1;
        for place in (1..parts.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let other = usize::try_from(state >> 33).unwrap() % (place + 1);
            parts.swap(place, other);
        }
        let mut bench = Bench::new();
        let mut found = Vec::new();
        for part in &parts {
            let whole = bench.take(part);
            if whole.is_none() {
                prop_assert_eq!(bench.take(part), None, "a duplicate");
            }
            found.extend(whole);
        }
        found.sort();
        let mut expected: Vec<_> = lengths.iter().map(|length| content(*length)).collect();
        expected.sort();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(bench.waiting(), 0);
        prop_assert_eq!(bench.counters.wire_reassembled_count, lengths.len() as u64);
    }
}

#[test]
fn the_largest_packet_is_made_and_one_byte_more_is_refused() {
    for (length, is_made) in [
        (DATAGRAM_BYTES_MAX, true),
        (DATAGRAM_BYTES_MAX + 1, false),
        (65_515, false),
    ] {
        let mut bench = Bench::new();
        let parts = parts_of(PEER, 7, &content(length), 1_480);
        let found = parts.iter().find_map(|part| bench.take(part));
        assert_eq!(found, is_made.then(|| content(length)), "{length}");
        let refused = bench.counters.wire_reassembly_refused_count;
        assert_eq!(refused, u64::from(!is_made), "once for all its fragments");
        assert_eq!(bench.waiting(), usize::from(!is_made), "its name stays");
    }
}

#[test]
fn as_many_fragments_as_may_be_make_a_packet_and_one_more_does_not() {
    for (count, is_made) in [(FRAGMENTS_MAX, true), (FRAGMENTS_MAX + 1, false)] {
        let mut bench = Bench::new();
        let parts = parts_of(PEER, 7, &content(count * 8), 8);
        let found = parts.iter().find_map(|part| bench.take(part));
        assert_eq!(found.is_some(), is_made, "{count}");
    }
}

#[test]
fn a_packet_with_overlapping_fragments_is_discarded_with_those_that_follow() {
    let mut bench = Bench::new();
    let parts = parts_of(PEER, 7, &content(300), 104);
    assert_eq!(bench.take(&parts[0]), None);
    let overlapping = Part::new(PEER, 7, 96, &[0; 16], false);
    for part in [&overlapping, &parts[1], &parts[2], &parts[0], &parts[1]] {
        assert_eq!(bench.take(part), None);
    }
    assert_eq!(bench.counters.wire_reassembly_refused_count, 1);
    // Another packet with this name, after its time.
    bench.now += REASSEMBLY_TIME;
    let found: Vec<_> = parts.iter().filter_map(|part| bench.take(part)).collect();
    assert_eq!(found, [content(300)]);
    assert_eq!(bench.counters.wire_reassembly_timeout_count, 0);
}

#[test]
fn a_packet_that_is_not_whole_in_time_is_forgotten() {
    for (late, is_made) in [(0, false), (1, true)] {
        let mut bench = Bench::new();
        let parts = parts_of(PEER, 7, &content(300), 104);
        assert_eq!(bench.reassembly.next_expiry(), None);
        bench.take(&parts[0]);
        assert_eq!(
            bench.reassembly.next_expiry(),
            Some(bench.now + REASSEMBLY_TIME)
        );
        // It counts from the first.
        bench.now += Duration::from_secs(1);
        bench.take(&parts[1]);
        bench.now += REASSEMBLY_TIME;
        bench.now = Instant::from_nanos(bench.now.as_nanos() - 1_000_000_000 - late);
        assert_eq!(bench.take(&parts[2]).is_some(), is_made);
        let counters = &bench.counters;
        assert_eq!(counters.wire_reassembly_timeout_count, u64::from(!is_made));
    }
}

/// A flood of first fragments: as many as there is room for, twice.
fn flood(bench: &mut Bench, source: impl Fn(u32) -> String) {
    for number in 0..2 * u32::try_from(DATAGRAMS_MAX).unwrap() {
        let part = Part::new(&source(number), 1_000 + number, 0, &[0; 8], false);
        assert_eq!(bench.take(&part), None);
    }
}

#[test]
fn a_flood_from_one_source_takes_nothing_from_others() {
    let address: fn(u32) -> String = |_| "203.0.113.9".to_owned();
    let network: fn(u32) -> String = |n| format!("2001:db8:0:9::{n:x}");
    for source in [address, network] {
        let mut bench = Bench::new();
        let begin = |bench: &mut Bench, from: u32, to: u32| {
            for number in from..to {
                let parts = parts_of(&format!("198.51.100.{number}"), 7, &content(100), 56);
                assert_eq!(bench.take(&parts[1]), None);
            }
        };
        begin(&mut bench, 0, 30);
        flood(&mut bench, source);
        begin(&mut bench, 30, 60);
        flood(&mut bench, source);
        for number in 0..60 {
            let parts = parts_of(&format!("198.51.100.{number}"), 7, &content(100), 56);
            assert_eq!(bench.take(&parts[0]), Some(content(100)), "{number}");
        }
        assert_eq!(bench.waiting(), 4);
    }
}

#[test]
fn the_share_of_a_source_goes_to_its_newest() {
    let mut bench = Bench::new();
    let share = u32::try_from(DATAGRAMS_PER_SOURCE_MAX).unwrap();
    let parts = |number| parts_of(PEER, number, &content(100), 56);
    for number in 0..=share {
        bench.take(&parts(number)[0]);
    }
    assert_eq!(bench.counters.wire_reassembly_evicted_count, 1);
    let found = (1..=share).filter(|number| bench.take(&parts(*number)[1]).is_some());
    assert_eq!(found.count(), DATAGRAMS_PER_SOURCE_MAX);
    assert_eq!(bench.take(&parts(0)[1]), None, "the oldest is gone");
}

#[test]
fn of_many_sources_the_oldest_gives_way() {
    let mut bench = Bench::new();
    let parts = |number: usize| parts_of(&format!("198.51.100.{number}"), 7, &content(100), 56);
    for number in 0..=DATAGRAMS_MAX {
        bench.take(&parts(number)[0]);
    }
    assert_eq!(bench.counters.wire_reassembly_evicted_count, 1);
    let found = (1..=DATAGRAMS_MAX).filter(|number| bench.take(&parts(*number)[1]).is_some());
    assert_eq!(found.count(), DATAGRAMS_MAX);
}

#[test]
fn fragments_of_packets_with_other_names_do_not_meet() {
    for source in [PEER, PEER_V6] {
        let mut bench = Bench::new();
        let parts = parts_of(source, 7, &content(100), 56);
        bench.take(&parts[0]);
        let other_number = parts_of(source, 8, &content(100), 56);
        let neighbor = format!("{source}1");
        let other_source = parts_of(&neighbor, 7, &content(100), 56);
        for other in [&other_number[1], &other_source[1]] {
            assert_eq!(bench.take(other), None);
        }
        // RFC 8200 s4.5: of IPv6, what later fragments say of the protocol does not count.
        let mut other_protocol = parts[1].clone();
        other_protocol.protocol = 1;
        let is_same = source == PEER_V6;
        assert_eq!(bench.take(&other_protocol).is_some(), is_same);
    }
}

#[test]
fn the_mark_of_one_fragment_marks_the_packet_unless_another_is_not_ect() {
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    for (first, second, expected) in [
        (NotEct, NotEct, Some(NotEct)),
        (Ect0, Ect0, Some(Ect0)),
        (Ect1, Ect1, Some(Ect1)),
        (Ce, Ce, Some(Ce)),
        (Ect0, Ce, Some(Ce)),
        (Ce, Ect1, Some(Ce)),
        (Ect0, NotEct, Some(NotEct)),
        (Ce, NotEct, None),
        (NotEct, Ce, None),
    ] {
        let mut bench = Bench::new();
        let mut parts = parts_of(PEER, 7, &content(100), 56);
        (parts[0].ecn, parts[1].ecn) = (first, second);
        assert_eq!(bench.take_with_ecn(&parts[0]), None);
        let ecn = bench.take_with_ecn(&parts[1]).map(|(_, ecn)| ecn);
        assert_eq!(ecn, expected, "{first:?} {second:?}");
    }
}
