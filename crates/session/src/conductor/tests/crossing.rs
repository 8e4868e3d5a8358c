//! Two or three processes of a take-over: the last has the link, those before finish what they have.

use clock::Duration;
use wire::{SeqNumber, TcpFlags, TcpOptions};

use super::{Bench, PORT, Peer, assert_is_object, config, peer_route};
use crate::conductor::CROSSING_MAX;
use crate::{Config, CrossingError, Process};

/// Processes in the order of their starts.
struct Chain(Vec<Bench>);

impl Chain {
    /// The first of them, alone.
    fn new() -> Self {
        Self(vec![Bench::new()])
    }

    /// Another process takes over.
    fn take_over(&mut self) {
        let seed = [u8::try_from(self.0.len()).unwrap(); 32];
        let mut next = Bench::with(Config { seed, ..config() }, 8);
        next.now = self.last().now;
        next.conductor.set_predecessor(true);
        self.last().conductor.set_successor(true);
        self.0.push(next);
    }

    /// The process that has the link.
    fn last(&mut self) -> &mut Bench {
        self.0.last_mut().unwrap()
    }

    /// Brings what crosses to the other processes, until nothing does. Returns how much did.
    fn carry(&mut self) -> usize {
        let mut message = Vec::new();
        let mut count = 0;
        for _ in 0..2 * self.0.len() {
            for from in 0..self.0.len() {
                while let Some((process, stray)) = self.0[from].conductor.poll_crossing() {
                    count += 1;
                    let (to, sender) = match process {
                        Process::Predecessor => (from - 1, Process::Successor),
                        Process::Successor => (from + 1, Process::Predecessor),
                    };
                    assert!(stray.write_message(&mut message));
                    let next = &mut self.0[to];
                    let (now, arena) = (next.now, &mut next.arena);
                    (next.conductor)
                        .handle_crossing(now, arena, sender, &message)
                        .unwrap();
                    next.conductor.end_batch(now, &mut next.arena);
                    next.turn();
                }
            }
        }
        let waiting = self.0.iter_mut().map(|it| it.conductor.poll_crossing());
        assert!(waiting.flatten().next().is_none(), "it goes in circles");
        count
    }

    /// Serves the client of one process to the end of its reply; its segments reach the last one.
    fn finish(&mut self, of: usize, peer: &mut Peer) {
        loop {
            self.0[of].turn();
            self.0[of].complete_reads();
            if !peer.take(&mut self.0[of]) {
                break;
            }
            peer.send(self.last(), TcpFlags::ACK, b"");
            self.carry();
        }
    }

    fn resets(&self) -> Vec<u64> {
        let counters = self.0.iter().map(|it| it.conductor.counters());
        counters.map(|it| it.tcp_refused_segments).collect()
    }
}

fn stranger(port: u16) -> Peer {
    Peer::new(peer_route(), PORT, port, SeqNumber(7))
}

#[test]
fn a_reply_in_progress_goes_on_to_its_end_through_one_and_two_successors() {
    for take_overs in [1, 2, 4] {
        let mut chain = Chain::new();
        let mut peer = Peer::connect(&mut chain.0[0], 1000);
        peer.get(&mut chain.0[0], "/object");
        for _ in 0..take_overs {
            chain.take_over();
        }
        chain.finish(0, &mut peer);
        assert_is_object(peer.head_and_rest().1, 0);
        assert_eq!(peer.head_and_rest().1.len(), 300_000);
        assert!(!peer.reset && !peer.finished, "the reply had begun before");
        // The next reply is the connection's last.
        peer.received.clear();
        peer.get(chain.last(), "/object");
        chain.carry();
        chain.finish(0, &mut peer);
        let (head, rest) = peer.head_and_rest();
        assert!(head.to_lowercase().contains("connection: close"), "{head}");
        assert_eq!(rest.len(), 300_000);
        assert!(peer.finished && !peer.reset);
        assert!(chain.resets().iter().all(|count| *count == 0));
    }
}

#[test]
fn a_connection_that_is_idle_stays_until_its_next_request() {
    let mut chain = Chain::new();
    let mut peer = Peer::connect(&mut chain.0[0], 1000);
    chain.take_over();
    for bench in &mut chain.0 {
        bench.pass(Duration::from_millis(100));
    }
    assert_eq!(chain.0[0].conductor.connection_count(), 1);
    assert!(!peer.take(&mut chain.0[0]) && !peer.finished);
    peer.get(chain.last(), "/object");
    chain.carry();
    chain.finish(0, &mut peer);
    assert!(peer.finished && peer.head_and_rest().1.len() == 300_000);
}

#[test]
fn a_syn_is_answered_by_the_successor_alone_whoever_received_it() {
    let mut chain = Chain::new();
    chain.take_over();
    // To the link's owner, and, in the moment before that stopped, to the one before.
    for (reached, port) in [(1, 1000), (0, 1001)] {
        let _peer = Peer::send_syn(&mut chain.0[reached], port, SeqNumber(5));
        chain.carry();
        assert!(chain.0[0].take_segments(port).is_empty());
        let answers = chain.0[1].take_segments(port);
        assert!(answers.len() == 1 && answers[0].0.flags.contains(TcpFlags::SYN));
    }
    // Both got it.
    let _peer = Peer::send_syn(&mut chain.0[0], 1002, SeqNumber(5));
    let _peer = Peer::send_syn(&mut chain.0[1], 1002, SeqNumber(5));
    chain.carry();
    assert!(chain.0[0].take_segments(1002).is_empty());
    let answers = chain.0[1].take_segments(1002);
    assert!(
        answers
            .iter()
            .all(|it| it.0.sequence == answers[0].0.sequence)
    );
    assert_eq!(chain.resets(), [0, 0]);
}

#[test]
fn a_handshake_that_began_before_is_completed_by_the_predecessor() {
    let mut chain = Chain::new();
    let mut peer = Peer::send_syn(&mut chain.0[0], 1000, SeqNumber(5));
    let syn_ack = chain.0[0].take_segments(1000).remove(0).0;
    chain.take_over();
    peer.expected = syn_ack.sequence.wrapping_add(1);
    peer.send(chain.last(), TcpFlags::ACK, b"");
    chain.carry();
    assert_eq!(chain.0[0].conductor.counters().tcp_established_count, 1);
    // A late duplicate of the SYN opens nothing beside it that would keep its segments.
    let _late = Peer::send_syn(chain.last(), 1000, SeqNumber(5));
    peer.get(chain.last(), "/object");
    chain.carry();
    chain.finish(0, &mut peer);
    assert!(peer.finished && peer.head_and_rest().1.len() == 300_000);
}

#[test]
fn what_belongs_to_nobody_is_refused_once_by_the_last() {
    for take_overs in [1, 2] {
        for reached in 0..=take_overs {
            let mut chain = Chain::new();
            (0..take_overs).for_each(|_| chain.take_over());
            let ack = TcpFlags::ACK;
            stranger(1000).send_with(&mut chain.0[reached], ack, TcpOptions::default(), b"?");
            chain.carry();
            let mut resets = chain.resets();
            assert_eq!(resets.pop(), Some(1), "{take_overs} {reached}");
            assert!(resets.iter().all(|count| *count == 0));
        }
    }
}

#[test]
fn after_the_successor_s_end_all_is_as_before() {
    let mut chain = Chain::new();
    chain.take_over();
    chain.0.pop();
    let alone = &mut chain.0[0];
    alone.conductor.set_successor(false);
    let mut peer = Peer::connect(alone, 1000);
    peer.get(alone, "/object");
    chain.finish(0, &mut peer);
    let (head, rest) = peer.head_and_rest();
    assert!(!head.to_lowercase().contains("connection: close"), "{head}");
    assert!(rest.len() == 300_000 && !peer.finished);
}

#[test]
fn one_more_than_may_wait_is_dropped_and_counted() {
    let mut chain = Chain::new();
    chain.take_over();
    let last = chain.last();
    last.is_batch_open = true;
    for place in 0..=CROSSING_MAX {
        let port = u16::try_from(place + 1000).unwrap();
        stranger(port).send_with(last, TcpFlags::ACK, TcpOptions::default(), b"?");
    }
    let counters = last.conductor.counters();
    assert_eq!(counters.tcp_crossing_dropped_count, 1);
    assert_eq!(counters.tcp_crossed_count, CROSSING_MAX as u64);
}

#[test]
fn messages_that_mean_nothing_are_told_apart_and_change_nothing() {
    let mut bench = Bench::new();
    let mut judge = |message: &[u8]| {
        let (now, arena) = (bench.now, &mut bench.arena);
        (bench.conductor).handle_crossing(now, arena, Process::Successor, message)
    };
    assert_eq!(judge(&[]), Err(CrossingError::Malformed));
    assert_eq!(judge(&[0]), Err(CrossingError::Kind));
    assert_eq!(judge(&[4, 1, 2]), Err(CrossingError::Kind));
    for kind in 1..=3 {
        for length in 0..120 {
            let mut message = vec![kind];
            message.extend((0..length).map(|byte: u8| byte.wrapping_mul(37)));
            let is_whole = (kind == 2 && length == 44) || (kind == 3 && length == 23);
            assert_eq!(judge(&message).is_ok(), is_whole, "{kind} {length}");
        }
    }
    assert_eq!(bench.conductor.connection_count(), 0);
}
