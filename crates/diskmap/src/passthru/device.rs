//! The generic character device of a namespace (`/dev/ng0n1`): what it is, asked of the device itself and of
//! `/sys`.
//!
//! It refuses namespaces that [`NamespaceFormat`] refuses. Bounded by: one Identify command, some small
//! files.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: ioctls of a namespace's generic device"
)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::PassthruError;
use super::entry::{COMMAND_BYTES, command_bytes};
use crate::last_errno;
use crate::nvme::command::{CNS_NAMESPACE, admin};
use crate::nvme::{Namespace, NamespaceError, NamespaceFormat, Status};

/// `NVME_IOCTL_ID`, `_IO('N', 0x40)`: the namespace's identifier.
const NAMESPACE_ID: libc::Ioctl = 0x4e40;
/// `NVME_IOCTL_ADMIN_CMD`, `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const ADMIN_COMMAND: libc::Ioctl = 0xc048_4e41;
/// Size of a page, which each segment of a command has at least.
const PAGE_BYTES: u32 = 4096;
/// Data of an Identify command, bytes.
const IDENTIFY_BYTES: u32 = 4096;

/// An open namespace of the kernel's driver; workers share it.
#[derive(Debug)]
pub struct NamespaceDevice {
    pub(super) file: File,
    pub(super) namespace: Namespace,
    pub(super) command_bytes_max: u32,
    pub(super) has_poll_queues: bool,
}

impl NamespaceDevice {
    /// Opens a generic device such as `/dev/ng0n1` for reading: through this descriptor the kernel refuses to
    /// write, and to erase, to who has no `CAP_SYS_ADMIN`. Without that it needs Linux 6.2 or newer.
    ///
    /// # Errors
    /// It is none, or the kernel refuses Identify, or the namespace's format cannot be used.
    pub fn open(path: &Path) -> Result<Self, PassthruError> {
        Self::open_for(path, false)
    }

    /// The same for reading and writing.
    ///
    /// # Errors
    /// Those of [`NamespaceDevice::open`].
    pub fn open_for_writing(path: &Path) -> Result<Self, PassthruError> {
        Self::open_for(path, true)
    }

    fn open_for(path: &Path, writes: bool) -> Result<Self, PassthruError> {
        let refused = |what, errno| PassthruError::Device {
            path: path.to_owned(),
            what,
            errno,
        };
        let errno = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let file = OpenOptions::new().read(true).write(writes).open(path);
        let file = file.map_err(|error| refused("opening it", errno(&error)))?;
        let id = namespace_id(&file).map_err(|errno| refused("asking for its number", errno))?;
        let data = identify(&file, id).map_err(|errno| refused("Identify", errno))?;
        let format = match data {
            Ok(data) => NamespaceFormat::parse(&data).map_err(NamespaceError::Format),
            Err(status) => Err(NamespaceError::Status(status)),
        };
        let format = format.map_err(|error| PassthruError::Namespace {
            path: path.to_owned(),
            error,
        })?;
        let number = file.metadata().map(|status| status.rdev());
        let number = number.map_err(|error| refused("asking for its status", errno(&error)))?;
        let queue = queue_directory(Path::new("/sys"), number)
            .map_err(|error| refused("looking for its queue in /sys", errno(&error)))?;
        let command_bytes_max = command_bytes_max(&queue, format.block_bytes())
            .ok_or_else(|| refused("asking for its largest command", libc::ENOENT))?;
        Ok(Self {
            file,
            namespace: Namespace {
                id,
                format: Ok(format),
            },
            command_bytes_max,
            has_poll_queues: has_poll_queues(&queue),
        })
    }

    /// Whether its controller has queues without interrupts, for [`super::PassthruConfig::polled`].
    #[must_use]
    pub const fn has_poll_queues(&self) -> bool {
        self.has_poll_queues
    }

    /// Namespace Identifier (NSID).
    #[must_use]
    pub fn namespace_id(&self) -> u32 {
        self.namespace.id
    }

    /// How it is formatted.
    ///
    /// # Panics
    /// Never: a namespace without a usable format was not opened.
    #[must_use]
    pub fn format(&self) -> NamespaceFormat {
        let format = self.namespace.format;
        format.expect("invariant: it was checked when it was opened")
    }
}

/// Which namespace a generic device is of.
fn namespace_id(file: &File) -> Result<u32, i32> {
    // SAFETY: takes no argument, and returns the number.
    let number = unsafe { libc::ioctl(file.as_raw_fd(), NAMESPACE_ID) };
    u32::try_from(number).map_err(|_| last_errno())
}

/// The data of Identify Namespace, or why the controller gave none.
fn identify(
    file: &File,
    namespace_id: u32,
) -> Result<Result<Box<[u8; IDENTIFY_BYTES as usize]>, Status>, i32> {
    let mut data = Box::new([0; IDENTIFY_BYTES as usize]);
    let target = data.as_mut_ptr().expose_provenance() as u64;
    let bytes = command_bytes(
        (admin::IDENTIFY, namespace_id),
        (target, IDENTIFY_BYTES),
        [CNS_NAMESPACE, 0, 0],
    );
    // The kernel reads it as a structure of words of 64 bits at most.
    let mut words = [0_u64; COMMAND_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    // SAFETY: the kernel reads and writes one command of `COMMAND_BYTES`, and writes 4,096 bytes to `data`,
    // to which no reference is used meanwhile; it is done with both when it returns.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), ADMIN_COMMAND, words.as_mut_ptr()) };
    match outcome {
        0 => Ok(Ok(data)),
        // The Status Field without the phase tag.
        1.. => Ok(Err(Status::from_entry(
            u16::try_from(outcome & 0x7fff).unwrap_or(0) << 1,
        ))),
        _ => Err(last_errno()),
    }
}

/// Where `/sys` has the limits of the block device that belongs to a generic device: beside it, under the
/// name that begins with `nvme` instead of `ng`.
fn queue_directory(sys: &Path, number: u64) -> io::Result<PathBuf> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    let generic = fs::canonicalize(sys.join(format!("dev/char/{major}:{minor}")))?;
    let name = generic.file_name().and_then(|name| name.to_str());
    let block = name.and_then(|name| name.strip_prefix("ng"));
    let block = block.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTTY))?;
    // Below the controller, or below the subsystem if several controllers reach the namespace; devices may
    // be put into a directory for their class.
    let directories = [generic.parent(), generic.ancestors().nth(2)];
    let mut queues = directories.into_iter().flatten().flat_map(|directory| {
        let name = format!("nvme{block}");
        let in_class = directory.join("block").join(&name).join("queue");
        [directory.join(name).join("queue"), in_class]
    });
    queues
        .find(|queue| queue.exists())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// The largest command that the kernel lets through: MDTS, and what its driver takes in segments.
fn command_bytes_max(queue: &Path, block_bytes: u32) -> Option<u32> {
    let read = |name: &str| {
        let text = fs::read_to_string(queue.join(name)).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let by_size = read("max_hw_sectors_kb")?.saturating_mul(1024);
    let by_segments = read("max_segments")?.saturating_mul(PAGE_BYTES);
    let bytes = by_size.min(by_segments) / block_bytes * block_bytes;
    (bytes > 0).then_some(bytes)
}

/// What the kernel calls a queue that can be polled (`queue/io_poll`).
fn has_poll_queues(queue: &Path) -> bool {
    fs::read_to_string(queue.join("io_poll")).is_ok_and(|text| text.trim() == "1")
}

/// The descriptor of a device.
impl std::os::fd::AsFd for NamespaceDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_no_namespace_is_refused() {
        let error = NamespaceDevice::open(Path::new("/dev/null")).expect_err("no disk at all");
        let text = error.to_string();
        assert!(
            text.contains("/dev/null") && text.contains("errno 25"),
            "{text}"
        );
        let error = NamespaceDevice::open(Path::new("/dev/ng9999n9")).expect_err("not there");
        assert!(error.to_string().contains("errno 2"), "{error}");
    }

    #[test]
    fn limits_are_found_beside_the_generic_device() {
        let sys = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let file = sys.path().join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("room");
            fs::write(file, text).expect("room");
        };
        let number = libc::makedev(240, 3);
        fs::create_dir_all(sys.path().join("dev/char")).expect("room");
        let link = sys.path().join("dev/char/240:3");
        // As Linux has it: a generic device is in its class's directory, a block device is not.
        for generic in ["devices/nvme0/ng0n1", "devices/subsys/ng/ng0n1"] {
            write(&format!("{generic}/dev"), "240:3\n");
            let _ = fs::remove_file(&link);
            symlink(sys.path().join(generic), &link).expect("room");
            let queue = Path::new(generic).ancestors();
            let top = queue
                .skip(1)
                .find(|it| !it.ends_with("ng"))
                .expect("a parent");
            let queue = top.join("nvme0n1/queue");
            let place = |name: &str| queue.join(name).display().to_string();
            assert!(queue_directory(sys.path(), number).is_err(), "not yet");
            write(&place("max_hw_sectors_kb"), "512\n");
            write(&place("max_segments"), "127\n");
            let found = queue_directory(sys.path(), number).expect("it is there");
            assert_eq!(
                found,
                sys.path().join(&queue).canonicalize().expect("there")
            );
            assert_eq!(command_bytes_max(&found, 512), Some(127 * 4096));
            write(&place("max_hw_sectors_kb"), "16\n");
            assert_eq!(command_bytes_max(&found, 4096), Some(16_384));
            write(&place("max_hw_sectors_kb"), "2\n");
            assert_eq!(command_bytes_max(&found, 4096), None, "less than a block");
            assert!(!has_poll_queues(&found), "an old kernel does not say");
            for (text, has) in [("0\n", false), ("1\n", true)] {
                write(&place("io_poll"), text);
                assert_eq!(has_poll_queues(&found), has);
            }
            fs::remove_file(found.join("io_poll")).expect("it is there");
            write(&place("max_hw_sectors_kb"), "many\n");
            assert_eq!(command_bytes_max(&found, 512), None);
        }
        assert!(queue_directory(sys.path(), libc::makedev(240, 4)).is_err());
    }
}
