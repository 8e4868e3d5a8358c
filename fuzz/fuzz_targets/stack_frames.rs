//! Peers that do whatever the bytes say, to the whole server over a simulated link and disk: it
//! does not panic, and holds no resources once they are silent and its timeouts have passed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sim::serve_fuzzed_peers(bytes));
