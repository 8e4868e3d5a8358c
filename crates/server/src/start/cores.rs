//! Which processor each worker runs on.
//!
//! One worker to a processor, in the order of the processors that this process may use, but those at the NUMA
//! node of the interface first. Memory that a
//! thread touches first comes from the processor's own node, so whoever opens a worker's parts is bound
//! to its processor meanwhile. It refuses to choose by caches or by the NIC's interrupts: an operator
//! who knows better restricts the process (`taskset`, `CPUAffinity=`).

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::doctor::tree::Tree;
use crate::start::nodes;

/// The processors that this process may use, each by the kernel's number.
///
/// # Errors
/// What the kernel said.
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect())
}

/// The processors that this process may use, those at the node of an interface's device first; and how many
/// those are, if the machine has several nodes and any of them may be used.
///
/// # Errors
/// What the kernel said.
pub(crate) fn near_first(interface: &str) -> io::Result<(Vec<usize>, Option<usize>)> {
    Ok(near_first_of(
        &Tree::of_this_machine(),
        interface,
        allowed()?,
    ))
}

fn near_first_of(tree: &Tree, interface: &str, allowed: Vec<usize>) -> (Vec<usize>, Option<usize>) {
    let Some(node) = nodes::of_interface(tree, interface) else {
        return (allowed, None);
    };
    let processors = nodes::processors(tree, node);
    let (mut all, far): (Vec<_>, Vec<_>) =
        allowed.into_iter().partition(|it| processors.contains(it));
    let near = Some(all.len()).filter(|count| *count > 0);
    all.extend(far);
    (all, near)
}

/// The processor of each of `workers` workers; `None`: wherever the kernel puts it. A single worker is
/// not bound, and workers beyond the processors share them.
#[must_use]
pub(crate) fn assign(workers: usize, allowed: &[usize]) -> Vec<Option<usize>> {
    if workers == 1 || allowed.is_empty() {
        return vec![None; workers];
    }
    let each = allowed.iter().copied().map(Some);
    each.cycle().take(workers).collect()
}

/// Has the calling thread run on this processor only.
///
/// # Errors
/// What the kernel said.
pub(crate) fn bind_thread(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Calls `action` on this processor, if one is named and the kernel allows it; then the calling thread
/// runs where it could before.
pub(crate) fn on<T>(processor: Option<usize>, action: impl FnOnce() -> T) -> T {
    let before = processor.and_then(|processor| {
        let before = sched_getaffinity(None).ok()?;
        bind_thread(processor).ok().map(|()| before)
    });
    let result = action();
    if let Some(before) = before {
        // What was allowed before is allowed still.
        let _ = sched_setaffinity(None, &before);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::{allowed, assign, near_first_of, on};
    use crate::start::nodes::tests::machine;

    #[test]
    fn processors_at_the_interface_s_node_come_first() {
        let root = tempfile::tempdir().unwrap();
        let tree = machine(root.path(), 2);
        let order =
            |interface: &str, allowed: &[usize]| near_first_of(&tree, interface, allowed.to_vec());
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(order("eth0", &all), (vec![4, 5, 6, 7, 0, 1, 2, 3], Some(4)));
        assert_eq!(order("eth0.100", &[3, 6]), (vec![6, 3], Some(1)));
        assert_eq!(order("eth0", &[0, 1]), (vec![0, 1], None), "none is near");
        // It does not tell its node.
        assert_eq!(order("eth1", &all), (all.clone(), None));
        let root = tempfile::tempdir().unwrap();
        let one = machine(root.path(), 1);
        assert_eq!(near_first_of(&one, "eth0", all.clone()), (all, None));
    }

    #[test]
    fn several_workers_have_a_processor_each_and_one_has_none() {
        assert_eq!(assign(1, &[3, 5]), [None]);
        assert_eq!(assign(2, &[3, 5]), [Some(3), Some(5)]);
        assert_eq!(assign(3, &[3, 5]), [Some(3), Some(5), Some(3)]);
        assert_eq!(assign(2, &[]), [None, None]);
    }

    #[test]
    fn a_thread_is_bound_for_an_action_only() {
        let before = allowed().unwrap();
        let last = *before.last().unwrap();
        assert_eq!(on(Some(last), || allowed().unwrap()), [last]);
        assert_eq!(on(None, || allowed().unwrap()), before);
        assert_eq!(allowed().unwrap(), before);
    }
}
