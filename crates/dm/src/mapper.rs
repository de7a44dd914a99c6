//! The commands.

mod deferred;
mod query;
mod rings;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use self::rings::refuse_ring;
use crate::device::{Device, Snapshot};
use crate::header::{Message, flags, text};
use crate::host::{Host, Nodes, Table};
use crate::keys::KeptKeys;
use crate::left::LeftNode;
use crate::records;
use crate::registry::{Called, Entry, Registry};
use crate::{Error, GrantedKeys, Result, check_name, check_uuid};

/// The commands, by their numbers (include/uapi/linux/dm-ioctl.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the header's own names")]
pub enum Command {
    Version = 0,
    RemoveAll = 1,
    ListDevices = 2,
    DevCreate = 3,
    DevRemove = 4,
    DevRename = 5,
    DevSuspend = 6,
    DevStatus = 7,
    DevWait = 8,
    TableLoad = 9,
    TableClear = 10,
    TableDeps = 11,
    TableStatus = 12,
    ListVersions = 13,
    TargetMsg = 14,
    DevSetGeometry = 15,
    DevArmPoll = 16,
    GetTargetVersion = 17,
}

impl Command {
    /// Returns the command of this number.
    ///
    /// # Errors
    /// `ENOTTY` for an unknown number.
    pub fn from_number(number: u32) -> Result<Self> {
        const ALL: [Command; 18] = [
            Command::Version,
            Command::RemoveAll,
            Command::ListDevices,
            Command::DevCreate,
            Command::DevRemove,
            Command::DevRename,
            Command::DevSuspend,
            Command::DevStatus,
            Command::DevWait,
            Command::TableLoad,
            Command::TableClear,
            Command::TableDeps,
            Command::TableStatus,
            Command::ListVersions,
            Command::TargetMsg,
            Command::DevSetGeometry,
            Command::DevArmPoll,
            Command::GetTargetVersion,
        ];
        let command = ALL.get(number as usize).copied();
        command.ok_or_else(|| Error::new(Errno::NOTTY, format!("unknown command 0x{number:x}")))
    }

    /// Returns true when it neither creates nor reads a single device.
    fn names_no_device(self) -> bool {
        use Command::{GetTargetVersion, ListDevices, ListVersions, RemoveAll, Version};
        matches!(self, Version | RemoveAll | ListDevices | ListVersions | GetTargetVersion)
    }
}

/// The number of devices that are removed at a time.
const SIDE_BY_SIDE: usize = 16;
/// The length of a wait for an event before a check that its caller still exists.
const WAIT: Duration = Duration::from_millis(200);

/// The caller of a command.
pub struct Caller<'c> {
    /// Returns true when a caller that waits for an event still exists.
    pub is_there: &'c dyn Fn() -> bool,
    /// The keys of the command.
    pub keys: &'c GrantedKeys,
}

/// Answers commands.
#[derive(Clone)]
pub struct Mapper(Arc<Inner>);

struct Inner {
    registry: Registry,
    host: Box<dyn Host>,
    nodes: Box<dyn Nodes>,
    kept: KeptKeys,
    /// Held between the check that a table closes no ring and its load.
    rings: Mutex<()>,
}

impl Mapper {
    /// Returns a mapper without devices.
    pub fn new(host: impl Host + 'static, nodes: impl Nodes + 'static) -> Self {
        let (host, nodes) = (Box::new(host), Box::new(nodes));
        let (registry, kept) = (Registry::default(), KeptKeys::default());
        Self(Arc::new(Inner { registry, host, nodes, kept, rings: Mutex::default() }))
    }

    /// Adds an existing device with its table.
    ///
    /// # Errors
    /// `EBUSY` when its name or UUID is in use: the device stays unchanged.
    pub fn adopt(&self, left: LeftNode, table: Table, read_only: bool, suspended: bool) -> Result<()> {
        if let Err(e) = self.0.registry.is_free(&left.name, &left.uuid) {
            left.leave();
            return Err(e);
        }
        left.show();
        let LeftNode { node, name, uuid, is_deferred, was_loaded, .. } = left;
        node.lies(table.room, read_only);
        let device = Device::adopted(node, table, read_only, suspended, was_loaded);
        let entry = self.0.registry.add(&name, &uuid, Arc::new(device))?;
        self.show_holders(&entry);
        if is_deferred { self.defer(entry) } else { Ok(()) }
    }

    /// Returns the number of devices.
    pub fn count(&self) -> usize {
        self.0.registry.count()
    }

    /// Drops the keys that no longer exist in the kernel.
    pub fn forget_keys(&self) {
        self.0.kept.forget_gone();
    }

    /// Returns the keys that callers have added.
    pub(crate) fn kept(&self) -> &KeptKeys {
        &self.0.kept
    }

    /// Carries out a command, and changes the message into its answer.
    ///
    /// # Errors
    /// The errno that the kernel returns.
    pub fn answer(&self, command: Command, message: &mut Message, caller: &Caller<'_>) -> Result<()> {
        let (name, uuid) = (message.name()?, message.uuid()?);
        if command == Command::DevCreate && name.is_empty() {
            return Err(Error::new(Errno::INVAL, "name not supplied when creating device"));
        }
        let is_one = !command.names_no_device() && command != Command::DevCreate;
        if is_one && !name.is_empty() && !uuid.is_empty() {
            let why = format!("only supply one of name or uuid, cmd({})", command as u32);
            return Err(Error::new(Errno::INVAL, why));
        }
        match command {
            Command::Version => message.put_nothing(),
            Command::RemoveAll => self.remove_all(message),
            Command::ListDevices => self.list(message)?,
            Command::DevCreate => self.create(message)?,
            Command::DevRemove => self.remove(message)?,
            Command::DevRename => self.rename(message)?,
            Command::DevSuspend => self.suspend(message)?,
            Command::DevStatus | Command::DevArmPoll => self.status(message)?,
            Command::DevWait => self.wait(message, caller.is_there)?,
            Command::TableLoad => self.load(message, caller.keys)?,
            Command::TableClear => self.clear(message)?,
            Command::TableDeps => self.deps(message)?,
            Command::TableStatus => self.table_status(message)?,
            Command::ListVersions => Self::versions(message),
            Command::TargetMsg => self.message(message, caller.keys)?,
            Command::DevSetGeometry => self.geometry(message)?,
            Command::GetTargetVersion => Self::version(message)?,
        }
        Ok(())
    }

    fn find(&self, message: &Message) -> Result<Entry> {
        self.0.registry.find(called(message)?)
    }

    fn create(&self, message: &mut Message) -> Result<()> {
        let (name, uuid) = (message.name()?.to_owned(), message.uuid()?.to_owned());
        check_name(&name)?;
        if !uuid.is_empty() {
            check_uuid(&uuid)?;
        }
        self.0.registry.is_free(&name, &uuid)?;
        self.0.nodes.is_free(&name)?;
        let wanted = message.has(flags::PERSISTENT_DEV).then(|| message.dev()).flatten();
        let node = self.0.nodes.create(wanted.map(|dev| dev.minor))?;
        let entry = self.0.registry.add(&name, &uuid, Arc::new(Device::new(node)))?;
        message.set_flags(message.flags() & !flags::INACTIVE_PRESENT);
        self.fill(message, &entry);
        message.put_nothing();
        Ok(())
    }

    fn remove(&self, message: &mut Message) -> Result<()> {
        let entry = self.find(message)?;
        let deferred = message.has(flags::DEFERRED_REMOVE);
        message.put_nothing();
        match self.take_away(&entry) {
            Err(e) if deferred && e.errno() == Errno::BUSY => {
                self.defer(entry)?;
                Ok(())
            }
            removed => {
                message.set_flags(message.flags() & !flags::DEFERRED_REMOVE);
                removed?;
                self.remove_deferred();
                Ok(())
            }
        }
    }

    /// Removes a device without openers, under its present name.
    fn take_away(&self, entry: &Entry) -> Result<()> {
        self.take_away_named(entry, entry.device.naming(), false)
    }

    /// With `only_deferred`, removes the device unless that was cancelled.
    fn take_away_named(&self, entry: &Entry, _naming: MutexGuard<'_, ()>, only_deferred: bool) -> Result<()> {
        let by_number = Called { name: "", uuid: "", dev: Some(entry.device.first_number()) };
        let found = self.0.registry.find(by_number).ok();
        let entry = &found.filter(|found| Arc::ptr_eq(&found.device, &entry.device)).ok_or_else(|| {
            Error::new(Errno::NXIO, format!("{}: the device is removed already", entry.name))
        })?;
        if self.opens(entry) > 0 {
            return Err(Error::new(Errno::BUSY, format!("{}: the device is in use", entry.name)));
        }
        let number = entry.device.number();
        entry.device.remove(entry.names(), only_deferred)?;
        self.0.registry.remove(&entry.device);
        entry.device.node().give_back();
        self.0.nodes.lies_on(number, entry.names(), &BTreeSet::new());
        Ok(())
    }

    fn remove_all(&self, message: &mut Message) {
        let deferred = message.has(flags::DEFERRED_REMOVE);
        let remove = |entry: Entry| match self.take_away(&entry) {
            Ok(()) => true,
            Err(e) if deferred && e.errno() == Errno::BUSY => {
                if let Err(e) = self.defer(entry) {
                    log::error!("{e}");
                }
                false
            }
            Err(e) => {
                log::debug!("remove_all: {e}");
                false
            }
        };
        loop {
            let entries = Mutex::new(self.0.registry.all().into_iter());
            let next = || entries.lock().unwrap_or_else(PoisonError::into_inner).next();
            // The kernel waits for a grace period at each device, so these waits run in parallel.
            let work = || std::iter::from_fn(next).filter_map(|entry| remove(entry).then_some(())).count();
            let removed: usize = thread::scope(|scope| {
                let began = (1..SIDE_BY_SIDE).filter_map(|_| {
                    let thread = thread::Builder::new().name("remove".into());
                    thread.spawn_scoped(scope, work).ok()
                });
                let others: Vec<_> = began.collect();
                work() + others.into_iter().filter_map(|other| other.join().ok()).sum::<usize>()
            });
            // Lower devices become free after the upper ones.
            if removed == 0 {
                break;
            }
        }
        message.put_nothing();
    }

    fn rename(&self, message: &mut Message) -> Result<()> {
        let is_uuid = message.has(flags::UUID);
        let new = text(message.data()?)?.to_owned();
        if is_uuid { check_uuid(&new) } else { check_name(&new) }?;
        let device = self.find(message)?.device;
        let _naming = device.naming();
        let (old, now) = self.0.registry.rename(called(message)?, &new, is_uuid)?;
        let snapshot = now.device.snapshot();
        if snapshot.live.is_some()
            && let Err(e) = now.device.node().name(now.names(), Some(old.names()))
        {
            self.0.registry.put_back(&old);
            return Err(e);
        }
        if snapshot.live.is_some() {
            now.device.happens();
        }
        self.show_holders(&now);
        message.set_names(&now.name, &now.uuid);
        self.fill(message, &now);
        message.put_nothing();
        Ok(())
    }

    fn suspend(&self, message: &mut Message) -> Result<()> {
        let entry = self.find(message)?;
        if message.has(flags::SUSPEND) {
            entry.device.suspend()?;
        } else {
            message.set_flags(message.flags() & !flags::INACTIVE_PRESENT);
            let before = entry.device.number();
            let resumed = entry.device.resume(entry.names());
            if entry.device.number() != before {
                self.0.nodes.lies_on(before, entry.names(), &BTreeSet::new());
            }
            self.show_holders(&entry);
            resumed?;
            self.remove_deferred();
        }
        self.fill(message, &entry);
        message.put_nothing();
        Ok(())
    }

    fn load(&self, message: &mut Message, keys: &GrantedKeys) -> Result<()> {
        let entry = self.find(message)?;
        let lines = records::lines(message.data()?, message.target_count())?;
        let read_only = message.has(flags::READ_ONLY);
        let below = |number| {
            let live = self.0.registry.at(number)?.device.snapshot().live?;
            live.lines(|lines| lines.iter().map(|line| line.copy().ok()).collect())
        };
        let admit = |table: &Table| {
            let rings = self.0.rings.lock().unwrap_or_else(PoisonError::into_inner);
            refuse_ring(&self.0.registry, entry.device.number(), table).map(|()| rings)
        };
        let loaded = entry.device.load(&*self.0.host, lines, read_only, &below, keys, &admit);
        loaded.map_err(|e| e.within(&entry.name))?;
        self.show_holders(&entry);
        message.set_flags(message.flags() | flags::INACTIVE_PRESENT);
        self.fill(message, &entry);
        message.put_nothing();
        Ok(())
    }

    fn clear(&self, message: &mut Message) -> Result<()> {
        let entry = self.find(message)?;
        entry.device.clear()?;
        self.show_holders(&entry);
        self.remove_deferred();
        message.set_flags(message.flags() & !flags::INACTIVE_PRESENT);
        self.fill(message, &entry);
        message.put_nothing();
        Ok(())
    }

    fn message(&self, message: &mut Message, keys: &GrantedKeys) -> Result<()> {
        let entry = self.find(message)?;
        let (sector, words) = records::message(message.data()?)?;
        let first = words.split_ascii_whitespace().next();
        let answer = match first {
            None => return Err(Error::new(Errno::INVAL, "Empty message received.")),
            Some("@cancel_deferred_remove") => {
                entry.device.cancel_deferred()?;
                None
            }
            Some(other) if other.starts_with('@') => {
                let why = format!("Unsupported message sent to DM core: {other}");
                return Err(Error::new(Errno::INVAL, why));
            }
            Some(_) => entry.device.message(sector, words, keys).map_err(|e| e.within(&entry.name))?,
        };
        self.fill(message, &entry);
        match answer {
            Some(text) => {
                message.set_flags(message.flags() | flags::DATA_OUT);
                message.put(&[text.as_bytes(), b"\0"].concat());
            }
            None => message.put_nothing(),
        }
        Ok(())
    }

    fn wait(&self, message: &mut Message, is_there: &dyn Fn() -> bool) -> Result<()> {
        let entry = self.find(message)?;
        while !entry.device.wait(message.event(), WAIT)? {
            if !is_there() {
                return Err(Error::new(Errno::INTR, "the waiting caller is gone"));
            }
        }
        // The event may be that the device has another name now, or that it is gone.
        self.told_status(message, &entry)
    }

    fn geometry(&self, message: &mut Message) -> Result<()> {
        let entry = self.find(message)?;
        let text = text(message.data()?)?;
        let numbers: Vec<_> = text.split_ascii_whitespace().map(str::parse::<u64>).collect();
        if numbers.len() != 4 || numbers.iter().any(std::result::Result::is_err) {
            return Err(Error::new(Errno::INVAL, "Unable to interpret geometry settings."));
        }
        // Geometries are BIOSes' descriptions of disks, which have no use here.
        self.fill(message, &entry);
        message.put_nothing();
        Ok(())
    }

    /// Fills in a device's state, as `__dev_status` does.
    fn fill(&self, message: &mut Message, entry: &Entry) {
        let Snapshot { live, inactive, suspended, deferred, event } = entry.device.snapshot();
        let mut set = message.flags()
            & !(flags::SUSPEND
                | flags::READ_ONLY
                | flags::ACTIVE_PRESENT
                | flags::INACTIVE_PRESENT
                | flags::DEFERRED_REMOVE);
        set |= if suspended { flags::SUSPEND } else { 0 };
        set |= if deferred { flags::DEFERRED_REMOVE } else { 0 };
        set |= if live.is_some() { flags::ACTIVE_PRESENT } else { 0 };
        set |= if inactive.is_some() { flags::INACTIVE_PRESENT } else { 0 };
        let table = if message.has(flags::QUERY_INACTIVE) { &inactive } else { &live };
        let count = table.as_ref().map_or(0, |table| table.lines(<[_]>::len));
        set |= if table.as_ref().is_some_and(|table| table.read_only) { flags::READ_ONLY } else { 0 };
        message.set_flags(set);
        message.set_names(&entry.name, &entry.uuid);
        message.set_dev(entry.device.number());
        message.set_open_count(self.opens(entry));
        message.set_event(event);
        message.set_target_count(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Records the devices below a device's live table and its inactive table.
    fn show_holders(&self, entry: &Entry) {
        let Snapshot { live, inactive, .. } = entry.device.snapshot();
        let on = live.iter().chain(&inactive).flat_map(|table| table.deps.iter().copied()).collect();
        self.0.nodes.lies_on(entry.device.number(), entry.names(), &on);
    }

    /// Returns the number of openers of a device: other programs, and each table that lies on it.
    fn opens(&self, entry: &Entry) -> u32 {
        let number = entry.device.number();
        let tables = self.0.registry.uses(number);
        let live = entry.device.snapshot().live;
        let others = if live.is_some() { entry.device.node().opens(tables > 0) } else { 0 };
        tables.saturating_add(others)
    }
}

fn called(message: &Message) -> Result<Called<'_>> {
    Ok(Called { name: message.name()?, uuid: message.uuid()?, dev: message.dev() })
}
