//! The results of a crash, and refusals.

use super::*;
use crate::storage::recorder::Recorder;
use crate::{ActivateOptions, Cost, PbkdfKind, UnlockOptions};

fn cheap(version: Version) -> FormatOptions {
    let mut options = match version {
        Version::Luks1 => FormatOptions::luks1(),
        Version::Luks2 => FormatOptions { data_offset: Some(1 << 20), ..FormatOptions::luks2() },
    };
    options.pbkdf.kind = PbkdfKind::Pbkdf2;
    options.pbkdf.cost = Cost::Iterations(1000);
    options
}

fn write(disk: &Recorder, passphrase: &str, options: FormatOptions) -> Result<(Header, VolumeKey)> {
    let passphrase = Key::new(passphrase.as_bytes()).unwrap();
    let new = NewHeader::prepare(disk.bytes().len() as u64, &passphrase, options)?;
    Ok((new.write(disk)?, new.into_key()))
}

/// Returns the passphrase that opens the disk: the old one, the new one, or `None` without a
/// header.
fn state(disk: &[u8], context: &str) -> Option<&'static str> {
    let header = match Header::read(disk) {
        Ok(header) => header,
        Err(e) if e.kind() == ErrorKind::NoHeader => return None,
        Err(e) => panic!("{context}: half a header: {e}"),
    };
    let opens = |passphrase: &&str| {
        let passphrase = Key::new(passphrase.as_bytes()).unwrap();
        header.unlock(disk, &passphrase, &UnlockOptions::default()).is_ok()
    };
    let opened = ["old", "new"].into_iter().find(opens);
    assert!(opened.is_some(), "{context}: a header that nothing opens");
    opened
}

/// Simulates a crash at any time, with any one of the writes since the last sync lost.
#[test]
fn a_crash_while_formatting_leaves_no_header_or_a_whole_one() {
    for (old, new) in [
        (Version::Luks1, Version::Luks1),
        (Version::Luks1, Version::Luks2),
        (Version::Luks2, Version::Luks1),
        (Version::Luks2, Version::Luks2),
    ] {
        let disk = Recorder::new(vec![0; 3 << 20]);
        write(&disk, "old", cheap(old)).unwrap();
        disk.forget_events();
        let before = disk.bytes().clone();
        write(&disk, "new", cheap(new)).unwrap();
        assert_eq!(state(&disk.bytes(), "at the end"), Some("new"));
        disk.each_crash(before, |disk, at| {
            state(disk, &format!("{old:?} to {new:?}, {at}"));
        });
    }
}

#[test]
fn options_that_do_not_fit_each_other_are_refused() {
    let luks1 = || cheap(Version::Luks1);
    let luks2 = || cheap(Version::Luks2);
    let cipher = |text: &str| text.parse().unwrap();
    let size = |bytes| Some(SectorSize::new(bytes).unwrap());
    let argon2 = || Pbkdf { kind: PbkdfKind::Argon2id, ..luks2().pbkdf };
    let long = "x".repeat(48);
    for (name, options, kind) in [
        ("LUKS1 sectors", FormatOptions { sector_size: size(4096), ..luks1() }, ErrorKind::BadOption),
        ("LUKS1 label", FormatOptions { label: "x".into(), ..luks1() }, ErrorKind::BadOption),
        ("LUKS1 Argon2", FormatOptions { pbkdf: argon2(), ..luks1() }, ErrorKind::BadOption),
        (
            "LUKS1 capi",
            FormatOptions { cipher: cipher("capi:xts(aes)-plain64"), ..luks1() },
            ErrorKind::BadOption,
        ),
        ("LUKS1 offset", FormatOptions { data_offset: Some(4096), ..luks1() }, ErrorKind::BadOption),
        ("key size", FormatOptions { key_size: Some(40), ..luks2() }, ErrorKind::BadOption),
        (
            "no key",
            FormatOptions { volume_key: Some(Key::new(&[]).unwrap()), ..luks2() },
            ErrorKind::BadOption,
        ),
        (
            "short key",
            FormatOptions { volume_key: Some(Key::new(&[1; 31]).unwrap()), ..luks2() },
            ErrorKind::BadOption,
        ),
        ("cipher", FormatOptions { cipher: cipher("rot13-xts-plain64"), ..luks2() }, ErrorKind::BadOption),
        ("null", FormatOptions { cipher: cipher("cipher_null-ecb"), ..luks2() }, ErrorKind::NullCipher),
        ("label", FormatOptions { label: long.clone(), ..luks2() }, ErrorKind::BadOption),
        ("label", FormatOptions { label: "a\nb".into(), ..luks2() }, ErrorKind::BadOption),
        ("subsystem", FormatOptions { subsystem: long, ..luks2() }, ErrorKind::BadOption),
        ("sectors", FormatOptions { sector_size: size(8192), ..luks2() }, ErrorKind::BadOption),
        ("offset", FormatOptions { data_offset: Some(1 << 20 | 256), ..luks2() }, ErrorKind::BadOption),
        ("offset 0", FormatOptions { data_offset: Some(0), ..luks2() }, ErrorKind::BadOption),
        ("small offset", FormatOptions { data_offset: Some(128 << 10), ..luks2() }, ErrorKind::BadOption),
        ("default offset", FormatOptions { data_offset: None, ..luks2() }, ErrorKind::TooSmall),
        ("metadata", FormatOptions { metadata_size: 24 << 10, ..luks2() }, ErrorKind::BadOption),
        ("keyslots", FormatOptions { keyslots_size: Some(2 << 20), ..luks2() }, ErrorKind::BadOption),
        ("keyslots", FormatOptions { keyslots_size: Some(u64::MAX), ..luks2() }, ErrorKind::BadOption),
        ("keyslots", FormatOptions { keyslots_size: Some(4096), ..luks2() }, ErrorKind::BadOption),
        (
            "passes",
            FormatOptions { pbkdf: Pbkdf { cost: Cost::Iterations(3), ..argon2() }, ..luks2() },
            ErrorKind::BadOption,
        ),
        (
            "PBKDF2 iterations",
            FormatOptions { pbkdf: Pbkdf { cost: Cost::Iterations(999), ..luks2().pbkdf }, ..luks2() },
            ErrorKind::BadOption,
        ),
        ("lanes", FormatOptions { pbkdf: Pbkdf { lanes: 0, ..argon2() }, ..luks2() }, ErrorKind::BadOption),
        (
            "memory",
            FormatOptions { pbkdf: Pbkdf { memory_kib: 8, ..argon2() }, ..luks2() },
            ErrorKind::BadOption,
        ),
        (
            "time",
            FormatOptions {
                pbkdf: Pbkdf { cost: Cost::Time(std::time::Duration::ZERO), ..argon2() },
                ..luks2()
            },
            ErrorKind::BadOption,
        ),
    ] {
        let disk = Recorder::new(vec![7; 3 << 20]);
        let refused = write(&disk, "new", options).unwrap_err();
        assert_eq!(refused.kind(), kind, "{name}: {refused}");
        assert!(disk.is_untouched(), "{name}: nothing is written before all is checked");
    }
}

/// Tests every cipher, in every chain mode with every IV generator: either a volume is made that
/// opens, or nothing is written.
#[test]
fn a_cipher_that_cannot_be_opened_is_refused_before_the_old_header_is_touched() {
    let mut specs: Vec<String> = [
        "aes",
        "aes:2-cbc-plain64",
        "aes:64-cbc-lmk",
        "cipher_null-ecb",
        "cipher_null-cbc-plain",
        "serpent-xts-plain64",
        "capi:xts(aes)-plain64",
        "capi:cts(cbc(aes))-plain64",
        "capi:gcm(aes)-random",
        "capi:authenc(hmac(sha256),xts(aes))-random",
        "capi:cbc(aes)-lmk",
        "arc4-ecb",
    ]
    .map(Into::into)
    .into();
    let ivs = [
        "plain",
        "plain64",
        "plain64be",
        "null",
        "benbi",
        "essiv:sha256",
        "essiv:sha1",
        "essiv:nosuch",
        "eboiv",
        "elephant",
        "lmk",
        "tcw",
        "random",
        "nosuch",
    ];
    for cipher in ["aes", "des3_ede", "nosuch"] {
        for chain in ["ecb", "cbc", "pcbc", "ctr", "cts", "xts", "lrw", "hctr2", "nosuch"] {
            specs.extend(ivs.map(|iv| format!("{cipher}-{chain}-{iv}")));
        }
    }
    for wide in [
        "xchacha12,aes-adiantum",
        "xchacha20,aes-adiantum",
        "capi:xchacha20",
        "capi:chacha20",
        "chacha20-ecb",
    ] {
        specs.extend(ivs.map(|iv| format!("{wide}-{iv}")));
    }
    let old = Recorder::new(vec![0; 3 << 20]);
    write(&old, "old", cheap(Version::Luks2)).unwrap();
    let old = old.bytes().clone();
    let (mut refused, mut made) = (0, 0);
    for spec in specs.iter().filter_map(|text| text.parse::<CipherSpec>().ok()) {
        for (version, sector) in
            [(Version::Luks1, None), (Version::Luks2, None), (Version::Luks2, Some(4096))]
        {
            let sector_size = sector.map(|bytes| SectorSize::new(bytes).unwrap());
            let options =
                FormatOptions { cipher: spec.clone(), sector_size, allow_null: true, ..cheap(version) };
            let name = format!("{spec} in {version:?}, sectors of {sector:?}");
            let disk = Recorder::new(old.clone());
            match write(&disk, "new", options) {
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::BadOption), "{name}: {e}");
                    assert!(disk.is_untouched() && *disk.bytes() == old, "{name}: {e}");
                    refused += 1;
                }
                Ok(_) => {
                    let disk = disk.bytes();
                    let header = Header::read(&disk[..]).unwrap();
                    let options = UnlockOptions { allow_null: true, ..UnlockOptions::default() };
                    let opened = header.unlock(&disk[..], &Key::new(b"new").unwrap(), &options);
                    let opened = opened.unwrap_or_else(|e| panic!("{name}: {e}"));
                    let options = ActivateOptions { allow_null: true, ..ActivateOptions::default() };
                    let volume = header.activate(&opened.key, disk.len() as u64, &options);
                    volume.unwrap_or_else(|e| panic!("{name}: {e}"));
                    made += 1;
                }
            }
        }
    }
    assert!(refused > 800 && made > 150, "{refused} refused, {made} made");
}

#[test]
fn where_data_will_begin_is_known_before_the_header_is_made() {
    let aead = NewIntegrity { kind: "aead".into(), key_size: None, has_journal: false };
    let hmac = NewIntegrity { kind: "hmac(sha256)".into(), key_size: None, has_journal: true };
    let gcm = || "aes-gcm-random".parse().unwrap();
    let options: [fn() -> FormatOptions; 6] = [
        || cheap(Version::Luks1),
        || FormatOptions { key_size: Some(32), ..cheap(Version::Luks1) },
        || FormatOptions { detached: true, ..cheap(Version::Luks1) },
        || cheap(Version::Luks2),
        || FormatOptions { data_offset: None, keyslots_size: Some(64 << 20), ..cheap(Version::Luks2) },
        || FormatOptions { data_offset: None, detached: true, ..cheap(Version::Luks2) },
    ];
    let passphrase = Key::new(b"new").unwrap();
    for (index, options) in options.into_iter().enumerate() {
        let begins = options().data_begins().unwrap();
        let made = NewHeader::prepare(1 << 30, &passphrase, options()).unwrap();
        assert_eq!(begins, made.parts.data_offset, "{index}");
        assert_eq!(options().integrity_layer().unwrap(), None, "{index}");
    }
    for (cipher, integrity, sector_size) in [
        (None, hmac.clone(), None),
        (Some(gcm()), aead, Some(SectorSize::S512)),
        (None, NewIntegrity { key_size: Some(16), ..hmac }, Some(SectorSize::S4096)),
    ] {
        let options = || {
            let usual = cheap(Version::Luks2);
            let cipher = cipher.clone().unwrap_or_else(|| usual.cipher.clone());
            FormatOptions { cipher, integrity: Some(integrity.clone()), sector_size, ..usual }
        };
        let planned = options().integrity_layer().unwrap();
        let made = NewHeader::prepare(1 << 30, &passphrase, options()).unwrap();
        assert_eq!(planned, made.integrity_layer().unwrap(), "{integrity:?}");
        assert!(planned.is_some_and(|layer| layer.offset == 1 << 20), "{planned:?}");
    }
}

#[test]
fn sectors_are_large_where_the_data_and_their_start_are_whole_large_sectors() {
    for (len, offset, sector_size) in [
        (3 << 20, 1 << 20, SectorSize::S4096),
        ((3 << 20) + 512, 1 << 20, SectorSize::S512),
        ((3 << 20) + 512, (1 << 20) + 512, SectorSize::S512),
    ] {
        let disk = Recorder::new(vec![0; len]);
        let options = FormatOptions { data_offset: Some(offset), ..cheap(Version::Luks2) };
        let (header, key) = write(&disk, "new", options).unwrap();
        let volume = header.activate(&key, len as u64, &ActivateOptions::default()).unwrap();
        assert_eq!(volume.sector_size(), sector_size, "{len} bytes, data from {offset} on");
    }
}
