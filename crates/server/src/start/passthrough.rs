//! The namespaces under a raw store's block devices, for a disk that reads them by NVMe commands through the
//! kernel's driver (`nvme_passthrough`).
//!
//! The block devices stay open: the catalogue is read from them, and the locks by which a writer leaves alone
//! what is read are theirs. It refuses what is no whole namespace: partitions, images, and what lies on other
//! devices. Bounded by `diskmap::passthru::DEVICES_MAX` namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diskmap::nvme::{FILES_MAX, QUEUE_DEPTH_MAX};
use diskmap::passthru::{NamespaceDevice, Passthru, PassthruConfig};
use memory::Arena;
use store::NamespaceId;
use store::raw::Device;
use tracing::info;

use crate::failure::Failure;

/// The namespaces of a store, by the number of the device.
#[derive(Debug)]
pub(super) struct Namespaces {
    devices: Vec<Arc<NamespaceDevice>>,
}

impl Namespaces {
    /// Opens the generic device of each block device.
    ///
    /// # Errors
    /// What is no whole namespace, or cannot be opened, with the remedy.
    pub(super) fn open(devices: &[Device]) -> Result<Self, Failure> {
        let open = |device: &Device| {
            let number = device.is_block_device.then_some(device.device);
            let path = generic_device(Path::new("/"), &device.path, number)?;
            info!("read by NVMe passthrough: {}", path.display());
            let opened = NamespaceDevice::open(&path);
            opened
                .map(Arc::new)
                .map_err(|error| Failure::Refused(error.to_string()))
        };
        let devices = devices.iter().map(open).collect::<Result<_, _>>()?;
        let namespaces = Self { devices };
        if namespaces.has_poll_queues() {
            info!("NVMe passthrough without interrupts: the controllers have poll queues");
        }
        Ok(namespaces)
    }

    /// What the disk calls them.
    pub(super) fn ids(&self) -> Vec<NamespaceId> {
        let id = |(controller, device): (u16, &Arc<NamespaceDevice>)| NamespaceId {
            controller,
            id: device.namespace_id(),
        };
        (0..).zip(&self.devices).map(id).collect()
    }

    /// Whether completions of all of them can be polled for: who gave the kernel's driver poll queues wants
    /// that, for it has none by default.
    fn has_poll_queues(&self) -> bool {
        self.devices.iter().all(|it| it.has_poll_queues())
    }

    /// A disk for a worker, which enables it.
    ///
    /// # Errors
    /// The kernel refuses the ring.
    pub(super) fn disk(
        &self,
        queue_depth: u32,
        files_max: usize,
        arena: &Arena,
    ) -> Result<Passthru, Failure> {
        let config = PassthruConfig {
            queue_depth: u16::try_from(queue_depth)
                .unwrap_or(u16::MAX)
                .min(QUEUE_DEPTH_MAX),
            files_max: u32::try_from(files_max).unwrap_or(u32::MAX).min(FILES_MAX),
            polled: self.has_poll_queues(),
            ..PassthruConfig::default()
        };
        let disk = Passthru::new_disabled(self.devices.clone(), config, arena)
            .map_err(|error| Failure::Refused(error.to_string()))?;
        if let Some(reason) = disk.fallback_reason() {
            info!("NVMe passthrough without registered buffers: {reason}");
        }
        Ok(disk)
    }
}

/// The generic device of a whole namespace, by the kernel's names: ng0n1 for nvme0n1. `root`: of the file
/// system, which tests choose. `number`: of the block device, as [`Device::device`]; `None`: it is none.
fn generic_device(root: &Path, path: &Path, number: Option<u64>) -> Result<PathBuf, Failure> {
    let refuse = || {
        let path = path.display();
        Failure::refused(
            format!("PATH {path}: no whole namespace of an NVMe controller"),
            "name block devices such as /dev/nvme0n1, or leave nvme_passthrough out",
        )
    };
    let number = number.ok_or_else(refuse)?;
    let (major, minor) = (number >> 32, number & u64::from(u32::MAX));
    let link = root.join(format!("sys/dev/block/{major}:{minor}"));
    let directory = fs::canonicalize(link).map_err(|_| refuse())?;
    let name = directory.file_name().and_then(|name| name.to_str());
    let rest = name.and_then(|name| name.strip_prefix("nvme"));
    match rest {
        Some(rest) if is_whole(rest) => Ok(root.join(format!("dev/ng{rest}"))),
        _ => Err(refuse()),
    }
}

/// Whether the rest of a block device's name is that of a namespace, `0n1`, and not of a partition, `0n1p1`.
fn is_whole(rest: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    rest.split_once('n')
        .is_some_and(|(controller, namespace)| is_number(controller) && is_number(namespace))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::is_whole;

    const NUMBER: u64 = 259 << 32 | 3;

    fn generic_device(root: &Path, number: Option<u64>) -> Result<PathBuf, String> {
        let found = super::generic_device(root, Path::new("/dev/some"), number);
        found.map_err(|error| error.to_string())
    }

    /// A file system in which block device 259:3 has this name.
    fn named(name: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("sys/devices").join(name);
        fs::create_dir_all(&devices).unwrap();
        let links = root.path().join("sys/dev/block");
        fs::create_dir_all(&links).unwrap();
        std::os::unix::fs::symlink(devices, links.join("259:3")).unwrap();
        root
    }

    #[test]
    fn a_namespace_has_a_generic_device_of_its_numbers() {
        let root = named("nvme12n3");
        let found = generic_device(root.path(), Some(NUMBER)).unwrap();
        assert_eq!(found, root.path().join("dev/ng12n3"));
    }

    #[test]
    fn what_is_no_whole_namespace_is_refused() {
        for name in ["nvme0n1p1", "sda", "loop0", "nvme0", "nvmen1", "nvme0n"] {
            let root = named(name);
            let error = generic_device(root.path(), Some(NUMBER)).unwrap_err();
            assert!(error.contains("no whole namespace"), "{error}");
        }
        let root = named("nvme0n1");
        assert!(generic_device(root.path(), None).is_err());
        assert!(generic_device(Path::new("/nowhere"), Some(NUMBER)).is_err());
        assert!(is_whole("0n1") && !is_whole("0c0n1"));
    }
}
