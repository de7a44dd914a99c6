//! The integrity layer below an authenticated volume, read as its journal's replay would leave it.

use underseal_integrity::{Disk, Disks, OpenSettings, OpenedVolume, Overlay, WriteMode};
use underseal_volume::IntegrityLayer;

use crate::lower::Lower;
use crate::{Error, ErrorKind, Result};

/// The layer's blocks with their tags. Nothing is written to the lower device.
pub(crate) struct Layer {
    disk: Overlay<Lower>,
    opened: OpenedVolume,
}

impl Layer {
    pub(crate) fn open(lower: Lower, layer: &IntegrityLayer) -> Result<Self> {
        let bad = |field: &str| {
            Error::new(ErrorKind::BadHeader, format!("the {field} of the integrity layer is out of range"))
        };
        let mode = if layer.has_journal { WriteMode::Journal } else { WriteMode::Direct };
        let mut options = OpenSettings {
            start: layer.offset / 512,
            tag_size: Some(u16::try_from(layer.tag_size).map_err(|_| bad("tag size"))?),
            block_size: Some(u32::try_from(layer.sector_size.bytes()).map_err(|_| bad("block size"))?),
            ..OpenSettings::new(mode)
        };
        let disk = Overlay::new(lower);
        let disks = Disks::one(&disk);
        underseal_integrity::look(&disks, &options)?.keep_bitmap(&mut options);
        let opened = underseal_integrity::open(&disks, &options)?;
        Ok(Self { disk, opened })
    }

    /// The bytes of data that the layer provides.
    pub(crate) fn size(&self) -> u64 {
        self.opened.geometry.provided().saturating_mul(512)
    }

    /// Reads whole blocks from byte `offset` of the layer on, and the tags that lie beside them.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Result<()> {
        let geometry = &self.opened.geometry;
        let (mut sector, mut data, mut tags) = (offset / 512, data, tags);
        while !data.is_empty() {
            let place = geometry.place(sector);
            let run =
                usize::try_from(place.sectors.saturating_mul(512)).unwrap_or(usize::MAX).min(data.len());
            let of_run = (run / geometry.block_size() * geometry.tag_size()).min(tags.len());
            let (now, later) = data.split_at_mut(run);
            let (tags_now, tags_later) = tags.split_at_mut(of_run);
            let failed = |e| Error::new(ErrorKind::Io, format!("cannot read sector {sector}")).with_source(e);
            self.disk.read_at(place.data, now).map_err(failed)?;
            self.disk.read_at(place.tag, tags_now).map_err(failed)?;
            sector += run as u64 / 512;
            (data, tags) = (later, tags_later);
        }
        Ok(())
    }
}
