//! cryptsetup's actions, under all of their names.

use super::args::Args;
use super::failure::{Failure, Result};
use super::{Words, benchmark, header, keyslots, look, open, tokens, volume};

type Act = fn(&Args, &Words<'_>) -> Result<()>;

/// An action.
pub(super) struct Verb {
    pub(super) name: &'static str,
    /// Names from before, which mean the same.
    older: &'static [&'static str],
    /// The most words behind it.
    pub(super) most: usize,
    /// What stands behind it, and what it does.
    help: &'static str,
    pub(super) act: Act,
}

macro_rules! verbs {
    ($($name:literal $older:tt $most:literal $act:path, $help:literal;)*) => {
        const VERBS: &[Verb] = &[$(Verb { name: $name, older: &$older, most: $most, help: $help, act: $act }),*];
    };
}

verbs! {
    "open" ["luksOpen", "plainOpen"] 2 open::open, "DEVICE NAME: serve DEVICE's plain bytes as NAME";
    "create" [] 2 open::create, "NAME DEVICE: open a plain volume (old order)";
    "close" ["luksClose", "plainClose", "remove"] 1 open::close, "NAME: end it";
    "status" [] 1 open::status, "NAME: how it is";
    "refresh" [] 2 open::refresh, "DEVICE NAME: (not here: underseal policy changes how it is served)";
    "resize" [] 1 volume::resize, "NAME: give it another size";
    "luksSuspend" [] 1 volume::suspend, "NAME: hold all requests and wipe the key";
    "luksResume" [] 1 volume::resume, "NAME: go on, with the passphrase";
    "benchmark" [] 0 benchmark::run, "how fast ciphers and key derivations are here";
    "isLuks" [] 1 look::is_luks, "DEVICE: status 0 where there is a header";
    "luksUUID" [] 1 look::uuid, "DEVICE: print or set the UUID";
    "luksDump" [] 1 look::dump, "DEVICE: what the header says";
    "luksFormat" [] 2 header::format, "DEVICE [KEYFILE]: make a volume";
    "luksAddKey" [] 2 keyslots::add, "DEVICE [NEWKEYFILE]: another passphrase";
    "luksRemoveKey" [] 2 keyslots::remove, "DEVICE [KEYFILE]: a passphrase goes";
    "luksChangeKey" [] 2 keyslots::change, "DEVICE [NEWKEYFILE]: another passphrase in place of one";
    "luksConvertKey" [] 2 keyslots::convert, "DEVICE: the same passphrase at another cost";
    "luksKillSlot" ["luksDelKey"] 2 keyslots::kill, "DEVICE SLOT: a keyslot goes";
    "luksHeaderBackup" [] 1 header::backup, "DEVICE: copy header and keyslots to --header-backup-file";
    "luksHeaderRestore" [] 1 header::restore, "DEVICE: put them back";
    "erase" ["luksErase"] 1 header::erase, "DEVICE: all keyslots go";
    "repair" [] 1 header::repair, "DEVICE: mend the header";
    "convert" [] 1 header::convert, "DEVICE: to --type luks1 or luks2";
    "config" ["luksConfig"] 1 header::config, "DEVICE: --label, --subsystem, --priority";
    "token" [] 2 tokens::run, "add|remove|import|export|unassign DEVICE";
    "tcryptDump" ["bitlkDump", "fvault2Dump"] 2 look::other_format, "DEVICE: (not here)";
    "reencrypt" ["luksReencrypt"] 2 header::reencrypt, "DEVICE: (not yet)";
}

/// What cryptsetup opens and underseal does not.
const OTHER_FORMATS: [&str; 11] = [
    "loopaesOpen",
    "loopaesClose",
    "tcryptOpen",
    "tcryptClose",
    "tcryptDump",
    "bitlkOpen",
    "bitlkClose",
    "bitlkDump",
    "fvault2Open",
    "fvault2Close",
    "fvault2Dump",
];

impl Verb {
    pub(super) fn find(action: &str) -> Result<&'static Self> {
        let named = |verb: &&Verb| verb.name == action || verb.older.contains(&action);
        match VERBS.iter().find(named) {
            Some(verb) => Ok(verb),
            None if OTHER_FORMATS.contains(&action) => {
                Err(Failure::unsupported(&format!("{action}: this format is not supported")))
            }
            None => Err(Failure::wrong("cryptsetup: Unknown action.")),
        }
    }
}

/// All actions.
pub(super) fn help() -> String {
    let head = "underseal as cryptsetup: volumes without root and without a kernel driver.\n\n\
                Usage: cryptsetup [OPTION...] <action> <action-specific>\n\n<action> is one of:\n";
    let tail = "\nOptions are cryptsetup's; cryptsetup(8) and underseal-cryptsetup(7) tell what they mean.\n";
    let lines: String = VERBS.iter().map(|verb| format!("  {:18} {}\n", verb.name, verb.help)).collect();
    format!("{head}{lines}{tail}")
}
