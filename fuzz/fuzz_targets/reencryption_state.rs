#![no_main]

#[allow(dead_code)] // each target uses its own part
#[path = "../../crates/volume/tests/luks/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::reencryption_state(bytes);
});
