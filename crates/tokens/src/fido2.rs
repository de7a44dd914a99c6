//! `systemd-fido2`: a secret that a FIDO2 device derives from a salt, the same each time (its
//! extension hmac-secret).

use std::fs::File;
use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use serde_json::json;
use underseal_cipher::Key;

use crate::member::{Members, wrong};
use crate::tool::Tool;
use crate::{Error, ErrorKind, Options, Result, Token};

const PACKAGE: &str = "fido2-tools";
/// The credential's relying party, as systemd has it.
const PARTY: &str = "io.systemd.cryptsetup";
/// The name that devices with a screen show.
const NAME: &str = "Encrypted volume";
/// The client data hash, which the secret does not depend on.
const CLIENT_DATA: [u8; 32] = [0; 32];

/// A request for an assertion of a device.
struct Question<'q> {
    party: &'q str,
    credential: &'q str,
    salt: &'q str,
    /// Presence: the user touches the device; verification: the device checks the user; `None`
    /// leaves the choice to the device.
    presence: Option<bool>,
    verification: Option<bool>,
    pin: Option<&'q Key>,
}

impl<'q> Question<'q> {
    /// The request that a token describes, and whether the device wants its PIN.
    fn parse(token: &'q Token) -> Result<(Self, bool)> {
        let members = Members(token);
        let party = members.optional_text("fido2-rp")?.unwrap_or(PARTY);
        // The tool reads lines.
        if party.is_empty() || party.len() > 255 || party.chars().any(char::is_control) {
            return Err(wrong("fido2-rp", "is no name"));
        }
        members.bytes("fido2-credential")?;
        if members.bytes("fido2-salt")?.len() != 32 {
            return Err(wrong("fido2-salt", "does not have 32 bytes"));
        }
        let set = |name| members.flag(name, false).map(|set| token.contains_key(name).then_some(set));
        let question = Self {
            party,
            credential: members.text("fido2-credential")?,
            salt: members.text("fido2-salt")?,
            presence: set("fido2-up-required")?,
            verification: set("fido2-uv-required")?,
            pin: None,
        };
        Ok((question, members.flag("fido2-clientPin-required", false)?))
    }
}

/// Checks whether a token could be opened on some machine.
pub(crate) fn check(token: &Token) -> Result<()> {
    Question::parse(token).map(|_| ())
}

pub(crate) fn open(token: &Token, pin: Option<&Key>, options: &Options) -> Result<Key> {
    let (question, needs_pin) = Question::parse(token)?;
    let device = device_of(&question, needs_pin, devices(options)?, options)?;
    if needs_pin && pin.is_none() {
        return Err(Error::new(ErrorKind::PinWanted, "the FIDO2 device wants its PIN"));
    }
    secret(&Question { pin: pin.filter(|_| needs_pin), ..question }, &device, options)
}

/// Returns the only device that gets the request for the secret. A device that gets another
/// device's PIN counts a wrong PIN, and locks itself for ever after eight of them.
fn device_of(
    question: &Question<'_>,
    needs_pin: bool,
    mut devices: Vec<PathBuf>,
    options: &Options,
) -> Result<PathBuf> {
    let several =
        || Error::unusable("several FIDO2 devices may have the credential: name one (--fido2-device)");
    // A device hides the credential of a token of this kind (its protection is level 3) until it
    // has verified its user.
    if question.verification == Some(true) && !devices.is_empty() {
        let first = devices.swap_remove(0);
        return if devices.is_empty() || !needs_pin { Ok(first) } else { Err(several()) };
    }
    let mut worst = Error::new(ErrorKind::NoHardware, "no FIDO2 device is there");
    let mut unsure = Vec::new();
    for device in devices {
        match preflight(question, &device, options)? {
            Preflight::Has => return Ok(device),
            Preflight::Lacks(e) if worst.kind() == ErrorKind::NoHardware => worst = e,
            Preflight::Lacks(_) => {}
            Preflight::Unsure => unsure.push(device),
        }
    }
    match unsure.pop() {
        None => Err(worst),
        Some(only) if unsure.is_empty() => Ok(only),
        Some(_) => Err(several()),
    }
}

/// The result of the question whether a device has a token's credential.
enum Preflight {
    Has,
    Lacks(Error),
    /// The device does not answer without its PIN or a touch.
    Unsure,
}

/// Asks a device whether it has the credential, without its PIN and without a touch.
fn preflight(question: &Question<'_>, device: &Path, options: &Options) -> Result<Preflight> {
    let Question { party, credential, .. } = question;
    let input = format!("{}\n{party}\n{credential}\n", Base64::encode_string(&CLIENT_DATA));
    let tool = Tool::find("fido2-assert", PACKAGE, options.limit)?.args(["-G", "-t", "up=false"]);
    // Reading from a stdin that is open for writing fails, so the tool cannot take an empty line
    // for a PIN.
    let unreadable = File::options().write(true).open("/dev/null");
    let unreadable = unreadable.map_err(|e| Error::system("/dev/null", e))?;
    let mut asked = tool.with_file("-i", input.as_bytes())?.args([device]).start(unreadable.into())?;
    asked.talk(None::<File>, &[], |_, _| false)?;
    let done = asked.finish()?;
    Ok(match failure(&done, None) {
        None => Preflight::Has,
        Some(e) if done.said.contains("NO_CREDENTIALS") || e.kind() == ErrorKind::NoHardware => {
            Preflight::Lacks(e)
        }
        Some(_) => Preflight::Unsure,
    })
}

pub(crate) fn enroll(pin: Option<&Key>, options: &Options) -> Result<(Key, Token)> {
    let devices = devices(options)?;
    let device = match &devices[..] {
        [only] => only,
        [] => return Err(Error::new(ErrorKind::NoHardware, "no FIDO2 device is there")),
        _ => return Err(Error::unusable("there are several FIDO2 devices: name one")),
    };
    let encode = |bytes: &[u8]| Base64::encode_string(bytes);
    let user = crate::random()?;
    let input = format!("{}\n{PARTY}\n{NAME}\n{}\n", encode(&CLIENT_DATA), encode(user.as_bytes()));
    let made = Tool::find("fido2-cred", PACKAGE, options.limit)?
        .args(["-M", "-h"])
        .with_file("-i", input.as_bytes())?
        .args([device.as_os_str(), "es256".as_ref()])
        .run(line(pin)?.as_bytes())?;
    if let Some(error) = failure(&made, pin) {
        return Err(error);
    }
    let text = String::from_utf8_lossy(made.secret.as_bytes()).into_owned();
    let credential = text.lines().nth(4).unwrap_or_default();
    if Base64::decode_vec(credential).map_or(true, |id| id.is_empty()) {
        return Err(Error::new(ErrorKind::Failed, "fido2-cred returns no credential"));
    }
    let token = crate::object(json!({
        "type": "systemd-fido2",
        "keyslots": [],
        "fido2-credential": credential,
        "fido2-salt": encode(crate::random()?.as_bytes()),
        "fido2-rp": PARTY,
        "fido2-clientPin-required": pin.is_some(),
        "fido2-up-required": true,
        "fido2-uv-required": false,
    }));
    Ok((open(&token, pin, options)?, token))
}

/// The connected devices, or the device that the options name.
fn devices(options: &Options) -> Result<Vec<PathBuf>> {
    if let Some(device) = &options.fido2_device {
        return Ok(vec![device.clone()]);
    }
    let listed = Tool::find("fido2-token", PACKAGE, options.limit)?.args(["-L"]).run(&[])?;
    if let Some(error) = listed.failure(ErrorKind::Failed) {
        return Err(error);
    }
    let text = String::from_utf8_lossy(listed.secret.as_bytes()).into_owned();
    let paths = text.lines().filter_map(|line| line.split_once(": ").map(|(path, _)| path));
    Ok(paths.filter(|path| Path::new(path).is_absolute()).map(PathBuf::from).collect())
}

fn secret(question: &Question<'_>, device: &Path, options: &Options) -> Result<Key> {
    let Question { party, credential, salt, .. } = question;
    let input = format!("{}\n{party}\n{credential}\n{salt}\n", Base64::encode_string(&CLIENT_DATA));
    let mut tool = Tool::find("fido2-assert", PACKAGE, options.limit)?.args(["-G", "-h"]);
    for (name, set) in [("up", question.presence), ("uv", question.verification)] {
        // A device without user verification refuses the option even with the value false.
        if let Some(set) = set.filter(|&set| set || name == "up") {
            tool = tool.args(["-t", &format!("{name}={set}")]);
        }
    }
    if question.pin.is_some() {
        tool = tool.args(["-t", "pin=true"]);
    }
    let done = tool.with_file("-i", input.as_bytes())?.args([device]).run(line(question.pin)?.as_bytes())?;
    if let Some(error) = failure(&done, question.pin) {
        return Err(error);
    }
    let said = done.secret.as_bytes().trim_ascii_end();
    let last = said.rsplit(|&b| b == b'\n').next().unwrap_or_default();
    let mut bytes = Key::zeroed(64)?;
    let len = Base64::decode(last, bytes.as_mut_bytes()).map_or(0, <[u8]>::len);
    if len != 32 {
        return Err(Error::new(ErrorKind::Failed, "fido2-assert returns no secret of 32 bytes"));
    }
    crate::base64(&bytes.as_bytes()[..32])
}

/// Returns a PIN in the form that the tools read.
fn line(pin: Option<&Key>) -> Result<Key> {
    let pin = pin.map_or(&[][..], Key::as_bytes);
    let mut line = Key::zeroed(pin.len() + 1)?;
    line.as_mut_bytes()[..pin.len()].copy_from_slice(pin);
    line.as_mut_bytes()[pin.len()] = b'\n';
    Ok(line)
}

fn failure(done: &crate::tool::Done, pin: Option<&Key>) -> Option<Error> {
    let says = |word: &str| done.said.contains(word);
    let kind = if says("PIN_INVALID") && pin.is_some() {
        ErrorKind::WrongPin
    } else if says("PIN_AUTH_BLOCKED") || says("PIN_BLOCKED") || says("NO_CREDENTIALS") {
        ErrorKind::NotUsable
    } else if says("PIN_REQUIRED") || says("PIN_INVALID") || says("Enter PIN") {
        ErrorKind::PinWanted
    } else if says("fido_dev_open") {
        ErrorKind::NoHardware
    } else {
        ErrorKind::Failed
    };
    done.failure(kind)
}
