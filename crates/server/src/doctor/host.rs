//! Kernel, memory, limits, rights and devices that every server uses.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::Finding;
use super::tree::Tree;
use crate::cores;

/// The oldest kernel that has what Atlas asks of io_uring (docs/deploy.md).
const KERNEL_MIN: (u32, u32) = (5, 19);

/// Bytes of a slot with the room around it.
const SLOT_BYTES: u64 = 72 << 10;
/// Slots of a worker unless configured.
const SLOTS: u64 = 512;
/// Bytes of a reserved huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Files that a worker may have open without complaint: one for each of the usual connections.
const DESCRIPTORS: u64 = 20_000;

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let processors = cores::allowed().map_or(1, |allowed| allowed.len());
    vec![
        kernel(tree),
        io_uring(tree),
        Finding::good(
            "processors",
            format!("{processors}: --workers {processors} at most"),
        ),
        huge_pages(tree, processors as u64),
        rights(),
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

fn io_uring(tree: &Tree) -> Finding {
    let disabled = tree.read("proc/sys/kernel/io_uring_disabled");
    let remedy = "sysctl -w kernel.io_uring_disabled=0";
    match disabled.as_deref() {
        // Kernels before 6.6 have no such switch.
        None | Some("0") => Finding::good("io_uring", "allowed"),
        Some("1") => Finding::less("io_uring", "for privileged processes only", remedy),
        Some(_) => Finding::missing("io_uring", "switched off", remedy),
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
    if tree.exists("dev/net/tun") {
        return Finding::good("taps", "/dev/net/tun");
    }
    Finding::less("taps", "no /dev/net/tun, so no --link tap:", "modprobe tun")
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
    use super::{Tree, huge_pages, io_uring, iommu, kernel, tun};

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
    fn io_uring_may_be_switched_off() {
        let root = tempfile::tempdir().unwrap();
        let verdict = || io_uring(&Tree::under(root.path())).verdict;
        assert_eq!(verdict(), Verdict::Good, "an older kernel");
        for (text, expected) in [
            ("0\n", Verdict::Good),
            ("1\n", Verdict::Less),
            ("2\n", Verdict::Missing),
        ] {
            write(root.path(), "proc/sys/kernel/io_uring_disabled", text);
            assert_eq!(verdict(), expected);
        }
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
