//! `clevis`: a JWE that clevis decrypts, with a server (tang), a TPM (tpm2) or several of both
//! (sss).

use serde_json::{Value, json};
use underseal_cipher::Key;

use crate::member::wrong;
use crate::tool::Tool;
use crate::{Error, ErrorKind, Options, Result, Token};

/// The length of the longest part of a JWE: a part may contain the policies of many servers.
const MAX: usize = 256 << 10;
/// The parts of a JWE in its compact form, separated by dots.
const PARTS: [&str; 5] = ["protected", "encrypted_key", "iv", "ciphertext", "tag"];

pub(crate) fn open(token: &Token, options: &Options) -> Result<Key> {
    let compact = compact(token)?;
    let done = tool(options)?.args(["decrypt"]).run(compact.as_bytes())?;
    if let Some(error) = done.failure(ErrorKind::NoHardware) {
        return Err(error);
    }
    if done.secret.is_empty() {
        return Err(Error::unusable("clevis returns an empty passphrase"));
    }
    Ok(done.secret)
}

/// Checks whether a token could be opened on some machine.
pub(crate) fn check(token: &Token) -> Result<()> {
    compact(token).map(|_| ())
}

pub(crate) fn enroll(pin: &str, config: &str, trust: bool, options: &Options) -> Result<(Key, Token)> {
    if pin.is_empty() || !pin.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        return Err(Error::unusable(format!("{pin:?} is no pin of clevis; tang, tpm2 and sss are")));
    }
    let secret = crate::base64(crate::random()?.as_bytes())?;
    let yes = if trust { &["-y"][..] } else { &[] };
    let done = tool(options)?.args(["encrypt", pin, config]).args(yes).run(secret.as_bytes())?;
    if let Some(error) = done.failure(ErrorKind::Failed) {
        return Err(error);
    }
    let compact = std::str::from_utf8(done.secret.as_bytes()).unwrap_or_default().trim_end();
    let parts: Vec<&str> = compact.split('.').collect();
    if parts.len() != PARTS.len() {
        return Err(Error::new(ErrorKind::Failed, "clevis returns no compact JWE"));
    }
    let jwe: Token = PARTS.iter().zip(parts).map(|(name, part)| ((*name).into(), part.into())).collect();
    let token = crate::object(json!({ "type": "clevis", "keyslots": [], "jwe": jwe }));
    // A token is enrolled only if it opens again.
    if open(&token, options)? != secret {
        return Err(Error::new(ErrorKind::Failed, "clevis does not return the encrypted secret"));
    }
    Ok((secret, token))
}

fn tool(options: &Options) -> Result<Tool> {
    let tool = Tool::find("clevis", "clevis (and clevis-tpm2)", options.limit)?;
    // Clevis's tpm2 pin keeps its files, which hold no secret of underseal's, in a folder there.
    Ok(tool.env("TMPDIR", Some("/tmp")).env("TPM2TOOLS_TCTI", options.tpm2_device.as_deref()))
}

/// Returns the JWE in its compact form, with base64url characters only.
fn compact(token: &Token) -> Result<String> {
    let jwe = match token.get("jwe") {
        Some(Value::Object(jwe)) => jwe,
        _ => return Err(wrong("jwe", "is not there")),
    };
    let mut compact = String::new();
    for name in PARTS {
        let part = match jwe.get(name) {
            Some(Value::String(part)) => part.as_str(),
            None if name == "encrypted_key" => "",
            _ => return Err(wrong(&format!("jwe.{name}"), "is no text")),
        };
        let is_url = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if part.len() > MAX || !part.bytes().all(is_url) {
            return Err(wrong(&format!("jwe.{name}"), "is no base64url, or longer than any that is made"));
        }
        if name != PARTS[0] {
            compact.push('.');
        }
        compact.push_str(part);
    }
    Ok(compact)
}
