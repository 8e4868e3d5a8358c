//! What the tests of real links share: network namespaces that cannot leak, raw sockets, frames.
//!
//! A namespace belongs to a thread here (`unshare`), and the kernel removes it with everything in
//! it when the thread and its descriptors are gone, also after a panic or a kill.
#![allow(
    unsafe_code,
    clippy::cast_possible_truncation,
    reason = "UNSAFETY: unshare and raw sockets"
)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant as WallInstant};

use clock::Instant;
use link::{Link, LinkError, Received, Sent, SetupError, TransmitError, Xdp, XdpConfig};
use wire::{
    HEADERS_BYTES_MAX, Incoming, Offload, Outgoing, PartialChecksum, Route, Segmentation,
    TcpChecksum, TcpRepr, parse_frame,
};

/// How long an event may take before the test fails.
const EVENT_LIMIT: Duration = Duration::from_secs(10);

/// Runs `test` in a new network namespace, or says why it cannot.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let runner = thread::spawn(move || {
        if let Err(error) = new_namespace() {
            eprintln!("SKIPPED: no network namespace of our own ({error}); run as root");
            return;
        }
        ip("link set lo up");
        test();
    });
    if let Err(panic) = runner.join() {
        std::panic::resume_unwind(panic);
    }
}

fn new_namespace() -> std::io::Result<()> {
    // SAFETY: moves the calling thread to a new namespace and touches no memory.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Drops the calling thread's privileges, and only this thread's: the raw call, not libc's.
pub(crate) fn become_nobody() {
    // SAFETY: takes integers and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
    assert_eq!(result, 0);
}

/// Leaves the calling thread, and only it, these capabilities (`CAP_` numbers).
pub(crate) fn keep_capabilities(numbers: &[u32]) {
    /// `_LINUX_CAPABILITY_VERSION_3`: two words of each set.
    const VERSION: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        thread: i32,
    }
    let header = Header {
        version: VERSION,
        thread: 0,
    };
    // Effective, permitted and inheritable; the low 32 of all, then the high ones.
    let mut sets = [[0_u32; 3]; 2];
    for number in numbers {
        let word = &mut sets[*number as usize / 32];
        word[0] |= 1 << (number % 32);
        word[1] |= 1 << (number % 32);
    }
    // SAFETY: reads both structures, which live through the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Runs `ip` with these words in the namespace of the calling thread.
pub(crate) fn ip(words: &str) {
    run("ip", words);
}

/// Runs a program in the namespace of the calling thread and expects that it succeeds.
pub(crate) fn run(program: &str, words: &str) {
    let output = Command::new(program)
        .args(words.split_whitespace())
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {text}");
}

type Job = Box<dyn FnOnce() + Send>;

/// Another namespace, at the other end of a veth pair: work is sent to its thread.
pub(crate) struct Peer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Peer {
    /// Makes the namespace and a veth pair: `ours` here, `theirs` there, both up.
    pub(crate) fn connect(ours: &str, theirs: &str) -> Self {
        Self::connect_queues(ours, theirs, 1)
    }

    /// The same with several queues in both directions.
    pub(crate) fn connect_queues(ours: &str, theirs: &str, queues: u32) -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, started) = mpsc::channel();
        let thread = thread::spawn(move || {
            new_namespace().unwrap();
            // SAFETY: takes nothing and touches no memory.
            ready.send(unsafe { libc::gettid() }).unwrap();
            for job in inbox {
                job();
            }
        });
        let id = started.recv().unwrap();
        let peer = Self {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        let count = format!("numrxqueues {queues} numtxqueues {queues}");
        ip(&format!(
            "link add {ours} {count} type veth peer name {theirs} {count}"
        ));
        ip(&format!("link set {theirs} netns {id}"));
        ip(&format!("link set {ours} up"));
        let theirs = theirs.to_owned();
        peer.run(move || ip(&format!("link set {theirs} up")));
        peer
    }

    /// Runs `job` in the peer's namespace and returns what it returns.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job: Job = Box::new(move || drop(done.send(job())));
        self.jobs.as_ref().unwrap().send(job).unwrap();
        result.recv().expect("the peer's job panicked")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A veth pair, the kernel's addresses .1 and ::1 here, .2 and ::2 at the peer.
pub(crate) fn connect() -> Peer {
    connect_queues(1)
}

/// The same with several queues in both directions.
pub(crate) fn connect_queues(queues: u32) -> Peer {
    let peer = Peer::connect_queues("v0", "v1", queues);
    ip("address add 10.77.0.1/24 dev v0");
    ip("address add fd77::1/64 dev v0 nodad");
    peer.run(|| ip("address add 10.77.0.2/24 dev v1"));
    peer.run(|| ip("address add fd77::2/64 dev v1 nodad"));
    peer
}

/// The peer's kernel sends a datagram to `ours`, we answer, the peer receives the answer.
pub(crate) fn talk(link: &mut impl Link, peer: &Peer, host: &'static str, ours: &str) {
    let ours: IpAddr = ours.parse().unwrap();
    let socket = peer.run(move || {
        let socket = UdpSocket::bind((host, 0)).unwrap();
        socket.send_to(b"are you there?", (ours, 7)).unwrap();
        socket
    });
    let (question, _) = answer_until_udp(link, ours);
    let (answer, offload) = udp_echo(&question);
    let udp = offload.checksum.unwrap().start;
    let (headers, payload) = answer.split_at(usize::from(udp) + 8);
    let frame = Outgoing {
        headers,
        payload: &[payload],
        offload,
    };
    link.transmit(Instant::ZERO, &frame).unwrap();
    socket.set_read_timeout(Some(EVENT_LIMIT)).unwrap();
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..length], from.ip()),
        (b"are you there?".as_slice(), ours)
    );
}

/// From the next poll of the device on, interrupts have it polled again only when nothing else has for so
/// long.
pub(crate) fn defer_interrupts(interface: &str, nanoseconds: u64) {
    // The files of this namespace are where sysfs is mounted in it.
    let script = format!(
        "mount -t sysfs sysfs /sys && cd /sys/class/net/{interface} && \
         echo {nanoseconds} > gro_flush_timeout && echo 1000 > napi_defer_hard_irqs"
    );
    let mut command = Command::new("unshare");
    let status = command.args(["--mount", "sh", "-c", &script]).status();
    assert!(status.unwrap().success());
}

/// A datagram there and back between the two kernels.
pub(crate) fn kernels_talk(peer: &Peer) {
    let ours = UdpSocket::bind("10.77.0.1:0").unwrap();
    let address = ours.local_addr().unwrap();
    let theirs = peer.run(move || {
        let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
        socket.send_to(b"kernel", address).unwrap();
        socket
    });
    let mut buffer = [0; 16];
    let (length, from) = ours.recv_from(&mut buffer).unwrap();
    ours.send_to(&buffer[..length], from).unwrap();
    assert_eq!(theirs.recv(&mut buffer).unwrap(), length);
}

/// A packet socket of the test's own on one interface: everything that arrives there, with its
/// virtio-net header.
pub(crate) struct RawSocket {
    file: std::fs::File,
}

impl RawSocket {
    /// Opens it in the namespace of the calling thread.
    pub(crate) fn open(interface: &str) -> Self {
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: `name` ends in NUL and lives through the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let protocol = u16::try_from(libc::ETH_P_ALL).unwrap().to_be();
        // SAFETY: takes integers and touches no memory.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call above made this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING] {
            let (one, raw) = (1_i32, fd.as_raw_fd());
            // SAFETY: the option's value is an `int`, which lives through the call.
            let result = unsafe {
                libc::setsockopt(raw, libc::SOL_PACKET, option, (&raw const one).cast(), 4)
            };
            assert_eq!(result, 0);
        }
        let address = libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET).unwrap(),
            sll_protocol: protocol,
            sll_ifindex: i32::try_from(index).unwrap(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let length = u32::try_from(size_of_val(&address)).unwrap();
        // SAFETY: `address` has this length and lives through the call.
        let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        Self { file: fd.into() }
    }

    /// The descriptor.
    pub(crate) fn as_raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Makes room for more frames than sockets usually have: 4 MiB.
    pub(crate) fn enlarge(&self) {
        let (bytes, fd) = (4_i32 << 20, self.as_raw_fd());
        let option = libc::SO_RCVBUFFORCE;
        // SAFETY: the option's value is an `int`, which lives through the call.
        let result =
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const bytes).cast(), 4) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Sends a plain frame.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let bytes = [&[0; 10], frame].concat();
        assert_eq!(self.file.write(&bytes).unwrap(), bytes.len());
    }

    /// Sends a large segment as one frame, with an unfinished checksum.
    pub(crate) fn send_segment(&mut self, segment: &Segment) {
        // struct virtio_net_hdr: needs a checksum; TCP over IPv4; bytes of headers and of a segment; where
        // the checksum is.
        let mut bytes = vec![1, 1];
        let headers = u16::try_from(segment.headers.len()).unwrap();
        for field in [headers, 1_448, headers - 20, 16] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(&segment.headers);
        bytes.extend(&segment.payload);
        assert_eq!(self.file.write(&bytes).unwrap(), bytes.len());
    }

    /// The next frame for which `wanted` holds, with its virtio-net header.
    pub(crate) fn receive(&mut self, wanted: impl Fn(&[u8]) -> bool) -> ([u8; 10], Vec<u8>) {
        let deadline = WallInstant::now() + EVENT_LIMIT;
        let mut buffer = vec![0; 80_000];
        loop {
            match self.file.read(&mut buffer) {
                Ok(length) => {
                    let (header, frame) = buffer[..length].split_first_chunk().unwrap();
                    if wanted(frame) {
                        return (*header, frame.to_vec());
                    }
                }
                Err(_) => wait(self.file.as_raw_fd(), libc::POLLIN, deadline),
            }
        }
    }
}

/// `struct tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AuxiliaryData {
    status: u32,
    bytes: u32,
    captured_bytes: u32,
    mac: u16,
    net: u16,
    tag_control: u16,
    tag_protocol: u16,
}

impl RawSocket {
    /// From now on the kernel tells the tag of a frame, which it has taken off.
    pub(crate) fn tell_tags(&self) {
        let one = 1_i32;
        let fd = self.as_raw_fd();
        // SAFETY: `one` is 4 bytes and lives through the call.
        let result = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_AUXDATA,
                (&raw const one).cast(),
                4,
            )
        };
        assert_eq!(result, 0);
    }

    /// The next frame for which `wanted` holds, without its virtio-net header and its tag; the tag's
    /// Ethernet type, and its priority with the VLAN's number.
    pub(crate) fn receive_with_tag(
        &mut self,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> (Option<(u16, u16)>, Vec<u8>) {
        const TAG_VALID: u32 = libc::TP_STATUS_VLAN_VALID;
        let deadline = WallInstant::now() + EVENT_LIMIT;
        let mut buffer = vec![0; 80_000];
        loop {
            let mut control = [0_u64; 16];
            let mut piece = libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            };
            let mut message = libc::msghdr {
                msg_name: std::ptr::null_mut(),
                msg_namelen: 0,
                msg_iov: &raw mut piece,
                msg_iovlen: 1,
                msg_control: control.as_mut_ptr().cast(),
                msg_controllen: size_of_val(&control),
                msg_flags: 0,
            };
            // SAFETY: everything that `message` names lives through the call, with the sizes it says.
            let received =
                unsafe { libc::recvmsg(self.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
            let Ok(length) = usize::try_from(received) else {
                wait(self.file.as_raw_fd(), libc::POLLIN, deadline);
                continue;
            };
            let frame = &buffer[10..length];
            if !wanted(frame) {
                continue;
            }
            // SAFETY: the kernel has filled `control` in.
            let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
            assert!(!head.is_null(), "the kernel tells of each frame");
            // SAFETY: there is a message.
            let place = unsafe { libc::CMSG_DATA(head) }.cast::<AuxiliaryData>();
            // SAFETY: its only kind is a `struct tpacket_auxdata`, at any alignment.
            let data = unsafe { place.read_unaligned() };
            let tag =
                (data.status & TAG_VALID != 0).then_some((data.tag_protocol, data.tag_control));
            return (tag, frame.to_vec());
        }
    }
}

/// An AF_XDP socket of the test's own that has queue 0 of an interface.
pub(crate) struct QueueHolder {
    _socket: OwnedFd,
    _memory: Box<Page>,
}

#[repr(align(4096))]
struct Page([u8; 4_096]);

impl QueueHolder {
    /// Binds it in the namespace of the calling thread.
    pub(crate) fn bind(interface: &str) -> Self {
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: `name` ends in NUL and lives through the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        // SAFETY: takes integers and touches no memory.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call above made this descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let memory = Box::new(Page([0; 4_096]));
        let registration = libc::xdp_umem_reg {
            addr: memory.0.as_ptr().addr() as u64,
            len: 4_096,
            chunk_size: 4_096,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        let set = |option, value: *const libc::c_void, bytes: usize| {
            let bytes = u32::try_from(bytes).unwrap();
            // SAFETY: the values below live through the call and have the option's size; the memory
            // that is registered lives as long as the socket.
            let result = unsafe { libc::setsockopt(fd, libc::SOL_XDP, option, value, bytes) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        };
        let bytes = size_of_val(&registration);
        set(libc::XDP_UMEM_REG, (&raw const registration).cast(), bytes);
        let entries = 1_u32;
        for option in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
        ] {
            set(option, (&raw const entries).cast(), 4);
        }
        let address = libc::sockaddr_xdp {
            sxdp_family: u16::try_from(libc::AF_XDP).unwrap(),
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: index,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        let bytes = u32::try_from(size_of_val(&address)).unwrap();
        // SAFETY: `address` has this length and lives through the call.
        let result = unsafe { libc::bind(fd, (&raw const address).cast(), bytes) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        Self {
            _socket: socket,
            _memory: memory,
        }
    }
}

/// Waits for an event on a descriptor; fails the test at the deadline.
fn wait(fd: i32, events: i16, deadline: WallInstant) {
    let left = deadline.saturating_duration_since(WallInstant::now());
    assert!(!left.is_zero(), "nothing happened for {EVENT_LIMIT:?}");
    // Not longer than this at once: a removed interface need not wake a poll.
    let millis = i32::try_from(left.as_millis()).unwrap().min(50);
    let mut poll = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&raw mut poll, 1, millis) };
}

/// Waits until `done`: for what the kernel does a little later and without telling. (A process
/// forked by another test holds a copy of our descriptors until it execs.)
pub(crate) fn eventually(mut done: impl FnMut() -> bool) {
    let deadline = WallInstant::now() + EVENT_LIMIT;
    while !done() {
        assert!(WallInstant::now() < deadline, "not within {EVENT_LIMIT:?}");
        thread::yield_now();
    }
}

/// Whether a descriptor is ready for `events` now.
pub(crate) fn is_ready(fd: BorrowedFd<'_>, events: i16) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & events != 0
}

/// Waits until a link can be written to.
pub(crate) fn wait_writable(link: &impl Link) {
    let fd = link.writable_fd().unwrap();
    let deadline = WallInstant::now() + EVENT_LIMIT;
    while !is_ready(fd, libc::POLLOUT) {
        wait(fd.as_raw_fd(), libc::POLLOUT, deadline);
    }
}

/// Receives until `done` returns something for a frame.
pub(crate) fn receive_until<T>(
    link: &mut impl Link,
    mut done: impl FnMut(Received<'_>) -> Option<T>,
) -> T {
    let start = WallInstant::now();
    loop {
        let mut found = None;
        let result = link.receive(elapsed(start), 1, &mut |received| found = done(received));
        result.expect("the link is there");
        if let Some(found) = found {
            return found;
        }
        wait(
            link.poll_fd().unwrap().as_raw_fd(),
            libc::POLLIN,
            start + EVENT_LIMIT,
        );
    }
}

/// Receives until the link says that it is gone.
pub(crate) fn receive_until_gone(link: &mut impl Link) -> LinkError {
    let start = WallInstant::now();
    loop {
        if let Err(error) = link.receive(elapsed(start), 64, &mut |_| ()) {
            return error;
        }
        wait(link.poll_fd().unwrap().as_raw_fd(), 0, start + EVENT_LIMIT);
    }
}

fn elapsed(start: WallInstant) -> Instant {
    Instant::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap())
}

/// Hands the link a finished frame.
pub(crate) fn send(link: &mut impl Link, frame: &[u8]) -> Result<Sent, TransmitError> {
    send_at(link, Instant::ZERO, frame)
}

/// The same at a moment.
pub(crate) fn send_at(
    link: &mut impl Link,
    now: Instant,
    frame: &[u8],
) -> Result<Sent, TransmitError> {
    let (headers, payload) = frame.split_at(14);
    let offload = Offload::default();
    link.transmit(
        now,
        &Outgoing {
            headers,
            payload: &[payload],
            offload,
        },
    )
}

/// Answers ARP and neighbour solicitations for our address until a UDP frame arrives; returns it.
pub(crate) fn answer_until_udp(
    link: &mut impl Link,
    our_address: IpAddr,
) -> (Vec<u8>, wire::ChecksumState) {
    let mac = link.capabilities().mac;
    loop {
        enum Arrived {
            Question(Vec<u8>),
            Udp(Vec<u8>, wire::ChecksumState),
        }
        let arrived = receive_until(link, |received| {
            let mut buffer = [0; HEADERS_BYTES_MAX];
            let length = match parse_frame(received.frame, received.checksum) {
                Ok(Incoming::Arp(request)) if IpAddr::V4(request.target_address) == our_address => {
                    wire::emit_arp_reply(&mut buffer, &request, mac)
                }
                Ok(Incoming::NeighborSolicitation { path, target, .. })
                    if IpAddr::V6(target) == our_address =>
                {
                    wire::emit_neighbor_advertisement(&mut buffer, &path, target, mac)
                }
                _ if is_udp_to(received.frame, our_address) => {
                    return Some(Arrived::Udp(received.frame.to_vec(), received.checksum));
                }
                _ => return None,
            };
            Some(Arrived::Question(buffer[..length].to_vec()))
        });
        match arrived {
            Arrived::Question(answer) => drop(send(link, &answer).unwrap()),
            Arrived::Udp(frame, checksum) => return (frame, checksum),
        }
    }
}

fn is_udp_to(frame: &[u8], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            frame.get(23) == Some(&17) && frame.get(30..34) == Some(&address.octets())
        }
        IpAddr::V6(address) => {
            frame.get(20) == Some(&17) && frame.get(38..54) == Some(&address.octets())
        }
    }
}

/// The UDP frame that answers `frame` with the same payload, its checksum left to the link.
pub(crate) fn udp_echo(frame: &[u8]) -> (Vec<u8>, Offload) {
    let mut reply = frame.to_vec();
    swap(&mut reply, 0, 6, 6);
    let (start, addresses, length) = if frame[12..14] == [0x08, 0x00] {
        (34, 26, 4)
    } else {
        (54, 22, 16)
    };
    swap(&mut reply, addresses, addresses + length, length);
    swap(&mut reply, start, start + 2, 2);
    let udp_bytes = u16::from_be_bytes([frame[start + 4], frame[start + 5]]);
    reply.truncate(start + usize::from(udp_bytes));
    let mut pseudo = reply[addresses..addresses + 2 * length].to_vec();
    pseudo.extend_from_slice(&[0, 17]);
    pseudo.extend_from_slice(&udp_bytes.to_be_bytes());
    let sum = ones_complement(&pseudo);
    reply[start + 6..start + 8].copy_from_slice(&sum.to_be_bytes());
    let checksum = PartialChecksum {
        start: u16::try_from(start).unwrap(),
        offset: 6,
    };
    (
        reply,
        Offload {
            checksum: Some(checksum),
            segmentation: None,
        },
    )
}

fn swap(bytes: &mut [u8], first: usize, second: usize, length: usize) {
    let (head, tail) = bytes.split_at_mut(second);
    head[first..first + length].swap_with_slice(&mut tail[..length]);
}

/// RFC 1071.
fn ones_complement(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// A frame with a tag before what it had: its Ethernet type, and its priority with the VLAN's number.
pub(crate) fn with_tag(frame: &[u8], protocol: u16, control: u16) -> Vec<u8> {
    let mut tagged = frame.to_vec();
    let tag = [protocol.to_be_bytes(), control.to_be_bytes()].concat();
    tagged.splice(12..12, tag);
    tagged
}

/// A TCP segment between made-up addresses, large or not.
pub(crate) struct Segment {
    headers: Vec<u8>,
    payload: Vec<u8>,
    offload: Offload,
}

impl Segment {
    /// One whose IP packet has `packet_bytes`.
    pub(crate) fn new(
        source_mac: wire::MacAddress,
        destination_mac: wire::MacAddress,
        packet_bytes: usize,
    ) -> Self {
        let route = Route {
            source_mac,
            destination_mac,
            source: Ipv4Addr::new(10, 77, 0, 9).into(),
            destination: Ipv4Addr::new(10, 77, 0, 99).into(),
        };
        let payload: Vec<u8> = (0..packet_bytes - 40).map(|n| (n % 251) as u8).collect();
        let mut buffer = [0; HEADERS_BYTES_MAX];
        let header = TcpRepr {
            source_port: 80,
            destination_port: 4_000,
            ..TcpRepr::default()
        };
        let checksum = TcpChecksum::Partial;
        let length = wire::emit_tcp(&mut buffer, &route, &header, &[&payload], checksum, 1);
        let segmentation = Segmentation {
            kind: route.segmentation_kind(),
            segment_bytes: 1_448,
        };
        let offload = Offload {
            checksum: Some(route.partial_checksum()),
            segmentation: (packet_bytes > 1_500).then_some(segmentation),
        };
        Self {
            headers: buffer[..length].to_vec(),
            payload,
            offload,
        }
    }

    /// The same with a tag of this priority and VLAN number, for [`RawSocket::send_segment`].
    pub(crate) fn tagged(mut self, control: u16) -> Self {
        self.headers = with_tag(&self.headers, 0x8100, control);
        self
    }

    /// The same, to be cut into segments of so many bytes.
    pub(crate) fn cut_to(mut self, segment_bytes: u16) -> Self {
        if let Some(segmentation) = &mut self.offload.segmentation {
            segmentation.segment_bytes = segment_bytes;
        }
        self
    }

    /// Sends it, its payload in two parts.
    pub(crate) fn send(&self, link: &mut (impl Link + ?Sized)) -> Result<Sent, TransmitError> {
        let (first, second) = self.payload.split_at(self.payload.len() / 3);
        self.send_with(link, &[first, second])
    }

    /// Sends it with another payload, as long as its own; the checksum is what it was.
    pub(crate) fn send_with(
        &self,
        link: &mut (impl Link + ?Sized),
        payload: &[&[u8]],
    ) -> Result<Sent, TransmitError> {
        let frame = Outgoing {
            headers: &self.headers,
            payload,
            offload: self.offload,
        };
        link.transmit(Instant::ZERO, &frame)
    }
}

/// Sends a [`Segment`] from this link.
pub(crate) fn send_large(
    link: &mut impl Link,
    destination_mac: wire::MacAddress,
    packet_bytes: usize,
) -> Result<Sent, TransmitError> {
    Segment::new(link.capabilities().mac, destination_mac, packet_bytes).send(link)
}

/// Whether a frame is (a part of) what [`send_large`] sends.
pub(crate) fn is_large(frame: &[u8]) -> bool {
    frame.get(23) == Some(&6) && frame.get(30..34) == Some(&[10, 77, 0, 99])
}

/// Switches TCP segmentation of a device on or off, both IP versions: `ethtool -K ... tso`.
pub(crate) fn set_segmentation(interface: &str, on: bool) {
    const ETHTOOL_STSO: u32 = 0x1f;
    ethtool(interface, &mut [ETHTOOL_STSO, u32::from(on)]);
}

/// Has a device say that it finishes the checksums of frames that are sent, or not: `ethtool -K ... tx`.
pub(crate) fn set_transmit_checksum(interface: &str, on: bool) {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    ethtool(interface, &mut [ETHTOOL_STXCSUM, u32::from(on)]);
}

/// How many queues a device has for each direction: `ethtool -L ... rx ... tx`.
pub(crate) fn set_queues(interface: &str, receive: u32, transmit: u32) {
    const ETHTOOL_SCHANNELS: u32 = 0x3d;
    let command = &mut [ETHTOOL_SCHANNELS, 0, 0, 0, 0, receive, transmit, 0, 0];
    ethtool(interface, command);
}

/// Has a device say that it takes the tags of VLANs off frames, or not: `ethtool -K ... rxvlan`.
pub(crate) fn set_tag_removal(interface: &str, on: bool) {
    for feature in ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"] {
        set_feature(interface, feature, on);
    }
}

/// Switches a feature of a device on or off, by the kernel's name of it.
fn set_feature(interface: &str, feature: &str, on: bool) {
    const ETHTOOL_GSTRINGS: u32 = 0x1b;
    const ETHTOOL_GSSET_INFO: u32 = 0x37;
    const ETHTOOL_SFEATURES: u32 = 0x3b;
    const SET_FEATURES: u32 = 4;
    const NAME_WORDS: usize = 8;
    let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << SET_FEATURES, 0, 0];
    ethtool(interface, &mut info);
    let count = info[4] as usize;
    assert!(count <= 128, "{count} features");
    let mut names = vec![0; 3 + 128 * NAME_WORDS];
    names[..2].copy_from_slice(&[ETHTOOL_GSTRINGS, SET_FEATURES]);
    ethtool(interface, &mut names);
    let place = names[3..].chunks(NAME_WORDS).position(|words| {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        bytes.take_while(|byte| *byte != 0).eq(feature.bytes())
    });
    let place = place.unwrap_or_else(|| panic!("no feature {feature}"));
    // Blocks of 32 features: which are to be set, and to what.
    let blocks = count.div_ceil(32);
    let mut request = vec![0; 2 + 2 * blocks];
    request[..2].copy_from_slice(&[ETHTOOL_SFEATURES, blocks as u32]);
    request[2 + 2 * (place / 32)] = 1 << (place % 32);
    request[3 + 2 * (place / 32)] = u32::from(on) << (place % 32);
    ethtool(interface, &mut request);
}

/// Runs an ethtool command, which has room for its answer.
fn ethtool(interface: &str, command: &mut [u32]) {
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        value: *mut u32,
        rest: [u8; 16],
    }
    let mut request = Request {
        name: [0; 16],
        value: command.as_mut_ptr(),
        rest: [0; 16],
    };
    request.name[..interface.len()].copy_from_slice(interface.as_bytes());
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: the commands of this file fit their words, and both structures live through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
}

/// The link of the interface's only queue; `None`, and a word of it, where there is no AF_XDP.
pub(crate) fn open_xdp(config: &XdpConfig) -> Option<Xdp> {
    open_queue(|| Xdp::open_queues(config))
}

/// The same of any kind of link.
pub(crate) fn open_queue<L>(open: impl Fn() -> Result<Vec<L>, SetupError>) -> Option<L> {
    let mut link = None;
    // A process that another test forks holds a program that we have just let go of until it execs.
    eventually(|| match open() {
        Err(SetupError::ProgramAttached { .. }) => false,
        Err(error @ (SetupError::NoXdp | SetupError::NotPermitted { .. })) => {
            eprintln!("SKIPPED: {error}");
            true
        }
        opened => {
            link = opened.unwrap().pop();
            true
        }
    });
    link
}
