//! A passphrase on stdin that is limited as a key file is, by `--keyfile-offset` and
//! `--keyfile-size`: the line after that offset, or as many bytes of it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::pipe::{PipeFlags, pipe_with};
use underseal_cipher::Key;

use super::args::Args;
use super::call::from_stdin;
use super::failure::{Failure, Result};
use crate::passphrase::limited_line_of_descriptor;

/// The bytes that a pipe holds.
const HOLDS: usize = 64 << 10;

/// Reads the passphrase once, and makes it the key file of `args`, as a pipe that is returned: the
/// key file is there while the pipe is.
pub(super) fn as_key_file(args: &mut Args, action: &str) -> Result<Option<OwnedFd>> {
    // Volumes are opened by another process, which reads stdin.
    let is_read_later = action == "open" && !args.serve && !args.test_passphrase;
    if !args.limits_stdin(action) || is_read_later || !args.needs_a_passphrase() {
        return Ok(None);
    }
    let Some(stdin) = from_stdin() else { return Ok(None) };
    let (offset, size) = (args.keyfile_offset.take(), args.keyfile_size.take());
    let key = limited_line_of_descriptor(stdin, offset.unwrap_or(0), size)?;
    let pipe = holding(&key)?;
    args.key_file.push(format!("/proc/self/fd/{}", pipe.as_raw_fd()).into());
    Ok(Some(pipe))
}

/// The same for the new passphrase, with `--new-keyfile-offset` and `--new-keyfile-size`: the line
/// after the one that exists, which is read first.
pub(super) fn as_new_key_file(args: &mut Args, action: &str) -> Result<Vec<OwnedFd>> {
    let given = args.new_keyfile_offset.is_some() || args.new_keyfile_size.is_some();
    let is_named = args.new_keyfile.is_some() || args.words.len() > 2;
    let Some(stdin) = from_stdin().filter(|_| given && !is_named) else { return Ok(Vec::new()) };
    if !["luksAddKey", "luksChangeKey"].contains(&action) {
        return Ok(Vec::new());
    }
    if args.key_file.first().is_some_and(|path| path.as_os_str() == "-") {
        return Err(Failure::wrong("Options --new-keyfile-* need a new key file beside --key-file -."));
    }
    let mut pipes = Vec::new();
    let mut read = |offset: Option<u64>, size| -> Result<PathBuf> {
        let pipe = holding(&limited_line_of_descriptor(stdin, offset.unwrap_or(0), size)?)?;
        let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
        pipes.push(pipe);
        Ok(path.into())
    };
    if args.key_file.is_empty() && args.needs_a_passphrase() {
        args.key_file.push(read(None, None)?);
    }
    args.new_keyfile = Some(read(args.new_keyfile_offset.take(), args.new_keyfile_size.take())?);
    Ok(pipes)
}

/// A pipe that has a passphrase in it, and nothing after that.
pub(super) fn holding(key: &Key) -> Result<OwnedFd> {
    let failed = |e: rustix::io::Errno| Failure::wrong(&format!("a pipe for the passphrase: {e}"));
    if key.len() > HOLDS {
        return Err(Failure::wrong("A passphrase on stdin has at most 64 KiB: pass --key-file FILE."));
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    rustix::io::write(&write, key.as_bytes()).map_err(failed)?;
    Ok(read)
}

impl Args {
    /// Whether a passphrase that exists is asked for.
    fn needs_a_passphrase(&self) -> bool {
        let is_new = self.unbound && self.words.first().is_some_and(|action| action == "luksAddKey");
        self.volume_key_file.is_none() && !is_new && !self.token_only
    }
}
