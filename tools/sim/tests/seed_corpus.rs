//! The seed corpora of the fuzz targets `stack_frames` and `nvme_controller`, replayed: after each input
//! the server is alive and holds nothing once its timeouts have passed, and the NVMe driver has kept its
//! promises.
//!
//! What a fuzzer found in hours is so tried in seconds, in every test run. Bounded by the corpora.

use std::fs;
use std::path::Path;

/// Runs every input of a target's seed corpus. Fewer than `inputs_min` mean that it was not found.
#[expect(
    clippy::print_stdout,
    reason = "a panic is known by the last file named"
)]
fn replay(target: &str, inputs_min: usize, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seed_corpus")
        .join(target);
    let entries = fs::read_dir(&folder).expect("the seed corpus");
    let mut inputs = 0;
    for entry in entries {
        let path = entry.expect("an entry of the seed corpus").path();
        let input = fs::read(&path).expect("an input of the seed corpus");
        println!("{}", path.display());
        run(&input);
        inputs += 1;
    }
    assert!(
        inputs >= inputs_min,
        "{inputs} inputs in {}",
        folder.display()
    );
}

#[test]
fn the_server_survives_every_input_of_the_seed_corpus() {
    replay("stack_frames", 100, sim::serve_fuzzed_peers);
}

#[test]
fn the_nvme_driver_survives_every_input_of_the_seed_corpus() {
    replay("nvme_controller", 50, sim::drive_fuzzed_controller);
}
