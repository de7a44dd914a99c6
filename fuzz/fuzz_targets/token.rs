//! LUKS2 tokens: from JSON to what a tool would be given. Nothing is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(token) = underseal_volume::luks2::token_from_json(bytes) {
        let _ = underseal_tokens::check(&token);
    }
});
