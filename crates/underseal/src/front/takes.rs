//! The options of each action (cryptsetup's manual pages): an option without effect is refused.

use super::failure::{Failure, Result};

/// Options that every action accepts, as in cryptsetup's table of options. An action without a use
/// for one ignores it.
const ALWAYS: &[&str] = &[
    "active-name",
    "batch-mode",
    "block-size",
    "cipher",
    "debug",
    "debug-json",
    "decrypt",
    "disable-external-tokens",
    "disable-keyring",
    "disable-locks",
    "dump-json-metadata",
    "dump-volume-key",
    "encrypt",
    "force-password",
    "hash",
    "header",
    "header-backup-file",
    "help",
    "init-only",
    "integrity-legacy-padding",
    "integrity-no-journal",
    "json-file",
    "key-description",
    "key-file",
    "keyfile-offset",
    "keyfile-size",
    "new",
    "new-keyfile-offset",
    "new-keyfile-size",
    "pbkdf-memory",
    "pbkdf-parallel",
    "perf-high_priority",
    "perf-no_read_workqueue",
    "perf-no_write_workqueue",
    "perf-same_cpu_crypt",
    "perf-submit_from_crypt_cpus",
    "progress-frequency",
    "readonly",
    "reduce-device-size",
    "resilience",
    "resilience-hash",
    "resume-only",
    "test-args",
    "timeout",
    "token-id",
    "token-only",
    "token-type",
    "tries",
    "type",
    "usage",
    "use-directio",
    "use-fsync",
    "verbose",
    "verify-passphrase",
    "veracrypt",
    "veracrypt-query-pim",
    "version",
    "volume-key-file",
    "volume-key-keyring",
    "write-log",
];
/// For headers that may be detached.
const HEADER: &[&str] = &["disable-blkid"];
/// For the derivation of a new passphrase.
const COST: &[&str] = &["iter-time", "pbkdf", "pbkdf-force-iterations"];
/// For a new keyslot.
const KEYSLOT: &[&str] = &["key-slot", "keyslot-cipher", "keyslot-key-size"];
/// For passphrases from tokens.
const TOKEN: &[&str] = &["external-tokens-path"];
const TCRYPT: &[&str] =
    &["disable-veracrypt", "tcrypt-backup", "tcrypt-hidden", "tcrypt-system", "veracrypt-pim"];
const PLAIN: &[&str] =
    &["device-size", "iv-large-sectors", "key-size", "offset", "sector-size", "shared", "size", "skip"];
const OPENED: &[&str] = &[
    "allow-discards",
    "integrity-recovery-mode",
    "key-slot",
    "link-vk-to-keyring",
    "persistent",
    "refresh",
    "serialize-memory-hard-pbkdf",
    "test-passphrase",
    "unbound",
];
const REFRESHED: &[&str] = &[
    "allow-discards",
    "device-size",
    "key-size",
    "key-slot",
    "offset",
    "persistent",
    "refresh",
    "serialize-memory-hard-pbkdf",
    "shared",
    "size",
    "skip",
    "veracrypt-pim",
];
const FORMAT: &[&str] = &[
    "align-payload",
    "hw-opal",
    "hw-opal-only",
    "integrity",
    "integrity-inline",
    "integrity-key-size",
    "integrity-no-wipe",
    "key-size",
    "label",
    "luks2-keyslots-size",
    "luks2-metadata-size",
    "offset",
    "progress-json",
    "sector-size",
    "subsystem",
    "use-random",
    "use-urandom",
    "uuid",
];
const REENCRYPT: &[&str] = &[
    "device-size",
    "force-offline-reencrypt",
    "hotzone-size",
    "keep-key",
    "key-size",
    "luks2-keyslots-size",
    "luks2-metadata-size",
    "new-key-size",
    "new-volume-key-file",
    "offset",
    "progress-json",
    "sector-size",
    "use-random",
    "use-urandom",
    "uuid",
];

/// Returns the options of an action beyond those of all actions, in groups.
fn groups(action: &str) -> &'static [&'static [&'static str]] {
    match action {
        "open" => &[HEADER, TOKEN, TCRYPT, PLAIN, OPENED],
        "create" => &[PLAIN, OPENED],
        "refresh" => &[HEADER, TOKEN, REFRESHED],
        "close" => &[HEADER, &["cancel-deferred", "deferred"]],
        "bitlkDump" | "fvault2Dump" => &[HEADER, &["key-size"]],
        "tcryptDump" => &[HEADER, TCRYPT],
        "resize" => &[HEADER, TOKEN, &["device-size", "size"]],
        "luksResume" => &[HEADER, TOKEN, &["key-slot", "link-vk-to-keyring"]],
        "benchmark" => &[&["iter-time", "key-size", "pbkdf"]],
        "status" | "luksSuspend" | "isLuks" | "luksRemoveKey" | "luksKillSlot" | "luksHeaderBackup"
        | "luksHeaderRestore" | "convert" | "repair" => &[HEADER],
        "luksUUID" => &[HEADER, &["uuid"]],
        "luksDump" => &[HEADER, TOKEN, &["key-slot", "unbound"]],
        "luksFormat" => &[HEADER, COST, KEYSLOT, FORMAT],
        "luksAddKey" => &[
            HEADER,
            COST,
            KEYSLOT,
            TOKEN,
            &["key-size", "new-key-slot", "new-keyfile", "new-token-id", "unbound"],
        ],
        "luksChangeKey" | "luksConvertKey" => &[HEADER, COST, KEYSLOT],
        "erase" => &[HEADER, &["hw-opal-factory-reset"]],
        "config" => &[HEADER, &["key-slot", "label", "priority", "subsystem"]],
        "token" => &[HEADER, TOKEN, &["key-slot", "token-replace", "unbound"]],
        "reencrypt" => &[HEADER, COST, KEYSLOT, TOKEN, REENCRYPT],
        _ => &[],
    }
}

/// Refuses an option that the action does not take.
pub(super) fn check(action: &str, given: &[String]) -> Result<()> {
    let taken = |name: &String| {
        ALWAYS.contains(&name.as_str()) || groups(action).iter().any(|group| group.contains(&name.as_str()))
    };
    match given.iter().find(|name| !taken(name)) {
        None => Ok(()),
        Some(name) => Err(Failure::wrong(&format!("Option --{name} is not allowed with action {action}."))),
    }
}
