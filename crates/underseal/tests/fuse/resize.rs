//! A mount whose volume gets another size.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Signal;

use crate::control::operator::Operator;
use crate::fuse::mounted::{Mounted, client, unmount_stale};
use crate::support::mounts::{Loop, Mount, cannot_fuse, cannot_mount, skip};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::trees::make_tree;
use crate::support::volume::Volume;
use crate::support::{output, run};

const MIB: u64 = 1 << 20;
const HEADER: u64 = 16 * MIB;

fn mount(operator: &Operator, size: &str, options: &[&str]) -> (Volume, Mounted) {
    let volume = Volume::luks2(&operator.scratch, size);
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    let path = operator.scratch.file("disk", b"");
    let mounted = Mounted::start_at(&operator.scratch, command, &path, options);
    (volume, mounted)
}

fn set_len(image: &Path, size: u64) {
    File::options().write(true).open(image).unwrap().set_len(size).unwrap();
}

#[test]
fn an_ext4_is_grown_on_a_loop_device_that_stays() {
    if let Some(reason) = cannot_mount() {
        return skip("resize2fs", reason);
    }
    let operator = Operator::new();
    let tree = make_tree(&operator.scratch, crate::support::seed("resize2fs"));
    let (volume, mounted) = mount(&operator, "64M", &[]);
    let device = Loop::attach(mounted.path(), &[]);
    run(client("mkfs.ext4").arg("-q").arg(device.device()));
    let files = Mount::new(device.device(), &operator.scratch.path("mnt"), &[]);
    run(client("cp").args(["-r", "--"]).arg(&tree).arg(files.directory()));
    set_len(&volume.image, HEADER + 160 * MIB);
    operator.does("resize image");
    run(client("losetup").arg("--set-capacity").arg(device.device()));
    let size = run(client("blockdev").arg("--getsize64").arg(device.device()));
    assert_eq!(size.trim().parse::<u64>().unwrap(), 160 * MIB);
    let online = output(client("resize2fs").arg(device.device()));
    // Growing a mounted filesystem takes CAP_SYS_RESOURCE, which root lacks in some containers.
    let files = if String::from_utf8_lossy(&online.stderr).contains("Permission denied to resize") {
        drop(files);
        run(client("e2fsck").arg("-fp").arg(device.device()));
        run(client("resize2fs").arg(device.device()));
        Mount::new(device.device(), &operator.scratch.path("mnt"), &[])
    } else {
        assert!(online.status.success(), "{online:?}");
        files
    };
    // The file is larger than the filesystem was.
    fs::write(files.directory().join("large"), vec![7; 100 << 20]).unwrap();
    run(client("diff").arg("--recursive").arg(&tree).arg(files.directory().join("tree")));
    drop(files);
    run(client("e2fsck").arg("-fn").arg(device.device()));
    drop(device);
    let log = mounted.stop();
    assert!(!log.contains("sandbox"), "{log}");
    assert_eq!(volume.size(), 160 * MIB);
}

#[test]
fn whoever_has_the_file_open_sees_the_new_size_at_once() {
    if let Some(reason) = cannot_fuse() {
        return skip("resized file", reason);
    }
    for options in [&[][..], &["--fuse-no-cache"]] {
        let operator = Operator::new();
        let (volume, mounted) = mount(&operator, "32M", options);
        let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
        let old = 16 * MIB;
        file.write_all_at(&[1; 4096], old - 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), old);
        assert!(file.write_all_at(&[2; 4096], old).is_err());
        set_len(&volume.image, HEADER + 20 * MIB);
        operator.does("resize image");
        // The kernel remembers attributes for a second.
        assert_eq!(file.metadata().unwrap().len(), 20 * MIB, "{options:?}");
        assert_eq!(fs::metadata(mounted.path()).unwrap().len(), 20 * MIB);
        file.write_all_at(&[2; 4096], old).unwrap();
        let mut found = [0; 8192];
        file.read_exact_at(&mut found, old - 4096).unwrap();
        assert_eq!(found[..], [[1; 4096], [2; 4096]].concat());

        operator.does("resize image --size 8M");
        assert_eq!(file.metadata().unwrap().len(), 8 * MIB, "{options:?}");
        // The pages beyond the new end are gone too.
        assert_eq!(file.read_at(&mut found, old - 4096).unwrap(), 0, "{options:?}");
        assert!(file.write_all_at(&[3; 4096], 8 * MIB).is_err());

        // A resize does not wait for reads that wait for the end of the suspension.
        operator.does("suspend image");
        let (sender, over) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let read = file.read_at(&mut [0; 4096], MIB).map_err(|e| e.to_string());
                sender.send(read).unwrap();
            });
            assert!(over.recv_timeout(Duration::from_millis(300)).is_err(), "a suspended volume was read");
            operator.does("resize image");
            operator.does("resume image");
            assert_eq!(over.recv_timeout(PATIENCE).unwrap(), Ok(4096));
        });
        assert_eq!(file.metadata().unwrap().len(), 20 * MIB);
        file.read_exact_at(&mut found, old - 4096).unwrap();
        assert_eq!(found[..], [[1; 4096], [2; 4096]].concat());
        drop(file);
        mounted.stop();
    }
}

#[test]
fn pages_that_were_written_stay_when_the_volume_grows() {
    if let Some(reason) = cannot_fuse() {
        return skip("pages of a grown file", reason);
    }
    let operator = Operator::new();
    let (volume, mounted) = mount(&operator, "32M", &[]);
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    // In memory that is there: the kernel reads a page again that it could fill in part only.
    file.write_all_at(&vec![5; 65536], MIB).unwrap();
    set_len(&volume.image, HEADER + 20 * MIB);
    operator.does("resize image");
    assert_eq!(file.metadata().unwrap().len(), 20 * MIB);
    // The server answers nothing now: what is read is what the kernel has kept.
    mounted.signal(Signal::STOP);
    let (sender, read) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut found = vec![0; 65536];
        file.read_exact_at(&mut found, MIB).unwrap();
        let _ = sender.send(found);
    });
    let found = read.recv_timeout(Duration::from_secs(5));
    mounted.signal(Signal::CONT);
    reader.join().unwrap();
    assert!(found.is_ok_and(|found| found == [5; 65536]), "the pages were dropped");
    mounted.stop();
}

#[test]
fn the_last_segment_s_file_in_a_folder_changes() {
    if let Some(reason) = cannot_fuse() {
        return skip("resized segments", reason);
    }
    let operator = Operator::new();
    let image = operator.scratch.sparse("image", 4 * MIB);
    let lines = format!("0 2048 linear {0} 0\n2048 2048 linear {0} 2048", image.display());
    let table = operator.scratch.file("two", lines.as_bytes());
    let mut command = operator.command("table open --table");
    command.arg(&table);
    let folder = operator.scratch.path("folder");
    fs::create_dir(&folder).unwrap();
    let mounted = Mounted::start_at(&operator.scratch, command, &folder, &[]);
    let sizes = || ["segment0", "segment1"].map(|name| fs::metadata(folder.join(name)).unwrap().len());
    assert_eq!(sizes(), [MIB, MIB]);
    operator.does("resize two");
    assert_eq!(sizes(), [MIB, 3 * MIB]);
    operator.does("resize two --size 1028K");
    assert_eq!(sizes(), [MIB, 4096]);
    mounted.stop();
}

/// The page that the new end lies in is dropped when the read that has locked it is answered, which
/// only the server can do.
#[test]
fn a_server_that_is_killed_while_it_waits_for_a_page_ends_and_so_does_the_pages_reader() {
    if let Some(reason) = cannot_fuse() {
        return skip("a page and a killed server", reason);
    }
    let operator = Operator::new();
    let volume = Volume::at(&operator.scratch, "image").format("24M", &["--sector-size", "512"]);
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    let path = operator.scratch.file("disk", b"");
    let mounted = Mounted::start_at(&operator.scratch, command, &path, &[]);
    let size = fs::metadata(&path).unwrap().len();
    operator.does("suspend image");
    let last = [format!("if={}", path.display()), format!("skip={}", size / 4096 - 1)];
    let mut reader = Command::new("dd");
    reader.args(last).args(["of=/dev/null", "bs=4096", "count=1"]).stderr(Stdio::null());
    let mut reader = reader.spawn().unwrap();
    let is_waiting = |process: u32| {
        let place = fs::read_to_string(format!("/proc/{process}/wchan")).unwrap();
        place.contains("request_wait") || place.contains("folio")
    };
    wait_until("the reader waits for its page", PATIENCE, || is_waiting(reader.id()));
    operator.does(&format!("resize image --size {}", size - 1024));
    let threads = || fs::read_dir(format!("/proc/{}/task", mounted.pid())).unwrap();
    let is_dropping = |thread: fs::DirEntry| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "fuse-resized")
    };
    let is_there = || threads().any(|thread| is_dropping(thread.unwrap()));
    wait_until("a thread waits for the page", PATIENCE, is_there);
    mounted.kill();
    assert!(!reader.wait().unwrap().success(), "a page was read without a server");
    unmount_stale(&path);
}
