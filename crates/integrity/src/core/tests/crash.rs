//! A power cut after every write: flushed writes are kept, all other blocks are old or new, and no
//! tag mismatches.

use super::machine::{Event, Machine};
use super::world::{Dice, World};
use super::{Case, TUPLE, bitmaps, directs, hash, journals};
use crate::{Recalculate, WriteMode};

const SECTOR: usize = 512;

/// Calls `check` with possible disks after each event: the number of events, the images, and a
/// description.
pub(super) fn each_crash(
    base: Vec<Vec<u8>>,
    events: &[Event],
    dice: &mut Dice,
    mut check: impl FnMut(usize, &[Vec<u8>], &str),
) {
    let mut synced = base;
    let mut pending: Vec<Pending<'_>> = Vec::new();
    for (i, event) in events.iter().enumerate() {
        match event {
            Event::Write { disk, at, bytes, tuples } => {
                pending.push(Pending { disk: *disk, at: *at, bytes, tuples: tuples.as_ref() });
            }
            Event::Sync { disk, range } => {
                pending.retain(|write| {
                    let stays = write.disk != *disk || !range.contains(&write.at);
                    if !stays {
                        (0..write.parts()).for_each(|part| write.arrive(part, &mut synced));
                    }
                    stays
                });
            }
        }
        let mut state = |which: &str, arrives: &mut dyn FnMut(usize, usize) -> bool| {
            let mut images = synced.clone();
            for (number, write) in pending.iter().enumerate() {
                (0..write.parts())
                    .filter(|part| arrives(number, *part))
                    .for_each(|part| write.arrive(part, &mut images));
            }
            check(i + 1, &images, &format!("event {} of {}: {which}", i + 1, events.len()));
        };
        let last = pending.len().saturating_sub(1);
        state("nothing arrived", &mut |_, _| false);
        state("everything arrived", &mut |_, _| true);
        if pending.is_empty() {
            continue;
        }
        state("only the last write", &mut |number, _| number == last);
        let lost = dice.below(pending.len() as u64) as usize;
        state("all but one write", &mut |number, _| number != lost);
        state("every sector by chance", &mut |_, _| dice.below(2) == 0);
        let whole: Vec<bool> = pending.iter().map(|_| dice.below(2) == 0).collect();
        state("every write by chance", &mut |number, _| whole[number]);
        let torn = dice.below(pending[last].parts() as u64 + 1) as usize;
        state("the last one torn", &mut |number, k| number < last || k < torn);
        state("most sectors", &mut |_, _| dice.below(16) != 0);
    }
}

/// A write that is not on the medium yet.
struct Pending<'e> {
    disk: usize,
    at: usize,
    bytes: &'e [u8],
    tuples: Option<&'e (usize, Vec<u8>)>,
}

impl Pending<'_> {
    /// The size of an atomic part: a sector, or a block with its tuple.
    fn part(&self) -> usize {
        self.tuples.map_or(SECTOR, |(_, tuples)| self.bytes.len() / (tuples.len() / TUPLE))
    }

    fn parts(&self) -> usize {
        self.bytes.len().div_ceil(self.part())
    }

    fn arrive(&self, nth: usize, images: &mut [Vec<u8>]) {
        let at = nth * self.part();
        let bytes = &self.bytes[at..(at + self.part()).min(self.bytes.len())];
        images[self.disk][self.at + at..][..bytes.len()].copy_from_slice(bytes);
        if let Some((to, tuples)) = self.tuples {
            images[1][to + nth * TUPLE..][..TUPLE].copy_from_slice(&tuples[nth * TUPLE..][..TUPLE]);
        }
    }
}

/// Checks a volume after a crash: opens it, recalculates tags where necessary, and reads all
/// blocks.
pub(super) fn recover(
    case: &Case,
    world: &mut World,
    machine: &Machine,
    events: usize,
    what: &str,
    dice: &mut Dice,
) {
    let core = case.open(machine);
    let mut way = machine.way();
    // The check runs before all tags are made, or after.
    if dice.below(3) > 0 {
        while core.recalculate(&mut way).unwrap() {}
    }
    world.check(&core, machine, events, what);
    while core.recalculate(&mut way).unwrap() {}
    world.check(&core, machine, events, what);
    let status = core.status();
    assert!(status.failed.is_none() && status.recalculated.is_none(), "{what}");
}

/// Continues with a volume after a crash, without losing more.
fn go_on(case: &Case, machine: &Machine, what: &str, dice: &mut Dice) {
    let mut world = World::default();
    {
        let core = case.open(machine);
        while core.recalculate(&mut machine.way()).unwrap() {}
        let size = core.geometry().block_size();
        // All blocks are overwritten.
        for block in 0..super::world::blocks(&core) {
            let data = vec![0; size];
            let tags = super::world::handed_tag(&core, &data);
            core.write(&mut machine.way(), block * size as u64, &data, &tags).unwrap();
        }
        (0..10).for_each(|_| world.act(&core, machine, dice).unwrap());
        world.flush(&core, machine).unwrap();
        if dice.below(2) == 0 {
            core.close(&mut machine.way()).unwrap();
        }
    }
    let core = case.open(machine);
    while core.recalculate(&mut machine.way()).unwrap() {}
    world.check_newest(&core, machine, what);
}

pub(super) fn lose_power(case: &Case, seed: u64, acts: usize) {
    let mut dice = Dice::new(seed);
    let machine = case.machine();
    let mut base = machine.images();
    let mut world = World::default();
    // The second life begins with a used journal.
    for life in 0..2 {
        machine.forget();
        let core = case.open(&machine);
        for _ in 0..acts {
            let done = world.act(&core, &machine, &mut dice);
            done.unwrap_or_else(|e| panic!("{}: {e:?}", case.name));
        }
        if life == 1 || dice.below(2) == 0 {
            core.close(&mut machine.way()).unwrap();
            world.flushed(&machine);
        } else {
            world.flush(&core, &machine).unwrap();
        }
        let events = machine.events();
        let mut chance = Dice::new(seed + 1);
        let mut choice = Dice::new(seed + 2);
        each_crash(std::mem::take(&mut base), &events, &mut chance, |count, images, which| {
            let what = format!("{}, seed {seed}, life {life}, {which}", case.name);
            let crashed = machine.after(images);
            recover(case, &mut world, &crashed, count, &what, &mut choice);
            if choice.below(16) == 0 {
                go_on(case, &crashed, &what, &mut choice);
            }
        });
        base = machine.images();
        world.begin_again();
    }
}

#[test]
fn a_journal_keeps_what_was_flushed_and_every_block_whole() {
    for (seed, case) in (1..).zip(journals()) {
        lose_power(&case, seed, 40);
    }
}

/// A flushed block is written again, and its older entry is freed without being copied. The section
/// that takes that entry's place in the ring waits until the newer entry is durable: otherwise a
/// disk that writes the later section first loses both.
#[test]
fn a_section_is_overwritten_only_when_what_was_written_again_is_durable() {
    const SIZE: usize = 4096;
    let case = Case::new("written again", WriteMode::Journal, hash("crc32c"), 4096, Some(200)).sections(3);
    let machine = case.machine();
    let core = case.open(&machine);
    let write = |block: u64, byte: u8| {
        core.write(&mut machine.way(), block * SIZE as u64, &[byte; SIZE], &[]).unwrap();
    };
    write(0, 1);
    core.flush(&mut machine.way()).unwrap();
    // The section takes more entries, so it is not written when the first one is freed.
    write(0, 2);
    core.tend(&mut machine.way()).unwrap();
    let base = machine.images();
    machine.forget();
    // The rest of that section, the next section, and the one that takes the first one's place.
    let others = super::world::blocks(&core) - 1;
    (0..3 * core.geometry().section().entries() as u64 - 1).for_each(|i| write(1 + i % others, 3));
    assert_eq!(machine.count(), 0, "all of it is in memory");
    core.tend(&mut machine.way()).unwrap();
    let first = core.geometry().section_offset(0) as usize;
    let events = machine.events();
    assert!(events.iter().any(|event| matches!(event, Event::Write { at, .. } if *at == first)));
    each_crash(base, &events, &mut Dice::new(1), |_, images, what| {
        let crashed = machine.after(images);
        let core = case.open(&crashed);
        let data = super::world::read(&core, &mut crashed.way(), 0).unwrap();
        assert!(data == [1; SIZE] || data == [2; SIZE], "{what}: the block begins with {:?}", &data[..8]);
    });
}

#[test]
fn a_bitmap_keeps_what_was_flushed_and_tags_are_made_anew() {
    for (seed, case) in (1..).zip(bitmaps()) {
        lose_power(&case, seed, 40);
    }
}

#[test]
fn direct_mode_keeps_what_was_flushed() {
    for (seed, case) in (1..).zip(directs()) {
        lose_power(&case, seed, 40);
    }
}

#[test]
fn a_recalculation_goes_on_where_it_was_or_before() {
    for mode in [WriteMode::Journal, WriteMode::Bitmap, WriteMode::Direct] {
        let case = Case::new("recalculating", mode, hash("sha256"), 512, Some(200))
            .with(|o| o.sectors_per_bit = Some(16));
        let machine = case.machine();
        // The data has no matching tags.
        let place = case.open(&machine).geometry().place(0);
        let machine = machine.after(&machine.images());
        for at in 0..32 * SECTOR {
            machine.change(0, place.data as usize + at, |byte| *byte = at as u8);
        }
        let base = machine.images();
        let begin = case.clone().with(|options| options.recalculate = Recalculate::Begin);
        {
            let core = begin.open(&machine);
            while core.recalculate(&mut machine.way()).unwrap() {}
            core.close(&mut machine.way()).unwrap();
        }
        each_crash(base, &machine.events(), &mut Dice::new(5), |_, images, what| {
            let crashed = machine.after(images);
            let core = begin.open(&crashed);
            while core.recalculate(&mut crashed.way()).unwrap() {}
            let mut data = vec![0; 32 * SECTOR];
            let read = core.read(&mut crashed.way(), 0, &mut data, &mut []);
            read.unwrap_or_else(|e| panic!("{mode:?} {what}: {e:?}"));
            assert!(data.iter().enumerate().all(|(at, byte)| *byte == at as u8), "{mode:?} {what}");
        });
    }
}

#[test]
fn what_was_open_in_one_mode_opens_in_the_others() {
    let modes = [
        WriteMode::Journal,
        WriteMode::Bitmap,
        WriteMode::Direct,
        WriteMode::Journal,
        WriteMode::Direct,
        WriteMode::Bitmap,
        WriteMode::Journal,
    ];
    for (case, close) in journals()
        .into_iter()
        .filter(|case| case.options.hash.is_some())
        .flat_map(|c| [(c.clone(), true), (c, false)])
    {
        let case = case.with(|options| options.legacy_recalculate = true);
        let machine = case.machine();
        let (mut world, mut dice) = (World::default(), Dice::new(9));
        for mode in modes {
            let case = case.clone().with(|options| options.mode = mode);
            let core = case.open(&machine);
            while core.recalculate(&mut machine.way()).unwrap() {}
            world.check_newest(&core, &machine, &format!("{}, now {mode:?}, closed: {close}", case.name));
            (0..20).for_each(|_| world.act(&core, &machine, &mut dice).unwrap());
            match close {
                true => core.close(&mut machine.way()).unwrap(),
                false => world.flush(&core, &machine).unwrap(),
            }
        }
    }
}

#[test]
fn a_power_cut_while_a_bitmap_is_taken_in_leaves_no_tag_that_is_wrong() {
    let bitmap = |sectors| {
        Case::new("bitmap", WriteMode::Bitmap, hash("crc32c"), 512, Some(255))
            .with(|options| options.sectors_per_bit = Some(sectors))
    };
    let others = [bitmap(32), bitmap(16).with(|options| options.mode = WriteMode::Journal)];
    for (seed, other) in (1..).zip(others) {
        let case = bitmap(16);
        let machine = case.machine();
        {
            // Tags are in memory at the power cut.
            let core = case.open(&machine);
            for block in 0..super::world::blocks(&core) {
                core.write(&mut machine.way(), block * 512, &[block as u8; 512], &[]).unwrap();
            }
        }
        let base = machine.images();
        machine.forget();
        drop(other.open(&machine));
        each_crash(base, &machine.events(), &mut Dice::new(seed), |_, images, what| {
            for next in [bitmap(16), bitmap(32)] {
                let crashed = machine.after(images);
                let core = next.open(&crashed);
                while core.recalculate(&mut crashed.way()).unwrap() {}
                for block in 0..super::world::blocks(&core) {
                    let data = super::world::read(&core, &mut crashed.way(), block);
                    let data = data.unwrap_or_else(|e| panic!("{seed}, {what}: block {block}: {e:?}"));
                    assert_eq!(data, [block as u8; 512], "{seed}, {what}");
                }
            }
        });
    }
}

#[test]
fn a_bitmap_that_is_closed_when_all_is_sound_asks_for_no_recalculation() {
    let case = Case::new("bitmap", WriteMode::Bitmap, hash("crc32c"), 512, Some(255))
        .with(|options| options.sectors_per_bit = Some(16));
    let machine = case.machine();
    let core = case.open(&machine);
    core.write(&mut machine.way(), 0, &[1; 512], &[]).unwrap();
    core.flush(&mut machine.way()).unwrap();
    drop(core);
    let core = case.open(&machine);
    assert!(core.recalculate(&mut machine.way()).unwrap(), "the last step is not taken");
    core.close(&mut machine.way()).unwrap();
    let direct = case.with(|options| options.mode = WriteMode::Direct).open(&machine);
    assert_eq!(direct.status().recalculated, None);
}
