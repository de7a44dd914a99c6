//! A write to a lower file that another program has begun, and not ended, when the file is opened.

use std::fs::{self, File};
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

/// The kernel sets the times of a file at the beginning of a write. So they say nothing about its
/// bytes before the end.
#[test]
fn a_write_below_that_had_begun_at_an_open_is_read_when_it_has_ended() {
    if unable("a_write_below_that_had_begun_at_an_open_is_read_when_it_has_ended") {
        return;
    }
    let operator = Operator::new();
    let folder = Folder::new();
    let mount = folder.mount("");
    let (before, after) = (vec![1; 4096], vec![2; 77]);
    fs::write(folder.at("file"), &before).unwrap();
    fs::write(folder.at("other"), &after).unwrap();
    // A volume that is suspended gives no page.
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
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            let file = File::open(folder.at("file")).unwrap();
            let size = file.metadata().unwrap().len();
            (file, size, fs::read(folder.at("file")).unwrap())
        });
        // An open that does not wait has read the old bytes by now.
        std::thread::sleep(Duration::from_millis(500));
        operator.does("resume image");
        assert!(writer.wait().unwrap().success());
        let _kept = opened.join().unwrap();
        let found = fs::read(folder.at("file")).unwrap();
        assert_eq!(found.len(), after.len(), "the size of before");
        assert!(found == after, "bytes of before");
    });
    disk.stop();
    mount.unmount();
}
