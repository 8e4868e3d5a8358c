//! The system calls that neither `std` nor rustix offers, as safe functions: the TAP's ioctls, and
//! `bpf(2)` for one program and its cost.
//!
//! Every function takes its memory by reference and is done with it on return. Errors are
//! `io::Error`s; the callers say what was tried. Nothing blocks, and nothing is shared with the
//! kernel beyond a call.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: ioctls of a TAP and bpf(2), which nothing safe wraps"
)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use libc::{c_int, c_long, c_uint, c_ulong};

/// `_IOR('T', 225, int)`, linux/if_tun.h.
const TUNSETFILTEREBPF: c_ulong = 0x8004_54e1;

// linux/bpf.h: commands, and a type of program.
const BPF_PROG_LOAD: c_int = 5;
const BPF_OBJ_GET_INFO_BY_FD: c_int = 15;
const BPF_ENABLE_STATS: c_int = 32;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;

/// `struct bpf_prog_info` up to `run_cnt`, in words; the kernel fills in as much as there is room for.
const INFO_WORDS: usize = 26;
const INFO_RUN_NANOS: usize = 24;
const INFO_RUN_COUNT: usize = 25;

/// `struct ifreq` as `TUNSETIFF` takes it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

/// The part of `union bpf_attr` that `BPF_PROG_LOAD` reads here.
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// The part that `BPF_OBJ_GET_INFO_BY_FD` reads.
#[repr(C)]
struct InfoAttributes {
    fd: u32,
    info_bytes: u32,
    info: u64,
}

fn check(result: c_long) -> io::Result<c_int> {
    match c_int::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a descriptor of `/dev/net/tun` the other end of the interface of this name.
pub(crate) fn attach_tap(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        flags: u16::try_from(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR)
            .map_err(io::Error::other)?,
        rest: [0; 22],
    };
    // One byte stays 0: the name ends there.
    if name.is_empty() || name.len() >= request.name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (place, byte) in request.name.iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    // SAFETY: the request reads and writes one `struct ifreq`, which `request` is as large as.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    check(result.into()).map(drop)
}

/// Takes unfinished checksums and large TCP segments of both IP versions from the TAP's sender.
pub(crate) fn offload(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags: c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: this request takes its argument by value and touches no memory of ours.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(flags)) };
    check(result.into()).map(drop)
}

/// Has a program say how much of each frame the TAP's reader gets; it lives as long as the TAP.
pub(crate) fn set_filter(tap: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let program: c_int = program.as_raw_fd();
    // SAFETY: the request reads one integer, which lives until after the call.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETFILTEREBPF, &raw const program) };
    check(result.into()).map(drop)
}

/// `bpf(2)` with attributes of the layout its command reads.
fn bpf<T>(command: c_int, attributes: &mut T) -> io::Result<c_int> {
    let pointer = std::ptr::from_mut(attributes);
    let bytes = c_ulong::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads and writes at most `bytes` bytes behind `pointer`, all of them
    // `attributes`. What they point to is good by the callers below.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, pointer, bytes) })
}

fn own(fd: c_int) -> OwnedFd {
    // SAFETY: the callers have just been given this descriptor, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Loads a socket filter. bpf(2) makes descriptors that are closed on exec.
pub(crate) fn load_filter(program: &[u64]) -> io::Result<OwnedFd> {
    let mut attributes = LoadAttributes {
        kind: BPF_PROG_TYPE_SOCKET_FILTER,
        instruction_count: u32::try_from(program.len()).map_err(io::Error::other)?,
        // Both outlive the call, which only reads them.
        instructions: program.as_ptr().expose_provenance() as u64,
        license: c"Apache-2.0".as_ptr().expose_provenance() as u64,
        ..LoadAttributes::default()
    };
    bpf(BPF_PROG_LOAD, &mut attributes).map(own)
}

/// Has the kernel measure how long BPF programs run, while the descriptor lives.
pub(crate) fn measure_programs() -> io::Result<OwnedFd> {
    // BPF_STATS_RUN_TIME is 0.
    bpf(BPF_ENABLE_STATS, &mut 0_u32).map(own)
}

/// How long a program has run while that was measured, nanoseconds, and how often.
pub(crate) fn program_cost(program: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let mut info = [0_u64; INFO_WORDS];
    let mut attributes = InfoAttributes {
        fd: program.as_raw_fd().cast_unsigned(),
        info_bytes: u32::try_from(size_of_val(&info)).map_err(io::Error::other)?,
        // `info` outlives the call, which writes at most `info_bytes`.
        info: info.as_mut_ptr().expose_provenance() as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok((info[INFO_RUN_NANOS], info[INFO_RUN_COUNT]))
}
