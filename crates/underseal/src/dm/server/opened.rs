//! A table over its devices.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use underseal_datapath::Mapping;
use underseal_device::{Device, FileDevice, OpenOptions, open_again};
use underseal_integrity::IntegrityDevice;
use underseal_volume::table::{Line, Table, Target};

use super::{Obeyed, integrity, refused};
use crate::commands::{Active, over};
use crate::error::{Error, Result};
use crate::policy;

/// A kernel reads and writes in pages, and knows no larger sectors.
const PAGE: u32 = 4096;

/// A table and its devices.
pub(super) struct Opened {
    table: Table,
    /// Devices by the names that the table has for them. The descriptors are those of the back end's claims.
    devices: Vec<(String, File)>,
    read_only: bool,
    active: Option<(Arc<Mapping>, Vec<Arc<IntegrityDevice>>)>,
}

impl Opened {
    pub(super) fn new(text: &str, devices: Vec<String>, fds: Vec<OwnedFd>, read_only: bool) -> Obeyed<Self> {
        let table = Table::parse(text).map_err(|e| refused(Errno::INVAL)(e.into()))?;
        let devices = devices.into_iter().zip(fds.into_iter().map(File::from)).collect();
        Ok(Self { table, devices, read_only, active: None })
    }

    /// Opens the devices.
    pub(super) fn activate(mut self) -> Obeyed<Self> {
        let (mapping, layers) = self.open().map_err(refused(Errno::INVAL))?;
        self.active = Some((Arc::new(mapping), layers));
        Ok(self)
    }

    fn open(&self) -> Result<(Mapping, Vec<Arc<IntegrityDevice>>)> {
        let names = self.table.devices();
        let layers = (0..names.len()).filter_map(|number| Some((number, self.table.layer(number)?)));
        let mut metas = Vec::new();
        for (number, line) in layers {
            let meta = line.meta_device().map(|name| self.file(name)).transpose()?;
            if !self.read_only {
                integrity::format_where_new(line, self.file(names[number])?, meta)?;
            }
            if let Some(name) = line.meta_device() {
                metas.push((number, self.device(name)?));
            }
        }
        let opened = names.iter().map(|name| self.device(name)).collect::<Result<_>>()?;
        let Active { mapping, layers } = over(&self.table, opened, metas, self.read_only)?;
        let mapping = mapping.with_bytes();
        let mapping = if mapping.block() > PAGE { mapping.with_block(PAGE)? } else { mapping };
        mapping.set_policy(policy::start(None, &mapping))?;
        Ok((mapping, layers))
    }

    fn file(&self, name: &str) -> Result<&File> {
        let found = self.devices.iter().find(|(known, _)| known == name);
        let missing = || Error::usage(format!("Device lookup failed: {name}"));
        found.map(|(_, file)| file).ok_or_else(missing)
    }

    /// A device through an open file of its own, beside the claim: write-back errors are told of once for each.
    fn device(&self, name: &str) -> Result<Arc<dyn Device>> {
        let options = OpenOptions { read_only: self.read_only, unlocked: true, ..OpenOptions::default() };
        let file = open_again(self.file(name)?, 0).map_err(|e| Error::io(name.as_ref(), "cannot open", e))?;
        Ok(Arc::new(FileDevice::over(file, name, options)?))
    }

    pub(super) fn mapping(&self) -> Obeyed<&Arc<Mapping>> {
        let late = || (Errno::INVAL, "the table is not open yet".to_owned());
        self.active.as_ref().map(|(mapping, _)| mapping).ok_or_else(late)
    }

    /// The logical block size that it is shown with.
    pub(super) fn block(&self) -> u32 {
        let of_layer = |line: &Line| match &line.target {
            Target::Integrity(layer) => layer.option("block_size").and_then(|size| size.parse().ok()),
            _ => None,
        };
        match &self.active {
            Some((mapping, _)) => mapping.block(),
            None => self.table.lines().iter().filter_map(of_layer).max().unwrap_or(512),
        }
    }

    /// The lines' states, in the kernel's form.
    pub(super) fn status(&self) -> Vec<String> {
        let layers = self.active.as_ref().map_or(&[][..], |(_, layers)| layers);
        // Each integrity line has a layer, in their order.
        let mut layers = layers.iter();
        let state = |line: &Line| match &line.target {
            Target::Integrity(_) => layers.next().map_or_else(String::new, |layer| integrity::status(layer)),
            _ => String::new(),
        };
        self.table.lines().iter().map(state).collect()
    }

    /// Leaves the layers clean.
    pub(super) fn close(&self) -> Result<()> {
        let layers = self.active.as_ref().map_or(&[][..], |(_, layers)| layers);
        crate::integrity::close(layers)
    }

    /// Drops what holds keys beside the mapping.
    pub(super) fn forget_keys(&mut self) {
        // The mapping is there, so nothing is opened by the table any more.
        if self.active.is_some()
            && let Ok(table) = Table::parse(&self.table.print(false))
        {
            self.table = table;
        }
    }
}
