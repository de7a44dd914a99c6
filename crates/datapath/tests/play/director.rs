//! Changes all settings while the players play.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use underseal_datapath::{Affinity, Dispatch, ErrorKind, Mapping, Policy, RangeMover, WriteOrder};
use underseal_device::IoKind;
use underseal_device_lab::{Fault, FaultControl, Rule};
use underseal_volume::Volume;

use super::dice::Dice;
use super::disk::tick;
use super::layers::Layers;
use super::rewriter::Rewriter;
use super::round::{Devices, Setup, Shared};
use super::site::Site;

/// Longer than any request takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// The disk is full.
const FULL: Fault = Fault::Error(28);

/// Directs a round. Returns the numbers of policies and power cuts.
pub(crate) fn direct(
    setup: &Setup,
    shared: &Shared,
    mut rewriter: Option<Rewriter>,
    devices: &Devices,
    until: Instant,
) -> (u64, u64) {
    let mut dice = Dice::of(setup.seed, 1);
    let (mut changes, mut cuts) = (0, 0);
    // After its first write error a layer must be opened again.
    let is_final = setup.faults && setup.layer.is_some();
    change(setup, &shared.mapping(), &mut dice);
    while Instant::now() < until && !shared.stop.load(SeqCst) {
        thread::sleep(Duration::from_micros(dice.length(20_000)));
        let mapping = &shared.mapping();
        if let Some(rewriter) = &mut rewriter {
            rewriter.direct(mapping, &mut dice);
        }
        match dice.below(100) {
            0..60 => {
                change(setup, mapping, &mut dice);
                changes += 1;
            }
            60..75 => suspend(setup, shared, mapping, &mut dice),
            75..85 if setup.faults || setup.tags > 0 || setup.layer.is_some() => {
                devices.controls.iter().for_each(|control| inject(setup, control, &mut dice));
                if is_final {
                    thread::sleep(Duration::from_micros(dice.length(30_000)));
                    cut_power(setup, shared, devices, None, &mut dice);
                    cuts += 1;
                }
            }
            85..90 if setup.cache || setup.rewrites || setup.layer.is_some() => {
                cut_power(setup, shared, devices, rewriter.as_mut(), &mut dice);
                cuts += 1;
            }
            90..95 if !setup.rewrites && setup.tags == 0 && setup.layer.is_none() => {
                claim(setup, mapping, &mut dice)
            }
            _ => {
                let stats = mapping.stats();
                assert!(
                    stats.in_flight
                        <= u64::from(setup.queue.depth.max(setup.other.depth)) * (setup.threads + 1) * 2
                );
            }
        }
    }
    if let Some(rewriter) = rewriter.as_mut().filter(|_| !shared.stop.load(SeqCst)) {
        devices.controls.iter().for_each(|control| control.clear());
        rewriter.finish(&shared.mapping());
        assert_eq!(shared.mapping().volume().unwrap().segments().len(), 1);
        // A later process opens the volume after this.
        cut_power(setup, shared, devices, Some(rewriter), &mut dice);
    }
    if is_final && !shared.stop.load(SeqCst) {
        cut_power(setup, shared, devices, None, &mut dice);
    }
    (changes, cuts)
}

/// Sets another policy. Where writes keep their order, some policies are refused.
fn change(setup: &Setup, mapping: &Mapping, dice: &mut Dice) {
    let policy = policy(dice);
    let keeps_order = policy.write == Dispatch::Inline || policy.write_order == WriteOrder::Arrival;
    let allowed = keeps_order || !setup.is_zoned();
    assert_eq!(mapping.set_policy(policy).is_ok(), allowed, "{policy}");
}

pub(crate) fn policy(dice: &mut Dice) -> Policy {
    let all = [
        Dispatch::Inline,
        Dispatch::Workers { affinity: Affinity::Any },
        Dispatch::Workers { affinity: Affinity::SameCpu },
        Dispatch::Adaptive,
    ];
    let sizes = [None, None, Some(512), Some(4096), Some(128 << 10)];
    Policy {
        read: dice.pick(&all),
        write: dice.pick(&all),
        write_order: dice.pick(&[WriteOrder::AsReady, WriteOrder::Sorted, WriteOrder::Arrival]),
        high_priority: false,
        max_read_size: dice.pick(&sizes),
        max_write_size: dice.pick(&sizes),
    }
}

fn suspend(setup: &Setup, shared: &Shared, mapping: &Mapping, dice: &mut Dice) {
    let refused = |e: underseal_datapath::Error| e.kind();
    // Keys must not change during a reencryption.
    if !setup.rewrites {
        assert_eq!(mapping.wipe_key().map_err(refused), Err(ErrorKind::NotSuspended));
    }
    let begun = tick(&shared.clock);
    match mapping.suspend(LONG) {
        // The suspension flushes, for all players.
        Ok(()) => shared.has_flushed(begun),
        // The flush failed: the volume runs on.
        Err(e) if setup.may_fail() && [ErrorKind::Lower, ErrorKind::NoSpace].contains(&e.kind()) => return,
        Err(e) => panic!("{e}"),
    }
    assert!(mapping.is_suspended());
    if !setup.rewrites && dice.one_in(2) {
        mapping.wipe_key().unwrap();
        assert_eq!(mapping.resume().map_err(refused), Err(ErrorKind::NoKey));
        mapping.replace_volume(setup.volume(1)).unwrap();
    }
    if dice.one_in(2) {
        change(setup, mapping, dice);
    }
    thread::sleep(Duration::from_micros(dice.length(3000)));
    mapping.resume().unwrap();
}

/// Locks ranges of the volume as a range mover, and replaces their layout.
fn claim(setup: &Setup, mapping: &Arc<Mapping>, dice: &mut Dice) {
    let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
    for _ in 0..dice.length(4) {
        let sector = u64::from(setup.sector);
        let start = dice.below(setup.size / sector) * sector;
        let end = (start + dice.length(1 << 10) * sector).min(setup.size);
        let claim = mover.claim(start..end, LONG).unwrap();
        thread::sleep(Duration::from_micros(dice.length(1000)));
        // The keys are unchanged: only positions may change.
        claim.relay(Volume::clone(&mapping.volume().unwrap())).unwrap();
    }
}

fn inject(setup: &Setup, control: &FaultControl, dice: &mut Dice) {
    control.clear();
    let some = |dice: &mut Dice| dice.pick(&[0.0, 0.01, 0.1]);
    let delay = Fault::Delay(Duration::from_micros(dice.length(2000)));
    let writes = [IoKind::Read, IoKind::Write, IoKind::Flush, IoKind::Zero, IoKind::Discard];
    let faults = [(delay, 0.1), (Fault::EIO, 0.0), (FULL, 0.0), (Fault::Torn, 0.0), (Fault::Short, 0.3)];
    for (fault, chance) in faults {
        let chance = if chance > 0.0 { chance } else { some(dice) };
        let fails = !matches!(fault, Fault::Delay(_) | Fault::Short);
        if dice.one_in(2) && chance > 0.0 && (setup.faults || !fails) {
            control.add(Rule::new(fault).on(dice.pick(&writes)).chance(chance));
        }
    }
}

/// The order matters: requests in flight when the power goes end before it comes back. In a round
/// without faults, the volume is only closed and opened again.
fn cut_power(
    setup: &Setup,
    shared: &Shared,
    devices: &Devices,
    mut rewriter: Option<&mut Rewriter>,
    dice: &mut Dice,
) {
    if let Some(rewriter) = rewriter.as_ref().filter(|_| dice.one_in(2)) {
        // In the middle of a step, if one begins soon.
        let end = Instant::now() + Duration::from_millis(50);
        while !rewriter.site.writes.load(SeqCst) && Instant::now() < end {
            thread::yield_now();
        }
        thread::sleep(Duration::from_micros(dice.length(500)));
    }
    shared.uncertain.store(true, SeqCst);
    // A failed layer is opened again with or without a power cut.
    let is_closed_only = setup.faults && setup.layer.is_some() && dice.one_in(3);
    if setup.may_fail() && !is_closed_only {
        rewriter.iter().for_each(|rewriter| rewriter.site.is_off.store(true, SeqCst));
        devices.go_off(dice.one_in(2));
    }
    rewriter.iter_mut().for_each(|rewriter| rewriter.stop());
    shared.drained.store(0, SeqCst);
    shared.cuts.fetch_add(1, SeqCst);
    while shared.drained.load(SeqCst) < setup.threads && !shared.stop.load(SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
    if let Some(layers) = &devices.layers {
        assert!(layers.close() || setup.may_fail(), "{setup}: a layer could not be left clean");
    }
    devices.go_on();
    if let Some(layers) = &devices.layers {
        reopen_layers(setup, layers, devices, dice);
        shared.set_mapping(setup.open(setup.volume(1), devices));
    }
    if let Some(rewriter) = rewriter {
        rewriter.site.is_off.store(false, SeqCst);
        let volume = reopen(setup, &rewriter.site, devices, dice);
        shared.set_mapping(setup.open(volume, devices));
    }
    shared.uncertain.store(false, SeqCst);
    shared.restored.fetch_add(1, SeqCst);
}

/// Opens the layers as they stand: their journals are replayed, which may be cut too.
fn reopen_layers(setup: &Setup, layers: &Layers, devices: &Devices, dice: &mut Dice) {
    while setup.may_fail() && dice.one_in(3) {
        thread::scope(|scope| {
            let opening = scope.spawn(|| layers.open());
            thread::sleep(Duration::from_micros(dice.length(5000)));
            devices.go_off(dice.one_in(2));
            let _ = opening.join().unwrap_or_else(|panic| resume_unwind(panic));
        });
        layers.close();
        devices.go_on();
    }
    devices.controls.iter().for_each(|control| control.clear());
    layers.open().unwrap_or_else(|e| panic!("{setup}: {}", underseal_error::with_causes(&e)));
}

/// Opens the volume as it stands, which may fail or be cut.
fn reopen(setup: &Setup, site: &Site, devices: &Devices, dice: &mut Dice) -> Volume {
    for attempt in 0.. {
        if attempt > 3 {
            devices.controls.iter().for_each(|control| control.clear());
        }
        let cuts = setup.may_fail() && dice.one_in(3);
        let opened = thread::scope(|scope| {
            let opening = scope.spawn(|| site.open());
            if cuts {
                thread::sleep(Duration::from_micros(dice.length(5000)));
                devices.go_off(dice.one_in(2));
            }
            opening.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        devices.go_on();
        match opened {
            Ok(volume) if !cuts => return volume.with_discards(setup.discards),
            Err(e) if !setup.may_fail() => panic!("{e}"),
            _ => {}
        }
    }
    unreachable!("it tries for ever")
}
