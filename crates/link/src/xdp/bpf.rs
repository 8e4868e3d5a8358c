//! The few commands of `bpf(2)` that load the XDP program, give it its maps and attach it.
//!
//! Everything is held by descriptors: the attachment is a BPF link, which the kernel removes with its last
//! descriptor, also if the process is killed. It refuses to pin anything in a file system. Errors are
//! bare errnos. Bound: four descriptors; no memory of its own.
//!
//! Reading first: bpf(2); `union bpf_attr` in linux/bpf.h, whose members the structures here are.
#![allow(
    unsafe_code,
    reason = "UNSAFETY: bpf(2) takes pointers in structures of its own"
)]

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use super::address_table::AddressTable;
use super::assembler::Instruction;
use crate::sys;

const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
#[cfg(test)]
const PROG_TEST_RUN: i32 = 10;
const LINK_CREATE: i32 = 28;
const LINK_UPDATE: i32 = 29;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;
const MAP_TYPE_XSKMAP: u32 = 17;
const MAP_TYPE_RINGBUF: u32 = 27;
const PROG_TYPE_XDP: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS`: frames may be in several buffers, of which the program sees the first.
const PROG_HAS_FRAGS: u32 = 1 << 5;
/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_TYPE_XDP: u32 = 37;

/// Where in the kernel a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Place {
    /// `XDP_FLAGS_SKB_MODE`: behind the driver, on frames as the kernel's stack gets them.
    Generic = 1 << 1,
    /// `XDP_FLAGS_DRV_MODE`.
    Driver = 1 << 2,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    /// Of a map of maps: one like those that it is to have; otherwise 0.
    inner_map: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface_index: u32,
    expected_attach_type: u32,
}

const _: () = assert!(std::mem::offset_of!(ProgramLoad, expected_attach_type) == 68);

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface_index: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct LinkUpdate {
    link: u32,
    new_program: u32,
    flags: u32,
    old_program: u32,
}

/// Runs a command on its part of `union bpf_attr`; returns what the call returns.
///
/// # Safety
/// The command must be one that reads and writes no more than `A` and what the pointers in it are
/// good for.
unsafe fn bpf<A>(command: i32, attributes: &mut A) -> Result<i64, i32> {
    let (pointer, bytes) = (&raw mut *attributes, size_of::<A>());
    // SAFETY: `attributes` lives through the call; the rest is the caller's to know.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, bytes) };
    if result < 0 {
        Err(sys::last_errno())
    } else {
        Ok(result)
    }
}

/// The descriptor that a call has made.
fn owned(result: i64) -> OwnedFd {
    let fd = RawFd::try_from(result).expect("invariant: descriptors are small");
    // SAFETY: the kernel has just made this descriptor, which nothing else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// A pointer as the kernel takes it.
fn address<T>(pointer: *const T) -> u64 {
    pointer.addr() as u64
}

/// Makes a map of AF_XDP sockets by receive queue.
pub(super) fn create_socket_map(entries_max: u32) -> Result<OwnedFd, i32> {
    create_map(MAP_TYPE_XSKMAP, (4, 4), entries_max, None)
}

/// Makes a ring of so many bytes, whole pages, that programs put records into (Linux 5.8).
pub(super) fn create_ring(bytes: u32) -> Result<OwnedFd, i32> {
    create_map(MAP_TYPE_RINGBUF, (0, 0), bytes, None)
}

/// Makes a map of rings like `ring` by receive queue.
pub(super) fn create_ring_map(entries_max: u32, ring: &OwnedFd) -> Result<OwnedFd, i32> {
    create_map(MAP_TYPE_ARRAY_OF_MAPS, (4, 4), entries_max, Some(ring))
}

/// Makes a map that has one value: an [`AddressTable`], whose bytes are zeros.
pub(super) fn create_address_map() -> Result<OwnedFd, i32> {
    let value_bytes = u32::try_from(AddressTable::BYTES).map_err(|_| libc::E2BIG)?;
    create_map(MAP_TYPE_ARRAY, (4, value_bytes), 1, None)
}

fn create_map(
    kind: u32,
    (key_bytes, value_bytes): (u32, u32),
    entries_max: u32,
    inner_map: Option<&OwnedFd>,
) -> Result<OwnedFd, i32> {
    let mut attributes = MapCreate {
        kind,
        key_bytes,
        value_bytes,
        entries_max,
        flags: 0,
        inner_map: inner_map.map_or(0, number),
    };
    // SAFETY: this command reads six numbers.
    let map = unsafe { bpf(MAP_CREATE, &mut attributes) };
    map.map(owned)
}

/// Puts a socket into the map, for frames that arrive at this queue, or a ring into that of rings. The kernel removes a
/// socket when it is closed.
pub(super) fn set_queue(map: &OwnedFd, queue: u32, socket_or_ring: &OwnedFd) -> Result<(), i32> {
    let (key, value) = (queue, number(socket_or_ring));
    let mut attributes = MapUpdate {
        map: number(map),
        padding: 0,
        key: address(&raw const key),
        value: address(&raw const value),
        flags: 0,
    };
    // SAFETY: this command reads a key and a value of four bytes each, which is what they have.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Sets the addresses in their map. Since Linux 5.19 this needs no capability: who has the descriptor may.
pub(super) fn set_addresses(map: &OwnedFd, table: &AddressTable) -> Result<(), i32> {
    let (key, value) = (0_u32, table.bytes());
    let mut attributes = MapUpdate {
        map: number(map),
        padding: 0,
        key: address(&raw const key),
        value: address(value.as_ptr()),
        flags: 0,
    };
    // SAFETY: this command reads a key of four bytes and a value of `AddressTable::BYTES`, which is what they
    // have.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Loads an XDP program; one for frames of several buffers (Linux 5.18), if `has_frags`.
pub(super) fn load_program(program: &[Instruction], has_frags: bool) -> Result<OwnedFd, i32> {
    let license = c"Apache-2.0";
    let mut name = [0; 16];
    name[..5].copy_from_slice(b"atlas");
    let mut attributes = ProgramLoad {
        kind: PROG_TYPE_XDP,
        instruction_count: u32::try_from(program.len()).map_err(|_| libc::E2BIG)?,
        instructions: address(program.as_ptr()),
        license: address(license.as_ptr()),
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: if has_frags { PROG_HAS_FRAGS } else { 0 },
        name,
        interface_index: 0,
        expected_attach_type: ATTACH_TYPE_XDP,
    };
    // SAFETY: this command reads as many instructions as their count says and a text that ends in
    // NUL; both live through the call.
    let program = unsafe { bpf(PROG_LOAD, &mut attributes) };
    program.map(owned)
}

/// Attaches a program to an interface as long as the returned descriptor, and copies of it, are open.
pub(super) fn attach(
    program: &OwnedFd,
    interface_index: i32,
    place: Place,
) -> Result<OwnedFd, i32> {
    let mut attributes = LinkCreate {
        program: number(program),
        interface_index: interface_index.cast_unsigned(),
        attach_type: ATTACH_TYPE_XDP,
        flags: place as u32,
    };
    // SAFETY: this command reads four numbers.
    let link = unsafe { bpf(LINK_CREATE, &mut attributes) };
    link.map(owned)
}

/// Puts another program in place of the one that is attached: no frame passes without one. Since Linux 5.19 this needs no
/// capability: who has the descriptors may.
pub(super) fn replace_program(link: &OwnedFd, program: &OwnedFd) -> Result<(), i32> {
    let mut attributes = LinkUpdate {
        link: number(link),
        new_program: number(program),
        flags: 0,
        old_program: 0,
    };
    // SAFETY: this command reads four numbers.
    unsafe { bpf(LINK_UPDATE, &mut attributes) }.map(drop)
}

/// Runs a program once on a frame of at least an Ethernet header; its verdict.
#[cfg(test)]
pub(super) fn run_program(program: &OwnedFd, frame: &[u8]) -> Result<u32, i32> {
    #[repr(C)]
    struct TestRun {
        program: u32,
        result: u32,
        data_bytes: u32,
        output_bytes: u32,
        data: u64,
        output: u64,
        repeat: u32,
        duration_ns: u32,
    }
    let mut attributes = TestRun {
        program: number(program),
        result: 0,
        data_bytes: u32::try_from(frame.len()).map_err(|_| libc::E2BIG)?,
        output_bytes: 0,
        data: address(frame.as_ptr()),
        output: 0,
        repeat: 1,
        duration_ns: 0,
    };
    // SAFETY: this command reads the frame, writes no output without a pointer to it, and writes the
    // result into the structure.
    unsafe { bpf(PROG_TEST_RUN, &mut attributes) }?;
    Ok(attributes.result)
}
