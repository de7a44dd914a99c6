//! `underseal reencrypt` as whole programs, beside cryptsetup.
//!
//! ```text
//!   alone.rs    a closed volume: new key, cipher, sectors; stopped and resumed; losses; prompts
//!   both.rs     what is stopped here goes on in cryptsetup, and the other way round
//!   plain.rs    encrypted and decrypted where it lies
//!   doubts.rs   data that are encrypted in place after a word only
//!   tables.rs   volumes without a header
//!   keys.rs     keyslots with different passphrases
//!   kernels.rs  a block device below, a file system above
//!   replaced.rs images and headers that are removed or replaced meanwhile
//!   online.rs   an open volume, through two exports: paused, killed, closed, opened in the middle
//!   served.rs   an open volume, which no program reencrypts as if it were closed
//! ```

mod alone;
mod both;
mod doubts;
mod kernels;
mod keys;
mod online;
mod plain;
mod replaced;
mod restored;
mod served;
mod tables;

use crate::control::operator::Operator;
use crate::support::volume::{CHEAP_PBKDF2, Volume, text};
use crate::support::{Scratch, bytes, run, tool};

const SYNCS: [&str; 2] = ["fsync", "fdatasync"];

/// A volume of 32 MiB with random bytes in it.
fn filled(scratch: &Scratch, test: &str, options: &[&str]) -> (Volume, Vec<u8>) {
    filled_to(scratch, test, 32, options)
}

/// A volume of this many MiB with random bytes in it.
fn filled_to(scratch: &Scratch, test: &str, size: usize, options: &[&str]) -> (Volume, Vec<u8>) {
    // The header takes 16 MiB.
    let volume = Volume::at(scratch, "image").format(&format!("{}M", size + 16), options);
    let plain = bytes(crate::support::seed(test), size << 20);
    volume.write(0, &plain);
    (volume, plain)
}

/// `reencrypt` with the volume's passphrase.
fn reencrypt(volume: &Volume, options: &str) -> std::process::Command {
    let mut command = volume.command("reencrypt");
    command.args(options.split_whitespace());
    command
}

/// The output of `cryptsetup luksDump`.
fn dump(image: &std::path::Path) -> String {
    let output = crate::support::output(tool("cryptsetup").arg("luksDump").arg(image));
    String::from_utf8(output.stdout).unwrap()
}

/// The header as `underseal info` prints it.
fn info(volume: &Volume) -> serde_json::Value {
    let output = crate::support::output(
        crate::support::volume::underseal().args(["info", "--json"]).arg(&volume.image),
    );
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// The salts and digests, which are others under another key.
fn digests(volume: &Volume) -> String {
    info(volume)["digests"].to_string()
}

/// The number of segments with data: more than one in the middle of a reencryption.
fn parts(volume: &Volume) -> usize {
    let info = info(volume);
    let is_part = |segment: &&serde_json::Value| segment["flags"].as_array().is_some_and(Vec::is_empty);
    info["segments"].as_array().map_or(0, |segments| segments.iter().filter(is_part).count())
}

/// cryptsetup, with the volume's passphrase as a key file.
fn cryptsetup(volume: &Volume, words: &str) -> std::process::Command {
    let mut command = tool("cryptsetup");
    command.args(words.split_whitespace()).arg("-q").arg(&volume.image).arg("-d").arg(&volume.passphrase);
    command
}
