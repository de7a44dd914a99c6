//! The devices that a volume is opened on.

use std::sync::Arc;

use underseal_device::Device;

use super::IntegrityDevice;
use super::lower::DeviceDisk;
use crate::{Disks, Error, ErrorKind, OpenSettings, Result, VolumeGeometry, WriteMode};

/// Opens the devices of a volume. Unsuitable devices are refused before anything is written.
pub(super) fn below(
    data: &Arc<dyn Device>,
    meta: &Option<Arc<dyn Device>>,
    options: &OpenSettings,
) -> Result<(DeviceDisk, Option<DeviceDisk>)> {
    let disk = DeviceDisk::new(&**data)?;
    let meta_disk = meta.as_deref().map(DeviceDisk::new).transpose()?;
    let disks = Disks { data: &disk, meta: meta_disk.as_ref().map(|disk| disk as _) };
    let looked = crate::look(&disks, options)?;
    IntegrityDevice::fits(&looked.geometry, options.mode, &**data, meta.as_deref())?;
    Ok((disk, meta_disk))
}

impl IntegrityDevice {
    /// Refuses devices that cannot hold the volume.
    ///
    /// # Errors
    /// `Unsupported` or `BadOption`, with the reason.
    pub fn fits(
        volume: &VolumeGeometry,
        mode: WriteMode,
        data: &dyn Device,
        meta: Option<&dyn Device>,
    ) -> Result<()> {
        let (block, start) = (volume.block_size() as u64, volume.start() * 512);
        let below = data.geometry();
        let (least, of_meta) =
            (u64::from(below.block), u64::from(meta.map_or(below.block, |meta| meta.geometry().block)));
        let refuse = |context: String| Err(Error::new(ErrorKind::Unsupported, context));
        if below.zones.is_some() || meta.is_some_and(|meta| meta.geometry().zones.is_some()) {
            return refuse("an integrity volume writes everywhere: a zoned device cannot hold it".into());
        }
        if block % least != 0 || 4096 % of_meta != 0 || start % of_meta != 0 || start % least != 0 {
            return refuse(format!(
                "blocks of {block} bytes from byte {start} on cannot be written to a device with blocks of {least} bytes"
            ));
        }
        if mode == WriteMode::Inline && least != block {
            return refuse(format!("the device keeps tags for blocks of {least} bytes, not of {block}"));
        }
        let (tuple, tag_size) = (below.tag_size as usize, volume.tag_size());
        if mode == WriteMode::Inline && tuple < tag_size {
            let context = format!(
                "mode I wants a device that keeps {tag_size} bytes with each block; this one keeps {tuple}"
            );
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        Ok(())
    }
}
