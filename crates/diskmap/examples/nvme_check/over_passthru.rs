//! The kernel's driver through `io_uring` passthrough: several workers, and a second process beside them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant as WallClock;

use clock::Instant;
use diskmap::nvme::{Flush, NamespaceRange};
use diskmap::passthru::{NamespaceDevice, Passthru, PassthruConfig};
use diskmap::{Disk as _, FileSource};

use crate::promises::{self, Subject};
use crate::worker::{Checked, DEPTH, Work, Worker, arena, pieces, subject_on, work_together};
use crate::{Outcome, content};

/// Workers.
const WORKERS: usize = 2;

/// What the second process says when it has begun.
const BEGUN: &str = "check: beside it";

impl Checked for Passthru {
    fn enqueue_flush(&mut self, flush: Flush) -> Result<(), Flush> {
        self.flush(flush)
    }

    fn finish(&mut self, _now: Instant) -> Outcome {
        if let Some(reason) = self.fallback_reason() {
            return Err(reason.into());
        }
        let counters = self.counters();
        let commands = counters.disk_read_commands + counters.disk_write_commands;
        // Who polls enters the kernel to look.
        if counters.disk_enter_calls >= commands && self.poll_fd().is_some() {
            return Err(format!("a call for each command: {counters:?}").into());
        }
        Ok(())
    }
}

fn worker(
    device: &Arc<NamespaceDevice>,
    (fixed_buffers, polled): (bool, bool),
    since: WallClock,
) -> Outcome<Worker<Passthru>> {
    let arena = arena()?;
    let config = PassthruConfig {
        queue_depth: DEPTH,
        files_max: 2,
        fixed_buffers,
        polled,
    };
    let disk = Passthru::new(vec![Arc::clone(device)], config, &arena)?;
    let source = FileSource::Namespace(NamespaceRange {
        controller: 0,
        namespace_id: device.namespace_id(),
        start_bytes: 0,
        length_bytes: device.format().size_bytes(),
    });
    Worker::new(arena, disk, source, since)
}

/// See the program.
pub(crate) fn check(file: &str, seeds: (u64, u64)) -> Outcome {
    let since = WallClock::now();
    let device = Arc::new(NamespaceDevice::open_for_writing(Path::new(file))?);
    let format = device.format();
    println!(
        "check: {file} has {} bytes in blocks of {}",
        format.size_bytes(),
        format.block_bytes()
    );
    let mut beside = Command::new(std::env::current_exe()?)
        .args(["beside", file, &seeds.0.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = beside.stdout.take().ok_or("stdout is piped")?;
    let mut lines = BufReader::new(stdout).lines();
    let begun = lines.next().ok_or("the second process says nothing")??;
    if begun != BEGUN {
        return Err(begun.into());
    }
    let compared_bytes = work_together(WORKERS, seeds, &|index| {
        // One with registered slots, one without, which polls.
        let polled = index > 0 && device.has_poll_queues();
        worker(&device, (index == 0, polled), since)
    })?;
    println!("check: {compared_bytes} bytes read by passthrough are right");
    if device.has_poll_queues() {
        println!("check: half of them without interrupts");
    }
    // It ends when its input does.
    drop(beside.stdin.take());
    for line in lines {
        println!("{}", line?);
    }
    if !beside.wait()?.success() {
        return Err("the second process failed".into());
    }
    Ok(())
}

/// The second process: reads the lower half again and again until its input ends.
pub(crate) fn beside(file: &str, low: u64) -> Outcome {
    let device = Arc::new(NamespaceDevice::open(Path::new(file))?);
    let mut worker = worker(&device, (true, false), WallClock::now())?;
    let is_over = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&is_over);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ending.store(true, Ordering::Relaxed);
    });
    let size_bytes = worker.limits.size_bytes;
    let lower = pieces(worker.limits, (0, size_bytes / 2), (0, 1));
    println!("{BEGUN}");
    loop {
        let is_last = is_over.load(Ordering::Relaxed);
        worker.run_well(Work::Compare(content((low, low), size_bytes)), &lower)?;
        if is_last {
            break;
        }
    }
    println!(
        "check: {} bytes read beside it are right",
        worker.compared_bytes
    );
    Ok(())
}

/// For the promises: a ring with the file's bytes.
pub(crate) fn subject(file: &str, polled: bool) -> Outcome<Subject> {
    let device = Arc::new(NamespaceDevice::open_for_writing(Path::new(file))?);
    if polled && !device.has_poll_queues() {
        return Err("the controller has no poll queues (nvme.poll_queues)".into());
    }
    let arena = promises::arena();
    let config = PassthruConfig {
        queue_depth: promises::DEPTH,
        files_max: 2,
        polled,
        ..PassthruConfig::default()
    };
    let id = device.namespace_id();
    let disk = Passthru::new(vec![device], config, &arena)?;
    let name = if polled {
        "passthru, polled"
    } else {
        "passthru"
    };
    subject_on(name, arena, Box::new(disk), id, WallClock::now())
}
