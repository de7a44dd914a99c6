#![no_main]

#[allow(dead_code)] // each target uses its own part
#[path = "../../crates/integrity/tests/layout/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::journal(bytes);
});
