//! Any bytes as the doings of strangers upon the whole server, over a simulated link and disk: it
//! does not panic, comes to rest, and gives everything back once they are gone.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sim::serve_strangers(bytes));
