//! The persona `cryptsetup`: its verbs, options, questions and exit statuses.
//!
//! ```text
//!   cryptsetup luksAddKey disk.img new.key
//!        |
//!   args     options by cryptsetup's names
//!   verb     the action, under all of its names; takes: the action's options; fit: combinations
//!        |
//!   open, volume, keyslots, header, tokens, reencrypt: actions as commands --> call --> commands
//!   look, dump, key, status, benchmark: actions that only show; tcrypt, foreign: other formats
//!        |
//!   failure  cryptsetup's exit statuses
//!
//!   place    the path of an open volume's plain bytes; loops: as a block device
//! ```

mod args;
mod benchmark;
mod call;
mod dump;
mod failure;
mod fit;
mod foreign;
mod header;
mod key;
mod keyring;
mod keyslots;
mod look;
pub(crate) mod loops;
mod open;
mod pipe;
mod place;
mod reencrypt;
mod status;
mod takes;
mod tcrypt;
mod terminal;
mod tokens;
mod verb;
mod volume;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use self::args::Args;
use self::failure::{Failure, Result};
pub(crate) use self::open::before_unmounting;
use self::verb::Verb;
use crate::output::print;
use crate::persona::{self, Persona};

/// Returns true when this process was started as cryptsetup.
pub(crate) fn is_called() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    Path::new(&name).file_name() == Some(OsStr::new("cryptsetup"))
}

/// Returns the name that users know a volume by: a loop device's file.
pub(crate) fn known_as(device: &Path) -> PathBuf {
    loops::file_of(device).unwrap_or_else(|| device.to_owned())
}

/// Does the action of a `cryptsetup` command line.
pub(crate) fn run(protected: std::io::Result<()>) -> ExitCode {
    let (mut args, given) = match Args::of_process() {
        Ok(parsed) => parsed,
        Err(e) => {
            // The first line has the error; the others describe options that were not used.
            let text = e.to_string();
            let line = text.lines().next().unwrap_or_default();
            return Failure::wrong(line.trim_start_matches("error: ")).report(false);
        }
    };
    crate::start(protected, if args.debug { log::LevelFilter::Debug } else { log::LevelFilter::Warn });
    args.kind = verb::kind(&args.words).map(str::to_owned).or(args.kind);
    let verbose = args.verbose || args.debug;
    // cryptsetup, too, takes 0 for no limit.
    let patience = args.timeout.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let wrong = if args.kind.as_deref() == Some("tcrypt") { tcrypt::WRONG } else { Persona::NO_KEY };
    persona::speak(Persona::cryptsetup(
        verb::questions(&args.words),
        wrong,
        args.tries.unwrap_or(3).max(1),
        patience,
        (verbose, args.verify_passphrase || !args.batch_mode),
    ));
    match act(&mut args, &given) {
        Ok(()) if verbose => print("Command successful.\n").map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(verbose),
    }
}

fn act(args: &mut Args, given: &[String]) -> Result<()> {
    if args.version {
        return Ok(print(&format!(
            "cryptsetup 2.7.0 (underseal {}) flags: BLKID KEYRING\n",
            env!("CARGO_PKG_VERSION")
        ))?);
    }
    if args.help || args.usage {
        return Ok(print(&verb::help())?);
    }
    let Some((action, words)) = args.words.split_first() else {
        return Err(Failure::wrong("Argument <action> missing."));
    };
    let verb = Verb::find(&action.to_string_lossy())?;
    let mut words = Words { verb, words: words.iter().map(PathBuf::from).collect() };
    takes::check(verb.name, given)?;
    // No size is any size.
    for size in [&mut args.keyfile_size, &mut args.new_keyfile_size] {
        size.take_if(|size| *size == 0);
    }
    args.fit(verb.name)?;
    if args.test_args {
        return Ok(());
    }
    if let Some(name) = args.not_kept(verb.name) {
        return Err(Failure::unsupported(&format!("{name} is not supported")));
    }
    terminal::asks(args, &mut words)?;
    let _key = keyring::as_key_file(args, verb.name)?;
    let _line = pipe::as_key_file(args, verb.name)?;
    let _lines = pipe::as_new_key_file(args, verb.name)?;
    (verb.act)(args, &words)
}

/// The arguments after the action.
struct Words<'a> {
    verb: &'a Verb,
    words: Vec<PathBuf>,
}

impl Words<'_> {
    /// Returns the required argument at an index.
    fn need(&self, at: usize, what: &str) -> Result<&PathBuf> {
        let missing = || Failure::wrong(&format!("{}: requires {what} as argument", self.verb.name));
        self.words.get(at).ok_or_else(missing)
    }

    fn get(&self, at: usize) -> Option<&PathBuf> {
        self.words.get(at)
    }
}
