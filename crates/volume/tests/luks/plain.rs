//! Plain volumes compared with the results of cryptsetup and a kernel for the same options.

use std::path::Path;

use sha2::{Digest, Sha256};
use underseal_cipher::{InOutBuf, SectorSize};
use underseal_volume::ErrorKind;
use underseal_volume::plain::{self, PassphraseHash, PlainOptions};

use crate::support::*;

const LONG: &str = "a much longer passphrase than any of the digests, since plain mode cuts it where the key \
                    ends, 123456789";

#[test]
fn passphrases_become_the_keys_that_cryptsetup_makes_of_them() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/plain-keys.txt");
    let table = std::fs::read_to_string(table).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(rows.len() > 80, "{}", rows.len());
    for row in rows {
        let [hash, bits, passphrase, want] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let passphrase = key(if passphrase == "S" { b"secret" } else { LONG.as_bytes() });
        let hash: PassphraseHash = hash.parse().unwrap();
        match plain::key_from_passphrase(&passphrase, &hash, bits.parse::<usize>().unwrap() / 8) {
            Ok(key) => assert_eq!(hex(key.as_bytes()), want, "{row}"),
            Err(e) => assert_eq!((e.kind(), want), (ErrorKind::BadOption, "-"), "{row}"),
        }
    }
}

#[test]
fn offset_skip_size_and_sector_size_mean_what_they_mean_to_cryptsetup() {
    // cryptsetup open --type plain --hash sha256 -s 256 -c aes-xts-plain64 --offset 8 --skip 16
    // --size 64 --sector-size 4096, zeros written through the mapping; the digest is that of the 64
    // sectors below.
    let key = plain::key_from_passphrase(&key(LONG.as_bytes()), &"sha256".parse().unwrap(), 32).unwrap();
    let options = PlainOptions {
        sector_size: SectorSize::S4096,
        offset: 8 * 512,
        iv_offset: 16,
        size: Some(64 * 512),
        ..PlainOptions::default()
    };
    let volume = plain::activate(&key, 4 << 20, &options).unwrap();
    let segment = &volume.segments()[0];
    assert_eq!((volume.size(), segment.lower(0)), (64 * 512, Some((0, 8 * 512))));
    let mut bytes = vec![0; 64 * 512];
    let (cipher, sector) = segment.cipher(0).unwrap();
    cipher.encrypt(sector, InOutBuf::from(&mut bytes[..]));
    let digest = hex(&Sha256::digest(&bytes));
    assert_eq!(digest, "3afd083b1eab3a37e5ad77da5ff3c9ded0486b29c977c7381cc83645bf4993b9");
}

#[test]
fn plain_parameters_that_do_not_fit_are_refused() {
    let key32 = key(&[1; 32]);
    let base = PlainOptions::default;
    let s4096 = SectorSize::S4096;
    let null = "cipher_null-ecb".parse().unwrap();
    for (options, size, kind) in [
        (PlainOptions { offset: 100, ..base() }, 1 << 20, ErrorKind::BadOption),
        (PlainOptions { offset: 1 << 20, ..base() }, 1 << 20, ErrorKind::TooSmall),
        (PlainOptions { size: Some(2 << 20), ..base() }, 1 << 20, ErrorKind::TooSmall),
        (PlainOptions { size: Some(0), ..base() }, 1 << 20, ErrorKind::BadOption),
        (PlainOptions { size: Some(1000), ..base() }, 1 << 20, ErrorKind::BadOption),
        (PlainOptions { iv_offset: 3, sector_size: s4096, ..base() }, 1 << 20, ErrorKind::BadOption),
        (PlainOptions { sector_size: s4096, ..base() }, 4096 + 512, ErrorKind::BadLayout),
        (
            PlainOptions { cipher: "rot13-xts-plain64".parse().unwrap(), ..base() },
            1 << 20,
            ErrorKind::Unsupported,
        ),
        (PlainOptions { cipher: null, ..base() }, 1 << 20, ErrorKind::NullCipher),
        (PlainOptions { offset: !511, ..base() }, 1 << 20, ErrorKind::TooSmall),
    ] {
        let refused = plain::activate(&key32, size, &options).unwrap_err();
        assert_eq!(refused.kind(), kind, "{options:?}: {refused}");
    }
    let refused = plain::activate(&key(&[1; 31]), 1 << 20, &base()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadOption);
}
