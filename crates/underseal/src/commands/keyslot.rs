//! `underseal keyslot`.

mod add;
mod list;
mod remove;
mod replace;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use underseal_cipher::Key;
use underseal_volume::{
    Header, KdfLimits, NewKeyslot, Pbkdf, UnlockOptions, Unlocked, VolumeKey, is_recovery_key,
};

pub(super) use replace::KeyslotChangeArgs;

use self::add::{KeyslotAddArgs, RecoveryKeyArgs};
use self::list::KeyslotListArgs;
use self::remove::{KeyslotKillArgs, KeyslotRemoveArgs};
use self::replace::KeyslotConvertArgs;
use crate::cli::{AreaArgs, HeaderPathArgs, PbkdfArgs, SecretArgs, TokenArgs, TrustArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::open_header;
use crate::output::print;
use crate::passphrase::{Secret, volume_key_file};
use crate::persona::{self, persona};
use crate::reencryption::Bytes;
use crate::tokens;
use crate::volume::key_len;

/// Adds, removes and changes the passphrases and keys that open a LUKS volume.
///
/// A volume's data have one key, and a header holds it in several keyslots, each under a passphrase
/// of its own. Whatever is done to them, the header is locked only for a moment, as cryptsetup
/// does (on an NBD export against your programs on this host), and may be changed while the volume
/// is open. A power cut leaves the keyslots as they were
/// or as they are going to be, and what is removed is wiped.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotArgs {
    #[command(subcommand)]
    pub(crate) what: Keyslot,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keyslot {
    List(KeyslotListArgs),
    Add(KeyslotAddArgs),
    Remove(KeyslotRemoveArgs),
    Change(KeyslotChangeArgs),
    Kill(KeyslotKillArgs),
    Test(KeyslotTestArgs),
    Convert(KeyslotConvertArgs),
    Priority(KeyslotPriorityArgs),
    RecoveryKey(RecoveryKeyArgs),
}

pub(super) fn run(what: &Keyslot, quiet: bool) -> Result<()> {
    match what {
        Keyslot::List(args) => list::run(args),
        Keyslot::Add(args) => add::run(args, quiet),
        Keyslot::RecoveryKey(args) => add::recovery_key(args),
        Keyslot::Remove(args) => remove::run(args, quiet),
        Keyslot::Kill(args) => remove::kill(args, quiet),
        Keyslot::Change(args) => replace::change(args, quiet),
        Keyslot::Convert(args) => replace::convert(args, quiet),
        Keyslot::Test(args) => test(args, quiet),
        Keyslot::Priority(args) => priority(args, quiet),
    }
}

/// A header, and the file or device that has it.
struct Opened<'a> {
    path: &'a Path,
    on: Bytes,
    header: Header,
    /// The limits of an unlock.
    limits: KdfLimits,
}

impl<'a> Opened<'a> {
    fn to_read(args: &'a HeaderPathArgs) -> Result<Self> {
        Self::new(args, true)
    }

    fn to_change(args: &'a HeaderPathArgs) -> Result<Self> {
        Self::new(args, false)
    }

    fn new(args: &'a HeaderPathArgs, read_only: bool) -> Result<Self> {
        let path = args.path();
        let on = open_header(path, read_only)?;
        let header = Header::read(&*on).map_err(|e| e.in_file(path))?;
        Ok(Self { path, on, header, limits: KdfLimits::default() })
    }

    /// Checks that the header has the required properties, and sets the limits.
    fn held_to(self, trust: &TrustArgs) -> Result<Self> {
        self.header.hold_to(&trust.pinned()).map_err(|e| self.error(e))?;
        Ok(Self { limits: trust.limits(), ..self })
    }

    /// Returns the options of an unlock: on this keyslot only, if one is named.
    fn options(&self, slot: Option<u32>) -> UnlockOptions {
        UnlockOptions { slot, limits: self.limits, ..UnlockOptions::default() }
    }

    /// Unlocks the header with a passphrase; at a terminal, three attempts are possible.
    fn unlock(&self, secret: &SecretArgs, options: &UnlockOptions) -> Result<Unlocked> {
        Secret::new(secret.source(), self.path).try_with(|passphrase| self.unlock_with(passphrase, options))
    }

    /// Unlocks the header with a token, if the options permit.
    fn unlock_by(
        &self,
        tokens: &TokenArgs,
        secret: &Secret<'_>,
        options: &UnlockOptions,
    ) -> Result<Option<Unlocked>> {
        if !tokens.are_named() && !tokens.tokens_first {
            return Ok(None);
        }
        let opened = tokens::unlock(&self.header, &*self.on, (tokens, secret), self.path, options)?;
        let unlocked = opened.map(|(unlocked, _)| unlocked);
        if let Some(unlocked) = &unlocked {
            persona().tell(self.path, persona::Keyslot::Unlocked(unlocked.slot));
        }
        Ok(unlocked)
    }

    fn unlock_with(&self, passphrase: &Key, options: &UnlockOptions) -> Result<Unlocked> {
        let unlocked =
            self.header.unlock(&*self.on, passphrase, options).map_err(|e| e.in_file(self.path))?;
        persona().tell(self.path, persona::Keyslot::Unlocked(unlocked.slot));
        Ok(unlocked)
    }

    /// Returns the volume's key: from a file, or from the keyslot that the passphrase opens.
    fn key(&self, file: Option<&Path>, secret: &SecretArgs, slot: Option<u32>) -> Result<VolumeKey> {
        match file {
            Some(file) => self.volume_key(file, None),
            None => Ok(self.unlock(secret, &self.options(slot))?.key),
        }
    }

    fn volume_key(&self, file: &Path, bits: Option<usize>) -> Result<VolumeKey> {
        let key = volume_key_file(file, bits, key_len(&self.header))?;
        let key = self.header.volume_key(key, &self.options(None));
        Ok(key.map_err(|e| e.in_file(self.path))?)
    }

    /// Returns the parameters of a new keyslot.
    fn new_keyslot(&self, pbkdf: &PbkdfArgs, area: &AreaArgs) -> Result<NewKeyslot> {
        let defaults = match self.header {
            Header::Luks1(_) => Pbkdf::pbkdf2(),
            _ => Pbkdf::argon2id(),
        };
        Ok(NewKeyslot { hash: pbkdf.hash, cipher: area.cipher()?, ..NewKeyslot::new(pbkdf.over(defaults)?) })
    }

    fn error(&self, error: underseal_volume::Error) -> Error {
        error.in_file(self.path).into()
    }

    fn unlocked(&self, unlocked: &Unlocked, quiet: bool) -> Result<()> {
        self.say(quiet, &format!("keyslot {} opens", unlocked.slot))
    }

    /// Prints the result. The error says it, too: the change is done.
    fn say(&self, quiet: bool, what: &str) -> Result<()> {
        let said = format!("{}: {what}", self.path.display());
        if quiet { Ok(()) } else { print(&format!("{said}\n")).map_err(|e| e.within(said)) }
    }
}

/// Tells which keyslot a passphrase or the volume's key opens
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotTestArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The passphrase is a recovery key: reject malformed ones at once
    #[arg(long)]
    pub(crate) recovery_key: bool,
    /// The bytes of this file are the volume's key: is it the right one?
    #[arg(long, value_name = "FILE", conflicts_with_all = ["secret", "key_file", "key_slot", "recovery_key"])]
    pub(crate) volume_key_file: Option<PathBuf>,
    /// The volume's key is the first BITS bits of that file; all of it by default
    #[arg(long, value_name = "BITS", requires = "volume_key_file")]
    pub(crate) volume_key_size: Option<usize>,
    /// LUKS2: try keyslots of other keys than the volume's, too
    #[arg(long)]
    pub(crate) unbound: bool,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

fn test(args: &KeyslotTestArgs, quiet: bool) -> Result<()> {
    let opened = Opened::to_read(&args.of)?.held_to(&args.trust)?;
    if let Some(file) = &args.volume_key_file {
        opened.volume_key(file, args.volume_key_size)?;
        return opened.say(quiet, "this is the volume's key");
    }
    let options = UnlockOptions { unbound: args.unbound, ..opened.options(args.key_slot) };
    let secret = Secret::new(args.secret.source(), opened.path);
    if let Some(unlocked) = opened.unlock_by(&args.tokens, &secret, &options)? {
        return opened.unlocked(&unlocked, quiet);
    }
    let unlocked = secret.try_with(|passphrase| {
        if args.recovery_key && !is_recovery_key(passphrase) {
            let what = "a recovery key has eight groups of eight letters out of cbdefghijklnrtuv";
            return Err(
                Error::new(Exit::NoKey, what).with_remedy("look for a letter too many, or another one")
            );
        }
        opened.unlock_with(passphrase, &options)
    })?;
    opened.unlocked(&unlocked, quiet)
}

/// LUKS2: settles when a keyslot is tried
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotPriorityArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The keyslot's number
    #[arg(value_name = "N")]
    pub(crate) number: u32,
    /// When it is tried
    #[arg(value_enum)]
    pub(crate) priority: Priority,
}

/// The priority of a keyslot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Priority {
    /// Only when it is asked for by its number
    #[value(alias = "ignore")]
    Ignored,
    /// After those that are preferred
    Normal,
    /// First
    #[value(alias = "prefer")]
    Preferred,
}

impl From<Priority> for underseal_volume::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Ignored => Self::Ignored,
            Priority::Normal => Self::Normal,
            Priority::Preferred => Self::Preferred,
        }
    }
}

fn priority(args: &KeyslotPriorityArgs, quiet: bool) -> Result<()> {
    let mut opened = Opened::to_change(&args.of)?;
    let priority = args.priority.into();
    let set = opened.header.set_priority(&*opened.on, args.number, priority);
    set.map_err(|e| opened.error(e))?;
    opened.say(quiet, &format!("keyslot {} is {}", args.number, priority.name()))
}

const EXAMPLES: &str = "\
Examples:
  underseal keyslot list disk.img
  underseal keyslot add disk.img --new-key-file usb.key
  underseal keyslot change disk.img --key-slot 1
  underseal keyslot kill disk.img 2
  underseal keyslot convert disk.img --pbkdf argon2id --iter-time 5000
  underseal keyslot recovery-key disk.img
  printf '%s\\n%s\\n' \"$old\" \"$new\" | underseal keyslot change disk.img --passphrase-fd 0 --new-passphrase-fd 0";
