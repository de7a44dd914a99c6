//! The bases of a table's volume: plain devices, and devices built by single lines from one or more
//! devices.

use super::{DelayLine, IntegrityLine, Line, Striped, Table, Target, VerityLine, is_named};

/// A device below segments of a volume.
#[derive(Debug, Clone, Copy)]
pub enum Base<'t> {
    /// A plain device, by its name in the line.
    Device(&'t str),
    /// The data of dm-integrity's layout.
    Integrity(&'t IntegrityLine),
    /// Ranges of several devices in turn, of this many 512-byte sectors in all.
    Striped(&'t Striped, u64),
    /// A range of this many 512-byte sectors with a delay.
    Delay(&'t DelayLine, u64),
    /// The data under a tree of hashes.
    Verity(&'t VerityLine),
}

impl<'t> Base<'t> {
    /// Returns the devices of the base, by their names in the line; a device may appear twice.
    pub fn devices(&self) -> Vec<&'t str> {
        match *self {
            Self::Device(name) => vec![name],
            Self::Integrity(layer) => {
                [Some(layer.device.as_str()), layer.meta_device()].into_iter().flatten().collect()
            }
            Self::Striped(striped, _) => striped.stripes.iter().map(|place| place.device.as_str()).collect(),
            Self::Delay(delay, _) => delay.classes().map(|(place, _)| place.device.as_str()).into(),
            Self::Verity(verity) => vec![&verity.device, &verity.hash_device],
        }
    }
}

/// The base of a line: a device that other lines may name too, or the line's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineBase<'t> {
    Named(&'t str),
    Line(usize),
}

impl Table {
    /// Returns the bases of the volume without repetition. A base's position is its number in
    /// [`Table::volume`]. For a line on a device of the table itself, the base is that device's own
    /// base.
    pub fn bases(&self) -> Vec<Base<'_>> {
        self.slots().into_iter().map(|slot| self.base(slot)).collect()
    }

    /// Returns all devices that are read or written, by their names in the lines, without
    /// repetition.
    pub fn devices(&self) -> Vec<&str> {
        let mut devices = Vec::new();
        for device in self.bases().iter().flat_map(Base::devices) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
    }

    fn base<'t>(&'t self, slot: LineBase<'t>) -> Base<'t> {
        let of_line = |line: &'t Line| match &line.target {
            Target::Integrity(layer) => Some(Base::Integrity(layer)),
            Target::Striped(striped) => Some(Base::Striped(striped, line.len)),
            Target::Delay(delay) => Some(Base::Delay(delay, line.len)),
            Target::Verity(verity) => Some(Base::Verity(verity)),
            _ => None,
        };
        match slot {
            LineBase::Line(number) => of_line(&self.lines[number]).unwrap_or(Base::Device("")),
            LineBase::Named(name) => {
                let own =
                    |line: &&Line| matches!(&line.target, Target::Integrity(layer) if layer.device == name);
                let top = self.lines.iter().find(own).and_then(of_line);
                let below = || self.below.iter().find(|(of, _)| is_named(name, of));
                top.or_else(|| of_line(&below()?.1)).unwrap_or(Base::Device(name))
            }
        }
    }

    /// Returns a single name for a device: a device of the table itself has two names.
    fn own_name<'t>(&'t self, name: &'t str) -> &'t str {
        self.below.iter().find(|(of, _)| is_named(name, of)).map_or(name, |(of, _)| of)
    }

    /// Returns the base of a line.
    pub(super) fn slot(&self, number: usize) -> Option<LineBase<'_>> {
        let target = &self.lines.get(number)?.target;
        match target.device() {
            Some(name) => Some(LineBase::Named(self.own_name(name))),
            None => (!target.devices().is_empty()).then_some(LineBase::Line(number)),
        }
    }

    /// Returns the bases of all lines, without repetition.
    pub(super) fn slots(&self) -> Vec<LineBase<'_>> {
        let mut slots = Vec::new();
        for slot in (0..self.lines.len()).filter_map(|number| self.slot(number)) {
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        slots
    }

    /// Returns the dm-integrity layer that is the base with this number.
    pub fn layer(&self, number: usize) -> Option<&IntegrityLine> {
        match self.bases().get(number)? {
            Base::Integrity(layer) => Some(layer),
            _ => None,
        }
    }
}
