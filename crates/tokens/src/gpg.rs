//! Files that GPG encrypted with a passphrase: key files of loop-AES.
//!
//! The passphrase goes through the tool's stdin, and the decrypted file comes through a pipe into
//! locked memory. The tool has a separate home, which is removed: no agent is started, and the
//! user's options have no effect.

use std::time::Duration;

use underseal_cipher::Key;

use crate::tool::Tool;
use crate::{Error, ErrorKind, Result};

/// The longest encrypted file: the capacity of a pipe. Key files of loop-AES have some 5000 bytes.
pub(crate) const MOST: usize = 60_000;

pub(crate) fn decrypt(file: &[u8], passphrase: &Key, limit: Duration) -> Result<Key> {
    if file.len() > MOST {
        let what = format!("a file of {} bytes, where {MOST} are decrypted through gpg", file.len());
        return Err(Error::new(ErrorKind::Failed, what));
    }
    if passphrase.as_bytes().contains(&b'\n') {
        return Err(Error::unusable("gpg reads one line of a passphrase, and this one has several"));
    }
    let mut line = Key::zeroed(passphrase.len() + 1)?;
    line.as_mut_bytes()[..passphrase.len()].copy_from_slice(passphrase.as_bytes());
    line.as_mut_bytes()[passphrase.len()] = b'\n';
    // Readable for this user only.
    let home = tempfile::Builder::new().prefix("underseal-gpg-").tempdir();
    let home = home.map_err(|e| Error::system("a folder for gpg", e))?;
    let tool = Tool::find("gpg", "gpg", limit)?
        .args([std::ffi::OsStr::new("--homedir"), home.path().as_os_str()])
        .args(["--no-options", "--batch", "--no-tty", "--quiet", "--no-autostart", "--no-auto-key-retrieve"])
        .args(["--pinentry-mode", "loopback", "--passphrase-fd", "0", "--max-output", "1048576"])
        .with_file("--decrypt", file)?;
    let done = tool.run(line.as_bytes())?;
    match done.failure(ErrorKind::NotUsable) {
        Some(failure) => Err(failure),
        None if done.secret.is_empty() => Err(Error::unusable("gpg decrypts the file to nothing")),
        None => Ok(done.secret),
    }
}
