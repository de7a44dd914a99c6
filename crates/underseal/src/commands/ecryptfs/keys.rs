//! A mount's keys, out of passphrases.

use std::sync::Arc;

use underseal_cipher::Key;
use underseal_ecryptfs::fs::Keys;
use underseal_ecryptfs::options::{Options, PassphraseSource, passphrase_in_line};
use underseal_ecryptfs::{AuthToken, Cipher, Keyring, NameCipher, Signature};

use crate::cli::MountArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::passphrase::{ask_hidden, first_line_of_descriptor, first_line_of_file};

/// The passphrases of a mount, in the order in which they were given; asked for when they were not.
pub(super) fn passphrases(args: &MountArgs, options: &Options) -> Result<Vec<Key>> {
    let mut all = Vec::new();
    for path in &args.passphrase_file {
        all.push(first_line_of_file(path)?);
    }
    for &number in &args.passphrase_fd {
        all.push(first_line_of_descriptor(number)?);
    }
    match options.passphrase.as_ref().and_then(|option| option.source.as_ref()) {
        Some(PassphraseSource::File(path)) => all.push(first_line_of_file(path)?),
        Some(PassphraseSource::Descriptor(number)) => all.push(first_line_of_descriptor(*number)?),
        None => {}
    }
    if all.is_empty() {
        all.push(ask_hidden(&format!("Passphrase for {}: ", args.lower.display()))?);
    }
    Ok(all)
}

/// What the options make of the passphrases.
pub(super) fn keys(passphrases: &[Key], options: &Options) -> Result<(Keys, Option<NameCipher>)> {
    let salt = options.passphrase.as_ref().map_or(AuthToken::DEFAULT_SALT, |option| option.salt);
    let mut contents = Vec::new();
    let mut names = Vec::new();
    for passphrase in passphrases {
        let passphrase = passphrase_in_line(passphrase.as_bytes());
        contents.push(Arc::new(AuthToken::from_passphrase(passphrase, salt)?));
        names.push(Arc::new(AuthToken::from_passphrase(passphrase, AuthToken::NAME_SALT)?));
    }
    let find = |wanted: Signature| {
        let all = contents.iter().chain(&names);
        all.into_iter()
            .find(|token| token.signature() == wanted)
            .cloned()
            .ok_or_else(|| missing(wanted, &contents))
    };
    let new_files = match options.signatures.is_empty() {
        true => contents.clone(),
        false => options.signatures.iter().map(|&wanted| find(wanted)).collect::<Result<_>>()?,
    };
    let mut keyring = Keyring::new();
    let others = contents.iter().filter(|_| !options.named_keys_only);
    for token in new_files.iter().chain(others) {
        keyring.add(token.clone());
    }
    let names = match options.name_signature {
        _ if !options.encrypts_names() => None,
        Some(wanted) => Some(find(wanted)?),
        // As the mount helper has it: the same key for both.
        None => new_files.first().cloned(),
    };
    let cipher = options.name_cipher_or(Cipher::DEFAULT)?;
    let names = names.map(|token| NameCipher::new(token, cipher)).transpose()?;
    Ok((Keys { keyring, new_files }, names))
}

fn missing(wanted: Signature, have: &[Arc<AuthToken>]) -> Error {
    let have: Vec<_> = have.iter().map(|token| token.signature().to_string()).collect();
    let context = format!("no passphrase gives the key {wanted}, but {}", have.join(", "));
    Error::new(Exit::NoKey, context)
        .with_remedy("the passphrase again; another salt with key=passphrase:passphrase_salt=HEX")
}
