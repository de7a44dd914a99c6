//! Plays volumes against models of their disks, with faults and changes of all settings, for a
//! given time.
//!
//! `cargo run --release -p underseal-datapath --example soak -- --seconds 7200 --seed 1`; `--round
//! N` repeats one round of a failure: its threads may meet in another order. `--lower NbdShared`
//! plays over one kind of device only, `--reencrypt 1` only rounds with a reencryption, `--tags 1`
//! only rounds with authenticated volumes, `--layers 1` only rounds over integrity volumes.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

#[path = "../../tests/play/mod.rs"]
mod play;

use std::time::{Duration, Instant};

use play::dice::{Dice, seed};
use play::round::{Played, Setup};

fn main() {
    let mut words = std::env::args().skip(1);
    let (mut seconds, mut first, mut round, mut each, mut lower) = (60, seed(), None, 5, None);
    let (mut rewrites, mut tags, mut layers) = (None, None, None);
    while let Some(word) = words.next() {
        let text = words.next();
        let value = text.as_ref().and_then(|text| text.parse::<u64>().ok());
        match (word.as_str(), value) {
            ("--lower", None) if text.is_some() => lower = text,
            ("--seconds", Some(value)) => seconds = value,
            ("--each", Some(value)) => each = value,
            ("--seed", Some(value)) => first = value,
            ("--round", Some(value)) => round = Some(value),
            ("--reencrypt", Some(value)) => rewrites = Some(value != 0),
            ("--layers", Some(value)) => layers = Some(value != 0),
            ("--tags", Some(value)) => tags = Some(value != 0),
            _ => {
                eprintln!(
                    "usage: soak [--seconds N] [--seed S] [--round R] [--each SECONDS] [--lower DEVICE] \
                     [--reencrypt 0|1] [--tags 0|1] [--layers 0|1]"
                );
                std::process::exit(2);
            }
        }
    }
    let folder =
        tempfile::tempdir_in(std::env::current_dir().expect("there is a directory")).expect("it is writable");
    let begun = Instant::now();
    let mut dice = Dice::new(first);
    let mut sum = Played::default();
    println!("--seed {first} --seconds {seconds}");
    for number in 1.. {
        let wanted = |setup: &Setup| {
            lower.as_ref().is_none_or(|name| *name == format!("{:?}", setup.device))
                && rewrites.is_none_or(|wanted| wanted == setup.rewrites)
                && layers.is_none_or(|wanted| wanted == setup.layer.is_some())
                && tags.is_none_or(|wanted| wanted == (setup.tags > 0))
        };
        let mut rounds = std::iter::repeat_with(|| Setup::new(round.unwrap_or_else(|| dice.next())));
        // A thousand rounds have some over each device.
        let setup = rounds.by_ref().take(1000).find(wanted).expect("there is such a device");
        println!("{:6.0} s, round {number}: {setup}", begun.elapsed().as_secs_f64());
        let played = setup.play(folder.path(), Duration::from_secs(each.min(seconds)));
        sum.requests += played.requests;
        sum.checked += played.checked;
        sum.changes += played.changes;
        sum.cuts += played.cuts;
        sum.reencryptions.add(played.reencryptions);
        println!("         {played:?}");
        if begun.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
    }
    println!("clean after {:.0} s: {sum:?}", begun.elapsed().as_secs_f64());
}
