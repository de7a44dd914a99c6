//! The forms of a volume: how it is stored before and after each reencryption.

use std::sync::Arc;

use underseal_cipher::{Key, SectorSize, build};
use underseal_volume::reencrypt::{Direction, Mode, Moved, Plan, Protection, room};
use underseal_volume::{CipherParameters, Hash, Stored};

use super::dice::Dice;
use super::round::{CIPHERS, Setup};

const STRIPE: u64 = 64 << 10;
/// The limits of the volume's first byte on its device.
const LOWEST: u64 = STRIPE;
const HIGHEST: u64 = LOWEST + (1 << 20);
/// The longest step.
const LONGEST: u64 = 512 << 10;
/// The device's bytes beyond the volume's size: room for the start, and for the moved segment.
pub(crate) const ROOM: u64 = HIGHEST + LONGEST;

/// How a volume is stored.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    /// The cipher and its key's length; `None`: unencrypted.
    cipher: Option<(&'static str, u8)>,
    key: u64,
    sector: u32,
    lower: u64,
}

impl Form {
    pub(crate) fn first(setup: &Setup, dice: &mut Dice) -> Self {
        let lower = LOWEST + dice.below(16) * STRIPE;
        Self::new(setup, dice, lower, true)
    }

    fn new(setup: &Setup, dice: &mut Dice, lower: u64, encrypted: bool) -> Self {
        let sectors: Vec<u32> =
            [512, 4096, 16384, 65536].into_iter().filter(|sector| *sector <= setup.sector).collect();
        let sector = dice.pick(&sectors);
        // A torn sector is lost as a whole where its cipher is not local, as on any disk.
        let cipher = if setup.may_fail() && sector > 512 { CIPHERS[0] } else { dice.pick(&CIPHERS) };
        let plain = !encrypted && dice.one_in(4);
        let sector = if plain { 512 } else { sector };
        Self { cipher: (!plain).then_some(cipher), key: dice.next(), sector, lower }
    }

    pub(crate) fn key(&self) -> Option<Key> {
        let mut dice = Dice::new(self.key);
        let mut bytes = |len: u8| (0..len).map(|_| dice.next().to_le_bytes()[0]).collect::<Vec<u8>>();
        self.cipher.map(|(_, len)| Key::new(&bytes(len)).unwrap())
    }

    pub(crate) fn stored(&self) -> Stored {
        let sector_size = SectorSize::new(self.sector).unwrap();
        let spec = self.cipher.map_or("cipher_null-ecb", |(spec, _)| spec).parse().unwrap();
        let key = self.key().unwrap_or_else(|| Key::zeroed(0).unwrap());
        let cipher = build(&spec, &key, sector_size).unwrap();
        let cipher_parameters = CipherParameters {
            cipher: spec,
            sector_size,
            iv_large_sectors: false,
            key_size: key.len(),
            integrity: None,
        };
        let cipher_parameters = self.cipher.map(|_| Arc::new(cipher_parameters));
        let iv_offset = if cipher_parameters.is_some() { 128 * (self.key % 8) } else { 0 };
        Stored { device: 0, lower: self.lower, iv_offset, cipher, cipher_parameters }
    }
}

/// Another form, and the plan of the reencryption to it.
pub(crate) fn next(setup: &Setup, dice: &mut Dice, old: &Form) -> (Form, Plan) {
    loop {
        let (new, plan) = draw(setup, dice, old);
        // A plan that a crash could damage, by its own account, is not used in rounds with crashes.
        if plan.check().is_ok() && (!setup.may_fail() || plan.atomic() == Some(512)) {
            return (new, plan);
        }
    }
}

fn draw(setup: &Setup, dice: &mut Dice, old: &Form) -> (Form, Plan) {
    let shift = if dice.one_in(2) { (1 + dice.below(8)) * STRIPE } else { 0 };
    let up = shift > 0 && dice.one_in(2) && old.lower + shift <= HIGHEST;
    let down = shift > 0 && !up && old.lower >= LOWEST + shift;
    let lower = match (up, down) {
        (true, _) => old.lower + shift,
        (_, true) => old.lower - shift,
        _ => old.lower,
    };
    let new = Form::new(setup, dice, lower, old.cipher.is_none());
    let unit = u64::from(old.sector.max(new.sector));
    let moved = ((up || down) && dice.one_in(2)).then(|| {
        let aside = setup.size + HIGHEST;
        let len = (1 + dice.below(shift / unit)) * unit;
        Moved { lower: if down && dice.one_in(2) { lower } else { aside }, len }
    });
    let hash = dice.pick(&[Hash::Sha256, Hash::Sha1]);
    let checksum = Protection::Checksum { hash, block: unit.max(dice.pick(&[512, 4096])) };
    let in_place = lower == old.lower || moved.is_some_and(|moved| moved.lower == lower);
    let protection = match dice.below(5) {
        _ if !in_place => Protection::Source,
        0..3 => checksum,
        3 if !setup.may_fail() => Protection::None,
        _ => Protection::Journal,
    };
    let alignment = match protection {
        Protection::Checksum { block, .. } => block,
        _ => unit,
    };
    // The number of steps is limited.
    let shortest = (setup.size / 64).next_multiple_of(alignment);
    let hot_zone = (shortest + dice.below(8) * alignment.max(16384)).min(LONGEST) / alignment * alignment;
    let direction = match (up, down) {
        (true, _) => Direction::Backward,
        (_, true) => Direction::Forward,
        _ => dice.pick(&[Direction::Forward, Direction::Backward]),
    };
    let mode = match (old.cipher, new.cipher) {
        (None, _) => Mode::Encrypt,
        (_, None) => Mode::Decrypt,
        _ => Mode::Reencrypt,
    };
    let longest = moved.map_or(0, |moved| moved.len).max(hot_zone);
    let plan = Plan {
        mode,
        direction,
        size: setup.size,
        old: old.stored(),
        new: new.stored(),
        moved,
        protection,
        area: room(protection, longest),
        hot_zone,
        alignment,
    };
    (new, plan)
}
