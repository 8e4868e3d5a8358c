//! The wire without its clients: a TAP that shortens a sender's frames to their headers, as for clients of plain HTTP
//! amid a reply, and a thread that takes what is left of them. Whoever measures sending alone has the same device as a
//! server.
//!
//! It refuses nothing. Bounds: [`tap::QUEUE_FRAMES`](crate::tap::QUEUE_FRAMES) frames wait; what comes beyond is
//! lost and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::filter;
use crate::tap::{FRAME_BYTES_MAX, Tap, dropped_frames};
use crate::watches::Watches;

/// How long the thread sleeps when no frame waits: the least time between two interrupts of a NIC. Nothing
/// wakes it, so that the sender does not pay for that.
const SLEEP: Duration = Duration::from_micros(50);

/// The TAP and its thread.
#[derive(Debug)]
pub struct Sink {
    interface: String,
    dropped_before: u64,
    is_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Sink {
    /// Makes the interface, or takes a TAP of that name, in the network namespace of this thread; frames are
    /// taken on this core.
    ///
    /// # Errors
    /// No permission (`CAP_NET_ADMIN`), an interface that is no TAP, no such core.
    pub fn open(interface: &str, core: usize) -> Result<Self> {
        let mut cores = CpuSet::new();
        ensure!(core < CpuSet::MAX_CPU, "no core {core}");
        cores.set(core);
        // No frame is to a connection that is watched.
        let watches = Watches::new(0, 0).context("making BPF arrays and mapping them")?;
        let program = filter::plain::program(&watches.watching(0), filter::WholeShare::ALL);
        let mut tap = Tap::open(interface, &[], &program)?;
        tap.end_measuring();
        let dropped_before = tap.dropped_frames()?;
        let is_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_ended);
        let thread = std::thread::spawn(move || {
            sched_setaffinity(None, &cores).with_context(|| format!("moving to core {core}"))?;
            let mut frame = vec![0; FRAME_BYTES_MAX];
            while !ended.load(Ordering::Relaxed) {
                while tap.receive(&mut frame)?.is_some() {}
                std::thread::sleep(SLEEP);
            }
            Ok(())
        });
        Ok(Self {
            interface: interface.to_owned(),
            dropped_before,
            is_ended,
            thread: Some(thread),
        })
    }

    /// Frames that found no room before the thread.
    ///
    /// # Errors
    /// The interface is gone, or the thread has ended: why.
    pub fn lost_frames(&mut self) -> Result<u64> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.end()?;
        }
        Ok(dropped_frames(&self.interface)? - self.dropped_before)
    }

    fn end(&mut self) -> Result<()> {
        self.is_ended.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(anyhow!("the thread that takes frames panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // Whoever wants to know asked for the lost frames.
        let _ = self.end();
    }
}
