//! Kinds of volumes: the ones that must always work, and a random sample of all the others.

use fastrand::Rng;

use crate::guest::Guest;
use crate::support::Scratch;
use crate::support::volume::PASSPHRASE;

/// The parameters of a volume, which both commands take.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) kind: Kind,
    pub(crate) cipher: &'static str,
    /// Bits.
    pub(crate) key: u32,
    pub(crate) sector: u32,
    /// PBKDF2's for LUKS, the passphrase's for plain.
    pub(crate) hash: &'static str,
    pub(crate) pbkdf: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Luks2,
    Luks2Detached,
    Luks1,
    Luks1Detached,
    /// The offset of the data, and the number that is added to sector numbers; in 512-byte sectors.
    Plain {
        offset: u32,
        skip: u32,
    },
}

const XTS: &str = "aes-xts-plain64";
const CBC: &str = "aes-cbc-essiv:sha256";

/// Ours and theirs: type, cipher, key bits, sector size, hash, key derivation.
const ALWAYS: [(Kind, &str, u32, u32, &str, &str); 8] = [
    (Kind::Luks2, XTS, 512, 4096, "sha256", "argon2id"),
    (Kind::Luks2, XTS, 256, 512, "sha512", "pbkdf2"),
    (Kind::Luks2, CBC, 256, 512, "sha256", "pbkdf2"),
    (Kind::Luks2Detached, XTS, 512, 512, "sha256", "argon2i"),
    (Kind::Luks1, XTS, 512, 512, "sha256", "pbkdf2"),
    (Kind::Luks1, CBC, 128, 512, "sha1", "pbkdf2"),
    (Kind::Plain { offset: 0, skip: 0 }, XTS, 256, 512, "sha256", ""),
    (Kind::Plain { offset: 2048, skip: 77 }, CBC, 256, 512, "ripemd160", ""),
];

/// A machine with what these tables are made of.
pub(crate) fn guest(scratch: &Scratch) -> Guest<'_> {
    let mut guest = Guest::without_hardware(scratch);
    guest.modules(&["cbc"]);
    guest
}

/// The fixed tables and `random` random ones.
pub(crate) fn tables(rng: &mut Rng, random: usize) -> Vec<Table> {
    let fixed = ALWAYS.map(|(kind, cipher, key, sector, hash, pbkdf)| Table {
        kind,
        cipher,
        key,
        sector,
        hash,
        pbkdf,
    });
    fixed.into_iter().chain((0..random).map(|_| Table::random(rng))).collect()
}

impl Table {
    fn random(rng: &mut Rng) -> Self {
        let (offset, skip) = (8 * rng.u32(..600), 8 * rng.u32(..100_000));
        let kinds = [
            Kind::Luks2,
            Kind::Luks2Detached,
            Kind::Luks1,
            Kind::Luks1Detached,
            Kind::Plain { offset, skip },
        ];
        let kind = rng.choice(kinds).unwrap();
        let (cipher, key) = match rng.bool() {
            true => (XTS, rng.choice([256, 512]).unwrap()),
            false => (CBC, rng.choice([128, 192, 256]).unwrap()),
        };
        let luks1 = matches!(kind, Kind::Luks1 | Kind::Luks1Detached);
        let plain = matches!(kind, Kind::Plain { .. });
        let sector = if luks1 { 512 } else { rng.choice([512, 1024, 2048, 4096]).unwrap() };
        let pbkdf =
            if luks1 || plain { "pbkdf2" } else { rng.choice(["argon2id", "argon2i", "pbkdf2"]).unwrap() };
        let hash = rng.choice(["sha1", "sha256", "sha512", "ripemd160", "whirlpool"]).unwrap();
        Self { kind, cipher, key, sector, hash, pbkdf }
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::Plain { .. })
    }

    pub(crate) fn is_detached(&self) -> bool {
        matches!(self.kind, Kind::Luks2Detached | Kind::Luks1Detached)
    }

    fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Luks2 | Kind::Luks2Detached => "luks2",
            Kind::Luks1 | Kind::Luks1Detached => "luks1",
            Kind::Plain { .. } => "plain",
        }
    }

    /// The options of `underseal format` but the header's file.
    pub(crate) fn format_options(&self) -> Vec<String> {
        let mut options = words(&["--type", self.type_name()]);
        if self.is_plain() {
            return options;
        }
        options.extend(words(&["--cipher", self.cipher, "--key-size", &self.key.to_string()]));
        options.extend(words(&["--sector-size", &self.sector.to_string(), "--hash", self.hash]));
        options.extend(words(&["--pbkdf", self.pbkdf]));
        options.extend(match self.pbkdf {
            "pbkdf2" => words(&["--pbkdf-force-iterations", "1000"]),
            _ => words(&["--pbkdf-force-iterations", "4", "--pbkdf-memory", "64", "--pbkdf-parallel", "1"]),
        });
        options
    }

    /// The options of `underseal open`, `read` and `write` but the header's file.
    pub(crate) fn open_options(&self) -> Vec<String> {
        let Kind::Plain { offset, skip } = self.kind else { return Vec::new() };
        let mut options = words(&["--type", "plain", "--cipher", self.cipher, "--hash", self.hash]);
        options.extend(words(&[
            "--key-size",
            &self.key.to_string(),
            "--sector-size",
            &self.sector.to_string(),
        ]));
        options.extend(words(&["--data-offset", &format!("{offset}s"), "--skip", &skip.to_string()]));
        options
    }

    /// cryptsetup's command that formats `device`; nothing for plain volumes.
    pub(crate) fn cryptsetup_format(&self, device: &str, header: &str) -> String {
        if self.is_plain() {
            return String::new();
        }
        let Self { cipher, key, sector, hash, pbkdf, .. } = self;
        let sector =
            if self.type_name() == "luks2" { format!("--sector-size {sector}") } else { String::new() };
        let pbkdf = match *pbkdf {
            _ if self.type_name() == "luks1" => "--pbkdf-force-iterations 1000".to_owned(),
            "pbkdf2" => "--pbkdf pbkdf2 --pbkdf-force-iterations 1000".to_owned(),
            argon => {
                format!("--pbkdf {argon} --pbkdf-force-iterations 4 --pbkdf-memory 64 --pbkdf-parallel 1")
            }
        };
        let header = self.header_option(header);
        format!(
            "cryptsetup luksFormat -q --type {} --cipher {cipher} --key-size {key} --hash {hash} {sector} {pbkdf} \
             {header} --key-file pass {device}\n",
            self.type_name()
        )
    }

    /// The guest's command that opens `device` as `/dev/mapper/NAME`.
    pub(crate) fn cryptsetup_open(&self, device: &str, header: &str, name: &str) -> String {
        let Self { cipher, key, sector, hash, .. } = self;
        match self.kind {
            // A key file would not be hashed, so the passphrase comes as it would from a terminal.
            Kind::Plain { offset, skip } => format!(
                "printf '%s\\n' '{PASSPHRASE}' | cryptsetup open --type plain --cipher {cipher} --key-size {key} \
                 --hash {hash} --sector-size {sector} --offset {offset} --skip {skip} {device} {name}\n"
            ),
            // cryptsetup reads a header's file past the page cache, which the host's files do not
            // allow in the guest.
            _ if self.is_detached() => format!(
                "cp {header} /run/header\n\
                 cryptsetup open --type luks --header /run/header --key-file pass {device} {name}\n"
            ),
            _ => format!("cryptsetup open --type luks --key-file pass {device} {name}\n"),
        }
    }

    fn header_option(&self, header: &str) -> String {
        if self.is_detached() { format!("--header {header}") } else { String::new() }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}
