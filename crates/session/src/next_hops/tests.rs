use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clock::{Duration, Instant};
use wire::{MacAddress, Path};

use super::{
    ADDRESSES_ASKED_MAX, ANNOUNCEMENT_AGE_MAX, ASK_INTERVAL, Learned, MOVE_INTERVAL, NEIGHBORS_MAX,
    NextHops, QUESTIONS_MAX, ROUTERS_MAX, SILENCE_MIN,
};

const START: Instant = Instant::from_millis(1_000_000);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 1, number])
}

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + number).into()
}

/// A segment of a client elsewhere came from this station.
fn path(number: u8) -> Path {
    path_of(number, 1000)
}

fn path_of(number: u8, client: u32) -> Path {
    Path {
        source_mac: mac(number),
        destination_mac: MacAddress::default(),
        source: address(client),
        destination: address(2000),
    }
}

/// Two clients came by this station.
fn note_two(hops: &mut NextHops, now: Instant, number: u8) {
    for client in [1000, 1001] {
        hops.note_router(now, &path_of(number, client));
    }
}

#[test]
fn an_address_is_known_only_after_it_spoke_to_us() {
    let mut hops = NextHops::new();
    let learned = hops.neighbors.learn(START, address(1), mac(1), false);
    assert_eq!(learned, Learned::Announced);
    assert!(!hops.neighbors.knows(address(1)));
    let later = START + MOVE_INTERVAL;
    let learned = hops.neighbors.learn(later, address(1), mac(1), true);
    assert_eq!(learned, Learned::New);
    assert!(hops.neighbors.knows(address(1)));
    let learned = hops.neighbors.learn(later, address(1), mac(2), false);
    assert_eq!(learned, Learned::Moved(mac(1)));
    let learned = hops.neighbors.learn(later, address(1), mac(2), false);
    assert_eq!(learned, Learned::Nothing);
    let later = later + MOVE_INTERVAL;
    let learned = hops.neighbors.learn(later, address(1), mac(2), false);
    assert_eq!(learned, Learned::Confirmed);
}

#[test]
fn changes_are_followed_at_most_once_in_the_interval() {
    let mut hops = NextHops::new();
    let neighbors = &mut hops.neighbors;
    let _ = neighbors.learn(START, address(1), mac(1), true);
    assert_ne!(
        neighbors.learn(START, address(1), mac(2), false),
        Learned::Nothing
    );
    let early = START + (MOVE_INTERVAL - NANOSECOND);
    for now in [START, early] {
        let learned = neighbors.learn(now, address(1), mac(3), false);
        assert_eq!(learned, Learned::Nothing);
    }
    let learned = neighbors.learn(START + MOVE_INTERVAL, address(1), mac(3), false);
    assert_eq!(learned, Learned::Moved(mac(2)));
}

#[test]
fn announcements_are_told_at_most_once_in_the_interval() {
    let mut hops = NextHops::new();
    let neighbors = &mut hops.neighbors;
    let early = START + (MOVE_INTERVAL - NANOSECOND);
    for (now, learned) in [
        (START, Learned::Announced),
        (early, Learned::Nothing),
        (START + MOVE_INTERVAL, Learned::Announced),
    ] {
        assert_eq!(neighbors.learn(now, address(7), mac(7), false), learned);
    }
}

#[test]
fn beyond_the_most_the_address_that_spoke_least_lately_is_forgotten() {
    let mut hops = NextHops::new();
    let mut now = START;
    for number in 0..u32::try_from(NEIGHBORS_MAX).unwrap() {
        now += NANOSECOND;
        let _ = hops.neighbors.learn(now, address(number), mac(1), true);
    }
    // The first one speaks again, so the second is the oldest.
    now += NANOSECOND;
    let _ = hops.neighbors.learn(now, address(0), mac(1), true);
    let _ = hops.neighbors.learn(now, address(5000), mac(1), true);
    let known = [0, 1, 2, 5000].map(|number| hops.neighbors.knows(address(number)));
    assert_eq!(known, [true, false, true, true]);
    assert_eq!(hops.neighbors.entries.len(), NEIGHBORS_MAX);
}

#[test]
fn a_few_addresses_of_a_station_are_asked_for_each_once_in_the_interval() {
    let mut hops = NextHops::new();
    let v6: IpAddr = Ipv6Addr::LOCALHOST.into();
    let _ = hops.neighbors.learn(START, v6, mac(1), true);
    let _ = hops.neighbors.learn(START, address(99), mac(2), true);
    for number in 0..6 {
        let _ = hops.neighbors.learn(START, address(number), mac(1), true);
    }
    let ours = address(2000);
    let asked_from = |hops: &mut NextHops, now, from| -> Vec<IpAddr> {
        let questions = hops.neighbors.ask(now, mac(1), from);
        questions.map(|question| question.address).collect()
    };
    let mut asked = |now| asked_from(&mut hops, now, ours);
    let first: Vec<_> = (0..ADDRESSES_ASKED_MAX)
        .map(|number| address(u32::try_from(number).unwrap()))
        .collect();
    assert_eq!(asked(START), first);
    assert_eq!(asked(START), [address(4), address(5)]);
    assert!(asked(START + (ASK_INTERVAL - NANOSECOND)).is_empty());
    assert_eq!(asked(START + ASK_INTERVAL), first);
    assert_eq!(asked_from(&mut hops, START, v6), [v6]);
}

#[test]
fn a_station_is_gone_when_nothing_of_it_has_spoken_for_the_interval_since_it_was_asked() {
    type Speak = fn(&mut NextHops, Instant);
    let silent: Speak = |_, _| ();
    let speaks: [(Speak, bool); 4] = [
        (silent, true),
        (
            |hops, now| {
                let _ = hops.neighbors.learn(now, address(1), mac(1), true);
            },
            false,
        ),
        // Another address of the same station.
        (
            |hops, now| {
                let _ = hops.neighbors.learn(now, address(2), mac(1), true);
            },
            false,
        ),
        (|hops, now| hops.routers.hear(now, mac(1)), false),
    ];
    for (place, (speak, is_gone)) in speaks.into_iter().enumerate() {
        let mut hops = NextHops::new();
        let _ = hops.neighbors.learn(START, address(1), mac(1), true);
        hops.note_router(START, &path(1));
        assert!(
            !hops.is_gone(START + ASK_INTERVAL * 9, mac(1)),
            "it was not asked"
        );
        let asked_at = START + NANOSECOND;
        assert_eq!(
            hops.neighbors.ask(asked_at, mac(1), address(2000)).count(),
            1
        );
        speak(&mut hops, asked_at);
        let gone_at = asked_at + ASK_INTERVAL;
        assert!(!hops.is_gone(gone_at - NANOSECOND, mac(1)), "{place}");
        assert_eq!(hops.is_gone(gone_at, mac(1)), is_gone, "{place}");
        assert!(!hops.is_gone(gone_at, mac(2)), "{place}: another station");
    }
}

#[test]
fn a_question_is_repeated_until_it_is_answered_and_a_few_times_at_most() {
    for answered_after in [1, QUESTIONS_MAX, QUESTIONS_MAX + 1] {
        let mut hops = NextHops::new();
        let _ = hops.neighbors.learn(START, address(1), mac(1), true);
        assert_eq!(hops.neighbors.ask_again_at, None);
        let mut count = 1;
        let question = hops.neighbors.ask(START, mac(1), address(2000)).next();
        while let Some(at) = hops.neighbors.ask_again_at {
            if count == answered_after {
                let _ = hops.neighbors.learn(at, address(1), mac(1), true);
            }
            assert_eq!(hops.neighbors.ask_again(at - NANOSECOND), None);
            if let Some(again) = hops.neighbors.ask_again(at) {
                assert_eq!(Some(again), question);
                count += 1;
                assert_eq!(hops.neighbors.ask_again(at), None);
            }
        }
        assert_eq!(count, answered_after.min(QUESTIONS_MAX));
    }
}

#[test]
fn a_silent_router_is_replaced_by_one_that_brings_segments() {
    let mut hops = NextHops::new();
    hops.note_router(START, &path(1));
    let now = START + SILENCE_MIN;
    hops.note_router(now, &path(2));
    assert_eq!(
        hops.other_than(now, mac(1)),
        None,
        "one client may be a host"
    );
    note_two(&mut hops, now, 2);
    assert_eq!(
        hops.other_than(now - NANOSECOND, mac(1)),
        None,
        "not silent yet"
    );
    assert_eq!(hops.other_than(now, mac(1)), Some(mac(2)));
    hops.routers.hear(now, mac(1));
    assert_eq!(hops.other_than(now, mac(1)), None, "it is back");
    // Nobody knows where the frames of an unknown station went: any router is better.
    assert_eq!(hops.other_than(now, mac(9)), Some(mac(2)));
}

#[test]
fn an_announcement_counts_if_it_is_later_than_the_routers_last_segment_and_not_old() {
    let mut hops = NextHops::new();
    let _ = hops.neighbors.learn(START, address(1), mac(3), false);
    hops.note_router(START + NANOSECOND, &path(1));
    let now = START + SILENCE_MIN * 2;
    assert_eq!(
        hops.other_than(now, mac(1)),
        None,
        "the router was heard since"
    );
    let _ = hops.neighbors.learn(now, address(1), mac(3), false);
    assert_eq!(hops.other_than(now, mac(1)), Some(mac(3)));
    let old = now + ANNOUNCEMENT_AGE_MAX;
    assert_eq!(hops.other_than(old - NANOSECOND, mac(1)), Some(mac(3)));
    assert_eq!(hops.other_than(old, mac(1)), None);
}

#[test]
fn hosts_on_our_link_are_no_routers() {
    let mut hops = NextHops::new();
    let host = path(1);
    let _ = hops.neighbors.learn(START, host.source, mac(1), true);
    hops.note_router(START, &host);
    hops.note_router(START, &host);
    assert_eq!(hops.other_than(START, mac(9)), None);
}

#[test]
fn beyond_the_most_the_router_heard_least_lately_is_forgotten() {
    let mut hops = NextHops::new();
    for number in 0..=u8::try_from(ROUTERS_MAX).unwrap() {
        hops.note_router(START + NANOSECOND * u32::from(number), &path(number));
    }
    assert_eq!(hops.routers.entries.len(), ROUTERS_MAX);
    assert_eq!(hops.routers.heard_at(mac(0)), None);
    assert!(hops.routers.heard_at(mac(1)).is_some());
}
