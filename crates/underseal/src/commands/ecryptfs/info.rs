//! `underseal ecryptfs info`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use underseal_ecryptfs::tools::{LowerFile, Summary, Survey};
use underseal_ecryptfs::{FileHeader, HeaderLocation, KeyPacket};

use super::report::TreeReport;
use crate::error::Result;
use crate::output::{print, print_json};

/// Shows what a header says, or what the headers of a folder say together, without any key
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs info ~/.Private                     the options that mount it
  underseal ecryptfs info ~/.Private/notes.txt")]
pub(crate) struct TreeInfoArgs {
    /// A lower file or folder
    pub(crate) lower: PathBuf,
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(args: &TreeInfoArgs, quiet: bool) -> Result<()> {
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
    let summary = Summary { files: found.files, failed: found.failed, ..Default::default() };
    told.finish(&summary, false, true)
}
