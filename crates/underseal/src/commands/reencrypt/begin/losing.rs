//! The losses of a reencryption: passphrases that were not given, the end of a device, and without
//! resilience the data of a crash; of an encryption also the direct use of volumes and partitions.
//! All are listed, and confirmed, at once.

use std::path::Path;

use underseal_formats::PlainDataDoubt;
use underseal_volume::{ReadAt, luks2};

use crate::commands::reencrypt::args::{ReencryptArgs, Resilience};
use crate::commands::reencrypt::keys::Known;
use crate::error::{Error, Result};
use crate::passphrase;
use crate::size;

/// The losses, each with the option that avoids it.
#[derive(Default)]
pub(in super::super) struct Losses(Vec<(String, String)>);

impl Losses {
    /// Adds a loss.
    pub(in super::super) fn and(mut self, what: String, otherwise: &str) -> Self {
        self.0.push((what, otherwise.into()));
        self
    }

    /// Adds the passphrases that were not given.
    pub(super) fn passphrases(
        self,
        args: &ReencryptArgs,
        header: &luks2::Header,
        known: &[Known],
        name: &Path,
    ) -> Self {
        let kept: Vec<u32> = known.iter().map(|known| known.slot).collect();
        let lost = if args.keep_key { vec![] } else { header.lost_keyslots(&kept) };
        if lost.is_empty() {
            return self;
        }
        let slots = lost.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let what = format!(
            "{}: the passphrases of keyslots {slots} were not given. They open nothing any more when all is reencrypted.",
            name.display()
        );
        self.and(
            what,
            "--other-passphrase-file, --other-passphrase-fd or --other-key-file for each of them, or --force",
        )
    }

    /// Adds data that no resilience protects.
    pub(in super::super) fn unprotected(self, args: &ReencryptArgs, name: &Path) -> Self {
        if args.resilience != Some(Resilience::None) {
            return self;
        }
        let what = format!(
            "{}: with --resilience none a crash, a power cut or a failing disk loses data, and nothing tells which.",
            name.display()
        );
        self.and(what, "--resilience checksum, or --force")
    }

    /// Adds plain data that are an encrypted volume or a disk with partitions.
    ///
    /// Fails with `Failed` when the data cannot be read.
    pub(super) fn doubts(self, data: &impl ReadAt, image: &Path) -> Result<Self> {
        let found = PlainDataDoubt::find(data).map_err(|e| Error::from(e).within(image.display()))?;
        let Some(doubt) = found else { return Ok(self) };
        let otherwise = match doubt {
            PlainDataDoubt::Encrypted(_) => {
                "decrypt it by its own system first, or --force to encrypt it again"
            }
            PlainDataDoubt::Partitioned => "the device of one partition, or --force for the whole disk",
        };
        Ok(self.and(format!("{}: {doubt}.", image.display()), otherwise))
    }

    /// Adds the end of a device over which its data move.
    pub(super) fn the_end(self, args: &ReencryptArgs, image: &Path) -> Self {
        let Some(reduce) = args.reduce_device_size else { return self };
        let what = format!(
            "{}: its last {} make room for the header. What lies there is lost.",
            image.display(),
            size::show(reduce)
        );
        self.and(what, "make what is on it smaller first, and then --force")
    }

    /// Adds the data behind a part of the volume, if only that part gets the new key.
    pub(super) fn the_rest(self, args: &ReencryptArgs, image: &Path) -> Self {
        let Some(part) = args.device_size else { return self };
        let what = format!(
            "{}: what lies behind its first {} keeps the old key, which goes. It is lost.",
            image.display(),
            size::show(part)
        );
        self.and(what, "without --device-size; or --force, if nothing lies there")
    }

    /// Lists the losses, and asks for consent. Fails with `Usage` unless the answer is yes.
    pub(in super::super) fn sure(self, args: &ReencryptArgs) -> Result<()> {
        if args.force {
            self.0.iter().for_each(|(what, _)| log::warn!("{what}"));
            return Ok(());
        }
        let [what, otherwise] = match &self.0[..] {
            [] => return Ok(()),
            [(what, otherwise)] => [what.clone(), otherwise.clone()],
            all => {
                let whats = all.iter().enumerate().map(|(i, (what, _))| format!("\n  {}. {what}", i + 1));
                let remedies = all.iter().enumerate().map(|(i, (_, how))| format!("{}. {how}", i + 1));
                let what = format!("{} things need consent:{}", all.len(), whats.collect::<String>());
                [what, remedies.collect::<Vec<_>>().join("; ")]
            }
        };
        if passphrase::confirm(&what)? {
            return Ok(());
        }
        Err(Error::usage(what).with_remedy(otherwise))
    }
}
