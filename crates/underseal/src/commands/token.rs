//! `underseal token`.

mod enroll;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use underseal_tokens::Kind;
use underseal_volume::luks2::{self, NewToken, json_bytes, token_from_json};
use underseal_volume::{Header, Pinned};

use self::enroll::EnrollArgs;
use crate::cli::HeaderPathArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::open_header;
use crate::output::{json, print, print_bytes, print_json};
use crate::passphrase::secret_file;
use crate::reencryption::Bytes;

/// Lists and changes the tokens of a LUKS2 header.
///
/// A token says where a passphrase of some keyslots may be had: from a TPM, a FIDO2 device, a smart
/// card, a server, the kernel's keyring. It is JSON; what this program does not understand is kept
/// as it is.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenCommandArgs {
    #[command(subcommand)]
    pub(crate) what: Token,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    List(TokenListArgs),
    Import(TokenImportArgs),
    Export(TokenExportArgs),
    Remove(TokenRemoveArgs),
    Assign(TokenAssignArgs),
    /// Lets a token no longer open a keyslot; both stay
    #[command(after_help = EXAMPLES)]
    Unassign(TokenAssignArgs),
    Enroll(Box<EnrollArgs>),
}

pub(super) fn run(args: &TokenCommandArgs, quiet: bool) -> Result<()> {
    match &args.what {
        Token::List(args) => list(args),
        Token::Import(args) => import(args, quiet),
        Token::Export(args) => export(args),
        Token::Remove(args) => {
            let (on, mut header) = open(&args.of, false)?;
            Ok(header.remove_token(&*on, args.token_id).map_err(|e| e.in_file(args.of.path()))?)
        }
        Token::Assign(args) => assign(args, true),
        Token::Unassign(args) => assign(args, false),
        Token::Enroll(args) => enroll::run(args, quiet),
    }
}

/// Opens a LUKS2 header, and its file or device.
fn open(of: &HeaderPathArgs, read_only: bool) -> Result<(Bytes, Box<luks2::Header>)> {
    open_pinned(of, read_only, &Pinned::default())
}

/// Opens a LUKS2 header with the required properties.
fn open_pinned(of: &HeaderPathArgs, read_only: bool, pinned: &Pinned) -> Result<(Bytes, Box<luks2::Header>)> {
    let path = of.path();
    let on = open_header(path, read_only)?;
    let header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    header.hold_to(pinned).map_err(|e| e.in_file(path))?;
    match header {
        Header::Luks2(header) => Ok((on, header)),
        _ => {
            let what = format!("{}: LUKS1 has no tokens", path.display());
            Err(Error::new(Exit::Unsupported, what).with_remedy("a LUKS2 volume"))
        }
    }
}

/// Lists the tokens and the keyslots that they open
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenListArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A token for people and for programs.
#[derive(Serialize)]
struct Listed<'h> {
    number: u32,
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<u32>,
    /// True when this machine can get a passphrase from the token.
    opens: bool,
    /// The token's JSON.
    token: &'h underseal_tokens::Token,
}

#[derive(Serialize)]
struct List<'h> {
    tokens: Vec<Listed<'h>>,
}

fn list(args: &TokenListArgs) -> Result<()> {
    let (_, header) = open(&args.of, true)?;
    let mut tokens = Vec::new();
    for found in header.info().tokens {
        let token = header.token(found.number).map_err(|e| e.in_file(args.of.path()))?;
        let opens = Kind::of(&found.kind).is_some();
        tokens.push(Listed {
            number: found.number,
            kind: found.kind,
            keyslots: found.keyslots,
            opens,
            token,
        });
    }
    if args.json {
        return print_json(&List { tokens });
    }
    let mut text = String::new();
    for token in tokens {
        let slots: Vec<String> = token.keyslots.iter().map(ToString::to_string).collect();
        let slots =
            if slots.is_empty() { "no keyslot".into() } else { format!("keyslot {}", slots.join(", ")) };
        let kind = crate::output::printable(&token.kind);
        text += &format!("{:2}  {kind:20} {slots}\n", token.number);
    }
    print(&text)
}

/// Adds a token from its JSON
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenImportArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The token's JSON; "-" is stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) json_file: PathBuf,
    /// The new token's number; the first that is free by default
    #[arg(long, value_name = "N")]
    pub(crate) token_id: Option<u32>,
    /// Take the place of the token that has this number
    #[arg(long, requires = "token_id")]
    pub(crate) replace: bool,
    /// Let it open this keyslot besides those that it names
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
}

fn import(args: &TokenImportArgs, quiet: bool) -> Result<()> {
    let (on, mut header) = open(&args.of, false)?;
    let text = secret_file(&args.json_file, 0, None)?;
    let mut token = token_from_json(text.as_bytes()).map_err(|e| e.in_file(&args.json_file))?;
    // The header is changed once: a refusal leaves no token behind, and takes none away.
    if let (Some(slot), Some(Value::Array(slots))) = (args.key_slot, token.get_mut("keyslots")) {
        let slot = Value::from(slot.to_string());
        if !slots.contains(&slot) {
            slots.push(slot);
        }
    }
    if let Err(e) = underseal_tokens::check(&token) {
        log::warn!("{}: no machine can open with it: {e}", args.json_file.display());
    }
    let new = NewToken { number: args.token_id, replace: args.replace };
    let in_file = |e: underseal_volume::Error| e.in_file(args.of.path());
    let number = header.add_token(&*on, token, new).map_err(in_file)?;
    if quiet { Ok(()) } else { print(&format!("{}: token {number}\n", args.of.path().display())) }
}

/// Prints a token's JSON
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenExportArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The token's number
    #[arg(long, value_name = "N")]
    pub(crate) token_id: u32,
}

fn export(args: &TokenExportArgs) -> Result<()> {
    let (_, header) = open(&args.of, true)?;
    let token = header.token(args.token_id).map_err(|e| e.in_file(args.of.path()))?;
    print_bytes(&json_bytes(&json(token)?))
}

/// Removes a token; its keyslots stay
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenRemoveArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The token's number
    #[arg(long, value_name = "N")]
    pub(crate) token_id: u32,
}

/// Lets a token open a keyslot
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenAssignArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The token's number
    #[arg(long, value_name = "N")]
    pub(crate) token_id: u32,
    /// The keyslot's number
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: u32,
}

fn assign(args: &TokenAssignArgs, opens: bool) -> Result<()> {
    let (on, mut header) = open(&args.of, false)?;
    let assigned = header.assign_token(&*on, args.token_id, args.key_slot, opens);
    Ok(assigned.map_err(|e| e.in_file(args.of.path()))?)
}

const EXAMPLES: &str = "\
Examples:
  underseal token list disk.img
  underseal token enroll disk.img tpm2 --pcrs 7+11 --pin
  underseal token enroll disk.img --passphrase-file old clevis tang '{\"url\":\"http://tang\"}' --trust
  underseal token export disk.img --token-id 0 | underseal token import other.img
  underseal token remove disk.img --token-id 0";
