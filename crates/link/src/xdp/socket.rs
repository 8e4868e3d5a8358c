//! The system calls of an AF_XDP socket, and the one that says how many receive queues a device has.
//!
//! Errors are bare errnos: the callers know which operation failed. It refuses to block. Bounds: no
//! memory of its own.
//!
//! Reading first: Documentation/networking/af_xdp.rst; linux/if_xdp.h.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: socket options, addresses and an ioctl whose structures the kernel fills in"
)]

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use super::mapping::Mapping;
use super::ring::{Entry, Ring, RingOffsets};
use crate::interface::InterfaceName;
use crate::sys;

const AF_XDP: i32 = libc::AF_XDP;
const SOL_XDP: i32 = libc::SOL_XDP;

/// Where the mapping of each ring begins, in the socket's descriptor.
const PLACE_RECEIVE: libc::off_t = 0;
const PLACE_TRANSMIT: libc::off_t = 0x8000_0000;
const PLACE_FILL: libc::off_t = 0x1_0000_0000;
const PLACE_COMPLETION: libc::off_t = 0x1_8000_0000;

/// What the kernel has counted for a socket: `struct xdp_statistics`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Received frames dropped for another reason than a full ring: no cell was free, or the frame was
    /// larger than a cell.
    pub receive_dropped_frames: u64,
    /// Cells we offered that the kernel refused. Always 0, or Atlas has a bug.
    pub receive_invalid_descriptors: u64,
    /// Frames we offered that the kernel refused. Always 0, or Atlas has a bug.
    pub transmit_invalid_descriptors: u64,
    /// Received frames dropped because the receive ring was full.
    pub receive_ring_full_frames: u64,
    /// Times the kernel found no free cell for a frame.
    pub fill_ring_empty_events: u64,
    /// Times the kernel looked for a frame to send and there was none. No sign of trouble.
    pub transmit_ring_empty_events: u64,
}

impl XdpStatistics {
    fn of_both(&self, other: &Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            receive_dropped_frames: both(self.receive_dropped_frames, other.receive_dropped_frames),
            receive_invalid_descriptors: both(
                self.receive_invalid_descriptors,
                other.receive_invalid_descriptors,
            ),
            transmit_invalid_descriptors: both(
                self.transmit_invalid_descriptors,
                other.transmit_invalid_descriptors,
            ),
            receive_ring_full_frames: both(
                self.receive_ring_full_frames,
                other.receive_ring_full_frames,
            ),
            fill_ring_empty_events: both(self.fill_ring_empty_events, other.fill_ring_empty_events),
            transmit_ring_empty_events: both(
                self.transmit_ring_empty_events,
                other.transmit_ring_empty_events,
            ),
        }
    }

    /// The sum of both.
    pub(super) fn plus(&self, other: &Self) -> Self {
        self.of_both(other, u64::saturating_add)
    }

    /// What was counted since `earlier`.
    pub(super) fn less(&self, earlier: &Self) -> Self {
        self.of_both(earlier, u64::saturating_sub)
    }
}

/// `struct xdp_mmap_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Offsets {
    receive: RingOffsets,
    transmit: RingOffsets,
    fill: RingOffsets,
    completion: RingOffsets,
}

/// `struct xdp_umem_reg`, as kernels before 6.8 also take it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Registration {
    address: u64,
    bytes: u64,
    cell_bytes: u32,
    headroom_bytes: u32,
    flags: u32,
    metadata_bytes: u32,
}

/// `struct sockaddr_xdp`.
#[repr(C)]
struct Address {
    family: u16,
    flags: u16,
    interface_index: u32,
    queue: u32,
    shared_umem: u32,
}

const _: () = assert!(size_of::<Address>() == 16);
const _: () = assert!(size_of::<XdpStatistics>() == 48 && size_of::<Offsets>() == 128);

/// The four rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) receive: Ring<super::ring::Descriptor>,
    pub(super) transmit: Ring<super::ring::Descriptor>,
    pub(super) fill: Ring<u64>,
    pub(super) completion: Ring<u64>,
}

/// How frames pass between the driver and the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copying {
    /// The device accesses the cells if its driver can; the kernel copies otherwise.
    IfNeeded,
    /// The kernel copies.
    Always,
    /// The device accesses the cells, or binding fails.
    Never,
}

/// Opens a socket, not bound.
pub(super) fn open() -> Result<OwnedFd, i32> {
    sys::socket(AF_XDP, libc::SOCK_RAW, 0)
}

/// Registers the memory of the cells, which the kernel pins. `metadata_bytes`: of the metadata before each
/// frame that is sent; 0: none. `EINVAL` if the kernel knows none.
pub(super) fn register_cells(
    socket: BorrowedFd<'_>,
    memory: &Mapping,
    cell_bytes: u32,
    metadata_bytes: u32,
) -> Result<(), i32> {
    let registration = Registration {
        address: memory.address() as u64,
        bytes: memory.bytes() as u64,
        cell_bytes,
        headroom_bytes: 0,
        flags: if metadata_bytes > 0 {
            libc::XDP_UMEM_TX_METADATA_LEN
        } else {
            0
        },
        metadata_bytes,
    };
    sys::set_option(socket, SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// Makes the rings: for so many cells to receive, and with so many entries to send.
pub(super) fn make_rings(
    socket: BorrowedFd<'_>,
    receive_cells: u32,
    transmit_entries: u32,
) -> Result<Rings, i32> {
    let sizes = [
        (libc::XDP_UMEM_FILL_RING, receive_cells),
        (libc::XDP_UMEM_COMPLETION_RING, transmit_entries),
        (libc::XDP_RX_RING, receive_cells),
        (libc::XDP_TX_RING, transmit_entries),
    ];
    for (option, entries) in sizes {
        let entries = i32::try_from(entries).map_err(|_| libc::EINVAL)?;
        sys::set_integer(socket, SOL_XDP, option, entries)?;
    }
    map_rings(socket, receive_cells, transmit_entries)
}

/// Maps the rings that a socket has.
pub(super) fn map_rings(
    socket: BorrowedFd<'_>,
    receive_cells: u32,
    transmit_entries: u32,
) -> Result<Rings, i32> {
    let mut offsets = Offsets::default();
    // SAFETY: the option is a `struct xdp_mmap_offsets`, four times four 64-bit numbers.
    unsafe { read_option(socket, libc::XDP_MMAP_OFFSETS, &mut offsets) }?;
    Ok(Rings {
        receive: ring(socket, offsets.receive, PLACE_RECEIVE, receive_cells)?,
        transmit: ring(socket, offsets.transmit, PLACE_TRANSMIT, transmit_entries)?,
        fill: ring(socket, offsets.fill, PLACE_FILL, receive_cells)?,
        completion: ring(
            socket,
            offsets.completion,
            PLACE_COMPLETION,
            transmit_entries,
        )?,
    })
}

fn ring<E: Entry>(
    socket: BorrowedFd<'_>,
    offsets: RingOffsets,
    place: libc::off_t,
    entries: u32,
) -> Result<Ring<E>, i32> {
    let bytes = Ring::<E>::mapping_bytes(&offsets, entries);
    let mapping = Mapping::of_descriptor(socket, place, bytes)?;
    Ok(Ring::new(mapping, offsets, entries))
}

/// Binds a socket to one queue of an interface. `has_pieces`: a frame may have several descriptors.
pub(super) fn bind(
    socket: BorrowedFd<'_>,
    interface_index: i32,
    queue: u32,
    copying: Copying,
    has_pieces: bool,
) -> Result<(), i32> {
    let pieces = if has_pieces { libc::XDP_USE_SG } else { 0 };
    let copying = match copying {
        Copying::IfNeeded => 0,
        Copying::Always => libc::XDP_COPY,
        Copying::Never => libc::XDP_ZEROCOPY,
    };
    let address = Address {
        family: u16::try_from(AF_XDP).expect("invariant: address families are small"),
        flags: copying | pieces | libc::XDP_USE_NEED_WAKEUP,
        interface_index: interface_index.cast_unsigned(),
        queue,
        shared_umem: 0,
    };
    let pointer = (&raw const address).cast::<libc::sockaddr>();
    // SAFETY: `pointer` is good for the 16 bytes of the structure and is only read during the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), pointer, 16) };
    if result < 0 {
        Err(sys::last_errno())
    } else {
        Ok(())
    }
}

/// Whether the device accesses the cells of a bound socket itself.
pub(super) fn is_zero_copy(socket: BorrowedFd<'_>) -> Result<bool, i32> {
    let mut flags = 0_u32;
    // SAFETY: the option is a `struct xdp_options`, one 32-bit number.
    unsafe { read_option(socket, libc::XDP_OPTIONS, &mut flags) }?;
    Ok(flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// What the kernel has counted.
pub(super) fn statistics(socket: BorrowedFd<'_>) -> Result<XdpStatistics, i32> {
    let mut statistics = XdpStatistics::default();
    // SAFETY: the option is a `struct xdp_statistics`, six 64-bit numbers.
    unsafe { read_option(socket, libc::XDP_STATISTICS, &mut statistics) }?;
    Ok(statistics)
}

/// Frames that one poll of the device hands on at most (`SO_BUSY_POLL_BUDGET`): as many as a driver's own
/// poll does (`NAPI_POLL_WEIGHT`). The kernel's default for sockets is 8.
pub(super) const POLL_FRAMES_MAX: usize = 64;

/// From now on a call that sends or receives has the kernel poll the device's queue (its NAPI context), once
/// with a socket that does not block; and the kernel leaves that to those calls while they come often
/// enough. `microseconds` is how long a call that blocks would poll, above 0.
///
/// # Errors
/// `ENOPROTOOPT` of a kernel without busy polling; `EPERM` without `CAP_NET_ADMIN`, which the preference
/// and a budget take, in older kernels the time as well.
pub(super) fn prefer_busy_poll(socket: BorrowedFd<'_>, microseconds: u32) -> Result<(), i32> {
    let microseconds = i32::try_from(microseconds).unwrap_or(i32::MAX);
    let budget = i32::try_from(POLL_FRAMES_MAX).map_err(|_| libc::EINVAL)?;
    for (option, value) in [
        (libc::SO_PREFER_BUSY_POLL, 1),
        (libc::SO_BUSY_POLL, microseconds),
        (libc::SO_BUSY_POLL_BUDGET, budget),
    ] {
        sys::set_integer(socket, libc::SOL_SOCKET, option, value)?;
    }
    Ok(())
}

/// Whether the kernel knows which NAPI context brings the socket's frames: from the first one on, if at all.
pub(super) fn knows_napi(socket: BorrowedFd<'_>) -> bool {
    let (mut number, mut length) = (0_u32, 4);
    let pointer = (&raw mut number).cast::<libc::c_void>();
    let (fd, option) = (socket.as_raw_fd(), libc::SO_INCOMING_NAPI_ID);
    // SAFETY: the call writes at most 4 bytes to `number`.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, pointer, &raw mut length) };
    result == 0 && number > 0
}

/// Has the kernel look at the fill ring, and asks how the interface is: `ENETDOWN` if it is down,
/// `ENXIO` if it was removed.
pub(super) fn wake_receive(socket: BorrowedFd<'_>) -> Result<(), i32> {
    match sys::receive(socket, &mut []) {
        Ok(_) | Err(libc::EAGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Reads an option of the level of AF_XDP.
///
/// # Safety
/// `T` must have the layout of the option's structure, and every bit pattern must be a value of it.
unsafe fn read_option<T>(socket: BorrowedFd<'_>, name: i32, value: &mut T) -> Result<(), i32> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| libc::EINVAL)?;
    let pointer = (&raw mut *value).cast::<libc::c_void>();
    let fd = socket.as_raw_fd();
    // SAFETY: the call writes at most `length` bytes to `value`; the caller knows what they mean.
    let result = unsafe { libc::getsockopt(fd, SOL_XDP, name, pointer, &raw mut length) };
    if result < 0 {
        return Err(sys::last_errno());
    }
    Ok(())
}

/// How many receive queues a device has now; `None` if its driver does not tell.
pub(crate) fn receive_queues(name: InterfaceName) -> Option<u32> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    // struct ethtool_channels: cmd; the most of rx, tx, other, combined; the same four as they are.
    let mut channels = [0_u32; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).ok()?;
    // SAFETY: the kernel writes one `struct ethtool_channels`, nine words.
    unsafe { sys::ethtool(socket.as_fd(), name, &mut channels) }.ok()?;
    let [_, _, _, _, _, receive, _, _, combined] = channels;
    Some(receive.saturating_add(combined)).filter(|queues| *queues > 0)
}
