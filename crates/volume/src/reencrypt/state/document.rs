//! The document: plan and progress as JSON.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use underseal_cipher::{CipherSpec, SectorSize};
use uuid::Uuid;

use super::seal::{KeyProof, Seal};
use super::{AREA, About, Keys};
use crate::kdf::Budget;
use crate::reencrypt::{Direction, Mode, Moved, Plan, Progress, Protection};
use crate::volume::Stored;
use crate::{CipherParameters, Error, ErrorKind, Key, Result, cipher_parameters};

/// The only version.
const VERSION: u32 = 1;

/// A number of 64 bits: decimal digits in a string, since many JSON readers convert numbers to
/// floating point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Decimal(u64);

impl From<Decimal> for String {
    fn from(number: Decimal) -> Self {
        number.0.to_string()
    }
}

impl TryFrom<String> for Decimal {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, &'static str> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits).map(Self).ok_or("not a number of 64 bits")
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    version: u32,
    identity: Uuid,
    count: Decimal,
    mode: Mode,
    direction: Direction,
    device_size: Decimal,
    size: Decimal,
    old: Form,
    new: Form,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<Place>,
    protection: Shield,
    area: Place,
    hot_zone: Decimal,
    alignment: Decimal,
    progress: Done,
    finished: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    offset: Decimal,
    #[serde(skip_serializing_if = "Option::is_none")]
    crypt: Option<Crypt>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Crypt {
    cipher: String,
    key_size: u32,
    sector_size: u32,
    iv_offset: Decimal,
    iv_large_sectors: bool,
    key: KeyProof,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    offset: Decimal,
    size: Decimal,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shield {
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<Decimal>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Done {
    done: Decimal,
    #[serde(skip_serializing_if = "Option::is_none")]
    hot: Option<Decimal>,
}

impl Document {
    /// Returns the document of a plan at its start.
    ///
    /// Fails with `BadOption` when a form's cipher and key do not fit, and with `TooCostly`,
    /// `Memory` and `Io`.
    pub(super) fn new(
        plan: &Plan,
        keys: Keys<'_>,
        device_size: u64,
        iterations: u32,
        budget: &Budget,
    ) -> Result<Self> {
        Ok(Self {
            version: VERSION,
            identity: Uuid::from_bytes(crate::random::bytes()?),
            count: Decimal(1),
            mode: plan.mode,
            direction: plan.direction,
            device_size: Decimal(device_size),
            size: Decimal(plan.size),
            old: Form::new(&plan.old, keys.old, iterations, budget).map_err(|e| e.within("old"))?,
            new: Form::new(&plan.new, keys.new, iterations, budget).map_err(|e| e.within("new"))?,
            moved: plan.moved.map(|moved| Place { offset: Decimal(moved.lower), size: Decimal(moved.len) }),
            protection: Shield::new(plan.protection),
            area: Place { offset: Decimal(AREA), size: Decimal(plan.area) },
            hot_zone: Decimal(plan.hot_zone),
            alignment: Decimal(plan.alignment),
            progress: Done { done: Decimal(0), hot: None },
            finished: false,
        })
    }

    /// Fails with `BadHeader`, and with `Unsupported` for another version.
    pub(super) fn parse(json: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let bad = |e: serde_json::Error| {
            Error::new(ErrorKind::BadHeader, "the state has a name or value that its format forbids")
                .with_source(e)
        };
        let Version { version } = serde_json::from_str(json).map_err(bad)?;
        if version != VERSION {
            let context = format!("the state is of version {version}, which this build does not know");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let document: Self = serde_json::from_str(json).map_err(bad)?;
        if document.area.offset.0 != AREA {
            return Err(Error::new(ErrorKind::BadHeader, "the state's area is not in its place"));
        }
        Ok(document)
    }

    /// Fails with `BadOption` when the document cannot be printed, which does not happen.
    pub(super) fn print(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|e| Error::new(ErrorKind::BadOption, "the state cannot be written").with_source(e))
    }

    /// Confirms the keys. Returns the seal made with them.
    ///
    /// Fails with `WrongKey`, with the name of the key, and with `BadHeader`, `TooCostly` and
    /// `Memory`.
    pub(super) fn unseal(&self, keys: Keys<'_>, budget: &Budget) -> Result<Seal> {
        let old = self.old.share(keys.old, budget).map_err(|e| e.within("the old key"))?;
        let new = self.new.share(keys.new, budget).map_err(|e| e.within("the new key"))?;
        Seal::new(&[old, new].into_iter().flatten().collect::<Vec<_>>())
    }

    /// Fails with `BadLayout` when the data device's size has changed.
    pub(super) fn fits(&self, data_size: u64) -> Result<()> {
        if data_size == self.device_size.0 {
            return Ok(());
        }
        let was = self.device_size.0;
        let context = format!(
            "the state is of a device of {was} bytes, and this one has {data_size}: if it is the right one, make it {was} bytes long \
             again, until all is done"
        );
        Err(Error::new(ErrorKind::BadLayout, context))
    }

    /// Returns the plan, with its ciphers. It is not checked.
    ///
    /// Fails with `Unsupported`, `BadHeader` and `Memory`.
    pub(super) fn plan(&self, keys: Keys<'_>) -> Result<Plan> {
        Ok(Plan {
            mode: self.mode,
            direction: self.direction,
            size: self.size.0,
            old: self.old.stored(keys.old).map_err(|e| e.within("old"))?,
            new: self.new.stored(keys.new).map_err(|e| e.within("new"))?,
            moved: self.moved.map(|moved| Moved { lower: moved.offset.0, len: moved.size.0 }),
            protection: self.protection.protection()?,
            area: self.area.size.0,
            hot_zone: self.hot_zone.0,
            alignment: self.alignment.0,
        })
    }

    pub(super) fn progress(&self) -> Progress {
        Progress { done: self.progress.done.0, hot: self.progress.hot.map(|hot| hot.0) }
    }

    pub(super) fn set_progress(&mut self, Progress { done, hot }: Progress) {
        self.progress = Done { done: Decimal(done), hot: hot.map(Decimal) };
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(super) fn set_finished(&mut self) {
        self.finished = true;
    }

    /// Returns the number of writes. The newer copy has the larger number.
    pub(super) fn counted(&self) -> u64 {
        self.count.0
    }

    /// Counts a change.
    ///
    /// Fails with `BadHeader` when no larger number exists.
    pub(super) fn count(&mut self) -> Result<()> {
        let next = self.count.0.checked_add(1);
        let next =
            next.ok_or_else(|| Error::new(ErrorKind::BadHeader, "its changes cannot be counted on"))?;
        self.count = Decimal(next);
        Ok(())
    }

    /// Copies the number of writes from another document.
    pub(super) fn set_count(&mut self, other: &Self) {
        self.count = other.count;
    }

    pub(super) fn about(&self) -> About {
        let cipher = |form: &Form| {
            let name = &form.crypt.as_ref()?.cipher;
            // A name that is no cipher may have any characters.
            let spec = name.parse::<CipherSpec>();
            Some(spec.map_or_else(|_| crate::printable(name), |spec| spec.to_string()))
        };
        About {
            identity: self.identity,
            mode: self.mode,
            size: self.size.0,
            done: self.progress.done.0,
            hot: self.progress.hot.is_some(),
            finished: self.finished,
            old: cipher(&self.old),
            new: cipher(&self.new),
        }
    }
}

impl Form {
    fn new(stored: &Stored, key: Option<&Key>, iterations: u32, budget: &Budget) -> Result<Self> {
        let bad = |why: &str| Err(Error::new(ErrorKind::BadOption, why));
        let crypt = match (&stored.cipher_parameters, key) {
            (Some(cipher_parameters), Some(key)) if cipher_parameters.key_size == key.len() => Some(Crypt {
                cipher: cipher_parameters.cipher.to_string(),
                key_size: u32::try_from(cipher_parameters.key_size).unwrap_or(u32::MAX),
                sector_size: u32::try_from(cipher_parameters.sector_size.bytes()).unwrap_or(u32::MAX),
                iv_offset: Decimal(stored.iv_offset),
                iv_large_sectors: cipher_parameters.iv_large_sectors,
                key: KeyProof::new(key, iterations, budget)?,
            }),
            (None, None) if stored.cipher.is_null() => None,
            (Some(_), _) => return bad("its cipher needs a key of its length"),
            (None, _) => return bad("it has a key or a cipher that cannot be rebuilt"),
        };
        Ok(Self { offset: Decimal(stored.lower), crypt })
    }

    /// Returns the key's share of the seal.
    fn share(&self, key: Option<&Key>, budget: &Budget) -> Result<Option<Key>> {
        match (&self.crypt, key) {
            (Some(crypt), Some(key)) if usize::try_from(crypt.key_size) == Ok(key.len()) => {
                crypt.key.share(key, budget).map(Some)
            }
            (None, None) => Ok(None),
            (Some(crypt), given) => {
                let given = given.map_or_else(|| "none was given".into(), |key| format!("not {}", key.len()));
                let context = format!("it has {} bytes, {given}", crypt.key_size);
                Err(Error::new(ErrorKind::WrongKey, context))
            }
            (None, Some(_)) => Err(Error::new(ErrorKind::WrongKey, "there is none")),
        }
    }

    fn stored(&self, key: Option<&Key>) -> Result<Stored> {
        let lower = self.offset.0;
        let (Some(crypt), Some(key)) = (&self.crypt, key) else {
            let cipher = cipher_parameters::null(SectorSize::S512)?;
            return Ok(Stored { device: 0, lower, iv_offset: 0, cipher, cipher_parameters: None });
        };
        let bad = |e: underseal_cipher::Error| {
            Error::new(ErrorKind::BadHeader, "a cipher or sector size is invalid").with_source(e)
        };
        let cipher_parameters = CipherParameters {
            cipher: crypt.cipher.parse().map_err(bad)?,
            sector_size: SectorSize::new(crypt.sector_size).map_err(bad)?,
            iv_large_sectors: crypt.iv_large_sectors,
            key_size: key.len(),
            integrity: None,
        };
        let cipher = cipher_parameters.build(key)?;
        Ok(Stored {
            device: 0,
            lower,
            iv_offset: crypt.iv_offset.0,
            cipher,
            cipher_parameters: Some(Arc::new(cipher_parameters)),
        })
    }
}

impl Shield {
    fn new(protection: Protection) -> Self {
        let (kind, hash, block) = match protection {
            Protection::None => ("none", None, None),
            Protection::Checksum { hash, block } => {
                ("checksum", Some(hash.name().into()), Some(Decimal(block)))
            }
            Protection::Journal => ("journal", None, None),
            Protection::Source => ("source", None, None),
        };
        Self { kind: kind.into(), hash, block }
    }

    fn protection(&self) -> Result<Protection> {
        match (&*self.kind, &self.hash, self.block) {
            ("none", None, None) => Ok(Protection::None),
            ("checksum", Some(hash), Some(block)) => {
                Ok(Protection::Checksum { hash: hash.parse()?, block: block.0 })
            }
            ("journal", None, None) => Ok(Protection::Journal),
            ("source", None, None) => Ok(Protection::Source),
            _ => Err(Error::new(ErrorKind::BadHeader, "the state names an invalid protection")),
        }
    }
}
