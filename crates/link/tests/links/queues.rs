//! Several queues of one interface against the kernel: TCP clients of its stack, of which each must
//! stay on one queue. Each test in its own network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread;

use crate::common::{
    Peer, RawSocket, Segment, eventually, in_namespace, ip, is_large, receive_until_gone, send,
};
use clock::{Duration, Instant};
use link::{
    InterfaceAddress, Link, LinkError, Packet, PacketConfig, Received, Sent, SetupError, Tap,
    TapConfig, ZeroCopy, interface_exists, steering,
};
use memory::{Arena, ArenaConfig, PageKind};
use wire::{
    HEADERS_BYTES_MAX, Incoming, MacAddress, SeqNumber, TcpChecksum, TcpFlags, TcpRepr, parse_frame,
};

const V4: &str = "10.77.0.9";
const V6: &str = "fd77::9";
const QUEUES: usize = 4;
/// Clients of one test: with this many, the chance that a fair rule leaves one of four queues empty is
/// below one in a million. (And the same clients have the same ports only by chance.)
const CLIENTS: usize = 64;

/// A veth pair, the kernel's addresses .1 and ::1 here, .2 and ::2 at the peer.
fn connect() -> Peer {
    let peer = Peer::connect("v0", "v1");
    ip("address add 10.77.0.1/24 dev v0");
    ip("address add fd77::1/64 dev v0 nodad");
    peer.run(|| ip("address add 10.77.0.2/24 dev v1"));
    peer.run(|| ip("address add fd77::2/64 dev v1 nodad"));
    peer
}

fn open(addresses: &[&str]) -> Vec<Packet> {
    let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
    Packet::open_queues(&PacketConfig::new("v0", &addresses), QUEUES).unwrap()
}

/// The least server: it answers each segment that opens a connection or has text, on the queue where
/// it came, and notes which queues each client's segments came on.
struct Server<L> {
    queues: Vec<L>,
    /// By client.
    seen: BTreeMap<SocketAddr, BTreeSet<usize>>,
    /// Bytes of text of each client, retransmissions among them.
    text: BTreeMap<SocketAddr, usize>,
    /// Whether each frame must be on the queue that `steering` says: on a packet socket.
    is_steered_by_rule: bool,
    /// A clock that goes on with each round, so that links ask for the interface's state.
    now: Instant,
}

impl<L: Link> Server<L> {
    fn new(queues: Vec<L>, is_steered_by_rule: bool) -> Self {
        Self {
            queues,
            seen: BTreeMap::new(),
            text: BTreeMap::new(),
            is_steered_by_rule,
            now: Instant::ZERO,
        }
    }

    /// Serves until `done`.
    fn serve_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        eventually(|| {
            self.now += Duration::from_millis(5);
            for queue in 0..self.queues.len() {
                self.serve(queue);
            }
            done(self)
        });
    }

    fn serve(&mut self, queue: usize) {
        let count = self.queues.len();
        let link = &mut self.queues[queue];
        let mac = link.capabilities().mac;
        let mut answers = Vec::new();
        let mut take = |received: Received<'_>| {
            if self.is_steered_by_rule {
                assert_eq!(steering::queue_of(received.frame, count), queue);
            }
            let mut buffer = [0; HEADERS_BYTES_MAX];
            let length = match parse_frame(received.frame, received.checksum) {
                Ok(Incoming::Arp(request)) => wire::emit_arp_reply(&mut buffer, &request, mac),
                Ok(Incoming::NeighborSolicitation { path, target, .. }) => {
                    wire::emit_neighbor_advertisement(&mut buffer, &path, target, mac)
                }
                Ok(Incoming::Tcp {
                    path,
                    segment,
                    payload,
                    ..
                }) => {
                    let client = SocketAddr::new(path.source, segment.source_port);
                    self.seen.entry(client).or_default().insert(queue);
                    *self.text.entry(client).or_default() += payload.len();
                    let is_syn = segment.flags.contains(TcpFlags::SYN);
                    if !is_syn && payload.is_empty() {
                        return;
                    }
                    let bytes = u32::try_from(payload.len()).unwrap();
                    let answer = TcpRepr {
                        source_port: segment.destination_port,
                        destination_port: segment.source_port,
                        sequence: if is_syn { SeqNumber(0) } else { SeqNumber(1) },
                        acknowledgment: segment.sequence.wrapping_add(bytes + u32::from(is_syn)),
                        flags: if is_syn {
                            TcpFlags::SYN.union(TcpFlags::ACK)
                        } else {
                            TcpFlags::ACK
                        },
                        window: 10_000,
                        ..TcpRepr::default()
                    };
                    let checksum = TcpChecksum::Full;
                    wire::emit_tcp(&mut buffer, &path.reply_route(), &answer, &[], checksum, 1)
                }
                _ => return,
            };
            answers.push(buffer[..length].to_vec());
        };
        link.receive(self.now, 64, &mut take).unwrap();
        for answer in answers {
            send(link, &answer).unwrap();
        }
    }

    /// Serves until each of the clients has sent so many bytes of text.
    fn serve_text(&mut self, clients: &[SocketAddr], bytes: usize) {
        let has = |server: &Self, client| server.text.get(client).is_some_and(|n| *n >= bytes);
        self.serve_until(|server| clients.iter().all(|client| has(server, client)));
    }

    /// Fails unless each client's segments came on one queue, and each queue had some.
    fn assert_divided(&self, clients: &[SocketAddr]) {
        let mut used: BTreeSet<usize> = BTreeSet::new();
        for client in clients {
            let queues = &self.seen[client];
            assert_eq!(queues.len(), 1, "{client} on queues {queues:?}");
            used.extend(queues);
        }
        assert_eq!(used.len(), self.queues.len(), "queues with clients");
    }

    fn queue_of(&self, client: SocketAddr) -> usize {
        *self.seen[&client].first().unwrap()
    }
}

/// Kernel clients of `ours` that connect and send five bytes each, in the calling thread's namespace.
fn start_clients(ours: &str) -> thread::JoinHandle<Vec<TcpStream>> {
    let server = SocketAddr::new(ours.parse().unwrap(), 80);
    thread::spawn(move || {
        let client = |_| {
            let mut client = TcpStream::connect(server).unwrap();
            client.write_all(b"hello").unwrap();
            client
        };
        (0..CLIENTS).map(client).collect()
    })
}

fn addresses(clients: &[TcpStream]) -> Vec<SocketAddr> {
    clients
        .iter()
        .map(|client| client.local_addr().unwrap())
        .collect()
}

/// Serves while the clients connect; all of them, when their text has come.
fn serve_new<L: Link>(
    server: &mut Server<L>,
    clients: thread::JoinHandle<Vec<TcpStream>>,
) -> Vec<TcpStream> {
    server.serve_until(|_| clients.is_finished());
    let clients = clients.join().unwrap();
    server.serve_text(&addresses(&clients), 5);
    clients
}

#[test]
fn each_client_stays_on_one_queue_and_all_queues_are_used() {
    in_namespace(|| {
        let peer = connect();
        for ours in [V4, V6] {
            let mut server = Server::new(open(&[V4, V6]), true);
            let clients = serve_new(&mut server, peer.run(move || start_clients(ours)));
            server.assert_divided(&addresses(&clients));
        }
    });
}

#[test]
fn one_queue_receives_everything_without_a_group() {
    in_namespace(|| {
        let peer = connect();
        let config = PacketConfig::new("v0", &[V4.parse().unwrap()]);
        let mut server = Server::new(Packet::open_queues(&config, 1).unwrap(), true);
        let clients = serve_new(&mut server, peer.run(|| start_clients(V4)));
        server.assert_divided(&addresses(&clients));
    });
}

#[test]
fn clients_stay_on_their_queues_when_the_interface_was_down() {
    in_namespace(|| {
        let peer = connect();
        let mut server = Server::new(open(&[V4]), true);
        let mut clients = serve_new(&mut server, peer.run(|| start_clients(V4)));
        let addresses = addresses(&clients);
        ip("link set v0 down");
        server.serve_until(|server| {
            server
                .queues
                .iter()
                .all(|queue| queue.counters().down_events > 0)
        });
        ip("link set v0 up");
        for client in &mut clients {
            client.write_all(b"world").unwrap();
        }
        server.serve_text(&addresses, 10);
        server.assert_divided(&addresses);
    });
}

/// "Fragmentation needed", as a router sends it about a segment of ours to this client.
fn fragmentation_needed(mac: MacAddress, client: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(address) = client.ip() else {
        unreachable!("an IPv4 client");
    };
    let ours: Ipv4Addr = V4.parse().unwrap();
    let mut quote = vec![0x45, 0, 5, 220, 0, 1, 0x40, 0, 64, 6, 0, 0];
    quote.extend_from_slice(&ours.octets());
    quote.extend_from_slice(&address.octets());
    quote.extend_from_slice(&80_u16.to_be_bytes());
    quote.extend_from_slice(&client.port().to_be_bytes());
    quote.extend_from_slice(&[0, 0, 0, 1]);
    let mut frame = mac.0.to_vec();
    frame.extend_from_slice(&[2, 9, 9, 9, 9, 9, 0x08, 0x00]);
    frame.extend_from_slice(&[0x45, 0, 0, 56, 0, 1, 0, 0, 64, 1, 0, 0, 10, 77, 0, 2]);
    frame.extend_from_slice(&ours.octets());
    frame.extend_from_slice(&[3, 4, 0, 0, 0, 0, 5, 0]);
    frame.extend_from_slice(&quote);
    frame
}

#[test]
fn fragmentation_needed_reaches_the_queue_of_its_connection() {
    in_namespace(|| {
        let peer = connect();
        let mut server = Server::new(open(&[V4]), true);
        let clients = serve_new(&mut server, peer.run(|| start_clients(V4)));
        let clients = addresses(&clients);
        server.assert_divided(&clients);
        let mac = server.queues[0].capabilities().mac;
        let mut router = peer.run(|| RawSocket::open("v1"));
        for client in clients {
            let queue = server.queue_of(client);
            let error = fragmentation_needed(mac, client);
            router.send(&error);
            let mut found = BTreeSet::new();
            eventually(|| {
                for (number, link) in server.queues.iter_mut().enumerate() {
                    let mut take = |received: Received<'_>| {
                        if received.frame == error {
                            found.insert(number);
                        }
                    };
                    link.receive(Instant::ZERO, 64, &mut take).unwrap();
                }
                !found.is_empty()
            });
            assert_eq!(found, BTreeSet::from([queue]), "{client}");
        }
    });
}

#[test]
fn two_servers_on_one_interface_do_not_share_a_group() {
    in_namespace(|| {
        let peer = connect();
        let mut first = Server::new(open(&[V4]), true);
        let mut second = Server::new(open(&["10.77.0.10"]), true);
        let clients = serve_new(&mut first, peer.run(|| start_clients(V4)));
        first.assert_divided(&addresses(&clients));
        let clients = serve_new(&mut second, peer.run(|| start_clients("10.77.0.10")));
        second.assert_divided(&addresses(&clients));
    });
}

#[test]
fn frames_that_this_host_sends_reach_no_queue() {
    in_namespace(|| {
        let peer = connect();
        let mut queues = open(&[V4]);
        let mac = queues[0].capabilities().mac;
        // A frame to us, sent on our side of the wire: it leaves, and is not ours to receive.
        let outgoing = fragmentation_needed(mac, "10.77.0.2:4000".parse().unwrap());
        let mut other = RawSocket::open("v0");
        let mut far_end = peer.run(|| RawSocket::open("v1"));
        other.send(&outgoing);
        far_end.receive(|frame| frame == outgoing);
        // The same but for its identification, and from the wire: it takes the other one's way.
        let mut incoming = outgoing.clone();
        incoming[19] = 2;
        far_end.send(&incoming);
        let mut arrived = Vec::new();
        eventually(|| {
            for link in &mut queues {
                let mut take = |received: Received<'_>| arrived.push(received.frame.to_vec());
                link.receive(Instant::ZERO, 64, &mut take).unwrap();
            }
            arrived.contains(&incoming)
        });
        assert!(!arrived.contains(&outgoing));
    });
}

#[test]
fn the_queues_that_are_left_receive_everything_whichever_is_dropped() {
    in_namespace(|| {
        let peer = connect();
        for dropped in [0, QUEUES - 1] {
            let mut queues = open(&[V4, V6]);
            queues.remove(dropped);
            // IPv6 needs the groups that every queue has joined.
            let mut server = Server::new(queues, false);
            let clients = serve_new(&mut server, peer.run(|| start_clients(V6)));
            server.assert_divided(&addresses(&clients));
        }
    });
}

#[test]
fn each_queue_notices_that_the_interface_is_gone() {
    in_namespace(|| {
        let _peer = connect();
        let mut queues = open(&[V4]);
        ip("link delete v0");
        for queue in &mut queues {
            assert!(matches!(receive_until_gone(queue), LinkError::Gone(_)));
        }
    });
}

#[test]
fn each_queue_lends_slots_of_its_own_arena() {
    const BYTES: usize = 61_440;
    in_namespace(|| {
        let peer = connect();
        let config = PacketConfig {
            zero_copy: ZeroCopy::On,
            ..PacketConfig::new("v0", &[V4.parse().unwrap()])
        };
        let queues = Packet::open_queues(&config, 2).unwrap();
        let mut far_end = peer.run(|| RawSocket::open("v1"));
        // Each on a thread of its own, as workers are.
        let workers: Vec<_> = (0_u8..)
            .zip(queues)
            .map(|(number, mut link)| {
                thread::spawn(move || {
                    let config = ArenaConfig {
                        pages: PageKind::Ordinary,
                        ..ArenaConfig::new(4)
                    };
                    let mut arena = Arena::new(config).unwrap();
                    link.borrow_slots(arena.slot_memory()).unwrap();
                    let mac = link.capabilities().mac;
                    let segment = Segment::new(mac, MacAddress([2; 6]), 40 + BYTES);
                    let slot = arena.reserve().unwrap();
                    let mut slot = slot
                        .into_reading()
                        .into_filled(u32::try_from(BYTES).unwrap());
                    arena.payload_mut(&mut slot).fill(number);
                    let sent = segment.send_with(&mut link, &[arena.payload(&slot)]);
                    assert_eq!(sent, Ok(Sent::Lent(slot.index())));
                    arena.lend(&slot);
                    eventually(|| {
                        let mut back = Vec::new();
                        link.give_back(Instant::ZERO, &mut |slot| back.push(slot));
                        back == [slot.index()]
                    });
                    arena.give_back(slot.index());
                    arena.release(slot.into_free());
                    link.return_slots();
                    assert_eq!((arena.lent_count(), arena.free_count()), (0, 4));
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        let mut bodies: Vec<Vec<u8>> = (0..2)
            .map(|_| far_end.receive(is_large).1[54..].to_vec())
            .collect();
        bodies.sort();
        assert_eq!(bodies, [vec![0; BYTES], vec![1; BYTES]]);
    });
}

fn tap_config(addresses: &[(&str, u8)]) -> TapConfig {
    let addresses = addresses
        .iter()
        .map(|&(address, prefix_bits)| InterfaceAddress {
            address: address.parse().unwrap(),
            prefix_bits,
        });
    TapConfig {
        name: "t0".to_owned(),
        host_addresses: addresses.collect(),
    }
}

#[test]
fn each_client_on_the_host_stays_on_one_queue_of_a_tap() {
    in_namespace(|| {
        let config = tap_config(&[("10.77.0.1", 24), ("fd77::1", 64)]);
        for ours in [V4, V6] {
            let mut server = Server::new(Tap::open_queues(&config, QUEUES).unwrap(), false);
            // In the namespace of this thread, which spawned threads share.
            let mut clients = serve_new(&mut server, start_clients(ours));
            for client in &mut clients {
                client.write_all(b"world").unwrap();
            }
            let clients = addresses(&clients);
            server.serve_text(&clients, 10);
            server.assert_divided(&clients);
            drop(server);
            eventually(|| interface_exists("t0") == Ok(false));
        }
    });
}

#[test]
fn an_existing_tap_is_opened_with_as_many_queues_as_it_was_made_for() {
    in_namespace(|| {
        let config = tap_config(&[]);
        // A process that another test has forked may hold the last descriptors for a moment.
        let opens = |queues| eventually(|| Tap::open_queues(&config, queues).is_ok());
        let is_refused = |queues, is_multi_queue| {
            let error = Tap::open_queues(&config, queues).unwrap_err();
            let name = "t0".to_owned();
            let expected = SetupError::TapQueues {
                name,
                is_multi_queue,
            };
            assert_eq!(error, expected);
            error.to_string()
        };
        ip("tuntap add mode tap name t0");
        opens(1);
        let text = is_refused(2, false);
        assert!(
            text.contains("`ip tuntap add dev t0 mode tap multi_queue`"),
            "{text}"
        );
        opens(1);
        ip("tuntap del mode tap name t0");
        ip("tuntap add mode tap name t0 multi_queue");
        opens(2);
        let text = is_refused(1, true);
        assert!(text.contains("`ip tuntap add dev t0 mode tap`"), "{text}");
        opens(QUEUES);
    });
}

#[test]
fn a_tap_with_queues_of_another_process_is_refused() {
    in_namespace(|| {
        let config = tap_config(&[]);
        for persistent in [false, true] {
            if persistent {
                ip("tuntap add mode tap name t0 multi_queue");
            }
            let others = Tap::open_queues(&config, 2).unwrap();
            let busy = SetupError::Busy {
                name: "t0".to_owned(),
            };
            assert_eq!(Tap::open_queues(&config, 2).unwrap_err(), busy);
            drop(others);
            eventually(|| {
                Tap::open_queues(&config, 2).is_ok() || interface_exists("t0") == Ok(false)
            });
            eventually(|| interface_exists("t0") == Ok(persistent));
        }
    });
}

#[test]
fn the_host_keeps_its_addresses_until_the_last_queue_is_dropped() {
    in_namespace(|| {
        let has_address = || std::net::UdpSocket::bind(("10.77.0.1", 0)).is_ok();
        ip("tuntap add mode tap name t0 multi_queue");
        let mut queues = Tap::open_queues(&tap_config(&[("10.77.0.1", 24)]), 3).unwrap();
        while let Some(queue) = queues.pop() {
            assert!(has_address(), "{} queues left", queues.len() + 1);
            drop(queue);
        }
        assert!(!has_address());
    });
}

#[test]
fn each_client_stays_on_one_queue_of_a_macvtap() {
    in_namespace(|| {
        let peer = connect();
        let index = 3_000_000 + std::process::id();
        ip(&format!(
            "link add link v0 name m0 index {index} type macvtap mode bridge"
        ));
        if !std::path::Path::new(&format!("/dev/tap{index}")).exists() {
            eprintln!("SKIPPED: no node was made; /dev is no devtmpfs here");
            return;
        }
        let config = TapConfig {
            name: "m0".to_owned(),
            host_addresses: Vec::new(),
        };
        let mut server = Server::new(Tap::open_queues(&config, 2).unwrap(), false);
        let mut clients = serve_new(&mut server, peer.run(|| start_clients(V4)));
        for client in &mut clients {
            client.write_all(b"world").unwrap();
        }
        let clients = addresses(&clients);
        server.serve_text(&clients, 10);
        server.assert_divided(&clients);
        ip("link delete m0");
        let mut now = server.now;
        for queue in &mut server.queues {
            let mut gone = None;
            eventually(|| {
                now += Duration::from_millis(5);
                gone = queue.receive(now, 64, &mut |_| ()).err();
                gone.is_some()
            });
            assert_eq!(gone, Some(LinkError::Gone(libc::ENOLINK)));
        }
    });
}
