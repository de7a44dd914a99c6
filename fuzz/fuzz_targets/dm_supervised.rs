#![no_main]

#[path = "../../crates/dm/tests/supervised/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::call(bytes);
});
