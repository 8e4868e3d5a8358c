//! `io_uring` as most programs use it: no registered memory, no registered file, one
//! `io_uring_enter` that submits and waits.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: hands addresses of slots to the kernel"
)]

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use io_uring::{IoUring, opcode, types};

use super::slots::Slots;
use super::{Backend, Sink};
use crate::plan::Job;
use crate::target::{Target, open_direct};

pub(super) struct PlainUring {
    // Before the rest: what the kernel may still do ends with the ring.
    ring: IoUring,
    file: File,
    slots: Slots,
    system_calls: u64,
}

impl PlainUring {
    pub(super) fn open(target: &Target, job: &Job) -> Result<Self> {
        Ok(Self {
            ring: IoUring::new(job.window.next_power_of_two()).context("no io_uring")?,
            file: open_direct(&target.path)?,
            slots: Slots::new(job.window, job.read_bytes)?,
            system_calls: 0,
        })
    }
}

impl Backend for PlainUring {
    fn enqueue(&mut self, place: u32, offset_bytes: u64) -> Result<()> {
        let address = self.slots.start(place)?;
        let descriptor = types::Fd(self.file.as_raw_fd());
        let entry = opcode::Read::new(descriptor, address, self.slots.read_bytes())
            .offset(offset_bytes)
            .build()
            .user_data(place.into());
        // SAFETY: the address is that of a slot of `read_bytes` bytes, which stays a reading one
        // until the completion, and mapped for good if there is none. The file is as old as the
        // ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.context("invariant: the ring has a place for every read of the window")
    }

    fn flush(&mut self) -> Result<()> {
        // `reap` submits and waits by one call.
        Ok(())
    }

    fn reap(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        loop {
            self.system_calls += 1;
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("io_uring_enter"),
            }
            let mut reaped = 0;
            for entry in self.ring.completion() {
                self.slots
                    .finish(entry.user_data(), entry.result().into(), sink)?;
                reaped += 1;
            }
            if reaped > 0 {
                return Ok(());
            }
        }
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
