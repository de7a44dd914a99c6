//! The description of an unlocked volume for a handover: everything except its key.
//!
//! The description has a proof of each cipher: the ciphertext of a fixed sector. The new server
//! builds the volume and finds out whether it would read and write other bytes than the old
//! server's, before it reads or writes any.

use serde::{Deserialize, Serialize};
use underseal_cipher::{InOutBuf, Key, SectorCipher, SectorSize};

use crate::{
    CipherParameters, DispatchFlags, Error, ErrorKind, Result, Segment, SegmentKind, Stored, Volume,
    cipher_parameters,
};

/// A volume without its key, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Carried {
    segments: Vec<CarriedSegment>,
    allow_discards: bool,
    dispatch: [bool; 6],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct CarriedSegment {
    start: u64,
    len: u64,
    kind: CarriedKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum CarriedKind {
    Zero,
    Error,
    /// Unencrypted data.
    Linear {
        lower: u64,
        sector_size: u32,
    },
    Crypt {
        lower: u64,
        iv_offset: u64,
        cipher: String,
        sector_size: u32,
        iv_large_sectors: bool,
        key_size: usize,
        /// The ciphertext of a sector of [`PATTERN`], as hex digits.
        proof: String,
    },
}

/// The number of the tested sector: both halves of it affect the result.
const TRIED: u64 = 0x0000_0005_0000_0003;
/// The byte that the tested sector consists of.
const PATTERN: u8 = 0xa5;

impl Volume {
    /// Returns the description of the volume.
    ///
    /// # Errors
    /// `Unsupported` where the volume has more than one key, keeps tags, or uses more than one
    /// device.
    pub fn carried(&self) -> Result<Carried> {
        let segments = self.segments().iter().map(carried).collect::<Result<Vec<_>>>()?;
        let keyed = segments.iter().filter(|segment| matches!(segment.kind, CarriedKind::Crypt { .. }));
        if keyed.count() > 1 {
            return Err(unsupported("it has several encrypted segments"));
        }
        let of = self.dispatch();
        let dispatch = [
            of.same_cpu_crypt,
            of.submit_from_crypt_cpus,
            of.no_read_workqueue,
            of.no_write_workqueue,
            of.high_priority,
            of.force_inline,
        ];
        Ok(Carried { segments, allow_discards: self.allow_discards(), dispatch })
    }
}

impl Carried {
    /// Builds the volume with its key.
    ///
    /// # Errors
    /// `WrongKey` when a cipher under this key makes other bytes than the described one; the kinds
    /// of building the volume.
    pub fn volume(&self, key: &Key) -> Result<Volume> {
        let segments = self.segments.iter().map(|segment| segment.built(key)).collect::<Result<_>>()?;
        let [
            same_cpu_crypt,
            submit_from_crypt_cpus,
            no_read_workqueue,
            no_write_workqueue,
            high_priority,
            force_inline,
        ] = self.dispatch;
        let dispatch = DispatchFlags {
            same_cpu_crypt,
            submit_from_crypt_cpus,
            no_read_workqueue,
            no_write_workqueue,
            high_priority,
            force_inline,
        };
        Ok(Volume::new(segments)?.with_discards(self.allow_discards).with_dispatch(dispatch))
    }
}

impl CarriedSegment {
    fn built(&self, key: &Key) -> Result<Segment> {
        let sectors = |size: u32| {
            SectorSize::new(size).map_err(|e| Error::new(ErrorKind::BadLayout, format!("a segment: {e}")))
        };
        let (start, len) = (self.start, self.len);
        let kind = match &self.kind {
            CarriedKind::Zero => SegmentKind::Zero,
            CarriedKind::Error => SegmentKind::Error,
            CarriedKind::Linear { lower, sector_size } => {
                let cipher = cipher_parameters::null(sectors(*sector_size)?)?;
                return Ok(Segment::stored(start, len, *lower, 0, cipher));
            }
            CarriedKind::Crypt {
                lower,
                iv_offset,
                cipher,
                sector_size,
                iv_large_sectors,
                key_size,
                proof,
            } => {
                let spec = cipher.parse().map_err(|e| {
                    Error::new(ErrorKind::Unsupported, format!("cipher {cipher}")).with_source(e)
                })?;
                let cipher_parameters = CipherParameters {
                    cipher: spec,
                    sector_size: sectors(*sector_size)?,
                    iv_large_sectors: *iv_large_sectors,
                    key_size: *key_size,
                    integrity: None,
                };
                if key.len() != *key_size {
                    let context = format!("the key has {} bytes, the volume's has {key_size}", key.len());
                    return Err(Error::new(ErrorKind::WrongKey, context));
                }
                let built = cipher_parameters.build(key)?;
                if tried(&*built) != *proof {
                    let context =
                        format!("{cipher} under this key makes other bytes than it did in the old server");
                    return Err(Error::new(ErrorKind::WrongKey, context));
                }
                return Ok(
                    Segment::stored(start, len, *lower, *iv_offset, built).with_recipe(cipher_parameters)
                );
            }
        };
        Ok(Segment { start, len, kind })
    }
}

fn carried(segment: &Segment) -> Result<CarriedSegment> {
    let (start, len) = (segment.start, segment.len);
    let kind = match &segment.kind {
        SegmentKind::Zero => CarriedKind::Zero,
        SegmentKind::Error => CarriedKind::Error,
        SegmentKind::Stored(stored) => stored_kind(stored)?,
    };
    Ok(CarriedSegment { start, len, kind })
}

fn stored_kind(stored: &Stored) -> Result<CarriedKind> {
    let Stored { device, lower, iv_offset, cipher, cipher_parameters } = stored;
    if *device != 0 {
        return Err(unsupported("it lies on more than one device"));
    }
    let size = |size: SectorSize| u32::try_from(size.bytes()).unwrap_or(u32::MAX);
    match cipher_parameters {
        None if cipher.is_null() => {
            Ok(CarriedKind::Linear { lower: *lower, sector_size: size(cipher.sector_size()) })
        }
        None => Err(unsupported("it has a segment whose key is gone")),
        Some(cipher_parameters) if cipher_parameters.integrity.is_some() || cipher.tag_size() > 0 => {
            Err(unsupported("its sectors are authenticated"))
        }
        Some(cipher_parameters) => Ok(CarriedKind::Crypt {
            lower: *lower,
            iv_offset: *iv_offset,
            cipher: cipher_parameters.cipher.as_written().to_owned(),
            sector_size: size(cipher_parameters.sector_size),
            iv_large_sectors: cipher_parameters.iv_large_sectors,
            key_size: cipher_parameters.key_size,
            proof: tried(&**cipher),
        }),
    }
}

/// Returns the ciphertext of the tested sector, as hex digits: each part depends on everything that
/// a mode depends on.
fn tried(cipher: &dyn SectorCipher) -> String {
    let mut sector = vec![PATTERN; cipher.sector_size().bytes()];
    let number = TRIED * (cipher.sector_size().bytes() as u64 >> 9);
    cipher.encrypt(number, InOutBuf::from(&mut sector[..]));
    let shown = sector.len().min(64);
    sector[..shown / 2].iter().chain(&sector[sector.len() - shown / 2..]).fold(
        String::with_capacity(2 * shown),
        |mut text, byte| {
            use std::fmt::Write;
            let _ = write!(text, "{byte:02x}");
            text
        },
    )
}

fn unsupported(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rekey::tests::{HEX, key, volume};

    #[test]
    fn what_is_described_is_built_again() {
        for line in [
            "0 2048 crypt aes-xts-plain64 KEY 0 a 0",
            "0 2048 crypt aes-cbc-essiv:sha256 KEY 8 a 16 3 allow_discards sector_size:4096 iv_large_sectors",
            "0 64 linear a 0\n64 2048 crypt aes-xts-plain64 KEY 32 a 64\n2112 8 zero\n2120 8 error",
        ] {
            let volume = volume(&line.replace("KEY", HEX[0]));
            let text = serde_json::to_string(&volume.carried().unwrap()).unwrap();
            assert!(!text.contains(&HEX[0][..16]), "no key is in it");
            let carried: Carried = serde_json::from_str(&text).unwrap();
            let again = carried.volume(&key(HEX[0])).unwrap();
            assert_eq!(format!("{again:?}"), format!("{volume:?}"));
            assert_eq!(again.carried().unwrap(), carried);
            assert_eq!(again.allow_discards(), volume.allow_discards());
            // Another key, another IV offset, another cipher: each makes other bytes.
            assert_eq!(carried.volume(&key(HEX[1])).unwrap_err().kind(), ErrorKind::WrongKey, "{line}");
            assert_eq!(carried.volume(&Key::zeroed(64).unwrap()).unwrap_err().kind(), ErrorKind::WrongKey);
            let other = if text.contains("plain64") {
                text.replace("plain64", "plain64be")
            } else {
                text.replace("\"iv-large-sectors\":true", "\"iv-large-sectors\":false")
            };
            let other = if other == text {
                text.replace("\"iv_large_sectors\":true", "\"iv_large_sectors\":false")
            } else {
                other
            };
            assert_ne!(other, text);
            let other: Carried = serde_json::from_str(&other).unwrap();
            assert_eq!(other.volume(&key(HEX[0])).unwrap_err().kind(), ErrorKind::WrongKey, "{line}");
        }
    }

    #[test]
    fn what_one_key_does_not_make_is_refused() {
        let two = format!("0 8 crypt aes-xts-plain64 {0} 0 a 0\n8 8 crypt aes-xts-plain64 {0} 0 a 8", HEX[0]);
        for (table, why) in [(two.as_str(), "several"), ("0 8 linear a 0\n8 8 linear b 0", "one device")] {
            let error = volume(table).carried().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
