//! An image of a Ceph cluster as a lower device, through Ceph's own library.
//!
//! ```text
//!   queue -- RbdChannel --- start ---> librbd's threads ---> the cluster
//!                  ^                        |
//!                  +--- Mailbox, Bell ------+        one image, one connection, for all queues
//!
//!   address   rbd:POOL/IMAGE...        library   librados and librbd, loaded when they are needed: all that is unsafe
//!   holder    which process has a lock   snapshots   requests pause while one is made
//! ```
//!
//! # What an answer means
//! librbd's cache is off: it would acknowledge what no machine of the cluster has yet, and copy it.
//! So a write that is over lies on every replica, whether it was asked to be durable or not, and a
//! flush waits for those that are not over.
//!
//! # Memory
//! A request belongs to librbd until it says that it is over; nothing can call it back, so its
//! memory stays with it also when its queue goes. What is written librbd copies once: it could do
//! without, but then a write that it fails before sending it is never over, and a client that was
//! shut out would wait for ever.
//!
//! # One writer
//! Whoever opens an image to write takes its exclusive lock, and does not hand it over while it is
//! open, as librbd would by itself. A second one is refused, and told who the first is; nobody who
//! answers is asked for the lock, since others do hand it over, in the midst of their writing.
//! Whose owner has died is free after half a minute. A client that was taken for dead is shut out
//! by the cluster: from then on every request fails, and none is tried again, since somebody else
//! writes by now.
//!
//! Where that owner was a process of this machine which has been killed, as a file of its user's
//! proves (`holder`), it is shut out and its lock taken at once.
//!
//! # Waiting
//! A cluster that is away, or full, is waited for without an end, as a local disk is;
//! `rados_osd_op_timeout` in the address sets one.

mod address;
mod channel;
mod holder;
mod library;
mod lock;
mod quiet;
mod snapshots;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock, mpsc};

use rustix::io::Errno;

use self::channel::RbdChannel;
use self::holder::LockHolderFile;
use self::library::{Cluster, Image};
use self::lock::lock;
use crate::losses::{FlushLosses, Sticky};
use crate::{Channel, Device, Error, ErrorKind, Extent, Geometry, LossHandler, Result, SnapshotPause};

pub use address::RbdAddress;

/// What can be read and written.
const BLOCK: u32 = 512;
/// What the cluster's disks read and write.
const PREFERRED: u32 = 4096;
/// Features of an image: a lock that one writer has; a map of what is stored.
const EXCLUSIVE_LOCK: u64 = 1 << 2;
const FAST_DIFF: u64 = 1 << 4;
/// Flags of one: its maps are not right.
const MAPS_INVALID: u64 = 0b11;
/// Place of writes on this machine before the cluster has them: none, in memory, on an
/// SSD.
const PERSISTENT_CACHE: &std::ffi::CStr = c"rbd_persistent_cache_mode";
/// How much is looked at together for what is stored.
const WINDOW: u64 = 1 << 30;

/// An image of a Ceph cluster, or a snapshot of one.
pub struct RbdDevice {
    shared: Arc<Shared>,
}

/// What all queues have in common.
struct Shared {
    /// None when it was let go.
    image: RwLock<Option<Image>>,
    /// Says that this process has the lock, as long as it has.
    holder: Mutex<Option<LockHolderFile>>,
    name: String,
    /// All but the size.
    geometry: Geometry,
    size: AtomicU64,
    /// As of which change of the image's header that is its size; and who is finding out.
    as_of: AtomicU64,
    asking: Mutex<()>,
    /// It can tell quickly what is stored.
    tells: bool,
    shut_out: AtomicBool,
    when_lost: OnceLock<LossHandler>,
    told: Once,
    losses: Arc<FlushLosses>,
}

impl RbdDevice {
    /// Connects to the cluster and opens the image, for this program alone unless it is only read.
    /// In the folder `holders`, which is the user's alone, is kept which process has it, so that
    /// the next one need not wait if this one is killed.
    ///
    /// # Errors
    /// `Open` when Ceph's library, the cluster, the pool or the image is not there; `Locked` when
    /// somebody else writes to it.
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
        let mut holder = None;
        if !read_only {
            only_as_asked(&image, address)?;
            if features & EXCLUSIVE_LOCK == 0 {
                log::warn!("{name}: the image has no exclusive lock: nothing keeps a second writer away");
            } else {
                holder = lock(&image, &name, holders)?;
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

/// A connection to the cluster of an address.
fn connected(address: &RbdAddress) -> Result<Cluster> {
    let failed =
        |what: String, e: Errno| Error::new(ErrorKind::Open, format!("{address}: {what}")).with_source(e);
    // Whoever begins with the library has it read them, too.
    let arguments = std::env::var_os("CEPH_ARGS").unwrap_or_default();
    if let Some(option) = without_value(&arguments.to_string_lossy()) {
        let what = format!(
            "{address}: CEPH_ARGS ends with {option}, which has no value: write {option}=VALUE, also where that is `true`"
        );
        return Err(Error::new(ErrorKind::Open, what));
    }
    let cluster = Cluster::new(address.id.as_deref())?;
    match cluster.read_file(address.conf.as_deref()) {
        // What an address says may be enough.
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
    // Five minutes are the library's.
    let patience = cluster.get(c"client_mount_timeout").and_then(|seconds| seconds.parse::<f64>().ok());
    if !address.sets(c"client_mount_timeout") && patience == Some(300.0) {
        let _ = cluster.set(c"client_mount_timeout", c"30");
    }
    for (option, value) in [(c"rbd_cache", c"false"), (c"rbd_non_blocking_aio", c"true")] {
        cluster
            .set(option, value)
            .map_err(|e| failed("the library's cache cannot be turned off".into(), e))?;
    }
    // Ceph before 16 has no such cache.
    let _ = cluster.set(PERSISTENT_CACHE, c"disabled");
    // Whose lock is broken must not write any more.
    cluster
        .set(c"rbd_blocklist_on_break_lock", c"true")
        .map_err(|e| failed("the library cannot be told to shut out whose lock is broken".into(), e))?;
    // A write that is not copied, and fails before it is sent, never ends (Ceph 16.2.15): that is
    // each one of a client that was shut out.
    let _ = cluster.set(c"rbd_disable_zero_copy_writes", c"true");
    cluster.connect().map_err(|e| {
        let what = match e {
            Errno::ACCESS | Errno::PERM => {
                "the cluster does not let this user in: is its keyring there? (id=, keyring=)"
            }
            Errno::TIMEDOUT => "no monitor of the cluster answers",
            Errno::NOENT => {
                "the cluster is not known here: no configuration, or no keyring (conf=, id=, keyring=)"
            }
            _ => "cannot connect to the cluster",
        };
        failed(what.into(), e)
    })?;
    Ok(cluster)
}

/// The last word of arguments as `CEPH_ARGS` has them, if it is an option that may want a value:
/// librados ends the process where one does.
fn without_value(arguments: &str) -> Option<&str> {
    let words: Vec<_> = arguments.split_ascii_whitespace().collect();
    let last = *words.last()?;
    let is_flag = ["--no-", "--no_"].iter().any(|no| last.starts_with(no));
    let is_option =
        last.len() > 1 && last.starts_with('-') && !last.contains('=') && last.parse::<f64>().is_err();
    (is_option && !is_flag && !words.contains(&"--")).then_some(last)
}

/// What is not there, or must not be opened.
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

/// What the image or its pool turns on again: a cache that would acknowledge what is nowhere yet,
/// and writes that would never be over.
fn only_as_asked(image: &Image, address: &RbdAddress) -> Result<()> {
    let refused = |what: String| Error::new(ErrorKind::Open, format!("{address}: {what}"));
    // Where there are none, nobody can have changed them.
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
        let what = "librbd's cache is turned on, and acknowledges what is not stored yet";
        return Err(refused(format!("{what}: {}", undone("rbd_cache"))));
    }
    if persistent.is_some_and(|value| value != "disabled") {
        let what = "librbd's persistent cache is turned on, and acknowledges what only this machine has";
        return Err(refused(format!("{what}: {}", undone("rbd_persistent_cache_mode"))));
    }
    if lends.is_some_and(|value| !matches!(&*value, "true" | "1" | "yes")) {
        let what = "writes that are not copied never end when they fail before they are sent";
        return Err(refused(format!("{what}: {}", undone("rbd_disable_zero_copy_writes"))));
    }
    Ok(())
}

impl Shared {
    /// The cluster has shut this client out: nothing is asked of it any more.
    fn is_shut_out(&self) {
        if self.shut_out.swap(true, SeqCst) {
            return;
        }
        log::error!(
            "{}: the cluster has shut this client out, because it did not answer for too long and another one took the image, or \
             because somebody said so (`ceph osd blocklist ls`): nothing is read or written any more; find out who uses the image before it is opened again",
            self.name
        );
        self.losses.fail(Errno::SHUTDOWN);
        self.tell();
    }

    /// Does what is to be done when it is lost, if somebody has said what.
    fn tell(&self) {
        if let Some(act) = self.when_lost.get() {
            self.told.call_once(|| act());
        }
    }

    fn was_shut_out(&self) -> bool {
        self.shut_out.load(SeqCst)
    }

    /// As of the last change that this client has heard of.
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

    /// This is its size.
    fn is_of(&self, size: u64) {
        let before = self.size.swap(size, SeqCst);
        if size < before {
            log::error!(
                "{}: the image was shrunk from {before} to {size} bytes while it is open: what lay beyond is gone, and is neither \
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

    /// Does something with the image, as long as it is there.
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
        let unknown =
            |e: Errno| Error::new(ErrorKind::Open, format!("{}: its size", self.shared.name)).with_source(e);
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

    fn let_go(&self) {
        // Closing takes its time, and who asks for the size meanwhile need not wait.
        let image = self.shared.image.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(image);
        drop(self.shared.holder.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn when_snapshot(&self, pause: Arc<dyn SnapshotPause>) {
        if self.shared.geometry.read_only {
            return;
        }
        let (tell, told) = mpsc::channel();
        let watched = match &mut *self.shared.image.write().unwrap_or_else(PoisonError::into_inner) {
            Some(image) => image.watch_snapshots(tell),
            None => return,
        };
        let shared = Arc::downgrade(&self.shared);
        let attends = move || {
            snapshots::attend(&told, &*pause, snapshots::LONGEST, |rests| {
                let answer = if rests { Ok(()) } else { Err(Errno::BUSY) };
                if let Some(shared) = shared.upgrade() {
                    // One that is being closed answers for itself.
                    let _ = shared.with_image(|image| {
                        image.rests(answer);
                        Ok(())
                    });
                }
            });
        };
        let thread = || {
            // Who makes one is not to wait for nobody.
            let spawned = std::thread::Builder::new().name("snapshots".into()).spawn(attends);
            spawned.map(drop).inspect_err(|_| self.shared.hear_no_snapshots())
        };
        if let Err(e) = watched.map_err(std::io::Error::from).and_then(|()| thread()) {
            log::warn!(
                "{}: snapshots of it do not wait for requests that are under way: {e}",
                self.shared.name
            );
        }
    }

    fn when_lost(&self, act: LossHandler) {
        // The first one that asks serves it; it may be lost already.
        let _ = self.shared.when_lost.set(act);
        if self.shared.was_shut_out() {
            self.shared.tell();
        }
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
                log::debug!("{}: it is not told what is stored: {e}", self.shared.name);
                data
            }
        }
    }
}

/// What is at the beginning of a range, of which these runs are stored.
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
