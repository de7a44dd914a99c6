//! The words of the fourth field: crypttab's, and the options of `underseal open`.

use underseal_datapath::Policy;
use underseal_volume::DispatchFlags;

use super::line::plain;
use super::open_options::{self, Kind};
use super::{absolute, device, of_types};

/// The options of a line.
#[derive(Debug, Default)]
pub(super) struct Options {
    /// Options of `underseal open`, in order, without their dashes.
    pub(super) of_open: Vec<(&'static str, Option<String>)>,
    /// Serves NBD on the default socket of a volume without other exports.
    pub(super) own_socket: bool,
    /// Started by name only.
    pub(super) noauto: bool,
    /// A failure is ignored.
    pub(super) nofail: bool,
    /// The image is on another machine.
    pub(super) netdev: bool,
    dispatch: DispatchFlags,
}

/// The meaning of a word.
enum Means {
    /// An option of `open` without a value.
    Flag(&'static str),
    /// An option of `open` with this word's value.
    Value(&'static str),
    /// An option of `open` with this word's value in sectors of 512 bytes.
    Sectors(&'static str),
    /// An option of `open` with this word's value, if it has one.
    OptionalValue(&'static str),
    /// An option of `open` with a path.
    Path(&'static str),
    /// An option of `open` with a device.
    Device(&'static str),
    /// A flag of dm-crypt.
    Dispatch(fn(&mut DispatchFlags)),
    /// The format of the device.
    Kind(&'static str),
    /// The format of the device, and an option of `open` without a value.
    KindAnd(&'static str, &'static str),
    /// A token's hardware: volumes try their tokens anyway.
    Token,
    Nbd,
    Policy,
    NoAuto,
    NoFail,
    NetDev,
    /// A word about the order of services at boot, or one that has no effect here.
    Nothing,
    /// An unsupported word, and why.
    Refused(&'static str),
}

/// The meaning of a word that is an option of `open`.
fn of_open(word: &str) -> Option<Means> {
    let (option, kind) = open_options::find(word)?;
    Some(match kind {
        Kind::Flag => Means::Flag(option),
        Kind::Path | Kind::Paths => Means::Path(option),
        Kind::Devices => Means::Device(option),
        Kind::OptionalText => Means::OptionalValue(option),
        _ => Means::Value(option),
    })
}

fn meaning(word: &str) -> Option<Means> {
    use Means::*;
    Some(match word {
        // crypttab's words for the format.
        "luks" => Kind("luks"),
        "plain" => Kind("plain"),
        "tcrypt" | "tcrypt-veracrypt" | "veracrypt" => Kind("tcrypt"),
        "tcrypt-hidden" => KindAnd("tcrypt", "hidden"),
        "tcrypt-system" => KindAnd("tcrypt", "system"),
        "tcrypt-backup" => KindAnd("tcrypt", "backup-header"),
        "tcrypt-keyfile" => Path("key-file"),
        "veracrypt-pim" => Value("pim"),
        "bitlk" => Kind("bitlk"),
        "fvault2" => Kind("fvault2"),
        "loopaes" => Kind("loopaes"),
        "size" => Value("key-size"),
        "offset" => Sectors("data-offset"),
        "keyslot" => Value("key-slot"),
        "tpm2-device" | "fido2-device" | "pkcs11-uri" => Token,
        // Words about opening.
        "discard" => Flag("allow-discards"),
        "readonly" => Flag("read-only"),
        "no-read-workqueue" => Dispatch(|flags| flags.no_read_workqueue = true),
        "no-write-workqueue" => Dispatch(|flags| flags.no_write_workqueue = true),
        "high-priority" => Dispatch(|flags| flags.high_priority = true),
        "same-cpu-crypt" => Dispatch(|flags| flags.same_cpu_crypt = true),
        "submit-from-crypt-cpus" => Dispatch(|flags| flags.submit_from_crypt_cpus = true),
        // Words about the time of opening.
        "noauto" => NoAuto,
        "nofail" => NoFail,
        "_netdev" => NetDev,
        "x-initrd.attach" | "initramfs" | "loud" | "quiet" | "headless" | "password-echo" | "timeout"
        | "tries" | "keyfile-timeout" | "token-timeout" | "verify" => Nothing,
        word if word.starts_with("x-systemd.") => Nothing,
        "swap" | "tmp" => Refused("no file system and no swap area is made here; mkswap on the device does"),
        "keyscript" => Refused("no program is run for a key"),
        "keyfile-erase" => Refused("a key file is not erased: the volume could not be opened again"),
        "try-empty-password" => Refused("an empty passphrase protects nothing"),
        "nbd" => Nbd,
        "policy" => Policy,
        word => return of_open(word),
    })
}

/// Parses the words. The error names the word and its fault.
pub(super) fn parse(text: Result<&str, usize>, has_key_file: bool) -> Result<Options, String> {
    let text = text.map_err(|fields| {
        format!("{fields} fields, not at most 4; a blank in a name or path is written \\040")
    })?;
    let mut options = Options::default();
    for word in text.split(',').filter(|word| !matches!(*word, "" | "none" | "-" | "defaults")) {
        options.add(word).map_err(|why| format!("{word}: {why}"))?;
    }
    options.finish(has_key_file)
}

impl Options {
    fn add(&mut self, word: &str) -> Result<(), String> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(plain(value))),
            None => (word, None),
        };
        let means = meaning(name).ok_or("no such option")?;
        let needs = |value: Option<String>| {
            value.filter(|value| !value.is_empty()).ok_or_else(|| "want a value behind =".to_owned())
        };
        let stands_alone = matches!(
            means,
            Means::Flag(_)
                | Means::Dispatch(_)
                | Means::Kind(_)
                | Means::KindAnd(..)
                | Means::NoAuto
                | Means::NoFail
                | Means::NetDev
        );
        if stands_alone && value.is_some() {
            return Err("takes no value".into());
        }
        match means {
            Means::Flag(option) => self.of_open.push((option, None)),
            Means::Value(option) => self.of_open.push((option, Some(needs(value)?))),
            Means::Sectors(option) => {
                let sectors: u64 = needs(value)?.parse().map_err(|_| "want a number of sectors")?;
                self.of_open.push((option, Some(format!("{sectors}s"))));
            }
            Means::OptionalValue(option) => {
                let value = value.map(|value| needs(Some(value))).transpose()?;
                self.of_open.push((option, value));
            }
            Means::Device(option) => {
                let device = device::named(name, &needs(value)?)?;
                self.of_open.push((option, Some(device)));
            }
            Means::Path(option) => {
                let path = needs(value)?;
                absolute(name, &path)?;
                self.of_open.push((option, Some(path)));
            }
            Means::Dispatch(set) => set(&mut self.dispatch),
            Means::Kind(kind) => self.is(kind),
            Means::KindAnd(kind, option) => {
                self.is(kind);
                self.of_open.push((option, None));
            }
            Means::Token => {
                if needs(value)? != "auto" {
                    return Err("only `auto` is known: the header's tokens say which".into());
                }
            }
            Means::Nbd => match value.as_deref() {
                None => self.own_socket = true,
                Some(path) if path.starts_with('/') => {
                    self.of_open.push(("nbd", Some(format!("unix:{path}"))));
                }
                Some(place) if place.strip_prefix("unix:").is_some_and(|path| !path.starts_with('/')) => {
                    return Err(format!("{place} is not an absolute path"));
                }
                Some(place) => self.of_open.push(("nbd", Some(place.into()))),
            },
            // A comma in the policy would end the word, so it is written as a plus sign.
            Means::Policy => self.of_open.push(("policy", Some(needs(value)?.replace('+', ",")))),
            Means::NoAuto => self.noauto = true,
            Means::NoFail => self.nofail = true,
            Means::NetDev => self.netdev = true,
            Means::Nothing => {}
            Means::Refused(why) => return Err(why.into()),
        }
        Ok(())
    }

    /// Records the format of the device, once.
    fn is(&mut self, kind: &str) {
        let word = ("type", Some(kind.to_owned()));
        if !self.of_open.contains(&word) {
            self.of_open.push(word);
        }
    }

    /// Returns true when the volume has no header.
    pub(super) fn is_plain(&self) -> bool {
        self.is_of("plain")
    }

    /// Returns true when the device has this format.
    pub(super) fn is_of(&self, kind: &str) -> bool {
        self.of_open.iter().any(|(name, value)| *name == "type" && value.as_deref() == Some(kind))
    }

    /// Checks the words together, and completes them.
    pub(super) fn finish(mut self, has_key_file: bool) -> Result<Self, String> {
        let value_of = |of: &Self, option| {
            of.of_open.iter().find(|(name, _)| *name == option).and_then(|(_, value)| value.clone())
        };
        let has = |of: &Self, option| value_of(of, option).is_some();
        if self.is_plain() {
            // A wrong guess would not be noticed: programs differ in their defaults for these.
            if !has(&self, "cipher") || !has(&self, "hash") && !has_key_file {
                return Err(
                    "plain: say cipher= (and hash= for a passphrase): a wrong guess reads noise".into()
                );
            }
            // crypttabs of both meanings exist, and a wrong guess reads noise.
            if has_key_file && value_of(&self, "hash").is_some_and(|hash| hash != "plain") {
                return Err("hash: of a key file systemd takes the hash, cryptsetup's command the bytes: say hash=plain for the bytes".into());
            }
            // As in other programs, no more of a key file is read than the key's length.
            if has_key_file && !has(&self, "keyfile-size") {
                let bits = value_of(&self, "key-size").unwrap_or_else(|| "256".into());
                let bits: usize = bits.parse().map_err(|_| "size: want a number of bits")?;
                self.of_open.push(("keyfile-size", Some((bits / 8).to_string())));
            }
        }
        of_types::drop_those_of_crypttab(&mut self);
        if let Some((_, what)) = of_types::misplaced(&self) {
            return Err(what);
        }
        if !self.dispatch.is_empty() {
            if has(&self, "policy") {
                return Err("policy: dm-crypt's flags on the same line mean another".into());
            }
            self.of_open.push(("policy", Some(Policy::from_flags(self.dispatch).to_string())));
        }
        Ok(self)
    }
}
