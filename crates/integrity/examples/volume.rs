//! Writes and reads integrity volumes in files, so that another implementation can be tried on the
//! same ones.
//!
//! `volume format|write|kill|read|dump IMAGE MODE BLOCK HASH KEY JOURNAL-CRYPT KEY JOURNAL-MAC KEY
//! FILE [SEED]`, `-` for an absent value. `write` and `kill` write random blocks and put into FILE,
//! for each block, the version that was flushed last and the newest one; `kill` ends without
//! closing. `read` compares all blocks with FILE, `dump` writes them there. `same PLAIN FILE BLOCK`
//! compares bytes that another program read.

#![expect(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use underseal_cipher::Key;
use underseal_device::{Blocking, Device, FileDevice, OpenOptions};
use underseal_integrity::{
    Disks, IntegrityDevice, JournalCrypt, KeyedHash, NewSuperblock, OpenSettings, RunSettings, Wipe,
    WriteMode, format, wipe,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn unhex(text: &str) -> Result<Option<Key>> {
    if text == "-" {
        return Ok(None);
    }
    let bytes: std::result::Result<Vec<u8>, _> =
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[i * 2..i * 2 + 2], 16)).collect();
    Ok(Some(Key::new(&bytes?)?))
}

fn hash(name: &str, key: &str) -> Result<Option<KeyedHash>> {
    if name == "-" { Ok(None) } else { Ok(Some(KeyedHash::new(name, unhex(key)?.as_ref())?)) }
}

fn block(size: usize, number: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; size];
    }
    [number.to_le_bytes(), version.to_le_bytes()].concat().repeat(size / 16)
}

/// The version of a block, if all of it has one version.
fn version(number: u64, data: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(data[8..16].try_into().ok()?);
    (data == block(data.len(), number, version)).then_some(version)
}

fn known(file: &str) -> Vec<[u64; 2]> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .map(|line| line.split(' ').map(|n| n.parse().unwrap_or(0)).collect::<Vec<_>>())
        .map(|n| [n[0], n[1]])
        .collect()
}

fn compare(known: &[[u64; 2]], size: usize, mut read: impl FnMut(u64) -> Result<Vec<u8>>) -> Result<()> {
    for (number, [flushed, newest]) in (0..).zip(known) {
        let data = read(number)?;
        let found = version(number, &data);
        if !found.is_some_and(|version| (*flushed..=*newest).contains(&version)) {
            return Err(
                format!("block {number} of {size} bytes is {found:?}, not {flushed} to {newest}").into()
            );
        }
    }
    println!("{} blocks are right", known.len());
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["same", plain, file, size] = arguments[..] {
        let (bytes, size) = (fs::read(plain)?, size.parse()?);
        return compare(&known(file), size, |n| Ok(bytes[usize::try_from(n)? * size..][..size].to_vec()));
    }
    let [what, image, mode, size, name, key, crypt, crypt_key, mac, mac_key, file, ref rest @ ..] =
        arguments[..]
    else {
        return Err("see the head of this file".into());
    };
    let size: usize = size.parse()?;
    let mut options =
        OpenSettings::new(WriteMode::from_letter(mode.chars().next().unwrap_or('J')).ok_or("no such mode")?);
    options.hash = hash(name, key)?;
    options.journal_mac = hash(mac, mac_key)?;
    options.sectors_per_bit = Some(64);
    if let Some(key) = unhex(crypt_key)? {
        options.journal_crypt = Some(JournalCrypt::new(crypt, &key)?);
    }
    if what == "format" {
        let disk = fs::File::options().read(true).write(true).open(image)?;
        let disks = Disks::one(&disk);
        let of = NewSuperblock {
            block_size: u32::try_from(size)?,
            journal_sectors: Some(1600),
            interleave_sectors: Some(1024),
            ..NewSuperblock::default()
        };
        let superblock = of.superblock(&options, disks.sizes()?)?;
        format(&disks, &options, &superblock)?;
        let opened =
            underseal_integrity::open(&disks, &OpenSettings { mode: WriteMode::Direct, ..options.clone() })?;
        let tags = opened.tags.as_ref().ok_or("no hash")?;
        wipe(&disks, &opened.geometry, tags, 0..opened.geometry.provided(), Wipe::All)?;
        fs::write(file, "0 0\n".repeat(usize::try_from(opened.geometry.provided())? * 512 / size))?;
        println!("{}", opened.geometry.provided());
        return Ok(());
    }
    let below: Arc<dyn Device> = Arc::new(FileDevice::open(Path::new(image), OpenOptions::default())?);
    let volume = IntegrityDevice::open(below, None, &options, &RunSettings::default())?;
    while volume.status().recalculated.is_some() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut way = Blocking::new(&volume)?;
    if what == "dump" {
        let mut all = vec![0; usize::try_from(volume.geometry().size)?];
        way.read(0, &mut all)?;
        fs::write(file, all)?;
        drop(way);
        return Ok(volume.close()?);
    }
    let mut blocks = known(file);
    if what == "read" {
        let done = compare(&blocks, size, |number| {
            let mut data = vec![0; size];
            way.read(number * size as u64, &mut data)?;
            Ok(data)
        });
        drop(way);
        volume.close()?;
        return done;
    }
    let mut dice: u64 = rest.first().map_or(Ok(1), |seed| seed.parse())?;
    let mut below = |n: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % n
    };
    let last = blocks.iter().map(|[_, newest]| *newest).max().unwrap_or(0);
    for round in 1..=1500 {
        let (from, count) = (below(blocks.len() as u64 - 8), 1 + below(8));
        let numbers = from..from + count;
        let data: Vec<u8> = numbers.clone().flat_map(|number| block(size, number, last + round)).collect();
        for number in numbers {
            blocks[usize::try_from(number)?][1] = last + round;
        }
        way.write(from * size as u64, &data, false)?;
        if below(60) == 0 {
            way.flush()?;
            blocks.iter_mut().for_each(|versions| versions[0] = versions[1]);
        }
    }
    if what == "write" {
        drop(way);
        volume.close()?;
        blocks.iter_mut().for_each(|versions| versions[0] = versions[1]);
    }
    let text: String = blocks.iter().map(|[flushed, newest]| format!("{flushed} {newest}\n")).collect();
    fs::write(file, text)?;
    if what == "kill" {
        // The end drops nothing, and waits for no thread.
        std::process::abort();
    }
    Ok(())
}
