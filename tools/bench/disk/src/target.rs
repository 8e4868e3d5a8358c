//! What is read, and the one file that is made. How it is read follows from its name, as with `atlas serve`: a
//! file or block device by io_uring, the generic device of a namespace by NVMe commands through the kernel's
//! driver, `nvme:ADDRESS` by a queue pair of a controller that this process takes.
//!
//! It is opened for reading only, past the page cache. Bounded by one piece of memory to write.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use clock::Instant;
use diskmap::nvme::{NamespaceFormat, NamespaceRange, NvmeConfig};
use diskmap::passthru::{NamespaceDevice, Passthru, PassthruConfig};
use diskmap::uring::{Uring, UringConfig};
use diskmap::vfio::{PciAddress, Vfio, VfioController};
use diskmap::{Disk, FileSource};
use memory::{Arena, ArenaConfig};
use serde::{Deserialize, Serialize};

use crate::CONTENT;
use crate::plan::READ_BYTES_MAX;

/// Bytes made at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The queue pair that is used of a controller.
pub(crate) const QUEUE_ID: u16 = 1;

/// By what it is read.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The kernel's files.
    File,
    /// NVMe commands through the kernel's driver.
    Namespace(Arc<NamespaceDevice>, NamespaceRange),
    /// A queue pair.
    Controller {
        vfio: Vfio,
        controller: VfioController,
        range: NamespaceRange,
    },
}

impl Source {
    pub(crate) fn backend(&self) -> Backend {
        match self {
            Self::File => Backend::Uring,
            Self::Namespace(..) => Backend::Passthru,
            Self::Controller { .. } => Backend::Nvme,
        }
    }
}

/// How a disk is read: which of `diskmap`'s disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// `io_uring` on a file or block device.
    #[default]
    Uring,
    /// NVMe commands by `io_uring` through the kernel's driver.
    Passthru,
    /// A queue pair over VFIO.
    Nvme,
}

impl Backend {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Passthru => "passthru",
            Self::Nvme => "nvme",
        }
    }
}

/// What is read.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) source: Source,
    pub(crate) size_bytes: u64,
    /// Reads are whole blocks.
    pub(crate) block_bytes: u32,
    /// Largest read the device takes in one piece.
    pub(crate) read_bytes_max: u32,
    /// Why `diskmap` is slower than it could be.
    pub(crate) fallback_reason: Option<String>,
}

impl Target {
    /// Asks the device for its limits.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if let Some(name) = path.to_str().and_then(|text| text.strip_prefix("nvme:")) {
            return Self::open_controller(path, name);
        }
        let is_generic = |name: &str| {
            let rest = name.strip_prefix("ng");
            rest.is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
        };
        let name = path.file_name().and_then(|name| name.to_str());
        if path.parent() == Some(Path::new("/dev")) && name.is_some_and(is_generic) {
            return Self::open_namespace(path);
        }
        Self::open_file(path)
    }

    /// A namespace that the kernel's driver has.
    fn open_namespace(path: &Path) -> Result<Self> {
        let device = Arc::new(NamespaceDevice::open(path)?);
        let range = whole(device.namespace_id(), device.format());
        let arena = arena()?;
        let mut disk = Passthru::new(vec![device.clone()], PassthruConfig::default(), &arena)?;
        let reason = disk.fallback_reason().map(str::to_owned);
        Self::ask(
            path,
            &mut disk,
            Source::Namespace(device, range),
            range,
            reason,
        )
    }

    /// A namespace of a controller that `vfio-pci` has: `ADDRESS` or `ADDRESS/NSID`.
    fn open_controller(path: &Path, name: &str) -> Result<Self> {
        let (address, id) = match name.split_once('/') {
            None => (name, None),
            Some((address, id)) => {
                let id = id.parse::<u32>().ok().filter(|id| *id > 0);
                let id = id.with_context(|| format!("{name}: no namespace identifier"))?;
                (address, Some(id))
            }
        };
        let address: PciAddress = address.parse()?;
        let vfio = Vfio::open(address)?;
        let epoch = std::time::Instant::now();
        let controller = vfio.start(QUEUE_ID, &mut || {
            std::thread::sleep(std::time::Duration::from_millis(1));
            Instant::from_nanos(u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
        })?;
        let namespaces = controller.namespaces();
        let mut found = namespaces
            .iter()
            .filter(|it| id.is_none_or(|id| id == it.id));
        let (Some(namespace), None) = (found.next(), found.next()) else {
            bail!(
                "{name}: name one of its {} namespaces: {address}/N",
                namespaces.len()
            );
        };
        let range = whole(namespace.id, namespace.format?);
        let arena = arena()?;
        let mut pair = vfio.queue_pair(&controller, QUEUE_ID, &arena, NvmeConfig::default())?;
        let source = Source::Controller {
            vfio,
            controller,
            range,
        };
        // It was never used, so the controller does not know it.
        Self::ask(path, &mut pair, source, range, None)
    }

    fn ask(
        path: &Path,
        disk: &mut dyn Disk,
        source: Source,
        range: NamespaceRange,
        fallback_reason: Option<String>,
    ) -> Result<Self> {
        let (_, limits) = disk.open(FileSource::Namespace(range))?;
        Ok(Self {
            path: path.to_owned(),
            source,
            size_bytes: limits.size_bytes,
            block_bytes: limits.block_bytes,
            read_bytes_max: limits.read_bytes_max,
            fallback_reason,
        })
    }

    fn open_file(path: &Path) -> Result<Self> {
        let arena = arena()?;
        let mut disk = Uring::new(UringConfig::default(), &arena)?;
        let file = open_direct(path)?;
        let (_, limits) = disk
            .open(FileSource::Descriptor(file.into()))
            .with_context(|| {
                let path = path.display();
                format!("{path}: neither a regular file nor a block device that can be asked")
            })?;
        Ok(Self {
            path: path.to_owned(),
            source: Source::File,
            size_bytes: limits.size_bytes,
            block_bytes: limits.block_bytes,
            read_bytes_max: limits.read_bytes_max,
            fallback_reason: disk.fallback_reason().map(str::to_owned),
        })
    }
}

/// A slot as large as any read.
fn arena() -> Result<Arena> {
    let config = ArenaConfig {
        slot_bytes: READ_BYTES_MAX,
        ..ArenaConfig::new(1)
    };
    Ok(Arena::new(config)?)
}

/// All of a namespace.
fn whole(namespace_id: u32, format: NamespaceFormat) -> NamespaceRange {
    NamespaceRange {
        controller: 0,
        namespace_id,
        start_bytes: 0,
        length_bytes: format.size_bytes(),
    }
}

/// Opens for reading, past the page cache.
pub(crate) fn open_direct(path: &Path) -> Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path);
    opened.map_err(|error| {
        let path = path.display();
        let is_refused = error.raw_os_error() == Some(libc::EINVAL);
        let context = if is_refused {
            format!("{path} refuses O_DIRECT: name a block device, or a file on a disk")
        } else {
            format!("opening {path} for reading")
        };
        anyhow::Error::new(error).context(context)
    })
}

/// Makes a file of `bytes` known bytes, unless the same is there already.
pub(crate) fn make(path: &Path, bytes: u64) -> Result<()> {
    let shown = path.display();
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    let file = match created {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return check_made(path, bytes),
        Err(error) => return Err(error).with_context(|| format!("making {shown}")),
    };
    fill(file, bytes).or_else(|error| {
        // Half a file would be taken for somebody else's by the next run.
        let _ = std::fs::remove_file(path);
        Err(error).with_context(|| format!("making {shown} of {bytes} bytes"))
    })
}

fn fill(mut file: File, bytes: u64) -> Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset_bytes = 0;
    while offset_bytes < bytes {
        let left = usize::try_from(bytes - offset_bytes).unwrap_or(PIECE_BYTES);
        let part = &mut piece[..left.min(PIECE_BYTES)];
        CONTENT.fill(offset_bytes, part);
        file.write_all(part)?;
        offset_bytes += part.len() as u64;
    }
    // What is not on the disk yet would be written while it is measured.
    file.sync_all()?;
    Ok(())
}

/// A file that is there is never written; one like ours will do.
fn check_made(path: &Path, bytes: u64) -> Result<()> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("opening {shown}"))?;
    let is_file = file.metadata()?.is_file();
    ensure!(
        is_file,
        "{shown} is there and no file; name it without --make to read it"
    );
    let size_bytes = file.metadata()?.len();
    ensure!(
        size_bytes == bytes,
        "{shown} is there with {size_bytes} bytes, not {bytes}: remove it, choose another name, \
         or name it without --make to read it as it is"
    );
    // First and last bytes: enough to tell ours from another's.
    let probe_bytes = bytes.min(4096);
    let mut probe = vec![0; usize::try_from(probe_bytes)?];
    for offset_bytes in [0, (bytes - probe_bytes) / 8 * 8] {
        file.read_exact_at(&mut probe, offset_bytes)?;
        if CONTENT.check(offset_bytes, &probe).is_err() {
            bail!("{shown} is there and was not made by --make: choose another name");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_file_is_used_again_and_nothing_else_is_touched() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made");
        make(&path, 10_001).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 10_001);
        assert!(CONTENT.check(0, &bytes).is_ok());
        make(&path, 10_001).unwrap();
        let refusal = make(&path, 10_000).unwrap_err().to_string();
        assert!(refusal.contains("remove it"), "{refusal}");
        std::fs::write(&path, b"somebody's").unwrap();
        assert!(make(&path, 10).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Target::open(&directory.path().join("none")).is_err());
        let refusal = Target::open(Path::new("/dev/null")).unwrap_err();
        assert!(refusal.to_string().contains("O_DIRECT"), "{refusal:#}");
        assert!(make(&directory.path().join("no/such"), 10).is_err());
    }
}
