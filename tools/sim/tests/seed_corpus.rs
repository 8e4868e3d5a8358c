//! The kept corpora of the fuzz targets `stack_frames` and `nvme_controller`, replayed: after each input
//! the server is alive and holds nothing once its timeouts have passed, and the NVMe driver has kept its
//! promises.
//!
//! What a fuzzer found in hours is so tried in seconds, in every test run. Bounded by the corpora.

use testbed::corpus;

/// Runs every input of a target's corpus. Fewer than `inputs_min` mean that it is not the whole corpus.
#[expect(
    clippy::print_stdout,
    reason = "a panic is known by the last input named"
)]
fn replay(target: &str, inputs_min: usize, run: fn(&[u8])) {
    let inputs = corpus::inputs(&corpus::archive(target)).expect("the kept corpus");
    for (name, input) in &inputs {
        println!("{name}");
        run(input);
    }
    let count = inputs.len();
    println!("{target}: {count} inputs");
    assert!(count >= inputs_min, "{count} inputs of {target}");
}

#[test]
fn the_server_survives_every_input_of_the_seed_corpus() {
    replay("stack_frames", 1_000, sim::serve_fuzzed_peers);
}

#[test]
fn the_nvme_driver_survives_every_input_of_the_seed_corpus() {
    replay("nvme_controller", 400, sim::drive_fuzzed_controller);
}
