//! NUMA nodes: which processors are near a device, on a machine that has several.
//!
//! A frame or a block that crosses between nodes costs both; so workers run, and their memory is, where the
//! interface is. It refuses to guess: a machine with one node, a device that does not tell its node, and an
//! interface without a device (a tap, a bridge) have none. Bounds: some small files of `/sys`, read at start.

use memory::traffic::parse_processors;

use crate::doctor::tree::Tree;

const NODES: &str = "sys/devices/system/node";

/// The node of an interface's device; of a VLAN device, or another above one, that of the interface below.
#[must_use]
pub(crate) fn of_interface(tree: &Tree, interface: &str) -> Option<usize> {
    let node = |name: &str| device_node(tree, &format!("sys/class/net/{name}/device"));
    if !is_one_name(interface) {
        return None;
    }
    node(interface).or_else(|| {
        let entries = tree.names(format!("sys/class/net/{interface}"));
        entries
            .iter()
            .find_map(|name| node(name.strip_prefix("lower_")?))
    })
}

/// The node of an NVMe controller, such as `nvme0`.
#[must_use]
pub(crate) fn of_nvme(tree: &Tree, controller: &str) -> Option<usize> {
    device_node(tree, &format!("sys/class/nvme/{controller}/device"))
}

/// `None` also on a machine with one node.
fn device_node(tree: &Tree, device: &str) -> Option<usize> {
    let nodes = tree.names(NODES);
    let is_node = |name: &&String| {
        let number = name.strip_prefix("node");
        number.is_some_and(|number| number.parse::<usize>().is_ok())
    };
    if nodes.iter().filter(is_node).count() < 2 {
        return None;
    }
    // -1: the device does not tell.
    tree.read(format!("{device}/numa_node"))?.parse().ok()
}

/// The processors of a node.
#[must_use]
pub(crate) fn processors(tree: &Tree, node: usize) -> Vec<usize> {
    let list = tree.read(format!("{NODES}/node{node}/cpulist"));
    parse_processors(&list.unwrap_or_default())
}

fn is_one_name(interface: &str) -> bool {
    !interface.is_empty() && !interface.contains('/') && !interface.starts_with('.')
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::Path;

    use super::{of_interface, of_nvme, processors};
    use crate::doctor::tree::Tree;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// A machine with so many nodes of four processors; eth0 and nvme0 are at node 1, nvme1 at node 0.
    pub(crate) fn machine(root: &Path, nodes: usize) -> Tree {
        for node in 0..nodes {
            let (first, last) = (4 * node, 4 * node + 3);
            let path = format!("sys/devices/system/node/node{node}/cpulist");
            write(root, &path, &format!("{first}-{last}\n"));
        }
        write(root, "sys/devices/system/node/online", "0-1\n");
        for (device, node) in [
            ("net/eth0", "1\n"),
            ("net/eth1", "-1\n"),
            ("nvme/nvme0", "1\n"),
            ("nvme/nvme1", "0\n"),
        ] {
            write(root, &format!("sys/class/{device}/device/numa_node"), node);
        }
        write(root, "sys/class/net/eth0.100/lower_eth0/mtu", "1500\n");
        write(root, "sys/class/net/br0/mtu", "1500\n");
        Tree::under(root)
    }

    #[test]
    fn a_device_has_a_node_where_there_are_several() {
        let root = tempfile::tempdir().unwrap();
        let tree = machine(root.path(), 2);
        assert_eq!(of_interface(&tree, "eth0"), Some(1));
        assert_eq!(of_interface(&tree, "eth0.100"), Some(1), "the one below");
        for name in ["eth1", "br0", "missing", "", "..", "../net/eth0"] {
            assert_eq!(of_interface(&tree, name), None, "{name}");
        }
        assert_eq!(
            (of_nvme(&tree, "nvme0"), of_nvme(&tree, "nvme1")),
            (Some(1), Some(0))
        );
        assert_eq!(processors(&tree, 1), [4, 5, 6, 7]);
        assert!(processors(&tree, 2).is_empty());
        let root = tempfile::tempdir().unwrap();
        let one = machine(root.path(), 1);
        assert_eq!(
            (of_interface(&one, "eth0"), of_nvme(&one, "nvme1")),
            (None, None)
        );
    }
}
