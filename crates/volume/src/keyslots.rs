//! Adding, removing and changing keyslots, in headers of either version.
//!
//! Each operation locks the header itself, and only while it changes it: slow work is done before.
//! A crash at any instant leaves the keyslots before or after the change, except with
//! [`Replace::InPlace`].

use underseal_cipher::CipherSpec;

use crate::format::bad;
use crate::{Error, ErrorKind, Hash, Header, Key, Pbkdf, Result, Target, Unlocked, VolumeKey};

/// The parameters of a new keyslot.
#[derive(Debug, Clone)]
pub struct NewKeyslot {
    /// The number; `None` for the first free one, or in LUKS2 for that of the replaced keyslot. In
    /// LUKS1 the replaced keyslot's number must be named.
    pub number: Option<u32>,
    /// The hash of PBKDF2 and of its anti-forensic splitter; `None` for LUKS1's, or SHA-256.
    pub hash: Option<Hash>,
    /// The key derivation of the passphrase.
    pub pbkdf: Pbkdf,
    /// LUKS2: the cipher of its area, and the length of its key; `None` for those of the replaced
    /// keyslot, or the data's.
    pub cipher: Option<(CipherSpec, Option<usize>)>,
    /// LUKS2: the priority; `None` for normal, or that of the replaced keyslot.
    pub priority: Option<Priority>,
    /// LUKS2: true when its passphrase is a [recovery key](crate::recovery_key), which a token
    /// records as systemd does.
    pub recovery: bool,
}

impl NewKeyslot {
    /// A keyslot with this key derivation, and defaults otherwise.
    pub fn new(pbkdf: Pbkdf) -> Self {
        Self { number: None, hash: None, pbkdf, cipher: None, priority: None, recovery: false }
    }
}

/// The priority of a LUKS2 keyslot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// The keyslot is only tried when it is named.
    Ignored = 0,
    /// The keyslot is tried after preferred ones.
    Normal = 1,
    /// The keyslot is tried first.
    Preferred = 2,
}

impl Priority {
    /// Returns the name: `normal`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignored => "ignored",
            Self::Normal => "normal",
            Self::Preferred => "preferred",
        }
    }
}

/// How a keyslot replaces another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// The new one is on disk before the old one is removed: both need room.
    Beside,
    /// The new one overwrites the old one. A crash meanwhile loses both.
    InPlace,
}

impl Header {
    /// Adds a keyslot for the volume key that this passphrase opens, and returns its number. A key
    /// that protects no data gets one beside its present ones.
    ///
    /// # Errors
    /// `WrongKey` when the key is not this header's; `NoRoom` when all keyslots are in use, or no
    /// room for its area is left; `BadOption` when the number is in use, or the format cannot have
    /// this keyslot; `Unsupported` when the header has a requirement that this build lacks, as
    /// during a reencryption; `Busy`, `Ambiguous` when the header cannot be changed now; `Io`,
    /// `Memory`.
    pub fn add_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        key: &VolumeKey,
        passphrase: &Key,
        new: &NewKeyslot,
    ) -> Result<u32> {
        match self {
            Self::Luks1(header) => header.add_keyslot(on, key, passphrase, new),
            Self::Luks2(header) => header.add_keyslot(on, key, passphrase, new),
        }
    }

    /// LUKS2: stores another key than the volume's, which protects none of its data, in a new
    /// keyslot, and returns its number.
    ///
    /// # Errors
    /// The kinds of [`Header::add_keyslot`]; `BadOption` for LUKS1.
    pub fn add_unbound_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        key: &Key,
        passphrase: &Key,
        new: &NewKeyslot,
    ) -> Result<u32> {
        match self {
            Self::Luks1(_) => Err(bad("LUKS1 has no keyslots for other keys than the volume's")),
            Self::Luks2(header) => header.add_unbound_keyslot(on, key, passphrase, new),
        }
    }

    /// Removes a keyslot. Its area is wiped first, so none of it is left when this returns; after a
    /// crash in between it is still listed, and can be removed again.
    ///
    /// # Errors
    /// `NoKeyslot` when it does not exist; `LastKeyslot` when no other one holds the key of the
    /// data, unless `last` permits that; `Unsupported`, `Busy`, `Ambiguous` as for
    /// [`Header::add_keyslot`]; `Io`.
    pub fn remove_keyslot(&mut self, on: &(impl Target + ?Sized), number: u32, last: bool) -> Result<()> {
        match self {
            Self::Luks1(header) => header.remove_keyslot(on, number, last),
            Self::Luks2(header) => header.remove_keyslot(on, number, last),
        }
    }

    /// Replaces an opened keyslot by one with another passphrase or other parameters, and returns
    /// the new number. LUKS2's keeps the old one's number and the tokens that name it.
    ///
    /// After a crash both may be listed, and each opens with its passphrase.
    ///
    /// # Errors
    /// The kinds of [`Header::add_keyslot`], with `NoRoom` when both do not fit beside each other.
    pub fn change_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        opened: &Unlocked,
        passphrase: &Key,
        new: &NewKeyslot,
        how: Replace,
    ) -> Result<u32> {
        match self {
            Self::Luks1(header) => header.change_keyslot(on, opened, passphrase, new, how),
            Self::Luks2(header) => header.change_keyslot(on, opened, passphrase, new, how),
        }
    }

    /// LUKS2: sets the priority of a keyslot.
    ///
    /// # Errors
    /// `BadOption` for LUKS1; `NoKeyslot` when it does not exist; `Unsupported`, `Busy`,
    /// `Ambiguous` as for [`Header::add_keyslot`]; `Io`.
    pub fn set_priority(
        &mut self,
        on: &(impl Target + ?Sized),
        number: u32,
        priority: Priority,
    ) -> Result<()> {
        match self {
            Self::Luks1(_) => Err(bad("LUKS1 tries its keyslots by number: they have no priority")),
            Self::Luks2(header) => header.set_priority(on, number, priority),
        }
    }
}

/// Chooses the number of a new keyslot, among the free ones below `count`.
pub(crate) fn free_number(count: u32, chosen: Option<u32>, is_free: impl Fn(&u32) -> bool) -> Result<u32> {
    match chosen {
        Some(number) if number >= count => {
            Err(bad(format!("there is no keyslot {number}: the last is {}", count - 1)))
        }
        Some(number) if !is_free(&number) => Err(bad(format!("keyslot {number} is in use"))),
        Some(number) => Ok(number),
        None => (0..count).find(is_free).ok_or_else(|| no_room("all keyslots are in use")),
    }
}

pub(crate) fn no_room(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::NoRoom, why)
}

pub(crate) fn not_in_use(number: u32) -> Error {
    Error::new(ErrorKind::NoKeyslot, format!("keyslot {number} is not in use"))
}

pub(crate) fn last_keyslot(number: u32) -> Error {
    let context = format!("keyslot {number} is the last one: without it the data can never be opened");
    Error::new(ErrorKind::LastKeyslot, context)
}
