//! A key and a record's number seal one content and no other, whatever happens to a connection.
//!
//! AES-GCM gives its key away otherwise. It is seen from outside: a byte of the stream never has
//! two values, however often it is sent, and whoever opens records in order, with the number that
//! comes next, can open them all. So no number is sealed twice, neither with other bytes at its
//! place nor at another place.

use clock::Duration;
use proptest::prelude::*;
use record::{ContentType, Sealer, Version};
use wire::{OriginalTcp, SeqNumber, TcpFlags};

use super::tls::{TLS_PORT, TlsPeer, answer, key, next_plan, tls_config};
use super::{Bench, OBJECT_BYTES, OUR_ADDRESS, PEER_ADDRESS, Sent};
use crate::{Config, Direction, TlsAnswer, TlsPlan};

const PORT: u16 = 1000;

/// What can happen to a connection.
#[derive(Clone, Debug)]
enum Happening {
    /// The client asks for the object.
    Get,
    /// The disk answers one of the reads under way; what it brings is the object XOR this.
    Read(usize, u8),
    /// Segments arrive, but for those whose bit is not set, and are acknowledged.
    Deliver(u64),
    /// The same without an acknowledgment.
    Keep(u64),
    /// Time passes, milliseconds.
    Pass(u64),
    /// The client has room for so much, in units of 256 bytes.
    Window(u16),
    /// A router takes packets of so many bytes.
    Shrink(u32),
    /// The client changes its key; if told so, it wants ours changed as well.
    KeyUpdate(bool),
    /// The client sends a record that cannot be opened: it is told, and all else is dropped.
    Garbage,
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::{Deliver, Garbage, Get, Keep, KeyUpdate, Pass, Read, Shrink, Window};
    let losses = || prop_oneof![3 => Just(u64::MAX), 1 => any::<u64>(), 1 => Just(0)];
    prop_oneof![
        4 => Just(Get),
        8 => any::<usize>().prop_map(|which| Read(which, 0)),
        // A file that changes without being noticed.
        1 => (any::<usize>(), 1u8..3).prop_map(|(which, twist)| Read(which, twist)),
        8 => losses().prop_map(Deliver),
        2 => losses().prop_map(Keep),
        4 => (1u64..3_000).prop_map(Pass),
        2 => prop_oneof![Just(0), 1u16..80, Just(u16::MAX)].prop_map(Window),
        1 => (600u32..1_500).prop_map(Shrink),
        2 => any::<bool>().prop_map(KeyUpdate),
        1 => Just(Garbage),
    ]
}

/// A connection, and every byte of it that was ever sent.
struct Witness {
    bench: Bench,
    client: TlsPeer,
    /// By distance from the stream's beginning.
    seen: Vec<Option<u8>>,
    /// Sequence number there.
    begin: SeqNumber,
    /// The keys in use last: ours, the client's as it seals, and as it is opened.
    send_key: u8,
    client_key: u8,
    receive_key: u8,
}

impl Witness {
    fn new() -> Self {
        let config = Config {
            // Small, so that our own key is changed too.
            key_records_max: 64,
            ..tls_config()
        };
        let mut bench = Bench::with(config, 8);
        let client = TlsPeer::connect(&mut bench, PORT, Version::Tls13);
        // What came before the first record, in the clear, may be sent again as well.
        let clear = u32::try_from(client.peer.received.len()).unwrap();
        Self {
            begin: SeqNumber(client.peer.expected.0.wrapping_sub(clear)),
            bench,
            client,
            seen: Vec::new(),
            send_key: 1,
            client_key: 101,
            receive_key: 101,
        }
    }

    fn happen(&mut self, happening: &Happening) {
        let Self { bench, client, .. } = self;
        match *happening {
            Happening::Get => client.get(bench),
            Happening::Read(which, twist) if !bench.reads.is_empty() => {
                let read = bench.reads.swap_remove(which % bench.reads.len());
                bench.twist = twist;
                bench.complete(read, OBJECT_BYTES);
                bench.turn();
            }
            Happening::Read(..) => {}
            Happening::Deliver(kept) => {
                self.deliver(kept);
                self.client.peer.send(&mut self.bench, TcpFlags::ACK, b"");
            }
            Happening::Keep(kept) => self.deliver(kept),
            Happening::Pass(milliseconds) => bench.pass(Duration::from_millis(milliseconds)),
            Happening::Window(window) => {
                client.peer.window = window;
                client.peer.send(bench, TcpFlags::ACK, b"");
            }
            Happening::Shrink(mtu_bytes) => {
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
            Happening::KeyUpdate(is_answer_wanted) => {
                let text = [24, 0, 0, 1, u8::from(is_answer_wanted)];
                client.say(bench, ContentType::Handshake, &text);
                self.client_key += 1;
                client.sealer = Sealer::new(&key(Version::Tls13, self.client_key));
                client.number = 0;
            }
            Happening::Garbage => {
                let mut record = client.seal(ContentType::ApplicationData, b"GET");
                record[7] ^= 1;
                client.peer.send(bench, TcpFlags::ACK, &record);
            }
        }
        self.answer_plans();
        self.bench.turn();
        self.look();
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

    /// Notes every byte that was sent and is not noted yet.
    fn look(&mut self) {
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

    /// Segments arrive, each whose bit is set; what can be opened is.
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
        happenings in proptest::collection::vec(happening(), 1..80),
    ) {
        let mut witness = Witness::new();
        for happening in &happenings {
            if witness.client.peer.reset {
                break;
            }
            witness.happen(happening);
        }
    }
}

#[test]
fn the_model_sees_a_whole_object_and_its_retransmissions() {
    let mut witness = Witness::new();
    witness.happen(&Happening::Get);
    for turn in 0..100 {
        witness.happen(&Happening::Read(0, 0));
        // Of what leaves first, the first segment is lost.
        let kept = if turn == 0 { !2 } else { u64::MAX };
        witness.happen(&Happening::Deliver(kept));
        witness.happen(&Happening::Pass(1_000));
    }
    witness.client.assert_has_object();
    assert!(witness.seen.len() > usize::try_from(OBJECT_BYTES).unwrap());
    assert!(witness.bench.conductor.counters().record_reseal_count > 0);
}
