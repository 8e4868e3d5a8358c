//! The system calls that neither `std` nor rustix offers, as safe functions: packet sockets,
//! frames in batches, this thread's processor time.
//!
//! Every function takes its memory by reference and is done with it on return. Errors are bare
//! errnos: the callers know what was tried. Nothing blocks.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: packet sockets, recvmmsg, sendmmsg and getrusage, which nothing safe wraps"
)]

use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::{from_ref, null_mut};

use clock::Duration;
use libc::{c_int, c_void, iovec, mmsghdr, sockaddr_ll, socklen_t};

use crate::middlebox::FRAME_BYTES_MAX;

/// Most frames received or sent by one system call.
pub(crate) const BATCH_FRAMES: usize = 64;

/// Bytes from one buffer of an [`Inbox`] to the next: a frame, in whole cache lines, and not a
/// power of two, so that the buffers' beginnings do not fall on the same few lines of a cache.
const STRIDE_BYTES: usize = 65_664;
const _: () = assert!(FRAME_BYTES_MAX <= STRIDE_BYTES);

/// The errno of the last failed call of this thread.
fn last_errno() -> i32 {
    let error = std::io::Error::last_os_error();
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn check(result: c_int) -> Result<c_int, i32> {
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(result)
    }
}

/// A new packet socket, closed on exec, that receives nothing yet.
pub(crate) fn packet_socket() -> Result<OwnedFd, i32> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: takes three integers and touches no memory of ours.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the call above has just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is a plain structure of the kernel's.
fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> Result<(), i32> {
    let length = socklen_t::try_from(size_of_val(value)).expect("invariant: options are small");
    let pointer = from_ref(value).cast::<c_void>();
    // SAFETY: `pointer` is good for `length` bytes for the whole call, which only reads them.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, length) })?;
    Ok(())
}

/// Sets an integer socket option.
pub(crate) fn set_integer(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> Result<(), i32> {
    set_option(fd, level, name, &value)
}

/// Takes frames to any station from an interface's hardware while the socket lives.
pub(crate) fn set_promiscuous(fd: BorrowedFd<'_>, interface_index: i32) -> Result<(), i32> {
    let request = libc::packet_mreq {
        mr_ifindex: interface_index,
        mr_type: u16::try_from(libc::PACKET_MR_PROMISC).map_err(|_| libc::EINVAL)?,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Binds a packet socket to one interface and starts receiving this protocol (`ETH_P_`) from it;
/// none if it is 0.
pub(crate) fn bind_to_interface(
    fd: BorrowedFd<'_>,
    interface_index: i32,
    protocol: c_int,
) -> Result<(), i32> {
    let address = sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(|_| libc::EINVAL)?,
        sll_protocol: u16::try_from(protocol).map_err(|_| libc::EINVAL)?.to_be(),
        sll_ifindex: interface_index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = socklen_t::try_from(size_of_val(&address)).map_err(|_| libc::EINVAL)?;
    let pointer = from_ref(&address).cast::<libc::sockaddr>();
    // SAFETY: `pointer` is good for `length` bytes and is only read during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), pointer, length) })?;
    Ok(())
}

/// The interface a packet socket is bound to: its index, not positive once it was removed, and its
/// `ARPHRD_` number.
pub(crate) fn bound_interface(fd: BorrowedFd<'_>) -> Result<(i32, u16), i32> {
    // SAFETY: integers only, for which zeroes are a value.
    let mut address: sockaddr_ll = unsafe { zeroed() };
    let mut length = socklen_t::try_from(size_of_val(&address)).map_err(|_| libc::EINVAL)?;
    let pointer = (&raw mut address).cast::<libc::sockaddr>();
    // SAFETY: both pointers are to locals; the call writes at most `length` bytes to the first.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), pointer, &raw mut length) })?;
    Ok((address.sll_ifindex, address.sll_hatype))
}

/// How many frames a packet socket has dropped since this was last asked.
pub(crate) fn take_drops(fd: BorrowedFd<'_>) -> Result<u32, i32> {
    // struct tpacket_stats: packets, drops
    let mut statistics = [0_u32; 2];
    let mut length: socklen_t = 8;
    let (pointer, length) = (statistics.as_mut_ptr().cast::<c_void>(), &raw mut length);
    let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    // SAFETY: both pointers are to locals; the call writes at most the 8 bytes of two words.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, length) })?;
    Ok(statistics[1])
}

/// The one control message that is asked for: when the kernel got the frame, `CLOCK_REALTIME`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Stamp {
    header: libc::cmsghdr,
    time: libc::timespec,
}

/// Frames received by one system call.
pub(crate) struct Inbox {
    /// [`BATCH_FRAMES`] buffers, [`STRIDE_BYTES`] apart.
    memory: Box<[u8]>,
    stamps: [Stamp; BATCH_FRAMES],
    /// Bytes of each frame; more than [`STRIDE_BYTES`] if it did not fit.
    lengths: [usize; BATCH_FRAMES],
}

impl Inbox {
    /// An empty one; its memory is touched as far as frames fill it.
    pub(crate) fn new() -> Self {
        // SAFETY: both structures are integers only, for which zeroes are a value.
        let empty: Stamp = unsafe { zeroed() };
        Self {
            memory: vec![0; STRIDE_BYTES * BATCH_FRAMES].into_boxed_slice(),
            stamps: [empty; BATCH_FRAMES],
            lengths: [0; BATCH_FRAMES],
        }
    }

    /// Receives what waits on the socket, up to [`BATCH_FRAMES`]; how many.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> Result<usize, i32> {
        // SAFETY: pointers and integers, for which zeroes are a value.
        let mut vectors: [iovec; BATCH_FRAMES] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut messages: [mmsghdr; BATCH_FRAMES] = unsafe { zeroed() };
        let buffers = self.memory.chunks_exact_mut(STRIDE_BYTES);
        let places = vectors.iter_mut().zip(buffers).zip(&mut self.stamps);
        for (message, ((vector, buffer), stamp)) in messages.iter_mut().zip(places) {
            stamp.header.cmsg_len = 0;
            vector.iov_base = buffer.as_mut_ptr().cast();
            vector.iov_len = buffer.len();
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = (&raw mut *stamp).cast();
            message.msg_hdr.msg_controllen = size_of::<Stamp>();
        }
        let count = libc::c_uint::try_from(messages.len()).map_err(|_| libc::EINVAL)?;
        let pointer = messages.as_mut_ptr();
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: every message names one buffer and one stamp of ours with their lengths; all
        // live through the call and nothing else uses them meanwhile. No timeout is given.
        let received =
            check(unsafe { libc::recvmmsg(fd.as_raw_fd(), pointer, count, flags, null_mut()) })?;
        let received = usize::try_from(received).map_err(|_| libc::EIO)?;
        for (length, message) in self.lengths.iter_mut().zip(&messages) {
            *length = usize::try_from(message.msg_len).map_err(|_| libc::EIO)?;
        }
        Ok(received)
    }

    /// One of the frames received last, with its virtio-net header: a slice longer than
    /// [`FRAME_BYTES_MAX`] if it did not fit.
    pub(crate) fn packet(&self, index: usize) -> &[u8] {
        let start = index * STRIDE_BYTES;
        let bytes = self.lengths[index].min(STRIDE_BYTES);
        &self.memory[start..start + bytes]
    }

    /// When the kernel got that frame, since 1970; `None` if it does not say.
    pub(crate) fn stamp(&self, index: usize) -> Option<Duration> {
        let stamp = &self.stamps[index];
        let header = &stamp.header;
        let is_ours = header.cmsg_level == libc::SOL_SOCKET
            && header.cmsg_type == libc::SCM_TIMESTAMPNS
            && header.cmsg_len == size_of::<Stamp>();
        if !is_ours {
            return None;
        }
        let seconds = u64::try_from(stamp.time.tv_sec).ok()?;
        let nanos = u64::try_from(stamp.time.tv_nsec).ok()?;
        Some(Duration::from_secs(seconds) + Duration::from_nanos(nanos))
    }
}

/// Sends frames, each with its virtio-net header; how many were taken, from the first on. The
/// error is that of the first frame.
///
/// # Panics
/// With more than [`BATCH_FRAMES`].
pub(crate) fn send_batch(fd: BorrowedFd<'_>, packets: &[&[u8]]) -> Result<usize, i32> {
    assert!(
        packets.len() <= BATCH_FRAMES,
        "a batch of {} frames",
        packets.len()
    );
    // SAFETY: pointers and integers, for which zeroes are a value.
    let mut vectors: [iovec; BATCH_FRAMES] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut messages: [mmsghdr; BATCH_FRAMES] = unsafe { zeroed() };
    let places = messages.iter_mut().zip(&mut vectors);
    for ((message, vector), packet) in places.zip(packets) {
        // The kernel only reads through this pointer.
        vector.iov_base = packet.as_ptr().cast_mut().cast();
        vector.iov_len = packet.len();
        message.msg_hdr.msg_iov = vector;
        message.msg_hdr.msg_iovlen = 1;
    }
    let count = libc::c_uint::try_from(packets.len()).map_err(|_| libc::EINVAL)?;
    let (pointer, flags) = (messages.as_mut_ptr(), libc::MSG_DONTWAIT);
    // SAFETY: `count` messages name one packet each, which live through the call; it writes to
    // the messages only.
    let sent = check(unsafe { libc::sendmmsg(fd.as_raw_fd(), pointer, count, flags) })?;
    usize::try_from(sent).map_err(|_| libc::EIO)
}

/// What this thread has used of a core: its own code, and the kernel in its name.
pub(crate) fn thread_times() -> (Duration, Duration) {
    // SAFETY: integers only, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { zeroed() };
    // SAFETY: writes one structure, which is ours.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    if result != 0 {
        return (Duration::ZERO, Duration::ZERO);
    }
    let time = |value: libc::timeval| {
        let micros = u64::try_from(value.tv_usec).unwrap_or_default();
        let seconds = u64::try_from(value.tv_sec).unwrap_or_default();
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    (time(usage.ru_utime), time(usage.ru_stime))
}

/// `struct sched_attr` of sched_setattr(2).
#[repr(C)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_nanos: u64,
    deadline_nanos: u64,
    period_nanos: u64,
}

const SCHEDULING_BYTES: u32 = 48;
const _: () = assert!(size_of::<Scheduling>() == 48);

/// Asks for this thread to run briefly and soon rather than long and later (Linux 6.12).
pub(crate) fn prefer_short_slices(slice: Duration) -> Result<(), i32> {
    let runtime_nanos = u64::try_from(slice.as_nanos()).map_err(|_| libc::EINVAL)?;
    let policy = u32::try_from(libc::SCHED_OTHER).map_err(|_| libc::EINVAL)?;
    set_scheduling(policy, 0, runtime_nanos)
}

/// Lets this thread run before every ordinary one, whenever it has something to do.
pub(crate) fn become_realtime() -> Result<(), i32> {
    let policy = u32::try_from(libc::SCHED_FIFO).map_err(|_| libc::EINVAL)?;
    set_scheduling(policy, 1, 0)
}

fn set_scheduling(policy: u32, priority: u32, runtime_nanos: u64) -> Result<(), i32> {
    let scheduling = Scheduling {
        size: SCHEDULING_BYTES,
        policy,
        flags: 0,
        nice: 0,
        priority,
        runtime_nanos,
        deadline_nanos: 0,
        period_nanos: 0,
    };
    let (this_thread, flags) = (0, 0);
    let pointer = from_ref(&scheduling);
    // SAFETY: the call reads the structure, which says its own size, and no other memory.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, pointer, flags) };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

// The stamp is laid out as `CMSG_DATA` finds it: right behind a header of whole words.
const _: () = assert!(size_of::<libc::cmsghdr>().is_multiple_of(size_of::<usize>()));
const _: () =
    assert!(size_of::<Stamp>() == size_of::<libc::cmsghdr>() + size_of::<libc::timespec>());
