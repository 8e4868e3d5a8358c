//! The ways to read. All but `pread` are driven alike, from one thread: a window of places, each
//! with its own memory.

mod aio;
mod diskmap_uring;
mod plain_uring;
pub(crate) mod pread;
mod slots;

use anyhow::Result;

use crate::plan::{BackendKind, Job};
use crate::target::Target;

/// Told of a finished read: its place and its bytes.
pub(crate) type Sink<'a> = dyn FnMut(u32, &[u8]) + 'a;

/// A way to have several reads in flight from one thread. Any error is final.
pub(crate) trait Backend {
    /// Prepares a read into a place that has none.
    fn enqueue(&mut self, place: u32, offset_bytes: u64) -> Result<()>;

    /// Hands all that is enqueued to the kernel.
    fn flush(&mut self) -> Result<()>;

    /// Waits until a read is done, and tells of all that are; refuses short and failed ones.
    fn reap(&mut self, sink: &mut Sink<'_>) -> Result<()>;

    /// Reads enqueued or with the kernel.
    fn in_flight(&self) -> u32;

    /// System calls so far.
    fn system_calls(&self) -> u64;

    /// Bytes of a read.
    fn read_bytes(&self) -> u32;
}

/// Opens the way of a job; `pread` has its own.
pub(crate) fn open(target: &Target, job: &Job) -> Result<Box<dyn Backend>> {
    Ok(match job.backend {
        BackendKind::Diskmap => Box::new(diskmap_uring::DiskmapUring::open(target, job)?),
        BackendKind::Uring => Box::new(plain_uring::PlainUring::open(target, job)?),
        BackendKind::Aio => Box::new(aio::Aio::open(target, job)?),
        BackendKind::Pread => unreachable!("pread has threads, and is driven by itself"),
    })
}

#[cfg(test)]
mod tests;
