//! `--key-description`: the passphrase is a key of the kernel's keyring (cryptsetup 2.8).

use std::os::fd::{AsRawFd, OwnedFd};

use super::args::Args;
use super::failure::{Failure, Result};
use super::pipe::holding;

/// Actions whose passphrase may be in the keyring. `token add` writes the description into a token.
const TAKEN: [&str; 7] =
    ["open", "luksResume", "luksFormat", "luksAddKey", "resize", "luksDump", "reencrypt"];

/// Makes the key with the given description the key file of `args`, as a pipe that is returned: the
/// key file exists as long as the pipe. Tokens are not tried then, as with any key file.
pub(super) fn as_key_file(args: &mut Args, action: &str) -> Result<Option<OwnedFd>> {
    let luks = args.kind.as_deref().is_none_or(|kind| kind.starts_with("luks"));
    let Some(description) = args.key_description.as_deref() else { return Ok(None) };
    if !luks || !TAKEN.contains(&action) || !args.key_file.is_empty() || args.volume_key_file.is_some() {
        return Ok(None);
    }
    if args.disable_keyring {
        let line = "Options --key-description and --disable-keyring cannot be combined.";
        return Err(Failure::wrong(line));
    }
    let key = underseal_tokens::read_keyring(description)
        .map_err(|e| Failure::wrong(&format!("Failed to read passphrase from keyring: {e}.")))?;
    let pipe = holding(&key)?;
    args.key_file.push(format!("/proc/self/fd/{}", pipe.as_raw_fd()).into());
    Ok(Some(pipe))
}
