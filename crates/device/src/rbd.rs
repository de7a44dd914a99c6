//! An image of a Ceph cluster as a lower device, through Ceph's library.
//!
//! ```text
//!   queue -- RbdChannel --- start ---> librbd's threads ---> the cluster
//!                  ^                        |
//!                  +--- Mailbox, Wakeup ----+        one image, one connection, for all queues
//!
//!   address   rbd:POOL/IMAGE...             library     librados and librbd: all unsafe code
//!   holder    the process that has a lock   snapshots   requests pause while a snapshot is made
//!   lock      how it is taken               ownership   whether it is still this client's
//! ```
//!
//! # Completions
//! librbd's cache is off: it would acknowledge writes that no machine of the cluster has yet, and
//! copy them. So a completed write is on every replica, durable or not, and a flush waits for
//! writes in flight.
//!
//! # Memory
//! A request belongs to librbd until it completes; requests cannot be cancelled, so librbd keeps
//! the memory even when the queue is closed. librbd copies written bytes once: it can do without,
//! but then a write that fails before it is sent never completes, and a client that was shut out
//! would wait for ever.
//!
//! # One writer
//! A writer takes the image's exclusive lock, and does not hand it over while the image is open, as
//! librbd would by itself. A second writer is refused, with the first one's name in the error; a
//! client that answers is not asked for the lock, since other programs hand it over in the middle
//! of their writing. The lock of a dead owner is free after half a minute. The cluster shuts out a
//! client that it takes for dead, for 30 days: from then on every request of that client fails, and
//! none is tried again, since another client may be writing by now.
//!
//! Where the owner was a process of this machine that was killed, as a file of its user proves
//! (`holder`), it is shut out and its lock is taken at once.
//!
//! # Waiting
//! Requests wait without limit for a cluster that is away or full, as for a local disk;
//! `rados_osd_op_timeout` in the address sets a limit.

mod address;
mod channel;
mod holder;
mod library;
mod lock;
mod ownership;
mod quiet;
mod shared_image;
mod snapshots;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock};

use rustix::io::Errno;

use self::channel::RbdChannel;
use self::holder::LockHolderFile;
use self::library::{Cluster, Image};
use self::lock::lock;
use self::ownership::LockOwnership;
use crate::losses::{FlushLosses, Sticky};
use crate::{Channel, Device, Error, ErrorKind, Extent, Geometry, LossHandler, Result, SharedImage};

pub use address::RbdAddress;

/// The unit of reads and writes.
const BLOCK: u32 = 512;
/// The unit of reads and writes of the cluster's disks.
const PREFERRED: u32 = 4096;
/// Features of an image: a lock for one writer, and a map of stored objects.
const EXCLUSIVE_LOCK: u64 = 1 << 2;
const FAST_DIFF: u64 = 1 << 4;
/// Flags of an image whose maps are invalid.
const MAPS_INVALID: u64 = 0b11;
/// The option for a cache of writes on this machine: none, in memory, on an SSD.
const PERSISTENT_CACHE: &std::ffi::CStr = c"rbd_persistent_cache_mode";
/// The length of a query for stored objects.
const WINDOW: u64 = 1 << 30;

/// An image of a Ceph cluster, or a snapshot of one.
pub struct RbdDevice {
    shared: Arc<Shared>,
}

/// The state that all queues share.
struct Shared {
    /// `None` after [`Device::let_go`].
    image: RwLock<Option<Image>>,
    /// The file that names this process as the lock's owner.
    holder: Mutex<Option<LockHolderFile>>,
    /// `None` for an image that is only read, or has no lock.
    ownership: Option<LockOwnership>,
    name: String,
    /// The geometry, with the size at the opening.
    geometry: Geometry,
    size: AtomicU64,
    /// The change of the image's header to which the size belongs; and the mutex of the query for
    /// it.
    as_of: AtomicU64,
    asking: Mutex<()>,
    /// The image can report quickly what is stored.
    tells: bool,
    shut_out: AtomicBool,
    when_lost: OnceLock<LossHandler>,
    told: Once,
    losses: Arc<FlushLosses>,
}

impl RbdDevice {
    /// Connects to the cluster and opens the image, exclusively unless it is only read. The folder
    /// `holders`, which only the user can write, gets a file that names this process, so that the
    /// next process need not wait if this one is killed.
    ///
    /// # Errors
    /// `Open` when Ceph's library, the cluster, the pool or the image is missing; `Locked` when
    /// another client writes to the image.
    pub fn open(address: &RbdAddress, read_only: bool, holders: Option<&Path>) -> Result<Self> {
        let name = address.to_string();
        if address.is_snapshot() && !read_only {
            let what = format!(
                "{name}: a snapshot never changes; open it with --read-only, or write to a clone of it"
            );
            return Err(Error::new(ErrorKind::Open, what));
        }
        let mut image = connected(address)?
            .pool(&address.pool, address.namespace.as_deref())
            .map_err(|e| refused(&name, "pool", &address.pool, e))?
            .image(&address.image, address.snapshot.as_deref(), read_only)
            .map_err(|e| refused(&name, "image", &address.image, e))?;
        let failed = |what: &'static str| {
            let name = &name;
            move |e: Errno| Error::new(ErrorKind::Open, format!("{name}: {what}")).with_source(e)
        };
        let features = image.features().map_err(failed("its features cannot be read"))?;
        let (mut holder, mut ownership) = (None, None);
        if !read_only {
            only_as_asked(&image, address)?;
            if features & EXCLUSIVE_LOCK == 0 {
                log::warn!("{name}: the image has no exclusive lock: nothing keeps a second writer away");
            } else {
                holder = lock(&image, &name, holders)?;
                let unknown = failed("the owner of its lock cannot be read");
                ownership = Some(LockOwnership::new(&image).map_err(unknown)?);
            }
        }
        if !address.is_snapshot() {
            image.watch().map_err(failed("it cannot be watched for changes of its size"))?;
        }
        let size = image.size().map_err(failed("its size cannot be read"))?;
        let maps_are_right = || image.flags().is_ok_and(|flags| flags & MAPS_INVALID == 0);
        let tells = features & FAST_DIFF != 0 && maps_are_right();
        let geometry = Geometry {
            size: 0,
            block: BLOCK,
            preferred_block: PREFERRED,
            memory_alignment: 1,
            read_only,
            discard: !read_only,
            zones: None,
            tag_size: 0,
        };
        let shared = Shared {
            image: RwLock::new(Some(image)),
            holder: Mutex::new(holder),
            ownership,
            losses: Arc::new(FlushLosses::new(&name)),
            name,
            geometry,
            size: AtomicU64::new(size),
            as_of: AtomicU64::new(0),
            asking: Mutex::new(()),
            tells,
            shut_out: AtomicBool::new(false),
            when_lost: OnceLock::new(),
            told: Once::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

/// Connects to the cluster of an address.
fn connected(address: &RbdAddress) -> Result<Cluster> {
    let failed =
        |what: String, e: Errno| Error::new(ErrorKind::Open, format!("{address}: {what}")).with_source(e);
    // Programs that start with the library read these arguments too.
    let arguments = std::env::var_os("CEPH_ARGS").unwrap_or_default();
    if let Some(option) = without_value(&arguments.to_string_lossy()) {
        let what = format!(
            "{address}: CEPH_ARGS ends with {option}, which has no value: write {option}=VALUE, also where that is `true`"
        );
        return Err(Error::new(ErrorKind::Open, what));
    }
    let cluster = Cluster::new(address.id.as_deref())?;
    match cluster.read_file(address.conf.as_deref()) {
        // An address may be enough without a configuration file.
        Err(e) if address.conf.is_some() => {
            return Err(failed("the cluster's configuration cannot be read".into(), e));
        }
        _ => {}
    }
    cluster.read_environment().map_err(|e| failed("CEPH_ARGS cannot be read".into(), e))?;
    for (option, value) in &address.settings {
        let wrong = |e| failed(format!("{} cannot be that", option.to_string_lossy()), e);
        cluster.set(option, value).map_err(wrong)?;
    }
    // Five minutes are the library's default.
    let patience = cluster.get(c"client_mount_timeout").and_then(|seconds| seconds.parse::<f64>().ok());
    if !address.sets(c"client_mount_timeout") && patience == Some(300.0) {
        let _ = cluster.set(c"client_mount_timeout", c"30");
    }
    for (option, value) in [(c"rbd_cache", c"false"), (c"rbd_non_blocking_aio", c"true")] {
        cluster
            .set(option, value)
            .map_err(|e| failed("the library's cache cannot be turned off".into(), e))?;
    }
    // Ceph before 16 has no cache of this kind.
    let _ = cluster.set(PERSISTENT_CACHE, c"disabled");
    // A client whose lock is broken must not write any more.
    cluster
        .set(c"rbd_blocklist_on_break_lock", c"true")
        .map_err(|e| failed("the library cannot be told to shut out whose lock is broken".into(), e))?;
    // A write that is not copied, and fails before it is sent, never completes (Ceph 16.2.15): all
    // writes of a client that was shut out.
    let _ = cluster.set(c"rbd_disable_zero_copy_writes", c"true");
    cluster.connect().map_err(|e| {
        let what = match e {
            Errno::ACCESS | Errno::PERM => {
                "the cluster refuses this user: check its name and keyring (id=, keyring=)"
            }
            Errno::TIMEDOUT => "no monitor of the cluster answers",
            Errno::NOENT => {
                "the cluster is unknown: pass its configuration and keyring (conf=, id=, keyring=)"
            }
            _ => "cannot connect to the cluster",
        };
        failed(what.into(), e)
    })?;
    Ok(cluster)
}

/// The last word of arguments in the form of `CEPH_ARGS`, if it is an option that may need a value:
/// librados ends the process where the value is missing.
fn without_value(arguments: &str) -> Option<&str> {
    let words: Vec<_> = arguments.split_ascii_whitespace().collect();
    let last = *words.last()?;
    let is_flag = ["--no-", "--no_"].iter().any(|no| last.starts_with(no));
    let is_option =
        last.len() > 1 && last.starts_with('-') && !last.contains('=') && last.parse::<f64>().is_err();
    (is_option && !is_flag && !words.contains(&"--")).then_some(last)
}

/// The error of a missing or forbidden pool, image or snapshot.
fn refused(name: &str, kind: &str, what: &std::ffi::CStr, e: Errno) -> Error {
    let what = what.to_string_lossy();
    let context = match e {
        Errno::NOENT if kind == "image" => {
            format!("{name}: there is no image {what}, or no such snapshot of it")
        }
        Errno::NOENT => format!("{name}: there is no pool {what}"),
        Errno::PERM | Errno::ACCESS => {
            format!("{name}: this user may not open the {kind} {what} (`profile rbd` lets it)")
        }
        _ => format!("{name}: the {kind} {what} cannot be opened"),
    };
    Error::new(ErrorKind::Open, context).with_source(e)
}

/// Refuses options of the image or its pool that turn on a cache which acknowledges writes too
/// early, or writes that never complete.
fn only_as_asked(image: &Image, address: &RbdAddress) -> Result<()> {
    let refused = |what: String| Error::new(ErrorKind::Open, format!("{address}: {what}"));
    // Without such options the image and its pool cannot have changed them.
    let names = [c"rbd_cache", PERSISTENT_CACHE, c"rbd_disable_zero_copy_writes"];
    let [cache, persistent, lends] = image.settings(names).map_err(|e| {
        refused("what is set for this image and its pool cannot be read".into()).with_source(e)
    })?;
    let undone = |option| {
        format!(
            "the image or its pool sets {option}: `rbd config image remove IMAGE {option}`, or `rbd config pool remove POOL {option}`"
        )
    };
    if cache.is_some_and(|value| !matches!(&*value, "false" | "0" | "no")) {
        let what = "librbd's cache is turned on, and acknowledges writes before they are stored";
        return Err(refused(format!("{what}: {}", undone("rbd_cache"))));
    }
    if persistent.is_some_and(|value| value != "disabled") {
        let what =
            "librbd's persistent cache is turned on, and acknowledges writes that only this machine has";
        return Err(refused(format!("{what}: {}", undone("rbd_persistent_cache_mode"))));
    }
    if lends.is_some_and(|value| !matches!(&*value, "true" | "1" | "yes")) {
        let what = "writes that are not copied never end when they fail before they are sent";
        return Err(refused(format!("{what}: {}", undone("rbd_disable_zero_copy_writes"))));
    }
    Ok(())
}

impl Shared {
    /// Notes that the cluster has shut this client out: later requests fail at once.
    fn is_shut_out(&self) {
        if self.shut_out.swap(true, SeqCst) {
            return;
        }
        log::error!(
            "{}: the cluster has shut this client out, because it did not answer for too long and another client took the image, or \
             by an administrator (`ceph osd blocklist ls`): all reads and writes fail now; find out which client uses the image before you open it again",
            self.name
        );
        self.losses.fail(Errno::SHUTDOWN);
        self.tell();
    }

    /// Calls the handler for the device's loss, if one is set.
    fn tell(&self) {
        if let Some(act) = self.when_lost.get() {
            self.told.call_once(|| act());
        }
    }

    fn was_shut_out(&self) -> bool {
        self.shut_out.load(SeqCst)
    }

    /// The size after the last change that this client knows of.
    fn size(&self) -> u64 {
        let changes = || self.with_image(|image| Ok(image.changes())).unwrap_or(0);
        if changes() != self.as_of.load(SeqCst) {
            let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            let heard = changes();
            if heard != self.as_of.load(SeqCst)
                && let Ok(size) = self.with_image(Image::size)
            {
                self.is_of(size);
                self.as_of.store(heard, SeqCst);
            }
        }
        self.size.load(SeqCst)
    }

    /// Sets the size, and logs a smaller one.
    fn is_of(&self, size: u64) {
        let before = self.size.swap(size, SeqCst);
        if size < before {
            log::error!(
                "{}: the image was shrunk from {before} to {size} bytes while it is open: bytes beyond are lost, and are neither \
                 read nor written any more",
                self.name
            );
        }
    }

    fn hear_no_snapshots(&self) {
        if let Some(image) = &mut *self.image.write().unwrap_or_else(PoisonError::into_inner) {
            image.watch_no_snapshots();
        }
    }

    /// Calls `act` with the image, while it is open.
    fn with_image<T>(
        &self,
        act: impl FnOnce(&Image) -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        act(self.image.read().unwrap_or_else(PoisonError::into_inner).as_ref().ok_or(Errno::BADF)?)
    }
}

impl Device for RbdDevice {
    fn geometry(&self) -> Geometry {
        let block = u64::from(BLOCK);
        Geometry { size: self.shared.size() / block * block, ..self.shared.geometry }
    }

    fn refresh(&self) -> Result<u64> {
        let unknown = |e: Errno| {
            Error::new(ErrorKind::Open, format!("{}: cannot read its size", self.shared.name)).with_source(e)
        };
        let asking = self.shared.asking.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.is_of(self.shared.with_image(Image::size).map_err(unknown)?);
        drop(asking);
        Ok(self.geometry().size)
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let channel = RbdChannel::new(self.shared.clone(), depth)
            .map_err(|e| Error::new(ErrorKind::Memory, "no event descriptor for a channel").with_source(e))?;
        Ok(Box::new(Sticky::new(channel, self.shared.losses.clone())))
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn shared_image(&self) -> Option<&dyn SharedImage> {
        Some(self)
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let data = Extent { len, hole: false };
        let size = self.geometry().size;
        if !self.shared.tells || offset >= size || len == 0 {
            return data;
        }
        let end = offset + len.min(size - offset).min(WINDOW);
        match self.shared.with_image(|image| image.stored(offset..end)) {
            Ok(runs) => first(&runs, offset, end),
            Err(e) => {
                log::debug!("{}: cannot find out what is stored: {e}", self.shared.name);
                data
            }
        }
    }
}

/// The extent at the beginning of a range with these stored runs.
fn first(runs: &[std::ops::Range<u64>], offset: u64, end: u64) -> Extent {
    let next = runs.iter().find(|run| run.end > offset && run.start < end);
    match next {
        Some(run) if run.start <= offset => Extent { len: run.end.min(end) - offset, hole: false },
        Some(run) => Extent { len: run.start - offset, hole: true },
        None => Extent { len: end - offset, hole: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_at_the_end_wants_a_value() {
        for arguments in ["--keyring", "--rbd_cache=false -m ", "--keyring a --mon_host"] {
            assert_eq!(without_value(arguments), arguments.split_ascii_whitespace().last(), "{arguments}");
        }
        for arguments in [
            "",
            "--keyring a",
            "-m=1",
            "--no-mon-config",
            "--no_mon_config",
            "-",
            "-- -m",
            "--id me",
            "--x -1",
        ] {
            assert_eq!(without_value(arguments), None, "{arguments}");
        }
    }

    #[test]
    fn the_first_extent_is_what_is_stored_or_the_hole_before() {
        let runs = [10..20, 40..60];
        let at = |offset, end| {
            let Extent { len, hole } = first(&runs, offset, end);
            (len, hole)
        };
        assert_eq!(at(0, 100), (10, true));
        assert_eq!(at(10, 100), (10, false));
        assert_eq!(at(15, 17), (2, false));
        assert_eq!(at(20, 100), (20, true));
        assert_eq!(at(55, 100), (5, false));
        assert_eq!(at(60, 100), (40, true));
        assert_eq!(at(0, 5), (5, true));
    }
}
