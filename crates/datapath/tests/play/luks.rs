//! A volume with a detached LUKS2 header: only the header has the progress of its reencryption.

use underseal_cipher::{CipherSpec, Key, SectorSize};
use underseal_datapath::ServedVolume;
use underseal_volume::luks2::{self, BeginOptions, Ledger, NewKey, Passphrase, ResumeOptions, Stage};
use underseal_volume::reencrypt::{
    self, Direction, Foreground, Ledger as _, Options, Outcome, Progress, Protection,
};
use underseal_volume::{
    ActivateOptions, Cost, FormatOptions, Hash, Header, NewHeader, Pbkdf, UnlockOptions, Unlocked, Volume,
};

use super::counted_device::CountedDevice;
use super::dice::Dice;
use super::forms::ROOM;
use super::round::{CIPHERS, Setup};
use super::site::{NoStep, Result, Sums};

/// Bytes of two keyslots, and of the protection of a step.
const KEYSLOTS: u64 = 1 << 20;
/// The longest step.
const LONGEST: u64 = 256 << 10;

pub(crate) struct Luks {
    /// An operation was begun, and is not finished.
    pub(crate) is_under_way: bool,
    /// The header has been seen with this operation.
    is_begun: bool,
}

fn passphrase() -> Key {
    Key::new(b"a passphrase").unwrap()
}

fn spec(cipher: (&str, u8)) -> CipherSpec {
    cipher.0.parse().unwrap()
}

impl Luks {
    /// Makes the header. The data lies at the end of its device.
    pub(crate) fn format(setup: &Setup, dice: &mut Dice, on: &CountedDevice) -> Self {
        let (cipher, sector) = Self::form(setup, dice);
        let options = FormatOptions {
            cipher: spec(cipher),
            key_size: Some(cipher.1.into()),
            sector_size: Some(sector),
            pbkdf: Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() },
            detached: true,
            data_offset: Some(ROOM),
            keyslots_size: Some(KEYSLOTS),
            ..FormatOptions::luks2()
        };
        NewHeader::prepare(setup.size + ROOM, &passphrase(), options).unwrap().write(on).unwrap();
        Self { is_under_way: false, is_begun: false }
    }

    fn form(setup: &Setup, dice: &mut Dice) -> ((&'static str, u8), SectorSize) {
        let sectors: Vec<u32> = [512, 4096].into_iter().filter(|sector| *sector <= setup.sector).collect();
        let sector = SectorSize::new(dice.pick(&sectors)).unwrap();
        // A torn sector is lost as a whole where its cipher is not local, as on any disk.
        let torn = setup.may_fail() && sector > SectorSize::S512;
        (if torn { CIPHERS[0] } else { dice.pick(&CIPHERS) }, sector)
    }

    fn header(on: &CountedDevice) -> Result<luks2::Header> {
        match Header::read(on)? {
            Header::Luks2(header) => Ok(*header),
            _ => panic!("another version"),
        }
    }

    fn unlock(header: &luks2::Header, on: &CountedDevice) -> Result<Unlocked> {
        header.unlock(on, &passphrase(), &UnlockOptions::default())
    }

    /// Continues the operation in progress, or begins one.
    pub(crate) fn carry_out(
        &mut self,
        (setup, dice, sums): (&Setup, &mut Dice, &mut Sums),
        (data, on): (&CountedDevice, &CountedDevice),
        users: &ServedVolume,
    ) -> Result<Outcome> {
        let mut header = Self::header(on)?;
        if header.reencryption()?.is_none() {
            if self.is_begun {
                // A failure came after the header had dropped the old key.
                let key = Self::unlock(&header, on)?.key;
                let options = ActivateOptions { detached: true, ..ActivateOptions::default() };
                let volume = header.activate(&key, setup.size + ROOM, &options)?;
                users.claim(0..setup.size)?.relay(volume)?;
                self.is_over(sums);
                return Ok(Outcome::Finished);
            }
            self.is_under_way = true;
            Self::begin(setup, dice, &mut header, on)?;
        }
        let unlocked = Self::unlock(&header, on)?;
        let hot_zone = (setup.size / 64).next_multiple_of(4096) + dice.below(8) * 16384;
        let options =
            ResumeOptions { detached: true, hot_zone: Some(hot_zone.min(LONGEST)), allow_null: false };
        let mut ledger = Ledger::resume(on, &unlocked.key, setup.size + ROOM, &options)?;
        ledger.secure()?;
        sums.begun += u64::from(!self.is_begun);
        (self.is_under_way, self.is_begun) = (true, true);
        sums.recovered += u64::from(ledger.progress().hot.is_some());
        let memory = dice.pick(&[256 << 10, 64 << 20]);
        let options = Options { workers: 2, memory, keep_lost: false };
        let outcome = reencrypt::run(data, &mut ledger, users, &options)?;
        if outcome == Outcome::Finished {
            // A server does the same.
            let plan = ledger.plan();
            users.claim(0..plan.size)?.relay(plan.volume(Progress { done: plan.size, hot: None })?)?;
            drop(ledger);
            self.is_over(sums);
        }
        Ok(outcome)
    }

    fn is_over(&mut self, sums: &mut Sums) {
        (self.is_under_way, self.is_begun) = (false, false);
        sums.finished += 1;
    }

    fn begin(setup: &Setup, dice: &mut Dice, header: &mut luks2::Header, on: &CountedDevice) -> Result<()> {
        let (cipher, sector_size) = Self::form(setup, dice);
        let info = header.info();
        let old = &info.segments[0];
        let old_sector = SectorSize::new(u32::try_from(old.sector_size.unwrap()).unwrap()).unwrap();
        let block = dice.pick(&[512, 4096]).max(sector_size.bytes() as u64).max(old_sector.bytes() as u64);
        let old_cipher = old.cipher.as_ref().unwrap().parse().unwrap();
        let mends = reencrypt::checksums_mend(block, &old_cipher, old_sector)?
            && reencrypt::checksums_mend(block, &spec(cipher), sector_size)?;
        let protection = match dice.below(5) {
            0..3 if mends || !setup.may_fail() => {
                Protection::Checksum { hash: dice.pick(&[Hash::Sha256, Hash::Sha1]), block }
            }
            3 if !setup.may_fail() => Protection::None,
            _ => Protection::Journal,
        };
        let options = BeginOptions {
            cipher: Some(spec(cipher)),
            sector_size: Some(sector_size),
            key: NewKey::Random(Some(cipher.1.into())),
            direction: dice.pick(&[Direction::Forward, Direction::Backward]),
            protection,
            shift: None,
            size: None,
            detached: true,
            allow_null: false,
            is_open: false,
        };
        let (passphrase, unlocked) = (passphrase(), Self::unlock(header, on)?);
        let slot = unlocked.slot;
        let kept = [Passphrase { slot, passphrase: &passphrase, new: header.like_keyslot(slot)? }];
        header.begin_reencryption(on, unlocked.key, &kept, setup.size + ROOM, &options).map(drop)
    }

    /// Opens the volume as a new process does: an interrupted step is recovered first.
    pub(crate) fn open(
        &mut self,
        (setup, sums): (&Setup, &mut Sums),
        (data, on): (&CountedDevice, &CountedDevice),
    ) -> Result<Volume> {
        let mut header = Self::header(on)?;
        let (key, size) = (Self::unlock(&header, on)?.key, setup.size + ROOM);
        let stage = header.reencryption()?.map(|status| status.stage);
        if stage.is_some() {
            let options = ResumeOptions { detached: true, ..ResumeOptions::default() };
            let mut ledger = Ledger::resume(on, &key, size, &options)?;
            let mut outcome = Outcome::Stopped;
            if stage == Some(Stage::Hot) {
                let options = Options { workers: 2, ..Options::default() };
                outcome = reencrypt::run(data, &mut ledger, &NoStep, &options)?;
                sums.recovered += 1;
            }
            // Clients write to the volume as it stands, so it must be the same after a crash. After
            // the last step the ledger has ended.
            if outcome == Outcome::Stopped {
                ledger.secure()?;
            }
            drop(ledger);
            header = Self::header(on)?;
        }
        let is_under_way = header.reencryption()?.is_some();
        sums.begun += u64::from(is_under_way && !self.is_begun);
        sums.finished += u64::from(!is_under_way && self.is_begun);
        (self.is_under_way, self.is_begun) = (is_under_way, is_under_way);
        header.activate(&key, size, &ActivateOptions { detached: true, ..ActivateOptions::default() })
    }
}
