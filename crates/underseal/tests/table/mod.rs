//! `underseal table`: dm-crypt's own tables, checked, written, read and served.
//!
//! ```text
//!   refusals.rs  what the kernel refuses: its words, exit status 2, nothing written
//!   trips.rs     written and read back: large sectors, several lines and devices, the server
//!   integrity.rs with integrity lines: damage, journals, one layer for each device
//!   kernels.rs   tables that a real kernel wrote: the same bytes through the command
//! ```

mod integrity;
mod kernels;
mod refusals;
mod trips;

use std::process::Command;

use crate::support::volume::{text, underseal};
use crate::support::{Scratch, run};

/// The command, in the scratch folder: tables there may name devices there.
fn table(scratch: &Scratch, what: &str, table: &str) -> Command {
    let path = scratch.file("table", table.as_bytes());
    let mut command = underseal();
    command.current_dir(scratch.folder()).args(["table", what, "--table", text(&path)]);
    command
}

/// Writes plain bytes through a table.
fn encrypt(scratch: &Scratch, lines: &str, plain: &[u8]) {
    scratch.file("plain", plain);
    run(table(scratch, "encrypt", lines).args(["-q", "-i", "plain"]));
}

/// Everything that a table maps.
fn decrypt(scratch: &Scratch, lines: &str) -> Vec<u8> {
    run(table(scratch, "decrypt", lines).args(["-q", "-o", "back"]));
    std::fs::read(scratch.path("back")).unwrap()
}

/// A key of `bytes` bytes, in hex, without equal halves.
fn key(bytes: u8) -> String {
    (0..bytes).map(|i| format!("{:02x}", i.wrapping_mul(7))).collect()
}
