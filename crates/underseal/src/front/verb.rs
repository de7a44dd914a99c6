//! cryptsetup's actions, under all of their names.

use std::ffi::OsString;

use super::args::Args;
use super::failure::{Failure, Result};
use super::{
    Words, benchmark, foreign, header, keyslots, look, open, reencrypt, status, tcrypt, tokens, volume,
};

type Act = fn(&Args, &Words<'_>) -> Result<()>;

/// An action.
pub(super) struct Verb {
    pub(super) name: &'static str,
    /// Older names with the same meaning.
    older: &'static [&'static str],
    /// The arguments, and a description.
    help: &'static str,
    pub(super) act: Act,
}

macro_rules! verbs {
    ($($name:literal $older:tt $act:path, $help:literal;)*) => {
        const VERBS: &[Verb] = &[$(Verb { name: $name, older: &$older, help: $help, act: $act }),*];
    };
}

verbs! {
    "open" ["luksOpen", "plainOpen", "tcryptOpen", "bitlkOpen", "fvault2Open", "loopaesOpen"] open::open, "DEVICE NAME: serve DEVICE's plain bytes as NAME";
    "create" [] open::create, "NAME DEVICE: open a plain volume (old order)";
    "close" ["luksClose", "plainClose", "tcryptClose", "bitlkClose", "fvault2Close", "loopaesClose", "remove"] open::close, "NAME: end it";
    "status" [] status::status, "NAME: how it is";
    "refresh" [] open::refresh, "DEVICE NAME: (not here: underseal policy changes how it is served)";
    "resize" [] volume::resize, "NAME: give it another size";
    "luksSuspend" [] volume::suspend, "NAME: hold all requests and wipe the key";
    "luksResume" [] volume::resume, "NAME: go on, with the passphrase";
    "bitlkDump" [] foreign::dump, "DEVICE: what BitLocker's metadata say";
    "fvault2Dump" [] foreign::dump, "DEVICE: what FileVault 2's metadata say";
    "benchmark" [] benchmark::run, "how fast ciphers and key derivations are here";
    "isLuks" [] look::is_luks, "DEVICE: status 0 where there is a header";
    "luksUUID" [] look::uuid, "DEVICE: print or set the UUID";
    "luksDump" [] look::dump, "DEVICE: what the header says";
    "luksFormat" [] header::format, "DEVICE [KEYFILE]: make a volume";
    "luksAddKey" [] keyslots::add, "DEVICE [NEWKEYFILE]: another passphrase";
    "luksRemoveKey" [] keyslots::remove, "DEVICE [KEYFILE]: a passphrase goes";
    "luksChangeKey" [] keyslots::change, "DEVICE [NEWKEYFILE]: another passphrase in place of one";
    "luksConvertKey" [] keyslots::convert, "DEVICE: the same passphrase at another cost";
    "luksKillSlot" ["luksDelKey"] keyslots::kill, "DEVICE SLOT: a keyslot goes";
    "luksHeaderBackup" [] header::backup, "DEVICE: copy header and keyslots to --header-backup-file";
    "luksHeaderRestore" [] header::restore, "DEVICE: put them back";
    "erase" ["luksErase"] header::erase, "DEVICE: all keyslots go";
    "repair" [] header::repair, "DEVICE: mend the header";
    "convert" [] header::convert, "DEVICE: to --type luks1 or luks2";
    "config" ["luksConfig"] header::config, "DEVICE: --label, --subsystem, --priority";
    "token" [] tokens::run, "add|remove|import|export|unassign DEVICE";
    "tcryptDump" [] tcrypt::dump, "DEVICE: what a TrueCrypt or VeraCrypt header says";
    "reencrypt" ["luksReencrypt"] reencrypt::run, "DEVICE: another key, cipher or sectors; --encrypt, --decrypt";
}

impl Verb {
    pub(super) fn find(action: &str) -> Result<&'static Self> {
        let named = |verb: &&Verb| verb.name == action || verb.older.contains(&action);
        match VERBS.iter().find(named) {
            Some(verb) => Ok(verb),
            None => Err(Failure::wrong("cryptsetup: Unknown action.")),
        }
    }
}

/// Returns the type of volume that an action's older name implies.
pub(super) fn kind(words: &[OsString]) -> Option<&'static str> {
    match &*words.first()?.to_string_lossy() {
        "tcryptOpen" | "tcryptDump" => Some("tcrypt"),
        "bitlkOpen" | "bitlkDump" => Some("bitlk"),
        "fvault2Open" | "fvault2Dump" => Some("fvault2"),
        "loopaesOpen" => Some("loopaes"),
        _ => None,
    }
}

/// Returns an action's questions for the present passphrase, and for a new one; `{}` is the device.
pub(super) fn questions(words: &[OsString]) -> (&'static str, &'static str) {
    const NEW: &str = "Enter new passphrase for key slot: ";
    let action = words.first().map(|action| action.to_string_lossy()).unwrap_or_default();
    match Verb::find(&action).map_or("", |verb| verb.name) {
        "luksAddKey" => ("Enter any existing passphrase: ", NEW),
        "luksRemoveKey" => ("Enter passphrase to be deleted: ", NEW),
        "luksChangeKey" => ("Enter passphrase to be changed: ", "Enter new passphrase: "),
        "luksConvertKey" => ("Enter passphrase for keyslot to be converted: ", NEW),
        "luksKillSlot" => ("Enter any remaining passphrase: ", NEW),
        _ => ("Enter passphrase for {}: ", NEW),
    }
}

/// Formats the list of all actions.
pub(super) fn help() -> String {
    let head = "underseal as cryptsetup: volumes without root and without a kernel driver.\n\n\
                Usage: cryptsetup [OPTION...] <action> <action-specific>\n\n<action> is one of:\n";
    let tail = "\nOptions are cryptsetup's; cryptsetup(8) and underseal-cryptsetup(7) tell what they mean.\n";
    let lines: String = VERBS.iter().map(|verb| format!("  {:18} {}\n", verb.name, verb.help)).collect();
    format!("{head}{lines}{tail}")
}
