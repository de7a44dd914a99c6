//! The kernel and long names: it does not show them, and leaves them as they are.

use std::fs;

use crate::ecryptfs_kernel::mounts::{Keys, PASSPHRASE, guest, import, pack, unpack};
use crate::support::Scratch;
use crate::support::volume::underseal;
use crate::support::{run, tool};

#[test]
fn the_kernel_shows_what_it_knows_and_leaves_long_names_alone() {
    let scratch = Scratch::new();
    let keys = Keys::new(&scratch, "passphrase", PASSPHRASE);
    let plain = scratch.path("plain");
    fs::create_dir(&plain).unwrap();
    let (file, folder) = ("f".repeat(255), "d".repeat(144));
    fs::write(plain.join(&file), b"a long name").unwrap();
    fs::create_dir(plain.join(&folder)).unwrap();
    fs::write(plain.join(&folder).join("inside"), b"inside").unwrap();
    fs::write(plain.join("short"), b"a short name").unwrap();
    let options = keys.options(("aes", 16), true, false);
    let lower = scratch.path("lower");
    import(&plain, &lower, &keys, &format!("{options},long_names"));
    pack(&lower, &scratch.path("ours.tar"));
    let mut guest = guest(&scratch, &[&keys]);
    guest.task(
        "long",
        &format!(
            "test=$PWD\n\
             mkdir /run/disk/long\n\
             cd /run/disk/long\n\
             mkdir lower mnt\n\
             tar -xpf $test/ours.tar -C lower\n\
             mount -i -t ecryptfs -o {options} lower mnt\n\
             ls -A mnt > $test/shown\n\
             printf more >> mnt/short\n\
             printf new > mnt/new\n\
             umount mnt\n\
             tar -cf $test/after.tar -C lower .\n"
        ),
    );
    guest.boot();
    assert_eq!(fs::read_to_string(scratch.path("shown")).unwrap(), "short\n");
    unpack(&scratch.path("after.tar"), &scratch.path("after"));
    let back = scratch.path("back");
    let mut export = underseal();
    export.args(["ecryptfs", "export", "-q"]).args([scratch.path("after"), back.clone()]);
    run(export.arg("--passphrase-file").arg(&keys.file));
    fs::write(plain.join("short"), b"a short namemore").unwrap();
    fs::write(plain.join("new"), b"new").unwrap();
    run(tool("diff").arg("-r").arg(&plain).arg(&back));
}
