//! Records whose sync fails: reads still return the new record, and the disk has the previous
//! record.

use super::faults::{Disk, Fault};
use super::state::{Keys, State, StateLedger};
use super::*;
use crate::LockTo;

/// Resumes until the end, or until a failure.
fn go_on(shape: &Shape, on: &Disk, data: &Disk) -> Result<Outcome> {
    let [old, new] = [shape.old.key(OLD), shape.new.key(NEW)];
    let keys = Keys { old: old.as_ref(), new: new.as_ref() };
    let mut ledger = State::read(on, LockTo::Change)?.unlock(keys, shape.plan().end())?;
    run(data, &mut ledger, &Alone, &Options { workers: 1, ..Options::default() })
}

fn begun(shape: &Shape) -> Disk {
    let [old, new] = [shape.old.key(OLD), shape.new.key(NEW)];
    let (plan, keys) = (shape.plan(), Keys { old: old.as_ref(), new: new.as_ref() });
    let on = Disk::new(vec![0; (32 << 10) + usize::try_from(plan.area).unwrap()]);
    let end = plan.end();
    StateLedger::create(&on, plan, keys, end, 1).unwrap();
    on
}

/// A sync of the ledger fails, and the reencryption is resumed, as by the next process. Then a loss
/// of power follows; unsynced bytes arrive or not.
fn play(shape: &Shape, fails: u64, dies: u64, arrives: bool) -> bool {
    let plain = shape.plain();
    let (on, data) = (begun(shape), Disk::new(shape.disk(&plain)));
    on.set(Some(Fault::Sync(fails)));
    let failed = go_on(shape, &on, &data).is_err();
    on.set(Some(Fault::Dead(dies)));
    let died = go_on(shape, &on, &data).is_err();
    on.set(None);
    on.lose_power(|| arrives);
    data.lose_power(|| arrives);
    let end = go_on(shape, &on, &data);
    assert_eq!(end.unwrap(), Outcome::Finished, "{:?} {fails} {dies}", shape.protection);
    let volume = shape.plan().volume(Progress { done: shape.size, hot: None }).unwrap();
    let found = read(&volume, &data, 0, plain.len());
    assert!(found == plain, "{:?} {fails} {dies} {arrives}: bytes are lost", shape.protection);
    failed && died
}

#[test]
fn a_record_whose_sync_failed_is_made_sure_of_before_anything_relies_on_it() {
    let shift =
        Shape { protection: Protection::None, ..shifted(form(XTS, 512, 0), form(XTS, 512, 1024), 4096) };
    let (old, new) = (form(XTS, 512, 0), form(XTS, 512, 0));
    let shapes =
        [in_place(old, new, 4096, checksum(512)), in_place(old, new, 4096, Protection::Journal), shift];
    let mut both = 0;
    for shape in shapes {
        for (fails, dies) in (0..14).flat_map(|fails| (0..24).map(move |dies| (fails, dies))) {
            both += [false, true].into_iter().filter(|arrives| play(&shape, fails, dies, *arrives)).count();
        }
    }
    assert!(both > 400, "{both}");
}
