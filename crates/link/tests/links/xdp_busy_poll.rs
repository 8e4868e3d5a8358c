//! AF_XDP sockets whose device the kernel polls in our calls, on a veth pair, each test in its own network
//! namespace. A veth has no interrupts, but its NAPI context is deferred as a NIC's is: with
//! `gro_flush_timeout` at a minute, a frame that arrives within a test was polled for.
#![allow(unsafe_code, reason = "UNSAFETY: getsockopt")]

use std::os::fd::AsRawFd as _;

use crate::common::{
    Peer, RawSocket, connect, defer_interrupts, eventually, in_namespace, ip, talk,
};
use clock::Instant;
use link::{AttachMode, Link, Received, SetupError, Xdp, XdpConfig, XdpPacket};

const V4: &str = "10.77.0.9";
const V6: &str = "fd77::9";
const POLL_US: u32 = 50;
const MINUTE_NS: u64 = 60_000_000_000;
/// More than one poll of the device hands on, and fewer than a veth's queue holds (256).
const BURST: usize = 200;

fn polling(busy_poll_us: u32) -> XdpConfig {
    XdpConfig {
        attach: AttachMode::Driver,
        busy_poll_us,
        ..XdpConfig::new("v0", &[V4.parse().unwrap(), V6.parse().unwrap()])
    }
}

/// Opens the only link of an interface; `None` if this kernel has no busy polling.
fn open<L>(open_queues: impl Fn() -> Result<Vec<L>, SetupError>) -> Option<L> {
    let mut opened = None;
    // A process that another test forks holds a program that we have just let go of until it execs.
    eventually(|| match open_queues() {
        Err(SetupError::ProgramAttached { .. }) => false,
        Err(
            error @ (SetupError::NoXdp
            | SetupError::NoBusyPoll { .. }
            | SetupError::NotPermitted { .. }),
        ) => {
            eprintln!("SKIPPED: {error}");
            true
        }
        links => {
            let mut links = links.unwrap();
            assert_eq!(links.len(), 1);
            opened = links.pop();
            true
        }
    });
    opened
}

fn option(link: &impl Link, name: i32) -> i32 {
    let (mut value, mut length) = (-1_i32, 4);
    let fd = link.poll_fd().unwrap().as_raw_fd();
    let pointer = (&raw mut value).cast();
    // SAFETY: the call writes at most 4 bytes to `value`.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, pointer, &raw mut length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    value
}

/// Whether the kernel polls the device, which the first frame tells. Since Linux 6.13 it does so only for
/// drivers that have told which context is to be polled, and veth has not.
fn is_polled(link: &impl Link) -> bool {
    let is_polled = option(link, libc::SO_INCOMING_NAPI_ID) > 0;
    assert_eq!(link.is_polling_in_vain(), !is_polled);
    if !is_polled {
        eprintln!("SKIPPED: this kernel cannot poll a veth, so interrupts are not deferred");
    }
    is_polled
}

fn talk_polled(link: &mut impl Link, peer: &Peer) {
    assert!(!link.is_polling_in_vain(), "no frame has come");
    talk(link, peer, "10.77.0.2", V4);
    if is_polled(link) {
        defer_interrupts("v0", MINUTE_NS);
    }
    for _ in 0..3 {
        talk(link, peer, "10.77.0.2", V4);
        talk(link, peer, "fd77::2", V6);
    }
}

#[test]
fn the_options_of_the_socket_are_what_was_chosen() {
    in_namespace(|| {
        let _peer = connect();
        // 0 leaves both as the kernel has them.
        for (chosen, preferred) in [(0, 0), (1, 1), (POLL_US, 1), (1_000_000, 1)] {
            let Some(link) = open(|| Xdp::open_queues(&polling(chosen))) else {
                return;
            };
            assert_eq!(option(&link, libc::SO_PREFER_BUSY_POLL), preferred);
            if chosen > 0 {
                assert_eq!(option(&link, libc::SO_BUSY_POLL), chosen.cast_signed());
            }
        }
        let Some(link) = open(|| XdpPacket::open_queues(&polling(POLL_US))) else {
            return;
        };
        assert_eq!(option(&link, libc::SO_PREFER_BUSY_POLL), 1);
    });
}

#[test]
fn frames_pass_that_only_a_poll_of_ours_brings() {
    in_namespace(|| {
        let peer = connect();
        let Some(mut link) = open(|| Xdp::open_queues(&polling(POLL_US))) else {
            return;
        };
        talk_polled(&mut link, &peer);
    });
    in_namespace(|| {
        let peer = connect();
        let Some(mut link) = open(|| XdpPacket::open_queues(&polling(POLL_US))) else {
            return;
        };
        talk_polled(&mut link, &peer);
    });
}

#[test]
fn a_burst_of_several_polls_arrives_and_no_call_takes_more_than_it_may() {
    in_namespace(|| {
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        ip("link set v1 up");
        let mut sender = RawSocket::open("v1");
        let Some(mut link) = open(|| Xdp::open_queues(&polling(POLL_US))) else {
            return;
        };
        let mut frame = vec![0; 66];
        frame[..6].copy_from_slice(&link.capabilities().mac.0);
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
        frame[23] = 17;
        frame[30..34].copy_from_slice(&[10, 77, 0, 9]);
        let receive = |link: &mut Xdp, frames_max| {
            let mut count = 0;
            let mut sink = |received: Received<'_>| count += usize::from(received.frame == frame);
            let handed = link.receive(Instant::ZERO, frames_max, &mut sink).unwrap();
            assert!(handed <= frames_max, "{handed} of {frames_max}");
            count
        };
        sender.send(&frame);
        eventually(|| receive(&mut link, 1) == 1);
        if is_polled(&link) {
            defer_interrupts("v0", MINUTE_NS);
        }
        for frames_max in [1, 63, 64, 65, BURST] {
            (0..BURST).for_each(|_| sender.send(&frame));
            let mut left = BURST;
            eventually(|| {
                left -= receive(&mut link, frames_max);
                left == 0
            });
        }
        assert_eq!(receive(&mut link, BURST), 0);
    });
}

#[test]
fn a_program_behind_the_driver_cannot_have_its_queue_polled() {
    in_namespace(|| {
        let _peer = connect();
        let config = XdpConfig {
            attach: AttachMode::Generic,
            ..polling(POLL_US)
        };
        match Xdp::open_queues(&config).unwrap_err() {
            error @ (SetupError::NoXdp | SetupError::NotPermitted { .. }) => {
                eprintln!("SKIPPED: {error}");
            }
            error => assert_eq!(
                error.to_string(),
                "the receive queues of \"v0\" cannot be polled: its driver runs no XDP program; \
                 switch busy polling off"
            ),
        }
    });
}
