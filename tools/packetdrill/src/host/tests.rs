//! The host, used by a program and a peer.

use core::net::{IpAddr, Ipv4Addr};

use clock::Duration;
use wire::{
    ChecksumState, HEADERS_BYTES_MAX, Incoming, Route, SeqNumber, TcpChecksum, TcpFlags,
    TcpOptions, TcpRepr,
};

use super::{ETHERNET_BYTES, Errno, Host, HowToShut, OUR_MAC, PEER_MAC, Settings};

const PORT: u16 = 8080;
const ACK: TcpFlags = TcpFlags::ACK;

/// A client that has sent `sent` bytes, SYN and FIN included, and has seen the host's ISS.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    sent: u32,
    iss: SeqNumber,
}

impl Peer {
    fn route() -> Route {
        Route {
            source_mac: PEER_MAC,
            destination_mac: OUR_MAC,
            source: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            destination: IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)),
        }
    }

    /// A packet that acknowledges `acknowledged` bytes of the host's, SYN included.
    pub(crate) fn packet(&mut self, flags: TcpFlags, acknowledged: u32, text: &[u8]) -> Vec<u8> {
        let is_syn = flags.contains(TcpFlags::SYN);
        let segment = TcpRepr {
            source_port: 40_000,
            destination_port: PORT,
            sequence: SeqNumber(self.sent),
            acknowledgment: self.iss.wrapping_add(acknowledged),
            flags,
            window: 60_000,
            options: TcpOptions {
                mss: is_syn.then_some(1000),
                ..TcpOptions::default()
            },
        };
        let control = u32::from(is_syn) + u32::from(flags.contains(TcpFlags::FIN));
        self.sent += u32::try_from(text.len()).unwrap() + control;
        let mut headers = [0; HEADERS_BYTES_MAX];
        let length = wire::emit_tcp(
            &mut headers,
            &Self::route(),
            &segment,
            &[text],
            TcpChecksum::Full,
            1,
        );
        [&headers[ETHERNET_BYTES..length], text].concat()
    }

    /// The next packet of the host, with correct checksums.
    fn see(&mut self, host: &mut Host) -> Option<(TcpRepr, Vec<u8>)> {
        if !host.has_packet() {
            return None;
        }
        let packet = host.next_packet().unwrap();
        let frame = [&PEER_MAC.0[..], &OUR_MAC.0, &[0x08, 0x00], &packet.bytes].concat();
        match wire::parse_frame(&frame, ChecksumState::Unverified) {
            Ok(Incoming::Tcp {
                segment, payload, ..
            }) => Some((segment, payload.to_vec())),
            other => panic!("{other:?}"),
        }
    }
}

/// A host that listens, a peer whose handshake is done, and the host's descriptor of it.
fn connected() -> (Host, Peer, i32) {
    let mut host = Host::new(Settings::default());
    let (peer, connection) = connect(&mut host);
    (host, peer, connection)
}

/// The same with a host that has no sockets.
pub(crate) fn connect(host: &mut Host) -> (Peer, i32) {
    let listening = host.socket();
    host.bind(listening, PORT).unwrap();
    host.listen(listening).unwrap();
    assert_eq!(host.accept(listening), Err(Errno::AGAIN));
    let mut peer = Peer::default();
    host.receive(&peer.packet(TcpFlags::SYN, 0, &[]));
    let (syn_ack, _) = peer.see(host).unwrap();
    peer.iss = syn_ack.sequence;
    host.receive(&peer.packet(ACK, 1, &[]));
    let (connection, from) = host.accept(listening).unwrap();
    assert_eq!(from.to_string(), "192.0.2.1:40000");
    (peer, connection)
}

#[test]
fn what_is_written_leaves_in_segments_of_the_peers_size() {
    let (mut host, mut peer, connection) = connected();
    let text: Vec<u8> = (0..2500_u32).map(|at| at.to_le_bytes()[0]).collect();
    assert_eq!(host.write(connection, &text), Ok(2500));
    let mut seen = Vec::new();
    let mut lengths = Vec::new();
    while let Some((segment, payload)) = peer.see(&mut host) {
        let is_last = seen.len() + payload.len() == text.len();
        assert_eq!(segment.flags.contains(TcpFlags::PSH), is_last);
        lengths.push(payload.len());
        seen.extend(payload);
    }
    assert_eq!(lengths, [1000, 1000, 500]);
    assert_eq!(seen, text);
}

#[test]
fn what_arrives_is_read_once_and_its_end_is_zero_bytes() {
    let (mut host, mut peer, connection) = connected();
    assert_eq!(host.read(connection, 10), Err(Errno::AGAIN));
    host.receive(&peer.packet(ACK, 1, b"request"));
    assert_eq!(host.readable_bytes(connection), Ok(7));
    assert_eq!(host.read(connection, 3).unwrap(), b"req");
    assert_eq!(host.read(connection, 10).unwrap(), b"uest");
    assert_eq!(host.read(connection, 10), Err(Errno::AGAIN));
    host.receive(&peer.packet(ACK.union(TcpFlags::FIN), 1, &[]));
    assert_eq!(host.read(connection, 10).unwrap(), b"");
}

#[test]
fn closing_sends_a_fin_and_with_unread_bytes_a_reset() {
    for is_read in [true, false] {
        let (mut host, mut peer, connection) = connected();
        host.receive(&peer.packet(ACK, 1, b"request"));
        if is_read {
            host.read(connection, 10).unwrap();
        }
        host.close(connection).unwrap();
        let (last, _) = peer.see(&mut host).unwrap();
        assert_eq!(last.flags.contains(TcpFlags::FIN), is_read);
        assert_eq!(last.flags.contains(TcpFlags::RST), !is_read);
        assert_eq!(host.write(connection, b"more"), Err(Errno::BAD_DESCRIPTOR));
    }
}

#[test]
fn text_for_a_closed_socket_is_answered_by_a_reset() {
    let (mut host, mut peer, connection) = connected();
    host.close(connection).unwrap();
    peer.see(&mut host).unwrap();
    host.receive(&peer.packet(ACK, 2, b"more"));
    let (reset, _) = peer.see(&mut host).unwrap();
    assert!(reset.flags.contains(TcpFlags::RST));
}

#[test]
fn after_a_reset_calls_fail_once_and_then_say_that_it_is_over() {
    let (mut host, mut peer, connection) = connected();
    host.receive(&peer.packet(TcpFlags::RST, 1, &[]));
    assert_eq!(host.read(connection, 10), Err(Errno::RESET));
    assert_eq!(host.read(connection, 10).unwrap(), b"");
    assert_eq!(host.write(connection, b"more"), Err(Errno::PIPE));
}

#[test]
fn shutting_one_direction_leaves_the_other_open() {
    let (mut host, mut peer, connection) = connected();
    host.shutdown(connection, HowToShut::Write).unwrap();
    assert_eq!(host.write(connection, b"more"), Err(Errno::PIPE));
    let (fin, _) = peer.see(&mut host).unwrap();
    assert!(fin.flags.contains(TcpFlags::FIN));
    host.receive(&peer.packet(ACK, 2, b"request"));
    assert_eq!(host.read(connection, 10).unwrap(), b"request");
}

#[test]
fn time_passes_only_when_it_is_let() {
    let mut host = Host::new(Settings::default());
    let listening = host.socket();
    host.bind(listening, PORT).unwrap();
    host.listen(listening).unwrap();
    let mut peer = Peer::default();
    let start = host.now();
    host.receive(&peer.packet(TcpFlags::SYN, 0, &[]));
    assert!(peer.see(&mut host).is_some());
    host.advance(start + Duration::from_micros(999_999));
    assert!(!host.has_packet());
    // The SYN-ACK again, after a second.
    assert_eq!(
        host.next_packet().unwrap().at,
        start + Duration::from_secs(1)
    );
    assert_eq!(host.now(), start + Duration::from_secs(1));
}

#[test]
fn a_port_without_a_listener_is_answered_by_a_reset() {
    let mut host = Host::new(Settings::default());
    let mut peer = Peer::default();
    host.receive(&peer.packet(TcpFlags::SYN, 0, &[]));
    let (reset, _) = peer.see(&mut host).unwrap();
    assert!(reset.flags.contains(TcpFlags::RST));
}
