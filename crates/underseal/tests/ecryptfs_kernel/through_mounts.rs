//! Trees that are written through our mount, as the kernel sees them; and the kernel's changes to
//! them, through our mount.

use std::fs;
use std::path::Path;

use crate::ecryptfs_kernel::both::CHANGES;
use crate::ecryptfs_kernel::mounts::{Keys, PASSPHRASE, compare, guest, pack, unpack};
use crate::ecryptfs_kernel::tree::{assert_same_tree, make};
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::tools::tool;
use crate::support::volume::underseal;
use crate::support::{Scratch, run};

/// Ciphers of blocks of 16 and 8 bytes, names plain or encrypted, headers in files and xattrs.
const CASES: [(&str, (&str, usize), bool, bool); 4] = [
    ("plain", ("aes", 16), false, false),
    ("names", ("aes", 32), true, false),
    ("xattr", ("twofish", 32), false, true),
    ("both", ("cast5", 16), true, true),
];

/// More changes, by the kernel this time.
const THEIRS: &str = "\
    printf and_more >> $1/file4096\n\
    truncate -s 123456 $1/file20000\n\
    truncate -s 3 $1/file15\n\
    mv $1/folder/copy $1/copy\n";

#[test]
fn the_kernel_reads_and_writes_what_was_written_through_a_mount() {
    if let Some(reason) = cannot_fuse() {
        return skip("the_kernel_reads_and_writes_what_was_written_through_a_mount", reason);
    }
    let scratch = Scratch::new();
    let keys = Keys::new(&scratch, "passphrase", PASSPHRASE);
    let plain = scratch.path("plain");
    fs::create_dir(&plain).unwrap();
    make(&plain, 11);
    let changes = scratch.file("changes", CHANGES.as_bytes());
    let theirs = scratch.file("theirs", THEIRS.as_bytes());
    let mut guest = guest(&scratch, &[&keys]);
    for (name, cipher, names, xattr) in CASES {
        let options = keys.options(cipher, names, xattr);
        let lower = scratch.path(&format!("{name}.lower"));
        fs::create_dir(&lower).unwrap();
        mounted(&scratch, &lower, &options, |mount| {
            run(tool("cp").args(["-a"]).arg(plain.join(".")).arg(mount));
            run(tool("sh").arg("-eu").arg(&changes).arg(mount));
        });
        pack(&lower, &scratch.path(&format!("{name}.tar")));
        guest.task(name, &script(name, &options));
    }
    // The same changes to a plain copy.
    let changed = scratch.path("changed");
    run(tool("cp").arg("-a").arg(&plain).arg(&changed));
    run(tool("sh").arg("-eu").arg(&changes).arg(&changed));
    guest.boot();
    run(tool("sh").arg("-eu").arg(&theirs).arg(&changed));
    for (name, cipher, names, xattr) in CASES {
        let lower = scratch.path(&format!("{name}.after"));
        unpack(&scratch.path(&format!("{name}.after.tar")), &lower);
        mounted(&scratch, &lower, &keys.options(cipher, names, xattr), |mount| {
            // Copied first: the times of what the guest changed are its own.
            let back = scratch.path(&format!("{name}.back"));
            run(tool("cp").arg("-a").arg(mount).arg(&back));
            for tree in [&back, &changed] {
                run(tool("find").arg(tree).args(["-exec", "touch", "-h", "-d", "@0", "{}", "+"]));
            }
            assert_same_tree(&back, &changed, name);
        });
    }
}

/// Compares with the plain tree, and changes it once more.
fn script(name: &str, options: &str) -> String {
    let tar = "tar --xattrs '--xattrs-include=user.*'";
    format!(
        "test=$PWD\n\
         mkdir /run/disk/{name}\n\
         cd /run/disk/{name}\n\
         mkdir lower mnt\n\
         {tar} -xpf $test/{name}.tar -C lower\n\
         mount -i -t ecryptfs -o {options} lower mnt\n\
         {}\
         sh -eu $test/theirs mnt\n\
         umount mnt\n\
         {tar} -cf $test/{name}.after.tar -C lower .\n\
         cd $test\n\
         rm -r /run/disk/{name}\n",
        compare(options, "$test/changed", "mnt")
    )
}

/// Mounts for a while.
fn mounted(scratch: &Scratch, lower: &Path, options: &str, work: impl FnOnce(&Path)) {
    let mount = scratch.path("mount");
    fs::create_dir_all(&mount).unwrap();
    run(underseal()
        .args(["ecryptfs", "mount", "-q", "--daemon", "-o", options, "--passphrase-file"])
        .arg(scratch.path("passphrase"))
        .arg(lower)
        .arg(&mount));
    let unmount = Unmount(&mount);
    work(&mount);
    drop(unmount);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let done = underseal().args(["ecryptfs", "umount"]).arg(self.0).output();
        if !done.is_ok_and(|done| done.status.success()) {
            let _ = underseal().args(["ecryptfs", "umount", "--lazy"]).arg(self.0).output();
        }
    }
}
