//! A short run of `examples/soak`: it prints its seed, with which it can be repeated.

mod play;

use std::path::Path;
use std::time::{Duration, Instant};

use play::dice::{Dice, seed};
use play::round::Setup;

/// Plays rounds of the wanted kind, one after the other.
fn play(seconds: u64, is_wanted: impl Fn(&Setup) -> bool) {
    let seed = seed();
    eprintln!("--seed {seed}");
    let mut dice = Dice::new(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let setup = Setup::new(dice.next());
        if is_wanted(&setup) {
            eprintln!("{setup}");
            setup.play(Path::new(env!("CARGO_TARGET_TMPDIR")), Duration::from_millis(700));
        }
    }
}

#[test]
fn volumes_are_disks_whatever_changes_and_fails() {
    play(12, |_| true);
}

#[test]
fn volumes_with_tags_are_disks() {
    play(12, |setup| setup.tags > 0);
}

#[test]
fn volumes_over_integrity_volumes_are_disks_whatever_the_mode_promises() {
    play(12, |setup| setup.layer.is_some());
}

#[test]
fn volumes_are_disks_while_they_are_reencrypted() {
    play(12, |setup| setup.rewrites);
}
