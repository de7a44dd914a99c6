//! Which options each action takes (cryptsetup's manual pages): one that would be passed over is refused.

use super::failure::{Failure, Result};

/// Taken by every action.
const ALWAYS: &[&str] =
    &["batch-mode", "debug", "debug-json", "help", "test-args", "usage", "verbose", "version"];
/// A header that may be elsewhere.
const HEADER: &[&str] = &["disable-blkid", "disable-locks", "header"];
/// A passphrase that exists.
const SECRET: &[&str] = &["key-file", "keyfile-offset", "keyfile-size", "timeout", "verify-passphrase"];
/// What a new passphrase costs.
const COST: &[&str] = &[
    "force-password",
    "hash",
    "iter-time",
    "pbkdf",
    "pbkdf-force-iterations",
    "pbkdf-memory",
    "pbkdf-parallel",
];
/// A new keyslot.
const KEYSLOT: &[&str] = &["key-slot", "keyslot-cipher", "keyslot-key-size"];
const NEW: &[&str] = &["new-keyfile-offset", "new-keyfile-size"];
/// Passphrases from elsewhere.
const TOKEN: &[&str] =
    &["disable-external-tokens", "external-tokens-path", "token-id", "token-only", "token-type"];
const KEYRING: &[&str] = &["disable-keyring", "volume-key-keyring"];
const PERFORMANCE: &[&str] = &[
    "allow-discards",
    "perf-no_read_workqueue",
    "perf-no_write_workqueue",
    "perf-same_cpu_crypt",
    "perf-submit_from_crypt_cpus",
];
const TCRYPT: &[&str] = &[
    "disable-veracrypt",
    "tcrypt-backup",
    "tcrypt-hidden",
    "tcrypt-system",
    "veracrypt",
    "veracrypt-pim",
    "veracrypt-query-pim",
];
const PLAIN: &[&str] = &[
    "cipher",
    "device-size",
    "hash",
    "iv-large-sectors",
    "key-size",
    "offset",
    "sector-size",
    "shared",
    "size",
    "skip",
];
const OPENED: &[&str] = &[
    "integrity-no-journal",
    "integrity-recovery-mode",
    "key-slot",
    "link-vk-to-keyring",
    "persistent",
    "readonly",
    "refresh",
    "serialize-memory-hard-pbkdf",
    "test-passphrase",
    "tries",
    "type",
    "unbound",
    "volume-key-file",
];
const FORMAT: &[&str] = &[
    "align-payload",
    "cipher",
    "disable-keyring",
    "hw-opal",
    "hw-opal-only",
    "integrity",
    "integrity-key-size",
    "integrity-legacy-padding",
    "integrity-no-journal",
    "integrity-no-wipe",
    "key-size",
    "label",
    "luks2-keyslots-size",
    "luks2-metadata-size",
    "offset",
    "sector-size",
    "subsystem",
    "type",
    "use-random",
    "use-urandom",
    "uuid",
    "volume-key-file",
];
const REENCRYPT: &[&str] = &[
    "active-name",
    "block-size",
    "cipher",
    "decrypt",
    "device-size",
    "encrypt",
    "force-offline-reencrypt",
    "hotzone-size",
    "init-only",
    "keep-key",
    "key-size",
    "luks2-keyslots-size",
    "luks2-metadata-size",
    "new",
    "new-keyfile",
    "offset",
    "progress-frequency",
    "progress-json",
    "reduce-device-size",
    "resilience",
    "resilience-hash",
    "resume-only",
    "sector-size",
    "tries",
    "type",
    "use-directio",
    "use-fsync",
    "use-random",
    "use-urandom",
    "uuid",
    "volume-key-file",
    "write-log",
];

/// The options of an action, in groups.
fn groups(action: &str) -> &'static [&'static [&'static str]] {
    match action {
        "open" => &[HEADER, SECRET, TOKEN, KEYRING, PERFORMANCE, TCRYPT, PLAIN, OPENED],
        "create" => &[SECRET, PERFORMANCE, PLAIN, OPENED, KEYRING],
        "refresh" => &[
            HEADER,
            SECRET,
            TOKEN,
            KEYRING,
            PERFORMANCE,
            &["integrity-no-journal", "key-slot", "persistent", "tries", "type"],
        ],
        "close" => &[HEADER, &["cancel-deferred", "deferred"]],
        "bitlkDump" | "fvault2Dump" => {
            &[HEADER, SECRET, &["dump-volume-key", "key-size", "type", "volume-key-file"]]
        }
        "tcryptDump" => {
            &[HEADER, SECRET, TCRYPT, &["cipher", "dump-volume-key", "hash", "type", "volume-key-file"]]
        }
        "status" | "luksSuspend" => &[HEADER],
        "resize" => &[HEADER, SECRET, TOKEN, KEYRING, &["device-size", "key-slot", "size", "tries"]],
        "luksResume" => {
            &[HEADER, SECRET, TOKEN, KEYRING, &["key-slot", "link-vk-to-keyring", "tries", "type"]]
        }
        "benchmark" => &[COST, &["cipher", "key-size"]],
        "isLuks" => &[HEADER, &["type"]],
        "luksUUID" => &[HEADER, &["type", "uuid"]],
        "luksDump" => &[
            HEADER,
            SECRET,
            &[
                "disable-external-tokens",
                "dump-json-metadata",
                "dump-volume-key",
                "external-tokens-path",
                "key-slot",
                "type",
                "unbound",
                "volume-key-file",
            ],
        ],
        "luksFormat" => &[HEADER, SECRET, COST, KEYSLOT, FORMAT],
        "luksAddKey" => &[
            HEADER,
            SECRET,
            COST,
            KEYSLOT,
            NEW,
            TOKEN,
            &[
                "key-size",
                "new-key-slot",
                "new-keyfile",
                "new-token-id",
                "tries",
                "type",
                "unbound",
                "volume-key-file",
                "volume-key-keyring",
            ],
        ],
        "luksRemoveKey" | "luksKillSlot" => &[HEADER, SECRET, &["tries", "type"]],
        "luksChangeKey" => &[HEADER, SECRET, COST, KEYSLOT, NEW, &["tries", "type"]],
        "luksConvertKey" => &[HEADER, SECRET, COST, KEYSLOT, &["tries"]],
        "luksHeaderBackup" | "luksHeaderRestore" => &[HEADER, &["header-backup-file"]],
        "erase" => &[HEADER, &["hw-opal-factory-reset", "key-file"]],
        "repair" => &[HEADER, SECRET, &["key-slot", "tries", "type"]],
        "convert" => &[HEADER, &["type"]],
        "config" => &[HEADER, &["key-slot", "label", "priority", "subsystem"]],
        "token" => &[
            HEADER,
            &[
                "disable-external-tokens",
                "disable-keyring",
                "external-tokens-path",
                "json-file",
                "key-description",
                "key-slot",
                "token-id",
                "token-replace",
                "unbound",
            ],
        ],
        "reencrypt" => &[HEADER, SECRET, COST, KEYSLOT, TOKEN, REENCRYPT],
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
