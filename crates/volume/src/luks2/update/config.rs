//! Names, persistent flags, and a header without any keyslot.

use serde_json::{Map, Value, json};

use super::words;
use crate::luks2::binary::Binary;
use crate::luks2::metadata::Metadata;
use crate::luks2::{Header, activate};
use crate::text::FixedText;
use crate::{Error, ErrorKind, Result, Settings, Target, storage};

impl Header {
    /// See [`crate::Header::set`].
    pub(crate) fn set(&mut self, on: &(impl Target + ?Sized), settings: &Settings) -> Result<()> {
        let Settings { label, subsystem, uuid, on: wanted, off } = settings;
        let edit = |binary: &mut Binary, document: &mut Map<String, Value>, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            if let Some(label) = label {
                binary.label = FixedText::new(label, "label")?;
            }
            if let Some(subsystem) = subsystem {
                binary.subsystem = FixedText::new(subsystem, "subsystem")?;
            }
            if let Some(uuid) = uuid {
                binary.uuid = FixedText::new(&uuid.hyphenated().to_string(), "UUID")?;
            }
            if wanted.is_empty() && off.is_empty() {
                return Ok(());
            }
            let mut flags = metadata.config.flags.clone();
            flags.retain(|flag| off.iter().all(|gone| gone.name() != flag));
            for flag in wanted.iter().filter(|flag| !off.contains(flag)) {
                if flags.iter().all(|there| there != flag.name()) {
                    flags.push(flag.name().into());
                }
            }
            let config = document.get_mut("config").and_then(Value::as_object_mut);
            let lost = || Error::new(ErrorKind::BadHeader, "config: not as it was read");
            config.ok_or_else(lost)?.insert("flags".into(), json!(flags));
            Ok(())
        };
        self.update_all(on, edit, |()| Ok(()))
    }

    /// See [`crate::Header::erase`]. The area of a reencryption stays: it belongs to no passphrase.
    pub(crate) fn erase(&mut self, on: &(impl Target + ?Sized)) -> Result<Vec<u32>> {
        let begin = 2 * self.stored.binary.size;
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            let (kept, gone): (Vec<_>, Vec<_>) =
                metadata.keyslots.iter().partition(|(_, slot)| slot.kind == "reencrypt");
            let gone: Vec<u32> = gone.into_iter().map(|(number, _)| *number).collect();
            gone.iter().try_for_each(|number| words::remove_keyslot(document, *number))?;
            let mut kept: Vec<(u64, u64)> = kept.into_iter().map(|(_, slot)| slot.area).collect();
            kept.sort_unstable();
            let end = begin + metadata.config.keyslots_size;
            Ok((gone, kept, end))
        };
        let (gone, ..) = self.update(on, edit, |(_, kept, end)| {
            // All of the room: removed keyslots may have left bytes, too.
            let mut at = begin;
            for (offset, size) in kept {
                storage::scrub(on, at..*offset)?;
                at = offset + size;
            }
            storage::scrub(on, at..storage::size(on)?.min(*end))?;
            storage::sync(on)
        })?;
        Ok(gone)
    }
}
