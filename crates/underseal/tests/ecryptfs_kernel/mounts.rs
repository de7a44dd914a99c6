//! How trees are made, and the guest's part of it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::guest::Guest;
use crate::support::tools::tool;
use crate::support::volume::{text, underseal};
use crate::support::{Scratch, run};

/// Ciphers with key sizes: all that the kernel takes, save most of blowfish's.
pub(crate) const CIPHERS: [(&str, usize); 13] = [
    ("aes", 16),
    ("aes", 24),
    ("aes", 32),
    ("des3_ede", 24),
    ("cast5", 8),
    ("cast5", 16),
    ("blowfish", 16),
    ("blowfish", 32),
    ("blowfish", 56),
    ("twofish", 16),
    ("twofish", 32),
    ("cast6", 16),
    ("cast6", 32),
];

/// Of "the test's passphrase".
pub(crate) const PASSPHRASE: &str = "the test's passphrase";

/// The lines of a guest's script that compare a mount with a plain tree. All files are opened
/// first: of a header in an xattr the kernel learns the size only then; before, it is that of the
/// lower file, and diff believes it.
///
/// The kernel takes the header of an empty lower file, which it has where headers are in xattrs,
/// from a buffer that it did not clear: such a file may be anything. It is left out there.
pub(crate) fn compare(options: &str, plain: &str, mount: &str) -> String {
    let xattr = options.contains("ecryptfs_xattr_metadata");
    let (unread, left_out) = if xattr { ("! -name file0", "--exclude=file0") } else { ("", "") };
    format!(
        "find {mount} -type f {unread} -exec cat {{}} + > /dev/null\n\
         diff -r --no-dereference {left_out} {plain} {mount}\n"
    )
}

/// The modules of eCryptfs and its ciphers.
const MODULES: [&str; 8] = [
    "ecryptfs",
    "ecb",
    "cbc",
    "des_generic",
    "cast5_generic",
    "blowfish_generic",
    "twofish_generic",
    "cast6_generic",
];

/// The passphrase's file, and its keys' signatures.
pub(crate) struct Keys {
    pub(crate) file: PathBuf,
    pub(crate) contents: String,
    pub(crate) names: String,
}

impl Keys {
    pub(crate) fn new(scratch: &Scratch, name: &str, passphrase: &str) -> Self {
        use underseal_ecryptfs::AuthToken;
        let signature = |salt| {
            let token = AuthToken::from_passphrase(passphrase.as_bytes(), salt).unwrap();
            token.signature().to_string()
        };
        Self {
            file: scratch.file(name, format!("{passphrase}\n").as_bytes()),
            contents: signature(AuthToken::DEFAULT_SALT),
            names: signature(AuthToken::NAME_SALT),
        }
    }

    /// Mount options for the kernel, which the command takes too.
    pub(crate) fn options(&self, (cipher, key_bytes): (&str, usize), names: bool, xattr: bool) -> String {
        let mut options =
            format!("ecryptfs_sig={},ecryptfs_cipher={cipher},ecryptfs_key_bytes={key_bytes}", self.contents);
        if names {
            options += &format!(",ecryptfs_fnek_sig={}", self.names);
        }
        if xattr {
            options += ",ecryptfs_xattr_metadata";
        }
        options
    }
}

/// A guest with an empty ext4 at /run/disk, and keys in its keyring. The host's file system of the
/// test's folder has no xattrs there, so trees come and go as archives. What takes time is done
/// here, where nothing is emulated.
pub(crate) fn guest<'s>(scratch: &'s Scratch, keys: &[&Keys]) -> Guest<'s> {
    let disk = scratch.sparse("disk", 512 << 20);
    run(tool("mkfs.ext4").args(["-q", "-F", "-O", "^has_journal", text(&disk)]));
    let add = scratch.file("keys.py", include_bytes!("keys.py"));
    let files = keys.iter().map(|keys| &keys.file);
    let payloads = run(tool("/usr/bin/python3").arg(&add).arg("make").args(files));
    let payloads = scratch.file("keys", payloads.as_bytes());
    let mut guest = Guest::without_hardware(scratch);
    guest.modules(&MODULES);
    guest.task(
        "disk",
        &format!(
            "mkdir /run/disk\nmount -o loop {} /run/disk\npython3 -I -S {} add {}\n",
            text(&disk),
            text(&add),
            text(&payloads)
        ),
    );
    guest
}

/// A folder as an archive with its xattrs.
pub(crate) fn pack(folder: &Path, archive: &Path) {
    run(tool("tar")
        .args(["--xattrs", "--xattrs-include=user.*", "-cf"])
        .arg(archive)
        .arg("-C")
        .arg(folder)
        .arg("."));
}

/// Unpacks an archive of [`pack`].
pub(crate) fn unpack(archive: &Path, folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    run(tool("tar").args(["--xattrs", "--xattrs-include=user.*", "-xpf"]).arg(archive).arg("-C").arg(folder));
}

/// `underseal ecryptfs export` into a new folder.
pub(crate) fn export(lower: &Path, plain: &Path, keys: &Keys) {
    run(underseal()
        .args(["ecryptfs", "export", "-q"])
        .arg(lower)
        .arg(plain)
        .arg("--passphrase-file")
        .arg(&keys.file));
}

/// `underseal ecryptfs import` into a new folder.
pub(crate) fn import(plain: &Path, lower: &Path, keys: &Keys, options: &str) {
    let mut command = underseal();
    command.args(["ecryptfs", "import", "-q", "-o", options]).arg(plain).arg(lower);
    run(command.arg("--passphrase-file").arg(&keys.file));
}
