//! The list of keyslots.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;
use underseal_volume::Info;
use underseal_volume::info::{KdfInfo, KeyslotInfo};

use super::{EXAMPLES, Opened};
use crate::cli::HeaderPathArgs;
use crate::error::Result;
use crate::output::{print, print_json, printable};
use crate::size;

/// A keyslot, and its tokens and digest in the header.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    slot: &'a KeyslotInfo,
    /// True when the keyslot's key opens no data.
    unbound: bool,
    /// The tokens that name it.
    tokens: Vec<Token<'a>>,
}

#[derive(Serialize)]
struct Token<'a> {
    number: u32,
    #[serde(rename = "type")]
    kind: &'a str,
}

#[derive(Serialize)]
struct List<'a> {
    keyslots: Vec<Listed<'a>>,
}

/// Shows the keyslots in use, without any key
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotListArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(args: &KeyslotListArgs) -> Result<()> {
    let info = Opened::to_read(&args.of)?.header.info();
    let keyslots = info.keyslots.iter().map(|slot| listed(&info, slot)).collect();
    if args.json {
        return print_json(&List { keyslots });
    }
    let rows: Vec<[String; 6]> = keyslots.iter().map(row).collect();
    print(&aligned(["Slot", "Priority", "Key", "Passphrase cost", "Cipher", "Tokens"], &rows))
}

fn listed<'a>(info: &'a Info, slot: &'a KeyslotInfo) -> Listed<'a> {
    let digest = info.digests.iter().find(|digest| slot.digest == Some(digest.number));
    let tokens = info.tokens.iter().filter(|token| token.keyslots.contains(&slot.number));
    Listed {
        slot,
        unbound: digest.is_none_or(|digest| digest.segments.is_empty()),
        tokens: tokens.map(|token| Token { number: token.number, kind: &token.kind }).collect(),
    }
}

fn row(Listed { slot, unbound, tokens }: &Listed<'_>) -> [String; 6] {
    let not_of_data = if *unbound { ", not the data's" } else { "" };
    let cipher = match (&slot.cipher, slot.cipher_key_bits) {
        (Some(cipher), Some(bits)) => format!("{cipher}, {bits} bits"),
        _ => "-".into(),
    };
    let tokens: Vec<String> = tokens.iter().map(|token| format!("{} {}", token.number, token.kind)).collect();
    [
        slot.number.to_string(),
        slot.priority.into(),
        format!("{} bits{not_of_data}", slot.key_bits),
        slot.kdf.as_ref().map_or_else(|| slot.problem.clone().unwrap_or_default(), cost),
        cipher,
        tokens.join(", "),
    ]
}

fn cost(kdf: &KdfInfo) -> String {
    let KdfInfo { kind, hash, iterations, memory_kib, lanes, .. } = kdf;
    match (hash, memory_kib, lanes) {
        (_, Some(kib), Some(lanes)) => {
            let memory = size::show(u64::from(*kib) << 10);
            format!("{kind}, {iterations} passes, {memory}, {lanes} threads")
        }
        (Some(hash), ..) => format!("{kind}, {iterations} rounds of {hash}"),
        _ => (*kind).into(),
    }
}

/// Aligns columns.
fn aligned<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(Into::into))
        .chain(rows.iter().map(|row| row.clone().map(|c| printable(&c))))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
