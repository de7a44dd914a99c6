//! Headers that are written: of new volumes, and of volumes that get another passphrase.
//!
//! ```text
//!   NewHeaders      both headers of a volume, sealed under fresh salts before the first write
//!      |
//!      +-- make     noise over old headers and data; backup header, sync, header, sync
//!      +-- replace  backup header, sync, header, sync: one of the two opens at every moment
//!                   a header without a backup: one sector, which a disk writes whole or not at all
//! ```

use std::ops::ControlFlow;

use getrandom::fill;
use underseal_cipher::Key;
use underseal_volume::{KdfLimits, ReadAt, Target};

use super::place::{AREA, OLD_HIDDEN};
use super::{Chain, Derivation, HEADER, Header, KEYS, Password, Pim, Place, Prf, SALT, Unlocked};
use crate::{Error, ErrorKind, Result, fields};

/// The least size of a host: both header areas at both ends, and the smallest file system.
pub const LEAST: u64 = 4 * AREA + 36_864;
/// Bytes left free behind a small hidden volume, and behind a large one.
const RESERVES: (u64, u64) = (4096, 2 * AREA);
/// From which size on a hidden volume is a large one.
const LARGE: u64 = 2 << 20;
/// Bytes of noise that are written at a time.
const PIECE: usize = 1 << 20;

/// How a new volume is made.
#[derive(Debug, Clone, Copy)]
pub struct NewOptions {
    /// The chain of ciphers, in XTS.
    pub chain: Chain,
    /// The function under the key derivation.
    pub prf: Prf,
    /// VeraCrypt's multiplier of rounds.
    pub pim: Pim,
    /// The sector size of the file system to be, in bytes.
    pub sector_size: u32,
    /// Keeps the host's old bytes under the data area; they reveal how much of the volume has been
    /// written.
    pub quick: bool,
    /// The size of the hidden volume that is made; none for a normal one, which takes all of the
    /// host.
    pub hidden: Option<u64>,
}

/// Both headers of a volume, sealed.
pub struct NewHeaders {
    header: [u8; HEADER],
    /// The backup header, and its place; none for old volumes and systems.
    backup: Option<([u8; HEADER], u64)>,
    /// The backup header is replaced last: it opened the volume, and the header may not.
    backup_last: bool,
    /// Where the header lies.
    at: u64,
    /// The data's bytes in the host.
    data: std::ops::Range<u64>,
    quick: bool,
    hidden: bool,
}

impl NewHeaders {
    /// Decides, derives and seals the headers of a new volume in a host of `host` bytes. Nothing is
    /// written yet.
    ///
    /// # Errors
    /// `TooSmall`; `BadOption` for a sector size that is none, a PRF that VeraCrypt does not have,
    /// a hidden volume that does not fit; `TooCostly`, `Memory`, `Io` when the kernel gives no
    /// random bytes.
    pub fn prepare(host: u64, password: &Password, options: &NewOptions) -> Result<Self> {
        let refuse = |kind, why: String| Err(Error::new(kind, why));
        let sector = options.sector_size;
        if !(512..=4096).contains(&sector) || !sector.is_multiple_of(512) {
            let why = format!("a sector size of {sector} bytes: 512 to 4096 in steps of 512");
            return refuse(ErrorKind::BadOption, why);
        }
        if host < LEAST || !host.is_multiple_of(sector.into()) {
            let why = format!("a host of {host} bytes: at least {LEAST}, in whole sectors of {sector}");
            return refuse(ErrorKind::TooSmall, why);
        }
        let data = match options.hidden {
            None => 2 * AREA..host - 2 * AREA,
            Some(size) => hidden_range(host, size, sector)?,
        };
        let derivation = Derivation::veracrypt(options.prf, options.pim)?;
        let keys = new_keys(options.chain)?;
        let hidden = options.hidden.is_some();
        let header = Header::new_volume(data.start, data.end - data.start, hidden, sector, keys);
        let place = if hidden { Place::Hidden } else { Place::Normal };
        let plain = header.to_plain()?;
        let of = (options.chain, derivation);
        Ok(Self { quick: options.quick, ..Self::seal(host, place, &plain, of, password, data)? })
    }

    /// Seals the headers of an unlocked volume under another password, PRF or PIM, for a host of
    /// `host` bytes. Keys and fields stay.
    ///
    /// # Errors
    /// `TooSmall` and `BadOption` for a host that ends before the volume or behind it: its backup
    /// header has another place there; `BadHeader` as [`Unlocked::open`]; `Unsupported` for a
    /// system PRF that its boot loader does not support, and for derivations that TrueCrypt
    /// does not have; `TooCostly`, `Memory`, `Io`.
    pub fn again(host: u64, of: &Unlocked, prf: Prf, pim: Pim, password: &Password) -> Result<Self> {
        let unsupported = |why| Err(Error::new(ErrorKind::Unsupported, why));
        let derivation = match of.derivation.veracrypt {
            _ if of.place == Place::System && prf != of.derivation.prf => {
                return unsupported("the boot loader on a system's disk knows one PRF, that of now");
            }
            true if of.place == Place::System => of.derivation.again_with(pim)?,
            true => Derivation::veracrypt(prf, pim)?,
            false if pim.get().is_none() && password.short && prf == of.derivation.prf => of.derivation,
            false if pim.get().is_none() && password.short => Derivation::truecrypt(prf)?,
            false => return unsupported("TrueCrypt has no PIM, and passphrases of 64 bytes at most"),
        };
        let data = of.layout(host, None)?.data;
        let (plain, how) = (of.header.to_plain()?, (of.chain, derivation));
        if of.place == Place::System || of.header.version < 4 {
            let header = sealed(&plain, how, password)?;
            let hidden = of.place.is_hidden();
            // A backup file has the old header of a hidden volume at another place than the host.
            let at = if hidden { host.saturating_sub(OLD_HIDDEN) } else { of.at };
            return Ok(Self { header, backup: None, backup_last: false, at, data, quick: true, hidden });
        }
        ends_with_its_headers(host, data.end, of.place.is_hidden())?;
        let place = if of.place.is_hidden() { Place::Hidden } else { Place::Normal };
        let backup_last = of.place.is_backup();
        Ok(Self { backup_last, ..Self::seal(host, place, &plain, how, password, data)? })
    }

    fn seal(
        host: u64,
        place: Place,
        plain: &Key,
        how: (Chain, Derivation),
        password: &Password,
        data: std::ops::Range<u64>,
    ) -> Result<Self> {
        let hidden = place == Place::Hidden;
        let at = if hidden { AREA } else { 0 };
        let Some(backup_at) = host.checked_sub(2 * AREA).map(|backups| backups + at) else {
            return Err(Error::new(
                ErrorKind::TooSmall,
                format!("a host of {host} bytes has no backup headers"),
            ));
        };
        let (header, backup) = (sealed(plain, how, password)?, sealed(plain, how, password)?);
        Ok(Self {
            header,
            backup: Some((backup, backup_at)),
            backup_last: false,
            at,
            data,
            quick: true,
            hidden,
        })
    }

    /// Makes the volume: first noise over what was there, then the backup header, and the header
    /// last. Before that nothing opens. `told` gets the bytes that were written so far, and all
    /// that will be, and may stop it before the headers are written.
    ///
    /// # Errors
    /// `Io`.
    pub fn make(
        &self,
        host: &(impl Target + ?Sized),
        told: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let whole = if self.quick { 0..0 } else { self.data.clone() };
        // New volumes have a backup.
        let backup = self.backup.as_ref().map_or(0, |(_, at)| *at);
        let ranges = if self.hidden {
            [self.at..AREA + self.at, whole, backup..AREA + backup]
        } else {
            [0..2 * AREA, whole, backup..2 * AREA + backup]
        };
        let all = ranges.iter().map(|range| range.end - range.start).sum();
        let mut noise = vec![0; PIECE];
        let mut done = 0;
        // Old headers are overwritten first, so that none of them opens data that are already
        // noise.
        for range in [&ranges[0], &ranges[2], &ranges[1]] {
            let mut at = range.start;
            while at < range.end {
                let len = usize::try_from(range.end - at).unwrap_or(PIECE).min(PIECE);
                random(&mut noise[..len])?;
                write(host, at, &noise[..len])?;
                at += len as u64;
                done += len as u64;
                if told(done, all).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            sync(host)?;
        }
        self.write(host).map(ControlFlow::Continue)
    }

    /// Replaces the headers, the backup first unless that one opened the volume: at every moment
    /// one of the two is whole, old or new. The old headers are written again before, as they are
    /// read: after a sync that failed, reads show bytes that the disk does not have.
    ///
    /// # Errors
    /// `Io`.
    pub fn replace(&self, host: &(impl Target + ?Sized)) -> Result<()> {
        for at in self.backup.iter().map(|(_, at)| *at).chain([self.at]) {
            let mut old = [0; HEADER];
            // A header that cannot be read opens nothing.
            if host.read_exact_at(&mut old, at).is_ok() {
                write(host, at, &old)?;
                sync(host)?;
            }
        }
        self.write(host)
    }

    /// Writes the headers, one after the other.
    fn write(&self, host: &(impl Target + ?Sized)) -> Result<()> {
        let mut headers: Vec<_> = self.backup.iter().map(|(backup, at)| (*at, backup)).collect();
        headers.insert(if self.backup_last { 0 } else { headers.len() }, (self.at, &self.header));
        for (at, header) in headers {
            write(host, at, header)?;
            sync(host)?;
        }
        Ok(())
    }

    /// Whether there is a backup header, which gets the passphrase too.
    pub fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    /// The data's bytes in the host.
    pub fn data(&self) -> std::ops::Range<u64> {
        self.data.clone()
    }
}

/// Refuses a host that does not end with the volume's backup headers: what lies at their usual
/// place belongs to the data, or to something behind the volume, and the real backup header would
/// keep the old password.
fn ends_with_its_headers(host: u64, data_end: u64, is_hidden: bool) -> Result<()> {
    // tcplay leaves nothing free behind a hidden volume.
    let reserves = if is_hidden { &[0, RESERVES.0, RESERVES.1][..] } else { &[0] };
    let ends: Vec<u64> = reserves.iter().map(|free| data_end.saturating_add(free + 2 * AREA)).collect();
    if ends.contains(&host) {
        return Ok(());
    }
    let (least, most) = (ends[0], ends[ends.len() - 1]);
    let (kind, remedy) = if host < least {
        (ErrorKind::TooSmall, "make it as long as it was before")
    } else {
        (ErrorKind::BadOption, "use the volume's own bytes only, as a copy or by `losetup --sizelimit`")
    };
    let context = format!(
        "the volume's data end at byte {data_end} and its backup headers at byte {most}, but the image at byte {host}, so the \
         backup header cannot be replaced: {remedy}"
    );
    Err(Error::new(kind, context))
}

/// A header with these fields under a password and a fresh salt.
fn sealed(
    plain: &Key,
    (chain, derivation): (Chain, Derivation),
    password: &Password,
) -> Result<[u8; HEADER]> {
    let mut header = [0; HEADER];
    random(&mut header[..SALT])?;
    let kdf = derivation.kdf(&header[..SALT]);
    // The user's own choice of a PIM, not a stranger's.
    let limits = KdfLimits { memory_kib: KdfLimits::default().memory_kib, ..KdfLimits::NONE };
    let key = kdf.derive(password.as_bytes(), chain.material(), &limits)?;
    header[SALT..].copy_from_slice(&chain.seal_header(key.as_bytes(), plain.as_bytes())?);
    Ok(header)
}

/// The size of the copy of both header areas that VeraCrypt keeps as a backup file.
pub const BACKUP_FILE: usize = 2 * 65536;

/// The header areas of a host, as a backup file of VeraCrypt's has them.
///
/// # Errors
/// `TooSmall`, `Io`.
pub fn backup_file(host: &(impl ReadAt + ?Sized)) -> Result<Vec<u8>> {
    let mut bytes = vec![0; BACKUP_FILE];
    fields::read(host, 0, &mut bytes)?;
    Ok(bytes)
}

/// Where VeraCrypt lays a hidden volume of `size` bytes.
fn hidden_range(host: u64, size: u64, sector: u32) -> Result<std::ops::Range<u64>> {
    let reserve = if size < LARGE { RESERVES.0 } else { RESERVES.1 };
    let end = host.saturating_sub(2 * AREA + reserve);
    let start = end.checked_sub(size).filter(|start| *start > 2 * AREA);
    match start {
        Some(start) if size > 0 && size.is_multiple_of(sector.into()) && start.is_multiple_of(512) => {
            Ok(start..end)
        }
        _ => {
            let context = format!("a hidden volume of {size} bytes does not fit into a host of {host} bytes");
            Err(Error::new(ErrorKind::BadOption, context))
        }
    }
}

/// Master keys of a new volume. No cipher's key equals its tweak key, which would weaken XTS.
fn new_keys(chain: Chain) -> Result<Key> {
    let mut keys = Key::zeroed(KEYS)?;
    let half = chain.material() / 2;
    loop {
        random(&mut keys.as_mut_bytes()[..2 * half])?;
        let (data, tweak) = keys.as_bytes()[..2 * half].split_at(half);
        if data.chunks(32).zip(tweak.chunks(32)).all(|(data, tweak)| data != tweak) {
            return Ok(keys);
        }
    }
}

fn random(bytes: &mut [u8]) -> Result<()> {
    fill(bytes).map_err(|e| Error::new(ErrorKind::Io, "the kernel gave no random bytes").with_source(e))
}

fn write(to: &(impl Target + ?Sized), at: u64, bytes: &[u8]) -> Result<()> {
    to.write_all_at(bytes, at).map_err(|e| {
        let context = format!("cannot write {} bytes at byte {at}", bytes.len());
        Error::new(ErrorKind::Io, context).with_source(e)
    })
}

fn sync(to: &(impl Target + ?Sized)) -> Result<()> {
    to.sync_all().map_err(|e| Error::new(ErrorKind::Io, "cannot sync").with_source(e))
}

#[cfg(test)]
mod tests;
