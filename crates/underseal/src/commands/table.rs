//! `underseal table`.

mod active;
mod foreign;
mod plain;

pub(crate) use active::{Active, over};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use underseal_device::{Device, ErrorKind as DeviceErrorKind, FileDevice, OpenOptions};
use underseal_export::control::Known;
use underseal_export::control::status::{Format, Opened as Described};
use underseal_volume::table::{Base, Table};
use underseal_volume::{ErrorKind, ReadAt};

use self::foreign::TableVolumeArgs;
use self::plain::TablePlainArgs;
use super::read::Output;
use super::reencrypt::tables;
use super::write::Input;
use super::{open, same_file};
use crate::cli::{LowerArgs, OnError, RateArg, ServeArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::integrity;
use crate::lower::{Lower, is_remote};
use crate::output::print;
use crate::passphrase::secret_file;
use crate::reencryption::marker;
use crate::volume::{Locks, Opened, key_size};

/// Works on dm-crypt's own tables, as dmsetup takes and prints them.
///
/// Lines are START LENGTH crypt CIPHER KEY IV-OFFSET DEVICE OFFSET [#OPTIONS OPTION..], or linear,
/// integrity, zero and error lines; several make one device. With a name before each ("NAME: ", as
/// dmsetup prints several devices) one lies on the others: on integrity lines, by /dev/mapper/NAME.
/// What the kernel refuses is refused in its words. Keys come in the file or through the kernel's
/// keyring (:SIZE:user:NAME), never as arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableArgs {
    #[command(subcommand)]
    pub(crate) what: TableCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    Check(TableCheckArgs),
    Plain(Box<TablePlainArgs>),
    Volume(Box<TableVolumeArgs>),
    Encrypt(TableEncryptArgs),
    Decrypt(TableDecryptArgs),
    Open(Box<TableOpenArgs>),
}

/// Serves the plain bytes until SIGINT or SIGTERM, as `underseal open` does
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableOpenArgs {
    #[command(flatten)]
    pub(crate) file: TableFileArgs,
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// The volume is in the middle of a reencryption: this file says how far it is, and --new-table
    /// what it becomes
    #[arg(long, value_name = "FILE", requires = "new_table", conflicts_with = "read_only")]
    pub(crate) state: Option<PathBuf>,
    /// The table that the volume becomes
    #[arg(long, value_name = "FILE", requires = "state")]
    pub(crate) new_table: Option<PathBuf>,
    /// Resume the reencryption at RATE: "give-way" (the default, yields to clients), "full", or
    /// bytes per second
    #[arg(long, value_name = "RATE", num_args = 0..=1, require_equals = true, default_missing_value = "give-way",
        requires = "state")]
    pub(crate) reencrypt: Option<RateArg>,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

pub(super) fn run(args: &TableArgs, quiet: bool) -> Result<()> {
    match &args.what {
        TableCommand::Check(args) => check(args),
        TableCommand::Plain(args) => plain::run(args),
        TableCommand::Volume(args) => foreign::volume(args),
        TableCommand::Encrypt(args) => encrypt(args, quiet),
        TableCommand::Decrypt(args) => decrypt(args, quiet),
        TableCommand::Open(args) => {
            open::serve(&args.serve, name(&args.file), args.reencrypt.map(|rate| rate.0), quiet, || {
                if let (Some(state), Some(new)) = (&args.state, &args.new_table) {
                    return tables::open(&args.file.table, new, state, args.lower);
                }
                let options = args.lower.options(args.read_only);
                let table = parse(&args.file)?;
                let lower = files(&table);
                let Active { mapping, layers, .. } = activate(&table, options)?;
                let key_size = mapping.volume().and_then(|volume| key_size(&volume));
                let discards = mapping.discards();
                let opened = Described {
                    format: Format::Table,
                    header: None,
                    header_offset: 0,
                    key_size,
                    hash: None,
                    plain: None,
                    discards,
                };
                let (known, inside) = (Known::default(), None);
                let (locks, image) = (Locks::default(), None);
                Ok(Opened { mapping, lower, opened, known, inside, unfinished: false, locks, layers, image })
            })
        }
    }
}

/// Prints the table as the kernel's status would, and warns of weak choices
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableCheckArgs {
    #[command(flatten)]
    pub(crate) file: TableFileArgs,
    /// Print keys too; else they are zeros
    #[arg(long)]
    pub(crate) show_keys: bool,
}

/// Refuses tables that the kernel would refuse, without opening a device: a missing device only
/// causes a message.
fn check(args: &TableCheckArgs) -> Result<()> {
    let table = parse(&args.file)?;
    let mut sizes = Vec::new();
    for base in table.bases() {
        let Base::Device(name) = base else {
            // The size of this kind of base is known when it is opened.
            sizes.push(u64::MAX);
            continue;
        };
        let device = path(name);
        let size = std::fs::File::open(&device).and_then(|file| ReadAt::size(&file));
        sizes.push(size.unwrap_or_else(|e| {
            log::warn!("{}: its size is not checked: Device lookup failed: {e}", device.display());
            u64::MAX
        }));
    }
    table.volume(&sizes).map_err(refused)?;
    print_table(&table, args.show_keys)
}

/// Prints a table, with zeros for its keys unless `keys` is true.
fn print_table(table: &Table, keys: bool) -> Result<()> {
    let mut text = table.print(keys);
    text.push("\n");
    print(&text)
}

/// Returns the word that names an image in a table. Fails with `Failed` when a path cannot be made
/// absolute.
fn device_word(image: &Path) -> Result<String> {
    let device = if is_remote(image) { image.to_path_buf() } else { absolute(image)? };
    // Tables escape spaces in names with backslashes.
    Ok(device.to_string_lossy().chars().fold(String::new(), |escaped, c| {
        let mark = if c == '\\' || c.is_whitespace() { "\\" } else { "" };
        escaped + mark + c.encode_utf8(&mut [0; 4])
    }))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io(path, "cannot be found", e))
}

/// Writes plain bytes through the table onto its devices, from its start on, and flushes them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableEncryptArgs {
    #[command(flatten)]
    pub(crate) file: TableFileArgs,
    /// The plain bytes; stdin by default or for "-"
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
}

fn encrypt(args: &TableEncryptArgs, quiet: bool) -> Result<()> {
    let is_stdin = |path: &Path| path.as_os_str() == "-";
    if is_stdin(&args.file.table) && args.input.as_deref().is_none_or(is_stdin) {
        let what = "stdin holds either the table or the plain bytes";
        return Err(Error::usage(what).with_remedy("-i FILE"));
    }
    let table = parse(&args.file)?;
    let files = files(&table);
    let input = Input::open(args.input.as_deref(), files.iter().map(PathBuf::as_path))?;
    let Active { mapping, layers, .. } = activate(&table, args.lower.options(false))?;
    input.give(&Arc::new(mapping), name(&args.file), 0, quiet)?;
    integrity::close(&layers)
}

/// Reads the plain bytes of everything that the table maps
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableDecryptArgs {
    #[command(flatten)]
    pub(crate) file: TableFileArgs,
    /// The file to write, created for you alone; stdout by default, "-" for stdout even on a
    /// terminal
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// At what is not as it was written, by its tag, stop, or give zeros for it and list it on
    /// stderr
    #[arg(long, value_name = "WAY", value_enum, default_value_t = OnError::Stop)]
    pub(crate) on_error: OnError,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
}

fn decrypt(args: &TableDecryptArgs, quiet: bool) -> Result<()> {
    let table = parse(&args.file)?;
    let files = files(&table);
    // The table holds the key.
    let sources = files.iter().map(PathBuf::as_path).chain([&*args.file.table]);
    let output = Output::plan(args.output.as_deref(), sources)?;
    let mapping = Arc::new(activate(&table, args.lower.options(true))?.mapping);
    output.take(&mapping, 0..mapping.size(), args.on_error, quiet)
}

/// The source of the table.
#[derive(Debug, Args)]
pub(crate) struct TableFileArgs {
    /// The file with the table; "-" is stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) table: PathBuf,
}

/// Reads the table into locked memory, parses it, and warns of weak choices.
pub(super) fn parse(args: &TableFileArgs) -> Result<Table> {
    let text = secret_file(&args.table, 0, None)?;
    let name = name(args).display();
    let text = std::str::from_utf8(text.as_bytes())
        .map_err(|e| Error::usage(format!("{name}: byte {} is no text", e.valid_up_to())))?;
    let table = Table::parse(text).map_err(|e| refused(e).within(&name))?;
    for warning in table.warnings() {
        log::warn!("{name}: {warning}");
    }
    Ok(table)
}

/// Returns the name that users know the table by.
fn name(args: &TableFileArgs) -> &Path {
    if args.table.as_os_str() == "-" { Path::new("stdin") } else { &args.table }
}

/// Returns the table's devices by their paths.
pub(super) fn devices(table: &Table) -> Vec<PathBuf> {
    table.devices().into_iter().map(path).collect()
}

/// Returns the path of a device in a table; `MAJOR:MINOR`, as `dmsetup table` prints it, is found
/// by the system's link.
fn path(name: &str) -> PathBuf {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_number = name.split_once(':').is_some_and(|(major, minor)| number(major) && number(minor));
    let link = Path::new("/dev/block").join(name);
    if is_number && !Path::new(name).exists() && link.exists() { link } else { name.into() }
}

/// Returns all files that a table reads and writes.
fn files(table: &Table) -> Vec<PathBuf> {
    devices(table)
}

/// Opens the devices and puts the table over them.
fn activate(table: &Table, options: OpenOptions) -> Result<Active> {
    // Errors of the table itself are reported before any device is opened.
    table.check().map_err(refused)?;
    let names = table.devices();
    let paths: Vec<_> = names.iter().copied().map(path).collect();
    paths.iter().try_for_each(|path| marker::refuse_unfinished(path))?;
    let open = |path: &PathBuf| -> Result<Arc<dyn Device>> {
        match is_remote(path) {
            true => Ok(Lower::open(path, options)?.into_device()),
            false => Ok(Arc::new(FileDevice::open(path, options).map_err(lookup_failed)?)),
        }
    };
    let mut opened: Vec<Arc<dyn Device>> = Vec::with_capacity(paths.len());
    for (i, path) in paths.iter().enumerate() {
        // A file with two names is locked once.
        let device = match paths[..i].iter().position(|earlier| same_file(earlier, path)) {
            Some(earlier) => opened[earlier].clone(),
            None => open(path)?,
        };
        opened.push(device);
    }
    one_use_of_each(table)?;
    let device = |name: &str| {
        let found = names.iter().position(|known| *known == name);
        found
            .map(|at| opened[at].clone())
            .ok_or_else(|| Error::usage(format!("Device lookup failed: {name}")))
    };
    over(table, &device, options.read_only)
}

/// Refuses lines that share the device of an integrity line: they would write to its journal. Lines
/// that use the same name for the device were refused already.
fn one_use_of_each(table: &Table) -> Result<()> {
    let mut layers = Vec::new();
    let mut uses = Vec::new();
    for base in table.bases() {
        if let Base::Integrity(layer) = base {
            layers.push((uses.len(), layer.meta_device().is_some()));
        }
        uses.extend(base.devices().into_iter().map(path));
    }
    let is_same = |one: usize, other: usize| {
        one != other && (uses[one] == uses[other] || same_file(&uses[one], &uses[other]))
    };
    let metas: Vec<_> = layers.iter().filter(|(_, has_meta)| *has_meta).map(|(at, _)| at + 1).collect();
    for (at, _) in &layers {
        if (0..uses.len()).any(|other| is_same(*at, other) && !metas.contains(&other)) {
            let what = format!("{}: another line is on the device of an integrity line", uses[*at].display());
            return Err(Error::usage(what).with_remedy("that line on the integrity line's device"));
        }
    }
    for meta in metas {
        if (0..uses.len()).any(|other| is_same(meta, other)) {
            let what = format!(
                "{}: the metadata device of an integrity line is in the table twice",
                uses[meta].display()
            );
            return Err(Error::usage(what).with_remedy("a metadata device for each integrity line alone"));
        }
    }
    Ok(())
}

/// Converts an error: a refusal came before any change.
pub(super) fn refused(error: underseal_volume::Error) -> Error {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Memory => error.into(),
        _ => Error::usage(error.to_string()),
    }
}

/// Converts an error: a missing device is the table's mistake; otherwise opening it failed.
fn lookup_failed(error: underseal_device::Error) -> Error {
    const ENOENT: i32 = 2;
    let is_missing = error.errno() == Some(ENOENT);
    let error = if error.kind() == DeviceErrorKind::Open {
        let exit = if is_missing { Exit::Usage } else { Exit::Failed };
        Error::new(exit, "Device lookup failed").because(&error)
    } else {
        error.into()
    };
    if is_missing { error.with_remedy("make the file first, as large as the table wants it") } else { error }
}

const EXAMPLES: &str = "\
Examples:
  dmsetup table --showkeys secret | underseal table check --table -
  underseal table encrypt --table secret.table -i plain.img
  underseal table decrypt --table secret.table -o plain.img
  underseal table open --table secret.table --nbd unix:secret.sock
  underseal table plain old.img --hash sha256 | underseal table check --table -
  underseal table volume stick.hc --type tcrypt | underseal table check --table -";
