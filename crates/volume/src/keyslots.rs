//! Keyslots that come, go and change, whichever LUKS version the header has.
//!
//! Each operation locks the header itself, and only while it changes it: what takes time is done
//! before. A crash at any instant leaves the keyslots as they were or as they are going to be, but
//! where [`Replace::InPlace`] is asked for.

use underseal_cipher::CipherSpec;

use crate::format::bad;
use crate::{Error, ErrorKind, Hash, Header, Key, Pbkdf, Result, Target, Unlocked, VolumeKey};

/// What a new keyslot is to be like.
#[derive(Debug, Clone)]
pub struct NewKeyslot {
    /// Its number; none takes the first that is free, or in LUKS2 that of the keyslot that it
    /// replaces. LUKS1's takes that, too, where it is named.
    pub number: Option<u32>,
    /// The hash of PBKDF2 and of its anti-forensic splitter; none takes LUKS1's own, or SHA-256.
    pub hash: Option<Hash>,
    /// How the passphrase becomes a key.
    pub pbkdf: Pbkdf,
    /// LUKS2: what encrypts its area, and under a key of how many bytes; none takes that of the
    /// keyslot that it replaces, or the data's.
    pub cipher: Option<(CipherSpec, Option<usize>)>,
    /// LUKS2: when it is tried; none is normal, or that of the keyslot that it replaces.
    pub priority: Option<Priority>,
    /// LUKS2: its passphrase is a [recovery key](crate::recovery_key), which a token says of it as
    /// systemd does.
    pub recovery: bool,
}

impl NewKeyslot {
    /// A keyslot of this cost, and everything else as it is by default.
    pub fn new(pbkdf: Pbkdf) -> Self {
        Self { number: None, hash: None, pbkdf, cipher: None, priority: None, recovery: false }
    }
}

/// When a keyslot of LUKS2 is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Only when it is asked for by its number.
    Ignored = 0,
    /// After those that are preferred.
    Normal = 1,
    /// First.
    Preferred = 2,
}

impl Priority {
    /// Its name: `normal`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignored => "ignored",
            Self::Normal => "normal",
            Self::Preferred => "preferred",
        }
    }
}

/// How a keyslot takes the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// The new one is on disk before the old one goes: there must be room for both.
    Beside,
    /// The new one is written over the old one. A crash on the way loses both.
    InPlace,
}

impl Header {
    /// Gives the volume key another keyslot, which this passphrase opens: its number. A key that
    /// protects no data gets one beside those that it has.
    ///
    /// # Errors
    /// `WrongKey` when the key is not this header's; `NoRoom` when all keyslots are in use, or no
    /// room for its area is left; `BadOption` when the number is taken, or the format has no such
    /// keyslots; `Unsupported` when the header requires what this build does not know, as while its
    /// data is reencrypted; `Busy`, `Ambiguous` when the header cannot be changed now; `Io`,
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

    /// LUKS2: keeps another key than the volume's, which protects none of its data, in a keyslot of
    /// its own: its number.
    ///
    /// # Errors
    /// Those of [`Header::add_keyslot`]; `BadOption` for LUKS1.
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

    /// Removes a keyslot. Its area is wiped first, so nothing of it is left when this returns;
    /// after a crash in between it is still listed, and can be removed again.
    ///
    /// # Errors
    /// `NoKeyslot` when it is not there; `LastKeyslot` when no other holds the key of the data,
    /// unless `last` allows that; `Unsupported`, `Busy`, `Ambiguous` as for
    /// [`Header::add_keyslot`]; `Io`.
    pub fn remove_keyslot(&mut self, on: &(impl Target + ?Sized), number: u32, last: bool) -> Result<()> {
        match self {
            Self::Luks1(header) => header.remove_keyslot(on, number, last),
            Self::Luks2(header) => header.remove_keyslot(on, number, last),
        }
    }

    /// Replaces the keyslot that was opened by another one, for another passphrase or with other
    /// parameters: the number of the new one. LUKS2's keeps the old one's number and the tokens
    /// that name it.
    ///
    /// After a crash on the way both may be listed, and each opens with its passphrase.
    ///
    /// # Errors
    /// Those of [`Header::add_keyslot`], with `NoRoom` when there is no room for both beside each
    /// other.
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

    /// LUKS2: settles when a keyslot is tried.
    ///
    /// # Errors
    /// `BadOption` for LUKS1; `NoKeyslot` when it is not there; `Unsupported`, `Busy`, `Ambiguous`
    /// as for [`Header::add_keyslot`]; `Io`.
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

/// The number that a new keyslot gets, of those below `count` that are free.
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
    let context = format!("keyslot {number} is the last one: without it nobody can ever open the data");
    Error::new(ErrorKind::LastKeyslot, context)
}
