//! A client's side of the NBD handshake: any bytes, and any options in well-formed headers.
//!
//! The first byte chooses the server (TLS, full, stopping) and whether the rest is the stream
//! itself or a list of options to put headers on, so that the fuzzer need not guess a magic and a
//! length before each.
#![no_main]

use std::{
    io::{self, Cursor, Read, Write},
    sync::LazyLock,
};

use libfuzzer_sys::fuzz_target;
use underseal_export::nbd::{
    Admission, ExportInfo, Exports, Handshake, Refusal, Step, TlsUse,
    protocol::{OPTION_MAGIC, TransmissionFlags},
};

fuzz_target!(|input: &[u8]| {
    let Some((&mode, said)) = input.split_first() else { return };
    let tls = [TlsUse::Off, TlsUse::Offered, TlsUse::Required, TlsUse::Offered][usize::from(mode & 3)];
    let gate =
        Gate([None, None, Some(Refusal::Full(1)), Some(Refusal::Stopping)][usize::from(mode >> 2 & 3)]);
    let stream = if mode & 0x80 == 0 { said.to_vec() } else { options(said) };

    let mut io = Script { input: Cursor::new(stream), output: 0 };
    let mut handshake = Handshake::new(&EXPORTS, tls, &gate);
    let mut step = handshake.run(&mut io);
    while let Ok(Step::StartTls) = step {
        step = handshake.run(&mut io);
    }
    // 256 options and the greeting; the longest answer is an error that quotes 80 bytes, each
    // escaped.
    assert!(io.output <= 18 + 257 * 600, "{} bytes were said to a client", io.output);
    if let Ok(Step::Ready(negotiated)) = step {
        assert!(gate.0.is_none() && negotiated.export < EXPORTS.len());
        assert!(negotiated.base_allocation.is_none() || negotiated.structured_replies);
        assert!(tls != TlsUse::Required || negotiated.tls);
    }
});

static EXPORTS: LazyLock<Exports> = LazyLock::new(|| {
    let export = |name: &str, min_block| ExportInfo {
        name: name.into(),
        description: "of a fuzzer".into(),
        size: 1 << 20,
        min_block,
        preferred_block: 4096,
        max_block: 1 << 25,
        flags: TransmissionFlags::SEND_DF,
    };
    Exports::new(vec![export("a", 512), export("b", 4096)]).unwrap()
});

/// Client flags, then options: a number, a length and so many bytes of data each.
fn options(mut said: &[u8]) -> Vec<u8> {
    let mut stream = 3_u32.to_be_bytes().to_vec();
    while let Some((&[option, length], rest)) = said.split_first_chunk() {
        let (data, rest) = rest.split_at(rest.len().min(length.into()));
        stream.extend(OPTION_MAGIC.to_be_bytes());
        stream.extend(u32::from(option % 13).to_be_bytes());
        stream.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        stream.extend(data);
        said = rest;
    }
    stream
}

struct Script {
    input: Cursor<Vec<u8>>,
    output: usize,
}

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Gate(Option<Refusal>);

impl Admission for Gate {
    fn heard(&self) {}

    fn admit(&self) -> Result<(), Refusal> {
        self.0.map_or(Ok(()), Err)
    }

    fn stopping(&self) -> bool {
        self.0 == Some(Refusal::Stopping)
    }
}
