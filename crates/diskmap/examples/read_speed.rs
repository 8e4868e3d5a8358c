//! How fast a file or block device is read, by read size and queue depth, and what a read costs.
//!
//! `cargo run --release -p atlas-diskmap --example read_speed -- FILE [--check DIRECTORY]`
//!
//! Reads in no order, `O_DIRECT`, half a second each, and prints reads and bytes a second, CPU
//! time of this thread a read (its system calls included) and reads a system call.
//! `--check` measures the check for changes instead: what it costs, and whether a file written
//! the moment after it was opened shows it. It makes and removes a small file in the directory.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant as WallClock};

use clock::Instant;
use diskmap::uring::{Uring, UringConfig};
use diskmap::{Completion, Disk, FileSource, Read};
use memory::{Arena, ArenaConfig};

const SIZES_BYTES: [u32; 4] = [4096, 16_384, 32_768, 65_536];
const DEPTHS: [u32; 5] = [1, 4, 16, 64, 256];
const TIME: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [flag, directory] if flag == "--check" => measure_check(Path::new(directory)),
        [path] => measure_reads(Path::new(path)),
        _ => Err("usage: read_speed FILE | read_speed --check DIRECTORY".into()),
    }
}

#[expect(clippy::print_stdout, reason = "the result of the example")]
fn measure_reads(path: &Path) -> Result<(), Box<dyn Error>> {
    println!("  bytes  depth   reads/s    GB/s  CPU ns/read  reads/call");
    for length_bytes in SIZES_BYTES {
        for depth in DEPTHS {
            let mut arena = Arena::new(ArenaConfig::new(depth))?;
            let config = UringConfig {
                queue_depth: depth,
                ..UringConfig::default()
            };
            let mut disk = Uring::new(config, &arena)?;
            if let Some(reason) = disk.fallback_reason() {
                println!("{reason}");
            }
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_DIRECT)
                .open(path)?;
            let (wall, cpu) = run(&mut disk, &mut arena, file, length_bytes)?;
            let counters = disk.counters();
            println!(
                "{length_bytes:7} {depth:6} {:9.0} {:7.2} {:12.0} {:11.1}",
                counters.disk_read_commands as f64 / wall.as_secs_f64(),
                counters.disk_read_bytes as f64 / wall.as_secs_f64() / 1e9,
                cpu.as_nanos() as f64 / counters.disk_read_commands as f64,
                counters.disk_read_commands as f64
                    / (counters.disk_enter_calls + counters.disk_check_calls) as f64,
            );
        }
    }
    Ok(())
}

/// Keeps the queue full for a while; returns the time and the CPU time it took.
fn run(
    disk: &mut Uring,
    arena: &mut Arena,
    file: File,
    length_bytes: u32,
) -> Result<(Duration, Duration), Box<dyn Error>> {
    let (file, limits) = disk.open(FileSource::Descriptor(file.into()))?;
    let count = limits.size_bytes / u64::from(length_bytes);
    if count == 0 {
        return Err("the file is smaller than a read".into());
    }
    let (start, start_cpu) = (WallClock::now(), cpu_time()?);
    let mut place = 0u64;
    let mut errors = 0;
    while start.elapsed() < TIME || disk.in_flight() > 0 {
        while start.elapsed() < TIME
            && let Some(slot) = arena.reserve()
        {
            // A stride of the golden ratio visits everything, neighbours late.
            place = place.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let index = (u128::from(place) * u128::from(count)) >> 64;
            let offset_bytes = u64::try_from(index)? * u64::from(length_bytes);
            let read = Read {
                file,
                offset_bytes,
                length_bytes,
                slot,
                token: 0,
            };
            if let Err(read) = disk.read(arena, read) {
                arena.release(read.slot);
                break;
            }
        }
        disk.sqsync(Instant::ZERO)?;
        wait(disk)?;
        disk.clear_wake();
        disk.consume_completions(Instant::ZERO, arena, 64, &mut |arena, completion| {
            arena.release(release(completion, &mut errors));
        });
    }
    if errors > 0 {
        return Err(format!("{errors} reads failed").into());
    }
    Ok((start.elapsed(), cpu_time()?.saturating_sub(start_cpu)))
}

fn release(completion: Completion, errors: &mut u32) -> memory::FreeSlot {
    match completion.result {
        Ok(slot) => slot.into_free(),
        Err((slot, _)) => {
            *errors += 1;
            slot
        }
    }
}

/// Sleeps until something has completed, as an idle worker does.
fn wait(disk: &Uring) -> Result<(), Box<dyn Error>> {
    use std::os::fd::AsRawFd;
    let fd = disk
        .poll_fd()
        .ok_or("a real disk has a descriptor")?
        .as_raw_fd();
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    #[expect(unsafe_code, reason = "poll(2) has no safe wrapper in std")]
    // SAFETY: one pollfd.
    let count = unsafe { libc::poll(&raw mut poll, 1, 10_000) };
    if count == 1 {
        Ok(())
    } else {
        Err("nothing completed in 10 s".into())
    }
}

fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    #[expect(unsafe_code, reason = "std does not read this clock")]
    // SAFETY: one timespec is written.
    let outcome = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    if outcome != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(Duration::new(
        u64::try_from(time.tv_sec)?,
        u32::try_from(time.tv_nsec)?,
    ))
}

/// The call the disk makes; `File::metadata` makes a dearer one.
fn ask_status(file: &File) -> Result<(), Box<dyn Error>> {
    use std::os::fd::AsRawFd;
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    #[expect(unsafe_code, reason = "std calls statx")]
    // SAFETY: one stat is written.
    let outcome = unsafe { libc::fstat(file.as_raw_fd(), status.as_mut_ptr()) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().into())
    }
}

#[expect(clippy::print_stdout, reason = "the result of the example")]
fn measure_check(directory: &Path) -> Result<(), Box<dyn Error>> {
    const CALLS: u32 = 200_000;
    const ROUNDS: u32 = 1000;
    let path = directory.join(format!("read_speed.{}", std::process::id()));
    fs::write(&path, b"a")?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let start = cpu_time()?;
    for _ in 0..CALLS {
        ask_status(&file)?;
    }
    let spent = cpu_time()?.saturating_sub(start);
    println!(
        "{:.0} ns of CPU time a check",
        spent.as_nanos() as f64 / f64::from(CALLS)
    );
    let mut seen = 0;
    for _ in 0..ROUNDS {
        // Written, opened (asked for its status) and written again, as fast as it goes.
        file.write_all_at(b"b", 0)?;
        let before = file.metadata()?;
        file.write_all_at(b"c", 0)?;
        let after = file.metadata()?;
        let time = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec());
        seen += u32::from(time(&before) != time(&after));
    }
    println!("{seen} of {ROUNDS} immediate overwrites changed the modification time");
    fs::remove_file(&path)?;
    Ok(())
}
