//! The metadata as text for people.

use super::{Bitlk, Guid, VolumeType};
use crate::{Facts, Format};

impl Bitlk {
    /// The facts of the metadata, none of which is secret, or checked before the volume is
    /// unlocked.
    pub fn facts(&self) -> Facts {
        let mut facts = Facts::new(Format::Bitlk);
        let (state, target) = self.states();
        facts.add("guid", self.guid());
        facts.add("variant", if self.boot.to_go { "BitLocker To Go" } else { "BitLocker" });
        if self.volume_type() != VolumeType::Normal {
            facts.add("type", self.volume_type().name());
        }
        facts.add("description", self.description());
        facts.add("created", self.created());
        facts.add("cipher", format_args!("aes-{}", self.method.mode()));
        facts.add("method", self.method);
        facts.add("sector size", self.sector_size().bytes());
        facts.add("state", state);
        if state != target {
            facts.add("target state", target);
        }
        facts.add("encrypted", format_args!("{} bytes", self.encrypted_bytes()));
        if self.encrypted_bytes() != self.device && state == super::State::Encrypted {
            let size = self.device;
            facts
                .add("warning", format_args!("the volume was made over other than the image's {size} bytes"));
        }
        for (copy, at) in self.metadata().into_iter().enumerate() {
            let read = if copy == self.metadata_copy() { ", read" } else { "" };
            facts.add("metadata", format_args!("{at}, 65536 bytes{read}"));
        }
        let (moved, len) = self.moved_header();
        facts.add("moved header", format_args!("{moved}, {len} bytes"));
        for protector in self.protectors() {
            let mut told = format!("{protector}, changed {}", protector.changed);
            for (what, text) in [("name", &protector.name), ("hint", &protector.hint)] {
                if !text.is_empty() {
                    told.push_str(&format!(", {what} \"{text}\""));
                }
            }
            if let Some(obstacle) = protector.kind.obstacle() {
                told.push_str(&format!("; cannot be used here: {obstacle}"));
            }
            facts.add("protector", told);
        }
        facts
    }

    /// The GUID of the first recovery password, which Windows shows when it asks for the password.
    pub fn recovery_guid(&self) -> Option<Guid> {
        let recovery =
            |protector: &&super::Protector| protector.kind == super::ProtectorKind::RecoveryPassword;
        self.protectors().iter().find(recovery).map(|protector| protector.guid)
    }
}
