//! Volumes made by cryptsetup and the kernel, read and written here, and read by the kernel again.

use std::fs;
use std::path::Path;

use fastrand::Rng;

use crate::kernel::patches::Patches;
use crate::kernel::tables::{Table, guest, tables};
use crate::support::mounts::{NbdFuse, cannot_fuse, skip};
use crate::support::scratch::assert_same;
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, text};
use crate::support::{Scratch, Server, bytes, run, seed, tool};

/// The images' size: LUKS2's header takes 16 MiB of it.
const IMAGE: u64 = 18 << 20;
/// How much is written from the volume's start on.
const LEN: usize = 1 << 20;

struct Case {
    name: String,
    table: Table,
    volume: Volume,
    plain: Vec<u8>,
    patches: Patches,
}

#[test]
fn we_read_what_the_kernel_wrote_and_it_reads_what_we_wrote_over_it() {
    let mut rng = Rng::with_seed(seed("theirs"));
    let scratch = Scratch::new();
    scratch.file("pass", PASSPHRASE.as_bytes());
    let cases: Vec<_> = tables(&mut rng, 4)
        .into_iter()
        .enumerate()
        .map(|(i, table)| make(&scratch, &mut rng, i, table))
        .collect();

    let mut guest = guest(&scratch);
    for case in &cases {
        guest.task(&case.name, &writing(case));
    }
    guest.task("turns", "touch written; until [ -e rewritten ]; do sleep 0.1; done");
    for Case { name, table, .. } in &cases {
        guest.task(&format!("{name}b"), &reading(name, table));
    }
    let mut machine = guest.start();
    machine.wait_for("written");
    for Case { name, table, volume, plain, patches } in &cases {
        let what = format!("{name}: {table:?}");
        assert_same(&volume.read(0, LEN), plain, &what);
        let mut patched = plain.clone();
        for (offset, data) in patches.writes() {
            volume.write(offset as u64, data);
        }
        patches.apply(&mut patched);
        scratch.file(&format!("{name}.patched"), &patched);
    }
    scratch.file("rewritten", b"");
    machine.finish();
}

fn make(scratch: &Scratch, rng: &mut Rng, number: usize, table: Table) -> Case {
    let name = format!("theirs{number}");
    scratch.sparse(&format!("{name}.img"), IMAGE);
    let mut volume = Volume::at(scratch, &format!("{name}.img")).with(table.open_options());
    if table.is_detached() {
        let header = scratch.sparse(&format!("{name}.hdr"), 16 << 20);
        volume = volume.with(["--header", text(&header)]);
    }
    let format = table.cryptsetup_format(&format!("{name}.img"), &format!("{name}.hdr"));
    run(tool("sh").args(["-eu", "-c", &format]).current_dir(scratch.folder()));
    let plain = bytes(rng.u64(..), LEN);
    scratch.file(&format!("{name}.plain"), &plain);
    let patches = Patches::random(rng, LEN);
    Case { name, table, volume, plain, patches }
}

fn writing(Case { name, table, .. }: &Case) -> String {
    let header = format!("{name}.hdr");
    format!(
        "loop=$(losetup --find --show {name}.img)\n\
         {open}\
         dd if={name}.plain of=/dev/mapper/{name} bs=64k conv=fsync status=none\n\
         cryptsetup close {name}\n\
         losetup --detach $loop\n\
         sync\n",
        open = table.cryptsetup_open("$loop", &header, name),
    )
}

fn reading(name: &str, table: &Table) -> String {
    format!(
        "loop=$(losetup --find --show --read-only {name}.img)\n\
         {open}\
         cmp --bytes={LEN} {name}.patched /dev/mapper/{name}\n\
         cryptsetup close {name}\n\
         losetup --detach $loop\n",
        open = table.cryptsetup_open("$loop --readonly", &format!("{name}.hdr"), name),
    )
}

#[test]
fn an_ext4_that_the_kernel_made_on_dm_crypt_is_read_through_our_server() {
    let scratch = Scratch::new();
    scratch.file("pass", PASSPHRASE.as_bytes());
    scratch.sparse("image", 64 << 20);
    let seed = seed("ext4");
    let mut rng = Rng::with_seed(seed);
    fs::create_dir(scratch.path("tree")).unwrap();
    for i in 0..40 {
        let len = rng.choice([0, 1, 511, 4096, 70_000, 300_001]).unwrap();
        fs::write(scratch.path("tree").join(format!("file{i}")), bytes(seed ^ i, len)).unwrap();
    }
    let mut format = tool("cryptsetup");
    format.args(["luksFormat", "-q", "--type", "luks2", "--key-file", "pass", "image"]).args(CHEAP_PBKDF2);
    run(format.current_dir(scratch.folder()));
    let mut guest = guest(&scratch);
    guest.task(
        "ext4",
        "loop=$(losetup --find --show image)
         cryptsetup open --key-file pass $loop crypt
         mkfs.ext4 -q /dev/mapper/crypt
         mkdir /run/mnt
         mount /dev/mapper/crypt /run/mnt
         cp -r tree /run/mnt/
         umount /run/mnt
         cryptsetup close crypt
         losetup --detach $loop
         sync",
    );
    guest.boot();

    let volume = Volume::at(&scratch, "image");
    let plain = match cannot_fuse() {
        Some(reason) => {
            skip("ext4 through nbdfuse", reason);
            let file = scratch.path("plain");
            run(volume.command("read").arg("-o").arg(&file));
            compare(&scratch, &file);
            return;
        }
        None => Server::start(&volume, &["--read-only"]),
    };
    let mounted = NbdFuse::mount(&scratch.path("fuse/volume"), &["--readonly"], &[plain.uri()]);
    compare(&scratch, mounted.file());
    mounted.unmount();
    plain.stop();
}

/// Looks at a filesystem that is not mounted, and compares its files with the tree that was copied
/// to it.
fn compare(scratch: &Scratch, filesystem: &Path) {
    run(tool("e2fsck").arg("-fn").arg(filesystem));
    let back = scratch.path("back");
    fs::create_dir(&back).unwrap();
    run(tool("debugfs").args(["-R", &format!("rdump /tree {}", text(&back))]).arg(filesystem));
    run(tool("diff").arg("--recursive").arg(scratch.path("tree")).arg(back.join("tree")));
}
