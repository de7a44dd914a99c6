//! The commands that remove keyslots.

use clap::Args;
use underseal_volume::{ErrorKind, UnlockOptions};

use super::{EXAMPLES, Opened};
use crate::cli::{HeaderPathArgs, SecretArgs, TrustArgs};
use crate::error::{Error, Result};
use crate::passphrase::confirm;

/// Removes the keyslot that a passphrase opens
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotRemoveArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// Remove the last keyslot without asking: the volume cannot be opened afterwards
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

pub(super) fn run(args: &KeyslotRemoveArgs, quiet: bool) -> Result<()> {
    let mut opened = Opened::to_change(&args.of)?.held_to(&args.trust)?;
    let number = opened.unlock(&args.secret, &opened.options(args.key_slot))?.slot;
    remove(&mut opened, number, args.force, quiet)
}

/// Removes a keyslot by its number. The passphrase asked for is that of one that stays
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotKillArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The keyslot's number
    #[arg(value_name = "N")]
    pub(crate) number: u32,
    /// Ask for no passphrase, and remove even the last keyslot: the volume cannot be opened
    /// afterwards
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

pub(super) fn kill(args: &KeyslotKillArgs, quiet: bool) -> Result<()> {
    let mut opened = Opened::to_change(&args.of)?.held_to(&args.trust)?;
    let number = args.number;
    if !args.force && other_keyslots(&opened, number) {
        // Without a passphrase of a remaining keyslot the user would lock the volume for ever.
        let others = UnlockOptions { except: Some(number), ..opened.options(None) };
        opened.unlock(&args.secret, &others)?;
    }
    remove(&mut opened, number, args.force, quiet)
}

/// Returns true when another keyslot than this one opens the data.
fn other_keyslots(opened: &Opened<'_>, number: u32) -> bool {
    let info = opened.header.info();
    let of_data = info.digests.iter().filter(|digest| !digest.segments.is_empty());
    of_data.flat_map(|digest| &digest.keyslots).any(|slot| *slot != number)
}

fn remove(opened: &mut Opened<'_>, number: u32, force: bool, quiet: bool) -> Result<()> {
    let mut removed = opened.header.remove_keyslot(&*opened.on, number, force);
    if removed.as_ref().is_err_and(|e| e.kind() == ErrorKind::LastKeyslot) {
        ask_twice(opened, number)?;
        removed = opened.header.remove_keyslot(&*opened.on, number, true);
    }
    removed.map_err(|e| opened.error(e))?;
    opened.say(quiet, &format!("keyslot {number} is removed"))
}

/// Asks twice. Fails with `Usage` unless both answers are yes.
fn ask_twice(opened: &Opened<'_>, number: u32) -> Result<()> {
    let path = opened.path.display();
    let first =
        format!("{path}: keyslot {number} is the last one. Without it the data cannot be read by anybody.");
    let second = format!("All data of {path} will be lost for ever, unless there is a backup of its header.");
    if confirm(&first)? && confirm(&second)? {
        return Ok(());
    }
    Err(Error::usage(format!("{path}: keyslot {number} is the last one"))
        .with_remedy("--force to remove it all the same; the data are lost then"))
}
