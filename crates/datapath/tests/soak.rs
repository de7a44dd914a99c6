//! A short run of `examples/soak`: its seed is printed, and plays the same again.

mod play;

use std::path::Path;
use std::time::{Duration, Instant};

use play::dice::{Dice, seed};
use play::round::Setup;

#[test]
fn volumes_are_disks_whatever_changes_and_fails() {
    let seed = seed();
    eprintln!("--seed {seed}");
    let mut dice = Dice::new(seed);
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        let setup = Setup::new(dice.next());
        eprintln!("{setup}");
        setup.play(Path::new(env!("CARGO_TARGET_TMPDIR")), Duration::from_millis(700));
    }
}
