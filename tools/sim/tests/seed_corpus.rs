//! The seed corpus of the fuzz target `stack_frames`, replayed: after each input the server is alive, and
//! holds nothing once its timeouts have passed.
//!
//! What a fuzzer found in hours is so tried in seconds, in every test run. Bounded by the corpus.

use std::fs;
use std::path::Path;

/// Fewer mean that the corpus was not found.
const INPUTS_MIN: usize = 100;

#[test]
fn the_server_survives_every_input_of_the_seed_corpus() {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fuzz/seed_corpus/stack_frames"
    );
    let entries = fs::read_dir(Path::new(folder)).expect("the seed corpus");
    let mut inputs = 0;
    for entry in entries {
        let path = entry.expect("an entry of the seed corpus").path();
        let input = fs::read(&path).expect("an input of the seed corpus");
        // Its panic names the file.
        println!("{}", path.display());
        sim::serve_fuzzed_peers(&input);
        inputs += 1;
    }
    assert!(inputs >= INPUTS_MIN, "{inputs} inputs in {folder}");
}
