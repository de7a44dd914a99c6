//! `underseal ecryptfs info`, `ls`, `cat`, `check`, `name`.

use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::Path;

use serde::Serialize;
use underseal_ecryptfs::tools::{
    CheckFinding, EntryKind, ListEntry, LowerFile, PlainReader, Survey, check as verify, find, list,
};
use underseal_ecryptfs::{
    Error as EcryptfsError, ErrorKind, FileHeader, HeaderLocation, KeyPacket, NameCipher,
};

use super::access::Access;
use super::report::TreeReport;
use crate::cli::{TreeCatArgs, TreeCheckArgs, TreeInfoArgs, TreeLsArgs, TreeNameArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{Versioned, print, print_json};

pub(super) fn info(args: &TreeInfoArgs, quiet: bool) -> Result<()> {
    if args.lower.is_dir() {
        return survey(args, quiet);
    }
    let lower = LowerFile::open(&args.lower)?;
    let about = About::of(&lower.header);
    if args.json { print_json(&about) } else { print(&about.to_text()) }
}

/// A header, for programs.
#[derive(Serialize)]
struct About {
    size: u64,
    header: &'static str,
    data_offset: u64,
    version: u8,
    flags: String,
    encrypted_names: bool,
    keys: Vec<AboutKey>,
}

#[derive(Serialize)]
struct AboutKey {
    signature: String,
    kind: &'static str,
    cipher: Option<&'static str>,
    key_bytes: Option<usize>,
    salt: Option<String>,
}

impl About {
    fn of(header: &FileHeader) -> Self {
        let key = |packet: &KeyPacket| {
            let (kind, salt) = match packet {
                KeyPacket::Passphrase { salt, .. } => {
                    ("passphrase", Some(salt.iter().map(|byte| format!("{byte:02x}")).collect()))
                }
                KeyPacket::PublicKey { .. } => ("public key", None),
            };
            let cipher = packet.cipher().ok();
            AboutKey {
                signature: packet.signature().to_string(),
                kind,
                cipher: cipher.map(|cipher| cipher.name()),
                key_bytes: cipher.map(|cipher| cipher.key_bytes()),
                salt,
            }
        };
        Self {
            size: header.size(),
            header: place(header),
            data_offset: header.data_offset(),
            version: header.version(),
            flags: format!("{:08x}", header.flags()),
            encrypted_names: header.has_encrypted_names(),
            keys: header.packets().iter().map(key).collect(),
        }
    }

    fn to_text(&self) -> String {
        let names = if self.encrypted_names { "encrypted" } else { "plain" };
        let mut text = format!(
            "Plain size:  {}\nHeader:      version {}, in the {}, flags {}\nData offset: {}\nNames:       {names}\n",
            self.size, self.version, self.header, self.flags, self.data_offset
        );
        for key in &self.keys {
            let cipher = match (key.cipher, key.key_bytes) {
                (Some(cipher), Some(bytes)) => format!("{cipher}, {bytes} key bytes"),
                _ => "a cipher that is not known".into(),
            };
            let salt = key.salt.as_ref().map(|salt| format!(", salt {salt}")).unwrap_or_default();
            text += &format!("Key:         {} ({}), {cipher}{salt}\n", key.signature, key.kind);
        }
        text
    }
}

fn place(header: &FileHeader) -> &'static str {
    match header.place() {
        HeaderLocation::File => "file",
        HeaderLocation::Xattr => "xattr",
    }
}

fn survey(args: &TreeInfoArgs, quiet: bool) -> Result<()> {
    /// A tree, for programs.
    #[derive(Serialize)]
    struct Tree {
        files: u64,
        in_xattrs: u64,
        plain: u64,
        encrypted_names: u64,
        long_names: u64,
        bytes: u64,
        failed: u64,
        keys: Vec<Used>,
        name_keys: Vec<NamesUnder>,
        ciphers: Vec<UsedCipher>,
        options: Option<String>,
    }
    #[derive(Serialize)]
    struct Used {
        signature: String,
        files: u64,
    }
    #[derive(Serialize)]
    struct NamesUnder {
        signature: String,
        names: u64,
    }
    #[derive(Serialize)]
    struct UsedCipher {
        cipher: String,
        key_bytes: usize,
        files: u64,
    }
    let mut told = TreeReport::new("looking", quiet);
    let found = Survey::of(&args.lower, &mut told)?;
    let tree = Tree {
        files: found.files,
        in_xattrs: found.in_xattrs,
        plain: found.plain,
        encrypted_names: found.names,
        long_names: found.long_names,
        bytes: found.bytes,
        failed: found.failed,
        keys: found
            .signatures
            .iter()
            .map(|(key, files)| Used { signature: key.to_string(), files: *files })
            .collect(),
        name_keys: found
            .name_signatures
            .iter()
            .map(|(key, names)| NamesUnder { signature: key.to_string(), names: *names })
            .collect(),
        ciphers: found
            .ciphers
            .iter()
            .map(|(&(name, key_bytes), &files)| UsedCipher { cipher: name.into(), key_bytes, files })
            .collect(),
        options: found.options(),
    };
    if args.json {
        print_json(&tree)?;
    } else {
        let mut text = format!(
            "Encrypted:   {} files, {} bytes; {} headers in xattrs\nPlain:       {} files\n",
            tree.files, tree.bytes, tree.in_xattrs, tree.plain
        );
        for Used { signature, files } in &tree.keys {
            text += &format!("Key:         {signature} ({files} files)\n");
        }
        for NamesUnder { signature, names } in &tree.name_keys {
            text += &format!("Key of names: {signature} ({names} names)\n");
        }
        if tree.long_names > 0 {
            text += &format!("Long names:  {} (the kernel does not show them)\n", tree.long_names);
        }
        for UsedCipher { cipher, key_bytes, files } in &tree.ciphers {
            text += &format!("Cipher:      {cipher}, {key_bytes} key bytes ({files} files)\n");
        }
        if let Some(options) = &tree.options {
            text += &format!("Options:     {options}\n");
        }
        print(&text)?;
    }
    let summary =
        underseal_ecryptfs::tools::Summary { files: found.files, failed: found.failed, ..Default::default() };
    told.finish(&summary, false, true)
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

pub(super) fn cat(args: &TreeCatArgs) -> Result<()> {
    let mut access = Access::new(&args.keys, &args.lower)?;
    let path = match &args.path {
        Some(plain) => find(&args.lower, plain, &mut access.keys)?,
        None => args.lower.clone(),
    };
    let lower = match LowerFile::open(&path) {
        // A mount shows an empty file in the same way.
        Err(e) if e.kind() == ErrorKind::Empty => return Ok(()),
        lower => lower?,
    };
    let key = access.keys.unlock(&lower.header).map_err(|e| e.in_file(&path))?;
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

pub(super) fn check(args: &TreeCheckArgs, quiet: bool) -> Result<()> {
    #[derive(Serialize)]
    struct Checked {
        files: u64,
        bytes: u64,
        plain_or_empty: u64,
        failed: u64,
        findings: Vec<Found>,
    }
    #[derive(Serialize)]
    struct Found {
        path: String,
        finding: String,
    }
    let mut access = Access::new(&args.keys, &args.lower)?;
    let mut told = TreeReport::new("checking", quiet);
    let mut findings = Vec::new();
    let mut count = 0u64;
    let mut tell = |path: &Path, finding: CheckFinding| {
        let words = match finding {
            CheckFinding::Plain => "it is not encrypted".into(),
            CheckFinding::Zeros => "it is nothing but zeros: an empty file".into(),
            CheckFinding::Longer { bytes } => format!("{bytes} bytes more than its header says"),
            CheckFinding::Tail => "behind its end there is something else than zeros: it is damaged".into(),
            CheckFinding::Repaired { size: (before, after) } => {
                format!("repaired: it was cut, and has {after} bytes now instead of {before}")
            }
            CheckFinding::LeftOver => {
                "it holds the name of nothing: it is left over, and may be removed".into()
            }
            CheckFinding::Cipher(cipher) => format!("its cipher is another than the first file's: {cipher}"),
        };
        count += u64::from(finding == CheckFinding::Tail);
        let path = path.to_string_lossy().replace(|c: char| c.is_control(), "?");
        match args.json {
            // This number is enough to see the fault; the count reports the rest.
            true if findings.len() < 100_000 => findings.push(Found { path, finding: words }),
            true => {}
            false => log::warn!("{path}: {words}"),
        }
    };
    let summary = verify(&args.lower, &mut access.keys, args.repair, &mut told, &mut tell)?;
    if args.json {
        print_json(&Checked {
            files: summary.files,
            bytes: summary.bytes,
            plain_or_empty: summary.unchanged,
            failed: summary.failed,
            findings,
        })?;
    }
    told.finish(&summary, false, quiet)?;
    match count {
        0 => Ok(()),
        _ => {
            Err(Error::new(Exit::Partial, "some files are damaged").with_remedy("restore them from a backup"))
        }
    }
}

pub(super) fn name(args: &TreeNameArgs) -> Result<()> {
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
