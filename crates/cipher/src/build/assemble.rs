//! Puts mode, cipher and IV generator together.

use std::sync::Arc;

use super::authenticated::{AuthenticatedMode, KeyedAead, keyed};
use super::ciphers::{self, BlockCipherBuilder};
use super::keys::SplitKey;
use super::plan::{ChaChaVariant, ChainMode, ModePlan};
use super::{BuildOptions, hashes, refuse};
use crate::aead::{AnyAead, Authenc, StoredIv, TupleCipher, TupleLayout};
use crate::block::AnyCipher;
use crate::iv::{
    Benbi, Eboiv, Elephant, EncryptedIv, EncryptedNumbers, IvGenerator, Lmk, NullIv, Plain, Plain64,
    Plain64Be, Tcw, Treatment,
};
use crate::kernel::{AesKey, DiffuserLanes, Hctr2Key};
use crate::mode::{
    Adiantum, AesCbc, AesHctr2, AesXts, AnyMode, Arc4, Cbc, ChaCha, ChaCha12Rounds, ChaCha20Rounds,
    ChainedSectors, Ctr, Cts, Ecb, EncryptedTweaks, Hctr2, Lrw, Null, NullBlock, OneByteBlocks, Pcbc,
    SectorSplit, TreatedSectors, Xts,
};
use crate::{CipherSpec, CpuPath, Error, ErrorKind, IntegrityKind, Key, Result, SectorCipher};

/// The inputs of one cipher.
struct Assembly<'a> {
    options: &'a BuildOptions<'a>,
    plan: &'a ModePlan,
    path: CpuPath,
    key: &'a [u8],
    keys: &'a SplitKey<'a>,
    layout: SectorSplit,
    /// The authenticated mode that the cipher is, or is a part of.
    sealed: Option<&'a AuthenticatedMode>,
}

/// The functions with which IV generators key a block cipher whose block is an IV.
struct Block<'a, const W: usize> {
    /// Keys the cipher.
    cipher: &'a dyn Fn(&[u8]) -> Result<AnyCipher<W>>,
    /// Keys the mode, for single blocks.
    mode: &'a dyn Fn(&[u8]) -> Result<AnyMode<W>>,
    /// Keys the mode, for whole sectors.
    whole: &'a dyn Fn(&[u8]) -> Result<AnyMode<W>>,
}

/// True when the IV generator treats the sectors of all keys together: one cipher serves all keys.
pub(super) fn has_treatment(spec: &CipherSpec, plan: &ModePlan) -> bool {
    matches!(plan, ModePlan::Block { .. }) && plan.has_iv() && matches!(spec.iv(), "lmk" | "tcw" | "elephant")
}

/// Makes the cipher of one of the keys.
pub(super) fn assemble(
    options: &BuildOptions<'_>,
    plan: &ModePlan,
    path: CpuPath,
    key: &[u8],
    keys: &SplitKey<'_>,
) -> Result<Arc<dyn SectorCipher>> {
    let layout = SectorSplit { size: options.sector_size, large: options.iv_large_sectors };
    let (plan, sealed) = match plan {
        ModePlan::Authenticated(mode @ AuthenticatedMode::Authenc { mode: of, .. }) => (&**of, Some(mode)),
        ModePlan::Authenticated(mode) => (plan, Some(mode)),
        plan => (plan, None),
    };
    let assembly = Assembly { options, plan, path, key, keys, layout, sealed };
    let aes = |key: &[u8]| ciphers::aes(key, path);
    match plan {
        ModePlan::Authenticated(mode) => assembly.whole(mode),
        ModePlan::Null => Ok(Arc::new(Null { sector_size: options.sector_size })),
        ModePlan::NullChain { chain } => {
            assembly.with_iv::<8>(Box::new(OneByteBlocks(chained::<1>(*chain, Box::new(NullBlock)))), None)
        }
        ModePlan::Arc4 => assembly.with_iv::<8>(Box::new(Arc4 { key: Key::new(key)? }), None),
        ModePlan::Stream { stream: ChaChaVariant::ChaCha20 } => {
            assembly.with_iv::<16>(Box::new(ChaCha::<ChaCha20Rounds>::new(key, path)?), None)
        }
        ModePlan::Stream { stream: ChaChaVariant::XChaCha20 } => {
            assembly.with_iv::<32>(Box::new(ChaCha::<ChaCha20Rounds>::new(key, path)?), None)
        }
        ModePlan::Stream { stream: ChaChaVariant::XChaCha12 } => {
            assembly.with_iv::<32>(Box::new(ChaCha::<ChaCha12Rounds>::new(key, path)?), None)
        }
        ModePlan::Adiantum { stream: ChaChaVariant::XChaCha12 } => {
            assembly.with_iv(Box::new(Adiantum::<ChaCha12Rounds>::new(key, path, aes)?), None)
        }
        ModePlan::Adiantum { .. } => {
            assembly.with_iv(Box::new(Adiantum::<ChaCha20Rounds>::new(key, path, aes)?), None)
        }
        ModePlan::Hctr2 => match Hctr2Key::new(path, key)? {
            Some(key) => assembly.with_iv(Box::new(AesHctr2 { key }), None),
            None => assembly.with_iv(Box::new(Hctr2::new(aes(key)?)?), None),
        },
        ModePlan::Block { chain, cipher } => match cipher.make {
            BlockCipherBuilder::Of8(make) => {
                let mode = |key: &[u8]| Ok(chained(*chain, make(key)?));
                assembly.with_iv(mode(key)?, Some(Block { cipher: &make, mode: &mode, whole: &mode }))
            }
            BlockCipherBuilder::Of16(make) => {
                let make = |key: &[u8]| make(key, path);
                let mode = |key: &[u8]| of16(*chain, key, make);
                let on_kernels = |key: &[u8]| match cipher.name {
                    "aes" => assembly.on_kernels(*chain, cipher.keys, key),
                    _ => Ok(None),
                };
                let whole = |key: &[u8]| match on_kernels(key)? {
                    Some(Kernel::Mode(mode)) => Ok(mode),
                    _ => mode(key),
                };
                let block = Block { cipher: &make, mode: &mode, whole: &whole };
                match on_kernels(key)? {
                    Some(Kernel::Whole(cipher)) => Ok(cipher),
                    Some(Kernel::Mode(mode)) => assembly.with_block(mode, block),
                    None => assembly.with_block(mode(key)?, block),
                }
            }
        },
    }
}

/// The part of an assembly that the AES kernels do.
enum Kernel {
    /// The whole cipher.
    Whole(Arc<dyn SectorCipher>),
    /// The mode without its IVs.
    Mode(AnyMode<16>),
}

impl Assembly<'_> {
    fn on_kernels(&self, chain: ChainMode, sizes: &[usize], key: &[u8]) -> Result<Option<Kernel>> {
        let (layout, iv, half) = (self.layout, self.options.spec.iv(), key.len() / 2);
        let data = match chain {
            ChainMode::Xts => AesKey::new(self.path, &key[..half])?,
            ChainMode::Cbc => AesKey::new(self.path, key)?.map(|data| match self.options.cpu {
                None if !CpuPath::is_forced() => data.for_cbc(layout.size),
                _ => data,
            }),
            _ => None,
        };
        let Some(data) = data else { return Ok(None) };
        let by = match (chain, iv) {
            (ChainMode::Xts, _) => AesKey::new(self.path, &key[half..])?,
            (_, "essiv") => AesKey::new(self.path, self.essiv_key(sizes)?.as_bytes())?,
            _ => None,
        };
        Ok(Some(match (chain, iv, by) {
            (ChainMode::Xts, "plain64", Some(by)) if self.sealed.is_none() => {
                Kernel::Whole(Arc::new(ChainedSectors {
                    mode: AesXts { data },
                    iv: EncryptedNumbers { by },
                    layout,
                }))
            }
            (ChainMode::Xts, _, Some(by)) => {
                Kernel::Mode(Box::new(EncryptedTweaks { mode: AesXts { data }, by }))
            }
            (ChainMode::Cbc, "essiv", Some(by)) if self.sealed.is_none() => {
                Kernel::Whole(Arc::new(ChainedSectors {
                    mode: AesCbc { data },
                    iv: EncryptedNumbers { by },
                    layout,
                }))
            }
            _ => Kernel::Mode(Box::new(AesCbc { data })),
        }))
    }

    /// Adds the IV generator to a mode over blocks of 16 bytes.
    fn with_block(&self, mode: AnyMode<16>, block: Block<'_, 16>) -> Result<Arc<dyn SectorCipher>> {
        if self.options.spec.iv() != "elephant" || !self.plan.has_iv() || self.sealed.is_some() {
            return self.with_iv(mode, Some(block));
        }
        let extra = self.keys.extra;
        if ![16, 24, 32].contains(&extra.len()) {
            return Err(self.creating("the sector key is an AES key of 16, 24 or 32 bytes"));
        }
        let sector_key = ciphers::aes(extra, self.path)?;
        let modes = self.modes(mode, Some(&block))?;
        let by = Elephant {
            sector_key,
            iv: self.eboiv(Some(block))?,
            size: self.options.sector_size,
            lanes: DiffuserLanes::of(self.path),
        };
        Ok(self.treat(modes, by))
    }

    /// Adds the IV generator that the specification names.
    fn with_iv<const W: usize>(
        &self,
        mode: AnyMode<W>,
        block: Option<Block<'_, W>>,
    ) -> Result<Arc<dyn SectorCipher>> {
        if self.plan.has_iv() && self.sealed.is_none() {
            match self.options.spec.iv() {
                "lmk" => {
                    self.only_512()?;
                    let seed = Some(self.keys.extra).filter(|extra| !extra.is_empty());
                    return Ok(self.treat(self.modes(mode, block.as_ref())?, Lmk::new(seed, self.path)?));
                }
                "tcw" => {
                    self.only_512()?;
                    return Ok(
                        self.treat(self.modes(mode, block.as_ref())?, Tcw::new(self.keys.extra, self.path)?)
                    );
                }
                _ => {}
            }
        }
        let iv = self.iv(block)?;
        if let Some(AuthenticatedMode::Authenc { mac, .. }) = self.sealed {
            let mac = mac.make(self.keys.extra, self.path).map_err(|e| {
                refuse(e.kind(), "Error decoding and setting key", self.options.spec, &e).with_source(e)
            })?;
            return self.seal(Box::new(Authenc { mode, mac }), iv);
        }
        match iv {
            Some(iv) => Ok(Arc::new(ChainedSectors { mode, iv, layout: self.layout })),
            None => self.seal(Box::new(StoredIv(mode)), None),
        }
    }

    /// The IV generator that the specification names; `None` for random IVs.
    fn iv<const W: usize>(&self, block: Option<Block<'_, W>>) -> Result<Option<Box<dyn IvGenerator<W>>>> {
        Ok(Some(match self.options.spec.iv() {
            _ if !self.plan.has_iv() => Box::new(NullIv),
            "plain" => Box::new(Plain),
            "plain64" => Box::new(Plain64),
            "plain64be" => Box::new(Plain64Be),
            "null" => Box::new(NullIv),
            "benbi" => Box::new(Benbi { shift: 9 - self.plan.reported_block().trailing_zeros() }),
            "random" => return Ok(None),
            "eboiv" | "elephant" | "lmk" | "tcw" if self.sealed.is_some() => {
                return Err(self.creating("the generator does not go with authenticated modes"));
            }
            "essiv" => {
                let (Some(block), ModePlan::Block { cipher, .. }) = (block, self.plan) else {
                    return Err(self.no_block());
                };
                Box::new(EncryptedIv {
                    iv: Plain64,
                    by: (block.cipher)(self.essiv_key(cipher.keys)?.as_bytes())?,
                })
            }
            "eboiv" => Box::new(self.eboiv(block)?),
            _ => return Err(self.no_block()),
        }))
    }

    /// An authenticated mode in one piece.
    fn whole(&self, mode: &AuthenticatedMode) -> Result<Arc<dyn SectorCipher>> {
        let tag = self.places(mode.iv_width())?.tag;
        match keyed(mode, self.path, self.key, tag)? {
            KeyedAead::Wide(mode) => self.seal(mode, self.iv(None)?),
            KeyedAead::Narrow(mode) => self.seal(mode, self.iv(None)?),
            KeyedAead::Ccm(mode) => self.seal(Box::new(mode), self.iv(None)?),
            KeyedAead::Aegis(mode) => self.seal(Box::new(mode), self.iv(None)?),
        }
    }

    /// Gives a mode the layout of its tuples.
    fn seal<const W: usize>(
        &self,
        mode: AnyAead<W>,
        iv: Option<Box<dyn IvGenerator<W>>>,
    ) -> Result<Arc<dyn SectorCipher>> {
        let (places, layout) = (self.places(W)?, self.layout);
        let iv_offset = self.options.integrity.map_or(0, |integrity| integrity.iv_offset);
        Ok(Arc::new(TupleCipher {
            mode,
            iv,
            layout,
            places,
            iv_offset,
            portable: self.path == CpuPath::Portable,
        }))
    }

    /// The layout of a tuple, with IVs of `iv` bytes.
    fn places(&self, iv: usize) -> Result<TupleLayout> {
        let spec = self.options.spec;
        let bad = |kernel: &str, why: String| refuse(ErrorKind::Unsupported, kernel, spec, why);
        let Some(integrity) = self.options.integrity else {
            return Err(self.creating("random IVs are stored beside the sectors: that is integrity:N:.."));
        };
        let stored = if spec.iv() == "random" { iv } else { 0 };
        let (bytes, tuple) = (integrity.bytes, integrity.tuple);
        if integrity.kind == IntegrityKind::None {
            if stored > tuple {
                let why = format!("an IV of {stored} bytes does not fit into {tuple}");
                return Err(bad("Not enough space for integrity tag in the profile", why));
            }
            return Ok(TupleLayout { tag: 0, tuple });
        }
        match bytes.checked_sub(stored) {
            Some(tag) if self.sealed.is_some_and(|mode| mode.takes_tag(tag)) => {
                Ok(TupleLayout { tag, tuple })
            }
            _ => {
                let why = format!("it takes no tag of {bytes} bytes, {stored} of them the IV's");
                Err(bad("Integrity AEAD auth tag size is not supported", why))
            }
        }
    }

    /// The modes of a treatment: one for each key, where the treatment handles all keys. `first` is
    /// that of the present key.
    fn modes<const W: usize>(
        &self,
        first: AnyMode<W>,
        block: Option<&Block<'_, W>>,
    ) -> Result<Vec<AnyMode<W>>> {
        let mut modes = vec![first];
        if let Some(block) = block.filter(|_| has_treatment(self.options.spec, self.plan)) {
            for key in &self.keys.each[1..] {
                modes.push((block.whole)(key)?);
            }
        }
        Ok(modes)
    }

    fn treat<const W: usize>(
        &self,
        modes: Vec<AnyMode<W>>,
        by: impl Treatment<W> + 'static,
    ) -> Arc<dyn SectorCipher> {
        Arc::new(TreatedSectors { modes, by, layout: self.layout })
    }

    /// The hash of the key, whose length must be a key size.
    fn essiv_key(&self, sizes: &[usize]) -> Result<Key> {
        let spec = self.options.spec;
        let name = spec.iv_option().unwrap_or("");
        let hash = hashes::named(name).ok_or_else(|| self.creating("there is no such hash"))?;
        // With a MAC, the hash includes the MAC's key.
        let of = if self.sealed.is_some() { self.options.key.as_bytes() } else { self.key };
        let salt = hashes::digest(hash, of)?;
        if !sizes.contains(&salt.len()) {
            let why = format!("{name}'s digest of {} bytes is no key of the cipher", salt.len());
            return Err(refuse(ErrorKind::KeySize, "Error decoding and setting key", spec, why));
        }
        Ok(salt)
    }

    /// The generator's key is always the first one, whichever key the sector has.
    fn eboiv<const W: usize>(&self, block: Option<Block<'_, W>>) -> Result<Eboiv<W>> {
        match (block, self.plan) {
            (Some(block), ModePlan::Block { chain, .. }) if *chain != ChainMode::Ctr => {
                Ok(Eboiv { mode: (block.mode)(self.keys.each[0])?, size: self.options.sector_size })
            }
            _ => Err(self.no_block()),
        }
    }

    fn only_512(&self) -> Result<()> {
        if self.options.sector_size.bytes() == 512 {
            return Ok(());
        }
        let why = format!("{} takes sectors of 512 bytes only", self.options.spec.iv());
        Err(refuse(ErrorKind::SectorSize, "Error creating IV", self.options.spec, why))
    }

    fn no_block(&self) -> Error {
        self.creating("the IV is not a block of the cipher, which the generator encrypts")
    }

    fn creating(&self, why: &str) -> Error {
        refuse(ErrorKind::Unsupported, "Error creating IV", self.options.spec, why)
    }
}

/// A mode over blocks of 16 bytes.
fn of16(chain: ChainMode, key: &[u8], make: impl Fn(&[u8]) -> Result<AnyCipher<16>>) -> Result<AnyMode<16>> {
    Ok(match chain {
        ChainMode::Xts => {
            let (data, tweak) = key.split_at(key.len() / 2);
            Box::new(EncryptedTweaks { mode: Xts { data: make(data)? }, by: make(tweak)? })
        }
        ChainMode::Lrw => {
            let (data, tweak) = key.split_at(key.len() - 16);
            Box::new(Lrw::<_, 16>::new(make(data)?, tweak)?)
        }
        _ => chained(chain, make(key)?),
    })
}

/// A mode over blocks of any size.
fn chained<const B: usize>(chain: ChainMode, data: AnyCipher<B>) -> AnyMode<B> {
    match chain {
        ChainMode::Ecb => Box::new(Ecb { data }),
        ChainMode::Pcbc => Box::new(Pcbc { data }),
        ChainMode::Cts => Box::new(Cts { cbc: Cbc { data } }),
        ChainMode::Ctr => Box::new(Ctr { data }),
        ChainMode::Cbc | ChainMode::Xts | ChainMode::Lrw => Box::new(Cbc { data }),
    }
}
