#![no_main]

#[allow(dead_code)] // each target uses its own part
#[path = "../../crates/formats/tests/disks/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::fvault2_metadata(bytes);
});
