//! Failing disks, changed bytes, and reads without tags on purpose.

use super::super::Stop;
use super::world::{Dice, World, blocks, read};
use super::{Case, bitmaps, directs, hash, journals};
use crate::{DISCARDED, WriteMode};

#[test]
fn a_disk_that_fails_makes_every_flush_fail_and_loses_nothing_that_was_flushed() {
    let mut failures = 0;
    for (case, lives) in
        journals().into_iter().chain(bitmaps()).flat_map(|case| (0..60).map(move |n| (case.clone(), n)))
    {
        let machine = case.machine();
        let (mut world, mut dice) = (World::default(), Dice::new(3));
        let core = case.open(&machine);
        machine.break_after(lives);
        let mut failed = false;
        for _ in 0..60 {
            failed |= world.act(&core, &machine, &mut dice).is_err();
        }
        failed |= core.flush(&mut machine.way()).is_err();
        failures += u32::from(failed);
        machine.break_after(-1);
        let is_final = core.status().failed.is_some();
        if is_final {
            let Err(Stop::Failed(e)) = core.flush(&mut machine.way()) else { panic!("it must fail") };
            assert_eq!(e.errno(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
            assert!(core.write(&mut machine.way(), 0, &vec![0; core.geometry().block_size()], &[]).is_err());
            assert!(core.close(&mut machine.way()).is_err(), "nothing is called clean");
        }
        drop(core);
        let core = case.open(&machine);
        while core.recalculate(&mut machine.way()).unwrap() {}
        world.check(&core, &machine, usize::MAX, &format!("{} after {lives}", case.name));
    }
    assert!(failures > 300, "only {failures} did fail");
}

#[test]
fn a_byte_that_changed_is_noticed_counted_and_told_with_its_sector() {
    for case in
        journals().into_iter().chain(bitmaps()).chain(directs()).filter(|case| case.options.hash.is_some())
    {
        let machine = case.machine();
        let core = case.open(&machine);
        let spb = core.geometry().block_sectors();
        let place = core.geometry().place(3 * spb);
        machine.change(0, place.data as usize + 5, |byte| *byte ^= 1);
        let mut data = vec![1; core.geometry().block_size() * 8];
        let Err(Stop::Failed(e)) = core.read(&mut machine.way(), 0, &mut data, &mut []) else {
            panic!("{}", case.name)
        };
        assert_eq!(e.errno(), Some(rustix::io::Errno::ILSEQ.raw_os_error()));
        assert!(data.iter().all(|byte| *byte == 0), "nothing of it is given away");
        let status = core.status();
        assert_eq!((status.mismatches, status.first_mismatches), (1, vec![3 * spb]), "{}", case.name);
        assert!(read(&core, &mut machine.way(), 2).is_ok() && read(&core, &mut machine.way(), 3).is_err());
        // A new write makes the block valid.
        let block = core.geometry().block_size();
        core.write(&mut machine.way(), 3 * block as u64, &vec![7; block], &[]).unwrap();
        assert_eq!(read(&core, &mut machine.way(), 3).unwrap(), vec![7; block]);
    }
}

#[test]
fn recovery_reads_everything_and_changes_nothing() {
    let case = Case::new("recovery", WriteMode::Journal, hash("crc32c"), 512, None).sections(1);
    let machine = case.machine();
    let place = case.open(&machine).geometry().place(0);
    machine.change(0, place.data as usize, |byte| *byte = 1);
    let before = machine.images();
    let core = case.clone().with(|options| options.mode = WriteMode::Recovery).open(&machine);
    assert_eq!(read(&core, &mut machine.way(), 0).unwrap()[0], 1);
    assert!(core.write(&mut machine.way(), 0, &[0; 512], &[]).is_err());
    core.flush(&mut machine.way()).unwrap();
    core.close(&mut machine.way()).unwrap();
    assert!(machine.images() == before);
}

#[test]
fn what_was_discarded_reads_as_anything_where_discards_are_allowed() {
    for mode in [WriteMode::Journal, WriteMode::Bitmap, WriteMode::Direct] {
        let case = Case::new("discards", mode, hash("sha256"), 512, None)
            .sections(1)
            .with(|o| o.allow_discards = true);
        let machine = case.machine();
        let core = case.open(&machine);
        core.write(&mut machine.way(), 512, &[5; 1024], &[]).unwrap();
        core.discard(&mut machine.way(), 1024, 1024).unwrap();
        assert_eq!(read(&core, &mut machine.way(), 1).unwrap(), [5; 512]);
        assert_eq!(read(&core, &mut machine.way(), 2).unwrap(), [0xdd; 512], "{mode:?}");
        core.close(&mut machine.way()).unwrap();
        let tag = core.geometry().place(2).tag as usize;
        assert!(machine.images()[0][tag..tag + 64].iter().all(|byte| *byte == DISCARDED));
        let core = case.open(&machine);
        assert_eq!(read(&core, &mut machine.way(), 3).unwrap(), [0xdd; 512], "{mode:?}");
        let strict = case.with(|options| options.allow_discards = false).open(&machine);
        assert!(read(&strict, &mut machine.way(), 3).is_err());
        assert!(blocks(&strict) > 4);
    }
}
