//! The journal: a ring of sections, each of 8 sectors of entries and the entries' blocks.
//!
//! ```text
//!   | entries 0, 8, 16 .. | entries 1, 9, 17 .. | .. 8 sectors .. | block 0 | block 1 | ..
//!                 MAC, id |             MAC, id |                 | id each sector
//! ```
//!
//! Every sector ends with a commit id, which contains section, sector and round: a section counts
//! when all of its sectors have the same round.

mod crypt;
mod ids;
mod replay;
mod section;

pub use crypt::JournalCrypt;
pub use replay::{ReplayPlan, ReplayResult, SectionContents};

use ids::CommitIds;

use crate::disk::{self, Disk};
use crate::{Flags, KeyedHash, OpenSettings, Result, Superblock, VolumeGeometry};

/// Makes and reads the sections of a volume's journal.
#[derive(Clone, Debug)]
pub struct JournalFormat {
    geometry: VolumeGeometry,
    ids: CommitIds,
    crypt: Option<JournalCrypt>,
    mac: Option<KeyedHash>,
    /// The salt for the MAC.
    salt: Option<[u8; 16]>,
}

impl JournalFormat {
    /// Makes the journal format of this volume.
    ///
    /// # Errors
    /// `Unsupported` for a journal that is too long for its cipher.
    pub fn new(geometry: &VolumeGeometry, superblock: &Superblock, options: &OpenSettings) -> Result<Self> {
        let ids = match &options.journal_crypt {
            Some(crypt) => crypt.commit_ids(geometry.journal_bytes())?,
            None => CommitIds::PLAIN,
        };
        Ok(Self {
            geometry: *geometry,
            ids,
            crypt: options.journal_crypt.clone(),
            mac: options.journal_mac.clone(),
            salt: superblock.flags.has(Flags::FIXED_HMAC).then_some(superblock.salt),
        })
    }

    /// Memory for a section.
    pub fn section(&self) -> Vec<u8> {
        vec![0; self.geometry.section().bytes()]
    }

    /// Reads section `index` and decrypts it.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(&self, disk: &dyn Disk, index: u32, section: &mut [u8]) -> Result<()> {
        disk::read(disk, self.geometry.section_offset(index), section)?;
        self.crypt.as_ref().map_or(Ok(()), |crypt| crypt.decrypt(index, section))
    }

    /// Writes all sections again as they are read, and syncs. After a sync that failed they may be
    /// in memory only, and the disk have older ones. It was to be synced before more of the ring
    /// was written, so the disk lacks the newest sections, or the last one of a clearing: torn on
    /// the way, it is as after a crash there.
    pub(crate) fn secure(&self, disk: &dyn Disk) -> Result<()> {
        let mut section = self.section();
        for index in 0..self.geometry.sections() {
            disk::write_again(disk, self.geometry.section_offset(index), &mut section)?;
        }
        disk::sync(disk)
    }

    /// Puts commit ids of this round and the MAC into section `index`, and encrypts it. What comes
    /// out goes to [`VolumeGeometry::section_offset`], whole.
    ///
    /// # Errors
    /// `Unsupported` for a journal that is too long for its cipher.
    pub fn seal(&self, index: u32, round: JournalRound, section: &mut [u8]) -> Result<()> {
        self.ids.stamp(index, round, section);
        if let Some(mac) = self.mac_of(index, section) {
            self.geometry.section().set_mac(section, &mac);
        }
        self.crypt.as_ref().map_or(Ok(()), |crypt| crypt.encrypt(index, section))
    }

    /// True if [`seal`](Self::seal) leaves the section readable: then it changes no byte of the
    /// section's blocks.
    pub(crate) fn seals_in_place(&self) -> bool {
        self.crypt.is_none()
    }

    /// True if section `index`, decrypted, has the right MAC, or the journal has no MACs.
    pub fn is_authentic(&self, index: u32, section: &[u8]) -> bool {
        self.mac_of(index, section).is_none_or(|mac| self.geometry.section().has_mac_of(section, &mac))
    }

    /// The rounds of the sectors of section `index`, decrypted.
    ///
    /// # Errors
    /// `BadJournal` when a sector has none.
    pub fn seen(&self, index: u32, section: &[u8]) -> Result<SectionContents> {
        let rounds = self.ids.rounds(index, section)?;
        Ok(SectionContents { rounds, is_unused: self.geometry.section().is_unused(section) })
    }

    /// Writes `count` empty sections from `first` on, round the ring; the caller syncs.
    ///
    /// # Errors
    /// `Io`.
    pub fn clear(&self, disk: &dyn Disk, first: u32, count: u32, round: JournalRound) -> Result<()> {
        /// The approximate number of bytes of a write.
        const RUN: usize = 1 << 20;
        let (bytes, sections) = (self.geometry.section().bytes(), self.geometry.sections());
        let mut run: Vec<u8> = Vec::new();
        let mut begins = first;
        for i in 0..count {
            let index = after(first, i, sections);
            if run.len() + bytes > RUN || index < begins {
                disk::write(disk, self.geometry.section_offset(begins), &run)?;
                run.clear();
            }
            if run.is_empty() {
                begins = index;
            }
            let at = run.len();
            run.resize(at + bytes, 0);
            self.geometry.section().clear(&mut run[at..]);
            self.seal(index, round, &mut run[at..])?;
        }
        disk::write(disk, self.geometry.section_offset(begins), &run)
    }

    fn mac_of(&self, index: u32, section: &[u8]) -> Option<[u8; 64]> {
        let mac = self.mac.as_ref()?;
        let shape = self.geometry.section();
        let sectors: Vec<u8> =
            (0..shape.entries()).flat_map(|entry| shape.sector_field(section, entry)).collect();
        let mut made = [0; 64];
        let out = &mut made[..mac.size()];
        match &self.salt {
            Some(salt) => mac.digest(&[salt, &u64::from(index).to_le_bytes(), &sectors], out),
            None => mac.digest(&[&sectors], out),
        }
        Some(made)
    }
}

/// The section that comes `by` sections after `index`, round the ring; both are less than
/// `sections`.
fn after(index: u32, by: u32, sections: u32) -> u32 {
    let left = sections - index;
    if by < left { index + by } else { by - left }
}

/// A round of the ring: one of four numbers, which follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JournalRound(u8);

impl JournalRound {
    /// The round of an unused journal.
    pub const FIRST: Self = Self(0);

    /// The round with this number modulo four.
    pub fn new(index: u8) -> Self {
        Self(index % 4)
    }

    /// The round's number.
    pub fn index(self) -> u8 {
        self.0
    }

    /// The following round.
    #[must_use]
    pub fn next(self) -> Self {
        Self::new(self.0 + 1)
    }

    /// The previous round.
    #[must_use]
    pub fn previous(self) -> Self {
        Self::new(self.0 + 3)
    }
}
