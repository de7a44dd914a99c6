//! Power cuts at critical times: during the recovery from an earlier cut, during a recalculation,
//! on a device with inline tags.

use super::crash::{each_crash, lose_power, recover};
use super::machine::{Event, Machine};
use super::world::{Dice, World, blocks};
use super::{Case, bitmaps, directs, hash, inline, journals, keyed};
use crate::{Recalculate, WriteMode};

#[test]
fn a_device_with_inline_tags_keeps_each_block_with_its_tag() {
    for (seed, case) in
        (1..).zip([inline(), Case::new("4096", WriteMode::Inline, hash("crc32c"), 4096, None)])
    {
        lose_power(&case, seed, 40);
    }
}

/// Random requests to a volume, and an unclean end.
fn live(case: &Case, machine: &Machine, world: &mut World, dice: &mut Dice) {
    machine.forget();
    let core = case.open(machine);
    for _ in 0..30 {
        world.act(&core, machine, dice).unwrap_or_else(|e| panic!("{}: {e:?}", case.name));
    }
}

#[test]
fn a_second_cut_amid_the_recovery_from_the_first_loses_nothing_more() {
    /// The number of states after the first cut that are recovered and cut again.
    const TRIED: u64 = 4;
    for (seed, case) in (1..).zip(journals().into_iter().chain(bitmaps()).chain(directs())) {
        let (mut dice, mut choice) = (Dice::new(seed), Dice::new(seed + 100));
        let machine = case.machine();
        let base = machine.images();
        let mut world = World::default();
        live(&case, &machine, &mut world, &mut dice);
        let events = machine.events();
        let mut states = Vec::new();
        each_crash(base, &events, &mut dice, |count, images, which| {
            if choice.below(events.len() as u64 * 8 / TRIED) == 0 {
                states.push((count, images.to_vec(), which.to_owned()));
            }
        });
        for (count, images, first) in states {
            let again = machine.after(&images);
            let core = case.open(&again);
            while core.recalculate(&mut again.way()).unwrap() {}
            core.close(&mut again.way()).unwrap();
            drop(core);
            each_crash(images, &again.events(), &mut dice, |_, images, second| {
                let what = format!("{}, seed {seed}, {first}, then {second}", case.name);
                recover(&case, &mut world, &machine.after(images), count, &what, &mut choice);
            });
        }
    }
}

#[test]
fn a_recalculation_beside_writes_is_cut_anywhere_and_goes_on() {
    let plain = |name, mode| Case::new(name, mode, hash("crc32c"), 512, Some(255));
    let with_mac = Case::new("J with a MAC", WriteMode::Journal, keyed("hmac(sha256)"), 512, Some(240))
        .with(|options| options.journal_mac = keyed("hmac(sha256)"));
    let cases = [
        plain("J", WriteMode::Journal),
        plain("B", WriteMode::Bitmap),
        plain("D", WriteMode::Direct),
        with_mac,
    ];
    for (seed, case) in (1..).zip(cases) {
        let case = case.with(|options| {
            options.recalculate = Recalculate::Begin;
            options.sectors_per_bit = Some(16);
        });
        let machine = case.clone().with(|options| options.recalculate = Recalculate::AsNeeded).machine();
        // All tags are wrong.
        let geometry = *case.open(&machine).geometry();
        let machine = machine.after(&machine.images());
        for block in 0..geometry.provided() / geometry.block_sectors() {
            machine
                .change(0, geometry.place(block * geometry.block_sectors()).tag as usize, |byte| *byte ^= 1);
        }
        let base = machine.images();
        let (mut dice, mut choice) = (Dice::new(seed), Dice::new(seed + 50));
        let mut world = World::default();
        let core = case.open(&machine);
        for _ in 0..40 {
            world.act(&core, &machine, &mut dice).unwrap();
        }
        while core.recalculate(&mut machine.way()).unwrap() {}
        core.close(&mut machine.way()).unwrap();
        world.flushed(&machine);
        assert!(blocks(&core) > 100 && core.status().recalculated.is_none());
        each_crash(base, &machine.events(), &mut dice, |count, images, which| {
            let what = format!("{}, seed {seed}, {which}", case.name);
            recover(&case, &mut world, &machine.after(images), count, &what, &mut choice);
        });
    }
}

/// The areas of the disk that a volume writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    Superblock,
    /// The journal or the bitmap.
    Journal,
    Tag,
    Data,
}

/// The areas that a case's life writes, which shows that the cuts cover everything.
fn areas(case: &Case) -> Vec<Area> {
    let machine = case.machine();
    let mut world = World::default();
    live(case, &machine, &mut world, &mut Dice::new(5));
    let core = case.open(&machine);
    while core.recalculate(&mut machine.way()).unwrap() {}
    for block in 0..blocks(&core) {
        let data = vec![7; core.geometry().block_size()];
        let tags = super::world::handed_tag(&core, &data);
        core.write(&mut machine.way(), block * data.len() as u64, &data, &tags).unwrap();
    }
    core.close(&mut machine.way()).unwrap();
    let geometry = core.geometry();
    let metadata = usize::from(case.meta);
    let places: Vec<_> = (0..blocks(&core)).map(|b| geometry.place(b * geometry.block_sectors())).collect();
    let of = |(disk, at): (usize, usize)| {
        let journal = geometry.journal_offset() as usize;
        let end = journal + geometry.journal_bytes() as usize;
        match at {
            _ if disk == metadata && at < journal => Area::Superblock,
            _ if disk == metadata && at < end => Area::Journal,
            _ if disk == 0 && places.iter().any(|place| place.data as usize == at) => Area::Data,
            _ => Area::Tag,
        }
    };
    let writes = machine.events().into_iter().filter_map(|event| match event {
        Event::Write { disk, at, .. } => Some(of((disk, at))),
        Event::Sync { .. } => None,
    });
    let mut areas = Vec::new();
    for area in writes {
        if !areas.contains(&area) {
            areas.push(area);
        }
    }
    areas
}

#[test]
fn what_is_cut_is_everything_that_a_volume_writes() {
    for case in journals() {
        let areas = areas(&case);
        for area in [Area::Journal, Area::Tag, Area::Data] {
            assert!(areas.contains(&area), "{}: {area:?} of {areas:?}", case.name);
        }
    }
    for case in bitmaps() {
        let areas = areas(&case);
        for area in [Area::Superblock, Area::Journal, Area::Tag, Area::Data] {
            assert!(areas.contains(&area), "{}: {area:?} of {areas:?}", case.name);
        }
    }
    for case in directs() {
        let areas = areas(&case);
        assert!(areas.contains(&Area::Tag) && areas.contains(&Area::Data), "{}: {areas:?}", case.name);
    }
}
