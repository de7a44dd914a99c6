//! Combinations of options that cryptsetup refuses before it begins.

use super::args::Args;
use super::failure::{Failure, Result};

/// Actions that take a passphrase from a line of stdin.
const READ_A_LINE: [&str; 12] = [
    "open",
    "create",
    "luksFormat",
    "luksAddKey",
    "luksChangeKey",
    "luksRemoveKey",
    "luksResume",
    "luksDump",
    "luksConvertKey",
    "luksKillSlot",
    "reencrypt",
    "repair",
];

impl Args {
    /// Refuses options that do not fit together or do not fit the action.
    pub(super) fn fit(&self, action: &str) -> Result<()> {
        let rules: [&[(bool, &str)]; 4] =
            [&self.sizes(action), &self.opening(action), &self.keys(action), &self.other_formats(action)];
        match rules.into_iter().flatten().find(|(broken, _)| *broken) {
            None => Ok(()),
            Some((_, why)) => Err(Failure::wrong(why)),
        }
    }

    pub(super) fn is(&self, kinds: &[&str]) -> bool {
        self.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
    }

    fn sizes(&self, action: &str) -> [(bool, &'static str); 10] {
        let sectors = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes.is_multiple_of(512));
        let is_sector = |size: u32| size.is_power_of_two() && (512..=4096).contains(&size);
        [
            (
                self.key_size.is_some_and(|bits| !bits.is_multiple_of(8)),
                "Key size must be a multiple of 8 bits.",
            ),
            (self.sector_size.is_some_and(|size| !is_sector(size)), "Unsupported encryption sector size."),
            (!sectors(self.device_size), "Device size must be a multiple of 512 bytes sector."),
            (!sectors(self.reduce_device_size), "Reduce size must be a multiple of 512 bytes sector."),
            (
                self.reduce_device_size.is_some_and(|size| size > 1 << 30),
                "Maximum device reduce size is 1 GiB.",
            ),
            (
                self.size.is_some() && self.device_size.is_some(),
                "Options --device-size and --size cannot be combined.",
            ),
            (
                self.reduce_device_size.is_some() && self.device_size.is_some(),
                "Options --reduce-device-size and --device-size cannot be combined.",
            ),
            (
                self.offset.is_some() && self.align_payload.is_some(),
                "Options --align-payload and --offset cannot be combined.",
            ),
            (
                self.iter_time.is_some() && self.pbkdf_force_iterations.is_some(),
                "PBKDF forced iterations cannot be combined with iteration time option.",
            ),
            (
                action == "luksAddKey" && self.unbound && self.key_size.is_none_or(|bits| bits == 0),
                "Option --unbound needs the key's size (--key-size).",
            ),
        ]
    }

    fn opening(&self, action: &str) -> [(bool, &'static str); 10] {
        let opens = action == "open";
        let plain = action == "create" || self.is(&["plain", "loopaes"]) || self.older_name_is_plain();
        let parameters =
            self.skip.is_some() || self.offset.is_some() || self.sector_size.is_some() || self.shared;
        [
            (opens && !plain && parameters, "Options of plain volumes are allowed only with --type plain."),
            (
                opens && !plain && (self.size.is_some() || self.device_size.is_some()),
                "Options --size and --device-size are allowed only with --type plain.",
            ),
            (
                self.limits_stdin(action) && (plain || !self.is_luks()),
                "Options --keyfile-size and --keyfile-offset need a key file here.",
            ),
            (
                self.iv_large_sectors && (!plain || self.sector_size.is_none_or(|size| size <= 512)),
                "Option --iv-large-sectors is for plain volumes with sectors of more than 512 bytes.",
            ),
            (
                opens && self.test_passphrase && self.is(&["plain"]),
                "Option --test-passphrase is allowed only for open of LUKS, TCRYPT and BITLK devices.",
            ),
            (
                opens && self.test_passphrase && self.tries == Some(0),
                "Option --test-passphrase needs at least one try (--tries).",
            ),
            (
                self.test_passphrase && (self.persistent || self.refresh),
                "Option --test-passphrase opens nothing: --persistent and --refresh do not go with it.",
            ),
            (
                opens && self.persistent && (plain || self.is(&["luks1"])),
                "Option --persistent is for LUKS2 headers.",
            ),
            (
                opens && self.unbound && !self.test_passphrase,
                "Option --unbound needs --test-passphrase here.",
            ),
            (
                (opens || ["luksFormat", "luksAddKey"].contains(&action))
                    && self.key_file.len() > 1
                    && !self.is(&["tcrypt"]),
                "Option --key-file can be used only once here.",
            ),
        ]
    }

    fn is_luks(&self) -> bool {
        self.kind.as_deref().is_none_or(|kind| kind.starts_with("luks"))
    }

    /// Whether the limits of a key file are those of a line of stdin.
    pub(super) fn limits_stdin(&self, action: &str) -> bool {
        let given = self.keyfile_size.is_some() || self.keyfile_offset.is_some();
        let is_named = ["luksFormat", "luksRemoveKey"].contains(&action) && self.words.len() > 2;
        let file = !self.key_file.is_empty() || is_named;
        given && !file && READ_A_LINE.contains(&action)
    }

    /// Returns true for `plainOpen`, which implies `--type plain`.
    fn older_name_is_plain(&self) -> bool {
        self.words.first().is_some_and(|action| action == "plainOpen")
    }

    fn keys(&self, action: &str) -> [(bool, &'static str); 9] {
        let known = |name: Option<&str>, names: &[&str]| name.is_none_or(|name| names.contains(&name));
        [
            (
                !known(self.pbkdf.as_deref(), &["pbkdf2", "argon2i", "argon2id"]),
                "Password-based key derivation function (PBKDF) can be only pbkdf2 or argon2i/argon2id.",
            ),
            (
                !known(self.priority.as_deref(), &["ignore", "normal", "prefer"]),
                "Option --priority can be only ignore/normal/prefer.",
            ),
            (
                self.priority.is_some() && self.key_slot.is_none(),
                "Option --priority needs a keyslot (--key-slot).",
            ),
            (self.use_random && self.use_urandom, "Only one of --use-[u]random options is allowed."),
            (
                self.keyslot_cipher.is_some() != self.keyslot_key_size.is_some(),
                "Keyslot specification requires --keyslot-cipher and --keyslot-key-size.",
            ),
            (
                action == "luksDump" && self.unbound && self.key_slot.is_none(),
                "Option --unbound needs a keyslot (--key-slot).",
            ),
            (
                action == "token" && self.unbound && self.words.get(1).is_none_or(|word| word != "add"),
                "Option --unbound is valid only with token add action.",
            ),
            (
                self.integrity_no_wipe && self.integrity.is_none(),
                "Option --integrity-no-wipe can be used only with --integrity.",
            ),
            (
                self.integrity_key_size.is_some() && self.integrity.is_none(),
                "Option --integrity-key-size can be used only with --integrity.",
            ),
        ]
    }

    fn other_formats(&self, action: &str) -> [(bool, &'static str); 3] {
        let tcrypt = self.is_tcrypt(action);
        let hidden = self.tcrypt_hidden || self.tcrypt_system || self.tcrypt_backup;
        let vera = self.veracrypt || self.veracrypt_query_pim || self.veracrypt_pim.is_some();
        [
            (hidden && !tcrypt, "Options --tcrypt-* are for TCRYPT devices only."),
            // Other actions ignore these options.
            (
                ["open", "refresh"].contains(&action)
                    && (self.veracrypt || self.disable_veracrypt)
                    && !tcrypt,
                "Options --veracrypt and --disable-veracrypt are for TCRYPT devices only.",
            ),
            (
                self.disable_veracrypt && vera,
                "Options --veracrypt* and --disable-veracrypt cannot be combined.",
            ),
        ]
    }
}
