//! `underseal ecryptfs export` and `import`.

use std::fs::{File, metadata};
use std::io::{BufReader, BufWriter, IsTerminal, Write, stdin, stdout};
use std::path::{Path, PathBuf};

use clap::Args;
use underseal_ecryptfs::tools::{
    ArchiveFile, ExportOptions, FolderSink, ImportOptions, Sink, Summary, TarSink, check_outside,
    export as to_sink, import as to_lower, import_tar,
};
use underseal_ecryptfs::{Cipher, ErrorKind, HeaderLocation};

use super::access::{Access, HolesArgs, TreeKeyArgs};
use super::report::TreeReport;
use crate::error::{Error, Result};

/// Decrypts a lower folder into a folder or a tar archive
///
/// Names, hard links, symlinks, modes, owners, times and xattrs are kept. What cannot be read is
/// told of and skipped; the exit status says so. In an archive a file that turns out to be damaged
/// half way ends in zeros.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs export ~/.Private recovered --wrapped ~/.ecryptfs/wrapped-passphrase
  underseal ecryptfs export lower - --tar --passphrase-file secret | tar -tv")]
pub(crate) struct TreeExportArgs {
    /// The lower folder
    pub(crate) lower: PathBuf,
    /// A folder that does not exist or is empty; with --tar a file, or - for stdout
    pub(crate) dest: PathBuf,
    /// Write a tar archive
    #[arg(long)]
    pub(crate) tar: bool,
    /// For programs: what was done, as one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) holes: HolesArgs,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

pub(super) fn export(args: &TreeExportArgs, quiet: bool) -> Result<()> {
    must_be_folder(&args.lower)?;
    let is_stdout = args.dest.as_os_str() == "-";
    if is_stdout && !args.tar {
        return Err(Error::usage("only an archive goes to stdout").with_remedy("--tar, or a folder"));
    }
    if is_stdout && args.json {
        return Err(
            Error::usage("stdout holds either the archive or the summary").with_remedy("without --json")
        );
    }
    if is_stdout && stdout().is_terminal() {
        return Err(Error::usage("the archive would go to the terminal").with_remedy("a file instead of -"));
    }
    if !is_stdout {
        must_be_outside(&args.dest, &args.lower)?;
    }
    let mut access = Access::new(&args.keys, &args.lower)?;
    let mut told = TreeReport::new("decrypting", quiet);
    let summary = match (args.tar, is_stdout) {
        (false, _) => run(args, &mut access, &mut FolderSink::new(&args.dest)?, &mut told)?,
        (true, true) => archive(args, &mut access, stdout().lock(), &mut told)?,
        (true, false) => {
            let file = ArchiveFile::create(&args.dest)?;
            let summary = archive(args, &mut access, &file, &mut told)?;
            file.sync()?;
            summary
        }
    };
    told.finish(&summary, args.json, quiet)
}

fn archive(
    args: &TreeExportArgs,
    access: &mut Access,
    out: impl Write,
    told: &mut TreeReport,
) -> Result<Summary> {
    let mut sink = TarSink::new(BufWriter::with_capacity(1 << 20, out));
    let summary = run(args, access, &mut sink, told)?;
    let mut out = sink.finish()?;
    out.flush().map_err(|e| Error::io(&args.dest, "cannot be written", e))?;
    Ok(summary)
}

fn run(
    args: &TreeExportArgs,
    access: &mut Access,
    sink: &mut dyn Sink,
    told: &mut TreeReport,
) -> Result<Summary> {
    let how = ExportOptions { passthrough: access.options.passthrough, strict: !args.holes.no_strict };
    Ok(to_sink(&args.lower, &mut access.keys, how, sink, told)?)
}

/// Encrypts a plain folder, or a tar archive, into a new lower folder
///
/// Of an archive nothing goes anywhere else: members whose paths begin at the root or lead out of
/// it are refused, as are links to what is not in it. Where names are encrypted, names of 144 to
/// 255 bytes need -o long_names: the kernel does not show them. Where names stay plain, those that
/// look like encrypted ones, as in a copy of a lower folder, are warned of: the other commands read
/// them with --plain-names only.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs import photos ~/.Secret
  underseal ecryptfs import photos lower -o ecryptfs_cipher=aes,ecryptfs_key_bytes=32,ecryptfs_enable_filename_crypto
  underseal ecryptfs import photos lower -o ecryptfs_xattr_metadata --passphrase-file secret
  zcat photos.tar.gz | underseal ecryptfs import - ~/.Secret")]
pub(crate) struct TreeImportArgs {
    /// The plain folder; or a tar archive, or - for one from stdin
    pub(crate) plain: PathBuf,
    /// The lower folder: it does not exist or is empty
    pub(crate) lower: PathBuf,
    /// For programs: what was done, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

pub(super) fn import(args: &TreeImportArgs, quiet: bool) -> Result<()> {
    let is_stdin = args.plain.as_os_str() == "-";
    if is_stdin && stdin().is_terminal() {
        return Err(
            Error::usage("the archive would come from the terminal").with_remedy("a file or a folder")
        );
    }
    let cannot = |doing: &'static str| move |e| Error::io(&args.plain, doing, e);
    let is_folder = !is_stdin && metadata(&args.plain).map_err(cannot("cannot be looked at"))?.is_dir();
    if is_folder {
        must_be_outside(&args.lower, &args.plain)?;
    }
    let access = Access::new(&args.keys, &args.lower)?;
    let how = ImportOptions {
        tokens: access.new_files()?,
        cipher: access.options.cipher_or(Cipher::DEFAULT)?,
        place: if access.options.xattr_metadata { HeaderLocation::Xattr } else { HeaderLocation::File },
        names: access.new_names()?,
        long_names: access.options.long_names,
    };
    let mut told = TreeReport::new("encrypting", quiet);
    let summary = match (is_folder, is_stdin) {
        (true, _) => to_lower(&args.plain, &args.lower, &how, &mut told)?,
        (false, true) => import_tar(&mut stdin().lock(), &args.lower, &how, &mut told)?,
        (false, false) => {
            let archive = File::open(&args.plain).map_err(cannot("cannot open"))?;
            import_tar(&mut BufReader::with_capacity(1 << 20, archive), &args.lower, &how, &mut told)?
        }
    };
    told.finish(&summary, args.json, quiet)
}

/// Refuses a destination whose contents the tool would read.
fn must_be_outside(destination: &Path, source: &Path) -> Result<()> {
    check_outside(destination, source).map_err(|e| match e.kind() {
        ErrorKind::BadOption => {
            Error::from(e).with_remedy(format!("a destination outside of {}", source.display()))
        }
        _ => e.into(),
    })
}

fn must_be_folder(path: &Path) -> Result<()> {
    let about = metadata(path).map_err(|e| Error::io(path, "cannot be looked at", e))?;
    if about.is_dir() {
        return Ok(());
    }
    Err(Error::usage(format!("{}: not a folder", path.display()))
        .with_remedy("`underseal ecryptfs cat` for a file"))
}
