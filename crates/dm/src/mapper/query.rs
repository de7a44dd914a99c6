//! Commands that change nothing.

use rustix::io::Errno;

use super::Mapper;
use crate::header::{HEADER, Message, flags};
use crate::records::{self, Listed, Told};
use crate::registry::Entry;
use crate::targets::{TARGETS, has_state};
use crate::{Error, Result};

impl Mapper {
    /// Answers with all devices, or those whose name or UUID begins like the caller's.
    pub(super) fn list(&self, message: &mut Message) -> Result<()> {
        let (name, uuid) = (message.name()?, message.uuid()?);
        let mut all = self.0.registry.all();
        all.retain(|entry| entry.name.starts_with(name) && entry.uuid.starts_with(uuid));
        let listed: Vec<_> = all
            .iter()
            .map(|entry| Listed {
                dev: entry.device.number(),
                name: &entry.name,
                uuid: &entry.uuid,
                event: entry.device.snapshot().event,
            })
            .collect();
        message.put(&records::device_list(&listed));
        Ok(())
    }

    pub(super) fn status(&self, message: &mut Message) -> Result<()> {
        let entry = self.find(message)?;
        self.fill(message, &entry);
        message.put_nothing();
        Ok(())
    }

    pub(super) fn deps(&self, message: &mut Message) -> Result<()> {
        let entry = self.find(message)?;
        let snapshot = entry.device.snapshot();
        self.fill(message, &entry);
        let table = if message.has(flags::QUERY_INACTIVE) { snapshot.inactive } else { snapshot.live };
        message.put(&records::deps(table.as_ref().map_or(&[], |table| &table.deps)));
        Ok(())
    }

    pub(super) fn table_status(&self, message: &mut Message) -> Result<()> {
        let entry = self.find(message)?;
        self.told_status(message, &entry)
    }

    /// Answers with the states or the table of this device.
    pub(super) fn told_status(&self, message: &mut Message, entry: &Entry) -> Result<()> {
        let snapshot = entry.device.snapshot();
        let inactive = message.has(flags::QUERY_INACTIVE);
        let wants_table = message.has(flags::STATUS_TABLE);
        self.fill(message, entry);
        let table = if inactive { snapshot.inactive } else { snapshot.live };
        let Some(table) = table else {
            message.put_nothing();
            return Ok(());
        };
        let asked = !wants_table && table.lines(|lines| lines.iter().any(|line| has_state(&line.target)));
        // The kernel answers for failed devices, too, and integritysetup asks before it closes one.
        let states = match asked.then(|| table.served.status()) {
            Some(Err(e)) if e.errno() == Errno::IO => {
                log::warn!("{}: its table's server has ended: its lines have no state: {e}", entry.name);
                Vec::new()
            }
            Some(states) => states?,
            None => Vec::new(),
        };
        let room = message.room().saturating_sub(HEADER);
        let answer = table.lines(|lines| {
            let told = lines.iter().enumerate().map(|(i, line)| {
                let state = states.get(i).map_or("", String::as_str);
                Told { line, text: if wants_table { line.params() } else { state } }
            });
            records::told(&told.collect::<Vec<_>>(), room)
        });
        match answer? {
            Some(answer) => message.put(answer.as_bytes()),
            None => message.put_full(),
        }
        Ok(())
    }

    pub(super) fn versions(message: &mut Message) {
        message.put(&records::version_list(&TARGETS));
    }

    pub(super) fn version(message: &mut Message) -> Result<()> {
        let name = message.name()?;
        let found = TARGETS.iter().find(|(target, _)| *target == name);
        let found = found.ok_or_else(|| Error::new(Errno::INVAL, format!("no target {name}")))?;
        message.put(&records::version_list(&[*found]));
        Ok(())
    }
}
