//! The shared parts of this crate's tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use underseal_cipher::{InOutBuf, Key};
use underseal_volume::{ActivateOptions, Cost, FormatOptions, Header, PbkdfKind, UnlockOptions, Volume};

pub(crate) const PASSPHRASE: &str = "correct horse battery staple";

/// A folder that is removed at the end of the test.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates an empty image of this many bytes.
    pub(crate) fn image(&self, name: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(size).unwrap();
        path
    }

    /// Creates a file with these bytes.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Returns a file with the passphrase, without a newline.
    pub(crate) fn passphrase(&self) -> PathBuf {
        self.file("passphrase", PASSPHRASE.as_bytes())
    }
}

pub(crate) fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

pub(crate) fn key(bytes: &[u8]) -> Key {
    Key::new(bytes).unwrap()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Runs a tool that must succeed, and returns its output as bytes.
pub(crate) fn run_raw(program: &str, args: &[&str]) -> Vec<u8> {
    loop {
        let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
        let err = String::from_utf8_lossy(&output.stderr);
        // qemu-img 7.2 sometimes fails when it derives a key in less time than the clock's
        // resolution.
        if err.contains("Unable to get accurate CPU usage") {
            continue;
        }
        assert!(output.status.success(), "{program} {args:?}: {}\n{err}", output.status);
        return output.stdout;
    }
}

/// Runs a tool that must succeed, and returns its output as text.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    String::from_utf8(run_raw(program, args)).unwrap()
}

pub(crate) fn cryptsetup(args: &[&str]) -> String {
    run("cryptsetup", &[&["-q"], args].concat())
}

/// Returns options whose key derivation costs almost nothing.
pub(crate) fn cheap(mut options: FormatOptions) -> FormatOptions {
    options.pbkdf.cost = Cost::Iterations(if options.pbkdf.kind == PbkdfKind::Pbkdf2 { 1000 } else { 4 });
    options.pbkdf.memory_kib = 1024;
    options
}

pub(crate) fn size(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// Unlocks and activates an image that holds its own header.
pub(crate) fn activate(image: &Path, passphrase: &[u8]) -> underseal_volume::Result<Volume> {
    activate_with(image, image, passphrase)
}

/// Unlocks and activates; the header may be in another file.
pub(crate) fn activate_with(
    header: &Path,
    data: &Path,
    passphrase: &[u8],
) -> underseal_volume::Result<Volume> {
    let file = open(header);
    let read = Header::read(&file)?;
    let opened = read.unlock(&file, &key(passphrase), &UnlockOptions::default())?;
    let options = ActivateOptions { detached: header != data, ..ActivateOptions::default() };
    read.activate(&opened.key, size(data), &options)
}
/// Returns the plaintext of the volume's first `len` bytes, which are in `image`.
pub(crate) fn plaintext(volume: &Volume, image: &Path, len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut out = vec![0; len];
    let mut at = 0;
    while at < len {
        let index = volume.segment_index(at as u64).expect("within the volume");
        let segment = &volume.segments()[index];
        let end = len.min(usize::try_from(segment.end()).unwrap());
        let part = &mut out[at..end];
        open(image).read_exact_at(part, segment.lower(at as u64).unwrap().1).unwrap();
        let (cipher, sector) = segment.cipher(at as u64).unwrap();
        cipher.decrypt(sector, InOutBuf::from(part));
        at = end;
    }
    out
}

/// Writes plaintext at the volume's start, within its first segment.
pub(crate) fn write_plaintext(volume: &Volume, image: &Path, plain: &[u8]) {
    use std::os::unix::fs::FileExt;
    let segment = &volume.segments()[0];
    let mut bytes = plain.to_vec();
    let (cipher, sector) = segment.cipher(0).unwrap();
    cipher.encrypt(sector, InOutBuf::from(&mut bytes[..]));
    open(image).write_all_at(&bytes, segment.lower(0).unwrap().1).unwrap();
}
