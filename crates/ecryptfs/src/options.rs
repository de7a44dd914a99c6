//! Mount options, by the kernel's names and the mount helper's.
//!
//! Options never contain a key: `key=passphrase:passphrase_passwd_file=FILE` names the place of a
//! passphrase. The options of every mount (`ro`, `nosuid`, ..) are kept separately for the mount
//! itself.

use std::path::PathBuf;

use crate::{AuthToken, Cipher, Error, ErrorKind, Result, Signature};

/// A mount's options. Unset options are absent, so that headers may decide.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EcryptfsOptions {
    /// `ecryptfs_sig`, once for each key that new files are wrapped for.
    pub signatures: Vec<Signature>,
    /// `ecryptfs_cipher`.
    pub cipher: Option<String>,
    /// `ecryptfs_key_bytes`.
    pub key_bytes: Option<usize>,
    /// `ecryptfs_fnek_sig`: names are encrypted, with this key.
    pub name_signature: Option<Signature>,
    /// `ecryptfs_fn_cipher`.
    pub name_cipher: Option<String>,
    /// `ecryptfs_fn_key_bytes`.
    pub name_key_bytes: Option<usize>,
    /// `ecryptfs_enable_filename_crypto`: names are encrypted, with the passphrase's key.
    pub encrypt_names: bool,
    /// `ecryptfs_passthrough`: files without a header are read unchanged.
    pub passthrough: bool,
    /// `ecryptfs_xattr_metadata`: headers of new files go into xattrs.
    pub xattr_metadata: bool,
    /// `ecryptfs_encrypted_view`: files in their encrypted form, headers in front.
    pub encrypted_view: bool,
    /// `ecryptfs_unlink_sigs`: keys are removed from the keyring at the unmount.
    pub unlink_signatures: bool,
    /// `ecryptfs_mount_auth_tok_only`: only the keys in the options open files.
    pub named_keys_only: bool,
    /// `long_names`, unknown to the kernel: with encrypted names, also names of 144 to 255 bytes.
    pub long_names: bool,
    /// `ro`.
    pub read_only: bool,
    /// `key`: the place of the passphrase.
    pub passphrase: Option<PassphraseOption>,
    /// The options of every mount, as written.
    pub others: Vec<String>,
}

/// `key=passphrase:..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassphraseOption {
    /// The place of the passphrase. `None` asks the user.
    pub source: Option<PassphraseSource>,
    /// `passphrase_salt`, hex.
    pub salt: [u8; 8],
}

/// The place of a passphrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PassphraseSource {
    /// `passphrase_passwd_file`.
    File(PathBuf),
    /// `passphrase_passwd_fd`.
    Descriptor(u32),
}

/// Options that every mount accepts.
const OF_EVERY_MOUNT: [&str; 23] = [
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "sync",
    "async",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nodiratime",
    "diratime",
    "user",
    "nouser",
    "users",
    "owner",
    "auto",
    "noauto",
];

impl EcryptfsOptions {
    /// Parses a comma-separated list. A later option replaces an earlier option of its name, except
    /// signatures, which add up.
    ///
    /// # Errors
    /// `BadOption`; `Unsupported` for keys that are no passphrases.
    pub fn parse(text: &str) -> Result<Self> {
        let mut options = Self::default();
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            options.take(option)?;
        }
        options.check()?;
        Ok(options)
    }

    fn take(&mut self, option: &str) -> Result<()> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let needed = || value.ok_or_else(|| bad(format!("{name} needs a value")));
        match name {
            "ecryptfs_sig" => self.signatures.push(needed()?.parse()?),
            "ecryptfs_cipher" | "cipher" => self.cipher = Some(needed()?.into()),
            "ecryptfs_key_bytes" => self.key_bytes = Some(number(name, needed()?)?),
            "ecryptfs_fnek_sig" => self.name_signature = Some(needed()?.parse()?),
            "ecryptfs_fn_cipher" => self.name_cipher = Some(needed()?.into()),
            "ecryptfs_fn_key_bytes" => self.name_key_bytes = Some(number(name, needed()?)?),
            "ecryptfs_enable_filename_crypto" => self.encrypt_names = flag(name, value)?,
            "ecryptfs_passthrough" => self.passthrough = flag(name, value)?,
            "ecryptfs_xattr_metadata" => self.xattr_metadata = flag(name, value)?,
            "ecryptfs_encrypted_view" => self.encrypted_view = flag(name, value)?,
            "ecryptfs_unlink_sigs" => self.unlink_signatures = flag(name, value)?,
            "ecryptfs_mount_auth_tok_only" => self.named_keys_only = flag(name, value)?,
            "long_names" => self.long_names = flag(name, value)?,
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "key" => self.passphrase = Some(passphrase(needed()?)?),
            // Options for the mount helper's dialogue, which does not exist here.
            "no_sig_cache" | "verbosity" | "no_prompt" => {}
            _ if OF_EVERY_MOUNT.contains(&name) || name.starts_with("x-") || name.starts_with("_") => {
                self.others.push(option.into());
            }
            _ => return Err(bad(format!("there is no option \"{name}\""))),
        }
        Ok(())
    }

    /// Checks the ciphers, and sets the options that follow from others.
    fn check(&mut self) -> Result<()> {
        self.cipher_or(Cipher::DEFAULT)?;
        self.name_cipher_or(Cipher::DEFAULT)?;
        if self.encrypted_view {
            (self.xattr_metadata, self.read_only) = (true, true);
        }
        Ok(())
    }

    /// Returns the cipher of new files, or `otherwise` if no cipher was named.
    ///
    /// # Errors
    /// `BadOption` when no cipher has this name and size.
    pub fn cipher_or(&self, otherwise: Cipher) -> Result<Cipher> {
        pick(self.cipher.as_deref(), self.key_bytes, otherwise)
    }

    /// Returns the cipher of names; by default that of files.
    ///
    /// # Errors
    /// The kinds of [`EcryptfsOptions::cipher_or`].
    pub fn name_cipher_or(&self, otherwise: Cipher) -> Result<Cipher> {
        pick(self.name_cipher.as_deref(), self.name_key_bytes, self.cipher_or(otherwise)?)
    }

    /// Returns true when names are to be encrypted.
    pub fn encrypts_names(&self) -> bool {
        self.encrypt_names || self.name_signature.is_some()
    }
}

fn pick(name: Option<&str>, key_bytes: Option<usize>, otherwise: Cipher) -> Result<Cipher> {
    match (name, key_bytes) {
        (Some(name), Some(bytes)) => Cipher::new(name, bytes),
        (Some(name), None) if name == otherwise.name() => Ok(otherwise),
        (Some(name), None) => Cipher::named(name),
        (None, Some(bytes)) => Cipher::new(otherwise.name(), bytes),
        (None, None) => Ok(otherwise),
    }
}

/// Parses `passphrase[:name=value]..`.
fn passphrase(text: &str) -> Result<PassphraseOption> {
    let mut words = text.split(':');
    match words.next() {
        Some("passphrase") => {}
        Some(other @ ("openssl" | "gpg" | "pkcs11" | "pkcs11-helper" | "tspi")) => {
            let context = format!("a key of the kind \"{other}\": only passphrases are supported");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        _ => return Err(bad("a key is given as key=passphrase:passphrase_passwd_file=FILE")),
    }
    let mut option = PassphraseOption { source: None, salt: AuthToken::DEFAULT_SALT };
    for word in words.filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some(("passphrase_passwd_file" | "passfile", path)) => {
                option.source = Some(PassphraseSource::File(path.into()));
            }
            Some(("passphrase_passwd_fd" | "passfd", fd)) => {
                let fd = fd.parse().map_err(|_| bad(format!("\"{fd}\" is no descriptor")))?;
                option.source = Some(PassphraseSource::Descriptor(fd));
            }
            Some(("passphrase_salt" | "salt", hex)) => {
                let wrong = |_| bad(format!("\"{hex}\" is no salt of 16 hex digits"));
                hex::decode_to_slice(hex, &mut option.salt).map_err(wrong)?;
            }
            // The text is left out, since it is a secret.
            Some(("passphrase_passwd" | "passwd", _)) => {
                return Err(bad(
                    "a passphrase among the options can be read by others: passphrase_passwd_file=FILE",
                ));
            }
            _ => {
                return Err(bad(
                    "after key=passphrase: come passphrase_passwd_file, _passwd_fd and passphrase_salt",
                ));
            }
        }
    }
    Ok(option)
}

/// Returns the passphrase in a file's first line, which the mount helper expects as
/// `passphrase_passwd=..`.
pub fn passphrase_in_line(line: &[u8]) -> &[u8] {
    let named = [&b"passphrase_passwd="[..], b"passwd="].iter().find_map(|name| line.strip_prefix(*name));
    named.unwrap_or(line)
}

fn number(name: &str, text: &str) -> Result<usize> {
    text.parse().map_err(|_| bad(format!("{name}=\"{text}\" is no number")))
}

/// The kernel's flags have no value; the helper's are yes or no.
fn flag(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("" | "y" | "yes" | "1") => Ok(true),
        Some("n" | "no" | "0") => Ok(false),
        Some(other) => Err(bad(format!("{name} is yes or no, not \"{other}\""))),
    }
}

fn bad(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadOption, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_options_are_taken_by_their_names() {
        let text = "rw,nosuid,ecryptfs_sig=0ebe4519ccc61621,ecryptfs_sig=d395309aaad4de06,ecryptfs_cipher=aes,\
                    ecryptfs_key_bytes=32,ecryptfs_fnek_sig=dcc4faa948be4b5e,ecryptfs_fn_key_bytes=16,\
                    ecryptfs_passthrough,ecryptfs_xattr_metadata,ecryptfs_unlink_sigs,ecryptfs_mount_auth_tok_only";
        let options = EcryptfsOptions::parse(text).unwrap();
        assert_eq!(options.signatures.len(), 2);
        assert_eq!(options.cipher_or(Cipher::DEFAULT).unwrap(), Cipher::new("aes", 32).unwrap());
        assert_eq!(options.name_cipher_or(Cipher::DEFAULT).unwrap(), Cipher::DEFAULT);
        assert!(options.encrypts_names() && options.passthrough && options.xattr_metadata);
        assert!(options.unlink_signatures && options.named_keys_only && !options.read_only);
        assert_eq!(options.others, ["nosuid"]);
    }

    #[test]
    fn the_helper_s_options_name_where_a_passphrase_is() {
        let text = "key=passphrase:passphrase_passwd_file=/run/p:salt=0102030405060708,no_sig_cache,\
                    ecryptfs_enable_filename_crypto=n,ecryptfs_passthrough=no";
        let options = EcryptfsOptions::parse(text).unwrap();
        let passphrase = options.passphrase.unwrap();
        assert_eq!(passphrase.source, Some(PassphraseSource::File("/run/p".into())));
        assert_eq!(passphrase.salt, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(!options.encrypt_names && !options.passthrough && !options.long_names);
        assert!(EcryptfsOptions::parse("long_names").unwrap().long_names);
        let options = EcryptfsOptions::parse("key=passphrase:passphrase_passwd_fd=7").unwrap();
        assert_eq!(options.passphrase.unwrap().source, Some(PassphraseSource::Descriptor(7)));
        assert_eq!(passphrase_in_line(b"passphrase_passwd=a b"), b"a b");
        assert_eq!(passphrase_in_line(b"a b"), b"a b");
    }

    #[test]
    fn an_encrypted_view_is_read_only_and_of_xattrs() {
        let options = EcryptfsOptions::parse("ecryptfs_encrypted_view").unwrap();
        assert!(options.read_only && options.xattr_metadata);
    }

    #[test]
    fn a_passphrase_among_the_options_is_refused_and_not_repeated() {
        let error = EcryptfsOptions::parse("key=passphrase:passphrase_passwd=secret").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadOption);
        assert!(!error.to_string().contains("secret"));
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for (text, kind) in [
            ("ecryptfs_sig=xyz", ErrorKind::BadOption),
            ("ecryptfs_sig", ErrorKind::BadOption),
            ("ecryptfs_cipher=rot13", ErrorKind::BadOption),
            ("ecryptfs_cipher=aes,ecryptfs_key_bytes=17", ErrorKind::BadOption),
            ("ecryptfs_cipher=twofish,ecryptfs_key_bytes=24", ErrorKind::BadOption),
            ("ecryptfs_fn_cipher=des3_ede,ecryptfs_fn_key_bytes=16", ErrorKind::BadOption),
            ("ecryptfs_passthrough=maybe", ErrorKind::BadOption),
            ("key=openssl:keyfile=x", ErrorKind::Unsupported),
            ("key=passphrase:salt=12", ErrorKind::BadOption),
            ("ecryptfs_sigs=0ebe4519ccc61621", ErrorKind::BadOption),
        ] {
            assert_eq!(EcryptfsOptions::parse(text).unwrap_err().kind(), kind, "{text}");
        }
    }

    #[test]
    fn the_size_of_a_key_may_be_left_out() {
        for (text, key_bytes) in [
            ("", 16),
            ("ecryptfs_cipher=aes", 16),
            ("ecryptfs_cipher=twofish", 32),
            ("ecryptfs_cipher=des3_ede", 24),
            ("ecryptfs_cipher=cast5", 16),
            ("ecryptfs_key_bytes=24", 24),
        ] {
            let options = EcryptfsOptions::parse(text).unwrap();
            assert_eq!(options.cipher_or(Cipher::DEFAULT).unwrap().key_bytes(), key_bytes, "{text}");
        }
    }
}
