//! AF_XDP sockets that pass from one process to another, which takes over: here both are in one process, each with
//! descriptors, mappings and indices of its own, on a veth pair.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;

use crate::common::{
    Peer, RawSocket, Segment, connect, connect_queues, eventually, in_namespace, ip, is_large,
    is_ready, open_queue, open_xdp, receive_until, send, send_large, set_queues, talk,
};
use clock::Instant;
use counters::CounterSet as _;
use link::{
    AttachMode, CopyReason, Link, LinkCounters, Sent, SetupError, Xdp, XdpConfig, XdpPacket,
    XdpShape, ZeroCopy,
};
use memory::{Arena, ArenaConfig, PageKind};
use wire::MacAddress;

const V4: &str = "10.77.0.9";
const HOST: &str = "10.77.0.1";
const PORT: u16 = 8_080;
const SLOTS: u32 = 4;

/// A link that can be shared.
trait Shared: Link + Sized {
    fn open(config: &XdpConfig) -> Option<Self>;
    fn share(&self) -> (XdpShape, Vec<OwnedFd>);
    fn take(config: &XdpConfig, of: &Self) -> Result<Vec<Self>, SetupError>;
}

impl Shared for Xdp {
    fn open(config: &XdpConfig) -> Option<Self> {
        open_xdp(config)
    }

    fn share(&self) -> (XdpShape, Vec<OwnedFd>) {
        self.share().unwrap()
    }

    fn take(config: &XdpConfig, of: &Self) -> Result<Vec<Self>, SetupError> {
        let (shape, descriptors) = of.share().unwrap();
        Self::of_shared(config, &[shape], descriptors)
    }
}

impl Shared for XdpPacket {
    fn open(config: &XdpConfig) -> Option<Self> {
        open_queue(|| Self::open_queues(config))
    }

    fn share(&self) -> (XdpShape, Vec<OwnedFd>) {
        self.receiver().share().unwrap()
    }

    fn take(config: &XdpConfig, of: &Self) -> Result<Vec<Self>, SetupError> {
        let (shape, descriptors) = of.receiver().share().unwrap();
        Self::of_shared(config, &[shape], descriptors)
    }
}

fn own(attach: AttachMode) -> XdpConfig {
    XdpConfig {
        attach,
        ..XdpConfig::new("v0", &[V4.parse().unwrap()])
    }
}

fn shared() -> XdpConfig {
    XdpConfig::shared("v0", &[HOST.parse().unwrap()], &[PORT])
}

/// The number of the program on the interface.
fn program() -> Option<String> {
    let mut command = Command::new("ip");
    let output = command
        .args(["-details", "link", "show", "dev", "v0"])
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let id = text.split("prog/xdp id ").nth(1)?;
    Some(id.split_whitespace().next().unwrap().to_owned())
}

/// A TCP frame to our port, of the peer's, with a number in it.
fn numbered(mac: MacAddress, to: &str, number: u8) -> Vec<u8> {
    let to: std::net::Ipv4Addr = to.parse().unwrap();
    let mut frame = mac.0.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0x99, 0x08, 0x00, 0x45, 0, 0, 41]);
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 2]);
    frame.extend(to.octets());
    frame.extend([0, 7]);
    frame.extend(PORT.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0, number]);
    frame.extend([0; 5]);
    frame
}

/// The peer sends frames of these numbers.
fn send_numbered(peer: &Peer, mac: MacAddress, to: &'static str, numbers: std::ops::Range<u8>) {
    peer.run(move || {
        let mut socket = RawSocket::open("v1");
        for number in numbers {
            socket.send(&numbered(mac, to, number));
        }
    });
}

/// They arrive, each once and in order.
fn receive_numbered(link: &mut impl Link, numbers: std::ops::Range<u8>) {
    for expected in numbers {
        let number = receive_until(link, |received| {
            let is_tcp = received.frame.get(23) == Some(&6);
            is_tcp.then(|| received.frame[54])
        });
        assert_eq!(number, expected);
    }
}

/// Cells and descriptors add up, and nothing counts backwards.
fn assert_counted(link: &impl Link, config: &XdpConfig, before: &LinkCounters) {
    let now = link.counters();
    let cells = u64::from(config.receive_cells);
    assert_eq!(now.offered_cells, now.received_cells + cells);
    assert!(
        (now.received_cells..=now.offered_cells).contains(&now.accepted_cells),
        "{now:?}"
    );
    assert!(
        now.completed_descriptors <= now.queued_descriptors,
        "{now:?}"
    );
    for (earlier, later) in before.as_pairs().into_iter().zip(now.as_pairs()) {
        assert!(earlier.1 <= later.1, "{earlier:?}, then {later:?}");
    }
}

fn try_hand_over<L: Shared>(config: &XdpConfig, at: &'static str) {
    let peer = connect();
    let Some(mut old) = L::open(config) else {
        return;
    };
    let mac = old.capabilities().mac;
    let mut arriving = peer.run(|| RawSocket::open("v1"));
    let first = program();
    assert!(first.is_some());
    send_numbered(&peer, mac, at, 0..20);
    let mut new = L::take(config, &old).unwrap();
    let mut new = new.remove(0);
    assert_eq!(new.capabilities().mac, mac);
    assert!(new.poll_fd().is_none());
    assert_eq!(new.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
    receive_numbered(&mut old, 0..10);
    // Twice is once.
    for _ in 0..2 {
        old.set_receiving(false).unwrap();
    }
    send_numbered(&peer, mac, at, 20..30);
    assert_eq!(old.receive(Instant::ZERO, 64, &mut |_| ()), Ok(0));
    assert!(old.poll_fd().is_none() && old.request_fd().is_none() && old.writable_fd().is_some());
    let of_old = old.counters();
    for _ in 0..2 {
        new.set_receiving(true).unwrap();
    }
    assert_ne!(program(), first, "its own");
    // What waited in the ring, then what came while nobody received.
    receive_numbered(&mut new, 10..30);
    for link in [&mut old, &mut new] {
        assert_eq!(
            send_large(link, MacAddress([2; 6]), 20_000),
            Ok(Sent::Copied)
        );
        let mut bytes = 0;
        while bytes < 20_000 - 40 {
            let (_, frame) = arriving.receive(is_large);
            bytes += frame.len() - 54;
        }
    }
    // Many more than there are cells, so that none is lost on the way.
    for _ in 0..40 {
        send_numbered(&peer, mac, at, 0..60);
        receive_numbered(&mut new, 0..60);
    }
    assert_counted(&new, config, &LinkCounters::default());
    assert_counted(&old, config, &of_old);
    // It ends in the midst, as if killed: the old one goes on with what it left.
    send_numbered(&peer, mac, at, 0..5);
    receive_numbered(&mut new, 0..2);
    drop(new);
    old.set_receiving(true).unwrap();
    assert_counted(&old, config, &of_old);
    assert_eq!(program(), first, "its own again");
    receive_numbered(&mut old, 2..5);
    for _ in 0..40 {
        send_numbered(&peer, mac, at, 0..60);
        receive_numbered(&mut old, 0..60);
    }
    assert_eq!(
        send_large(&mut old, MacAddress([2; 6]), 20_000),
        Ok(Sent::Copied)
    );
    arriving.receive(is_large);
    assert_counted(&old, config, &of_old);
    let counters = old.counters();
    assert_eq!((counters.receive_errors, counters.overflow_frames), (0, 0));
    assert_eq!((counters.lost_frames, counters.full_frames), (0, 0));
    // And once more, after which the first one ends.
    let mut new = L::take(config, &old).unwrap();
    let mut new = new.remove(0);
    old.set_receiving(false).unwrap();
    new.set_receiving(true).unwrap();
    drop(old);
    send_numbered(&peer, mac, at, 0..60);
    receive_numbered(&mut new, 0..60);
    // Its program tells it of requests.
    peer.run(move || {
        let mut frame = numbered(mac, at, 60);
        frame.resize(200, 0);
        RawSocket::open("v1").send(&frame);
    });
    eventually(|| is_ready(new.request_fd().unwrap(), libc::POLLIN));
    drop(new);
    eventually(|| program().is_none());
    ip("link delete v0");
}

#[test]
fn sockets_pass_to_another_process_and_back_and_no_frame_is_lost() {
    in_namespace(|| {
        for attach in [AttachMode::Driver, AttachMode::Generic] {
            try_hand_over::<Xdp>(&own(attach), V4);
            try_hand_over::<XdpPacket>(&own(attach), V4);
        }
        try_hand_over::<Xdp>(&shared(), HOST);
        try_hand_over::<XdpPacket>(&shared(), HOST);
    });
}

#[test]
fn the_peer_s_stack_talks_to_whoever_uses_the_rings() {
    in_namespace(|| {
        let peer = connect();
        let config = own(AttachMode::Auto);
        let Some(mut old) = open_xdp(&config) else {
            return;
        };
        talk(&mut old, &peer, "10.77.0.2", V4);
        for _ in 0..3 {
            let mut new = <Xdp as Shared>::take(&config, &old).unwrap().remove(0);
            old.set_receiving(false).unwrap();
            new.set_receiving(true).unwrap();
            talk(&mut new, &peer, "10.77.0.2", V4);
            assert!(new.counters().queued_descriptors > 0, "through its rings");
            old = new;
        }
    });
}

#[test]
fn frames_that_the_one_before_has_left_in_the_ring_leave_and_others_by_the_packet_socket_first() {
    in_namespace(|| {
        let peer = connect();
        let config = own(AttachMode::Auto);
        let Some(mut old) = open_xdp(&config) else {
            return;
        };
        let mut new = <Xdp as Shared>::take(&config, &old).unwrap().remove(0);
        ip("link set v0 down");
        // It is not known to be down: the frame is queued.
        let _ = send_large(&mut old, MacAddress([2; 6]), 1_000);
        old.set_receiving(false).unwrap();
        drop(old);
        new.set_receiving(true).unwrap();
        let lost = send_large(&mut new, MacAddress([2; 6]), 1_000);
        assert!(lost.is_err(), "{lost:?}");
        assert_eq!(new.counters().queued_descriptors, 0);
        let is_of_rings = |link: &Xdp| {
            let descriptors = [link.writable_fd(), link.poll_fd()];
            let [writable, readable] = descriptors.map(|it| it.unwrap().as_raw_fd());
            writable == readable
        };
        assert!(!is_of_rings(&new), "the packet socket's room is waited for");
        let mut socket = peer.run(|| RawSocket::open("v1"));
        ip("link set v0 up");
        let mut count = 0;
        eventually(|| {
            count += 1;
            let _ = new.receive(Instant::ZERO, 64, &mut |_| ());
            let _ = send_large(&mut new, MacAddress([2; 6]), 1_000);
            new.counters().queued_descriptors > 0
        });
        assert!(is_of_rings(&new));
        socket.receive(is_large);
        assert_eq!(new.counters().receive_errors, 0, "no stray cell");
    });
}

#[test]
fn a_socket_whose_slots_the_device_has_is_not_handed_over_and_slots_stay_with_their_process() {
    in_namespace(|| {
        let peer = connect();
        let config = XdpConfig {
            loans: ZeroCopy::On,
            slots_bytes: ArenaConfig::new(SLOTS).slots_bytes(),
            ..own(AttachMode::Auto)
        };
        let Some(mut old) = open_xdp(&config) else {
            return;
        };
        let arena = Arena::new(ArenaConfig {
            pages: PageKind::Ordinary,
            ..ArenaConfig::new(SLOTS)
        });
        let mut arena = arena.unwrap();
        old.borrow_slots(arena.slot_memory()).unwrap();
        let slot = arena.reserve().unwrap().into_reading().into_filled(9_000);
        let mut new = <Xdp as Shared>::take(&config, &old).unwrap().remove(0);
        assert_eq!(new.zero_copy(), Err(CopyReason::OtherProcess));
        ip("link set v0 down");
        let mac = old.capabilities().mac;
        let segment = Segment::new(mac, MacAddress([2; 6]), 40 + 9_000);
        let sent = segment.send_with(&mut old, &[arena.payload(&slot)]);
        assert_eq!(sent, Ok(Sent::Lent(slot.index())));
        arena.lend(&slot);
        assert_eq!(old.set_receiving(false), Err(libc::EBUSY));
        assert!(old.poll_fd().is_some(), "as if nothing had happened");
        ip("link set v0 up");
        eventually(|| old.set_receiving(false).is_ok());
        // Named by the one that lent it, although the other has the rings.
        new.set_receiving(true).unwrap();
        let mut back = Vec::new();
        old.give_back(Instant::ZERO, &mut |slot| back.push(slot));
        assert_eq!(back, [slot.index()]);
        arena.give_back(slot.index());
        let sent = segment.send_with(&mut old, &[arena.payload(&slot)]);
        assert_eq!(sent, Ok(Sent::Copied), "by the packet socket");
        let mut socket = peer.run(|| RawSocket::open("v1"));
        talk(&mut new, &peer, "10.77.0.2", V4);
        let sent = send_large(&mut new, MacAddress([2; 6]), 9_000);
        assert_eq!(sent, Ok(Sent::Copied));
        socket.receive(is_large);
        arena.release(slot.into_free());
        old.return_slots();
    });
}

#[test]
fn queues_that_the_device_has_got_since_have_sockets_of_the_new_process() {
    in_namespace(|| {
        let peer = connect_queues(2);
        peer.run(|| set_queues("v1", 1, 1));
        set_queues("v0", 1, 1);
        let config = own(AttachMode::Auto);
        let Some(mut old) = open_xdp(&config) else {
            return;
        };
        set_queues("v0", 2, 1);
        let mut new = <Xdp as Shared>::take(&config, &old).unwrap();
        assert_eq!(new.len(), 2);
        old.set_receiving(false).unwrap();
        for link in &mut new {
            link.set_receiving(true).unwrap();
        }
        peer.run(|| set_queues("v1", 1, 2));
        let mac = old.capabilities().mac;
        // The queue that a frame arrives in is the kernel's choice, by its ports.
        let is_in = |links: &mut [Xdp], queue: usize| {
            let mut found = 0;
            let _ = links[queue].receive(Instant::ZERO, 64, &mut |_| found += 1);
            found > 0
        };
        let mut is_reached = [false; 2];
        eventually(|| {
            peer.run(move || {
                let mut socket = RawSocket::open("v1");
                for port in 0..64 {
                    let mut frame = numbered(mac, V4, 0);
                    frame[35] = port;
                    socket.send(&frame);
                }
            });
            for queue in [0, 1] {
                is_reached[queue] |= is_in(&mut new, queue);
            }
            is_reached == [true; 2]
        });
        // One that is killed leaves nothing in the map but what is shared.
        drop(new);
        old.set_receiving(true).unwrap();
        assert!(send(&mut old, &numbered(mac, V4, 1)).is_ok());
    });
}

#[test]
fn descriptors_of_something_else_are_refused_and_the_one_before_goes_on() {
    in_namespace(|| {
        let peer = connect();
        let config = own(AttachMode::Auto);
        let Some(mut old) = open_xdp(&config) else {
            return;
        };
        let (shape, mut descriptors) = Shared::share(&old);
        descriptors.swap(2, 3);
        let refused = Xdp::of_shared(&config, &[shape], descriptors).unwrap_err();
        assert!(matches!(refused, SetupError::Kernel { .. }), "{refused}");
        let (_, mut descriptors) = Shared::share(&old);
        descriptors.pop();
        let refused = Xdp::of_shared(&config, &[shape], descriptors).unwrap_err();
        assert!(matches!(refused, SetupError::Kernel { .. }), "{refused}");
        talk(&mut old, &peer, "10.77.0.2", V4);
    });
}
