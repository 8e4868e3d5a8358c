//! The system calls that neither `std` nor rustix offers, as safe functions: the TAP's ioctls,
//! `bpf(2)` for one program, its cost and one map, and that map's memory.
//!
//! Every function takes its memory by reference and is done with it on return. Errors are
//! `io::Error`s; the callers say what was tried. Nothing blocks. Nothing is shared with the kernel
//! beyond a call but [`SharedArray`], whose words are read and written as atomics only.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: ioctls of a TAP and bpf(2), which nothing safe wraps; a mapped BPF array"
)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use libc::{c_int, c_long, c_uint, c_ulong};

/// `_IOR('T', 225, int)`, linux/if_tun.h.
const TUNSETFILTEREBPF: c_ulong = 0x8004_54e1;
const TUNSETSTEERINGEBPF: c_ulong = 0x8004_54e0;

// linux/bpf.h: commands, and a type of program.
const BPF_MAP_CREATE: c_int = 0;
const BPF_PROG_LOAD: c_int = 5;
const BPF_OBJ_GET_INFO_BY_FD: c_int = 15;
const BPF_ENABLE_STATS: c_int = 32;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Room for what the verifier says about a program it refuses.
const LOG_BYTES: usize = 1 << 20;

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

/// The part that `BPF_MAP_CREATE` reads here.
#[repr(C)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
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

/// Makes a descriptor of `/dev/net/tun` the other end of the interface of this name; with a virtio-net
/// header before each frame if asked.
pub(crate) fn attach_tap(
    fd: BorrowedFd<'_>,
    name: &str,
    has_virtio_header: bool,
) -> io::Result<()> {
    let header = if has_virtio_header {
        libc::IFF_VNET_HDR
    } else {
        0
    };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | header;
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        flags: u16::try_from(flags).map_err(io::Error::other)?,
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
    set_program(tap, TUNSETFILTEREBPF, program)
}

/// Has a program choose the queue of each frame that is sent past the queueing discipline.
pub(crate) fn set_steering(tap: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    set_program(tap, TUNSETSTEERINGEBPF, program)
}

fn set_program(tap: BorrowedFd<'_>, request: c_ulong, program: BorrowedFd<'_>) -> io::Result<()> {
    let program: c_int = program.as_raw_fd();
    // SAFETY: both requests read one integer, which lives until after the call.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), request, &raw const program) };
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

/// Loads a socket filter. bpf(2) makes descriptors that are closed on exec. What the verifier does
/// not like about a program it refuses is in the error.
pub(crate) fn load_filter(program: &[u64]) -> io::Result<OwnedFd> {
    let error = match load_with_log(program, &mut []) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    let mut log = vec![0; LOG_BYTES];
    // It is refused again, this time with the reason.
    let _ = load_with_log(program, &mut log);
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let last: Vec<&str> = text.lines().rev().take(3).collect();
    if last.is_empty() {
        return Err(error);
    }
    Err(io::Error::new(
        error.kind(),
        format!("{error}: {}", last.join(" < ")),
    ))
}

fn load_with_log(program: &[u64], log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attributes = LoadAttributes {
        kind: BPF_PROG_TYPE_SOCKET_FILTER,
        instruction_count: u32::try_from(program.len()).map_err(io::Error::other)?,
        // These three outlive the call, which reads the first two and writes to the log.
        instructions: program.as_ptr().expose_provenance() as u64,
        license: c"Apache-2.0".as_ptr().expose_provenance() as u64,
        ..LoadAttributes::default()
    };
    if !log.is_empty() {
        attributes.log_level = 1;
        attributes.log_bytes = u32::try_from(log.len()).map_err(io::Error::other)?;
        attributes.log = log.as_mut_ptr().expose_provenance() as u64;
    }
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

/// An array of a BPF program's, in this process's memory too: `entries` values of `value_bytes`.
#[derive(Debug)]
pub(crate) struct SharedArray {
    map: OwnedFd,
    memory: NonNull<u8>,
    bytes: usize,
    value_bytes: usize,
}

impl SharedArray {
    /// An array of zeros. A value is whole words of eight bytes.
    pub(crate) fn new(entries: u32, value_bytes: usize) -> io::Result<Self> {
        assert!(
            value_bytes.is_multiple_of(8),
            "invariant: values are whole words"
        );
        let mut attributes = MapAttributes {
            kind: BPF_MAP_TYPE_ARRAY,
            key_bytes: 4,
            value_bytes: u32::try_from(value_bytes).map_err(io::Error::other)?,
            entries,
            flags: BPF_F_MMAPABLE,
        };
        let map = bpf(BPF_MAP_CREATE, &mut attributes).map(own)?;
        let bytes = value_bytes * usize::try_from(entries).map_err(io::Error::other)?;
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let memory = unsafe {
            libc::mmap(
                nowhere,
                bytes,
                protection,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            map,
            memory,
            bytes,
            value_bytes,
        })
    }

    /// The map's descriptor, as a program names it.
    pub(crate) fn descriptor(&self) -> c_int {
        self.map.as_raw_fd()
    }

    /// The address of an entry's bytes at an offset that is a multiple of their number.
    fn place(&self, entry: u32, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            offset.is_multiple_of(bytes) && offset + bytes <= self.value_bytes,
            "invariant: an aligned place in a value"
        );
        let at = entry as usize * self.value_bytes + offset;
        assert!(at + bytes <= self.bytes, "invariant: an entry there is");
        // SAFETY: it stays inside the mapping, which was just checked.
        unsafe { self.memory.add(at) }
    }

    fn word(&self, entry: u32, offset: usize) -> &AtomicU64 {
        let place = self.place(entry, offset, 8).cast();
        // SAFETY: eight mapped bytes, aligned, since mappings and values are; they live as long as
        // `self`, and the kernel too writes them as one word.
        unsafe { AtomicU64::from_ptr(place.as_ptr()) }
    }

    fn byte(&self, entry: u32, offset: usize) -> &AtomicU8 {
        let place = self.place(entry, offset, 1);
        // SAFETY: a mapped byte, which lives as long as `self`.
        unsafe { AtomicU8::from_ptr(place.as_ptr()) }
    }

    pub(crate) fn load_word(&self, entry: u32, offset: usize) -> u64 {
        self.word(entry, offset).load(Ordering::Acquire)
    }

    pub(crate) fn store_word(&self, entry: u32, offset: usize, value: u64) {
        self.word(entry, offset).store(value, Ordering::Release);
    }

    pub(crate) fn load_byte(&self, entry: u32, offset: usize) -> u8 {
        self.byte(entry, offset).load(Ordering::Acquire)
    }

    pub(crate) fn store_byte(&self, entry: u32, offset: usize, value: u8) {
        self.byte(entry, offset).store(value, Ordering::Release);
    }
}

impl Drop for SharedArray {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrowed from `self` is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
