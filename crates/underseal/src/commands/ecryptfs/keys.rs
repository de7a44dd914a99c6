//! A mount's keys, made of passphrases.

use std::sync::Arc;

use underseal_cipher::Key;
use underseal_ecryptfs::fs::{LowerFolder, MountKeys, Sealing};
use underseal_ecryptfs::options::{EcryptfsOptions, PassphraseSource, passphrase_in_line};
use underseal_ecryptfs::tools::{Fit, fit};
use underseal_ecryptfs::{AuthToken, Cipher, Keyring, NameCipher, Signature};

use super::mount::{MountArgs, MountOptions};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;
use crate::passphrase::{ask_hidden, first_line_of_descriptor, first_line_of_file, tell};

/// Returns the keys that a mount encrypts with, from passphrases that fit its lower folder, which
/// is open, or whose keys the options name. Fails with `NoKey` when they open none of the existing files; with
/// `Usage` when two that should be the same differ.
pub(super) fn sealing(
    args: &MountArgs,
    lower: &LowerFolder,
    options: &MountOptions,
    quiet: bool,
) -> Result<Sealing> {
    let of = options.ecryptfs.passphrase.as_ref().and_then(|option| option.source.as_ref());
    let is_asked = args.passphrase_file.is_empty() && args.passphrase_fd.is_empty() && of.is_none();
    let mut tries = if is_asked { 3 } else { 1 };
    loop {
        tries -= 1;
        let passphrases = passphrases(args, &options.ecryptfs)?;
        let sealing = options.sealing(&passphrases).and_then(|sealing| {
            let is_known = compare(lower, &sealing, &options.ecryptfs)?;
            Ok((sealing, is_known))
        });
        match sealing {
            Err(error) if error.exit() == Exit::NoKey && tries > 0 => tell(&error.what()),
            Err(error) => return Err(error),
            Ok((sealing, true)) => return Ok(sealing),
            Ok((sealing, false)) => {
                // An empty folder cannot reveal a typing error.
                if is_asked && passphrases.first() != Some(&ask_hidden("The same again: ")?) {
                    return Err(
                        Error::usage("the two passphrases differ").with_remedy("again, typing slowly")
                    );
                }
                if !quiet {
                    let keys = sealing.keys.new_files.iter().map(|token| token.signature().to_string());
                    print(&format!("new files are for the key {}\n", keys.collect::<Vec<_>>().join(", ")))?;
                }
                return Ok(sealing);
            }
        }
    }
}

/// Returns true when a key opens existing files; keys that the options name are not tested. Fails
/// with `NoKey` when files exist, and no key opens any of them.
fn compare(lower: &LowerFolder, sealing: &Sealing, options: &EcryptfsOptions) -> Result<bool> {
    if sealing.encrypted_view {
        return Ok(true);
    }
    let names = sealing.names.as_ref().filter(|_| options.name_signature.is_none());
    let (contents, of_names) = fit(lower, &sealing.keys.keyring, names);
    let is_named = !options.signatures.is_empty();
    if let (Fit::Other(signature), false) = (contents, is_named) {
        let ours = sealing.keys.new_files.iter().map(|token| token.signature().to_string());
        let ours = ours.collect::<Vec<_>>().join(", ");
        let what =
            format!("{}: files there are for the key {signature}, not for {ours}", lower.path().display());
        return Err(Error::new(Exit::NoKey, what).with_remedy(format!(
            "the passphrase again; for new files with this one nevertheless: -o ecryptfs_sig={ours}",
            ours = ours.replace(", ", ",ecryptfs_sig=")
        )));
    }
    if let (Fit::Other(signature), Some(names)) = (of_names, names) {
        let ours = names.token().signature();
        let what =
            format!("{}: names there are for the key {signature}, not for {ours}", lower.path().display());
        return Err(Error::new(Exit::NoKey, what).with_remedy(format!(
            "-o ecryptfs_fnek_sig={signature} for the names that are there; for others nevertheless: -o ecryptfs_fnek_sig={ours}"
        )));
    }
    Ok(is_named || contents == Fit::Opens || of_names == Fit::Opens)
}

/// Returns the passphrases of a mount, in their order; asks for one if none was given.
fn passphrases(args: &MountArgs, options: &EcryptfsOptions) -> Result<Vec<Key>> {
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

/// Derives the keys of the passphrases, as the options say.
pub(super) fn keys(
    passphrases: &[Key],
    options: &EcryptfsOptions,
) -> Result<(MountKeys, Option<NameCipher>)> {
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
        // The mount helper uses the same key for both.
        None => new_files.first().cloned(),
    };
    let cipher = options.name_cipher_or(Cipher::DEFAULT)?;
    let names = names.map(|token| NameCipher::new(token, cipher)).transpose()?;
    Ok((MountKeys { keyring, new_files }, names))
}

fn missing(wanted: Signature, have: &[Arc<AuthToken>]) -> Error {
    let have: Vec<_> = have.iter().map(|token| token.signature().to_string()).collect();
    let context = format!("no passphrase gives the key {wanted}, but {}", have.join(", "));
    Error::new(Exit::NoKey, context)
        .with_remedy("the passphrase again; another salt with key=passphrase:passphrase_salt=HEX")
}
