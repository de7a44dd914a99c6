//! A disk that has lost what a failed sync was to keep, while the page cache shows it: the next
//! command writes it.

use std::fs::File;
use std::process::Command;

use crate::ecryptfs_power::disk::Disk;
use crate::support::mounts::{cannot_fuse, cannot_mount, skip};
use crate::support::volume::{CHEAP_PBKDF2, text, underseal};
use crate::support::{Scratch, output, run};

#[test]
fn a_header_that_is_restored_after_a_sync_that_failed_is_on_the_disk() {
    if let Some(reason) = cannot_mount().or_else(cannot_fuse) {
        return skip("a_header_that_is_restored_after_a_sync_that_failed", reason);
    }
    let scratch = Scratch::new();
    let [old, new] = ["old", "new"].map(|word| scratch.file(word, word.as_bytes()));
    let disk = Disk::new(&scratch, 64 << 20, 1);
    let device = disk.attach();
    // The page cache of a block device goes when the last program closes the device.
    let user = File::open(device.device()).unwrap();
    let on = |words: &str, options: &[&str]| -> Command {
        let mut command = underseal();
        command.args(words.split(' ')).arg(device.device()).args(options);
        command
    };
    run(on("format -q --force", &CHEAP_PBKDF2).arg("--passphrase-file").arg(&old));
    run(on("keyslot add -q", &CHEAP_PBKDF2)
        .arg("--passphrase-file")
        .arg(&old)
        .arg("--new-passphrase-file")
        .arg(&new));
    let backup = scratch.path("backup");
    run(&mut on("header backup -q", &[text(&backup)]));
    run(&mut on("keyslot kill -q", &["1", "--passphrase-file", text(&old)]));
    let restore = || output(&mut on("header restore -q --force", &[text(&backup)]));
    // Where the keyslots' areas lie.
    disk.fail_writes(32 << 10..16 << 20);
    let failed = restore();
    assert!(!failed.status.success(), "{failed:?}");
    disk.heal();
    let restored = restore();
    assert!(restored.status.success(), "{restored:?}");
    disk.cut();
    drop((user, device));
    disk.power_on();
    let device = disk.attach();
    for passphrase in [&old, &new] {
        run(underseal()
            .args(["keyslot", "test", text(device.device())])
            .arg("--passphrase-file")
            .arg(passphrase));
    }
}
