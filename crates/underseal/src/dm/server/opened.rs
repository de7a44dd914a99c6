//! A table over its devices.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use rustix::io::Errno;
use underseal_datapath::Mapping;
use underseal_device::{DelayDevice, Device, FileDevice, OpenOptions, open_again};
use underseal_dm::DeviceNumber;
use underseal_integrity::{ErrorKind as IntegrityError, IntegrityDevice};
use underseal_verity::VerityDevice;
use underseal_volume::table::{Base, Line, Table, Target};

use super::{Obeyed, integrity, refused};
use crate::commands::{Active, over};
use crate::dm::layers::makes_no_tags;
use crate::dm::orders::LayerWords;
use crate::error::{Error, Result};
use crate::policy;

/// The kernel reads and writes pages, and supports no larger sectors.
const PAGE: u32 = 4096;

/// A table and its devices.
pub(super) struct Opened {
    table: Table,
    /// The devices by their names in the table. The descriptors are those of the back end's claims.
    devices: Vec<(String, File)>,
    read_only: bool,
    active: Option<Running>,
}

/// An open table.
struct Running {
    mapping: Arc<Mapping>,
    layers: Vec<Arc<IntegrityDevice>>,
    verities: Vec<Arc<VerityDevice>>,
    delays: Vec<Arc<DelayDevice>>,
    /// The sectors of each line that keeps tags which the line above makes.
    kept: Vec<u64>,
}

impl Opened {
    pub(super) fn new(text: &str, devices: Vec<String>, fds: Vec<OwnedFd>, read_only: bool) -> Obeyed<Self> {
        let table = Table::parse(text).map_err(|e| refused(Errno::INVAL)(e.into()))?;
        let devices = devices.into_iter().zip(fds.into_iter().map(File::from)).collect();
        Ok(Self { table, devices, read_only, active: None })
    }

    /// Opens the devices.
    pub(super) fn activate(mut self) -> Obeyed<Self> {
        let kept = self.prepare().map_err(refused(Errno::INVAL))?;
        // The integrity layer is opened with the volume whose tags it keeps.
        let is_kept = !kept.is_empty();
        let opened = self.open(is_kept).or_else(|e| match e.of_integrity() {
            // The kernel behaves in the same way: it reads the journal once the device exists.
            Some(IntegrityError::BadJournal) => {
                log::error!("{}: every request fails", e.what());
                self.open(true)
            }
            _ => Err(e),
        });
        let Active { mapping, layers, verities, delays } = opened.map_err(refused(Errno::INVAL))?;
        self.active = Some(Running { mapping: Arc::new(mapping), layers, verities, delays, kept });
        self.delay(false);
        Ok(self)
    }

    /// Returns true when closing has ended a layer that the mapping needs.
    pub(super) fn is_closed_for_good(&self) -> bool {
        self.active.as_ref().is_some_and(|active| !active.layers.is_empty())
    }

    /// Returns the table before its devices were opened.
    pub(super) fn inactive(self) -> Self {
        Self { active: None, ..self }
    }

    /// Formats new layers. Returns the sectors of each line that keeps tags which the line above
    /// makes.
    fn prepare(&self) -> Result<Vec<u64>> {
        let mut kept = Vec::new();
        for base in self.table.bases() {
            let Base::Integrity(line) = base else { continue };
            let meta = line.meta_device().map(|name| self.file(name)).transpose()?;
            if !self.read_only {
                integrity::format_where_new(line, self.file(&line.device)?, meta)?;
            }
        }
        for line in self.table.lines() {
            let Target::Integrity(line) = &line.target else { continue };
            if makes_no_tags(line) {
                let meta = line.meta_device().map(|name| self.file(name)).transpose()?;
                kept.push(integrity::provided(line, self.file(&line.device)?, meta)?);
            }
        }
        Ok(kept)
    }

    /// Opens the table over its devices. With `is_none`, this server serves no request.
    fn open(&self, is_none: bool) -> Result<Active> {
        let nothing = format!("0 {} error", self.table.sectors());
        let nothing = if is_none { Some(Table::parse(&nothing)?) } else { None };
        let table = nothing.as_ref().unwrap_or(&self.table);
        let active = over(table, &|name| self.device(name), self.read_only)?;
        let mapping = active.mapping.with_bytes();
        let mapping = if mapping.block() > PAGE { mapping.with_block(PAGE)? } else { mapping };
        mapping.set_policy(policy::start(None, &mapping))?;
        Ok(Active { mapping, ..active })
    }

    fn file(&self, name: &str) -> Result<&File> {
        let found = self.devices.iter().find(|(known, _)| known == name);
        let missing = || Error::usage(format!("Device lookup failed: {name}"));
        found.map(|(_, file)| file).ok_or_else(missing)
    }

    /// Returns the table's devices.
    pub(super) fn devices(&self) -> Vec<&File> {
        self.devices.iter().map(|(_, file)| file).collect()
    }

    /// Returns the number of a device.
    fn number(&self, name: &str) -> String {
        let of = self.file(name).ok().and_then(|file| file.metadata().ok());
        of.map_or_else(|| name.into(), |of| DeviceNumber::of_node(of.rdev()).to_string())
    }

    /// Opens a device through a separate open file, beside the claim: the kernel reports write-back
    /// errors once for each open file.
    ///
    /// As in the kernel, whose device mapper has no page cache below it, a write that fails on the
    /// device fails at once. Layers write parts of sectors, so their writes go through the cache.
    fn device(&self, name: &str) -> Result<Arc<dyn Device>> {
        let file = self.file(name)?;
        let is_block = file.metadata().is_ok_and(|of| of.file_type().is_block_device());
        let direct = is_block && !self.is_in_layer(name);
        let options = OpenOptions { read_only: self.read_only, direct, unlocked: true };
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let file = open_again(file, flags).map_err(|e| Error::io(name.as_ref(), "cannot open", e))?;
        Ok(Arc::new(FileDevice::over(file, name, options)?))
    }

    /// Returns true when a device has tags, a journal or hashes.
    fn is_in_layer(&self, name: &str) -> bool {
        self.table.bases().into_iter().any(|base| match base {
            Base::Integrity(line) => line.device == name || line.meta_device() == Some(name),
            Base::Verity(line) => line.device == name || line.hash_device == name,
            _ => false,
        })
    }

    pub(super) fn mapping(&self) -> Obeyed<&Arc<Mapping>> {
        let late = || (Errno::INVAL, "the table is not open yet".to_owned());
        self.active.as_ref().map(|active| &active.mapping).ok_or_else(late)
    }

    /// Returns the logical block size that the device is shown with.
    pub(super) fn block(&self) -> u32 {
        let of_layer = |line: &Line| match &line.target {
            Target::Integrity(layer) => layer.option("block_size").and_then(|size| size.parse().ok()),
            Target::Crypt(crypt) => u32::try_from(crypt.options.sector_size.bytes()).ok(),
            _ => None,
        };
        match &self.active {
            Some(active) => active.mapping.block(),
            None => self.table.lines().iter().filter_map(of_layer).max().unwrap_or(512),
        }
    }

    /// Returns what the kernel prints of the layer of each line, where a line has one that can be
    /// read.
    pub(super) fn layers(&self) -> Vec<Option<LayerWords>> {
        let words = |line: &Line| {
            let Target::Integrity(layer) = &line.target else { return None };
            let meta = layer.meta_device().map(|name| self.file(name)).transpose();
            let words = meta.and_then(|meta| integrity::words(layer, self.file(&layer.device)?, meta));
            words.inspect_err(|e| log::warn!("{}: its table is printed as loaded", e.what())).ok()
        };
        self.table.lines().iter().map(words).collect()
    }

    /// Returns the lines' states, in the kernel's form.
    pub(super) fn status(&self) -> Vec<String> {
        let active = self.active.as_ref();
        // Each line of these targets has its own layer, in their order.
        let mut layers = active.map_or(&[][..], |active| &active.layers).iter();
        let mut kept = active.map_or(&[][..], |active| &active.kept).iter();
        let mut verities = active.map_or(&[][..], |active| &active.verities).iter();
        let state = |line: &Line| match &line.target {
            Target::Integrity(layer) if makes_no_tags(layer) => {
                kept.next().map_or_else(String::new, |sectors| format!("0 {sectors} -"))
            }
            Target::Integrity(of) => {
                let none = || format!("0 {} -", line.len);
                layers.next().map_or_else(none, |layer| integrity::status(of, layer))
            }
            Target::Verity(_) => {
                let is_corrupted = verities.next().is_some_and(|verity| verity.is_corrupted());
                if is_corrupted { "C".into() } else { "V".into() }
            }
            Target::Striped(striped) => {
                let numbers: String =
                    striped.stripes.iter().map(|place| self.number(&place.device) + " ").collect();
                format!("{} {numbers}1 {}", striped.stripes.len(), "A".repeat(striped.stripes.len()))
            }
            // Requests that wait are not counted.
            Target::Delay(_) => "0 0 0".into(),
            _ => String::new(),
        };
        self.table.lines().iter().map(state).collect()
    }

    /// Has delay lines delay requests, or send them at once, those that wait too. As in the kernel,
    /// they delay while the device is up: not before it has been resumed, nor from the moment at
    /// which it begins to be suspended or removed.
    pub(super) fn delay(&self, is_up: bool) {
        self.active.iter().flat_map(|active| &active.delays).for_each(|device| device.delay(is_up));
    }

    /// Closes the layers cleanly.
    pub(super) fn close(&self) -> Result<()> {
        let layers = self.active.as_ref().map_or(&[][..], |active| &active.layers);
        crate::integrity::close(layers)
    }

    /// Drops keys outside the mapping.
    pub(super) fn forget_keys(&mut self) {
        // The mapping exists, so the table is not used to open anything any more.
        if self.active.is_some()
            && let Ok(table) = Table::parse(&self.table.print(false))
        {
            self.table = table;
        }
    }
}
