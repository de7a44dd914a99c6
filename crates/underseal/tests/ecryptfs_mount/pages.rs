//! The kernel's pages of files: written through one descriptor, read through another, while others
//! open the file and ask for its attributes; lower files that other programs change.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::process::Signal;

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::ecryptfs_mount::other_mounts::wait_for_release;
use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::scratch::assert_same;
use crate::support::tools::within;
use crate::support::{bytes, output, run, seed, tool};

const PAGE: usize = 4096;

/// How long each kind of trouble is made.
const TROUBLE: Duration = Duration::from_secs(4);

/// Makes the kernel ask for the attributes.
fn refresh(path: &Path) -> u64 {
    let flags = AtFlags::STATX_FORCE_SYNC;
    let found = statx(rustix::fs::CWD, path, flags, StatxFlags::SIZE | StatxFlags::MTIME).unwrap();
    found.stx_size
}

/// Runs `work`, while threads open and read the file and refresh its attributes.
fn beside_readers(path: &Path, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let over = &over;
            scope.spawn(move || {
                let mut page = [0; PAGE];
                while !over.load(Ordering::Relaxed) {
                    refresh(path);
                    if reader > 0 {
                        let _ = File::open(path).unwrap().read_at(&mut page, 0).unwrap();
                    }
                }
            });
        }
        // The readers end, whatever becomes of the work.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        if let Err(e) = done {
            std::panic::resume_unwind(e);
        }
    });
}

#[test]
fn a_write_is_read_whatever_others_do_with_the_file() {
    if unable("a_write_is_read_whatever_others_do_with_the_file") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    let path = folder.at("file");
    fs::write(&path, vec![0; 4 * PAGE]).unwrap();
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    let reader = File::open(&path).unwrap();
    let until = Instant::now() + TROUBLE;
    beside_readers(&path, || {
        let mut found = vec![0; PAGE];
        for round in 0u64.. {
            if Instant::now() >= until {
                break;
            }
            let at = round % 4 * PAGE as u64;
            let data = vec![u8::try_from(round % 251).unwrap(); PAGE];
            writer.write_all_at(&data, at).unwrap();
            reader.read_exact_at(&mut found, at).unwrap();
            assert_same(&found, &data, &format!("round {round}, page {}", round % 4));
        }
    });
    drop((writer, reader));
    mount.unmount();
}

#[test]
fn a_file_that_grows_reads_as_it_was_written_up_to_its_end() {
    if unable("a_file_that_grows_reads_as_it_was_written_up_to_its_end") {
        return;
    }
    let seed = seed("a_file_that_grows_reads_as_it_was_written_up_to_its_end");
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = Folder::new();
    let mount = folder.mount("");
    let path = folder.at("file");
    let until = Instant::now() + TROUBLE;
    while Instant::now() < until {
        let whole = bytes(rng.u64(..), 300_000);
        fs::write(&path, b"").unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        let reader = File::open(&path).unwrap();
        beside_readers(&path, || {
            let mut len = 0;
            while len < whole.len() {
                let end = whole.len().min(len + rng.usize(1..6000));
                writer.write_all_at(&whole[len..end], len as u64).unwrap();
                assert_eq!(refresh(&path), end as u64);
                // The tail, and a piece of what was there before.
                for from in [len.saturating_sub(5000), rng.usize(0..end)] {
                    let mut found = vec![0; end - from];
                    reader.read_exact_at(&mut found, from as u64).unwrap();
                    assert_same(&found, &whole[from..end], &format!("{from} to {end}"));
                }
                len = end;
            }
        });
    }
    mount.unmount();
}

/// A filesystem that is frozen for at most a few seconds: what writes to it waits.
struct Frozen<'f>(&'f Path, Child);

impl<'f> Frozen<'f> {
    fn new(path: &'f Path) -> Self {
        let mut thaw = tool("sh");
        thaw.args(["-c", "sleep 5; fsfreeze --unfreeze \"$0\""]).arg(path).stderr(Stdio::null());
        let thaw = thaw.spawn().unwrap();
        run(tool("fsfreeze").arg("--freeze").arg(path));
        Self(path, thaw)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        output(tool("fsfreeze").arg("--unfreeze").arg(self.0));
        let _ = self.1.kill();
        let _ = self.1.wait();
    }
}

#[test]
fn an_open_beside_a_write_under_way_brings_no_old_bytes_back() {
    let test = "an_open_beside_a_write_under_way_brings_no_old_bytes_back";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    if unable(test) {
        return;
    }
    let mut folder = Folder::new();
    let device = Loop::attach(&folder.scratch.sparse("disk", 32 << 20), &[]);
    // Small inodes have times of whole seconds: a change within one is seen by nothing else.
    run(tool("mkfs.ext4").args(["-q", "-I", "128"]).arg(device.device()));
    let below = Mount::new(device.device(), &folder.scratch.path("below"), &[]);
    folder.lower = below.directory().join("lower");
    fs::create_dir(&folder.lower).unwrap();
    fs::write(folder.below("file"), [1; PAGE]).unwrap();
    // Else a thread would have requests behind the write that waits.
    let mount = folder.mount_plainly("ecryptfs_passthrough");
    let path = folder.at("file");
    // Of the next second, whose beginning is waited for.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    std::thread::sleep(Duration::from_millis(1020 - u64::from(since.subsec_millis())));
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    writer.write_all_at(&[2; PAGE], 0).unwrap();
    refresh(&path);
    let read = || {
        let mut page = [0; PAGE];
        File::open(&path).unwrap().read_exact_at(&mut page, 0).unwrap();
        page[0]
    };
    std::thread::scope(|scope| {
        let frozen = Frozen::new(below.directory());
        let write = scope.spawn(|| writer.write_all_at(&[3; PAGE], 0));
        // The bytes are in the kernel's pages then, and with the server.
        std::thread::sleep(Duration::from_millis(150));
        let early = read();
        assert!([2, 3].contains(&early), "{early}");
        drop(frozen);
        write.join().unwrap().unwrap();
        let mut page = [0; PAGE];
        writer.read_exact_at(&mut page, 0).unwrap();
        assert_eq!((page[0], read()), (3, 3), "what was written is read");
    });
    drop(writer);
    mount.unmount();
    drop((below, device));
}

#[test]
fn pages_that_were_written_stay_while_others_open_and_ask() {
    if unable("pages_that_were_written_stay_while_others_open_and_ask") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    let path = folder.at("file");
    let writer = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let reader = File::open(&path).unwrap();
    // In memory that is there: the kernel reads a page again that it could fill in part only.
    writer.write_all_at(&vec![7; 16 * PAGE], 0).unwrap();
    assert_eq!(refresh(&path), 16 * PAGE as u64);
    let another = File::open(&path).unwrap();
    // The server answers nothing now: a reader gets the pages that the kernel kept.
    mount.signal(Signal::STOP);
    let (sender, read) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut found = vec![0; 16 * PAGE];
        reader.read_exact_at(&mut found, 0).unwrap();
        let _ = sender.send(found);
    });
    let found = read.recv_timeout(Duration::from_secs(5));
    mount.signal(Signal::CONT);
    thread.join().unwrap();
    assert!(found.is_ok_and(|found| found == [7; 16 * PAGE]), "the pages were dropped");
    drop((writer, another));
    mount.unmount();
}

/// Puts other bytes into a lower file, as a program does that copies a backup over it.
fn replace_below(folder: &Folder, by: &str) {
    let bytes = fs::read(folder.below(by)).unwrap();
    let lower = File::options().write(true).open(folder.below("file")).unwrap();
    lower.write_all_at(&bytes, 0).unwrap();
    lower.set_len(bytes.len() as u64).unwrap();
}

#[test]
fn a_lower_file_that_was_changed_is_read_anew_by_all_who_open_it_or_ask() {
    if unable("a_lower_file_that_was_changed_is_read_anew_by_all_who_open_it_or_ask") {
        return;
    }
    for options in ["", "ecryptfs_passthrough"] {
        let folder = Folder::new();
        let mount = folder.mount(options);
        // Ends within one page, and beyond it.
        let [short, long, other] = [(1, 5000), (2, 7000), (3, 7000)].map(|(seed, len)| bytes(seed, len));
        let put = |name: &str, data: &[u8]| match options {
            "" => fs::write(folder.at(name), data).unwrap(),
            _ => fs::write(folder.below(name), data).unwrap(),
        };
        put("file", &short);
        put("long", &long);
        put("other", &other);

        assert_same(&fs::read(folder.at("file")).unwrap(), &short, options);
        replace_below(&folder, "long");
        assert_same(&fs::read(folder.at("file")).unwrap(), &long, "changed while it was closed");

        // While it is open for reading: by one who opens it again, and for one who has it open.
        let reader = File::open(folder.at("file")).unwrap();
        let mut found = vec![0; 7000];
        reader.read_exact_at(&mut found, 0).unwrap();
        replace_below(&folder, "other");
        assert_same(&fs::read(folder.at("file")).unwrap(), &other, "changed while it was open");
        reader.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &other, "read through the old descriptor");

        replace_below(&folder, "long");
        assert_eq!(refresh(&folder.at("file")), 7000);
        reader.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &long, "read when the attributes were asked for");
        drop(reader);

        // Changed, and closed after that: what is remembered of it is not of the file as it is.
        replace_below(&folder, "file");
        let reader = File::open(folder.at("file")).unwrap();
        reader.read_exact_at(&mut found, 0).unwrap();
        put("short", &short);
        replace_below(&folder, "short");
        drop(reader);
        std::thread::sleep(Duration::from_millis(1200));
        assert_eq!(fs::metadata(folder.at("file")).unwrap().len(), 5000, "{options}");
        assert_same(&fs::read(folder.at("file")).unwrap(), &short, "closed after it was changed");
        mount.unmount();
    }
}

/// The lower file's version at a writer's close is not that of the pages.
#[test]
fn a_file_that_was_changed_below_while_a_writer_had_it_open_is_read_anew_after_its_close() {
    if unable("a_file_that_was_changed_below_while_a_writer_had_it_open_is_read_anew_after_its_close") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    let [before, after] = [(1, 9000), (2, 7000)].map(|(seed, len)| bytes(seed, len));
    for sets_times in [false, true] {
        for (name, data) in [("file", &before), ("other", &after)] {
            fs::write(folder.at(name), data).unwrap();
        }
        let writer = File::options().read(true).write(true).open(folder.at("file")).unwrap();
        writer.write_all_at(b"own", 4096).unwrap();
        let mut found = vec![0; 9000];
        writer.read_exact_at(&mut found, 0).unwrap();
        replace_below(&folder, "other");
        if sets_times {
            // A change of this mount's own does not hide the other one.
            writer.set_modified(SystemTime::now()).unwrap();
        }
        drop(writer);
        wait_for_release(&folder.below("file"));
        assert_eq!(refresh(&folder.at("file")), 7000, "sets times: {sets_times}");
        assert_same(&fs::read(folder.at("file")).unwrap(), &after, &format!("sets times: {sets_times}"));
    }
    mount.unmount();
}

#[test]
fn a_plain_file_that_another_program_changed_beside_a_writer_is_read_anew() {
    if unable("a_plain_file_that_another_program_changed_beside_a_writer_is_read_anew") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("ecryptfs_passthrough");
    fs::write(folder.below("plain"), [1; 2 * PAGE]).unwrap();
    let path = folder.at("plain");
    let read = || fs::read(&path).unwrap()[..2].to_vec();
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    assert_eq!(read(), [1, 1]);
    let other = File::options().write(true).open(folder.below("plain")).unwrap();
    other.write_all_at(&[2; PAGE], 0).unwrap();
    writer.write_all_at(&[3], 2 * PAGE as u64).unwrap();
    drop((writer, other));
    // The mount's process hears of the end a moment later.
    assert!(within(Duration::from_secs(10), || read() == [2, 2]), "the old bytes stay: {:?}", read());
    // An opening writer begins with the other program's bytes, too.
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    assert_eq!(read(), [2, 2]);
    drop(writer);
    mount.unmount();
}

/// Opens, reads and closes a file in more threads than the mount has places for requests, while
/// the lower file's times change: opens have the kernel drop the file's pages, and the kernel waits
/// for the reads of them. All bytes are right meanwhile, also those that are written in between.
const CROWD: &str = r#"
import errno, mmap, os, random, sys, threading, time
path, lower = sys.argv[1:]
content = open(path, "rb").read()
end = time.time() + 4
wrong = []
def read_at(file, at):
    try:
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as mapped:
            return os.pread(file, 4096, at), mapped[at:at + 4096]
    except OSError as e:
        # Opened past the kernel's pages.
        assert e.errno == errno.ENODEV, e
        return os.pread(file, 4096, at), os.pread(file, 4096, at)
def read(number):
    pages = random.Random(number)
    while time.time() < end:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        at = pages.randrange(1000) * 4096
        if os.pread(file, 4096, at) != content[at:at + 4096]:
            wrong.append(("read", at))
        os.close(file)
def write():
    number = 0
    while time.time() < end:
        number += 1
        at, new = 4096 * (1000 + number % 24), b"%8d" % number * 512
        file = os.open(path, os.O_RDWR)
        os.pwrite(file, new, at)
        here = read_at(file, at)
        other = os.open(path, os.O_RDONLY)
        there = read_at(other, at)
        os.close(file)
        after = read_at(other, at)
        os.close(other)
        if set(here + there + after) != {new}:
            wrong.append(("written", number))
    print(number, "writes")
begun = [threading.Thread(target=read, args=(number,)) for number in range(120)]
begun.append(threading.Thread(target=write))
for thread in begun:
    thread.start()
while time.time() < end:
    os.utime(lower)
    time.sleep(0.02)
for thread in begun:
    thread.join()
sys.exit(f"{wrong[:5]}" if wrong else 0)
"#;

#[test]
fn opens_that_wait_for_reads_leave_them_a_place() {
    if unable("opens_that_wait_for_reads_leave_them_a_place") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), bytes(7, 4 << 20)).unwrap();
    let mut crowd = tool("python3");
    let crowd = crowd.args(["-c", CROWD]).arg(folder.at("file")).arg(folder.below("file"));
    let mut crowd = crowd.spawn().unwrap();
    let ended = within(Duration::from_secs(60), || crowd.try_wait().unwrap().is_some());
    if !ended {
        // Nothing else ends what waits in the kernel. The mount is in use still.
        let _ = output(tool("umount").args(["--force", "--no-canonicalize"]).arg(&folder.plain));
    }
    let crowd = crowd.wait().unwrap();
    assert!(ended && crowd.success(), "{crowd}");
    mount.unmount_after_errors();
}

/// Prints how many pages of a file the kernel has after an open.
const RESIDENT: &str = "
import ctypes, mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(file).st_size
pages = mmap.mmap(file, size)
there = (ctypes.c_ubyte * (size // 4096))()
at = ctypes.addressof(ctypes.c_char.from_buffer(pages))
assert ctypes.CDLL(None).mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), there) == 0
print(sum(page & 1 for page in there))
";

#[test]
fn pages_stay_when_attributes_and_names_of_a_closed_file_change() {
    if unable("pages_stay_when_attributes_and_names_of_a_closed_file_change") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    let path = folder.at("file");
    fs::write(&path, vec![7; 64 << 10]).unwrap();
    let resident = || run(tool("/usr/bin/python3").args(["-I", "-S", "-c", RESIDENT]).arg(&path));
    let (other, text) = (folder.at("other"), path.display());
    let changes = [
        format!("chmod 640 {text}"),
        format!("chown 1:1 {text}"),
        format!("touch -d 2001-02-03 {text}"),
        format!("ln {text} {}", other.display()),
        format!("rm {}", other.display()),
        format!("mv {text} {0} && mv {0} {text}", other.display()),
        format!("/usr/bin/python3 -c 'import os; os.setxattr(\"{text}\", \"user.a\", b\"b\")'"),
    ];
    for change in changes {
        fs::read(&path).unwrap();
        run(tool("sh").args(["-c", &change]));
        assert_eq!(resident().trim(), "16", "{change}");
    }
    // Another program's change is read.
    fs::copy(folder.below("file"), folder.below("copy")).unwrap();
    fs::copy(folder.below("copy"), folder.below("file")).unwrap();
    assert_eq!(resident().trim(), "0");
    mount.unmount();
}
