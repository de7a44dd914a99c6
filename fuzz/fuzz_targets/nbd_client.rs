//! A server's side of NBD, as a lower device hears it: the handshake, and replies to three
//! requests.
//!
//! The first byte chooses what the rest is: the stream itself, or dice for replies with right
//! magics and cookies, so that the fuzzer need not guess those.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underseal_device::nbd::script::{answers, negotiate, replies};

fuzz_target!(|input: &[u8]| {
    let Some((&[mode, portion], said)) = input.split_first_chunk() else { return };
    let structured = mode & 4 == 0;
    match mode & 3 {
        0 => drop(negotiate(said, structured)),
        1 => drop(negotiate(&[b"NBDMAGICIHAVEOPT\0\x03", said].concat(), structured)),
        2 => drop(answers(said, structured, portion.into())),
        _ => {
            let said = replies(said);
            let whole = answers(&said, structured, usize::MAX);
            assert_eq!(answers(&said, structured, portion.into()), whole);
        }
    }
});
