//! Tables with integrity lines: what is not as it was written, journals, and one layer for each
//! device.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};

use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::volume::underseal;
use crate::support::{Scratch, Server, bytes, output, run, seed};
use crate::table::{decrypt, encrypt, key, table};

/// A dm-integrity volume `disk` made with these options, and how many sectors it offers.
fn make(scratch: &Scratch, options: &[&str]) -> u64 {
    let format = ["integrity", "format", "disk", "--size", "8M", "-q"];
    run(underseal().current_dir(scratch.folder()).args([&format[..], options].concat()));
    sectors(scratch, &[])
}

/// How many sectors `disk` offers.
fn sectors(scratch: &Scratch, options: &[&str]) -> u64 {
    let info = ["integrity", "info", "disk", "--json"];
    let info = output(underseal().current_dir(scratch.folder()).args([&info[..], options].concat()));
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    info["size"].as_u64().unwrap() / 512
}

/// Changes bits of a byte of the image.
fn flip(scratch: &Scratch, at: u64, bits: u8) {
    let image = File::options().read(true).write(true).open(scratch.path("disk")).unwrap();
    let mut byte = [0];
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[byte[0] ^ bits], at).unwrap();
}

#[test]
fn what_a_layer_finds_is_listed_and_gone_past() {
    let scratch = Scratch::new();
    let sectors = make(&scratch, &[]);
    let lines = format!("0 {sectors} integrity disk 0 - J 1 internal_hash:crc32c");
    let plain = bytes(seed("layer"), usize::try_from(sectors * 512).unwrap());
    encrypt(&scratch, &lines, &plain);
    assert_same(&decrypt(&scratch, &lines), &plain, "before");
    // Two sectors near the end of the image, where the end of the volume is.
    let end = 8 << 20;
    let place = |sector: usize| {
        let wanted = &plain[sector * 512..][..512];
        let disk = fs::read(scratch.path("disk")).unwrap();
        (end - (256 << 10)..end - 512).step_by(512).find(|at| &disk[*at..at + 512] == wanted).unwrap()
    };
    let last = usize::try_from(sectors).unwrap() - 100;
    for sector in [last - 7, last] {
        flip(&scratch, place(sector) as u64, 1);
    }
    let ran = output(table(&scratch, "decrypt", &lines).args(["-q", "-o", "back"]));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let ran = output(table(&scratch, "decrypt", &lines).args(["-q", "-o", "back", "--on-error", "zero"]));
    let err = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{err}");
    let mut expected = plain.clone();
    for sector in [last - 7, last] {
        let (from, to) = (sector * 512, sector * 512 + 512);
        assert!(err.contains(&format!("bytes {from} to {to}: not as written")), "{err}");
        expected[from..to].fill(0);
    }
    assert!(err.contains("1024 bytes are not as they were written"), "{err}");
    assert_same(&fs::read(scratch.path("back")).unwrap(), &expected, "zeros for what is lost");
}

#[test]
fn a_torn_and_empty_journal_does_not_keep_from_reading() {
    let scratch = Scratch::new();
    let sectors = make(&scratch, &[]);
    // In the journal's first section, the commit id of one sector is of the next round.
    for at in 504..512 {
        flip(&scratch, 4096 + 7 * 512 + at, 0x11 ^ 0x22);
    }
    let before = fs::read(scratch.path("disk")).unwrap();
    let lines = format!("0 {sectors} integrity disk 0 - J 1 internal_hash:crc32c");
    assert!(decrypt(&scratch, &lines).iter().all(|byte| *byte == 0));
    assert_same(&fs::read(scratch.path("disk")).unwrap(), &before, "reading changes nothing");
}

#[test]
fn two_layers_are_never_on_one_device() {
    let scratch = Scratch::new();
    let sectors = make(&scratch, &[]);
    symlink(scratch.path("disk"), scratch.path("link")).unwrap();
    let half = sectors / 16 * 8;
    for other in ["link", "./disk", scratch.path("disk").to_str().unwrap()] {
        let lines = format!(
            "one: 0 {sectors} integrity disk 0 - J 1 internal_hash:crc32c\n\
             two: 0 {sectors} integrity {other} 0 - J 1 internal_hash:crc32c\n\
             top: 0 {half} linear one 0\ntop: {half} {half} linear /dev/mapper/two {half}"
        );
        let ran = output(table(&scratch, "decrypt", &lines).args(["-o", "back"]));
        let err = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{other}: {err}");
        assert!(err.contains("another line is on the device of an integrity line"), "{other}: {err}");
        let lines = format!(
            "one: 0 {sectors} integrity disk 0 - J 1 internal_hash:crc32c\n\
             top: 0 {half} linear one 0\ntop: {half} {half} linear {other} {half}"
        );
        let ran = output(table(&scratch, "decrypt", &lines).args(["-o", "back"]));
        assert_eq!(ran.status.code(), Some(2), "{other}: {ran:?}");
    }
}

#[test]
fn a_cipher_uses_less_than_the_layer_keeps() {
    let scratch = Scratch::new();
    let options = ["--integrity", "none", "--tag-size", "32", "--sector-size", "4096", "--no-wipe"];
    let sectors = make(&scratch, &options);
    let lines = |bytes| {
        format!(
            "low: 0 {sectors} integrity disk 0 32 J 1 block_size:4096\n\
             top: 0 {sectors} crypt capi:gcm(aes)-random {} 0 low 0 2 integrity:{bytes}:aead sector_size:4096",
            key(32)
        )
    };
    let plain = bytes(seed("tuple"), usize::try_from(sectors * 512).unwrap());
    encrypt(&scratch, &lines(28), &plain);
    assert_same(&decrypt(&scratch, &lines(28)), &plain, "28 bytes of 32");
    let ran = output(table(&scratch, "decrypt", &lines(36)).args(["-o", "back"]));
    assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_layer_that_was_served_is_left_clean() {
    let scratch = Scratch::new();
    let sectors = make(&scratch, &[]);
    let has_bitmap = || fs::read(scratch.path("disk")).unwrap()[24] & 4 != 0;
    let lines = format!("0 {sectors} integrity disk 0 - B 1 internal_hash:crc32c");
    let server = Server::start_command(table(&scratch, "open", &lines), &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    assert!(has_bitmap(), "as long as it runs");
    drop(client);
    server.stop();
    assert!(!has_bitmap(), "its superblock still says that it runs");
}

#[test]
fn a_layer_has_its_metadata_on_a_device_of_its_own() {
    let scratch = Scratch::new();
    scratch.sparse("data", 4 << 20);
    let apart = ["--data-device", "data"];
    let format = ["integrity", "format", "disk", "--size", "1M", "-q"];
    run(underseal().current_dir(scratch.folder()).args([&format[..], &apart].concat()));
    let sectors = sectors(&scratch, &apart);
    assert_eq!(sectors, 8192, "all of the data's device");
    let line = |options: &str| format!("0 {sectors} integrity data 0 - J {options}");
    let lines = line("2 internal_hash:crc32c meta_device:disk");
    let plain = bytes(seed("meta"), 4 << 20);
    encrypt(&scratch, &lines, &plain);
    assert_same(&decrypt(&scratch, &lines), &plain, "through the layer");
    assert_same(&fs::read(scratch.path("data")).unwrap(), &plain, "data alone");
    // Of a repeated option the last one counts, as in the kernel.
    let twice = line("3 internal_hash:crc32c meta_device:nosuch meta_device:disk");
    assert_same(&decrypt(&scratch, &twice), &plain, "the last device");
    let refused = |lines: &str, status: i32, words: &str| {
        let ran = output(table(&scratch, "decrypt", lines).args(["-o", "back"]));
        let err = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(status), "{lines}: {err}");
        assert!(err.contains(words), "{lines}: {err}");
    };
    refused(&line("2 internal_hash:crc32c meta_device:nosuch"), 2, "Device lookup failed");
    refused(&line("2 internal_hash:crc32c meta_device:"), 2, "Device lookup failed");
    refused(&line("2 internal_hash:crc32c meta_device:./data"), 2, "is in the table twice");
    let shared = format!(
        "one: 0 {sectors} integrity data 0 - J 2 internal_hash:crc32c meta_device:disk\n\
         two: 0 {sectors} integrity other 0 - J 2 internal_hash:crc32c meta_device:./disk\n\
         top: 0 8 linear one 0\ntop: 8 8 linear two 8"
    );
    scratch.sparse("other", 4 << 20);
    refused(&shared, 2, "is in the table twice");
    // Decrypted data are not written over the image's own metadata.
    let ran = output(table(&scratch, "decrypt", &lines).args(["-q", "-o", "disk"]));
    assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
}
