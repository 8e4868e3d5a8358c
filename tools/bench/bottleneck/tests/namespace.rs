//! The path in network namespaces of its own: what passes it is what was sent, in order; what does not
//! is what it says; and nothing of it is left behind.
//!
//! Needs root and /dev/net/tun, and says so where they are not there. Bounded by a limit on every
//! wait.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "what fails in a test shall fail loudly"
)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use bottleneck::{Disorder, Fate, Leg, LegPlan, Path, PathPlan};
use testbed::content::Content;
use testbed::namespace::VethPair;

/// Where the tests send to.
const PORT: u16 = 5_000;

/// A wait that takes longer is a failure.
const LIMIT: Duration = Duration::from_secs(20);

/// Ethernet, IPv4 and UDP.
const HEADER_BYTES: usize = 14 + 20 + 8;

const fn plan(forth: LegPlan) -> PathPlan {
    PathPlan {
        forth,
        back: LegPlan::delay_only(Duration::from_millis(2)),
    }
}

fn path(plan: &PathPlan) -> Option<Path> {
    if !testbed::is_root() || !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("SKIPPED: no TAPs in network namespaces; run as root, with /dev/net/tun");
        return None;
    }
    Some(Path::new(plan).unwrap())
}

/// A sender in the server's namespace and a receiver in the client's.
fn datagrams(path: &Path) -> (UdpSocket, UdpSocket) {
    let receiver = path
        .client
        .enter(|| Ok(UdpSocket::bind((Path::CLIENT_V4, PORT))?))
        .unwrap();
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    let sender = path
        .server
        .enter(|| Ok(UdpSocket::bind((VethPair::KERNEL_V4, 0))?))
        .unwrap();
    sender.connect((Path::CLIENT_V4, PORT)).unwrap();
    (sender, receiver)
}

fn receive(receiver: &UdpSocket) -> u32 {
    let mut bytes = [0; 2_000];
    let count = receiver.recv(&mut bytes).unwrap();
    assert!(count >= 4);
    u32::from_be_bytes(*bytes.first_chunk().unwrap())
}

#[test]
fn an_object_passes_bit_exact_through_losses_and_a_small_buffer() {
    let object = Content::new(11, 3_000_000);
    let forth = LegPlan {
        rate_bits: 50_000_000,
        buffer_bytes: 30_000,
        delay: Duration::from_millis(5),
        delay_noise: Duration::ZERO,
        loss_ppm: 5_000,
        seed: 3,
        disorder: Disorder::NONE,
    };
    let Some(path) = path(&plan(forth)) else {
        return;
    };
    let listener = path
        .server
        .enter(|| Ok(TcpListener::bind((VethPair::KERNEL_V4, PORT))?))
        .unwrap();
    let server = std::thread::spawn(move || {
        let mut bytes = vec![0; 3_000_000];
        object.fill(0, &mut bytes);
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let mut stream = path
        .client
        .enter(|| Ok(TcpStream::connect((VethPair::KERNEL_V4, PORT))?))
        .unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    server.join().unwrap();
    assert_eq!(bytes.len() as u64, object.size_bytes);
    object.check(0, &bytes).unwrap();

    let name = path.server.name().to_owned();
    let report = path.close().unwrap();
    let gone = std::path::Path::new("/run/netns").join(name);
    assert!(!gone.exists(), "the namespace is left behind");
    assert_eq!(report.tap_drops, 0);
    let forth = report.counts.forth;
    assert_eq!(forth.oversize_frames, 0, "the kernel segments");
    assert!(forth.lost_frames > 0 && forth.full_frames > 0, "{forth:?}");
    assert!(forth.queued_bytes_max <= 30_000, "{forth:?}");
    let [flow] = report.counts.flows.as_slice() else {
        panic!("{:?}", report.counts.flows);
    };
    assert_eq!(flow.sent_bytes - flow.resent_bytes, object.size_bytes);
    assert!(flow.resent_bytes > 0);
}

#[test]
fn exactly_the_frames_that_the_leg_says_are_lost_and_the_others_keep_their_order() {
    const COUNT: u32 = 200;
    let forth = LegPlan {
        loss_ppm: 200_000,
        seed: 5,
        ..LegPlan::delay_only(Duration::from_millis(3))
    };
    let mut model = Leg::new(forth);
    let expected: Vec<u32> = (0..COUNT)
        .filter(|_| model.accept(Duration::ZERO, HEADER_BYTES as u64 + 4) != Fate::Lost)
        .collect();
    assert_eq!(expected.first(), Some(&0), "the seed is to spare the first");
    let Some(path) = path(&plan(forth)) else {
        return;
    };
    let (sender, receiver) = datagrams(&path);
    // The first has the neighbour looked up.
    sender.send(&0_u32.to_be_bytes()).unwrap();
    let mut arrived = vec![receive(&receiver)];
    for number in 1..COUNT {
        sender.send(&number.to_be_bytes()).unwrap();
    }
    arrived.extend((1..expected.len()).map(|_| receive(&receiver)));
    assert_eq!(arrived, expected);

    let report = path.close().unwrap();
    let forth = report.counts.forth;
    assert_eq!(forth.frames, u64::from(COUNT));
    assert_eq!(forth.lost_frames, u64::from(COUNT) - expected.len() as u64);
    assert_eq!(forth.arrived_frames, expected.len() as u64);
    assert_eq!((forth.full_frames, report.tap_drops), (0, 0));
}

#[test]
fn the_buffer_takes_what_fits_and_not_a_frame_more() {
    // A frame takes a second, so all of a burst come while the first is being sent.
    const BYTES: usize = 500;
    let bytes = BYTES as u64;
    let forth = LegPlan {
        rate_bits: bytes * 8,
        buffer_bytes: 2 * bytes,
        delay: Duration::ZERO,
        delay_noise: Duration::ZERO,
        loss_ppm: 0,
        seed: 0,
        disorder: Disorder::NONE,
    };
    let Some(path) = path(&plan(forth)) else {
        return;
    };
    let (sender, receiver) = datagrams(&path);
    // The first has the neighbour looked up, and the buffer is empty when it has come.
    let mut payload = [0; BYTES - HEADER_BYTES];
    sender.send(&payload[..4]).unwrap();
    assert_eq!(receive(&receiver), 0);
    for number in 1_u32..=5 {
        payload[..4].copy_from_slice(&number.to_be_bytes());
        sender.send(&payload).unwrap();
    }
    assert_eq!([receive(&receiver), receive(&receiver)], [1, 2]);

    let report = path.close().unwrap();
    let forth = report.counts.forth;
    assert_eq!((forth.frames, forth.full_frames), (6, 3));
    assert_eq!(forth.queued_bytes_max, 2 * bytes);
    assert_eq!((forth.arrived_frames, report.tap_drops), (3, 0));
}
