#![no_main]

#[path = "../../crates/capi/tests/edge/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::calls(bytes);
});
