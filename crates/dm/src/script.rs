//! A simulated machine: tables that serve nothing and nodes without devices, for tests and fuzzing.
//! Both record their calls, in order.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use underseal_cipher::Key;

use crate::host::{Given, Host, Messaged, Names, Node, Nodes, Served, Table, TableLoad, UblkDisk};
use crate::records::Line;
use crate::{DeviceNumber, Error, GrantedKeys, Mapper, Result, Room};

/// The recorded calls.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, what: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what.into());
    }

    /// Returns all calls since the last query.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A simulated machine.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// The recorded calls.
    pub log: Log,
    /// The number of programs that have each device open.
    pub opens: Arc<AtomicU32>,
    /// How many of the next unbindings of devices time out.
    pub detach_timeouts: Arc<AtomicU32>,
    /// Held, it keeps devices from being unbound.
    pub detach_gate: Arc<Mutex<()>>,
    next: Arc<AtomicU32>,
}

impl Machine {
    /// Returns a mapper on this machine.
    pub fn mapper(&self) -> Mapper {
        Mapper::new(self.clone(), self.clone())
    }
}

impl Host for Machine {
    /// Refuses a line of `fails`; devices are words like `7:0`, and `file-on:7:0` beneath others.
    fn load(&self, TableLoad { lines, .. }: TableLoad<'_>) -> Result<Table> {
        if lines.iter().any(|line| line.target == "fails") {
            return Err(Error::new(Errno::INVAL, "unknown target type"));
        }
        let words = lines.iter().flat_map(|line| line.params().split(' '));
        let deps: Vec<DeviceNumber> = words.filter_map(|word| word.parse().ok()).collect();
        let words = lines.iter().flat_map(|line| line.params().split(' '));
        let files = words.filter_map(|word| word.strip_prefix("file-on:")?.parse().ok());
        let beneath = files.collect();
        let sectors = lines.iter().fold(0_u64, |sum, line| sum.saturating_add(line.len));
        let name = lines.first().map_or_else(String::new, |line| format!("{} {}", line.target, line.len));
        let served = Arc::new(Fake { name, log: self.log.clone() });
        Ok(Table { lines, deps, beneath, room: Room { sectors, block: 512 }, served })
    }
}

/// A table.
struct Fake {
    name: String,
    log: Log,
}

impl Fake {
    fn does(&self, what: &str) -> Result<()> {
        self.log.add(format!("{what} {}", self.name));
        if self.name.starts_with(&format!("{what}-fails")) {
            return Err(Error::new(Errno::IO, format!("{what} fails")));
        }
        Ok(())
    }
}

impl Served for Fake {
    fn show(&self, _file: &Path) -> Result<()> {
        self.does("show")
    }

    fn show_disk(&self, _disk: &UblkDisk) -> Result<()> {
        self.does("show_disk")
    }

    fn hide_disk(&self) -> Result<()> {
        self.does("hide_disk")
    }

    fn give(&self) -> Result<Given> {
        self.does("give")?;
        Ok(Given { device: None, place: String::new() })
    }

    fn keep(&self) -> Result<()> {
        self.does("keep")
    }

    fn leave(&self) {
        let _ = self.does("leave");
    }

    fn take(&self, _given: Given) -> Result<()> {
        self.does("take")
    }

    fn suspend(&self) -> Result<()> {
        self.does("suspend")
    }

    fn resume(&self) -> Result<()> {
        self.does("resume")
    }

    fn release(&self) {
        let _ = self.does("release");
    }

    fn message(&self, line: &Line, words: &str, _keys: &GrantedKeys) -> Result<Messaged> {
        self.does("message")?;
        match words {
            "ask" => Ok(Messaged { text: Some("answer".into()), ..Messaged::default() }),
            "key wipe" => {
                let zeros = Key::new(b"0000").map_err(|_| Error::new(Errno::NOMEM, "no memory"))?;
                Ok(Messaged { params: Some(zeros), ..Messaged::default() })
            }
            _ => Err(Error::new(Errno::INVAL, format!("{}: unrecognised message received.", line.target))),
        }
    }

    fn status(&self) -> Result<Vec<String>> {
        self.does("status")?;
        Ok(vec!["state".into(); 8])
    }

    fn end(&self) -> Result<()> {
        self.does("end")
    }
}

impl Nodes for Machine {
    fn create(&self, minor: Option<u32>) -> Result<Box<dyn Node>> {
        let minor = minor.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed) & 0xf_ffff);
        let number = DeviceNumber::new(253, minor);
        Ok(Box::new(NoNode { number, machine: self.clone() }))
    }
}

/// A node.
struct NoNode {
    number: DeviceNumber,
    machine: Machine,
}

impl Node for NoNode {
    fn number(&self) -> DeviceNumber {
        self.number
    }

    fn show(&self, table: &dyn Served, room: Room, _read_only: bool) -> Result<()> {
        table.show(Path::new("/nowhere"))?;
        self.machine.log.add(format!("attach {}", room.sectors));
        Ok(())
    }

    fn follow(&self, room: Room) -> Result<()> {
        self.machine.log.add(format!("follow {}", room.sectors));
        Ok(())
    }

    fn detach(&self, _table: &dyn Served) -> Result<()> {
        self.machine.log.add("detach");
        drop(self.machine.detach_gate.lock().unwrap_or_else(PoisonError::into_inner));
        let timeouts = &self.machine.detach_timeouts;
        match timeouts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::new(Errno::TIMEDOUT, "detach hangs")),
            Err(_) => Ok(()),
        }
    }

    fn opens(&self, _is_below: bool) -> u32 {
        self.machine.opens.load(Ordering::Relaxed)
    }

    fn sync(&self) -> Result<()> {
        self.machine.log.add("sync");
        Ok(())
    }

    fn name(&self, Names { name, .. }: Names<'_>, before: Option<Names<'_>>) -> Result<()> {
        let before = before.map_or_else(String::new, |before| format!(", not {}", before.name));
        self.machine.log.add(format!("name {name}{before}"));
        Ok(())
    }

    fn give_back(&self) {
        self.machine.log.add("give back");
    }

    fn unname(&self, Names { name, .. }: Names<'_>) {
        self.machine.log.add(format!("unname {name}"));
    }
}
