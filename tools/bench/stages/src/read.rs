//! Reading alone: `diskmap` over `io_uring`, a window of direct reads into registered slots.
//!
//! Each place of the window reads one file, or range of a device, after another from its start to its end, as
//! a connection has its objects read: a turn of adjacent reads, and the next when all of them have completed.
//! Included: submitting and reaping, the kernel's file system and block layer, the check for changed files, a sleep where nothing has completed; and whatever the
//! device costs, on whichever core. Left out: looking files up; they are open before. It refuses a
//! directory without files, and a device smaller than a range.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use clock::Instant;
use diskmap::uring::{Uring, UringConfig};
use diskmap::{DeviceRange, Disk as _, FileIndex, FileSource, Read};
use memory::{Arena, ArenaConfig};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::args::ReadArgs;
use crate::timing::Step;

/// Where ranges begin: at multiples of this, bytes, as the objects of a raw store.
const RANGE_ALIGNMENT_BYTES: u64 = 4096;

pub(crate) struct Reader {
    disk: Uring,
    arena: Arena,
    files: Files,
    places: Vec<Place>,
    /// The place of each read that has completed.
    done: Vec<u64>,
    read_bytes: u32,
    reads_per_turn: u32,
}

/// A reader of one file after another.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The reads of its file that are still to come.
    rest: Rest,
    /// Reads of its turn under way.
    reading: u32,
}

/// The files, handed to places in turn.
#[derive(Debug)]
struct Files {
    files: Vec<Rest>,
    next: usize,
}

impl Files {
    fn take(&mut self) -> Rest {
        let rest = self.files[self.next];
        self.next = (self.next + 1) % self.files.len();
        rest
    }
}

/// What is left of a file to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rest {
    file: FileIndex,
    offset_bytes: u64,
    size_bytes: u64,
    block_bytes: u32,
}

impl Rest {
    const fn is_ended(&self) -> bool {
        self.offset_bytes >= self.size_bytes
    }

    /// The next read, whole blocks: offset and length; `None` at the end.
    fn take(&mut self, read_bytes: u32) -> Option<(u64, u32)> {
        let left_bytes = self.size_bytes.saturating_sub(self.offset_bytes);
        let whole_bytes = left_bytes.next_multiple_of(self.block_bytes.into());
        let length_bytes = u32::try_from(whole_bytes).map_or(read_bytes, |it| it.min(read_bytes));
        let offset_bytes = self.offset_bytes;
        self.offset_bytes += u64::from(length_bytes);
        (length_bytes > 0).then_some((offset_bytes, length_bytes))
    }
}

impl Reader {
    pub(crate) fn new(args: &ReadArgs) -> Result<Self> {
        let config = ArenaConfig {
            slot_bytes: args
                .read_bytes
                .next_multiple_of(memory::SLOT_ALIGNMENT_BYTES),
            ..ArenaConfig::new(args.window)
        };
        let arena = Arena::new(config)?;
        let config = UringConfig {
            queue_depth: args.window,
            files_max: args.files,
            ..UringConfig::default()
        };
        let mut disk = Uring::new(config, &arena)?;
        let sources = if args.source.is_dir() {
            files(args)?
        } else {
            ranges(args)?
        };
        let files = sources
            .into_iter()
            .map(|source| {
                let (file, limits) = disk
                    .open(source)
                    .with_context(|| format!("asking about {}", args.source.display()))?;
                ensure!(
                    args.read_bytes.is_multiple_of(limits.block_bytes),
                    "--read-bytes {}: choose a multiple of the block, {} bytes",
                    args.read_bytes,
                    limits.block_bytes
                );
                Ok(Rest {
                    file,
                    offset_bytes: 0,
                    size_bytes: limits.size_bytes,
                    block_bytes: limits.block_bytes,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let Some(&first) = files.first() else {
            bail!("{}: no files to read", args.source.display());
        };
        let ended = Rest {
            size_bytes: 0,
            ..first
        };
        let place = Place {
            rest: ended,
            reading: 0,
        };
        let mut reader = Self {
            disk,
            arena,
            files: Files { files, next: 0 },
            places: vec![place; (args.window / args.reads_per_turn).max(1) as usize],
            done: Vec::with_capacity(args.window as usize),
            read_bytes: args.read_bytes,
            reads_per_turn: args.reads_per_turn.min(args.window),
        };
        for place in 0..reader.places.len() {
            reader.enqueue_turn(place as u64)?;
        }
        Ok(reader)
    }

    /// Enqueues the next reads of the place: a turn of them, or what its file has left.
    fn enqueue_turn(&mut self, token: u64) -> Result<()> {
        let place = &mut self.places[usize::try_from(token)?];
        if place.rest.is_ended() {
            place.rest = self.files.take();
        }
        for _ in 0..self.reads_per_turn {
            let Some((offset_bytes, length_bytes)) = place.rest.take(self.read_bytes) else {
                break;
            };
            let slot = self.arena.reserve();
            let read = Read {
                file: place.rest.file,
                offset_bytes,
                length_bytes,
                slot: slot.context("invariant: a slot for each read of the window")?,
                token,
            };
            if let Err(read) = self.disk.read(&mut self.arena, read) {
                self.arena.release(read.slot);
                bail!("invariant: the queue is as deep as the window");
            }
            place.reading += 1;
        }
        Ok(())
    }

    /// A read of the place has completed; the last of its turn begins the next.
    fn end(&mut self, token: u64) -> Result<()> {
        let place = &mut self.places[usize::try_from(token)?];
        place.reading -= 1;
        if place.reading == 0 {
            self.enqueue_turn(token)?;
        }
        Ok(())
    }

    /// Takes what has completed: the bytes; the places are in `done`.
    fn consume(&mut self) -> Result<u64> {
        let (mut bytes, mut failure) = (0, None);
        let Self {
            disk, arena, done, ..
        } = self;
        done.clear();
        disk.consume_completions(
            Instant::ZERO,
            arena,
            done.capacity(),
            &mut |arena, completion| {
                done.push(completion.token);
                match completion.result {
                    Ok(slot) => {
                        bytes += u64::from(slot.filled_bytes());
                        arena.release(slot.into_free());
                    }
                    Err((slot, error)) => {
                        failure = Some(error);
                        arena.release(slot);
                    }
                }
            },
        );
        match failure {
            Some(error) => Err(error).context("reading"),
            None => Ok(bytes),
        }
    }
}

/// The files of a directory that have something in them, opened.
fn files(args: &ReadArgs) -> Result<Vec<FileSource>> {
    let mut files = Vec::new();
    let mut folders = vec![args.source.clone()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("reading {}", folder.display()))? {
            let (path, kind) = entry.and_then(|it| Ok((it.path(), it.file_type()?)))?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && files.len() < args.files as usize {
                let file = open_direct(&path)?;
                if file.metadata()?.len() > 0 {
                    files.push(FileSource::Descriptor(file.into()));
                }
            }
        }
    }
    Ok(files)
}

/// Ranges of a device or image, side by side; each begins at a block's start.
fn ranges(args: &ReadArgs) -> Result<Vec<FileSource>> {
    let shown = args.source.display();
    let mut opened = open_direct(&args.source)?;
    // A block device has no size but its end.
    let end = opened.seek(SeekFrom::End(0));
    let size_bytes = end.with_context(|| format!("asking {shown} for its size"))?;
    let distance_bytes = args.range_bytes.next_multiple_of(RANGE_ALIGNMENT_BYTES);
    let count = (size_bytes / distance_bytes).min(args.files.into());
    ensure!(
        count > 0,
        "{shown} has {size_bytes} bytes: choose a smaller --range-bytes"
    );
    let device = Arc::new(OwnedFd::from(opened));
    let range = |number| {
        FileSource::Range(DeviceRange {
            device: Arc::clone(&device),
            start_bytes: number * distance_bytes,
            length_bytes: args.range_bytes,
        })
    };
    Ok((0..count).map(range).collect())
}

fn open_direct(path: &Path) -> Result<File> {
    let direct = i32::try_from(OFlags::DIRECT.bits())?;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(path);
    opened.with_context(|| {
        format!(
            "opening {} past the page cache: it must be on a disk, and `ulimit -n` above --files",
            path.display()
        )
    })
}

impl Step for Reader {
    fn step(&mut self) -> Result<u64> {
        self.disk.sqsync(Instant::ZERO)?;
        loop {
            let bytes = self.consume()?;
            if !self.done.is_empty() {
                for index in 0..self.done.len() {
                    self.end(self.done[index])?;
                }
                return Ok(bytes);
            }
            let descriptor = self.disk.poll_fd();
            let descriptor = descriptor.context("a real disk has a descriptor")?;
            match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => self.disk.clear_wake(),
                Err(error) => return Err(error).context("waiting for a read"),
            }
        }
    }

    fn note(&self) -> Option<String> {
        self.disk.fallback_reason().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_from_start_to_end_in_whole_blocks() {
        let mut rest = Rest {
            file: FileIndex(0),
            offset_bytes: 0,
            size_bytes: 10_000,
            block_bytes: 4096,
        };
        assert_eq!(rest.take(8192), Some((0, 8192)));
        assert_eq!(rest.take(8192), Some((8192, 4096)));
        assert_eq!(rest.take(8192), None);
        let mut exact = Rest {
            size_bytes: 8192,
            offset_bytes: 0,
            ..rest
        };
        assert_eq!(exact.take(8192), Some((0, 8192)));
        assert_eq!(exact.take(8192), None);
    }

    #[test]
    fn all_files_are_read_again_and_again() {
        // Beside this program, since `/tmp` may be memory.
        let program = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        for name in ["a", "b", "c"] {
            let path = directory.path().join(name);
            std::fs::write(&path, [7; 10_000]).unwrap();
            if let Err(error) = open_direct(&path) {
                eprintln!("SKIPPED: {error:#}");
                return;
            }
        }
        let args = ReadArgs {
            source: directory.path().to_owned(),
            window: 4,
            reads_per_turn: 2,
            read_bytes: 8192,
            files: 9,
            range_bytes: 1,
        };
        let mut reader = Reader::new(&args).unwrap();
        let mut bytes = 0;
        while bytes < 100_000 {
            bytes += reader.step().unwrap();
        }
        // In flight still: every place has reads of its turn.
        let reading = reader.places.iter().map(|place| place.reading);
        assert!(reading.clone().all(|reads| (1..=2).contains(&reads)));
        assert_eq!(
            reading.map(|reads| reads as usize).sum::<usize>(),
            reader.disk.in_flight()
        );
    }

    #[test]
    fn a_directory_without_files_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let args = ReadArgs {
            source: directory.path().to_owned(),
            window: 1,
            reads_per_turn: 8,
            read_bytes: 4096,
            files: 1,
            range_bytes: 1,
        };
        let refusal = Reader::new(&args).err().map(|error| error.to_string());
        assert!(refusal.is_some_and(|it| it.contains("no files")));
    }

    #[test]
    fn a_device_is_read_in_ranges_that_fit() {
        let program = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let source = directory.path().join("image");
        std::fs::write(&source, vec![7; 6 * 8192]).unwrap();
        if let Err(error) = open_direct(&source) {
            eprintln!("SKIPPED: {error:#}");
            return;
        }
        let args = |range_bytes, files| ReadArgs {
            source: source.clone(),
            window: 1,
            reads_per_turn: 8,
            read_bytes: 4096,
            files,
            range_bytes,
        };
        let starts = |range_bytes, files| {
            let found = ranges(&args(range_bytes, files)).unwrap();
            let start = |source: &FileSource| match source {
                FileSource::Range(range) => (range.start_bytes, range.length_bytes),
                _ => panic!("{source:?}"),
            };
            found.iter().map(start).collect::<Vec<_>>()
        };
        let three = [(0, 12_289), (16_384, 12_289), (32_768, 12_289)];
        assert_eq!(starts(12_289, 9), three);
        assert_eq!(starts(12_289, 2), three[..2]);
        assert_eq!(starts(6 * 8192, 9), [(0, 6 * 8192)]);
        assert!(ranges(&args(6 * 8192 + 1, 9)).is_err());
        let mut reader = Reader::new(&args(12_289, 9)).unwrap();
        let bytes: u64 = (0..12).map(|_| reader.step().unwrap()).sum();
        assert_eq!(bytes, 3 * 12_289);
    }
}
