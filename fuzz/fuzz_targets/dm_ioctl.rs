#![no_main]

use underseal_cipher::Key;
use underseal_dm::header::HEADER;
use underseal_dm::script::Machine;
use underseal_dm::server::answer;
use underseal_dm::{Caller, GrantedKeys};

// Ioctls one after another, and keys that come with it where the command is 255, each as `command,
// length of the buffer (u16), buffer`: whatever they say, what is answered fits the buffer.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mapper = Machine::default().mapper();
    let mut keys = GrantedKeys::default();
    let mut rest = bytes;
    while let [command, a, b, tail @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*a, *b])).min(tail.len());
        let (buffer, tail) = tail.split_at(len);
        rest = tail;
        if *command == u8::MAX {
            let _ = keys.grant(buffer, &mapper);
            continue;
        }
        let Ok(buffer) = Key::new(buffer) else { return };
        let caller = Caller { is_there: &|| false, keys: &std::mem::take(&mut keys) };
        if let Ok(message) = answer(&mapper, 0xc138_fd00 | u32::from(*command), buffer, &caller) {
            assert!(message.answer().len() <= len.max(HEADER));
        }
    }
});
