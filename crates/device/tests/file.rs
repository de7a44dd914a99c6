//! A file through its channel: at once and through the ring, cached and direct.

mod one;

use std::fs::{File, OpenOptions as StdOpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use one::One;
use rustix::fs::OFlags;
use underseal_device::{
    Blocking, Device, ErrorKind, Extent, FileDevice, Immediate, Io, OpenOptions, Ring, Started,
};

const EINTR: i32 = 4;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOSPC: i32 = 28;

struct Fixture {
    _folder: tempfile::TempDir,
    path: PathBuf,
    one: One,
}

impl Fixture {
    /// A file of `size` zero bytes on a disk, not in memory.
    fn new(size: u64) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("image");
        File::create(&path).unwrap().set_len(size).unwrap();
        Self { _folder: folder, path, one: One::new() }
    }

    fn open(&self, options: OpenOptions) -> FileDevice {
        FileDevice::open(&self.path, options).unwrap()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0u8..=250).cycle().step_by(7).take(len).collect()
}

#[test]
fn what_the_ring_writes_it_reads_cached_and_direct() {
    for direct in [false, true] {
        let mut f = Fixture::new(1 << 20);
        let device = f.open(OpenOptions { direct, ..Default::default() });
        let mut channel = device.channel(4).unwrap();
        for durable in [false, true] {
            let mut buffer = f.one.arena.alloc(8192).unwrap();
            buffer.copy_from_slice(&pattern(8192));
            let write = Io::Write { offset: 4096, buffer, range: 0..8192, durable };
            let done = f.one.run(channel.as_mut(), write);
            done.result.unwrap();
            f.one.arena.free(done.buffer.unwrap());
        }
        f.one.run(channel.as_mut(), Io::Flush).result.unwrap();
        let buffer = f.one.arena.alloc(8192).unwrap();
        let done = f.one.run(channel.as_mut(), Io::Read { offset: 4096, buffer, range: 0..8192 });
        done.result.unwrap();
        assert_eq!(done.buffer.unwrap()[..], pattern(8192));
        assert_eq!(&std::fs::read(&f.path).unwrap()[4096..12288], pattern(8192));
    }
}

#[test]
fn a_cached_page_is_read_at_once() {
    let f = Fixture::new(1 << 20);
    std::fs::write(&f.path, pattern(1 << 20)).unwrap();
    let device = f.open(OpenOptions::default());
    let mut channel = device.channel(1).unwrap();
    let mut data = vec![0; 10_000];
    // With little memory the cache loses a page now and then.
    let at_once = (0..100).any(|_| {
        std::fs::read(&f.path).unwrap();
        matches!(channel.read_now(777, &mut data), Immediate::Done)
    });
    assert!(at_once);
    assert_eq!(data, pattern(1 << 20)[777..10_777]);
}

#[test]
fn a_file_in_memory_is_read_and_written_at_once() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("image");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let mut channel = device.channel(1).unwrap();
    assert!(matches!(channel.write_now(5, &pattern(9000)), Immediate::Done));
    let mut data = vec![0; 9000];
    assert!(matches!(channel.read_now(5, &mut data), Immediate::Done));
    assert_eq!(data, pattern(9000));
}

#[test]
fn a_file_that_shrank_fails_the_read_and_says_where() {
    for direct in [false, true] {
        let mut f = Fixture::new(1 << 20);
        let device = f.open(OpenOptions { direct, ..Default::default() });
        let mut channel = device.channel(1).unwrap();
        StdOpenOptions::new().write(true).open(&f.path).unwrap().set_len(8192).unwrap();
        let buffer = f.one.arena.alloc(8192).unwrap();
        let done = f.one.run(channel.as_mut(), Io::Read { offset: 4096, buffer, range: 0..8192 });
        let error = done.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Read);
        assert!(error.to_string().contains("byte 8192"), "{error}");
        assert!(done.buffer.is_some(), "the memory comes back with the failure");
    }
}

#[test]
fn two_writers_exclude_each_other_and_readers_share() {
    let f = Fixture::new(4096);
    let read_only = OpenOptions { read_only: true, ..Default::default() };
    let writer = f.open(OpenOptions::default());
    for options in [OpenOptions::default(), read_only] {
        let error = FileDevice::open(&f.path, options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Locked);
    }
    drop(writer);
    let _reader = f.open(read_only);
    let _another = f.open(read_only);
    drop(f.open(OpenOptions { unlocked: true, ..Default::default() }));
    assert!(FileDevice::open(&f.path, OpenOptions::default()).is_err());
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeros() {
    let mut f = Fixture::new(1 << 20);
    std::fs::write(&f.path, pattern(1 << 20)).unwrap();
    let device = f.open(OpenOptions::default());
    let mut channel = device.channel(1).unwrap();
    for io in [
        Io::Discard { offset: 0, len: 65536 },
        Io::Zero { offset: 65536, len: 65536, punch: false },
        Io::Zero { offset: 131_072, len: 65536, punch: true },
    ] {
        f.one.run(channel.as_mut(), io).result.unwrap();
    }
    let bytes = std::fs::read(&f.path).unwrap();
    assert!(bytes[..196_608].iter().all(|&b| b == 0));
    assert_eq!(bytes[196_608..], pattern(1 << 20)[196_608..]);
    assert_eq!(device.extent(0, 4096), Extent { len: 4096, hole: true });
    // The extent does not show it: an allocated, unwritten range is a hole there, unless the cache
    // has it.
    let allocated = 512 * std::fs::metadata(&f.path).unwrap().blocks();
    assert!(allocated >= (1 << 20) - 2 * 65536, "zeroed without a hole stays allocated: {allocated}");
}

#[test]
fn a_flush_that_failed_is_not_made_good_by_another() {
    let mut f = Fixture::new(1 << 20);
    let device = f.open(OpenOptions::default());
    let mut channels: Vec<_> = (0..3).map(|_| device.channel(1).unwrap()).collect();
    for channel in &mut channels {
        f.one.run(channel.as_mut(), Io::Flush).result.unwrap();
    }
    let error = f.one.run_with(channels[1].as_mut(), Io::Flush, &[ENOSPC]).result.unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Flush, Some(ENOSPC)));
    // The kernel reports success to each of them.
    channels.push(device.channel(1).unwrap());
    for channel in &mut channels {
        let error = f.one.run(channel.as_mut(), Io::Flush).result.unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Flush, Some(ENOSPC)));
    }
    assert!(Blocking::new(&device).unwrap().flush().is_err());
    drop((channels, device));
    Blocking::new(&f.open(OpenOptions::default())).unwrap().flush().unwrap();
}

#[test]
fn a_flush_that_was_under_way_when_another_failed_fails_too() {
    let mut f = Fixture::new(1 << 20);
    let device = f.open(OpenOptions::default());
    let (mut early, mut other) = (device.channel(1).unwrap(), device.channel(1).unwrap());
    let mut ring = Ring::new(8).unwrap();
    assert!(matches!(early.start(&mut ring, 0, Io::Flush), Started::Pending));
    f.one.run_with(other.as_mut(), Io::Flush, &[EIO]).result.unwrap_err();
    ring.wait().unwrap();
    let done = ring.next_completion().unwrap();
    assert_eq!(done.result, 0, "it has nothing to flush");
    let finished = early.finish(&mut ring, done.token, done.result).unwrap();
    assert_eq!(finished.result.unwrap_err().errno(), Some(EIO));
}

#[test]
fn what_a_file_has_grown_by_is_there_when_it_is_asked() {
    for direct in [false, true] {
        let f = Fixture::new(1 << 20);
        let device = f.open(OpenOptions { direct, ..Default::default() });
        let mut before = Blocking::new(&device).unwrap();
        std::io::Seek::seek(&mut device.file(), std::io::SeekFrom::Start(77)).unwrap();
        assert_eq!(device.refresh().unwrap(), 1 << 20);
        let opened = device.geometry();
        device.file().set_len(3 << 20).unwrap();
        assert_eq!(device.geometry(), opened, "nobody has asked");
        assert_eq!(device.refresh().unwrap(), 3 << 20);
        assert_eq!(device.geometry(), underseal_device::Geometry { size: 3 << 20, ..opened });
        let end = (3 << 20) - 4096;
        before.write(end, &[9; 4096], true).unwrap();
        let mut back = [0; 4096];
        Blocking::new(&device).unwrap().read(end, &mut back).unwrap();
        assert_eq!(back, [9; 4096]);
        device.file().set_len(2 << 20).unwrap();
        assert_eq!((device.refresh().unwrap(), device.geometry().size), (2 << 20, 2 << 20));
        assert!(before.read(end, &mut back).is_err(), "it is gone");
        assert_eq!(std::io::Seek::stream_position(&mut device.file()).unwrap(), 77, "its position stays");
    }
}

#[test]
fn each_channel_has_an_open_file_of_its_own() {
    let open_files = |path: &PathBuf| {
        let links = std::fs::read_dir("/proc/self/fd").unwrap();
        links.filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|to| to == *path)).count()
    };
    for options in [OpenOptions::default(), OpenOptions { direct: true, ..Default::default() }] {
        let f = Fixture::new(4096);
        let path = f.path.canonicalize().unwrap();
        let device = f.open(options);
        let _channels: Vec<_> = (0..2).map(|_| device.channel(1).unwrap()).collect();
        assert_eq!(open_files(&path), 3);
        // Positions belong to open files: duplicates of one would share the position.
        std::io::Seek::seek(&mut device.file(), std::io::SeekFrom::Start(77)).unwrap();
        let there = (0..).take(256).filter(|fd| {
            let of = format!("/proc/self/fd/{fd}");
            let is_it = std::fs::read_link(of).is_ok_and(|to| to == path);
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
            is_it && info.lines().next() == Some("pos:\t77")
        });
        assert_eq!(there.count(), 1);
    }
}

#[test]
fn a_durable_write_that_could_not_be_flushed_counts_as_a_flush() {
    let mut f = Fixture::new(1 << 20);
    let device = f.open(OpenOptions::default());
    let mut channel = device.channel(1).unwrap();
    let mut write = |f: &mut Fixture, durable, errors: &[i32]| {
        let buffer = f.one.arena.alloc(4096).unwrap();
        let done = f.one.run_with(
            channel.as_mut(),
            Io::Write { offset: 0, buffer, range: 0..4096, durable },
            errors,
        );
        f.one.arena.free(done.buffer.expect("the memory comes back"));
        done.result.err().and_then(|e| e.errno())
    };
    let flush = |f: &mut Fixture| f.one.run(device.channel(1).unwrap().as_mut(), Io::Flush).result;
    assert_eq!(write(&mut f, true, &[]), None);
    assert_eq!(write(&mut f, false, &[EIO]), Some(EIO));
    flush(&mut f).unwrap();
    // The write fails both times: nothing was flushed, so no other data is lost.
    assert_eq!(write(&mut f, true, &[ENOSPC, ENOSPC]), Some(ENOSPC));
    flush(&mut f).unwrap();
    // The write succeeds only without durability.
    assert_eq!(write(&mut f, true, &[ENOSPC]), Some(ENOSPC));
    assert_eq!(flush(&mut f).unwrap_err().errno(), Some(ENOSPC));
    assert_eq!(write(&mut f, true, &[]), None, "it speaks for itself");
}

#[test]
fn the_open_file_may_be_waited_for() {
    for direct in [false, true] {
        let device = Fixture::new(4096).open(OpenOptions { direct, ..Default::default() });
        let flags = rustix::fs::fcntl_getfl(device.file()).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
        assert_eq!(flags.contains(OFlags::DIRECT), direct);
    }
}

#[test]
fn what_would_wait_is_tried_again_but_not_for_ever() {
    let mut f = Fixture::new(1 << 20);
    let device = f.open(OpenOptions::default());
    let mut channel = device.channel(1).unwrap();
    for errno in [EAGAIN, EINTR] {
        for (times, ends_with) in [(1, None), (8, None), (9, Some(errno))] {
            let mut buffer = f.one.arena.alloc(4096).unwrap();
            buffer.copy_from_slice(&pattern(4096));
            let io = Io::Write { offset: 0, buffer, range: 0..4096, durable: false };
            let done = f.one.run_with(channel.as_mut(), io, &vec![errno; times]);
            assert_eq!(done.result.err().and_then(|e| e.errno()), ends_with);
            f.one.arena.free(done.buffer.expect("the memory comes back"));
        }
    }
}

#[test]
fn a_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error =
        FileDevice::open(folder.path(), OpenOptions { read_only: true, ..Default::default() }).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Open);
}
