//! Guest memory that a front end shares, with its addresses in the guest and in the front end.

#![expect(unsafe_code, reason = "a guest's memory")]

use std::fs::File;
use std::sync::Arc;

use underseal_datapath::{SharedBytes, SharedOwner};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, GuestRegionMmap, Permissions};

use super::broken;
use super::carried::CarriedRegion;
use super::chain::Segment;
use super::request::Status;
use super::shared::{self, Watch};

/// The most regions that a front end may share. QEMU has a few, and one more for each hotplugged
/// memory module.
pub(super) const REGIONS: u64 = 256;

/// Guest memory for the request path.
pub type GuestRam = GuestMemoryMmap<()>;

/// Regions that a front end has shared. A change makes a new value; the old regions are unmapped
/// when the last ring has dropped them.
#[derive(Default)]
pub(super) struct Memory {
    ram: GuestRam,
    regions: Vec<Region>,
}

/// The addresses of a region in the front end and in the guest.
#[derive(Clone)]
struct Region {
    front: u64,
    guest: u64,
    len: u64,
    /// The watch is dropped before the mapping that it watches.
    watch: Arc<Watch>,
    mapped: Arc<GuestRegionMmap<()>>,
}

impl Memory {
    pub(super) fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Returns true when part of the memory was removed while it was in use.
    pub(super) fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.watch.is_lost())
    }

    /// Maps these regions. Fails when a region cannot be mapped, extends past its file's end, or
    /// overlaps another.
    pub(super) fn of(
        regions: impl IntoIterator<Item = (VhostUserMemoryRegion, File)>,
    ) -> vhost::vhost_user::Result<Self> {
        let regions = regions.into_iter().map(|(region, file)| Region::map(&region, file));
        Self::new(regions.collect::<vhost::vhost_user::Result<_>>()?)
    }

    /// Adds a region. Fails as [`Memory::of`], and when the number of regions exceeds the limit.
    pub(super) fn with(&self, region: &VhostUserMemoryRegion, file: File) -> vhost::vhost_user::Result<Self> {
        if self.regions.len() as u64 >= REGIONS {
            return Err(broken(format!("more than {REGIONS} regions of guest memory")));
        }
        let mut regions = self.regions.clone();
        regions.push(Region::map(region, file)?);
        Self::new(regions)
    }

    /// Removes a region. Fails when no region matches.
    pub(super) fn without(&self, region: &VhostUserMemoryRegion) -> vhost::vhost_user::Result<Self> {
        let (front, guest, len) = (region.user_addr, region.guest_phys_addr, region.memory_size);
        let mut regions = self.regions.clone();
        let at = regions.iter().position(|r| (r.front, r.guest, r.len) == (front, guest, len));
        regions.remove(at.ok_or_else(|| broken(format!("no guest memory at {guest:#x} to take away")))?);
        Self::new(regions)
    }

    /// Returns the regions and their files, for the new server of a handover; `None` for a region
    /// without a file.
    pub(super) fn carried(&self) -> impl Iterator<Item = Option<(CarriedRegion, &File)>> {
        self.regions.iter().map(|region| {
            let of = region.mapped.file_offset()?;
            let Region { front, guest, len, .. } = *region;
            Some((CarriedRegion { front, guest, len, offset: of.start() }, of.file()))
        })
    }

    fn new(mut regions: Vec<Region>) -> vhost::vhost_user::Result<Self> {
        if regions.is_empty() {
            return Ok(Self::default());
        }
        regions.sort_by_key(|region| region.guest);
        let ram = GuestRam::from_arc_regions(regions.iter().map(|r| r.mapped.clone()).collect())
            .map_err(|e| broken(format!("regions of guest memory: {e}")))?;
        Ok(Self { ram, regions })
    }

    /// Returns the guest address of `len` bytes at address `front` of the front end.
    pub(super) fn guest_address(&self, front: u64, len: usize) -> Option<GuestAddress> {
        let region = self.regions.iter().find(|r| front.checked_sub(r.front).is_some_and(|at| at < r.len))?;
        let address = GuestAddress(region.guest.checked_add(front - region.front)?);
        self.ram.check_range(address, len, Permissions::ReadWrite).then_some(address)
    }
}

impl CarriedRegion {
    /// Returns the region in the front end's form.
    pub(super) fn as_said(&self) -> VhostUserMemoryRegion {
        VhostUserMemoryRegion::new(self.guest, self.len, self.front, self.offset)
    }
}

impl Region {
    fn map(region: &VhostUserMemoryRegion, file: File) -> vhost::vhost_user::Result<Self> {
        let (front, guest, len) = (region.user_addr, region.guest_phys_addr, region.memory_size);
        let what = format!("guest memory at {guest:#x}");
        let bytes = usize::try_from(len).map_err(|_| broken(format!("{what} is too long")))?;
        let (watch, mapped) = shared::map(file, region.mmap_offset, bytes, &what)?;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(guest));
        let mapped = Arc::new(mapped.ok_or_else(|| broken(format!("{what} is too long")))?);
        Ok(Self { front, guest, len, watch: Arc::new(watch), mapped })
    }
}

/// A ring's reference to guest memory, for its requests: its reference count is on a cache line of
/// that ring.
pub(super) struct HeldMemory(pub(super) Arc<Memory>);

impl SharedOwner for HeldMemory {
    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }
}

/// Adds the first `len` bytes of a request's data to the list `bytes`, which keeps `held`. Fails
/// with `IoError` when the data are shorter, or not in guest memory.
pub(super) fn share(
    held: &HeldMemory,
    data: &[Segment],
    len: u32,
    bytes: &mut SharedBytes,
) -> Result<(), Status> {
    let mut left = len;
    for segment in data {
        let count = segment.len.min(left);
        let ram = held.0.ram();
        let slices = ram.get_slices(segment.at, count as usize, Permissions::ReadWrite);
        for slice in slices.map_err(|_| Status::IoError)? {
            let slice = slice.map_err(|_| Status::IoError)?;
            // SAFETY: the memory is mapped for as long as `held`, which the list keeps, and no
            // reference points to guest memory.
            unsafe { bytes.push(slice.ptr_guard_mut().as_ptr(), slice.len()) };
        }
        left -= count;
    }
    if left == 0 { Ok(()) } else { Err(Status::IoError) }
}

/// Copies as many of `bytes` into guest memory as its segments can hold.
///
/// # Errors
/// `IoError` when a segment is not in guest memory.
pub fn scatter(ram: &GuestRam, into: &[Segment], bytes: &[u8]) -> Result<(), Status> {
    let mut rest = bytes;
    for segment in into.iter().filter(|segment| segment.writable) {
        let (now, later) = rest.split_at(rest.len().min(segment.len as usize));
        ram.write_slice(now, segment.at).map_err(|_| Status::IoError)?;
        rest = later;
    }
    Ok(())
}
