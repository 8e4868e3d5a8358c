//! The last-level cache beside the slots, and whether this machine counts accesses to memory.
//!
//! What a device writes stays in the cache until it is sent if few enough slots are in use: docs/develop/decisions/0032.
//! It refuses to read registers of the processor (MSR), which have the ways that devices write to. Bounds: the tree's.

use memory::traffic::MemoryTraffic;

use super::Finding;
use super::tree::Tree;

const CACHES: &str = "sys/devices/system/cpu/cpu0/cache";

/// `slots_bytes`: of a worker, without the room around them.
pub(super) fn findings(tree: &Tree, slots_bytes: u64) -> Vec<Finding> {
    vec![
        cache(tree, slots_bytes),
        counters(MemoryTraffic::open(&tree.path(""))),
    ]
}

fn cache(tree: &Tree, slots_bytes: u64) -> Finding {
    let least = worker::SLOTS_IN_USE_LEAST as u64 * u64::from(memory::ArenaConfig::SLOT_BYTES);
    let (least, most) = (least.min(slots_bytes) >> 10, slots_bytes >> 10);
    let slots = format!("a worker has {least} to {most} KiB of slots in use");
    let Some((level, size, ways)) = last_level(tree) else {
        return Finding::good("last-level cache", format!("unknown; {slots}"));
    };
    let found = format!(
        "L{level} of {} MiB in {ways} ways, as the processor says; {}; {slots}",
        size >> 10,
        devices(tree)
    );
    Finding::good("last-level cache", found)
}

/// Level, KiB and ways of the highest one.
fn last_level(tree: &Tree) -> Option<(u32, u64, u32)> {
    let caches = tree.names(CACHES).into_iter().filter_map(|name| {
        let read = |file: &str| tree.read(format!("{CACHES}/{name}/{file}"));
        let size = read("size")?.strip_suffix('K')?.parse().ok()?;
        let ways = read("ways_of_associativity")?.parse().ok()?;
        Some((read("level")?.parse().ok()?, size, ways))
    });
    caches.max()
}

/// Which of its ways devices write to.
fn devices(tree: &Tree) -> String {
    let io_alloc = tree.read("sys/fs/resctrl/info/L3/io_alloc");
    if let Some(state) = io_alloc.filter(|state| state != "not supported") {
        let ways = tree.read("sys/fs/resctrl/info/L3/io_alloc_cbm");
        let ways = ways.unwrap_or_else(|| "unknown".to_owned());
        return format!("devices write to its ways {ways} (io_alloc: {state})");
    }
    let text = tree.read("proc/cpuinfo").unwrap_or_default();
    let vendor = text.lines().find(|line| line.starts_with("vendor_id"));
    if vendor.is_some_and(|line| line.ends_with("GenuineIntel")) {
        "how many ways devices write to is unknown, 2 unless configured (DDIO)".to_owned()
    } else {
        "whether devices write to it is unknown".to_owned()
    }
}

fn counters(opened: Result<MemoryTraffic, String>) -> Finding {
    let subject = "memory counters";
    match opened {
        Ok(found) => Finding::good(subject, format!("{}, told at /metrics", found.count())),
        Err(reason) => Finding::less(
            subject,
            reason,
            "run as root; modprobe intel_uncore or amd_uncore; a virtual machine has none",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Tree, cache, findings};
    use crate::doctor::Verdict;

    #[test]
    fn the_last_level_is_told_beside_the_slots_and_what_is_unknown() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let tree = Tree::under(root.path());
        let found = |slots: u64| cache(&tree, slots << 20).found;
        assert_eq!(
            found(32),
            "unknown; a worker has 512 to 32768 KiB of slots in use"
        );
        for (index, level, size, ways) in [(2, 2, "2048K", 16), (3, 3, "20480K", 20)] {
            let place = format!("sys/devices/system/cpu/cpu0/cache/index{index}");
            write(&format!("{place}/level"), &format!("{level}\n"));
            write(&format!("{place}/size"), size);
            write(
                &format!("{place}/ways_of_associativity"),
                &format!("{ways}\n"),
            );
        }
        assert_eq!(
            found(1),
            "L3 of 20 MiB in 20 ways, as the processor says; whether devices write to it is unknown; \
             a worker has 512 to 1024 KiB of slots in use"
        );
        write(
            "proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: GenuineIntel\n",
        );
        assert!(found(32).contains("2 unless configured (DDIO)"));
        write("sys/fs/resctrl/info/L3/io_alloc", "not supported\n");
        assert!(found(32).contains("DDIO"));
        write("sys/fs/resctrl/info/L3/io_alloc", "enabled\n");
        write("sys/fs/resctrl/info/L3/io_alloc_cbm", "0=ffff\n");
        assert!(found(32).contains("to its ways 0=ffff (io_alloc: enabled)"));
        let counters = &findings(&tree, 0)[1];
        assert_eq!(counters.verdict, Verdict::Less);
    }
}
