//! The connections of an attack, without time or sockets: which segment each opens with, and what
//! it answers.

use wire::{SeqNumber, TcpFlags, TcpOptions, TcpRepr};

use crate::args::{Kind, PEERS_MAX};

/// The first peer's port.
const FIRST_PORT: u16 = 1024;
/// SND.ISS of every connection.
const ISS: SeqNumber = SeqNumber(0x1000_0000);
/// Offered in every SYN.
const MSS: u16 = 1460;
/// The window of a peer that takes two bytes at a time.
const TINY_WINDOW: u16 = 2;

/// What a segment of the server calls for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Nothing.
    Nothing,
    /// This segment, and the request in it if it opens the connection.
    Now {
        segment: TcpRepr,
        with_request: bool,
    },
}

/// One connection.
#[derive(Clone, Copy, Default, Debug)]
struct Peer {
    state: State,
    /// RCV.NXT.
    rcv_nxt: u32,
    /// Whether data arrived that it has not acknowledged.
    owes_ack: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    Unused,
    /// Its SYN was sent.
    Opening,
    Open,
    /// Reset, or ended by the server.
    Over,
}

/// All connections.
pub(crate) struct Peers {
    kind: Kind,
    server_port: u16,
    request_bytes: u32,
    peers: Vec<Peer>,
    opened: u32,
    pub(crate) established: u64,
    pub(crate) resets: u64,
}

impl Peers {
    pub(crate) fn new(kind: Kind, server_port: u16, count: u32, request_bytes: usize) -> Self {
        assert!(count <= PEERS_MAX, "more peers than ports");
        Self {
            kind,
            server_port,
            request_bytes: u32::try_from(request_bytes).expect("invariant: a short request"),
            peers: vec![Peer::default(); count as usize],
            opened: 0,
            established: 0,
            resets: 0,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.peers.len()).expect("invariant: at most PEERS_MAX")
    }

    /// How many have sent their SYN.
    pub(crate) const fn opened(&self) -> u32 {
        self.opened
    }

    /// Connections that are open as far as their peers know.
    pub(crate) fn open(&self) -> usize {
        let is_open = |peer: &&Peer| peer.state == State::Open;
        self.peers.iter().filter(is_open).count()
    }

    /// The SYN of the next peer; `None`: each has sent its own.
    pub(crate) fn open_next(&mut self) -> Option<TcpRepr> {
        let number = self.opened;
        let peer = self.peers.get_mut(number as usize)?;
        peer.state = State::Opening;
        self.opened += 1;
        Some(self.syn(number))
    }

    /// The SYN of a peer.
    pub(crate) fn syn(&self, number: u32) -> TcpRepr {
        let options = TcpOptions {
            mss: Some(MSS),
            sack_permitted: true,
            ..TcpOptions::default()
        };
        TcpRepr {
            source_port: port(number),
            destination_port: self.server_port,
            sequence: ISS,
            acknowledgment: SeqNumber(0),
            flags: TcpFlags::SYN,
            window: u16::MAX,
            options,
        }
    }

    /// What the peer that a segment is for does about it.
    pub(crate) fn answer(&mut self, segment: &TcpRepr, payload_bytes: usize) -> Answer {
        let Some(number) = segment.destination_port.checked_sub(FIRST_PORT) else {
            return Answer::Nothing;
        };
        let Some(peer) = self.peers.get_mut(usize::from(number)) else {
            return Answer::Nothing;
        };
        let payload = u32::try_from(payload_bytes).expect("invariant: one frame");
        if segment.flags.contains(TcpFlags::RST) {
            self.resets += 1;
            peer.state = State::Over;
            return Answer::Nothing;
        }
        match peer.state {
            State::Opening if segment.flags.contains(TcpFlags::SYN) => {
                if !self.kind.completes() {
                    return Answer::Nothing;
                }
                peer.state = State::Open;
                peer.rcv_nxt = segment.sequence.0.wrapping_add(1);
                self.established += 1;
                Answer::Now {
                    segment: self.ack(u32::from(number), true),
                    with_request: true,
                }
            }
            State::Open => {
                if segment.sequence.0 == peer.rcv_nxt && takes(self.kind, payload) {
                    peer.rcv_nxt = peer.rcv_nxt.wrapping_add(payload);
                    peer.owes_ack |= payload > 0;
                }
                if self.kind == Kind::SlowReader && payload > 0 {
                    return Answer::Nothing;
                }
                // A FIN is not acknowledged: that holds the connection longest. A pure ACK calls
                // for nothing; a probe of the window without data repeats a sequence number.
                let is_probe = segment.sequence.0 != peer.rcv_nxt;
                if payload == 0 && !is_probe {
                    return Answer::Nothing;
                }
                Answer::Now {
                    segment: self.ack(u32::from(number), false),
                    with_request: false,
                }
            }
            State::Unused | State::Opening | State::Over => Answer::Nothing,
        }
    }

    /// The ACK that a slow reader owes, if it does.
    pub(crate) fn late_ack(&mut self, number: u32) -> Option<TcpRepr> {
        let peer = self.peers.get_mut(number as usize)?;
        if peer.state != State::Open || !std::mem::take(&mut peer.owes_ack) {
            return None;
        }
        Some(self.ack(number, false))
    }

    fn ack(&self, number: u32, begins: bool) -> TcpRepr {
        let sent = if begins { 0 } else { self.request_bytes };
        let window = match self.kind {
            Kind::ShutWindow => 0,
            Kind::TinyWindow => TINY_WINDOW,
            _ => MSS,
        };
        TcpRepr {
            source_port: port(number),
            destination_port: self.server_port,
            sequence: ISS.wrapping_add(1).wrapping_add(sent),
            acknowledgment: SeqNumber(self.peers[number as usize].rcv_nxt),
            flags: TcpFlags::ACK,
            window,
            options: TcpOptions::default(),
        }
    }
}

/// Whether a peer takes so many bytes in order.
fn takes(kind: Kind, bytes: u32) -> bool {
    match kind {
        Kind::ShutWindow => false,
        Kind::TinyWindow => bytes <= TINY_WINDOW.into(),
        _ => true,
    }
}

fn port(number: u32) -> u16 {
    let number = u16::try_from(number).expect("invariant: at most PEERS_MAX");
    FIRST_PORT + number
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: usize = 40;

    fn from_server(to: &TcpRepr, sequence: u32, flags: TcpFlags) -> TcpRepr {
        TcpRepr {
            source_port: to.destination_port,
            destination_port: to.source_port,
            sequence: SeqNumber(sequence),
            acknowledgment: to.sequence.wrapping_add(1),
            flags,
            window: 1000,
            options: TcpOptions::default(),
        }
    }

    /// A peer that has completed its handshake with a server whose ISS is 99.
    fn opened(kind: Kind) -> (Peers, TcpRepr) {
        let mut peers = Peers::new(kind, 80, 1, REQUEST);
        let syn = peers.open_next().expect("one peer");
        let reply = from_server(&syn, 99, TcpFlags::SYN.union(TcpFlags::ACK));
        let Answer::Now {
            segment,
            with_request: true,
        } = peers.answer(&reply, 0)
        else {
            panic!("no request");
        };
        assert_eq!(segment.acknowledgment, SeqNumber(100));
        (peers, syn)
    }

    fn answer(peers: &mut Peers, syn: &TcpRepr, sequence: u32, bytes: usize) -> Option<TcpRepr> {
        match peers.answer(&from_server(syn, sequence, TcpFlags::ACK), bytes) {
            Answer::Nothing => None,
            Answer::Now { segment, .. } => Some(segment),
        }
    }

    #[test]
    fn each_peer_opens_once_and_from_a_port_of_its_own() {
        let mut peers = Peers::new(Kind::HalfOpen, 80, 2, REQUEST);
        let first = peers.open_next().expect("the first");
        let second = peers.open_next().expect("the second");
        assert_eq!((first.source_port, second.source_port), (1024, 1025));
        assert_eq!(peers.open_next(), None);
        let all = Peers::new(Kind::SynFlood, 80, PEERS_MAX, REQUEST);
        assert_eq!(all.syn(PEERS_MAX - 1).source_port, 65_023);
    }

    #[test]
    fn a_half_open_peer_never_completes_its_handshake() {
        let mut peers = Peers::new(Kind::HalfOpen, 80, 1, REQUEST);
        let syn = peers.open_next().expect("one peer");
        let reply = from_server(&syn, 99, TcpFlags::SYN.union(TcpFlags::ACK));
        assert_eq!(peers.answer(&reply, 0), Answer::Nothing);
        assert_eq!(peers.open(), 0);
    }

    #[test]
    fn a_shut_window_takes_nothing_and_answers_every_probe() {
        let (mut peers, syn) = opened(Kind::ShutWindow);
        for _ in 0..2 {
            let ack = answer(&mut peers, &syn, 100, 1).expect("an ACK");
            assert_eq!((ack.acknowledgment, ack.window), (SeqNumber(100), 0));
        }
        // A probe without data repeats the sequence number before RCV.NXT.
        assert!(answer(&mut peers, &syn, 99, 0).is_some());
        // The ACK of the request calls for nothing.
        assert_eq!(answer(&mut peers, &syn, 100, 0), None);
    }

    #[test]
    fn a_tiny_window_takes_what_fits_into_it() {
        let (mut peers, syn) = opened(Kind::TinyWindow);
        let ack = answer(&mut peers, &syn, 100, 2).expect("an ACK");
        assert_eq!((ack.acknowledgment, ack.window), (SeqNumber(102), 2));
        let ack = answer(&mut peers, &syn, 102, 3).expect("an ACK");
        assert_eq!(ack.acknowledgment, SeqNumber(102));
    }

    #[test]
    fn a_slow_reader_acknowledges_when_its_turn_comes_and_once() {
        let (mut peers, syn) = opened(Kind::SlowReader);
        assert_eq!(peers.late_ack(0), None);
        assert_eq!(answer(&mut peers, &syn, 100, 1000), None);
        let ack = peers.late_ack(0).expect("an ACK");
        assert_eq!(ack.acknowledgment, SeqNumber(1100));
        assert_eq!(ack.sequence, ISS.wrapping_add(1 + 40));
        assert_eq!(peers.late_ack(0), None);
    }

    #[test]
    fn a_reset_ends_a_connection_and_is_counted() {
        let (mut peers, syn) = opened(Kind::TinyWindow);
        assert_eq!((peers.established, peers.open()), (1, 1));
        let reset = from_server(&syn, 100, TcpFlags::RST);
        assert_eq!(peers.answer(&reset, 0), Answer::Nothing);
        assert_eq!((peers.resets, peers.open()), (1, 0));
        assert_eq!(answer(&mut peers, &syn, 100, 1), None);
    }
}
