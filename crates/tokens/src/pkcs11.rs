//! `systemd-pkcs11`: a secret that a card's RSA key decrypts.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::termios::{LocalModes, tcgetattr};
use underseal_cipher::Key;

use crate::member::{Members, wrong};
use crate::tool::{Running, Tool, terminal};
use crate::{Error, ErrorKind, Options, Result, Token};

/// All modules known to this machine's p11-kit.
const MODULES: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/libp11-kit.so.0", "/usr/lib/aarch64-linux-gnu/libp11-kit.so.0"];
/// How long a card may take before it asks for its PIN.
const PATIENCE: Duration = Duration::from_secs(30);

/// The attributes of a `pkcs11:` URI that name a key. A header may not set other attributes (a
/// module, a PIN).
#[derive(Debug, Default, PartialEq)]
struct Uri {
    /// Attributes of the card, by their names in pkcs11-tool's list.
    card: Vec<(&'static str, Vec<u8>)>,
    id: Option<String>,
    label: Option<String>,
}

/// The key of a token and its encrypted secret.
fn parse(token: &Token) -> Result<(Uri, Vec<u8>)> {
    let members = Members(token);
    let uri = Uri::parse(members.text("pkcs11-uri")?).ok_or_else(|| wrong("pkcs11-uri", "names no key"))?;
    let sealed = members.bytes("pkcs11-key")?;
    if sealed.is_empty() || sealed.len() > 2048 {
        return Err(wrong("pkcs11-key", "is not as long as any RSA key's"));
    }
    Ok((uri, sealed))
}

/// Checks whether a token could be opened on some machine.
pub(crate) fn check(token: &Token) -> Result<()> {
    parse(token).map(|_| ())
}

pub(crate) fn open(token: &Token, pin: Option<&Key>, options: &Options) -> Result<Key> {
    let (uri, sealed) = parse(token)?;
    let slot = slot(&uri, options)?;
    let Some(pin) = pin else {
        return Err(Error::new(ErrorKind::PinWanted, "the card wants its PIN"));
    };
    let mut tool = tool(options)?.args(["--login", "--decrypt", "--mechanism", "RSA-PKCS", "--slot", &slot]);
    for (option, value) in [("--id", &uri.id), ("--label", &uri.label)] {
        if let Some(value) = value {
            tool = tool.args([option, value]);
        }
    }
    if pin.as_bytes().iter().any(u8::is_ascii_control) {
        return Err(Error::new(ErrorKind::WrongPin, "a PIN has no control characters"));
    }
    let (ours, theirs) = terminal()?;
    let tool = tool.with_file("--input-file", &sealed)?.with_result("--output-file")?;
    let mut running = tool.with_terminal(&theirs)?.start(theirs.into())?;
    if asks(&ours, &mut running) {
        let mut line = Key::zeroed(pin.len() + 1)?;
        line.as_mut_bytes()[..pin.len()].copy_from_slice(pin.as_bytes());
        line.as_mut_bytes()[pin.len()] = b'\n';
        running.talk(Some(&ours), line.as_bytes(), |_, _| false)?;
    }
    let done = running.finish()?;
    let kind = match &done.said {
        said if said.contains("PIN_INCORRECT")
            || said.contains("PIN_LEN")
            || said.contains("PIN_INVALID") =>
        {
            ErrorKind::WrongPin
        }
        said if said.contains("PIN_LOCKED") => ErrorKind::NotUsable,
        _ => ErrorKind::Failed,
    };
    if let Some(error) = done.failure(kind) {
        return Err(error);
    }
    if done.secret.is_empty() {
        return Err(Error::new(ErrorKind::Failed, "pkcs11-tool returns no secret"));
    }
    crate::base64(done.secret.as_bytes())
}

/// Waits until the tool turns off the terminal's echo, since it discards bytes that were typed
/// before.
fn asks(terminal: impl AsFd, tool: &mut Running) -> bool {
    let started = Instant::now();
    while started.elapsed() < PATIENCE && !tool.has_ended() {
        if tcgetattr(terminal.as_fd()).is_ok_and(|modes| !modes.local_modes.contains(LocalModes::ECHO)) {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

fn tool(options: &Options) -> Result<Tool> {
    let found = || MODULES.iter().map(std::path::PathBuf::from).find(|path| path.exists());
    let module = options.pkcs11_module.clone().or_else(found).ok_or_else(|| {
        let what = "p11-kit is not installed: it comes with the Debian package libp11-kit0";
        Error::new(ErrorKind::NoTool, what)
    })?;
    let tool = Tool::find("pkcs11-tool", "opensc", options.limit)?;
    Ok(tool.args(["--module".as_ref(), module.as_os_str()]))
}

/// Returns the slot of the card in the URI, by pkcs11-tool's number.
fn slot(uri: &Uri, options: &Options) -> Result<String> {
    let listed = tool(options)?.args(["--list-token-slots"]).run(&[])?;
    if let Some(error) = listed.failure(ErrorKind::NoHardware) {
        return Err(error);
    }
    let text = String::from_utf8_lossy(listed.secret.as_bytes()).into_owned();
    let mut found = text.split("\nSlot ").skip(1).filter(|slot| uri.names(slot)).filter_map(number);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Error::new(ErrorKind::NoHardware, "the card that the token names is not there")),
        (Some(_), Some(_)) => Err(Error::unusable("several cards match the token")),
    }
}

/// Returns the number in `0 (0x11): ...`.
fn number(slot: &str) -> Option<String> {
    let (_, rest) = slot.lines().next()?.split_once(" (")?;
    rest.split_once("):").map(|(number, _)| number.to_owned())
}

impl Uri {
    fn parse(text: &str) -> Option<Self> {
        let path = text.strip_prefix("pkcs11:")?.split('?').next()?;
        let mut uri = Self::default();
        for attribute in path.split(';').filter(|part| !part.is_empty()) {
            let (name, value) = attribute.split_once('=')?;
            let value = decode(value)?;
            match name {
                "token" => uri.card.push(("token label", value)),
                "manufacturer" => uri.card.push(("token manufacturer", value)),
                "model" => uri.card.push(("token model", value)),
                "serial" => uri.card.push(("serial num", value)),
                "id" => uri.id = Some(value.iter().map(|b| format!("{b:02x}")).collect()),
                "object" => uri.label = Some(String::from_utf8(value).ok().filter(|l| !l.contains('\0'))?),
                // The kind of object, and names of libraries and slots, which differ between
                // machines.
                "type"
                | "library-manufacturer"
                | "library-description"
                | "library-version"
                | "slot-manufacturer"
                | "slot-description"
                | "slot-id" => {}
                _ => return None,
            }
        }
        (!uri.card.is_empty()).then_some(uri)
    }

    /// Returns true when a slot of the list has this card.
    fn names(&self, slot: &str) -> bool {
        self.card.iter().all(|(name, value)| {
            slot.lines().any(|line| {
                let (key, found) = line.split_once(':').unwrap_or_default();
                key.trim() == *name && found.trim().as_bytes() == value.trim_ascii()
            })
        })
    }
}

/// Decodes percent-encoded bytes.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_card_and_a_key_and_nothing_to_run() {
        let uri =
            Uri::parse("pkcs11:model=A%20b;serial=1f;token=us;id=%01%Ff;object=k;type=private").unwrap();
        assert_eq!((uri.id.as_deref(), uri.label.as_deref()), (Some("01ff"), Some("k")));
        let slot =
            "0 (0x11): S\n  token label        : us\n  token model  : A b\n  serial num         : 1f\n";
        assert!(uri.names(slot));
        assert_eq!(number(slot).as_deref(), Some("0x11"));
        assert!(!uri.names(&slot.replace("1f", "1e")));
        let with_query = Uri::parse("pkcs11:token=us?module-path=/tmp/evil.so&pin-value=1").unwrap();
        assert_eq!(with_query, Uri::parse("pkcs11:token=us").unwrap());
        for bad in [
            "",
            "pkcs11:",
            "pkcs11:id=%01",
            "pkcs11:token=%0",
            "pkcs11:token=%zz",
            "pkcs11:module-path=/x",
            "http:token=us",
        ] {
            assert_eq!(Uri::parse(bad), None, "{bad}");
        }
    }
}
