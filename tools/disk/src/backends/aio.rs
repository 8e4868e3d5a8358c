//! Linux native AIO, what libaio wraps: `io_submit` for what is enqueued, `io_getevents` for at
//! least one. POSIX AIO is not here: glibc's is `pread` in threads, one after another for each
//! descriptor.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: system calls that take addresses of slots"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};

use super::slots::Slots;
use super::{Backend, Sink};
use crate::plan::Job;
use crate::target::{Target, open_direct};

/// `IOCB_CMD_PREAD`.
const COMMAND_PREAD: u16 = 0;

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ControlBlock {
    data: u64,
    // The order of these two is that of a little-endian machine.
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    address: u64,
    length_bytes: u64,
    offset_bytes: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// An AIO context of the kernel; destroyed with its reads waited for.
#[derive(Debug)]
struct Context(libc::c_ulong);

impl Context {
    fn new(window: u32) -> Result<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: one word is written.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_io_setup,
                libc::c_long::from(window),
                &raw mut context,
            )
        };
        check(outcome).context("io_setup: raise fs.aio-max-nr, or leave out --backends aio")?;
        Ok(Self(context))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: a context of ours, not used again. The call waits for its reads.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

#[derive(Debug)]
pub(super) struct Aio {
    // Before the rest: what the kernel may still do ends with the context.
    context: Context,
    file: File,
    slots: Slots,
    /// Not handed over yet. The kernel copies a block when it takes it.
    enqueued: Vec<ControlBlock>,
    /// Kept for its memory only.
    pointers: Vec<*const ControlBlock>,
    events: Vec<Event>,
    system_calls: u64,
}

impl Aio {
    pub(super) fn open(target: &Target, job: &Job) -> Result<Self> {
        Ok(Self {
            context: Context::new(job.window)?,
            file: open_direct(&target.path)?,
            slots: Slots::new(job.window, job.read_bytes)?,
            enqueued: Vec::with_capacity(job.window as usize),
            pointers: Vec::with_capacity(job.window as usize),
            events: vec![Event::default(); job.window as usize],
            system_calls: 0,
        })
    }

    /// Hands over as many as the kernel takes, at least one.
    fn submit(&mut self) -> Result<usize> {
        self.pointers.clear();
        self.pointers
            .extend(self.enqueued.iter().map(std::ptr::from_ref));
        self.system_calls += 1;
        // SAFETY: the pointers are those of as many blocks, which live until the call is over;
        // each names a slot that stays a reading one until its event (see `Slots`).
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.context.0,
                libc::c_long::try_from(self.pointers.len())?,
                self.pointers.as_ptr(),
            )
        };
        check(outcome).context("io_submit")
    }
}

impl Backend for Aio {
    fn enqueue(&mut self, place: u32, offset_bytes: u64) -> Result<()> {
        let address = self.slots.start(place)?;
        self.enqueued.push(ControlBlock {
            data: place.into(),
            key: 0,
            rw_flags: 0,
            opcode: COMMAND_PREAD,
            priority: 0,
            descriptor: u32::try_from(self.file.as_raw_fd())?,
            address: address.expose_provenance() as u64,
            length_bytes: self.slots.read_bytes().into(),
            offset_bytes: i64::try_from(offset_bytes)?,
            reserved: 0,
            flags: 0,
            event_descriptor: 0,
        });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        while !self.enqueued.is_empty() {
            let taken = self.submit()?;
            self.enqueued.drain(..taken);
        }
        Ok(())
    }

    fn reap(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let reaped = loop {
            self.system_calls += 1;
            // SAFETY: as many events are written as the vector has; no timeout.
            let outcome = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.context.0,
                    1 as libc::c_long,
                    libc::c_long::try_from(self.events.len())?,
                    self.events.as_mut_ptr(),
                    std::ptr::null_mut::<libc::timespec>(),
                )
            };
            match check(outcome) {
                Ok(reaped) => break reaped,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("io_getevents"),
            }
        };
        for event in self.events.iter().take(reaped) {
            self.slots.finish(event.data, event.result, sink)?;
        }
        Ok(())
    }

    fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }

    fn read_bytes(&self) -> u32 {
        self.slots.read_bytes()
    }
}

/// What a system call said.
fn check(outcome: libc::c_long) -> io::Result<usize> {
    usize::try_from(outcome).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn structs_are_the_kernels() {
        assert_eq!(size_of::<ControlBlock>(), 64);
        assert_eq!(offset_of!(ControlBlock, opcode), 16);
        assert_eq!(offset_of!(ControlBlock, descriptor), 20);
        assert_eq!(offset_of!(ControlBlock, address), 24);
        assert_eq!(offset_of!(ControlBlock, offset_bytes), 40);
        assert_eq!(size_of::<Event>(), 32);
    }
}
