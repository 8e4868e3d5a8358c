//! NUMA: whether interfaces, disks and the processors that a server may use are at the same node.
//!
//! It refuses to say anything of a machine with one node, or of devices that do not tell theirs. Bounds: those
//! of the tree.

use super::Finding;
use super::tree::Tree;
use crate::start::{cores, nodes};

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    of(tree, &cores::allowed().unwrap_or_default())
}

/// `allowed`: the processors that this process may use.
fn of(tree: &Tree, allowed: &[usize]) -> Vec<Finding> {
    let controllers = tree.names("sys/class/nvme");
    let controllers: Vec<_> = controllers
        .iter()
        .filter_map(|name| Some((name, nodes::of_nvme(tree, name)?)))
        .collect();
    let names = tree.names("sys/class/net").into_iter();
    let with_node = names.filter_map(|name| {
        let node = nodes::of_interface(tree, &name)?;
        Some((name, node))
    });
    let finding = |(interface, node): (String, usize)| {
        let processors = nodes::processors(tree, node);
        let near = allowed.iter().filter(|it| processors.contains(it)).count();
        let far: Vec<&str> = controllers
            .iter()
            .filter(|(_, other)| *other != node)
            .map(|(name, _)| name.as_str())
            .collect();
        let subject = format!("NUMA, {interface}");
        let found = format!("at node {node}: {near} of its processors may be used");
        if near == 0 {
            return Finding::less(
                subject,
                found,
                format!(
                    "CPUAffinity= in the unit, or taskset, with those of /sys/devices/system/node/node{node}/cpulist"
                ),
            );
        }
        if !far.is_empty() {
            return Finding::less(
                subject,
                format!("{found}; at other nodes: {}", far.join(", ")),
                "serve what is on these disks through an interface at their node, or move them or the NIC",
            );
        }
        Finding::good(subject, found)
    };
    with_node.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::of;
    use crate::start::nodes::tests::machine;

    #[test]
    fn disks_and_processors_at_another_node_are_told_of() {
        let root = tempfile::tempdir().unwrap();
        let tree = machine(root.path(), 2);
        let all: Vec<usize> = (0..8).collect();
        let found = of(&tree, &all);
        let subjects: Vec<&str> = found.iter().map(|it| it.subject.as_str()).collect();
        assert_eq!(subjects, ["NUMA, eth0", "NUMA, eth0.100"]);
        assert_eq!(found[0].verdict, Verdict::Less);
        assert_eq!(
            found[0].found,
            "at node 1: 4 of its processors may be used; at other nodes: nvme1"
        );
        // Only processors of the other node.
        let found = of(&tree, &all[..4]);
        assert!(found[0].found.contains("node 1: 0 of its processors"));
        let remedy = found[0].remedy.as_deref().unwrap();
        assert!(remedy.contains("CPUAffinity="), "{remedy}");
        // With every disk at the interface's node nothing is wrong.
        std::fs::remove_dir_all(root.path().join("sys/class/nvme/nvme1")).unwrap();
        assert_eq!(of(&tree, &all)[0].verdict, Verdict::Good);
        let root = tempfile::tempdir().unwrap();
        assert_eq!(of(&machine(root.path(), 1), &all), []);
    }
}
