//! A table over its devices.

use std::sync::Arc;

use underseal_datapath::Mapping;
use underseal_device::{DelayDevice, Delayed, Device, StripeDevice, WindowDevice};
use underseal_integrity::IntegrityDevice;
use underseal_verity::{Tree, TreeSettings, VerityDevice, VerityOptions};
use underseal_volume::table::{Base, DelayLine, DevicePlace, Room, Striped, Table, VerityLine};

use super::refused;
use crate::error::{Error, Result};
use crate::integrity::{self, Below};

/// A table over its devices, with the layers in between: integrity layers must be closed at the
/// end.
pub(crate) struct Active {
    pub(crate) mapping: Mapping,
    pub(crate) layers: Vec<Arc<IntegrityDevice>>,
    pub(crate) verities: Vec<Arc<VerityDevice>>,
    pub(crate) delays: Vec<Arc<DelayDevice>>,
}

/// A function that opens the device of a name in a line.
type Devices<'d> = &'d dyn Fn(&str) -> Result<Arc<dyn Device>>;

/// Puts a table over its devices, which `device` opens by their names in the lines.
pub(crate) fn over(table: &Table, device: Devices<'_>, read_only: bool) -> Result<Active> {
    let (mut layers, mut verities, mut delays) = (Vec::new(), Vec::new(), Vec::new());
    let mut bases: Vec<Arc<dyn Device>> = Vec::new();
    for base in table.bases() {
        bases.push(match base {
            Base::Device(name) => device(name)?,
            Base::Integrity(line) => {
                let meta = line.meta_device().map(device).transpose()?;
                let below = Below { data: device(&line.device)?, meta, read_only };
                let layer = integrity::open_line(below, line)?;
                layers.push(layer.clone());
                layer
            }
            Base::Striped(line, sectors) => striped(line, sectors, device)?,
            Base::Delay(line, sectors) => {
                let delay = delay(line, sectors, device)?;
                delays.push(delay.clone());
                delay
            }
            Base::Verity(line) => {
                let verity = verity(line, device)?;
                verities.push(verity.clone());
                verity
            }
        });
    }
    let room = |device: &Arc<dyn Device>| {
        let geometry = device.geometry();
        Room { size: geometry.size, tuple: geometry.tag_size as usize }
    };
    let volume = table.volume_on(&bases.iter().map(room).collect::<Vec<_>>()).map_err(refused)?;
    let mapping = Mapping::over(volume, bases).map_err(|e| Error::usage(e.to_string()))?;
    Ok(Active { mapping, layers, verities, delays })
}

/// A run of a device.
fn window(place: &DevicePlace, sectors: u64, device: Devices<'_>) -> Result<Arc<dyn Device>> {
    let inner = device(&place.device)?;
    let bytes = |sectors: u64| sectors.saturating_mul(512);
    Ok(Arc::new(WindowDevice::new(inner, bytes(place.offset), bytes(sectors))?))
}

fn striped(line: &Striped, sectors: u64, device: Devices<'_>) -> Result<Arc<dyn Device>> {
    let each = sectors / line.stripes.len().max(1) as u64;
    let members = line.stripes.iter().map(|place| window(place, each, device));
    let stripe = StripeDevice::new(members.collect::<Result<_>>()?, line.chunk.saturating_mul(512))?;
    Ok(Arc::new(stripe))
}

fn delay(line: &DelayLine, sectors: u64, device: Devices<'_>) -> Result<Arc<DelayDevice>> {
    let [reads, writes, flushes] = line
        .classes()
        .map(|(place, delay)| Ok(Delayed { device: window(place, sectors, device)?, delay: *delay }));
    let (reads, writes, flushes): (Result<_>, Result<_>, Result<_>) = (reads, writes, flushes);
    Ok(Arc::new(DelayDevice::new(reads?, writes?, flushes?)?))
}

fn verity(line: &VerityLine, device: Devices<'_>) -> Result<Arc<VerityDevice>> {
    let settings = TreeSettings {
        version: line.version,
        data_block: line.data_block,
        hash_block: line.hash_block,
        data_blocks: line.blocks,
        hash_start: line.hash_start,
        algorithm: line.algorithm.clone(),
        root: line.root.clone(),
        salt: line.salt.clone(),
    };
    if let Some(word @ ("restart_on_corruption" | "panic_on_corruption")) = line.on_corruption {
        log::warn!("{word}: a block that differs is not read, and the machine goes on");
    }
    let options = VerityOptions {
        ignore_corruption: line.on_corruption == Some("ignore_corruption"),
        ignore_zero_blocks: line.ignore_zero_blocks,
    };
    let refused = |e: underseal_verity::Error| Error::usage(underseal_error::with_causes(&e).to_string());
    let tree = Tree::new(settings).map_err(refused)?;
    let (data, hashes) = (device(&line.device)?, device(&line.hash_device)?);
    let verity = VerityDevice::open(data, hashes, tree, options);
    Ok(Arc::new(verity.map_err(refused)?))
}
