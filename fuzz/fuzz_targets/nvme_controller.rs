//! The NVMe driver against a controller that answers as the bytes say: it does not panic, brings the
//! right bytes, completes what it accepted once, and gives every slot back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sim::drive_fuzzed_controller(bytes));
