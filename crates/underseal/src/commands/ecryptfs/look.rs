//! `underseal ecryptfs ls`, `cat`, `name`.

use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use underseal_ecryptfs::tools::{EntryKind, ListEntry, LowerFile, PlainReader, find, list};
use underseal_ecryptfs::{Error as EcryptfsError, ErrorKind, NameCipher};

use super::access::{Access, HolesArgs, TreeKeyArgs};
use super::report::TreeReport;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::Versioned;

/// Lists plain names and sizes
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs ls ~/.Private
  underseal ecryptfs ls ~/.Private --json | jq -r .lower    where each file is below")]
pub(crate) struct TreeLsArgs {
    /// The lower folder
    pub(crate) lower: PathBuf,
    /// For programs: one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

pub(super) fn ls(args: &TreeLsArgs, quiet: bool) -> Result<()> {
    let mut access = Access::new(&args.keys, &args.lower)?;
    let mut told = TreeReport::new("listing", true);
    let mut out = stdout().lock();
    let mut gone = None;
    let mut tell = |entry: &ListEntry<'_>| {
        let line = if args.json { json_line(entry) } else { text_line(entry) };
        if gone.is_none() {
            gone = out.write_all(line.as_bytes()).err();
        }
        Ok::<(), EcryptfsError>(())
    };
    let summary = list(&args.lower, &mut access.keys, access.options.passthrough, &mut told, &mut tell)?;
    if let Some(e) = gone.or_else(|| out.flush().err()) {
        return Err(Error::new(Exit::Failed, "cannot write to stdout").because(&e));
    }
    told.finish(&summary, false, quiet)
}

fn text_line(entry: &ListEntry<'_>) -> String {
    let kind = match (entry.kind, &entry.header) {
        (EntryKind::Folder, _) => 'd',
        (EntryKind::File, Some(_)) => '-',
        (EntryKind::File, None) => 'p',
        (EntryKind::Symlink, _) => 'l',
        (EntryKind::Special, _) => 's',
    };
    let target = entry.target.as_ref().map(|target| format!(" -> {}", String::from_utf8_lossy(target)));
    let name = if entry.plain.as_os_str().is_empty() { Path::new(".") } else { entry.plain };
    let line = format!("{kind} {:>12} {}{}", entry.size, name.display(), target.unwrap_or_default());
    // A name must stay on its line.
    line.replace(|c: char| c.is_control(), "?") + "\n"
}

fn json_line(entry: &ListEntry<'_>) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        path: &'a str,
        lower: &'a str,
        kind: &'static str,
        size: u64,
        encrypted: bool,
        target: Option<&'a str>,
    }
    let target = entry.target.as_ref().map(|target| String::from_utf8_lossy(target));
    let line = Line {
        path: &entry.plain.to_string_lossy(),
        lower: &entry.lower.to_string_lossy(),
        kind: match entry.kind {
            EntryKind::Folder => "folder",
            EntryKind::File => "file",
            EntryKind::Symlink => "symlink",
            EntryKind::Special => "special",
        },
        size: entry.size,
        encrypted: entry.header.is_some(),
        target: target.as_deref(),
    };
    // Strings and numbers can always be serialized.
    serde_json::to_string(&Versioned::new(line)).unwrap_or_default() + "\n"
}

/// Writes a file's plain bytes to stdout
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs cat ~/.Private letters/2019.txt
  underseal ecryptfs cat ~/.Private/ECRYPTFS_FNEK_ENCRYPTED.FWb... > plain")]
pub(crate) struct TreeCatArgs {
    /// A lower file; or a lower folder
    pub(crate) lower: PathBuf,
    /// The file's plain path in that folder
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) holes: HolesArgs,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

pub(super) fn cat(args: &TreeCatArgs) -> Result<()> {
    let mut access = Access::new(&args.keys, &args.lower)?;
    let opened = match &args.path {
        Some(plain) => find(&args.lower, plain, &mut access.keys),
        None => LowerFile::open(&args.lower),
    };
    let lower = match opened {
        // A mount shows an empty file in the same way.
        Err(e) if e.kind() == ErrorKind::Empty => return Ok(()),
        lower => lower?,
    };
    let key = access.keys.unlock(&lower.header).map_err(|e| e.in_file(&lower.path))?;
    let mut reader = PlainReader::new(&lower, &key, !args.holes.no_strict)?;
    let mut out = stdout().lock();
    loop {
        let bytes = reader.next_bytes()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.map_err(|e| Error::new(Exit::Failed, "cannot write to stdout").because(&e))?;
    }
}

/// Decodes encrypted names, or encodes plain ones, one a line
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ls ~/.Private | underseal ecryptfs name - --passphrase-file secret
  underseal ecryptfs name --encode letters --passphrase-file secret")]
pub(crate) struct TreeNameArgs {
    /// Names; - reads lines from stdin
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    /// From plain to encrypted; names of 144 to 255 bytes with -o long_names
    #[arg(long)]
    pub(crate) encode: bool,
    /// The names are symlinks' targets
    #[arg(long)]
    pub(crate) target: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

pub(super) fn name(args: &TreeNameArgs) -> Result<()> {
    args.keys.must_decode_names()?;
    let mut access = Access::new(&args.keys, Path::new("the names"))?;
    let names = match args.encode {
        true => Some(names_of(&access)?),
        false => None,
    };
    let mut one = |name: &[u8]| -> Result<()> {
        let done = match (&names, args.target) {
            (None, false) => access.keys.decode_name(name),
            (None, true) => access.keys.decode_target(name),
            (Some(names), false) => names.lower(name, access.options.long_names).map(|name| name.to_vec()),
            (Some(names), true) => names.encode_target(name),
        };
        let mut done = done.map_err(|e| e.within(String::from_utf8_lossy(name)))?;
        done.push(b'\n');
        let written = stdout().lock().write_all(&done);
        written.map_err(|e| Error::new(Exit::Failed, "cannot write to stdout").because(&e))
    };
    for name in &args.names {
        if name != "-" {
            one(name.as_bytes())?;
            continue;
        }
        let mut lines = BufReader::new(stdin().lock());
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = std::io::Read::take(&mut lines, 8192).read_until(b'\n', &mut line);
            let read = read.map_err(|e| Error::new(Exit::Failed, "cannot read stdin").because(&e))?;
            if read == 0 {
                break;
            }
            one(line.strip_suffix(b"\n").unwrap_or(&line))?;
        }
    }
    Ok(())
}

/// Returns the cipher of names, if the options do not say that names are encrypted: with the key
/// that a passphrase gives for names.
fn names_of(access: &Access) -> Result<NameCipher> {
    if let Some(names) = access.new_names()? {
        return Ok(names);
    }
    Err(Error::usage("which key are names encrypted with?")
        .with_remedy("-o ecryptfs_fnek_sig=SIGNATURE; `underseal ecryptfs info` shows it"))
}
