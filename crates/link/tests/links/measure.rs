//! What a frame costs by each I/O method: the numbers of docs/develop/decisions/0005-packet-io.md and
//! 0024-af-xdp.md.
//!
//! `cargo test --release -p atlas-link --test links -- measure --ignored --nocapture --test-threads=1`
//!
//! One thread sends and receives over a veth pair inside one namespace, so that the time includes
//! the kernel's work at both ends. Each figure is the best of [`REPEATS`]: on a shared machine the
//! slower ones include the load of other guests.
#![allow(unsafe_code, reason = "UNSAFETY: recvmmsg, to compare with")]

use std::time::Instant as WallInstant;

use crate::common::{RawSocket, Segment, in_namespace, ip, set_transmit_checksum};
use clock::Instant;
use link::{
    AttachMode, ChecksumOffload, Checksums, Link, Packet, PacketConfig, Received, Tap, TapConfig,
    Xdp, XdpConfig, XdpPacket,
};
use wire::MacAddress;

const REPEATS: usize = 1_000;
/// Frames sent before any is received: fewer than any queue on the way holds.
const BURST: usize = 256;

/// The best time of one frame over all repeats, nanoseconds.
fn best_nanos(frames: usize, mut round: impl FnMut()) -> u128 {
    let mut best = u128::MAX;
    for _ in 0..REPEATS {
        let start = WallInstant::now();
        round();
        best = best.min(start.elapsed().as_nanos() / frames as u128);
    }
    best
}

/// An acknowledgment to `mac` and 10.77.0.`last`: 66 bytes.
fn acknowledgment(mac: MacAddress, last: u8) -> Vec<u8> {
    let mut frame = vec![0; 66];
    frame[..6].copy_from_slice(&mac.0);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x99]);
    frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    frame[23] = 6;
    frame[30..34].copy_from_slice(&[10, 77, 0, last]);
    frame
}

fn connect() -> RawSocket {
    ip("link add v0 type veth peer name v1");
    ip("link set v0 up");
    ip("link set v1 up");
    RawSocket::open("v1")
}

fn config() -> PacketConfig {
    PacketConfig::new("v0", &["10.77.0.9".parse().unwrap()])
}

/// The method that was not chosen: 64 buffers of 64 KB and `recvmmsg`.
struct Batches {
    socket: RawSocket,
    buffers: Vec<u8>,
}

impl Batches {
    /// An odd number of cache lines, so that not all buffers begin in the same cache sets.
    const BUFFER_BYTES: usize = 1_025 * 64;

    fn open(interface: &str) -> Self {
        let socket = RawSocket::open(interface);
        let buffers = vec![0; 64 * Self::BUFFER_BYTES];
        Self { socket, buffers }
    }

    /// Receives up to `count` frames and touches each; returns how many.
    fn receive(&mut self, count: usize) -> usize {
        let mut vectors: Vec<libc::iovec> = self
            .buffers
            .chunks_mut(Self::BUFFER_BYTES)
            .take(count)
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let header = |vector: &mut libc::iovec| libc::mmsghdr {
            msg_hdr: libc::msghdr {
                msg_name: std::ptr::null_mut(),
                msg_namelen: 0,
                msg_iov: vector,
                msg_iovlen: 1,
                msg_control: std::ptr::null_mut(),
                msg_controllen: 0,
                msg_flags: 0,
            },
            msg_len: 0,
        };
        let mut headers: Vec<libc::mmsghdr> = vectors.iter_mut().map(header).collect();
        let fd = self.socket.as_raw_fd();
        let (headers, count) = (headers.as_mut_ptr(), u32::try_from(count).unwrap());
        let no_wait = std::ptr::null_mut();
        // SAFETY: `count` headers, each with one vector of one buffer; all live through the call.
        let received = unsafe { libc::recvmmsg(fd, headers, count, libc::MSG_DONTWAIT, no_wait) };
        let received = usize::try_from(received).unwrap_or(0);
        let lasts = self.buffers.chunks(Self::BUFFER_BYTES).take(received);
        std::hint::black_box(lasts.map(|buffer| usize::from(buffer[75])).sum::<usize>());
        received
    }
}

#[test]
#[ignore = "a measurement, not a test"]
fn receiving_acknowledgments() {
    in_namespace(|| {
        let mut sender = connect();
        let mac = Packet::open(&config()).unwrap().capabilities().mac;
        let frame = acknowledgment(mac, 9);
        let mut burst = || (0..BURST).for_each(|_| sender.send(&frame));
        let alone = best_nanos(BURST, &mut burst);
        eprintln!("\nsent, without a receiver:        {alone:4} ns a frame");

        let mut batches = Batches::open("v0");
        for count in [1, 8, 64] {
            let nanos = best_nanos(BURST, || {
                burst();
                let mut left = BURST;
                while left > 0 {
                    left = left.saturating_sub(batches.receive(count));
                }
            });
            let more = nanos - alone;
            eprintln!("recvmmsg of up to {count:2} frames, no filter: {more:4} ns a frame more");
        }
        drop(batches);

        let mut link = Packet::open(&config()).unwrap();
        let mut sum = 0;
        let mut touch = |frame: Received<'_>| sum += usize::from(*frame.frame.last().unwrap());
        let nanos = best_nanos(BURST, || {
            burst();
            let mut left = BURST;
            while left > 0 {
                left -= link.receive(Instant::ZERO, 64, &mut touch).unwrap();
            }
        });
        std::hint::black_box(sum);
        let more = nanos - alone;
        eprintln!("the link: receive ring, filter:         {more:4} ns a frame more");
        drop(link);

        let other = acknowledgment(mac, 10);
        let mut burst = || (0..BURST).for_each(|_| sender.send(&other));
        let alone = best_nanos(BURST, &mut burst);
        let _link = Packet::open(&config()).unwrap();
        let more = best_nanos(BURST, &mut burst) - alone;
        eprintln!("a frame the filter refuses:             {more:4} ns a frame more");
    });
}

#[test]
#[ignore = "a measurement, not a test"]
fn transmitting() {
    in_namespace(|| {
        let _peer = connect();
        let name = "t0".to_owned();
        let host_addresses = Vec::new();
        let mut tap = Tap::open(&TapConfig {
            name,
            host_addresses,
        })
        .unwrap();
        let mut bypass = Packet::open(&config()).unwrap();
        assert!(bypass.bypasses_qdisc());
        let through = PacketConfig {
            qdisc_bypass: false,
            ..config()
        };
        let mut through = Packet::open(&through).unwrap();
        eprintln!("\nIP bytes      tap   packet   packet through the qdisc, ns a frame");
        // 45 segments of 1,448 bytes and their headers, half of it, a quarter, one segment.
        for packet_bytes in [65_200, 32_768, 16_384, 1_500] {
            let segment = Segment::new(MacAddress([2; 6]), MacAddress([2; 6]), packet_bytes);
            let tap = best_nanos(32, || {
                for _ in 0..32 {
                    segment.send(&mut tap).unwrap();
                }
            });
            let bypass = best_nanos(32, || {
                for _ in 0..32 {
                    segment.send(&mut bypass).unwrap();
                }
            });
            let through = best_nanos(32, || {
                for _ in 0..32 {
                    segment.send(&mut through).unwrap();
                }
            });
            eprintln!("{packet_bytes:8} {tap:8} {bypass:8} {through:8}");
        }
    });
}

/// Bytes of a slot, a read's worth, and of a page.
const SLOT_BYTES: usize = 61_440;
const PAGE_BYTES: usize = 4096;

/// A slot's bytes from a page's start, and from wherever a record's content begins.
#[test]
#[ignore = "a measurement, not a test"]
fn transmitting_a_slot() {
    in_namespace(|| {
        let _peer = connect();
        let mut link = Packet::open(&config()).unwrap();
        let memory = vec![1; SLOT_BYTES + 2 * PAGE_BYTES];
        let to_page = memory.as_ptr().align_offset(PAGE_BYTES);
        let slot = &memory[to_page..to_page + SLOT_BYTES];
        let shifted = &memory[to_page + 22..to_page + 22 + SLOT_BYTES];
        eprintln!("\nns a slot of {SLOT_BYTES} bytes");
        for (what, part) in [("from a page", slot), ("22 bytes on", shifted)] {
            let segment = Segment::new(MacAddress([2; 6]), MacAddress([2; 6]), 40 + SLOT_BYTES);
            let mut send = || segment.send_with(&mut link, &[part]).unwrap();
            let nanos = best_nanos(32, || {
                for _ in 0..32 {
                    send();
                }
            });
            eprintln!("{what:14} {nanos:6}");
        }
    });
}

/// The same frames as by the other methods, through AF_XDP; the kernel copies on a veth.
#[test]
#[ignore = "a measurement, not a test"]
fn through_xdp() {
    in_namespace(|| {
        let mut sender = connect();
        for attach in [AttachMode::Driver, AttachMode::Generic] {
            let config = XdpConfig {
                attach,
                ..XdpConfig::new("v0", &["10.77.0.9".parse().unwrap()])
            };
            let mut link = Xdp::open_queues(&config).unwrap().remove(0);
            let mac = link.capabilities().mac;
            let other = acknowledgment(mac, 10);
            let passed = best_nanos(BURST, || (0..BURST).for_each(|_| sender.send(&other)));
            let frame = acknowledgment(mac, 9);
            let mut sum = 0;
            let mut touch = |frame: Received<'_>| sum += usize::from(*frame.frame.last().unwrap());
            let received = best_nanos(BURST, || {
                (0..BURST).for_each(|_| sender.send(&frame));
                let mut left = BURST;
                while left > 0 {
                    left -= link.receive(Instant::ZERO, 64, &mut touch).unwrap();
                }
            });
            std::hint::black_box(sum);
            eprintln!("\n{attach:?}: sent and received {received} ns a frame");
            eprintln!("sent and passed to the kernel {passed} ns a frame");
            for packet_bytes in [65_200, 32_768, 16_384, 1_500] {
                let segment = Segment::new(MacAddress([2; 6]), MacAddress([2; 6]), packet_bytes);
                let nanos = best_nanos(32, || {
                    for _ in 0..32 {
                        segment.send(&mut link).unwrap();
                    }
                });
                eprintln!("sent {packet_bytes:6} IP bytes: {nanos:6} ns a frame");
            }
        }
    });
}

/// The same large segments through AF_XDP with checksums made by the link, and left to the kernel by
/// metadata; in turns, so that all have the same load of other guests. A veth finishes none, unless it is
/// told not to take frames without: then the kernel does.
#[test]
#[ignore = "a measurement, not a test"]
fn checksums_through_xdp() {
    const WHO: [(&str, &str, ChecksumOffload); 3] = [
        ("a", "by the link", ChecksumOffload::Off),
        ("b", "never made", ChecksumOffload::On),
        ("c", "by the kernel", ChecksumOffload::On),
    ];
    in_namespace(|| {
        for (name, _, _) in WHO {
            ip(&format!("link add {name}0 type veth peer name {name}1"));
            ip(&format!("link set {name}0 up"));
            ip(&format!("link set {name}1 up"));
        }
        set_transmit_checksum("c0", false);
        for attach in [AttachMode::Driver, AttachMode::Generic] {
            let open = |(name, what, checksum_offload): (&str, _, _)| {
                let config = XdpConfig {
                    attach,
                    checksum_offload,
                    ..XdpConfig::new(&format!("{name}0"), &["10.77.0.9".parse().unwrap()])
                };
                let link = Xdp::open_queues(&config).unwrap().remove(0);
                let is_left = link.frame_path().checksums == Checksums::Device;
                assert_eq!(is_left, checksum_offload == ChecksumOffload::On, "{what}");
                link
            };
            let mut links = WHO.map(open);
            eprintln!("\n{attach:?}: ns a frame");
            for packet_bytes in [65_200, 16_384, 1_500] {
                let segment = Segment::new(MacAddress([2; 6]), MacAddress([2; 6]), packet_bytes);
                let mut best = [u128::MAX; WHO.len()];
                for _ in 0..REPEATS {
                    for (best, link) in best.iter_mut().zip(&mut links) {
                        let start = WallInstant::now();
                        for _ in 0..32 {
                            segment.send(link).unwrap();
                        }
                        *best = (*best).min(start.elapsed().as_nanos() / 32);
                    }
                }
                for ((_, what, _), nanos) in WHO.iter().zip(best) {
                    eprintln!("{packet_bytes:6} IP bytes, checksums {what:14} {nanos:6}");
                }
            }
        }
    });
}

/// What a GB and an acknowledgment cost over each link, at two MTUs: the table of decision 27. A GB is
/// sent in frames as large as the link takes; an acknowledgment is sent by the far end and received.
#[test]
#[ignore = "a measurement, not a test"]
fn each_link() {
    const LARGEST: usize = 65_200;
    in_namespace(|| {
        let mut sender = connect();
        for (mtu, segment_bytes) in [(1_500, 1_448), (3_800, 3_748), (9_000, 8_948)] {
            ip(&format!("link set v0 mtu {mtu}"));
            ip(&format!("link set v1 mtu {mtu}"));
            eprintln!("\nMTU {mtu}: core-s/GB sent, ns an acknowledgment received");
            let mut measure = |name: &str, link: &mut dyn Link| {
                let segment = Segment::new(MacAddress([2; 6]), MacAddress([2; 6]), LARGEST);
                let segment = segment.cut_to(segment_bytes);
                let sent = best_nanos(32, || {
                    for _ in 0..32 {
                        segment.send(link).unwrap();
                    }
                });
                let mac = link.capabilities().mac;
                let (ours, other) = (acknowledgment(mac, 9), acknowledgment(mac, 10));
                let passed = best_nanos(BURST, || (0..BURST).for_each(|_| sender.send(&other)));
                let received = best_nanos(BURST, || {
                    (0..BURST).for_each(|_| sender.send(&ours));
                    let mut left = BURST;
                    while left > 0 {
                        left -= link.receive(Instant::ZERO, 64, &mut |_| ()).unwrap();
                    }
                });
                // Nanoseconds a byte are seconds a gigabyte.
                let millis = sent * 1000 / (LARGEST as u128 - 40);
                eprintln!("{name:12} 0.{millis:03} {received:5} ({passed} passed to the kernel)");
            };
            measure("packet", &mut Packet::open(&config()).unwrap());
            let xdp = XdpConfig::new("v0", &["10.77.0.9".parse().unwrap()]);
            match Xdp::open_queues(&xdp) {
                Ok(mut links) => measure("xdp", &mut links.remove(0)),
                Err(error) => eprintln!("xdp: {error}"),
            }
            match XdpPacket::open_queues(&xdp) {
                Ok(mut links) => measure("xdp+packet", &mut links.remove(0)),
                Err(error) => eprintln!("xdp+packet: {error}"),
            }
        }
    });
}
