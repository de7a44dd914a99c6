//! `underseal integrity info`.

use clap::Args;
use serde::Serialize;
use underseal_integrity::{
    Bitmap, Disks, Flags, JournalFormat, OpenSettings, Superblock, VolumeGeometry, WriteMode,
};

use super::place::{IntegrityPlaceArgs, Volume};
use super::{EXAMPLES, without_keys};
use crate::error::{Error, Result};
use crate::output::{print, print_json};
use crate::size;

/// Shows what the superblock says, and how the journal was left, without any key
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityInfoArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(args: &IntegrityInfoArgs) -> Result<()> {
    let options = without_keys(WriteMode::Recovery, &args.place)?;
    let volume = Volume::open(&args.place, true)?;
    let info = Info::of(&volume.disks(), &options).map_err(|e| volume.said(e))?;
    let Some(info) = info else {
        let what = format!("{}: there is no integrity superblock, but zeros", args.place.image.display());
        return Err(
            Error::new(crate::exit::Exit::BadHeader, what).with_remedy("`underseal integrity format`")
        );
    };
    if args.json { print_json(&info) } else { print(&info.text()) }
}

#[derive(Serialize)]
struct Info {
    version: u8,
    flags: Vec<&'static str>,
    tag_size: u16,
    block_size: u32,
    /// The size of the volume, in bytes.
    size: u64,
    /// The size of the volume when it was opened last.
    size_when_opened: u64,
    journal_size: u64,
    journal_sections: u32,
    interleave_sectors: Option<u64>,
    sectors_per_bit: Option<u64>,
    /// The end of the recalculated part, in bytes, during a recalculation.
    recalculated: Option<u64>,
    salt: Option<String>,
    journal: JournalState,
}

/// The state of the journal's area.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
enum JournalState {
    /// The volume has no journal.
    None,
    /// The journal is empty.
    Clean,
    /// This number of sections is replayed at the next opening.
    Dirty { sections: usize },
    /// A bitmap, with this number of regions whose checksums may be wrong.
    Bitmap { regions: usize },
    /// The commit ids do not match: the journal is encrypted, or damaged.
    Unreadable,
}

impl Info {
    fn of(disks: &Disks<'_>, options: &OpenSettings) -> underseal_integrity::Result<Option<Self>> {
        let Some(superblock) = Superblock::read(disks.metadata(), options.start, None)? else {
            return Ok(None);
        };
        let geometry = VolumeGeometry::new(&superblock, options, disks.sizes()?)?;
        let has = |flag| superblock.flags.has(flag);
        let size = geometry.provided() * 512;
        let mode = if has(Flags::DIRTY_BITMAP) { WriteMode::Bitmap } else { WriteMode::Journal };
        let salt: String = superblock.salt.iter().map(|byte| format!("{byte:02x}")).collect();
        let log2_bit = u32::from(superblock.log2_bitmap) + u32::from(superblock.log2_block);
        Ok(Some(Self {
            version: superblock.version(mode),
            flags: superblock.flags.names().collect(),
            tag_size: superblock.tag_size,
            block_size: superblock.block_size(),
            size,
            size_when_opened: superblock.provided.saturating_mul(512),
            journal_size: geometry.journal_bytes(),
            journal_sections: geometry.sections(),
            interleave_sectors: geometry.interleave(),
            sectors_per_bit: 1u64.checked_shl(log2_bit),
            recalculated: has(Flags::RECALCULATING)
                .then(|| superblock.recalculated.saturating_mul(512).min(size)),
            salt: has(Flags::FIXED_HMAC).then_some(salt),
            journal: JournalState::of(disks, options, &superblock, &geometry),
        }))
    }

    fn text(&self) -> String {
        let journal = match &self.journal {
            JournalState::None => "none: the device keeps the checksums".into(),
            JournalState::Clean => "clean".into(),
            JournalState::Dirty { sections } => format!("{sections} sections to be replayed"),
            JournalState::Bitmap { regions } => {
                format!("a bitmap, not closed: {regions} regions to be recalculated")
            }
            JournalState::Unreadable => "encrypted, or damaged".into(),
        };
        let mut lines = vec![
            ("Format:", format!("dm-integrity, superblock version {}", self.version)),
            ("Flags:", self.flags.join(" ")),
            ("Size:", format!("{} ({} sectors)", size::show(self.size), self.size / 512)),
            ("Block size:", format!("{} bytes", self.block_size)),
            ("Checksum:", format!("{} bytes", self.tag_size)),
            (
                "Journal:",
                format!("{} in {} sections, {journal}", size::show(self.journal_size), self.journal_sections),
            ),
        ];
        match self.interleave_sectors {
            Some(sectors) => lines.push(("Interleave:", format!("{sectors} sectors"))),
            None => lines.push(("Data:", "on another device".into())),
        }
        lines.extend(self.recalculated.map(|bytes| {
            let word =
                if bytes == self.size { "done".into() } else { format!("up to {}", size::show(bytes)) };
            ("Recalculated:", word)
        }));
        lines.extend(self.salt.as_ref().map(|salt| ("Salt:", salt.clone())));
        lines.iter().map(|(name, value)| format!("{name:<15} {value}\n")).collect()
    }
}

impl JournalState {
    fn of(
        disks: &Disks<'_>,
        options: &OpenSettings,
        superblock: &Superblock,
        geometry: &VolumeGeometry,
    ) -> Self {
        if geometry.sections() == 0 {
            return Self::None;
        }
        let metadata = disks.metadata();
        if superblock.flags.has(Flags::DIRTY_BITMAP) {
            let bitmap = Bitmap::read(metadata, geometry, superblock.log2_bitmap);
            let regions = bitmap.map(|bitmap| {
                let bits = bitmap.bits_of(0..geometry.provided());
                bits.filter(|bit| bitmap.is_set(*bit)).count()
            });
            return regions.map_or(Self::Unreadable, |regions| Self::Bitmap { regions });
        }
        match JournalFormat::new(geometry, superblock, options).and_then(|journal| journal.plan(metadata)) {
            Ok(plan) if plan.is_empty => Self::Clean,
            Ok(plan) => Self::Dirty { sections: plan.order.len() },
            Err(_) => Self::Unreadable,
        }
    }
}
