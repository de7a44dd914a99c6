//! What one server says to another while it hands its volume over, and the volume that it
//! describes.
#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use underseal_cipher::Key;
use underseal_export::control::{Asking, Given, Heard, Line};
use underseal_volume::Carried;

// More than a socket takes at once, nobody reads yet.
const MOST: usize = 64 << 10;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, input)) = input.split_first() else { return };
    match kind % 3 {
        0 => described(input),
        1 => heard::<Given>(input),
        _ => heard::<Asking>(input),
    }
});

/// Whatever is taken says the same again.
fn heard<T: serde::de::DeserializeOwned + serde::Serialize>(input: &[u8]) {
    let (mut client, server) = UnixStream::pair().unwrap();
    client.write_all(&input[..input.len().min(MOST)]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let line = Line::new(OwnedFd::from(server).into());
    let until = Instant::now() + Duration::from_secs(30);
    while let Ok(Heard { message, fds, bytes }) = line.receive::<T>(until) {
        assert!(fds.is_empty());
        let value = serde_json::to_value(&message).unwrap();
        let again: T = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&again).unwrap(), value);
        // Who takes over has a limit of its own.
        let mut behind = vec![0; bytes.min(MOST as u64) as usize];
        if line.read(&mut behind, until).is_err() {
            break;
        }
    }
}

/// A volume that is built is described in the same words.
fn described(input: &[u8]) {
    let Ok(carried) = serde_json::from_slice::<Carried>(input) else { return };
    let value: Value = serde_json::to_value(&carried).unwrap();
    for len in [16, 32, 64] {
        let mut key = Key::zeroed(len).unwrap();
        key.as_mut_bytes().iter_mut().zip(0..).for_each(|(byte, nth)| *byte = nth);
        if let Ok(volume) = carried.volume(&key)
            && let Ok(again) = volume.carried()
        {
            assert_eq!(serde_json::to_value(again).unwrap(), value);
        }
    }
}
