//! From an image and a password to an unlocked volume.

use std::ops::Range;
use std::thread::available_parallelism;

use underseal_cipher::Key;
use underseal_volume::{Guard, GuardRule, KdfLimits, ReadAt, Segment, Volume};

use super::layout::Layout;
use super::search::{DERIVED, Found, Outcome, Search};
use super::{Chain, ChainFilter, Derivation, HEADER, Header, Mode, Password, Pim, Place, Prf};
use crate::{Error, ErrorKind, Facts, Format, OpenedFormat, Result, fields};

/// The header that is unlocked, and the derivations and chains that are tried.
#[derive(Debug, Clone)]
pub struct UnlockOptions {
    /// Where the header lies.
    pub place: Place,
    /// VeraCrypt's multiplier of rounds.
    pub pim: Pim,
    /// The key derivations that are tried; all when the list is empty.
    pub prfs: Vec<Prf>,
    /// The chains that are tried.
    pub chains: ChainFilter,
    /// Whether VeraCrypt's derivations are tried.
    pub veracrypt: bool,
    /// Whether TrueCrypt's derivations are tried.
    pub truecrypt: bool,
    /// The limits of a derivation's cost. Argon2id beyond the limits is left out unless it is
    /// named.
    pub limits: KdfLimits,
    /// Threads; by default one for each processor.
    pub threads: Option<usize>,
}

impl Default for UnlockOptions {
    fn default() -> Self {
        Self {
            place: Place::Normal,
            pim: Pim::default(),
            prfs: Vec::new(),
            chains: ChainFilter::default(),
            veracrypt: true,
            truecrypt: true,
            limits: KdfLimits::default(),
            threads: None,
        }
    }
}

/// An unlocked header.
#[derive(Debug)]
pub struct Unlocked {
    /// The header's fields.
    pub header: Header,
    /// Where it was found.
    pub place: Place,
    /// The same in bytes of the host.
    pub at: u64,
    /// How its key was derived.
    pub derivation: Derivation,
    /// The ciphers and the mode, of the header and of the data.
    pub chain: Chain,
}

/// Unlocks the header of a host that is all of `image`.
///
/// # Errors
/// `WrongPassphrase` when no header opens, after all trials; `BadHeader` for a header that is
/// damaged, `Unsupported` for a header that this crate does not open; `TooSmall` for an image
/// without room for a
/// header; `TooCostly`, `Io`, `Memory`.
pub fn unlock(
    image: &(impl ReadAt + ?Sized),
    password: &Password,
    options: &UnlockOptions,
) -> Result<Unlocked> {
    let size = fields::size(image)?;
    let offsets = options.place.offsets(size);
    if offsets.is_empty() {
        let context = format!("{size} bytes have no room for the {}", options.place.name());
        return Err(Error::new(ErrorKind::TooSmall, context));
    }
    let search = options.search(password)?;
    let mut damaged = None;
    for at in offsets {
        let mut bytes = [0; HEADER];
        fields::read(image, at, &mut bytes)?;
        match search.run(&bytes)? {
            Outcome::Found(Found { header, derivation, chain }) => {
                header.check()?;
                return Ok(Unlocked { header, place: options.place, at, derivation, chain });
            }
            Outcome::Damaged(what) => damaged = Some(what),
            Outcome::Nothing => {}
        }
    }
    Err(match damaged {
        Some(what) => {
            let context = format!(
                "this passphrase opens the {}, which is damaged: {what} is wrong",
                options.place.name()
            );
            Error::new(ErrorKind::BadHeader, context)
        }
        None => {
            let context = format!("nothing opens the {} with this passphrase", options.place.name());
            Error::new(ErrorKind::WrongPassphrase, context)
        }
    })
}

impl UnlockOptions {
    fn search<'a>(&self, password: &'a Password) -> Result<Search<'a>> {
        let mut derivations = Vec::new();
        if self.truecrypt && password.short {
            derivations.extend(Derivation::of_truecrypt(self.pim));
        }
        if self.veracrypt {
            derivations.extend(Derivation::of_veracrypt(self.pim));
        }
        let named = |prf: Prf| self.prfs.contains(&prf);
        derivations.retain(|of| {
            let affordable = of.prf != Prf::Argon2id || named(of.prf) || self.affords(*of);
            affordable && (self.prfs.is_empty() || named(of.prf))
        });
        let chains = [false, true].map(|veracrypt| {
            let mut chains = Chain::all(veracrypt);
            chains.retain(|chain| self.chains.takes(*chain) && chain.material() <= DERIVED);
            chains
        });
        if derivations.is_empty() || chains.iter().all(Vec::is_empty) {
            let context = "no header of TrueCrypt or VeraCrypt is derived and encrypted so";
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        let threads = self.threads.or_else(|| available_parallelism().ok().map(Into::into)).unwrap_or(1);
        Ok(Search { password, derivations, chains, limits: self.limits, threads })
    }

    fn affords(&self, of: Derivation) -> bool {
        let work = u64::from(of.rounds) * u64::from(of.memory_kib);
        of.memory_kib <= self.limits.memory_kib && work <= self.limits.argon2_work_kib
    }
}

impl Unlocked {
    /// The volume over its host of `host` bytes. `partition`: the range of the disk that is opened
    /// of a system's encrypted area; `None` opens all of the area.
    ///
    /// # Errors
    /// `TooSmall` for data beyond the host, `BadHeader`, `BadOption` for a partition outside of the
    /// area, `Memory`.
    pub fn open(&self, host: u64, partition: Option<&Range<u64>>) -> Result<OpenedFormat> {
        let Layout { data, iv_offset, .. } = self.layout(host, partition)?;
        let (cipher, cipher_parameters) = self.chain.data_cipher(self.header.keys.as_bytes())?;
        let mut segment = Segment::stored(0, data.end - data.start, data.start, iv_offset, cipher);
        if let Some(cipher_parameters) = cipher_parameters {
            segment = segment.with_recipe(cipher_parameters);
        }
        let mut facts = self.facts();
        facts.add("offset", format!("{} bytes", data.start));
        facts.add("size", format!("{} bytes", data.end - data.start));
        Ok(OpenedFormat {
            format: Format::Tcrypt,
            volume: Volume::new(vec![segment])?,
            read_only: self.read_only(),
            guards: Vec::new(),
            volume_key: self.volume_key()?,
            facts,
        })
    }

    /// The volume with the hidden one inside guarded: a write that touches the hidden volume fails
    /// before any byte of it is written, and so does every later write.
    ///
    /// # Errors
    /// As [`Unlocked::open`]; `BadOption` when the hidden volume does not lie inside this volume.
    pub fn open_around(&self, hidden: &Self, host: u64) -> Result<OpenedFormat> {
        let (outer, inner) = (self.layout(host, None)?, hidden.layout(host, None)?);
        let inside = outer.data.start <= inner.data.start && inner.data.end <= outer.data.end;
        if !inside || self.place.is_hidden() || !hidden.place.is_hidden() {
            let context = "the volume to protect does not lie inside of the volume that is opened";
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        let mut opened = self.open(host, None)?;
        for range in inner.protected() {
            let range = range.start.max(outer.data.start)..range.end.min(outer.data.end);
            // Headers lie outside of the data of most volumes.
            if range.is_empty() {
                continue;
            }
            let range = range.start - outer.data.start..range.end - outer.data.start;
            opened.facts.add("protected", format!("bytes {} to {}", range.start, range.end));
            opened.guards.push(Guard { range, rule: GuardRule::RefuseAll });
        }
        Ok(opened)
    }

    /// The volume key in cryptsetup's form.
    ///
    /// # Errors
    /// `Memory`.
    pub fn volume_key(&self) -> Result<Key> {
        self.chain.volume_key(self.header.keys.as_bytes())
    }

    pub(super) fn layout(&self, host: u64, partition: Option<&Range<u64>>) -> Result<Layout> {
        Layout::of(&self.header, self.place, self.chain, host, partition)
    }

    /// Why the volume is not written to.
    fn read_only(&self) -> Option<&'static str> {
        match self.chain.mode() {
            Mode::OuterCbc | Mode::InnerCbc => {
                Some("its mode is of TrueCrypt before 4.1, and no other program writes it any more")
            }
            _ if self.chain.is_small_lrw() => Some(
                "its cipher and mode are of TrueCrypt 4.1 to 4.3, and no other program writes them any more",
            ),
            _ => None,
        }
    }

    /// The facts of the header.
    pub fn facts(&self) -> Facts {
        let (header, of) = (&self.header, self.derivation);
        let mut facts = Facts::new(Format::Tcrypt);
        facts.add("program", header.program.name());
        facts.add("header", format!("{}, at byte {}", self.place.name(), self.at));
        facts.add("version", header.version);
        facts.add("needs", format!("{} {}", header.program.name(), header.program_text()));
        facts.add("flags", format!("{:#x}", header.flags));
        facts.add("sector size", format!("{} bytes", header.sector_size));
        facts.add("cipher", self.chain);
        facts.add("cascade", self.chain.veracrypt_name());
        facts.add("key", format!("{} bits", self.chain.key_bits()));
        facts.add("PRF", of.prf);
        match of.memory_kib {
            0 => facts.add("rounds", of.rounds),
            memory => facts.add("passes", of.rounds).add("memory", format!("{} MiB", memory >> 10)),
        };
        if header.hidden_size > 0 {
            facts.add("hidden size", format!("{} bytes", header.hidden_size));
        }
        facts
    }
}
