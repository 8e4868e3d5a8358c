//! A key and a record number seal one content only, whatever happens to a connection.
//!
//! Otherwise AES-GCM discloses its key. The test looks at what is sent: each byte of the stream has
//! the same value in every transmission, and the client can open all records in order, with
//! consecutive numbers. So no number is used for two contents, at one stream offset or at two.

use clock::Duration;
use proptest::prelude::*;
use record::{ContentType, Sealer, Version};
use wire::{OriginalTcp, SeqNumber, TcpFlags};

use super::tls::{TLS_PORT, TlsPeer, answer, key, next_plan, tls_config};
use super::{Bench, OBJECT_BYTES, OUR_ADDRESS, PEER_ADDRESS, Sent};
use crate::{Config, Direction, TlsAnswer, TlsPlan};

const PORT: u16 = 1000;

/// A step of a test.
#[derive(Clone, Debug)]
enum Step {
    /// The client requests the object.
    Get,
    /// A read in progress completes; its bytes are those of the object XOR this.
    Read(usize, u8),
    /// A read in progress finds that the object has changed: it has other bytes from now on, and one less.
    Change(usize),
    /// The segments whose bit is set arrive and are acknowledged; the others are lost.
    Deliver(u64),
    /// The same without an acknowledgment.
    Keep(u64),
    /// Time passes, milliseconds.
    Pass(u64),
    /// The client advertises this window, in units of 256 bytes.
    Window(u16),
    /// ICMP reports this path MTU, bytes.
    Shrink(u32),
    /// The client sends a KeyUpdate, with `update_requested` if true.
    KeyUpdate(bool),
    /// The client sends a record that cannot be decrypted: it gets an alert, and the rest is
    /// dropped.
    Garbage,
    /// The worker has much to do from now on, or not: then it keeps slots between bursts.
    Busy(bool),
}

fn step() -> impl Strategy<Value = Step> {
    use Step::{Busy, Change, Deliver, Garbage, Get, Keep, KeyUpdate, Pass, Read, Shrink, Window};
    let losses = || prop_oneof![3 => Just(u64::MAX), 1 => any::<u64>(), 1 => Just(0)];
    prop_oneof![
        4 => Just(Get),
        8 => any::<usize>().prop_map(|which| Read(which, 0)),
        // A file that changes without being noticed.
        1 => (any::<usize>(), 1u8..3).prop_map(|(which, twist)| Read(which, twist)),
        1 => any::<usize>().prop_map(Change),
        8 => losses().prop_map(Deliver),
        2 => losses().prop_map(Keep),
        4 => (1u64..3_000).prop_map(Pass),
        2 => prop_oneof![Just(0), 1u16..80, Just(u16::MAX)].prop_map(Window),
        1 => (600u32..1_500).prop_map(Shrink),
        2 => any::<bool>().prop_map(KeyUpdate),
        1 => Just(Garbage),
        1 => any::<bool>().prop_map(Busy),
    ]
}

/// A connection, and every byte that was ever sent on it.
struct NonceCheck {
    bench: Bench,
    client: TlsPeer,
    /// By stream offset.
    seen: Vec<Option<u8>>,
    /// Sequence number of offset 0.
    begin: SeqNumber,
    /// The keys in use: ours, the client's for sending, and the same as we receive with it.
    send_key: u8,
    client_key: u8,
    receive_key: u8,
    /// What the disk brings is the object XOR this.
    twist: u8,
}

impl NonceCheck {
    /// For so many slots that are kept between bursts, and so many bytes of copies.
    fn new(kept_slots_max: usize, kept_copy_bytes: usize) -> Self {
        let config = Config {
            // Small, so that our own key is changed too.
            key_records_max: 64,
            kept_slots_max,
            kept_copy_bytes,
            ..tls_config()
        };
        let mut bench = Bench::with(config, 8);
        let client = TlsPeer::connect(&mut bench, PORT, Version::Tls13);
        // The plaintext before the first record may be retransmitted as well.
        let clear = u32::try_from(client.peer.received.len()).unwrap();
        Self {
            begin: SeqNumber(client.peer.expected.0.wrapping_sub(clear)),
            bench,
            client,
            seen: Vec::new(),
            send_key: 1,
            client_key: 101,
            receive_key: 101,
            twist: 0,
        }
    }

    fn apply(&mut self, step: &Step) {
        let Self { bench, client, .. } = self;
        match *step {
            Step::Get => client.get(bench),
            Step::Read(which, twist) if !bench.reads.is_empty() => {
                let read = bench.reads.swap_remove(which % bench.reads.len());
                bench.twist = self.twist ^ twist;
                bench.complete(read, bench.object_bytes);
                bench.turn();
            }
            Step::Change(which) if !bench.reads.is_empty() => {
                let read = bench.reads.swap_remove(which % bench.reads.len());
                self.twist ^= 0x80;
                bench.object_bytes -= 1;
                bench.find_changed(read);
                bench.turn();
            }
            Step::Read(..) | Step::Change(_) => {}
            Step::Deliver(kept) => {
                self.deliver(kept);
                self.client.peer.send(&mut self.bench, TcpFlags::ACK, b"");
            }
            Step::Keep(kept) => self.deliver(kept),
            Step::Pass(milliseconds) => bench.pass(Duration::from_millis(milliseconds)),
            Step::Window(window) => {
                client.peer.window = window;
                client.peer.send(bench, TcpFlags::ACK, b"");
            }
            Step::Shrink(mtu_bytes) => {
                let original = OriginalTcp {
                    source: OUR_ADDRESS.into(),
                    destination: PEER_ADDRESS.into(),
                    source_port: TLS_PORT,
                    destination_port: PORT,
                    sequence: client.peer.expected,
                };
                let now = bench.now;
                bench
                    .conductor
                    .handle_packet_too_big(now, mtu_bytes, &original);
            }
            Step::KeyUpdate(is_answer_wanted) => {
                let text = [24, 0, 0, 1, u8::from(is_answer_wanted)];
                client.say(bench, ContentType::Handshake, &text);
                self.client_key += 1;
                client.sealer = Sealer::new(&key(Version::Tls13, self.client_key));
                client.number = 0;
            }
            Step::Garbage => {
                let mut record = client.seal(ContentType::ApplicationData, b"GET");
                record[7] ^= 1;
                client.peer.send(bench, TcpFlags::ACK, &record);
            }
            Step::Busy(is_busy) => bench.conductor.set_busy(is_busy),
        }
        self.answer_plans();
        self.bench.turn();
        self.record_sent();
    }

    fn answer_plans(&mut self) {
        while let Some(plan) = next_plan(&mut self.bench) {
            let TlsPlan::NextKey { token, direction } = plan else {
                continue;
            };
            let number = match direction {
                Direction::Send => &mut self.send_key,
                Direction::Receive => &mut self.receive_key,
            };
            *number += 1;
            let key = key(Version::Tls13, *number);
            answer(&mut self.bench, token, TlsAnswer::NextKey { key });
        }
    }

    /// Records every byte that was sent, and compares retransmitted ones.
    fn record_sent(&mut self) {
        let mut segments = Vec::new();
        for (frame, payload) in std::mem::take(&mut self.bench.sent) {
            if let Sent::Tcp(segment) = &frame {
                let begin = segment.sequence.distance(self.begin);
                let begin = match usize::try_from(begin) {
                    Ok(begin) => begin,
                    // A keep-alive probe, or the SYN-ACK.
                    Err(_) => {
                        assert!(payload.is_empty(), "bytes before the first");
                        0
                    }
                };
                let end = begin + payload.len();
                self.seen.resize(self.seen.len().max(end), None);
                for (seen, byte) in self.seen[begin..end].iter_mut().zip(&payload) {
                    assert!(
                        seen.is_none_or(|seen| seen == *byte),
                        "two values at {begin}"
                    );
                    *seen = Some(*byte);
                }
            }
            segments.push((frame, payload));
        }
        self.bench.sent = segments;
    }

    /// The segments whose bit is set arrive; the client opens the records that are complete.
    fn deliver(&mut self, kept: u64) {
        let mut place = 0;
        self.bench.sent.retain(|_| {
            place += 1;
            kept >> (place % 64) & 1 == 1
        });
        self.client.peer.take(&mut self.bench);
        self.client.open();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_key_and_number_ever_seal_two_contents(
        kept_slots_max in 0..4usize,
        kept_copy_bytes in prop_oneof![Just(0), Just(100_000)],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut check = NonceCheck::new(kept_slots_max, kept_copy_bytes);
        for step in &steps {
            if check.client.peer.reset {
                break;
            }
            check.apply(step);
        }
    }
}

#[test]
fn the_model_sees_a_whole_object_and_its_retransmissions() {
    for (kept_slots_max, kept_copy_bytes, is_busy) in
        [(0, 0, false), (4, 0, false), (4, 100_000, true)]
    {
        let mut check = NonceCheck::new(kept_slots_max, kept_copy_bytes);
        check.apply(&Step::Busy(is_busy));
        check.apply(&Step::Window(20));
        check.apply(&Step::Get);
        for turn in 0..200 {
            check.apply(&Step::Read(0, 0));
            // The first segment of some transmissions is lost.
            let kept = if turn % 16 == 0 { !2 } else { u64::MAX };
            check.apply(&Step::Deliver(kept));
            check.apply(&Step::Pass(1_000));
        }
        check.client.assert_has_object();
        assert!(check.seen.len() > usize::try_from(OBJECT_BYTES).unwrap());
        let counters = check.bench.conductor.counters();
        assert!(counters.tcp_retransmit_bytes > 0);
        assert!(kept_slots_max > 0 || counters.record_reseal_count > 0);
        assert_eq!(counters.session_kept_fetch_count > 0, kept_slots_max > 0);
        assert_eq!(counters.session_kept_copied_bytes > 0, is_busy);
    }
}
