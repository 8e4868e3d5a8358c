//! Kernel, memory, limits, rights and devices that every server uses.

use std::fs::OpenOptions;
use std::io;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::Finding;
use super::serving::Plan;
use super::tree::Tree;
use crate::start::cores;

/// The oldest kernel that has what Atlas asks of io_uring (docs/run/deploy.md).
const KERNEL_MIN: (u32, u32) = (5, 19);

/// Bytes of a slot with the room around it.
pub(super) const SLOT_BYTES: u64 = 72 << 10;
/// Slots of a worker unless configured.
pub(super) const SLOTS: u64 = 512;
/// Bytes of a reserved huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Files that a worker may have open without complaint: one for each of the usual connections.
const DESCRIPTORS: u64 = 20_000;

/// What a server takes of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Serving {
    /// Memory that it locks.
    pub(super) locked_bytes: u64,
    /// Whether it does not start without locking it.
    pub(super) is_xdp: bool,
}

pub(super) fn findings(tree: &Tree, plan: &Plan) -> Vec<Finding> {
    let processors = cores::allowed().map_or(1, |allowed| allowed.len());
    vec![
        kernel(tree),
        io_uring(tree, diskmap::probe_io_uring()),
        beneath(probe_openat2()),
        Finding::good(
            "processors",
            format!("{processors}: --workers {processors} at most"),
        ),
        huge_pages(tree, processors as u64),
        rights(),
        locked_memory(plan.needs(), lockable_bytes()),
        descriptors(),
        tun(tree),
        iommu(tree),
    ]
}

fn kernel(tree: &Tree) -> Finding {
    let release = tree.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse().ok());
    let version = (number().unwrap_or(0), number().unwrap_or(0));
    let found = format!("Linux {release}");
    if version >= KERNEL_MIN {
        return Finding::good("kernel", found);
    }
    let (major, minor) = KERNEL_MIN;
    Finding::missing(
        "kernel",
        found,
        format!("use Linux {major}.{minor} or newer"),
    )
}

/// By the sysctl the remedy is known; whether this process may use it, only a trial tells: filters of containers
/// refuse it, too.
fn io_uring(tree: &Tree, probed: Result<(), (&str, i32)>) -> Finding {
    let disabled = tree.read("proc/sys/kernel/io_uring_disabled");
    let is_disabled = disabled.as_deref().is_some_and(|it| it != "0");
    let Err((call, errno)) = probed else {
        return if is_disabled {
            Finding::good("io_uring", "allowed, to privileged processes only")
        } else {
            Finding::good("io_uring", "allowed")
        };
    };
    let found = format!("{call}: {}", io::Error::from_raw_os_error(errno));
    let remedy = if is_disabled {
        "sysctl -w kernel.io_uring_disabled=0"
    } else {
        "allow io_uring_setup, io_uring_enter and io_uring_register in the filter of system calls: a container's \
         seccomp profile, SystemCallFilter= of a unit"
    };
    Finding::missing("io_uring", found, remedy)
}

fn probe_openat2() -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH)?;
    Ok(())
}

/// Files are opened beneath the served directory, so that no link leads out of it.
fn beneath(probed: io::Result<()>) -> Finding {
    match probed {
        Ok(()) => Finding::good("openat2", "allowed"),
        // The call was let through.
        Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            Finding::good("openat2", "allowed")
        }
        Err(error) => Finding::missing(
            "openat2",
            format!("{error}: no directory can be served"),
            "allow openat2 in the filter of system calls; a unit must not have RestrictSUIDSGID= or DynamicUser=",
        ),
    }
}

/// How much memory this process may lock; `None`: as much as there is.
fn lockable_bytes() -> Option<u64> {
    let sets = capabilities(None);
    if sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK)) {
        return None;
    }
    getrlimit(Resource::Memlock).maximum
}

fn locked_memory(serving: Serving, lockable_bytes: Option<u64>) -> Finding {
    let Serving {
        locked_bytes,
        is_xdp,
    } = serving;
    let subject = "locked memory";
    let needed = locked_bytes.div_ceil(1 << 10);
    let Some(limit) = lockable_bytes.filter(|limit| *limit < locked_bytes) else {
        return Finding::good(
            subject,
            format!("{needed} KiB are wanted, and may be locked"),
        );
    };
    let found = format!("{needed} KiB are wanted, and {} may be locked", limit >> 10);
    let remedy = format!("LimitMEMLOCK=infinity in the unit, ulimit -Hl {needed}, or CAP_IPC_LOCK");
    if is_xdp {
        Finding::missing(subject, found, remedy)
    } else {
        Finding::less(subject, format!("{found}: reads cost more"), remedy)
    }
}

fn huge_pages(tree: &Tree, workers: u64) -> Finding {
    let number = |name| tree.number("proc/meminfo", name).unwrap_or(0);
    let (total, free) = (number("HugePages_Total"), number("HugePages_Free"));
    let needed = (SLOTS * SLOT_BYTES).div_ceil(HUGE_PAGE_BYTES);
    let is_2m = number("Hugepagesize") == HUGE_PAGE_BYTES >> 10;
    let found = format!(
        "{free} of {total} free; a worker takes {needed} with {SLOTS} slots, unless it lends them"
    );
    if is_2m && free >= needed {
        return Finding::good("huge pages", found);
    }
    let all = total - free.min(total) + needed * workers;
    Finding::less(
        "huge pages",
        found,
        format!("sysctl -w vm.nr_hugepages={all}"),
    )
}

/// What serving needs to start, and what for.
const RIGHTS: [(CapabilitySet, &str, &str); 4] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", "any link"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW", "packet: and xdp:"),
    (CapabilitySet::BPF, "CAP_BPF", "xdp:"),
    (
        CapabilitySet::IPC_LOCK,
        "CAP_IPC_LOCK",
        "slots beyond the limit of locked memory",
    ),
];

fn rights() -> Finding {
    let Ok(sets) = capabilities(None) else {
        return Finding::less("rights", "the kernel does not tell them", "run as root");
    };
    let is_absent = |(right, ..): &&(CapabilitySet, _, _)| !sets.effective.contains(*right);
    let absent: Vec<_> = RIGHTS.iter().filter(is_absent).collect();
    if absent.is_empty() {
        return Finding::good("rights", "all that serving needs to start");
    }
    let texts = absent
        .iter()
        .map(|(_, name, purpose)| format!("{name} ({purpose})"));
    let found = format!("without {}", texts.collect::<Vec<_>>().join(", "));
    let remedy = "run as root: the server drops its rights once it has started";
    if absent.iter().any(|(_, name, _)| *name == "CAP_NET_ADMIN") {
        return Finding::missing("rights", found, remedy);
    }
    Finding::less("rights", found, remedy)
}

fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile).maximum;
    let found = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("{limit} at most"));
    if limit.is_none_or(|limit| limit >= DESCRIPTORS) {
        return Finding::good("open files", found);
    }
    let remedy = format!("LimitNOFILE={DESCRIPTORS} in the unit, or ulimit -Hn {DESCRIPTORS}");
    Finding::less("open files", found, remedy)
}

fn tun(tree: &Tree) -> Finding {
    let file = tree.path("dev/net/tun");
    let opened = OpenOptions::new().read(true).write(true).open(file);
    let Err(error) = opened else {
        return Finding::good("taps", "/dev/net/tun");
    };
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "modprobe tun; for a container --device /dev/net/tun",
        _ => "DeviceAllow=/dev/net/tun rw in the unit; --device /dev/net/tun for a container",
    };
    let found = format!("/dev/net/tun: {error}, so no --link tap:");
    Finding::less("taps", found, remedy)
}

fn iommu(tree: &Tree) -> Finding {
    let groups = tree.names("sys/kernel/iommu_groups").len();
    if groups > 0 {
        return Finding::good("IOMMU", "on: devices can be given to drivers in user space");
    }
    Finding::less(
        "IOMMU",
        "off or absent: no NVMe driver in user space",
        "switch it on in the firmware, and boot with intel_iommu=on or amd_iommu=on",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::Verdict;
    use super::{Serving, Tree, beneath, huge_pages, io_uring, iommu, kernel, locked_memory, tun};

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn kernels_from_the_oldest_on_are_good() {
        let root = tempfile::tempdir().unwrap();
        for (release, verdict) in [
            ("5.19.0-9-amd64", Verdict::Good),
            ("5.18.19", Verdict::Missing),
            ("7.0", Verdict::Good),
            ("", Verdict::Missing),
        ] {
            write(root.path(), "proc/sys/kernel/osrelease", release);
            assert_eq!(
                kernel(&Tree::under(root.path())).verdict,
                verdict,
                "{release}"
            );
        }
    }

    #[test]
    fn io_uring_is_what_a_trial_says_and_the_remedy_what_the_switch_says() {
        let root = tempfile::tempdir().unwrap();
        let found = |probed| io_uring(&Tree::under(root.path()), probed);
        let refused = Err(("io_uring_setup", libc::EPERM));
        // An older kernel has no such switch.
        assert_eq!(found(Ok(())).verdict, Verdict::Good);
        let filtered = found(refused);
        assert_eq!(filtered.verdict, Verdict::Missing);
        assert!(filtered.found.starts_with("io_uring_setup: Operation"));
        assert!(filtered.remedy.unwrap().contains("seccomp"));
        for text in ["0\n", "1\n", "2\n"] {
            write(root.path(), "proc/sys/kernel/io_uring_disabled", text);
            assert_eq!(found(Ok(())).verdict, Verdict::Good);
            let remedy = found(refused).remedy.unwrap();
            assert_eq!(remedy.starts_with("sysctl"), text != "0\n", "{remedy}");
        }
    }

    #[test]
    fn openat2_is_missing_only_if_it_was_not_let_through() {
        let error = |errno| Err(std::io::Error::from_raw_os_error(errno));
        assert_eq!(beneath(Ok(())).verdict, Verdict::Good);
        assert_eq!(beneath(error(libc::EACCES)).verdict, Verdict::Good);
        for errno in [libc::ENOSYS, libc::EPERM] {
            let found = beneath(error(errno));
            assert_eq!(found.verdict, Verdict::Missing);
            assert!(found.remedy.unwrap().contains("RestrictSUIDSGID="));
        }
    }

    #[test]
    fn locked_memory_is_measured_by_what_is_to_be_served() {
        let serving = |is_xdp| Serving {
            locked_bytes: 10 << 20,
            is_xdp,
        };
        for limit in [None, Some(10 << 20)] {
            assert_eq!(locked_memory(serving(true), limit).verdict, Verdict::Good);
        }
        let less = locked_memory(serving(false), Some(8 << 20));
        assert_eq!(less.verdict, Verdict::Less);
        assert!(less.found.contains("10240 KiB are wanted, and 8192 may"));
        assert!(less.remedy.unwrap().contains("ulimit -Hl 10240"));
        let missing = locked_memory(serving(true), Some(8 << 20));
        assert_eq!(missing.verdict, Verdict::Missing);
    }

    #[test]
    fn huge_pages_are_counted_for_all_workers() {
        let root = tempfile::tempdir().unwrap();
        let found = |total: u64, free: u64| {
            let text = format!(
                "MemTotal: 1 kB\nHugePages_Total: {total}\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n"
            );
            write(root.path(), "proc/meminfo", &text);
            huge_pages(&Tree::under(root.path()), 4)
        };
        assert_eq!(found(18, 18).verdict, Verdict::Good);
        let less = found(28, 17);
        assert_eq!(less.verdict, Verdict::Less);
        // Eleven that others have, and 18 for each of four.
        let remedy = less.remedy.unwrap();
        assert_eq!(remedy, "sysctl -w vm.nr_hugepages=83");
    }

    #[test]
    fn what_is_not_there_is_told_with_its_remedy() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::under(root.path());
        for finding in [tun(&tree), iommu(&tree)] {
            assert_eq!(finding.verdict, Verdict::Less);
            assert!(finding.remedy.is_some());
        }
        write(root.path(), "dev/net/tun", "");
        fs::create_dir_all(root.path().join("sys/kernel/iommu_groups/0")).unwrap();
        for finding in [tun(&tree), iommu(&tree)] {
            assert_eq!(finding.verdict, Verdict::Good);
        }
    }
}
