//! `systemd-tpm2`: a secret that a TPM releases while its PCRs are unchanged, and only with the
//! PIN.
//!
//! ```text
//!   token --seal--> policy of PCRs, PIN --session--> commands --wire--> bytes --tpm2_send--> TPM
//! ```
//!
//! The TPM's commands are built here, and one tpm2_send carries them: tpm2_unseal takes the PIN as
//! an argument, which other users can read, and its sessions as files, which hold keys.

mod channel;
mod seal;
mod session;
mod wire;

use base64ct::{Base64, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use underseal_cipher::Key;

use crate::member::{Members, wrong};
use crate::{Error, ErrorKind, Options, Result, Token};
use channel::Channel;
use seal::{Bank, Parent, Policy, Primary, Sealed};

/// The number of iterations in systemd.
const PIN_ITERATIONS: u32 = 10_000;

/// How a new secret is sealed.
#[derive(Debug, Clone)]
pub struct Tpm2Enrollment {
    /// The PCRs that must keep their present values; may be empty.
    pub pcrs: Vec<u8>,
    /// The hash of their bank: `sha1`, `sha256`, `sha384`, `sha512`.
    pub bank: String,
}

pub(crate) fn open(token: &Token, pin: Option<&Key>, options: &Options) -> Result<Key> {
    let members = Members(token);
    let found = Found::parse(members)?;
    channel::device(options)?;
    let auth = match (members.flag("tpm2-pin", false)?, pin) {
        (false, _) => None,
        (true, Some(pin)) => Some(auth_value(pin, found.salt.as_deref())?),
        (true, None) => return Err(Error::new(ErrorKind::PinWanted, "the TPM wants a PIN")),
    };
    let mut channel = Channel::open(options)?;
    let secret = seal::unseal(&mut channel, &found.sealed, &found.policy, auth.as_ref(), &found.parent)?;
    crate::base64(secret.as_bytes())
}

/// Checks whether a token could be opened on some machine.
pub(crate) fn check(token: &Token) -> Result<()> {
    Found::parse(Members(token)).map(|_| ())
}

pub(crate) fn enroll(how: &Tpm2Enrollment, pin: Option<&Key>, options: &Options) -> Result<(Key, Token)> {
    let bank = Bank::of(&how.bank).ok_or_else(|| wrong("bank", "is none of sha1, sha256, sha384, sha512"))?;
    if how.pcrs.iter().any(|&pcr| pcr >= 24) {
        return Err(Error::unusable("a TPM's PCRs are 0 to 23"));
    }
    let policy = Policy { pcrs: how.pcrs.clone(), bank, pin: pin.is_some(), digest: Vec::new() };
    // Without a salt, as in widespread versions of systemd; later versions open it, too.
    let auth = pin.map(|pin| auth_value(pin, None)).transpose()?;
    let secret = crate::random()?;
    let mut channel = Channel::open(options)?;
    let (sealed, policy, primary) = seal::seal(&mut channel, &secret, &policy, auth.as_ref())?;
    let token = json!({
        "type": "systemd-tpm2",
        "keyslots": [],
        "tpm2-blob": Base64::encode_string(&sealed.to_bytes()),
        "tpm2-pcrs": policy.pcrs,
        "tpm2-pcr-bank": how.bank,
        "tpm2-primary-alg": primary.name(),
        "tpm2-policy-hash": policy.digest.iter().map(|b| format!("{b:02x}")).collect::<String>(),
        "tpm2-pin": policy.pin,
    });
    // A secret is enrolled only if it can be unsealed again.
    let again = seal::unseal(&mut channel, &sealed, &policy, auth.as_ref(), &Parent::Primary(primary))?;
    if again != secret {
        return Err(Error::new(ErrorKind::Failed, "the TPM does not return the sealed secret"));
    }
    Ok((crate::base64(secret.as_bytes())?, crate::object(token)))
}

/// The fields of a token.
struct Found {
    sealed: Sealed,
    policy: Policy,
    parent: Parent,
    salt: Option<Vec<u8>>,
}

impl Found {
    fn parse(members: Members<'_>) -> Result<Self> {
        if members.flag("tpm2_pcrlock", false)? || members.optional_text("tpm2_pcrlock_nv")?.is_some() {
            return Err(wrong(
                "tpm2_pcrlock",
                "asks for systemd-pcrlock's policies, which this build does not know",
            ));
        }
        if !members.pcrs("tpm2_pubkey_pcrs")?.is_empty() || members.optional_text("tpm2_pubkey")?.is_some() {
            return Err(wrong("tpm2_pubkey", "asks for signed PCR policies, which this build does not know"));
        }
        for name in ["tpm2-blob", "tpm2-policy-hash"] {
            if members.0.get(name).is_some_and(Value::is_array) {
                return Err(wrong(name, "has several parts, which this build does not know"));
            }
        }
        let bank = members.optional_text("tpm2-pcr-bank")?.unwrap_or("sha256");
        let primary = members.optional_text("tpm2-primary-alg")?.unwrap_or("ecc");
        let primary =
            Primary::of(primary).ok_or_else(|| wrong("tpm2-primary-alg", "is neither ecc nor rsa"))?;
        Ok(Self {
            sealed: Sealed::parse(&members.bytes("tpm2-blob")?)
                .ok_or_else(|| wrong("tpm2-blob", "is cut short"))?,
            policy: Policy {
                pcrs: members.pcrs("tpm2-pcrs")?,
                bank: Bank::of(bank).ok_or_else(|| wrong("tpm2-pcr-bank", "is no bank that is known"))?,
                pin: members.flag("tpm2-pin", false)?,
                digest: hex(members.text("tpm2-policy-hash")?)
                    .ok_or_else(|| wrong("tpm2-policy-hash", "is no SHA-256"))?,
            },
            parent: match members.optional_bytes("tpm2_srk")? {
                Some(srk) => Parent::stored(&srk).ok_or_else(|| wrong("tpm2_srk", "is no key of a TPM's"))?,
                None => Parent::Primary(primary),
            },
            salt: members.optional_bytes("tpm2_salt")?,
        })
    }
}

/// The TPM's authorization value of the PIN: its SHA-256, after a KDF when a salt exists; without
/// zeros at its end, which the TPM drops.
fn auth_value(pin: &Key, salt: Option<&[u8]>) -> Result<Key> {
    let text = match salt {
        None => Key::new(pin.as_bytes())?,
        Some(salt) => {
            let mut salted = Key::zeroed(32)?;
            pbkdf2::pbkdf2::<Hmac<Sha256>>(pin.as_bytes(), salt, PIN_ITERATIONS, salted.as_mut_bytes())
                .map_err(|_| Error::new(ErrorKind::System, "PBKDF2"))?;
            crate::base64(salted.as_bytes())?
        }
    };
    let mut auth = Key::zeroed(32)?;
    auth.as_mut_bytes().copy_from_slice(&Sha256::digest(text.as_bytes()));
    let len = auth.as_bytes().iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    auth.truncate(len);
    Ok(auth)
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    // HMAC takes keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    parts.iter().fold(Sha256::new(), |hash, part| hash.chain_update(part)).finalize().into()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pairs = (digits.len() == 64).then(|| digits.chunks_exact(2))?;
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests;
