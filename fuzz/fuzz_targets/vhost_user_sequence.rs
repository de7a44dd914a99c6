#![no_main]

#[allow(dead_code)] // each target uses its own part
#[path = "../../crates/export/tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::vhost_user::sequence(bytes);
});
