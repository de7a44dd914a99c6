//! Every cipher, names plain or encrypted, headers in files or in xattrs, both ways.

use std::fs;

use crate::ecryptfs_kernel::mounts::{
    CIPHERS, Keys, PASSPHRASE, compare, export, guest, import, pack, unpack,
};
use crate::ecryptfs_kernel::tree::{assert_same_tree, make};
use crate::support::{Scratch, seed};

/// Ciphers that are tried with headers in xattrs too. The first runs in every combination; names of
/// all others are plain or encrypted at random.
const XATTRS: [(&str, usize); 3] = [("aes", 24), ("cast5", 8), ("twofish", 32)];

/// The kernel's changes to a tree of ours: files grow, shrink, are overwritten and added.
pub(crate) const CHANGES: &str = "\
    printf more >> $1/file4096\n\
    truncate -s 100 $1/file20000\n\
    truncate -s 50000 $1/file15\n\
    printf here | dd of=$1/file131072 bs=1 seek=70000 conv=notrunc status=none\n\
    cp $1/file300001 $1/folder/copy\n\
    mv $1/file1 $1/empty/moved\n\
    rm $1/file8192\n\
    ln -s new $1/new\n";

#[test]
fn the_kernel_reads_and_writes_our_trees_and_we_its_own() {
    let scratch = Scratch::new();
    let keys = Keys::new(&scratch, "passphrase", PASSPHRASE);
    let plain = scratch.path("plain");
    fs::create_dir(&plain).unwrap();
    make(&plain, 7);
    pack(&plain, &scratch.path("plain.tar"));
    // The same changes to a plain copy.
    let changed = scratch.path("changed");
    unpack(&scratch.path("plain.tar"), &changed);
    let changes = scratch.file("changes", CHANGES.as_bytes());
    crate::support::run(crate::support::tool("sh").arg("-eu").arg(&changes).arg(&changed));
    let mut guest = guest(&scratch, &[&keys]);
    let mut cases = Vec::new();
    let mut rng = fastrand::Rng::with_seed(seed("both"));
    for cipher in CIPHERS {
        let ways = match cipher {
            first if first == XATTRS[0] => vec![(false, false), (true, false), (false, true), (true, true)],
            also if XATTRS.contains(&also) => vec![(rng.bool(), false), (rng.bool(), true)],
            _ => vec![(rng.bool(), false)],
        };
        for (names, xattr) in ways {
            let name = format!(
                "{}{}{}{}",
                cipher.0,
                cipher.1,
                ["", "-names"][usize::from(names)],
                ["", "-xattr"][usize::from(xattr)]
            );
            let options = keys.options(cipher, names, xattr);
            let lower = scratch.path(&format!("{name}.ours"));
            import(&plain, &lower, &keys, &options);
            pack(&lower, &scratch.path(&format!("{name}.ours.tar")));
            fs::remove_dir_all(&lower).unwrap();
            guest.task(&name, &script(&name, &options));
            cases.push(name);
        }
    }
    guest.boot();
    for name in cases {
        let (lower, back) = (scratch.path("lower"), scratch.path("back"));
        for (from, expected, times) in [("ours", &changed, false), ("theirs", &plain, true)] {
            unpack(&scratch.path(&format!("{name}.{from}.after.tar")), &lower);
            export(&lower, &back, &keys);
            if !times {
                forget_times(&back);
                forget_times(expected);
            }
            assert_same_tree(&back, expected, &format!("{name}: {from}"));
            fs::remove_dir_all(&lower).unwrap();
            fs::remove_dir_all(&back).unwrap();
        }
    }
}

/// A guest's script: mounts our tree, compares it, changes it; makes another tree.
fn script(name: &str, options: &str) -> String {
    let mount = |what: &str| format!("mount -i -t ecryptfs -o {options} {what} mnt\n");
    let tar = "tar --xattrs '--xattrs-include=user.*'";
    format!(
        "test=$PWD\n\
         mkdir /run/disk/{name}\n\
         cd /run/disk/{name}\n\
         mkdir ours theirs mnt\n\
         {tar} -xpf $test/{name}.ours.tar -C ours\n\
         {}\
         {}\
         sh -eu $test/changes mnt\n\
         umount mnt\n\
         {tar} -cf $test/{name}.ours.after.tar -C ours .\n\
         {}\
         tar -xpf $test/plain.tar -C mnt\n\
         umount mnt\n\
         {tar} -cf $test/{name}.theirs.after.tar -C theirs .\n\
         cd $test\n\
         rm -r /run/disk/{name}\n",
        mount("ours"),
        compare(options, "$test/plain", "mnt"),
        mount("theirs")
    )
}

/// The guest's clock is its own.
fn forget_times(tree: &std::path::Path) {
    crate::support::run(
        crate::support::tool("find").arg(tree).args(["-exec", "touch", "-h", "-d", "@0", "{}", "+"]),
    );
}
