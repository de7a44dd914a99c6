//! cryptsetup's options, by its long and short names.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};

/// The option by which this program starts itself as a server.
pub(super) const SERVE: &str = "underseal-serve";

/// All options of `cryptsetup`. Every action accepts each option, and uses those that affect it.
#[derive(Debug, Parser)]
#[command(
    name = "cryptsetup",
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true
)]
#[command(args_override_self = true)]
pub(super) struct Args {
    #[arg(short = '?', long)]
    pub(super) help: bool,
    #[arg(long)]
    pub(super) usage: bool,
    #[arg(short = 'V', long)]
    pub(super) version: bool,
    #[arg(short, long)]
    pub(super) verbose: bool,
    #[arg(short = 'q', long)]
    pub(super) batch_mode: bool,
    #[arg(long)]
    pub(super) debug: bool,
    #[arg(long)]
    pub(super) debug_json: bool,
    #[arg(long)]
    pub(super) test_args: bool,

    // The sources of secrets.
    #[arg(short = 'd', long, action = ArgAction::Append)]
    pub(super) key_file: Vec<PathBuf>,
    #[arg(long, value_parser = bytes)]
    pub(super) keyfile_offset: Option<u64>,
    #[arg(short = 'l', long, value_parser = bytes)]
    pub(super) keyfile_size: Option<u64>,
    #[arg(long)]
    pub(super) new_keyfile: Option<PathBuf>,
    #[arg(long, value_parser = bytes)]
    pub(super) new_keyfile_offset: Option<u64>,
    #[arg(long, value_parser = bytes)]
    pub(super) new_keyfile_size: Option<u64>,
    #[arg(long, visible_alias = "master-key-file")]
    pub(super) volume_key_file: Option<PathBuf>,
    #[arg(long)]
    pub(super) new_volume_key_file: Option<PathBuf>,
    #[arg(long)]
    pub(super) new_key_size: Option<usize>,
    #[arg(short = 'T', long)]
    pub(super) tries: Option<u32>,
    #[arg(short = 't', long)]
    pub(super) timeout: Option<u64>,
    #[arg(short = 'y', long)]
    pub(super) verify_passphrase: bool,
    #[arg(long)]
    pub(super) force_password: bool,

    // Keyslots and tokens.
    #[arg(short = 'S', long)]
    pub(super) key_slot: Option<u32>,
    #[arg(long)]
    pub(super) new_key_slot: Option<u32>,
    #[arg(long)]
    pub(super) keyslot_cipher: Option<String>,
    #[arg(long)]
    pub(super) keyslot_key_size: Option<usize>,
    #[arg(long)]
    pub(super) priority: Option<String>,
    #[arg(long)]
    pub(super) unbound: bool,
    #[arg(long)]
    pub(super) token_id: Option<u32>,
    #[arg(long)]
    pub(super) new_token_id: Option<u32>,
    #[arg(long)]
    pub(super) token_only: bool,
    #[arg(long)]
    pub(super) token_replace: bool,
    #[arg(long)]
    pub(super) token_type: Option<String>,
    #[arg(long)]
    pub(super) key_description: Option<String>,
    #[arg(long)]
    pub(super) json_file: Option<PathBuf>,
    #[arg(long)]
    pub(super) disable_external_tokens: bool,

    // The parameters of a new volume.
    #[arg(short = 'M', long = "type")]
    pub(super) kind: Option<String>,
    #[arg(short = 'c', long)]
    pub(super) cipher: Option<String>,
    #[arg(short = 's', long)]
    pub(super) key_size: Option<usize>,
    #[arg(short = 'h', long)]
    pub(super) hash: Option<String>,
    #[arg(long)]
    pub(super) sector_size: Option<u32>,
    #[arg(long)]
    pub(super) iv_large_sectors: bool,
    #[arg(short = 'I', long)]
    pub(super) integrity: Option<String>,
    #[arg(long)]
    pub(super) integrity_no_journal: bool,
    #[arg(long)]
    pub(super) integrity_recovery_mode: bool,
    #[arg(long)]
    pub(super) integrity_key_size: Option<usize>,
    #[arg(long)]
    pub(super) integrity_no_wipe: bool,
    #[arg(long)]
    pub(super) integrity_legacy_padding: bool,
    #[arg(long)]
    pub(super) uuid: Option<String>,
    #[arg(long)]
    pub(super) label: Option<String>,
    #[arg(long)]
    pub(super) subsystem: Option<String>,
    #[arg(long)]
    pub(super) align_payload: Option<u64>,
    #[arg(short = 'o', long)]
    pub(super) offset: Option<u64>,
    #[arg(long, value_parser = bytes)]
    pub(super) luks2_metadata_size: Option<u64>,
    #[arg(long, value_parser = bytes)]
    pub(super) luks2_keyslots_size: Option<u64>,
    #[arg(long)]
    pub(super) pbkdf: Option<String>,
    #[arg(short = 'i', long)]
    pub(super) iter_time: Option<u64>,
    #[arg(long)]
    pub(super) pbkdf_force_iterations: Option<u32>,
    #[arg(long)]
    pub(super) pbkdf_memory: Option<u32>,
    #[arg(long)]
    pub(super) pbkdf_parallel: Option<u32>,
    #[arg(long)]
    pub(super) use_random: bool,
    #[arg(long)]
    pub(super) use_urandom: bool,

    // The parameters of an open.
    #[arg(long)]
    pub(super) header: Option<PathBuf>,
    #[arg(long)]
    pub(super) header_backup_file: Option<PathBuf>,
    #[arg(short = 'r', long)]
    pub(super) readonly: bool,
    #[arg(long)]
    pub(super) allow_discards: bool,
    #[arg(long)]
    pub(super) test_passphrase: bool,
    #[arg(short = 'b', long)]
    pub(super) size: Option<u64>,
    #[arg(long, value_parser = bytes)]
    pub(super) device_size: Option<u64>,
    #[arg(short = 'p', long)]
    pub(super) skip: Option<u64>,
    #[arg(long)]
    pub(super) shared: bool,
    #[arg(long)]
    pub(super) persistent: bool,
    #[arg(long)]
    pub(super) refresh: bool,
    #[arg(long = "perf-same_cpu_crypt")]
    pub(super) same_cpu_crypt: bool,
    #[arg(long = "perf-submit_from_crypt_cpus")]
    pub(super) submit_from_crypt_cpus: bool,
    #[arg(long = "perf-no_read_workqueue")]
    pub(super) no_read_workqueue: bool,
    #[arg(long = "perf-no_write_workqueue")]
    pub(super) no_write_workqueue: bool,
    #[arg(long = "perf-high_priority")]
    pub(super) high_priority: bool,
    #[arg(long)]
    pub(super) deferred: bool,
    #[arg(long)]
    pub(super) cancel_deferred: bool,
    #[arg(long)]
    pub(super) disable_keyring: bool,
    #[arg(long)]
    pub(super) disable_locks: bool,
    #[arg(long)]
    pub(super) disable_blkid: bool,
    #[arg(long)]
    pub(super) serialize_memory_hard_pbkdf: bool,

    // The output.
    #[arg(long, visible_alias = "dump-master-key")]
    pub(super) dump_volume_key: bool,
    #[arg(long)]
    pub(super) dump_json_metadata: bool,

    // Reencryption.
    #[arg(long)]
    pub(super) encrypt: bool,
    #[arg(long)]
    pub(super) decrypt: bool,
    #[arg(short = 'N', long)]
    pub(super) new: bool,
    #[arg(long)]
    pub(super) init_only: bool,
    #[arg(long)]
    pub(super) resume_only: bool,
    #[arg(long)]
    pub(super) keep_key: bool,
    #[arg(long)]
    pub(super) resilience: Option<String>,
    #[arg(long)]
    pub(super) resilience_hash: Option<String>,
    #[arg(long, value_parser = bytes)]
    pub(super) hotzone_size: Option<u64>,
    #[arg(long, value_parser = bytes)]
    pub(super) reduce_device_size: Option<u64>,
    #[arg(long)]
    pub(super) active_name: Option<String>,
    #[arg(long)]
    pub(super) force_offline_reencrypt: bool,
    #[arg(long)]
    pub(super) progress_frequency: Option<u64>,
    #[arg(long)]
    pub(super) progress_json: bool,
    #[arg(short = 'B', long)]
    pub(super) block_size: Option<u64>,
    #[arg(long)]
    pub(super) use_directio: bool,
    #[arg(long)]
    pub(super) use_fsync: bool,
    #[arg(long)]
    pub(super) write_log: bool,

    // Options that this program does not support.
    #[arg(long)]
    pub(super) volume_key_keyring: Option<String>,
    #[arg(long)]
    pub(super) link_vk_to_keyring: Option<String>,
    #[arg(long)]
    pub(super) external_tokens_path: Option<PathBuf>,
    #[arg(long)]
    pub(super) integrity_inline: bool,
    #[arg(long)]
    pub(super) hw_opal: bool,
    #[arg(long)]
    pub(super) hw_opal_only: bool,
    #[arg(long)]
    pub(super) hw_opal_factory_reset: bool,

    // TrueCrypt and VeraCrypt.
    #[arg(long)]
    pub(super) tcrypt_backup: bool,
    #[arg(long)]
    pub(super) tcrypt_hidden: bool,
    #[arg(long)]
    pub(super) tcrypt_system: bool,
    #[arg(long)]
    pub(super) veracrypt: bool,
    #[arg(long)]
    pub(super) disable_veracrypt: bool,
    #[arg(long)]
    pub(super) veracrypt_pim: Option<u32>,
    #[arg(long)]
    pub(super) veracrypt_query_pim: bool,

    /// True in the process that serves a volume which another process was asked to open.
    #[arg(long = SERVE, hide = true)]
    pub(super) serve: bool,
    /// The action and its arguments.
    pub(super) words: Vec<OsString>,
}

impl Args {
    /// Parses the arguments of this process, and returns the names of the options among them.
    pub(super) fn of_process() -> Result<(Self, Vec<String>), clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        let long = |id: &clap::Id| {
            let given = matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
            let arg = command.get_arguments().find(|arg| given && arg.get_id() == id)?;
            arg.get_long().map(str::to_owned)
        };
        let given = matches.ids().filter_map(long).filter(|name| name != SERVE).collect();
        Ok((Self::from_arg_matches(&matches)?, given))
    }

    /// Returns an option that the action uses, and this program does not support.
    pub(super) fn not_kept(&self, action: &str) -> Option<&'static str> {
        let is = |actions: &[&str]| actions.contains(&action);
        let makes = is(&["luksFormat", "reencrypt"]);
        let takes_key = is(&["open", "refresh", "luksResume", "luksAddKey", "luksFormat", "reencrypt"]);
        let kept_not = [
            (makes && self.integrity_legacy_padding, "--integrity-legacy-padding"),
            (self.deferred || self.cancel_deferred, "--deferred"),
            (self.shared, "--shared"),
            (takes_key && self.volume_key_keyring.is_some(), "--volume-key-keyring"),
            (self.link_vk_to_keyring.is_some(), "--link-vk-to-keyring"),
            (self.hw_opal || self.hw_opal_only || self.hw_opal_factory_reset, "an OPAL drive"),
            (self.refresh, "--refresh"),
            (self.integrity_inline, "--integrity-inline"),
            (
                self.new_volume_key_file.is_some() && self.volume_key_file.is_some(),
                "--volume-key-file beside --new-volume-key-file",
            ),
        ];
        kept_not.into_iter().find_map(|(is_set, name)| is_set.then_some(name))
    }

    /// Returns true when the action or `--type` names a TCRYPT volume.
    pub(super) fn is_tcrypt(&self, action: &str) -> bool {
        self.kind.as_deref() == Some("tcrypt") || action == "tcryptDump"
    }
}

/// Parses a size in cryptsetup's form: K, M, G and T are powers of two, also as KiB; KB is 1000
/// bytes; S is 512.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" => 1,
        "s" => 512,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("{unit} is no unit of size")),
    };
    let size = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    size.ok_or_else(|| "want a size in bytes, such as 4096 or 16M".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_fit_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn sizes_have_cryptsetups_units() {
        for (text, size) in
            [("0", 0), ("512", 512), ("4K", 4096), ("1MiB", 1 << 20), ("2kb", 2000), ("8s", 4096)]
        {
            assert_eq!(bytes(text), Ok(size));
        }
        for bad in ["", "K", "4X", "-1", "99999999999999999999", "99999999T"] {
            bytes(bad).unwrap_err();
        }
    }
}
