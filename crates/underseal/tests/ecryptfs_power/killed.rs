//! The server is killed, and mounted again on the same lower folder.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::ecryptfs_power::check::Found;
use crate::ecryptfs_power::rounds;
use crate::ecryptfs_power::writer::{Safe, Writer};
use crate::support::seed;

const WRITERS: u64 = 3;

#[test]
fn nothing_that_was_acknowledged_is_lost_with_the_server() {
    let test = "nothing_that_was_acknowledged_is_lost_with_the_server";
    if unable(test) {
        return;
    }
    let seed = seed(test);
    for round in 0..rounds(6) {
        let options = ["", "ecryptfs_xattr_metadata", "ecryptfs_enable_filename_crypto"];
        let options = options[usize::try_from(round).unwrap() % options.len()];
        killed(options, seed.wrapping_add(round), &format!("{test}, {options}, round {round}"));
    }
}

fn killed(options: &str, seed: u64, what: &str) {
    let mut rng = Rng::with_seed(seed);
    let folder = Folder::new();
    let mount = folder.mount(options);
    let shown: Vec<_> = (0..WRITERS).map(|n| folder.at(&n.to_string())).collect();
    shown.iter().for_each(|path| fs::create_dir(path).unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let wait = Duration::from_millis(rng.u64(20..800));
    let writers: Vec<(Writer, u64)> = thread::scope(|scope| {
        let writer =
            |path: &std::path::PathBuf| Writer::new(path.clone(), rng.u64(..), Safe::Acknowledged, &over);
        let writers: Vec<Writer> = shown.iter().map(writer).collect();
        let writers: Vec<_> = writers.into_iter().map(|writer| scope.spawn(move || writer.run())).collect();
        thread::sleep(wait);
        mount.kill();
        over.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });

    let mount = folder.mount(options);
    let mut found = Found::default();
    for ((writer, _), plain) in writers.iter().zip(&shown) {
        // Lower names need no counterpart here: they are seen to with power cuts.
        found.check(writer, plain, plain);
    }
    let changes: u64 = writers.iter().map(|(_, changes)| changes).sum();
    eprintln!("{what}: killed after {wait:?} and {changes} changes; {} files found", found.files);
    // A missing page was not acknowledged, but its size must not be visible before the data are.
    assert!(found.wrong.is_empty() && found.missing == 0, "{what}: {found:?}\n{}", folder.log());
    mount.unmount();
}
