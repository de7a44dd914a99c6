//! A write to a lower file that another program has begun, and not ended, when the file is opened.

use std::fs::{self, File};
use std::sync::mpsc;
use std::time::Duration;

use crate::control::operator::Operator;
use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::fuse::mounted::Mounted;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::Volume;
use crate::support::{run, tool};

/// Copies a file's bytes over another file's, from memory that the kernel has to read first.
const COPY: &str = "
import mmap, os, sys
source, target = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_WRONLY)
size = os.fstat(target).st_size
os.pwrite(target, memoryview(mmap.mmap(source, size, mmap.MAP_SHARED, mmap.PROT_READ)), 0)
";

/// A mount of a file whose bytes another program is writing below, for as long as the program's own
/// memory, on a suspended volume, gives no page. `work` gets the call that ends this.
fn beside_a_stuck_writer(old: &[u8], new: &[u8], work: impl FnOnce(&Folder, &mut dyn FnMut())) {
    let operator = Operator::new();
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), old).unwrap();
    fs::write(folder.at("other"), new).unwrap();
    let volume = Volume::at(&operator.scratch, "image").format("24M", &["--sector-size", "512"]);
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    let path = operator.scratch.file("disk", b"");
    let disk = Mounted::start_at(&operator.scratch, command, &path, &[]);
    let at = |option: &str, path: &std::path::Path| format!("{option}={}", path.display());
    run(tool("dd")
        .args([at("if", &folder.below("other")), at("of", &path)])
        .args(["conv=notrunc", "bs=64k"]));
    run(tool("dd").arg(at("if", &path)).args(["iflag=nocache", "count=0"]));
    operator.does("suspend image");

    let mut writer = tool("/usr/bin/python3");
    writer.args(["-I", "-S", "-c", COPY]).arg(&path).arg(folder.below("file"));
    let mut writer = writer.spawn().unwrap();
    wait_until("the writer waits for a page", PATIENCE, || {
        let place = fs::read_to_string(format!("/proc/{}/wchan", writer.id())).unwrap();
        place.contains("request_wait") || place.contains("folio")
    });
    std::thread::sleep(Duration::from_millis(50));
    work(&folder, &mut || {
        operator.does("resume image");
        assert!(writer.wait().unwrap().success());
    });
    disk.stop();
    mount.unmount();
}

/// The kernel sets the times of a file at the beginning of a write. So they say nothing about its
/// bytes before the end.
#[test]
fn a_write_below_that_had_begun_at_an_open_is_read_when_it_has_ended() {
    if unable("a_write_below_that_had_begun_at_an_open_is_read_when_it_has_ended") {
        return;
    }
    let (before, after) = (vec![1; 4096], vec![2; 77]);
    beside_a_stuck_writer(&before, &after, |folder, end_write| {
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                let file = File::open(folder.at("file")).unwrap();
                let size = file.metadata().unwrap().len();
                (file, size, fs::read(folder.at("file")).unwrap())
            });
            // An open that does not wait has read the old bytes by now.
            std::thread::sleep(Duration::from_millis(500));
            end_write();
            let _kept = opened.join().unwrap();
            let found = fs::read(folder.at("file")).unwrap();
            assert_eq!(found.len(), after.len(), "the size of before");
            assert!(found == after, "bytes of before");
        });
    });
}

/// A user can make a write to his own files last for ever, and must not make others wait with it.
#[test]
fn a_write_below_that_does_not_end_keeps_no_request_waiting() {
    if unable("a_write_below_that_does_not_end_keeps_no_request_waiting") {
        return;
    }
    let (before, after) = (vec![1; 4096], vec![2; 77]);
    beside_a_stuck_writer(&before, &after, |folder, end_write| {
        std::thread::scope(|scope| {
            let (sender, answers) = mpsc::channel();
            // More than the mount has threads that take requests.
            for _ in 0..8 {
                let sender = sender.clone();
                scope.spawn(move || {
                    fs::metadata(folder.at("file")).unwrap();
                    drop(File::open(folder.at("file")).unwrap());
                    let _ = sender.send(());
                });
            }
            let answered = (0..8).filter(|_| answers.recv_timeout(PATIENCE).is_ok()).count();
            let other = fs::read(folder.at("other"));
            end_write();
            assert_eq!(answered, 8, "requests that waited for the write");
            assert!(other.unwrap() == after);
        });
        wait_until("the new bytes are read", PATIENCE, || fs::read(folder.at("file")).unwrap() == after);
    });
}
