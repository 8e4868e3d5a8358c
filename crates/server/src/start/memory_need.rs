//! How much memory a server takes, and whether its control group lets it have that: a process that goes
//! beyond the limit of its group is killed without a word.
//!
//! It refuses to count what is there for a moment only: lines of logs that wait, handshakes, answers of `/metrics`. Bounds:
//! [`GROUPS_MAX`] groups.

use std::path::Path;

use memory::ArenaConfig;
use tracing::warn;
use worker::requests::KEPT_BYTES_MAX;

use super::storage::kept_copy_bytes;
use crate::doctor::tree::Tree;
use crate::observe::requests::MISSES_BYTES_MAX;
use crate::settings::{LinkChoice, Settings};

/// What a connection takes at most, in the table that is made at start and beside it: `docs/run/configuration.md`.
const CONNECTION_BYTES_MAX: u64 = 2560;
/// Program, libraries, tables of objects and of half-open connections, with one worker: 23 MiB resident with 16
/// slots and one connection (x86-64, glibc 2.36).
const BASE_BYTES: u64 = 24 << 20;
/// The same for each further worker: 6 MiB with that measurement.
const WORKER_BYTES: u64 = 8 << 20;
/// Cells of one AF_XDP socket, one for each worker.
const XDP_BYTES: u64 = 16 << 20;
/// The connections of a relay.
const RELAY_BYTES: u64 = link::relay::BYTES_MAX as u64;
/// Most groups above each other that are asked for their limits.
const GROUPS_MAX: usize = 32;

/// Bytes that a server with these settings takes, if its slots are not lent.
pub(crate) fn of_settings(settings: &Settings) -> u64 {
    of_slots(
        ArenaConfig::new(settings.limits.slots).slots_bytes() as u64,
        settings,
    )
}

/// Bytes that a server with so many bytes of slots takes.
pub(crate) fn of_slots(slots_bytes: u64, settings: &Settings) -> u64 {
    let connections = settings.limits.connections_max as u64;
    let workers = u64::from(settings.workers);
    let cells = match settings.link {
        LinkChoice::Xdp(_) | LinkChoice::XdpPacket(_) => workers * XDP_BYTES,
        LinkChoice::Relay(_) => RELAY_BYTES,
        LinkChoice::Tap(_) | LinkChoice::Packet(_) | LinkChoice::Auto(_) => 0,
    };
    let others = BASE_BYTES + workers.saturating_sub(1) * WORKER_BYTES;
    let copies = kept_copy_bytes(&settings.limits) as u64;
    let names = settings.metrics.map_or(0, |_| {
        workers * KEPT_BYTES_MAX as u64 + MISSES_BYTES_MAX as u64
    });
    slots_bytes + copies + connections * CONNECTION_BYTES_MAX + cells + names + others
}

/// Warns if the control group of this process has a limit below `need_bytes`.
pub(crate) fn warn_of_limit(need_bytes: u64) {
    if let Some(warning) = limit_warning(&Tree::of_this_machine(), need_bytes) {
        warn!("{warning}");
    }
}

fn limit_warning(tree: &Tree, need_bytes: u64) -> Option<String> {
    let limit_bytes = limit(tree).filter(|&limit| limit < need_bytes)?;
    let (need, limit) = (need_bytes.div_ceil(1 << 20), limit_bytes >> 20);
    Some(format!(
        "up to {need} MiB of memory are needed, and the control group has {limit} MiB: beyond that the kernel \
         kills the server; raise the limit (MemoryMax=, docker --memory), or lower slots and connections_max"
    ))
}

/// The least limit of the control group of this process and of those above it, bytes.
fn limit(tree: &Tree) -> Option<u64> {
    let groups = tree.read("proc/self/cgroup")?;
    // Version 2 is one line, `0::/path`; version 1 has one for each controller, `4:memory:/path`.
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (mount, file) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|it| it == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            return None;
        };
        limit_above(tree, mount, path, file)
    });
    limits.min()
}

fn limit_above(tree: &Tree, mount: &str, path: &str, file: &str) -> Option<u64> {
    let groups = Path::new(path.trim_start_matches('/')).ancestors();
    let limits = groups.take(GROUPS_MAX).filter_map(|group| {
        // `max`: none.
        let text = tree.read(Path::new(mount).join(group).join(file))?;
        text.parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{limit, limit_warning, of_settings};
    use crate::doctor::tree::Tree;
    use crate::settings::Settings;

    /// A machine whose processes are in this group, with these limits by file.
    fn machine(group: &str, limits: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let root = tempfile::TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", group);
        for (path, text) in limits {
            write(&format!("sys/fs/cgroup/{path}"), text);
        }
        let tree = Tree::under(root.path());
        (root, tree)
    }

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_counts() {
        let (_root, tree) = machine(
            "0::/system.slice/atlas.service\n",
            &[
                ("system.slice/atlas.service/memory.max", "max\n"),
                ("system.slice/memory.max", "104857600\n"),
                ("other.slice/memory.max", "1\n"),
            ],
        );
        assert_eq!(limit(&tree), Some(100 << 20));
        assert_eq!(limit_warning(&tree, 100 << 20), None);
        let warning = limit_warning(&tree, (100 << 20) + 1).unwrap();
        assert!(
            warning.starts_with(
                "up to 101 MiB of memory are needed, and the control group has 100 MiB"
            ),
            "{warning}"
        );
    }

    #[test]
    fn names_of_misses_and_counts_need_memory_if_somebody_can_ask_for_them() {
        let with = |metrics, workers| {
            let metrics = Some("127.0.0.1:9100".parse().unwrap()).filter(|_| metrics);
            of_settings(&Settings {
                metrics,
                workers,
                ..Settings::default()
            })
        };
        // 8,192 names of 1 KiB in each worker, and 16,384 of all.
        let names = |workers| with(true, workers) - with(false, workers);
        assert!((24 << 20..32 << 20).contains(&names(1)), "{}", names(1));
        let each = names(2) - names(1);
        assert!((8 << 20..10 << 20).contains(&each), "{each}");
    }

    #[test]
    fn both_versions_of_control_groups_are_read_and_none_is_no_limit() {
        let groups = "12:cpu,cpuacct:/a\n4:memory:/docker/b\n0::/\n";
        let file = "memory/docker/b/memory.limit_in_bytes";
        let (_root, tree) = machine(groups, &[(file, "67108864\n")]);
        assert_eq!(limit(&tree), Some(64 << 20));
        // A container sees its own group as the root.
        let (_root, tree) = machine("0::/\n", &[("memory.max", "83886080\n")]);
        assert_eq!(limit(&tree), Some(80 << 20));
        let (_root, tree) = machine("0::/\n", &[]);
        assert_eq!(limit(&tree), None);
    }
}
