//! Mounts and disks of virtual machines over an image.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::fuse::mounted::{Mounted, client};
use crate::rbd::cluster::Image;
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::scratch::assert_same;
use crate::support::volume::text;
use crate::support::{Server, bytes, run, seed};
use crate::vhost_user::disk::{Ask, Disk};

#[test]
fn a_mounted_image_keeps_what_is_written_to_it() {
    if let Some(reason) = cannot_fuse() {
        return skip("a mounted image of a cluster", reason);
    }
    let Some((scratch, _image, volume)) = Image::with_volume(64, &[]) else { return };
    let mounted = Mounted::start(&scratch, &volume, &[]);
    let mut fio = client("fio");
    fio.args([
        "--name=verify",
        "--ioengine=psync",
        "--thread",
        "--numjobs=2",
        "--size=8M",
        "--offset_increment=8M",
    ]);
    fio.args(["--rw=randrw", "--bsrange=4096-256k", "--blockalign=4096", "--fsync=32", "--verify=crc32c"]);
    fio.args(["--do_verify=1", "--verify_fatal=1", "--verify_state_save=0", "--aux-path=/tmp"]);
    fio.arg(format!("--randseed={}", seed("fio") >> 1)).arg(format!("--filename={}", text(mounted.path())));
    run(&mut fio);
    let mark = bytes(seed("mark"), 3_000_000);
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    file.write_all_at(&mark, (20 << 20) + 777).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mounted.stop();
    assert_same(&volume.read((20 << 20) + 777, mark.len()), &mark, "what was written and synced");
}

#[test]
fn a_virtual_machines_disk_keeps_what_is_written_to_it() {
    const LEN: usize = 256 << 10;
    const COUNT: usize = 16;
    let Some((scratch, _image, volume)) = Image::with_volume(64, &[]) else { return };
    let socket = scratch.path("vm.sock");
    let server = Server::start(&volume, &["--vhost-user", text(&socket)]);
    let data = bytes(seed("disk"), COUNT * LEN);
    let mut disk = Disk::connect(&socket, 2);
    disk.put(0, &data);
    let place = |number: usize| (number * LEN, (number * 2 * LEN) as u64);
    for number in 0..COUNT {
        let (at, offset) = place(number);
        disk.submit(number % 2, number, Ask::Write { offset, at, len: LEN });
    }
    for number in 0..COUNT {
        assert_eq!(disk.next(number % 2).1, 0);
    }
    assert_eq!(disk.ask(Ask::Flush), 0);
    for number in (0..COUNT).rev() {
        let (at, offset) = place(number);
        assert_same(&disk.read(offset, LEN).unwrap(), &data[at..at + LEN], "through the disk");
    }
    drop(disk);
    let log = server.stop();
    assert!(!log.contains("ERROR"), "{log}");
    for number in 0..COUNT {
        let (at, offset) = place(number);
        assert_same(&volume.read(offset, LEN), &data[at..at + LEN], "afterwards");
    }
}
