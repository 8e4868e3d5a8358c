//! The patterns of the paper's figure 12, worked by hand on one set of four ways, of which device writes get two.

use llc::cache::{Access, Agent, Cache, Counts, Stage};
use llc::machine::{DeviceWrites, Index, Machine, Replacement};

const SET: Machine = Machine {
    name: "one set",
    slices: 1,
    sets: 1,
    ways: 4,
    index: Index::PlainBits,
    replacement: Replacement::Lru,
    device_writes: DeviceWrites::Allocate { ways: 2 },
    private: None,
};

/// What the disk, the processor and the NIC do to a line.
const FILL: (Access, Stage) = (Access::DeviceWrite, Stage::Fill);
const SEAL: (Access, Stage) = (Access::Store, Stage::Seal);
const SEND: (Access, Stage) = (Access::DeviceRead, Stage::Send);

fn run(machine: &Machine, steps: &[((Access, Stage), u32)]) -> Counts {
    let mut cache = Cache::new(machine, 1, 1);
    for ((access, stage), line) in steps {
        cache.access(*access, *stage, 0, *line);
    }
    *cache.counts()
}

/// The non-zero causes.
fn causes(counts: &[[u64; 4]; 3]) -> Vec<(Agent, Stage, u64)> {
    let agents = [Agent::Disk, Agent::Cpu, Agent::Nic];
    let stages = [Stage::Fill, Stage::Seal, Stage::Send, Stage::Metadata];
    let all = agents
        .into_iter()
        .flat_map(|agent| stages.map(|stage| (agent, stage)));
    let all = all.map(|(agent, stage)| (agent, stage, counts[agent as usize][stage as usize]));
    all.filter(|(_, _, lines)| *lines > 0).collect()
}

#[test]
fn a_buffer_that_is_used_again_at_once_needs_no_memory() {
    let steps: Vec<_> = (0..100)
        .flat_map(|_| [FILL, SEAL, SEND].map(|it| (it, 7)))
        .collect();
    let counts = run(&SET, &steps);
    assert_eq!(
        (causes(&counts.reads), causes(&counts.writes)),
        (vec![], vec![])
    );
}

/// 12a: the NIC has sent A and B, but says so late, so that the disk writes into C and D. A and B, which nobody will
/// read, are written to memory.
#[test]
fn late_completions_cost_a_write() {
    let counts = run(
        &SET,
        &[
            (FILL, 0),
            (SEND, 0),
            (FILL, 1),
            (SEND, 1), // A, B
            (FILL, 2),
            (SEND, 2),
            (FILL, 3),
            (SEND, 3), // C, D
        ],
    );
    assert_eq!(causes(&counts.reads), []);
    assert_eq!(causes(&counts.writes), [(Agent::Disk, Stage::Send, 2)]);
}

/// 12b: four buffers are filled before the first is sent. The first two leave the two ways: a write, and a read by the
/// NIC, for each.
#[test]
fn a_batch_larger_than_the_ways_costs_a_write_and_a_read() {
    let counts = run(
        &SET,
        &[
            (FILL, 0),
            (FILL, 1),
            (FILL, 2),
            (FILL, 3),
            (SEND, 0),
            (SEND, 1),
            (SEND, 2),
            (SEND, 3),
        ],
    );
    assert_eq!(causes(&counts.reads), [(Agent::Nic, Stage::Send, 2)]);
    assert_eq!(causes(&counts.writes), [(Agent::Disk, Stage::Fill, 2)]);
}

/// 12c: the same over TLS, and what was sealed is evicted again before it is sent. A line evicted twice is written
/// twice and read twice, by the processor and by the NIC.
#[test]
fn contention_under_tls_costs_two_writes_and_two_reads() {
    let steps = [
        // A is filled, and evicted by C: the two ways hold B and C.
        (FILL, 0),
        (FILL, 1),
        (FILL, 2),
        // A is read to be sealed, into the third way; then D, E and F likewise into the fourth and those of B and C.
        (SEAL, 0),
        (SEAL, 3),
        (SEAL, 4),
        (SEAL, 5),
        // G takes the way of A, the oldest now.
        (SEAL, 6),
        (SEND, 0),
    ];
    let counts = run(&SET, &steps);
    assert_eq!(
        causes(&counts.reads),
        [(Agent::Cpu, Stage::Seal, 5), (Agent::Nic, Stage::Send, 1)]
    );
    // A by C, B and C by E and F, and A, sealed, by G.
    assert_eq!(
        causes(&counts.writes),
        [
            (Agent::Disk, Stage::Fill, 1),
            (Agent::Cpu, Stage::Fill, 2),
            (Agent::Cpu, Stage::Seal, 1)
        ]
    );
}

#[test]
fn without_injection_a_byte_is_written_and_read_once_in_plaintext_and_twice_under_tls() {
    let machine = Machine {
        device_writes: DeviceWrites::Bypass,
        ..SET
    };
    let plaintext = run(&machine, &[(FILL, 0), (SEND, 0)]);
    assert_eq!(causes(&plaintext.reads), [(Agent::Nic, Stage::Send, 1)]);
    assert_eq!(causes(&plaintext.writes), [(Agent::Disk, Stage::Fill, 1)]);
    // With TLS: sealed lines leave before they are sent, if four others come between.
    let far = run(
        &machine,
        &[
            (FILL, 0),
            (SEAL, 0),
            (SEAL, 1),
            (SEAL, 2),
            (SEAL, 3),
            (SEAL, 4),
            (SEND, 0),
        ],
    );
    assert_eq!(far.reads[Agent::Cpu as usize][Stage::Seal as usize], 5);
    assert_eq!(far.reads[Agent::Nic as usize][Stage::Send as usize], 1);
    assert_eq!(far.writes[Agent::Cpu as usize][Stage::Seal as usize], 1);
    // And none do if it is sent at once, and the disk overwrites it before it leaves.
    let near = run(&machine, &[(FILL, 0), (SEAL, 0), (SEND, 0), (FILL, 0)]);
    assert_eq!(causes(&near.reads), [(Agent::Cpu, Stage::Seal, 1)]);
    assert_eq!(causes(&near.writes), [(Agent::Disk, Stage::Fill, 2)]);
}

#[test]
fn stores_of_whole_lines_read_nothing_and_non_temporal_ones_leave_nothing() {
    let counts = run(
        &SET,
        &[
            ((Access::StoreLine, Stage::Seal), 0),
            ((Access::StoreNonTemporal, Stage::Seal), 1),
            (SEND, 0),
            (SEND, 1),
        ],
    );
    assert_eq!(causes(&counts.reads), [(Agent::Nic, Stage::Send, 1)]);
    assert_eq!(causes(&counts.writes), [(Agent::Cpu, Stage::Seal, 1)]);
}

#[test]
fn a_device_write_updates_a_line_outside_of_its_ways() {
    // The processor has A in the third way: a device write leaves it there, and B and C keep their ways.
    let load = (Access::Load, Stage::Metadata);
    let counts = run(
        &SET,
        &[
            (load, 8),
            (load, 9),
            (load, 0),
            (FILL, 1),
            (FILL, 2),
            (FILL, 0),
            (SEND, 1),
            (SEND, 2),
        ],
    );
    assert_eq!(causes(&counts.reads), [(Agent::Cpu, Stage::Metadata, 3)]);
    assert_eq!(causes(&counts.writes), []);
}
