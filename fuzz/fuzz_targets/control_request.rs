//! What a client says to a control socket.
#![no_main]

use underseal_export::control::{Refusal, Reply, Request};

// Whatever is understood says the same again; a key has the length that was promised; refusals are
// one line of JSON.
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut from = input;
    match Request::read(&mut from) {
        Ok(Ok((request, key))) => {
            assert_eq!(Request::parse(&request.line()), Ok(request.clone()));
            match request {
                Request::SetKey { size, .. } => assert_eq!(key.map(|key| key.len()), Some(size)),
                _ => assert!(key.is_none()),
            }
            assert!(input.len() - from.len() <= 4096 + (64 << 10));
        }
        Ok(Err(refusal)) => says(refusal),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::UnexpectedEof),
    }
    let _ = Reply::parse(input);
});

fn says(refusal: Refusal) {
    let line = Reply::Refused(refusal.clone()).line();
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    let Ok(Reply::Refused(again)) = Reply::parse(&line) else { panic!("{refusal:?}") };
    assert_eq!(again, refusal);
}
