//! The key derivations: which function, how many rounds, for which program.

use std::fmt;
use std::str::FromStr;

use underseal_volume::{Argon2Variant, Hash, Kdf};

use crate::{Error, ErrorKind, Result};

/// A pseudo-random function under a header's key derivation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the function it names")]
pub enum Prf {
    Sha512,
    Sha256,
    Blake2s256,
    Whirlpool,
    Streebog512,
    Ripemd160,
    Sha1,
    Argon2id,
}

impl Prf {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Sha512,
        Self::Sha256,
        Self::Blake2s256,
        Self::Whirlpool,
        Self::Streebog512,
        Self::Ripemd160,
        Self::Sha1,
        Self::Argon2id,
    ];

    /// The name: `sha512`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha512 => "sha512",
            Self::Sha256 => "sha256",
            Self::Blake2s256 => "blake2s-256",
            Self::Whirlpool => "whirlpool",
            Self::Streebog512 => "streebog512",
            Self::Ripemd160 => "ripemd160",
            Self::Sha1 => "sha1",
            Self::Argon2id => "argon2id",
        }
    }

    /// The name in cryptsetup's dumps: `stribog512` where ours is `streebog512`.
    pub fn kernel_name(self) -> &'static str {
        self.hash().map_or("argon2id", Hash::name)
    }

    /// The hash under HMAC; none for Argon2id.
    pub fn hash(self) -> Option<Hash> {
        Some(match self {
            Self::Sha512 => Hash::Sha512,
            Self::Sha256 => Hash::Sha256,
            Self::Blake2s256 => Hash::Blake2s256,
            Self::Whirlpool => Hash::Whirlpool,
            Self::Streebog512 => Hash::Streebog512,
            Self::Ripemd160 => Hash::Ripemd160,
            Self::Sha1 => Hash::Sha1,
            Self::Argon2id => return None,
        })
    }

    /// Nanoseconds that a round of one block takes, about: they decide the order of trials.
    pub(super) fn cost(self) -> u64 {
        match self {
            Self::Sha256 | Self::Sha1 => 200,
            Self::Blake2s256 => 300,
            Self::Ripemd160 => 450,
            Self::Sha512 => 700,
            Self::Whirlpool => 2000,
            Self::Streebog512 => 6000,
            Self::Argon2id => 0,
        }
    }
}

impl FromStr for Prf {
    type Err = Error;

    /// Takes underseal's names and those of VeraCrypt and cryptsetup: `SHA-512`, `stribog512`,
    /// `Streebog`, `BLAKE2s`.
    ///
    /// Returns `BadOption` for any other name.
    fn from_str(name: &str) -> Result<Self> {
        let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_', ' '], "");
        let asked = match &*plain(name) {
            "streebog" | "stribog" | "stribog512" => "streebog512".to_owned(),
            "blake2s" => "blake2s256".to_owned(),
            other => other.to_owned(),
        };
        Self::ALL.into_iter().find(|prf| plain(prf.name()) == asked).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::new(ErrorKind::BadOption, format!("no PRF of VeraCrypt has this name: one of {known}"))
        })
    }
}

impl fmt::Display for Prf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// VeraCrypt's Personal Iterations Multiplier: 1 to 2147468, or none for the default count of
/// rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pim(Option<u32>);

impl Pim {
    /// The highest that VeraCrypt takes.
    pub const MAX: u32 = 2_147_468;
    /// The highest of system encryption.
    const MAX_SYSTEM: u32 = 65535;

    /// A multiplier; 0 stands for none, as in VeraCrypt's dialogs.
    ///
    /// # Errors
    /// `BadOption` above [`Pim::MAX`].
    pub fn new(pim: u32) -> Result<Self> {
        if pim > Self::MAX {
            let context = format!("a PIM is a number from 1 to {}, not {pim}", Self::MAX);
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        Ok(Self((pim > 0).then_some(pim)))
    }

    /// The number, where there is one.
    pub fn get(self) -> Option<u32> {
        self.0
    }

    /// Whether VeraCrypt would ask for a passphrase of 20 characters or more with this multiplier:
    /// it makes fewer rounds than the default.
    fn is_low(self, prf: Prf, system: bool) -> bool {
        let least = match prf {
            Prf::Argon2id => 12,
            _ if system => 98,
            _ => 485,
        };
        self.0.is_some_and(|pim| pim < least)
    }

    /// Refuses a new passphrase of `len` bytes that is too short for this multiplier. Key files
    /// make up for any length.
    ///
    /// # Errors
    /// `BadOption`.
    pub fn check_passphrase(self, prf: Prf, system: bool, len: usize) -> Result<()> {
        const LONG_ENOUGH: usize = 20;
        if len >= LONG_ENOUGH || !self.is_low(prf, system) {
            return Ok(());
        }
        let what =
            format!("a PIM that makes fewer rounds than the default wants {LONG_ENOUGH} bytes of passphrase");
        Err(Error::new(ErrorKind::BadOption, what))
    }
}

/// A derivation of header keys from a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Derivation {
    /// The function.
    pub prf: Prf,
    /// Rounds of PBKDF2, or passes of Argon2id.
    pub rounds: u32,
    /// Memory of Argon2id in KiB; 0 for PBKDF2.
    pub memory_kib: u32,
    /// Whether VeraCrypt derives so; if not, TrueCrypt does.
    pub veracrypt: bool,
    /// Whether only systems that a BIOS starts count so.
    pub system: bool,
}

impl Derivation {
    /// VeraCrypt's, for a volume that is not a system's.
    ///
    /// # Errors
    /// `BadOption` for a function that VeraCrypt does not have.
    pub fn veracrypt(prf: Prf, pim: Pim) -> Result<Self> {
        if prf == Prf::Sha1 {
            return Err(Error::new(ErrorKind::BadOption, "VeraCrypt has no SHA-1"));
        }
        if prf == Prf::Argon2id {
            return Ok(argon2id(pim));
        }
        let default = if prf == Prf::Ripemd160 { 655_331 } else { 500_000 };
        let rounds = pim.0.map_or(default, |pim| 15_000 + 1000 * pim);
        Ok(Self { prf, rounds, memory_kib: 0, veracrypt: true, system: false })
    }

    /// The same function and kind of count with another multiplier, for the header of an encrypted
    /// system.
    ///
    /// Returns `BadOption` for a multiplier beyond those of systems.
    pub(super) fn again_with(self, pim: Pim) -> Result<Self> {
        let all = Self::of_veracrypt(pim).into_iter();
        let same = |of: &Self| (of.prf, of.system) == (self.prf, self.system);
        let found = all.rev().find(same);
        found.ok_or_else(|| Error::new(ErrorKind::BadOption, "a system's PIM is 65535 at most"))
    }

    /// TrueCrypt's derivation, for a volume that is not a system's.
    ///
    /// Returns `BadOption` for a function that TrueCrypt does not have.
    pub(super) fn truecrypt(prf: Prf) -> Result<Self> {
        let all = Self::of_truecrypt(Pim::default()).into_iter();
        all.filter(|of| of.prf == prf)
            .max_by_key(|of| of.rounds)
            .ok_or_else(|| Error::new(ErrorKind::BadOption, format!("TrueCrypt has no {prf}")))
    }

    /// The parameters for the volume crate's key derivation, with this salt.
    pub(super) fn kdf(self, salt: &[u8]) -> Kdf {
        match self.prf.hash() {
            Some(hash) => Kdf::Pbkdf2 { hash, iterations: self.rounds, salt: salt.to_vec() },
            None => Kdf::Argon2 {
                variant: Argon2Variant::Argon2id,
                passes: self.rounds,
                memory_kib: self.memory_kib,
                lanes: 1,
                salt: salt.to_vec(),
            },
        }
    }

    /// All ways of TrueCrypt: none with a PIM, which TrueCrypt does not have.
    pub(super) fn of_truecrypt(pim: Pim) -> Vec<Self> {
        let of = |(prf, rounds)| Self { prf, rounds, memory_kib: 0, veracrypt: false, system: false };
        let all = [
            (Prf::Ripemd160, 1000),
            (Prf::Ripemd160, 2000),
            (Prf::Sha512, 1000),
            (Prf::Whirlpool, 1000),
            (Prf::Sha1, 2000),
        ];
        if pim.0.is_some() { Vec::new() } else { all.map(of).to_vec() }
    }

    /// All derivations of VeraCrypt, those of system encryption included: each is a stop between
    /// zero and the count of a usual volume, or the reverse, so that trying both costs no more than
    /// trying the higher count.
    pub(super) fn of_veracrypt(pim: Pim) -> Vec<Self> {
        let of = |prf, rounds| Self { prf, rounds, memory_kib: 0, veracrypt: true, system: true };
        let usual = Prf::ALL.into_iter().filter_map(|prf| Self::veracrypt(prf, pim).ok());
        let system = [
            (Prf::Sha256, 200_000),
            (Prf::Blake2s256, 200_000),
            (Prf::Ripemd160, 327_661),
            (Prf::Streebog512, 200_000),
        ];
        let system = system.into_iter().filter_map(|(prf, default)| match pim.0 {
            None => Some(of(prf, default)),
            Some(pim) if pim <= Pim::MAX_SYSTEM => Some(of(prf, 2048 * pim)),
            Some(_) => None,
        });
        usual.chain(system).collect()
    }
}

/// "since 1.26.27": memory and passes grow with the PIM, of which 12 is the default.
fn argon2id(pim: Pim) -> Derivation {
    let pim = pim.0.unwrap_or(12);
    let memory_mib = if pim >= 31 { 1024 } else { 64 + 32 * (pim - 1) };
    let rounds = if pim <= 31 { 3 + (pim - 1) / 3 } else { 13 + (pim - 31) };
    Derivation { prf: Prf::Argon2id, rounds, memory_kib: memory_mib << 10, veracrypt: true, system: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_veracrypts() {
        let rounds = |prf, pim| Derivation::veracrypt(prf, Pim::new(pim).unwrap()).unwrap().rounds;
        assert_eq!((rounds(Prf::Sha512, 0), rounds(Prf::Sha512, 485)), (500_000, 500_000));
        assert_eq!((rounds(Prf::Ripemd160, 0), rounds(Prf::Ripemd160, 1)), (655_331, 16_000));
        assert_eq!(rounds(Prf::Sha256, Pim::MAX), 2_147_483_000);
        for (pim, passes, mib) in [(0, 6, 416), (1, 3, 64), (5, 4, 192), (31, 13, 1024), (32, 14, 1024)] {
            let of = argon2id(Pim::new(pim).unwrap());
            assert_eq!((of.rounds, of.memory_kib), (passes, mib << 10), "PIM {pim}");
        }
        assert!(Pim::new(Pim::MAX + 1).is_err());
        let of = |pim| Derivation::of_veracrypt(Pim::new(pim).unwrap());
        assert!(of(3).iter().any(|of| (of.prf, of.rounds) == (Prf::Streebog512, 6144)));
        assert!(of(70_000).iter().all(|of| of.rounds != 2048 * 70_000));
        assert!(Derivation::of_truecrypt(Pim::new(1).unwrap()).is_empty());
    }

    #[test]
    fn a_prf_is_known_by_everybodys_names() {
        for (name, prf) in [
            ("SHA-512", Prf::Sha512),
            ("stribog512", Prf::Streebog512),
            ("Streebog", Prf::Streebog512),
            ("BLAKE2s-256", Prf::Blake2s256),
            ("blake2s", Prf::Blake2s256),
            ("RIPEMD-160", Prf::Ripemd160),
            ("Argon2id", Prf::Argon2id),
        ] {
            assert_eq!(name.parse::<Prf>().unwrap(), prf);
        }
        assert!("sha3".parse::<Prf>().is_err());
    }
}
