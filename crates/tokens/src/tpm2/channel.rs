//! The connection to a TPM: one tpm2_send, commands in, answers out.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use underseal_cipher::Key;

use super::wire::Reader;
use crate::tool::{Running, Tool};
use crate::{Error, ErrorKind, Options, Result};

/// The TPM behind the kernel's resource manager.
const DEVICE: &str = "/dev/tpmrm0";

/// Response codes that ask to send the same command again.
const TESTING: u32 = 0x90a;
const YIELDED: u32 = 0x908;
const RETRY: u32 = 0x922;
/// The most repetitions: a few seconds.
const TRIES: u32 = 200;

pub(super) struct Channel {
    running: Option<Running>,
    commands: OwnedFd,
    /// Handles of this channel's objects in the TPM, to be flushed: without a resource manager they
    /// would stay.
    loaded: Vec<u32>,
}

/// A TPM's response code to a command that failed.
pub(super) struct Refused(pub(super) u32);

/// Returns the TPM's address in the form of tpm2-tools.
pub(super) fn device(options: &Options) -> Result<String> {
    match &options.tpm2_device {
        Some(device) => Ok(device.clone()),
        None if Path::new(DEVICE).exists() => Ok(format!("device:{DEVICE}")),
        None => Err(Error::new(ErrorKind::NoHardware, format!("there is no TPM 2.0 here: no {DEVICE}"))),
    }
}

impl Channel {
    pub(super) fn open(options: &Options) -> Result<Self> {
        let device = device(options)?;
        let tool = Tool::find("tpm2_send", "tpm2-tools", options.limit)?;
        let (read, commands) = crate::tool::pipe()?;
        let running = tool.env("TPM2TOOLS_TCTI", Some(&device)).start(read.into())?;
        let mut channel = Self { running: Some(running), commands, loaded: Vec::new() };
        // A TPM that already runs refuses the command, which does no harm.
        let startup = [0x80, 1, 0, 0, 0, 12, 0, 0, 1, 0x44, 0, 0];
        channel.raw(&startup)?;
        Ok(channel)
    }

    /// Sends a whole command. Returns the whole answer.
    fn raw(&mut self, command: &[u8]) -> Result<Key> {
        let Some(running) = &mut self.running else {
            return Err(Error::new(ErrorKind::Failed, "the TPM's tool is gone"));
        };
        let whole = |answer: &[u8], _: &[u8]| {
            let size = Reader(answer.get(2..).unwrap_or_default()).u32();
            size.is_some_and(|size| answer.len() >= 10.max(size as usize))
        };
        if !running.talk(Some(&self.commands), command, whole)? {
            return Err(running.failed(ErrorKind::NoHardware));
        }
        running.take_secret()
    }

    /// Sends a command's body under its tag and code; returns the answer without its head.
    pub(super) fn send(
        &mut self,
        tag: u16,
        code: u32,
        body: &[u8],
    ) -> Result<std::result::Result<Key, Refused>> {
        let size =
            u32::try_from(10 + body.len()).map_err(|_| Error::unusable("a command too long for a TPM"))?;
        let mut command = Key::zeroed(10 + body.len())?;
        let head = [&tag.to_be_bytes()[..], &size.to_be_bytes(), &code.to_be_bytes()].concat();
        command.as_mut_bytes()[..10].copy_from_slice(&head);
        command.as_mut_bytes()[10..].copy_from_slice(body);
        let mut tries = 0;
        loop {
            let answer = self.raw(command.as_bytes())?;
            let mut head = Reader(&answer.as_bytes()[6..]);
            match head.u32() {
                Some(0) => return Ok(Ok(Key::new(&answer.as_bytes()[10..])?)),
                // The TPM is busy, and did not run the command.
                Some(TESTING | YIELDED | RETRY) if tries < TRIES => tries += 1,
                Some(code) => return Ok(Err(Refused(code))),
                None => return Err(malformed()),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Records an object to be flushed in the end.
    pub(super) fn loaded(&mut self, handle: u32) {
        self.loaded.push(handle);
    }

    /// Flushes a handle.
    pub(super) fn flush(&mut self, handle: u32) {
        self.loaded.retain(|&loaded| loaded != handle);
        let flush = [&[0x80, 1, 0, 0, 0, 14, 0, 0, 1, 0x65][..], &handle.to_be_bytes()].concat();
        // An object that the TPM has already dropped is an error without effect.
        let _ = self.raw(&flush);
    }

    /// Flushes the channel's objects, and ends the tool.
    fn close(&mut self) {
        while let Some(&handle) = self.loaded.last() {
            self.flush(handle);
        }
        // Dropping kills the tool, which holds only a descriptor.
        self.running = None;
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

pub(super) fn malformed() -> Error {
    Error::new(ErrorKind::Failed, "the TPM's answer is cut short")
}
