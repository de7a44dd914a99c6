//! The greeting, and data whose length a client announced: memory grows only as bytes arrive.

use std::io::{self, Read, Write};

use super::{MAX_SKIP, violation};
use crate::{
    Result,
    nbd::protocol::{ClientFlags, HandshakeFlags, INIT_PASSWD, OPTION_MAGIC},
};

/// Sends the greeting and reads the client's flags; `None` if the client closed the connection
/// instead.
pub(super) fn greet(io: &mut (impl Read + Write)) -> Result<Option<ClientFlags>> {
    let offered = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
    let mut greeting = [0; 18];
    greeting[..8].copy_from_slice(&INIT_PASSWD.to_be_bytes());
    greeting[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    greeting[16..].copy_from_slice(&offered.bits().to_be_bytes());
    io.write_all(&greeting)?;
    io.flush()?;
    let mut flags = [0; 4];
    if !read_or_end(io, &mut flags)? {
        return Ok(None);
    }
    let bits = u32::from_be_bytes(flags);
    ClientFlags::from_bits(bits)
        .map(Some)
        .ok_or_else(|| violation(format!("client flags {bits:#010x} are not known")))
}

/// Fills the buffer; returns false if the stream ends before the first byte.
pub(super) fn read_or_end(io: &mut impl Read, buffer: &mut [u8]) -> Result<bool> {
    let first = loop {
        match io.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => break done?,
        }
    };
    if first > 0 {
        io.read_exact(&mut buffer[first..])?;
    }
    Ok(first > 0)
}

/// Reads `length` bytes. Memory grows with the bytes that arrive, not with the announced length.
pub(super) fn read_data(io: &mut impl Read, length: u32) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    io.take(length.into()).read_to_end(&mut data)?;
    if data.len() < length as usize {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(data)
}

pub(super) fn skip(io: &mut impl Read, length: u32) -> Result<()> {
    if length > MAX_SKIP {
        return Err(violation(format!("an option with {length} bytes of data")));
    }
    let skipped = io::copy(&mut io.take(length.into()), &mut io::sink())?;
    if skipped < length.into() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(())
}
