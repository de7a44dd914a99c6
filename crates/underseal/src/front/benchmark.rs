//! `benchmark`: the speed of this machine, in memory.

use std::time::{Duration, Instant};

use underseal_cipher::{InOutBuf, Key, SectorSize, build};
use underseal_volume::{Cost, Hash, Kdf, Pbkdf, PbkdfKind};

use super::Words;
use super::args::Args;
use super::failure::{Failure, Result};
use crate::error::Error;
use crate::output::print;

/// The default measurements: cipher and key bits.
const CIPHERS: [(&str, usize); 10] = [
    ("aes-cbc", 128),
    ("serpent-cbc", 128),
    ("twofish-cbc", 128),
    ("aes-cbc", 256),
    ("serpent-cbc", 256),
    ("twofish-cbc", 256),
    ("aes-xts", 256),
    ("aes-xts", 512),
    ("serpent-xts", 512),
    ("twofish-xts", 512),
];
const HASHES: [&str; 5] = ["sha1", "sha256", "sha512", "ripemd160", "whirlpool"];
/// The duration of each measurement.
const TIME: Duration = Duration::from_millis(100);
/// Bytes encrypted in one call.
const LEN: usize = 64 << 10;

pub(super) fn run(args: &Args, _: &Words<'_>) -> Result<()> {
    print("# Tests are approximate using memory only (no storage IO).\n")?;
    if let Some(cipher) = &args.cipher {
        let (name, bits) = (cipher.as_str(), args.key_size.unwrap_or(256));
        table_head()?;
        return row(name, bits);
    }
    if let Some(hash) = &args.hash {
        return pbkdf2(hash);
    }
    if args.pbkdf.is_none() {
        HASHES.iter().try_for_each(|hash| pbkdf2(hash))?;
    }
    for kind in [PbkdfKind::Argon2i, PbkdfKind::Argon2id] {
        if args.pbkdf.as_ref().is_none_or(|name| name == kind.name()) {
            argon2(kind, args)?;
        }
    }
    if args.pbkdf.is_some() {
        return Ok(());
    }
    table_head()?;
    CIPHERS.iter().try_for_each(|(name, bits)| row(name, *bits))
}

fn table_head() -> Result<()> {
    Ok(print("#     Algorithm |       Key |      Encryption |      Decryption\n")?)
}

fn row(name: &str, bits: usize) -> Result<()> {
    let speed = |encrypts| speed(name, bits, encrypts).map_err(|e| Failure::from(Error::from(e)));
    let (encryption, decryption) = (speed(true)?, speed(false)?);
    Ok(print(&format!("{name:>15}   {bits:>9}b {encryption:>11.1} MiB/s {decryption:>11.1} MiB/s\n"))?)
}

fn speed(name: &str, bits: usize, encrypts: bool) -> underseal_cipher::Result<f64> {
    // Without an IV mode the cheapest one is measured.
    let has_mode_only = match name.strip_prefix("capi:") {
        Some(kernel) => !kernel.rsplit(')').next().is_some_and(|end| end.starts_with('-')),
        None => name.matches('-').count() == 1,
    };
    let whole = if has_mode_only { format!("{name}-plain64") } else { name.to_owned() };
    let mut key = Key::zeroed(bits / 8)?;
    // The halves of an XTS key must differ.
    key.as_mut_bytes().iter_mut().zip(0..).for_each(|(byte, i)| *byte = i);
    let cipher = build(&whole.parse()?, &key, SectorSize::S4096)?;
    let mut data = vec![0; LEN];
    let (start, mut calls) = (Instant::now(), 0u32);
    while start.elapsed() < TIME {
        let sectors = InOutBuf::from(&mut data[..]);
        if encrypts {
            cipher.encrypt(0, sectors)
        } else {
            cipher.decrypt(0, sectors)
        }
        calls += 1;
    }
    Ok(f64::from(calls) * LEN as f64 / start.elapsed().as_secs_f64() / f64::from(1 << 20))
}

fn pbkdf2(hash: &str) -> Result<()> {
    let known: Hash = hash.parse().map_err(|e: underseal_volume::Error| Failure::from(Error::from(e)))?;
    let settled = Pbkdf { cost: Cost::Time(Duration::from_secs(1)), ..Pbkdf::pbkdf2() }.settle(known, 32);
    let Kdf::Pbkdf2 { iterations, .. } = settled.map_err(Error::from)? else { return Ok(()) };
    Ok(print(&format!("PBKDF2-{hash:<9} {iterations:>10} iterations per second for 256-bit key\n"))?)
}

fn argon2(kind: PbkdfKind, args: &Args) -> Result<()> {
    let milliseconds = args.iter_time.unwrap_or(2000);
    let own = Pbkdf { kind, cost: Cost::Time(Duration::from_millis(milliseconds)), ..Pbkdf::argon2id() };
    let asked = Pbkdf {
        memory_kib: args.pbkdf_memory.unwrap_or(own.memory_kib),
        lanes: args.pbkdf_parallel.unwrap_or(own.lanes),
        ..own
    };
    let settled = asked.settle(Hash::Sha256, 32).map_err(Error::from)?;
    let Kdf::Argon2 { passes, memory_kib, lanes, .. } = settled else { return Ok(()) };
    Ok(print(&format!(
        "{:<9} {passes:>6} iterations, {memory_kib} memory, {lanes} parallel threads (CPUs) for 256-bit key (requested \
         {milliseconds} ms time)\n",
        kind.name(),
    ))?)
}
