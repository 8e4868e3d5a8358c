//! TLS: handshakes by hand, then real records both ways.

use clock::Duration;
use record::{Algorithm, ContentType, Event, HEADER_BYTES, Inbound, Sealer, TrafficKey, Version};
use wire::{OriginalTcp, TcpFlags};

use super::{Bench, OBJECT_BYTES, OUR_ADDRESS, PEER_ADDRESS, Peer, assert_is_object, config};
use crate::{Config, Direction, TlsAnswer, TlsPlan, TlsToken};

pub(super) const TLS_PORT: u16 = 443;
/// A record that looks like a handshake's, to the framing.
pub(super) const HELLO: &[u8] = &[22, 3, 1, 0, 3, b'h', b'e', b'y'];

pub(super) fn tls_config() -> Config {
    Config {
        https_port: Some(TLS_PORT),
        ..config()
    }
}

pub(super) fn key(version: Version, byte: u8) -> TrafficKey {
    TrafficKey::new(version, Algorithm::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap()
}

/// Our keys are numbered from 1, the client's from 101.
fn answer_with_key(bench: &mut Bench, plan: Option<TlsPlan>, expected: Direction, byte: u8) {
    let Some(TlsPlan::NextKey { token, direction }) = plan else {
        panic!("a key is wanted, not {plan:?}");
    };
    assert_eq!(direction, expected);
    let key = key(Version::Tls13, byte);
    answer(bench, token, TlsAnswer::NextKey { key });
}

pub(super) fn answer(bench: &mut Bench, token: TlsToken, answer: TlsAnswer) {
    bench
        .conductor
        .handle_tls(bench.now, &mut bench.arena, token, answer);
}

/// What a worker with credit would ask for next.
pub(super) fn next_plan(bench: &mut Bench) -> Option<TlsPlan> {
    let conductor = &mut bench.conductor;
    conductor.poll_tls().or_else(|| conductor.poll_hello())
}

pub(super) fn handshake(plan: Option<TlsPlan>) -> (TlsToken, Vec<u8>) {
    match plan {
        Some(TlsPlan::Handshake { token, record }) => (token, record),
        plan => panic!("a handshake's record is due, not {plan:?}"),
    }
}

pub(super) fn established(version: Version) -> TlsAnswer {
    established_limited(version, 16_384)
}

/// The same for a client that takes records with so many bytes of content.
fn established_limited(version: Version, content_bytes_max: u16) -> TlsAnswer {
    TlsAnswer::Established {
        flight: b"flight".to_vec(),
        send: (key(version, 1), 2),
        receive: (key(version, 101), 0),
        is_resumed: false,
        content_bytes_max,
    }
}

/// A client whose handshake is over.
pub(super) struct TlsPeer {
    pub(super) peer: Peer,
    pub(super) sealer: Sealer,
    pub(super) number: u64,
    inbound: Inbound,
    /// Bytes of `peer.received` that were opened.
    opened: usize,
    /// What they said.
    pub(super) text: Vec<u8>,
    pub(super) is_notified: bool,
    /// The alert that was the last word.
    pub(super) is_aborted: Option<u8>,
    /// Our key updates seen.
    updates: u8,
    /// TLS 1.2: how many times a second handshake was refused.
    refusals: u8,
}

impl TlsPeer {
    pub(super) fn connect(bench: &mut Bench, port: u16, version: Version) -> Self {
        Self::connect_limited(bench, port, version, 16_384)
    }

    fn connect_limited(bench: &mut Bench, port: u16, version: Version, limit: u16) -> Self {
        let mut peer = Peer::connect_to(bench, TLS_PORT, port);
        peer.send(bench, TcpFlags::ACK, HELLO);
        let (token, record) = handshake(next_plan(bench));
        assert_eq!(record, HELLO);
        answer(bench, token, established_limited(version, limit));
        bench.turn();
        peer.take(bench);
        assert_eq!(peer.received, b"flight");
        Self::established(peer, version)
    }

    fn established(peer: Peer, version: Version) -> Self {
        Self {
            opened: peer.received.len(),
            peer,
            sealer: Sealer::new(&key(version, 101)),
            number: 0,
            inbound: Inbound::new(&key(version, 1), 2),
            text: Vec::new(),
            is_notified: false,
            is_aborted: None,
            updates: 0,
            refusals: 0,
        }
    }

    pub(super) fn seal(&mut self, content_type: ContentType, text: &[u8]) -> Vec<u8> {
        let framing = self.sealer.framing();
        let mut record = vec![0; framing.header_bytes as usize];
        record.extend_from_slice(text);
        record.resize(record.len() + framing.trailer_bytes as usize, 0);
        self.sealer.seal(self.number, content_type, &mut record);
        self.number += 1;
        record
    }

    pub(super) fn say(&mut self, bench: &mut Bench, content_type: ContentType, text: &[u8]) {
        let record = self.seal(content_type, text);
        self.peer.send(bench, TcpFlags::ACK, &record);
    }

    pub(super) fn get(&mut self, bench: &mut Bench) {
        let request = b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n";
        self.say(bench, ContentType::ApplicationData, request);
        bench.turn();
    }

    /// Opens what came in whole records; our next key is used after a KeyUpdate.
    pub(super) fn open(&mut self) {
        while let Some(length) = record::peek_record(&self.peer.received[self.opened..]).unwrap() {
            let Some(record) = self.peer.received.get(self.opened..self.opened + length) else {
                break;
            };
            let mut record = record.to_vec();
            self.opened += length;
            match self.inbound.open(&mut record).unwrap() {
                // A warning is nothing to the record room.
                Event::Nothing => self.refusals += 1,
                Event::Data(text) => self.text.extend_from_slice(text),
                Event::CloseNotify => self.is_notified = true,
                Event::Aborted(number) => self.is_aborted = Some(number),
                Event::KeyUpdate { is_answer_wanted } => {
                    assert!(!is_answer_wanted);
                    self.updates += 1;
                    let next = key(Version::Tls13, 1 + self.updates);
                    self.inbound.rekey(&next);
                }
                event => panic!("{event:?}"),
            }
        }
    }

    pub(super) fn drain(&mut self, bench: &mut Bench) {
        self.peer.drain(bench);
        self.open();
    }

    /// What came out of order is not kept, so it takes timeouts.
    fn drain_slowly(&mut self, bench: &mut Bench) {
        for _ in 0..10 {
            self.drain(bench);
            bench.pass(Duration::from_secs(2));
        }
    }

    pub(super) fn body(&self) -> &[u8] {
        let end = self
            .text
            .windows(4)
            .position(|window| window == b"\r\n\r\n");
        &self.text[end.expect("a reply's head") + 4..]
    }

    pub(super) fn assert_has_object(&self) {
        assert_eq!(self.body().len() as u64, OBJECT_BYTES);
        assert_is_object(self.body(), 0);
    }
}

#[test]
fn a_handshake_gets_whole_records_one_at_a_time() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    peer.send(&mut bench, TcpFlags::ACK, &HELLO[..7]);
    assert!(next_plan(&mut bench).is_none(), "not a whole record");
    let rest = [&HELLO[7..], HELLO].concat();
    peer.send(&mut bench, TcpFlags::ACK, &rest);
    let (token, record) = handshake(next_plan(&mut bench));
    assert_eq!(record, HELLO);
    assert!(next_plan(&mut bench).is_none(), "one at a time");
    let flight = b"server hello".to_vec();
    answer(&mut bench, token, TlsAnswer::Continue { flight });
    bench.turn();
    peer.take(&mut bench);
    assert_eq!(peer.received, b"server hello");
    let (again, record) = handshake(next_plan(&mut bench));
    assert_eq!((again, &record[..]), (token, HELLO));
    answer(&mut bench, token, established(Version::Tls13));
    assert_eq!(bench.conductor.counters().tls_handshake_count, 1);
    peer.send(&mut bench, TcpFlags::RST, b"");
    let plan = next_plan(&mut bench);
    assert!(matches!(plan, Some(TlsPlan::Forget { token: gone }) if gone == token));
    bench.assert_quiet();
}

#[test]
fn an_object_is_served_over_tls_1_2_and_1_3() {
    for version in [Version::Tls12, Version::Tls13] {
        let mut bench = Bench::with(tls_config(), 8);
        let mut client = TlsPeer::connect(&mut bench, 1000, version);
        client.get(&mut bench);
        client.get(&mut bench);
        client.drain(&mut bench);
        let second = client.text.len() / 2;
        client.text.truncate(second);
        client.assert_has_object();
        let counters = bench.conductor.counters();
        assert_eq!(counters.record_seal_bytes, 2 * OBJECT_BYTES);
        assert_eq!(counters.record_reseal_count, 0);
        client.say(&mut bench, ContentType::Alert, &[1, 0]);
        bench.turn();
        client.drain(&mut bench);
        assert!(client.is_notified && client.peer.finished);
        client.peer.close(&mut bench);
        bench.assert_quiet();
        assert_eq!(bench.released(), 2);
    }
}

#[test]
fn records_are_as_short_as_the_client_takes_them() {
    for version in [Version::Tls12, Version::Tls13] {
        for limit in [63, 512, 1000, 4096, 15_360] {
            let mut bench = Bench::with(tls_config(), 8);
            let mut client = TlsPeer::connect_limited(&mut bench, 1000, version, limit);
            let request = format!(
                "GET /object HTTP/1.1\r\nHost: a\r\nRange: bytes={}-\r\n\r\n",
                limit / 2
            );
            client.say(&mut bench, ContentType::ApplicationData, request.as_bytes());
            bench.turn();
            client.drain_slowly(&mut bench);
            assert_eq!(
                client.body().len() as u64,
                OBJECT_BYTES - u64::from(limit / 2)
            );
            assert_is_object(client.body(), (limit / 2).into());
            let overhead = Sealer::new(&key(version, 1)).framing().overhead_bytes() as usize;
            let mut rest = &client.peer.received[b"flight".len()..];
            while let Ok(Some(length)) = record::peek_record(rest) {
                assert!(
                    length <= overhead + usize::from(limit),
                    "{length} for {limit}"
                );
                rest = &rest[length..];
            }
            assert!(rest.is_empty());
        }
    }
}

/// Fetches the object with one segment lost; says what that segment was first, and again.
fn lose_one(bench: &mut Bench, client: &mut TlsPeer, twist: u8) -> (Vec<u8>, Option<Vec<u8>>) {
    // The first time, the window opens.
    client.get(bench);
    client.drain(bench);
    client.get(bench);
    bench.complete_reads();
    let mut segments = bench.take_segments(1000);
    segments.retain(|(_, payload)| !payload.is_empty());
    let (lost, bytes) = segments.remove(0);
    let last = segments.last().expect("more than one segment");
    let right = last
        .0
        .sequence
        .wrapping_add(u32::try_from(last.1.len()).unwrap());
    bench.twist = twist;
    for _ in 0..4 {
        let left = lost
            .sequence
            .wrapping_add(u32::try_from(bytes.len()).unwrap());
        client.peer.acknowledge_with_sack(bench, left, right);
        bench.pass(Duration::from_millis(300));
        bench.complete_reads();
    }
    let again = bench.take_segments(1000);
    client.peer.reset = again
        .iter()
        .any(|(segment, _)| segment.flags.contains(TcpFlags::RST));
    let mut repeated = Vec::new();
    for (segment, payload) in again {
        let at = segment.sequence.distance(lost.sequence);
        if usize::try_from(at).is_ok_and(|at| at == repeated.len()) {
            repeated.extend_from_slice(&payload);
        }
    }
    repeated.truncate(bytes.len());
    (bytes, (!repeated.is_empty()).then_some(repeated))
}

#[test]
fn a_lost_range_is_sealed_to_the_same_bytes() {
    for limit in [100, 512, 16_384] {
        let mut bench = Bench::with(tls_config(), 8);
        let mut client = TlsPeer::connect_limited(&mut bench, 1000, Version::Tls13, limit);
        let (first, again) = lose_one(&mut bench, &mut client, 0);
        assert_eq!(Some(first), again, "{limit}");
        assert!(bench.conductor.counters().record_reseal_count > 0);
    }
}

#[test]
fn a_record_whose_content_changed_is_never_sent_again() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    let (first, again) = lose_one(&mut bench, &mut client, 1);
    // Text, which is kept, may leave again; nothing of the object does.
    let head_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([first[3], first[4]]));
    assert!(again.is_none_or(|again| again[..] == first[..head_bytes.min(again.len())]));
    assert!(client.peer.reset);
    assert_eq!(bench.conductor.counters().record_reseal_mismatch_count, 1);
    assert_eq!(bench.released(), 2);
    bench.assert_quiet();
}

#[test]
fn a_window_of_less_than_a_record_sends_parts_of_records() {
    // Each part is sealed by itself, unless its slot is kept.
    for (kept_slots_max, is_resealed) in [(0, true), (1, false)] {
        let config = Config {
            kept_slots_max,
            ..tls_config()
        };
        let mut bench = Bench::with(config, 8);
        let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
        // Scaled by 2^8: 5,120 bytes, then the rest of each record with the next window.
        client.peer.window = 20;
        client.peer.send(&mut bench, TcpFlags::ACK, b"");
        client.get(&mut bench);
        client.drain(&mut bench);
        client.assert_has_object();
        let resealed = bench.conductor.counters().record_reseal_count;
        assert_eq!(resealed > 0, is_resealed, "{resealed}");
    }
}

#[test]
fn our_key_is_replaced_before_its_limit() {
    let config = Config {
        key_records_max: 64,
        ..tls_config()
    };
    let mut bench = Bench::with(config, 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    let mut next = 2;
    for _ in 0..4 {
        client.get(&mut bench);
        for _ in 0..200 {
            client.drain(&mut bench);
            let Some(plan) = next_plan(&mut bench) else {
                break;
            };
            answer_with_key(&mut bench, Some(plan), Direction::Send, next);
            next += 1;
            bench.turn();
        }
    }
    assert_eq!(client.text.len() % 4, 0);
    client.text.truncate(client.text.len() / 4);
    client.assert_has_object();
    assert_eq!(client.updates, next - 2);
    // Four times at least 20 records and a head, in runs of at most 64 - 32.
    assert!(client.updates >= 2, "{} updates", client.updates);
    let counters = bench.conductor.counters();
    assert_eq!(counters.tls_key_update_count, u64::from(client.updates));
}

#[test]
fn replies_without_objects_use_a_key_up_too() {
    let config = Config {
        key_records_max: 64,
        ..tls_config()
    };
    let mut bench = Bench::with(config, 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    let request = b"HEAD /object HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut next = 2;
    for _ in 0..200 {
        client.say(&mut bench, ContentType::ApplicationData, request);
        bench.turn();
        if let Some(plan) = next_plan(&mut bench) {
            answer_with_key(&mut bench, Some(plan), Direction::Send, next);
            next += 1;
        }
        bench.turn();
        client.drain(&mut bench);
    }
    assert_eq!(bench.conductor.counters().http_reply_count, 200);
    assert_eq!(client.text.len() % 200, 0);
    assert!(client.updates >= 3, "{} updates", client.updates);
}

#[test]
fn tls_1_2_has_no_second_key_and_closes_at_half_of_the_first() {
    for (version, is_last) in [(Version::Tls12, true), (Version::Tls13, false)] {
        let config = Config {
            key_records_max: 400,
            ..tls_config()
        };
        let mut bench = Bench::with(config, 8);
        let mut client = TlsPeer::connect(&mut bench, 1000, version);
        let mut whole = 0;
        // Asked for ahead, so that requests wait behind the reply that is the last.
        for _ in 0..12 {
            client.get(&mut bench);
        }
        while client.peer.take(&mut bench) || !bench.reads.is_empty() {
            bench.complete_reads();
            client.peer.send(&mut bench, TcpFlags::ACK, b"");
            if let Some(TlsPlan::NextKey { token, .. }) = bench.conductor.poll_tls() {
                let key = key(Version::Tls13, 2 + whole);
                whole += 1;
                answer(&mut bench, token, TlsAnswer::NextKey { key });
            }
            bench.turn();
        }
        client.open();
        let text = client.text.clone();
        let is = |wanted: &[u8]| {
            text.windows(wanted.len())
                .filter(|at| *at == wanted)
                .count()
        };
        let replies = is(b"HTTP/1.1 200 OK");
        assert_eq!(is(b"Connection: close"), usize::from(is_last));
        assert_eq!(
            (client.is_notified, client.peer.finished),
            (is_last, is_last)
        );
        assert!(!client.peer.reset);
        if is_last {
            // Some 36 records a reply at first, 21 later: the last is the one that might reach 200.
            assert!((5..=8).contains(&replies), "{replies} replies");
            assert!(text.len() as u64 > u64::try_from(replies).unwrap() * OBJECT_BYTES);
        } else {
            assert_eq!(replies, 12);
        }
        assert_eq!(bench.conductor.counters().tls_key_exhausted_count, 0);
    }
}

#[test]
fn a_reply_longer_than_a_tls_1_2_key_allows_is_reset() {
    let config = Config {
        key_records_max: 64,
        ..tls_config()
    };
    let mut bench = Bench::with(config, 8);
    bench.object_bytes = 2_000_000;
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls12);
    client.get(&mut bench);
    client.drain(&mut bench);
    assert!(client.peer.reset && !client.is_notified);
    // What came is right, and says by its length that it is not all.
    assert_is_object(client.body(), 0);
    assert!((client.body().len() as u64) < bench.object_bytes);
    assert_eq!(bench.conductor.counters().tls_key_exhausted_count, 1);
    bench.assert_quiet();
}

#[test]
fn data_after_the_clients_close_notify_is_ignored() {
    for version in [Version::Tls12, Version::Tls13] {
        let mut bench = Bench::with(tls_config(), 8);
        let mut client = TlsPeer::connect(&mut bench, 1000, version);
        client.get(&mut bench);
        let notify = client.seal(ContentType::Alert, &[1, 0]);
        // At once and later: what is no record, a record that cannot be opened, half of one.
        let garbage = [&notify[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
        client.peer.send(&mut bench, TcpFlags::ACK, &garbage);
        client
            .peer
            .send(&mut bench, TcpFlags::ACK, &[23, 3, 3, 0, 30]);
        client.peer.send(&mut bench, TcpFlags::ACK, &[0xff; 9000]);
        bench.turn();
        client.drain(&mut bench);
        client.assert_has_object();
        assert!(client.is_notified && client.peer.finished && !client.peer.reset);
        assert_eq!(client.is_aborted, None);
        assert_eq!(bench.conductor.counters().tls_alert_count, 0);
        // All the same it must be well up to there.
        client.peer.close(&mut bench);
        bench.assert_quiet();
    }
}

#[test]
fn the_clients_key_update_is_followed_and_answered() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    client.get(&mut bench);
    let update = client.seal(ContentType::Handshake, &[24, 0, 0, 1, 1]);
    client.sealer = Sealer::new(&key(Version::Tls13, 102));
    client.number = 0;
    let request = client.seal(
        ContentType::ApplicationData,
        b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    client
        .peer
        .send(&mut bench, TcpFlags::ACK, &[update, request].concat());
    let plan = next_plan(&mut bench);
    answer_with_key(&mut bench, plan, Direction::Receive, 102);
    let plan = next_plan(&mut bench);
    answer_with_key(&mut bench, plan, Direction::Send, 2);
    assert!(next_plan(&mut bench).is_none());
    bench.turn();
    client.drain(&mut bench);
    assert_eq!(client.updates, 1);
    client.text.truncate(client.text.len() / 2);
    client.assert_has_object();
}

/// Has a client in the middle of its object, with reads under way, and lets the path shrink: what
/// was claimed and did not leave is to be claimed again, with the reads of before still to come.
fn shrink_with_reads_under_way(bench: &mut Bench, client: &mut TlsPeer) {
    client.get(bench);
    bench.complete_reads();
    // All but the last packet is acknowledged; the credit becomes reads.
    client.peer.take(bench);
    client.peer.expected = client.peer.expected.wrapping_add(u32::MAX - 999);
    client
        .peer
        .received
        .truncate(client.peer.received.len() - 1000);
    client.peer.send(bench, TcpFlags::ACK, b"");
    bench.turn();
    assert!(!bench.reads.is_empty());
    let original = OriginalTcp {
        source: OUR_ADDRESS.into(),
        destination: PEER_ADDRESS.into(),
        source_port: TLS_PORT,
        destination_port: client.peer.port,
        sequence: client.peer.expected,
    };
    let (now, mtu_bytes) = (bench.now, 1400);
    bench
        .conductor
        .handle_packet_too_big(now, mtu_bytes, &original);
    assert_eq!(bench.conductor.counters().tcp_packet_too_big_count, 1);
}

#[test]
fn a_key_update_comes_behind_reads_under_way_that_are_claimed_again() {
    let mut bench = Bench::with(tls_config(), 16);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    shrink_with_reads_under_way(&mut bench, &mut client);
    client.say(&mut bench, ContentType::Handshake, &[24, 0, 0, 1, 1]);
    let plan = next_plan(&mut bench);
    answer_with_key(&mut bench, plan, Direction::Receive, 102);
    let plan = next_plan(&mut bench);
    answer_with_key(&mut bench, plan, Direction::Send, 2);
    bench.turn();
    client.drain_slowly(&mut bench);
    assert_eq!(client.updates, 1);
    client.assert_has_object();
}

#[test]
fn an_alert_comes_behind_reads_under_way_that_are_claimed_again() {
    let mut bench = Bench::with(tls_config(), 16);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    shrink_with_reads_under_way(&mut bench, &mut client);
    client.say(&mut bench, ContentType::Handshake, &[9]);
    bench.turn();
    client.drain_slowly(&mut bench);
    assert_eq!(client.is_aborted, Some(10), "unexpected_message");
    client.peer.close(&mut bench);
    bench.assert_quiet();
}

#[test]
fn a_record_that_cannot_be_opened_ends_the_connection_with_an_alert() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    client.get(&mut bench);
    let mut record = client.seal(ContentType::ApplicationData, b"GET");
    record[7] ^= 1;
    client.peer.send(&mut bench, TcpFlags::ACK, &record);
    bench.turn();
    client.drain(&mut bench);
    assert_eq!(client.is_aborted, Some(20), "bad_record_mac");
    assert!(client.peer.finished && !client.is_notified);
    // What was claimed before came whole, up to the end of a record.
    assert!((client.body().len() as u64) < OBJECT_BYTES);
    assert_is_object(client.body(), 0);
    client.peer.close(&mut bench);
    bench.assert_quiet();
    assert_eq!(bench.released(), 1);
}

#[test]
fn records_that_arrive_together_are_opened_before_parsing() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    let request = b"GET /object HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut records: Vec<u8> = Vec::new();
    for byte in request {
        records.extend(client.seal(ContentType::ApplicationData, &[*byte]));
    }
    client.peer.send(&mut bench, TcpFlags::ACK, &records);
    bench.turn();
    client.drain(&mut bench);
    client.assert_has_object();
    // A request is not looked at if the record behind it is bad.
    let mut records = client.seal(ContentType::ApplicationData, request);
    records.extend(client.seal(ContentType::Handshake, b""));
    client.peer.send(&mut bench, TcpFlags::ACK, &records);
    bench.turn();
    client.drain(&mut bench);
    assert_eq!(client.is_aborted, Some(10), "unexpected_message");
    assert_eq!(bench.conductor.counters().http_request_count, 1);
}

#[test]
fn an_alert_of_the_clients_ends_the_connection_at_once() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls13);
    client.get(&mut bench);
    client.say(&mut bench, ContentType::Alert, &[2, 40]);
    bench.complete_reads();
    client.peer.take(&mut bench);
    assert!(client.peer.reset);
    assert_eq!(bench.conductor.counters().tls_peer_alert_count, 1);
    bench.assert_quiet();
}

#[test]
fn renegotiation_is_refused_once_and_the_connection_goes_on() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls12);
    client.get(&mut bench);
    client.say(&mut bench, ContentType::Handshake, &[1, 0, 0, 0]);
    client.drain(&mut bench);
    client.assert_has_object();
    assert_eq!(client.refusals, 1);
    assert!(!client.peer.finished);
    client.text.clear();
    client.get(&mut bench);
    client.drain(&mut bench);
    client.assert_has_object();
    client.say(&mut bench, ContentType::Handshake, &[1, 0, 0, 0]);
    bench.turn();
    client.drain(&mut bench);
    assert_eq!(client.refusals, 2);
    assert!(client.peer.finished);
    client.peer.close(&mut bench);
    bench.assert_quiet();
}

#[test]
fn renegotiation_after_our_close_notify_is_not_answered() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut client = TlsPeer::connect(&mut bench, 1000, Version::Tls12);
    let request = b"GET /object HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    client.say(&mut bench, ContentType::ApplicationData, request);
    bench.turn();
    // What it asked for has begun, so that our close_notify is queued.
    bench.complete_reads();
    client.say(&mut bench, ContentType::Handshake, &[1, 0, 0, 0]);
    client.drain(&mut bench);
    client.assert_has_object();
    assert!(client.is_notified && client.peer.finished);
    assert_eq!(client.refusals, 0);
    client.peer.close(&mut bench);
    bench.assert_quiet();
}

#[test]
fn plain_http_or_garbage_on_the_tls_port_is_answered_and_closed() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut plain = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    plain.get(&mut bench, "/object");
    plain.drain(&mut bench);
    assert!(plain.received.starts_with(b"HTTP/1.1 400 "));
    assert!(plain.finished);
    let mut garbage = Peer::connect_to(&mut bench, TLS_PORT, 1001);
    garbage.send(&mut bench, TcpFlags::ACK, b"\x80\x2e\x01\x03\x01");
    bench.turn();
    garbage.drain(&mut bench);
    assert_eq!(garbage.received, [21, 3, 3, 0, 2, 2, 10]);
    assert!(garbage.finished);
}

#[test]
fn a_handshakes_record_in_the_clear_has_at_most_16_384_bytes_of_content() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut overflowing = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    overflowing.send(&mut bench, TcpFlags::ACK, &[22, 3, 1, 0x40, 1]);
    bench.turn();
    overflowing.drain(&mut bench);
    assert_eq!(overflowing.received, [21, 3, 3, 0, 2, 2, 22]);
    assert!(overflowing.finished);
    // As long as can be; and longer, but sealed.
    for (port, header) in [(1001, [22, 3, 1, 0x40, 0]), (1002, [23, 3, 3, 0x41, 0])] {
        let mut peer = Peer::connect_to(&mut bench, TLS_PORT, port);
        peer.send(&mut bench, TcpFlags::ACK, &header);
        bench.turn();
        peer.drain(&mut bench);
        assert!(peer.received.is_empty() && !peer.finished);
    }
}

#[test]
fn plain_http_after_our_fin_has_no_answer() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    bench.conductor.shut_down(bench.now);
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.finished);
    peer.send(&mut bench, TcpFlags::ACK, b"GET / HTTP/1.1\r\n\r\n");
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.received.is_empty());
}

#[test]
fn a_bad_record_header_during_the_handshake_is_refused_by_the_handshaker() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    peer.send(&mut bench, TcpFlags::ACK, HELLO);
    let (token, _) = handshake(next_plan(&mut bench));
    let flight = Vec::new();
    answer(&mut bench, token, TlsAnswer::Continue { flight });
    peer.send(&mut bench, TcpFlags::ACK, b"no record");
    let (_, record) = handshake(next_plan(&mut bench));
    assert_eq!(record, b"no record");
    let flight = b"sealed alert".to_vec();
    answer(&mut bench, token, TlsAnswer::Refused { flight });
    bench.turn();
    peer.drain(&mut bench);
    assert!(peer.finished && peer.received == b"sealed alert");
}

#[test]
fn a_handshake_that_does_not_complete_is_closed() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    peer.send(&mut bench, TcpFlags::ACK, HELLO);
    let (token, _) = handshake(next_plan(&mut bench));
    let flight = Vec::new();
    answer(&mut bench, token, TlsAnswer::Continue { flight });
    bench.pass(Duration::from_millis(19_990));
    peer.take(&mut bench);
    assert!(!peer.finished);
    bench.pass(Duration::from_millis(20));
    peer.take(&mut bench);
    assert!(peer.finished && peer.received.is_empty());
    assert_eq!(bench.conductor.counters().tls_handshake_timeout_count, 1);
}

#[test]
fn after_its_handshake_a_client_has_the_idle_time_to_ask() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    bench.pass(Duration::from_secs(10));
    peer.send(&mut bench, TcpFlags::ACK, HELLO);
    let (token, _) = handshake(next_plan(&mut bench));
    answer(&mut bench, token, established(Version::Tls13));
    let mut client = TlsPeer::established(peer, Version::Tls13);
    client.opened = b"flight".len();
    bench.turn();
    client.drain(&mut bench);
    // Keep-alive probes are answered, as a living client does.
    for _ in 0..74 {
        bench.pass(Duration::from_secs(1));
        client.drain(&mut bench);
    }
    bench.pass(Duration::from_millis(999));
    client.drain(&mut bench);
    assert!(!client.is_notified);
    bench.pass(Duration::from_millis(1));
    client.drain(&mut bench);
    assert!(client.is_notified && client.peer.finished);
    assert_eq!(bench.conductor.counters().http_idle_close_count, 1);
}

#[test]
fn slow_acknowledgments_do_not_extend_the_handshake_timeout() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    peer.send(&mut bench, TcpFlags::ACK, HELLO);
    let (token, _) = handshake(next_plan(&mut bench));
    let flight = vec![b'f'; 1000];
    answer(&mut bench, token, TlsAnswer::Continue { flight });
    bench.turn();
    for _ in 0..21 {
        peer.expected = peer.expected.wrapping_add(1);
        peer.send(&mut bench, TcpFlags::ACK, b"");
        bench.pass(Duration::from_secs(1));
    }
    assert_eq!(bench.conductor.counters().tls_handshake_timeout_count, 1);
}

#[test]
fn requests_before_a_half_close_are_served() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    peer.send(&mut bench, TcpFlags::ACK.union(TcpFlags::FIN), HELLO);
    let (token, _) = handshake(next_plan(&mut bench));
    bench.turn();
    peer.take(&mut bench);
    assert!(!peer.finished, "the handshake may still have an answer");
    let flight = b"alert".to_vec();
    answer(&mut bench, token, TlsAnswer::Refused { flight });
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.finished && peer.received == b"alert");
}

#[test]
fn an_answer_for_a_client_that_left_is_forgotten() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    peer.send(&mut bench, TcpFlags::ACK, HELLO);
    let (token, _) = handshake(next_plan(&mut bench));
    peer.send(&mut bench, TcpFlags::RST, b"");
    let mut other = Peer::connect_to(&mut bench, TLS_PORT, 1001);
    answer(&mut bench, token, established(Version::Tls13));
    bench.turn();
    other.take(&mut bench);
    assert!(other.received.is_empty() && !other.reset);
    assert_eq!(bench.conductor.counters().tls_handshake_count, 0);
}

#[test]
fn handshakes_of_clients_that_left_leave_nothing_behind() {
    let mut bench = Bench::with(tls_config(), 8);
    for port in 1000..1100 {
        let mut peer = Peer::connect_to(&mut bench, TLS_PORT, port);
        peer.send(&mut bench, TcpFlags::ACK, HELLO);
        peer.send(&mut bench, TcpFlags::RST, b"");
    }
    bench.assert_quiet();
    let plans = std::iter::from_fn(|| next_plan(&mut bench));
    assert!(
        plans
            .into_iter()
            .all(|plan| matches!(plan, TlsPlan::Forget { .. }))
    );
}

#[test]
fn an_internal_failure_resets_the_connection() {
    let mut bench = Bench::with(tls_config(), 8);
    let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
    peer.send(&mut bench, TcpFlags::ACK, HELLO);
    let (token, _) = handshake(next_plan(&mut bench));
    answer(&mut bench, token, TlsAnswer::Failed);
    bench.turn();
    peer.take(&mut bench);
    assert!(peer.reset);
    bench.assert_quiet();
}

#[test]
fn a_handshake_continued_after_our_fin_is_ignored() {
    // The record that would complete it comes after the FIN, or waits for its answer.
    for is_asked in [false, true] {
        let mut bench = Bench::with(tls_config(), 8);
        let mut peer = Peer::connect_to(&mut bench, TLS_PORT, 1000);
        peer.send(&mut bench, TcpFlags::ACK, HELLO);
        let (token, _) = handshake(next_plan(&mut bench));
        if !is_asked {
            let flight = Vec::new();
            answer(&mut bench, token, TlsAnswer::Continue { flight });
        }
        bench.pass(Duration::from_secs(21));
        peer.take(&mut bench);
        assert!(peer.finished);
        // The handshake's state is dropped once the traffic keys are known.
        let plan = next_plan(&mut bench);
        assert!(matches!(plan, Some(TlsPlan::Forget { token: gone }) if gone == token));
        peer.send(&mut bench, TcpFlags::ACK, HELLO);
        assert!(next_plan(&mut bench).is_none());
        answer(&mut bench, token, established(Version::Tls12));
        let mut client = TlsPeer::established(peer, Version::Tls12);
        client.say(&mut bench, ContentType::Handshake, &[1, 0, 0, 0]);
        bench.turn();
        client.peer.close(&mut bench);
        assert!(client.peer.received.is_empty());
        assert_eq!(bench.conductor.counters().tls_handshake_count, 0);
        assert!(next_plan(&mut bench).is_none(), "forgotten once");
        bench.assert_quiet();
    }
}
