//! The system calls of this room that `std` does not offer, all but ethtool as safe functions.
//!
//! The kernel uses the memory passed to these functions only during the call. The receive ring, which
//! shares memory with the kernel for longer, is in `packet/ring.rs`. Errors are bare errnos: the
//! callers know which operation failed. It refuses to block: socket calls use `MSG_DONTWAIT`, the
//! others are ioctls. Bounds: no memory of its own.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: sockets, socket options, ioctls and gathered sends that std does not wrap"
)]

use std::io::IoSlice;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::from_ref;

use libc::{c_int, c_ulong, c_void, sock_filter, sockaddr_ll, socklen_t};
use wire::MacAddress;

use crate::interface::InterfaceName;

/// The errno of the last failed call of this thread.
pub(crate) fn last_errno() -> i32 {
    errno_of(&std::io::Error::last_os_error())
}

/// The errno inside an error from `std::fs`.
pub(crate) fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn check(result: c_int) -> Result<c_int, i32> {
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(result)
    }
}

/// A new socket, closed on exec.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<OwnedFd, i32> {
    // SAFETY: takes three integers and touches no memory of ours.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the call above has just made this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is a plain structure of the kernel's.
///
/// `T` is `Copy` and a structure of C's layout or an integer, so its bytes are what the kernel expects.
pub(crate) fn set_option<T: Copy>(
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

/// Attaches a classic BPF program that filters the frames the socket receives.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[sock_filter]) -> Result<(), i32> {
    let program = describe_program(program)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Sets the classic BPF program that says which socket of a packet socket's fanout group gets a frame.
pub(crate) fn set_fanout_program(fd: BorrowedFd<'_>, program: &[sock_filter]) -> Result<(), i32> {
    let program = describe_program(program)?;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program)
}

/// A program as socket options take it; to be used while the program is there.
fn describe_program(program: &[sock_filter]) -> Result<libc::sock_fprog, i32> {
    Ok(libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| libc::E2BIG)?,
        // The kernel copies the program and never writes through this pointer.
        filter: program.as_ptr().cast_mut(),
    })
}

/// Asks the interface to let frames to `mac` through its hardware filter while the socket lives.
pub(crate) fn add_membership(
    fd: BorrowedFd<'_>,
    interface_index: i32,
    kind: c_int,
    mac: MacAddress,
) -> Result<(), i32> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac.0);
    let request = libc::packet_mreq {
        mr_ifindex: interface_index,
        mr_type: u16::try_from(kind).map_err(|_| libc::EINVAL)?,
        mr_alen: 6,
        mr_address: address,
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

fn link_address(interface_index: i32, protocol: c_int) -> sockaddr_ll {
    let small = |number| u16::try_from(number).expect("invariant: both numbers fit 16 bits");
    sockaddr_ll {
        sll_family: small(libc::AF_PACKET),
        sll_protocol: small(protocol).to_be(),
        sll_ifindex: interface_index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Length of `sockaddr_ll` as the socket calls take it.
const LINK_ADDRESS_BYTES: socklen_t = 20;
const _: () = assert!(size_of::<sockaddr_ll>() == 20);

/// Binds a packet socket to one interface and starts receiving this protocol (`ETH_P_`) from it;
/// none if it is 0.
pub(crate) fn bind_to_interface(
    fd: BorrowedFd<'_>,
    interface_index: i32,
    protocol: c_int,
) -> Result<(), i32> {
    let address = link_address(interface_index, protocol);
    let pointer = from_ref(&address).cast::<libc::sockaddr>();
    // SAFETY: `pointer` is good for `LINK_ADDRESS_BYTES` bytes and is only read during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), pointer, LINK_ADDRESS_BYTES) })?;
    Ok(())
}

/// The index of the interface a packet socket is bound to; not positive once it was removed.
pub(crate) fn bound_interface(fd: BorrowedFd<'_>) -> Result<i32, i32> {
    let mut address = link_address(0, 0);
    let mut length = LINK_ADDRESS_BYTES;
    let pointer = (&raw mut address).cast::<libc::sockaddr>();
    // SAFETY: both pointers are to locals; the call writes at most `length` bytes to the first.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), pointer, &raw mut length) })?;
    Ok(address.sll_ifindex)
}

/// `struct sockaddr_nl`.
#[repr(C)]
struct NetlinkAddress {
    family: u16,
    padding: u16,
    port: u32,
    groups: u32,
}

const _: () = assert!(size_of::<NetlinkAddress>() == size_of::<libc::sockaddr_nl>());

/// Joins a netlink socket to multicast groups (`RTMGRP_` bits).
pub(crate) fn bind_netlink(fd: BorrowedFd<'_>, groups: u32) -> Result<(), i32> {
    let address = NetlinkAddress {
        family: u16::try_from(libc::AF_NETLINK).expect("invariant: address families are small"),
        padding: 0,
        port: 0,
        groups,
    };
    let length = socklen_t::try_from(size_of_val(&address)).expect("invariant: 12 bytes");
    let pointer = from_ref(&address).cast::<libc::sockaddr>();
    // SAFETY: `pointer` is good for `length` bytes and is only read during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), pointer, length) })?;
    Ok(())
}

/// Sends one frame gathered from `parts`, without blocking.
pub(crate) fn send_gathered(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<(), i32> {
    let message = libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        // `IoSlice` has the layout of `iovec`; the kernel only reads what it points to.
        msg_iov: parts.as_ptr().cast::<libc::iovec>().cast_mut(),
        msg_iovlen: parts.len(),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    // SAFETY: `message` and the parts it names live through the call, which only reads them.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Receives one datagram without blocking; its length, which may be larger than `buffer`.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, i32> {
    let (pointer, length) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: `pointer` is good for writing `length` bytes, which the kernel does not exceed.
    let received = unsafe { libc::recv(fd.as_raw_fd(), pointer, length, flags) };
    usize::try_from(received).map_err(|_| last_errno())
}

/// The pending error of a socket (`SO_ERROR`), 0 for none; reading clears it.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> Result<i32, i32> {
    integer(fd, libc::SOL_SOCKET, libc::SO_ERROR)
}

/// The value of an integer socket option.
pub(crate) fn integer(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<c_int, i32> {
    let mut value: c_int = 0;
    let mut length: socklen_t = 4;
    let (pointer, length) = ((&raw mut value).cast::<c_void>(), &raw mut length);
    // SAFETY: both pointers are to locals; the call writes at most the 4 bytes of an `int`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, length) })?;
    Ok(value)
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

/// Makes a packet socket's receive ring, sizes in bytes.
pub(crate) fn set_receive_ring(
    fd: BorrowedFd<'_>,
    block_bytes: usize,
    place_bytes: usize,
    places: usize,
) -> Result<(), i32> {
    let small = |number: usize| u32::try_from(number).map_err(|_| libc::EINVAL);
    let request = libc::tpacket_req {
        tp_block_size: small(block_bytes)?,
        tp_block_nr: small(place_bytes * places / block_bytes)?,
        tp_frame_size: small(place_bytes)?,
        tp_frame_nr: small(places)?,
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// Makes a file in memory, of bytes that are zero.
pub(crate) fn memory_file(bytes: usize) -> Result<OwnedFd, i32> {
    // SAFETY: the name is a string that ends with NUL and is only read during the call.
    let fd = unsafe { libc::memfd_create(c"atlas-link".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor that nothing else owns.
    let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let resized = file.set_len(bytes as u64);
    resized.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    Ok(file.into())
}

/// Puts ordinary pages in place of what is mapped at `address`.
///
/// # Safety
/// The pages are the caller's to replace: they are mapped, and no reference covers their bytes.
pub(crate) unsafe fn map_ordinary_pages(address: usize, bytes: usize) -> Result<(), i32> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let place = std::ptr::without_provenance_mut(address);
    // SAFETY: replaces pages of the caller's, by pages that are as good.
    let mapped = unsafe { libc::mmap(place, bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(last_errno());
    }
    Ok(())
}

/// Makes a packet socket's transmit ring of one entry.
pub(crate) fn set_transmit_ring(fd: BorrowedFd<'_>, entry_bytes: usize) -> Result<(), i32> {
    let bytes = u32::try_from(entry_bytes).map_err(|_| libc::EINVAL)?;
    let request = libc::tpacket_req {
        tp_block_size: bytes,
        tp_block_nr: 1,
        tp_frame_size: bytes,
        tp_frame_nr: 1,
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_TX_RING, &request)
}

/// Has the kernel send what a transmit ring holds, without blocking.
pub(crate) fn send_ring(fd: BorrowedFd<'_>) -> Result<(), i32> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: no memory is passed: what is sent is in the ring.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            std::ptr::null(),
            0,
            flags,
            std::ptr::null(),
            0,
        )
    };
    if sent < 0 { Err(last_errno()) } else { Ok(()) }
}

/// `struct ifreq` of an ioctl that names an interface: the name, then 24 bytes of union.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

impl InterfaceRequest {
    const fn new(name: InterfaceName) -> Self {
        Self {
            name: name.to_bytes(),
            value: [0; 24],
        }
    }

    const fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.value[0], self.value[1]])
    }
}

/// Issues an ioctl that reads and writes one [`InterfaceRequest`].
fn interface_ioctl(
    fd: BorrowedFd<'_>,
    request: c_ulong,
    argument: &mut InterfaceRequest,
) -> Result<(), i32> {
    // SAFETY: the requests this module passes read and write at most one `struct ifreq`, which
    // has the size of `InterfaceRequest`; `argument` lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut *argument) })?;
    Ok(())
}

/// The name that the interface of this index has now. `ENODEV` if there is no such interface.
pub(crate) fn interface_name(fd: BorrowedFd<'_>, index: i32) -> Result<InterfaceName, i32> {
    let request = request_by_index(fd, index)?;
    InterfaceName::of_kernel(request.name).ok_or(libc::EILSEQ)
}

/// `IFF_UP`, `IFF_RUNNING` and the rest of the flags (low 16 bits) of the interface of this index, whatever
/// its name is now.
pub(crate) fn interface_flags(fd: BorrowedFd<'_>, index: i32) -> Result<u16, i32> {
    let mut request = request_by_index(fd, index)?;
    interface_ioctl(fd, libc::SIOCGIFFLAGS, &mut request)?;
    Ok(request.flags())
}

/// A request that names the interface of this index.
fn request_by_index(fd: BorrowedFd<'_>, index: i32) -> Result<InterfaceRequest, i32> {
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        value: [0; 24],
    };
    request.value[..4].copy_from_slice(&index.to_ne_bytes());
    interface_ioctl(fd, libc::SIOCGIFNAME, &mut request)?;
    Ok(request)
}

/// Attaches `/dev/net/tun` (or a macvtap's descriptor) to an interface in the given mode.
pub(crate) fn tun_attach(fd: BorrowedFd<'_>, name: InterfaceName, flags: u16) -> Result<(), i32> {
    let mut request = InterfaceRequest::new(name);
    request.value[..2].copy_from_slice(&flags.to_ne_bytes());
    interface_ioctl(fd, libc::TUNSETIFF, &mut request)
}

/// The mode a tap was made with; has `IFF_PERSIST` if it outlives its descriptor.
pub(crate) fn tun_flags(fd: BorrowedFd<'_>) -> Result<u16, i32> {
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        value: [0; 24],
    };
    interface_ioctl(fd, libc::TUNGETIFF, &mut request)?;
    Ok(request.flags())
}

/// The MAC of the interface behind a macvtap's descriptor, whatever namespace it is in.
pub(crate) fn macvtap_mac(fd: BorrowedFd<'_>) -> Result<MacAddress, i32> {
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        value: [0; 24],
    };
    interface_ioctl(fd, libc::SIOCGIFHWADDR, &mut request)?;
    // struct sockaddr: a 16-bit family, then the address.
    let [_, _, a, b, c, d, e, f, ..] = request.value;
    Ok(MacAddress([a, b, c, d, e, f]))
}

/// Which large frames and partial checksums we accept from the host: `TUN_F_` flags.
pub(crate) fn tun_offload(fd: BorrowedFd<'_>, flags: u32) -> Result<(), i32> {
    // SAFETY: this request takes its argument by value and touches no memory of ours.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(flags)) })?;
    Ok(())
}

/// Sets the length of the virtio-net header, bytes.
pub(crate) fn tun_vnet_header_bytes(fd: BorrowedFd<'_>, bytes: c_int) -> Result<(), i32> {
    // SAFETY: this request reads one `int`, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const bytes) })?;
    Ok(())
}

/// Bounds the memory of frames we wrote and the host has not received yet, bytes.
pub(crate) fn tun_send_buffer_bytes(fd: BorrowedFd<'_>, bytes: c_int) -> Result<(), i32> {
    // SAFETY: this request reads one `int`, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETSNDBUF, &raw const bytes) })?;
    Ok(())
}

/// `struct ifreq` whose union is a pointer to an ethtool command.
#[repr(C)]
struct EthtoolRequest {
    name: [u8; libc::IFNAMSIZ],
    command: *mut c_void,
    rest: [u8; 16],
}

/// Runs an ethtool command in place.
///
/// The command's own length fields say how much the kernel writes; the callers in
/// `features.rs` size their arrays by the counts they pass.
///
/// # Safety
/// `command` must be an ethtool command whose answer fits its `N` words.
pub(crate) unsafe fn ethtool<const N: usize>(
    fd: BorrowedFd<'_>,
    name: InterfaceName,
    command: &mut [u32; N],
) -> Result<(), i32> {
    let mut request = EthtoolRequest {
        name: name.to_bytes(),
        command: command.as_mut_ptr().cast::<c_void>(),
        rest: [0; 16],
    };
    // SAFETY: `request` has the size of `struct ifreq`; what it points to is large enough by this
    // function's contract, and both live through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })?;
    Ok(())
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());
const _: () = assert!(size_of::<EthtoolRequest>() == size_of::<libc::ifreq>());
