//! Key files: 1, 64 or 65 lines of one length.

use underseal_cipher::Key;
use underseal_volume::Hash;
use underseal_volume::plain::{PassphraseHash, key_from_passphrase};

use crate::{Error, ErrorKind, Result};

/// The mark of an armoured file.
const PGP: &[u8] = b"BEGIN PGP MESSAGE";
/// Bytes at the beginning of a file that are searched for the mark, as by cryptsetup.
const SEARCHED: usize = 100;

/// Whether a file is encrypted with GPG and must be decrypted first: armoured, or packets of
/// OpenPGP (RFC 9580, 4.2), which begin with a byte that no text begins with.
pub fn is_pgp(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(SEARCHED)];
    head.windows(PGP.len()).any(|window| window == PGP) || bytes.first().is_some_and(|byte| byte & 0x80 != 0)
}

/// A key file with checked lines.
#[derive(Debug)]
pub struct KeyFile<'a> {
    lines: Vec<Line<'a>>,
}

/// A line without its end: a key before it is hashed.
struct Line<'a>(&'a [u8]);

impl std::fmt::Debug for Line<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<'a> KeyFile<'a> {
    /// Reads the bytes of a whole file, line ends and all.
    ///
    /// # Errors
    /// `BadOption` for anything but 1, 64 or 65 lines of one length, each with its end.
    pub fn parse(bytes: &'a Key) -> Result<Self> {
        let bytes = bytes.as_bytes();
        let bad = |why: &str| Error::new(ErrorKind::BadOption, format!("no loop-AES key file: {why}"));
        let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
        if is_pgp(bytes) {
            return Err(bad("it is encrypted with GPG; decrypt it first, and hand it in on standard input"));
        }
        match (bytes.first(), bytes.last()) {
            (Some(first), Some(last)) if !is_end(first) && is_end(last) => {}
            (None, _) => return Err(bad("it is empty")),
            (Some(first), _) if is_end(first) => return Err(bad("it begins with the end of a line")),
            _ => return Err(bad("its last line has no end")),
        }
        let mut lines = Vec::new();
        for line in bytes.split(is_end).filter(|line| !line.is_empty()) {
            if lines.len() == 65 {
                return Err(bad("it has more than 65 lines"));
            }
            lines.push(Line(line));
        }
        if !matches!(lines.len(), 1 | 64 | 65) {
            return Err(bad(&format!("it has {} lines, where 1, 64 or 65 are keys", lines.len())));
        }
        if lines.iter().any(|line| line.0.len() != lines[0].0.len()) {
            return Err(bad("its lines are not of one length"));
        }
        Ok(Self { lines })
    }

    /// The version of loop-AES that it goes with: 1, 2 or 3.
    pub fn version(&self) -> u32 {
        match self.lines.len() {
            1 => 1,
            64 => 2,
            _ => 3,
        }
    }

    /// How many keys it has.
    pub fn count(&self) -> usize {
        self.lines.len()
    }

    /// All keys of `size` bytes one after the other, the seed of version 3 last.
    ///
    /// Returns `BadOption` when the hash is shorter than a key, and `Memory`.
    pub(super) fn keys(&self, hash: Hash, size: usize) -> Result<Key> {
        if hash.output_len() < size {
            let context = format!("hash {hash} is shorter than keys of {size} bytes");
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        // The mark makes the keys of one version differ from those of another version.
        let mark = match self.version() {
            1 => 0,
            2 => 0x55,
            _ => 0xf4,
        };
        let mut all = Key::zeroed(self.lines.len() * size)?;
        for (line, out) in self.lines.iter().zip(all.as_mut_bytes().chunks_exact_mut(size)) {
            let hashed = PassphraseHash { hash: Some(hash), len: None };
            let key = key_from_passphrase(&Key::new(line.0)?, &hashed, size)?;
            out.copy_from_slice(key.as_bytes());
            out[0] ^= mark;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopaes::{Options, open};

    /// Line i: SHA-256 of "line ii", in hexadecimal.
    fn file(lines: usize) -> Key {
        let line = |nth| {
            let digest = Hash::Sha256.digest(&[format!("line {nth:02}").as_bytes()]);
            hex::encode(digest) + "\n"
        };
        Key::new((0..lines).map(line).collect::<String>().as_bytes()).unwrap()
    }

    /// Known answers of an independent implementation that was checked against aespipe: sectors 100
    /// and 101 of zeros, encrypted.
    #[test]
    fn every_version_and_key_size_encrypts_as_aespipe_does() {
        for (lines, key_bits, expected) in [
            (1, 128, "3e627c632fb65fb707cc08b98a281eb8"),
            (1, 192, "fd01439b966e81a742427cb1593aec72"),
            (1, 256, "31ac2c24fa550e268318d1345bb32d23"),
            (64, 128, "33ef0cc6755cc71654ee2425c6577b02"),
            (64, 192, "a285f37c636a826103b911ec41edbd12"),
            (64, 256, "ad42e762f69aa7baee68e6df6a9f2d24"),
            (65, 128, "508394ebc9eda11cf22ed6b510f3ad09"),
            (65, 192, "093a63e697f46f612bdeff1c61b232fd"),
            (65, 256, "1a1e21bde1d1f87da696de3618ec6da1"),
        ] {
            let bytes = file(lines);
            let key_file = KeyFile::parse(&bytes).unwrap();
            let options = Options { key_bits, skip: Some(100), ..Options::default() };
            let opened = open(&key_file, 1024, &options).unwrap();
            let (cipher, number) = opened.volume.segments()[0].cipher(0).unwrap();
            let mut data = [0; 1024];
            cipher.encrypt(number, data.as_mut_slice().into());
            let digest = hex::encode(Hash::Sha256.digest(&[&data]));
            assert_eq!(&digest[..32], expected, "{lines} lines, {key_bits} bits");
        }
    }

    #[test]
    fn options_that_no_volume_has_are_refused() {
        let bytes = file(1);
        let key_file = KeyFile::parse(&bytes).unwrap();
        let default = Options::default;
        for (options, size, kind) in [
            (Options { key_bits: 512, ..default() }, 1024, ErrorKind::BadOption),
            (Options { hash: Some(Hash::Sha1), ..default() }, 1024, ErrorKind::BadOption),
            (Options { offset: u64::MAX, ..default() }, 1024, ErrorKind::BadOption),
            (Options { offset: 2, ..default() }, 1024 + 511, ErrorKind::TooSmall),
            (Options { cipher: "aes-cbc".into(), ..default() }, 1024, ErrorKind::BadOption),
            (Options { cipher: "xyz".into(), ..default() }, 1024, ErrorKind::Unsupported),
        ] {
            assert_eq!(open(&key_file, size, &options).unwrap_err().kind(), kind, "{options:?}");
        }
        // An offset is the first sector's number too, unless that is given.
        let at = |options: Options| {
            let opened = open(&key_file, 8192, &options).unwrap();
            opened.volume.segments()[0].cipher(0).unwrap().1
        };
        assert_eq!(at(Options { offset: 4, ..default() }), 4);
        assert_eq!(at(Options { offset: 4, skip: Some(0), ..default() }), 0);
    }

    #[test]
    fn files_of_openpgp_are_told_by_their_beginning() {
        assert!(is_pgp(b"-----BEGIN PGP MESSAGE-----\n"));
        assert!(is_pgp(b"\x8c\x0d\x04"));
        assert!(!is_pgp(b"abc\n") && !is_pgp(b""));
    }
}
