//! `underseal table`.

mod active;
mod foreign;

pub(crate) use active::{Active, over};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_device::{Device, ErrorKind as DeviceErrorKind, FileDevice, OpenOptions};
use underseal_export::control::Known;
use underseal_export::control::status::{Format, Opened as Described};
use underseal_volume::table::{Base, Table};
use underseal_volume::{ErrorKind, ReadAt, plain};
use zeroize::Zeroizing;

use super::read::Output;
use super::reencrypt::tables;
use super::write::Input;
use super::{open, same_file};
use crate::cli::{
    self, TableArgs, TableCheckArgs, TableDecryptArgs, TableEncryptArgs, TableFileArgs, TablePlainArgs,
};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::integrity;
use crate::lower::{Lower, is_remote, open_header};
use crate::output::print;
use crate::passphrase::{Secret, secret_file};
use crate::reencryption::{self, marker};
use crate::volume::{Locks, Opened, key_size, plain_key, plain_options};

pub(super) fn run(args: &TableArgs, quiet: bool) -> Result<()> {
    match &args.what {
        cli::Table::Check(args) => check(args),
        cli::Table::Plain(args) => plain(args),
        cli::Table::Volume(args) => foreign::volume(args),
        cli::Table::Encrypt(args) => encrypt(args, quiet),
        cli::Table::Decrypt(args) => decrypt(args, quiet),
        cli::Table::Open(args) => {
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
    print(&(table.print(args.show_keys) + "\n"))
}

/// Prints a plain volume as a table: its options and its passphrase contain the same facts.
fn plain(args: &TablePlainArgs) -> Result<()> {
    let (image, of) = (&args.image, &args.plain);
    let options = plain_options(of)?;
    let size = reencryption::size(&open_header(image, true)?)?;
    let key = plain_key(&Secret::new(args.secret.source(), image), &of.hash(), of.key_size / 8)?;
    let volume = plain::activate(&key, size, &options).map_err(|e| Error::from(e).within(image.display()))?;
    let device = device_word(image)?;
    let words = [
        (of.sector_size != 512).then(|| format!("sector_size:{}", of.sector_size)),
        of.iv_large_sectors.then(|| "iv_large_sectors".into()),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    let more = if words.is_empty() { String::new() } else { format!(" {} {}", words.len(), words.join(" ")) };
    let digits: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let line = Zeroizing::new(format!(
        "0 {} crypt {} {} {} {} {}{more}",
        volume.size() >> 9,
        options.cipher,
        *Zeroizing::new(digits),
        options.iv_offset,
        device,
        of.data_offset >> 9
    ));
    let table = Table::parse(&line).map_err(refused)?;
    print(&Zeroizing::new(table.print(true) + "\n"))
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

fn decrypt(args: &TableDecryptArgs, quiet: bool) -> Result<()> {
    let table = parse(&args.file)?;
    let files = files(&table);
    // The table holds the key.
    let sources = files.iter().map(PathBuf::as_path).chain([&*args.file.table]);
    let output = Output::plan(args.output.as_deref(), sources.map(Some))?;
    let mapping = Arc::new(activate(&table, args.lower.options(true))?.mapping);
    output.take(&mapping, 0..mapping.size(), args.on_error, quiet)
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
