//! The journal's room and its writes, one request at a time.

use super::crash::each_crash;
use super::machine::Event;
use super::world::{Dice, read};
use super::{Case, hash};
use crate::WriteMode;

fn journal() -> Case {
    Case::new("journal", WriteMode::Journal, hash("crc32c"), 512, None)
}

#[test]
fn blocks_that_follow_each_other_are_copied_back_with_one_write() {
    let machine = journal().machine();
    let core = journal().open(&machine);
    core.write(&mut machine.way(), 0, &[5; 4096], &[]).unwrap();
    core.flush(&mut machine.way()).unwrap();
    machine.forget();
    core.close(&mut machine.way()).unwrap();
    let place = core.geometry().place(0).data as usize;
    let lengths: Vec<usize> = machine
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Write { disk: 0, at, bytes, .. } if (place..place + 4096).contains(&at) => {
                Some(bytes.len())
            }
            _ => None,
        })
        .collect();
    assert_eq!(lengths, [4096]);
}

#[test]
fn the_status_counts_the_sections_whose_blocks_are_not_at_their_places() {
    let machine = journal().machine();
    let core = journal().open(&machine);
    let in_use = || core.status().journal.unwrap();
    let (before, limit) = in_use();
    core.write(&mut machine.way(), 0, &[5; 512], &[]).unwrap();
    assert_eq!((before, in_use()), (0, (1, limit)));
    core.close(&mut machine.way()).unwrap();
    assert!(in_use() == (0, limit) && limit > 0);
}

#[test]
fn a_thread_that_may_not_wait_fills_the_section_that_is_begun() {
    let case = journal().sections(1);
    let machine = case.machine();
    let core = case.open(&machine);
    core.write(&mut machine.way(), 0, &[5; 512], &[]).unwrap();
    let (in_use, limit) = core.status().journal.unwrap();
    assert_eq!(in_use, limit, "another section has room");
    core.write(&mut machine.way_at_once(), 512, &[6; 512], &[]).unwrap();
}

#[test]
fn a_flush_of_one_section_keeps_those_that_were_written_before_it() {
    let case = Case::new("journal", WriteMode::Journal, hash("crc32c"), 512, Some(255)).sections(8);
    let machine = case.machine();
    let core = case.open(&machine);
    let base = machine.images();
    machine.forget();
    let blocks = core.geometry().section().entries() as u64 + 1;
    for block in 0..blocks {
        if block == blocks - 1 {
            // The full section is written, and may still be in the disk's memory.
            core.tend(&mut machine.way()).unwrap();
            assert!(machine.count() > 0, "the full section is not written");
        }
        core.write(&mut machine.way(), block * 512, &[block as u8 + 1; 512], &[]).unwrap();
    }
    core.flush(&mut machine.way()).unwrap();
    drop(core);
    let events = machine.events();
    each_crash(base, &events, &mut Dice::new(1), |seen, images, what| {
        if seen == events.len() {
            let crashed = machine.after(images);
            let core = case.open(&crashed);
            for block in 0..blocks {
                let data = read(&core, &mut crashed.way(), block).unwrap();
                assert_eq!(data, [block as u8 + 1; 512], "{what}: block {block}");
            }
        }
    });
}
