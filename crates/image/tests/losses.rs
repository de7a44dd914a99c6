//! Images that lose what was written to them: cut, removed or replaced files, and syncs that fail.

mod own;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use underseal_image::{ErrorKind, Image, LowerDevice, OpenOptions};

use self::own::{Own, image};

fn options() -> OpenOptions {
    OpenOptions::new().passphrase(b"secret").unwrap().writable(true)
}

/// How an image is opened.
const WAYS: [&str; 3] = ["by path", "by file", "on a device of the program's own"];

fn open(path: &Path, way: &str) -> Image {
    open_with(&options(), path, way)
}

fn open_with(options: &OpenOptions, path: &Path, way: &str) -> Image {
    let file = || File::options().read(true).write(true).open(path).unwrap();
    match way {
        "by path" => options.open(path).unwrap(),
        "by file" => options.open_file(file()).unwrap(),
        _ => options.open_on(Arc::new(Own(file()))).unwrap(),
    }
}

fn write_and_flush_fail(image: &Image, what: &str) {
    assert_eq!(image.flush().map_err(|e| e.kind()), Err(ErrorKind::Io), "{what}");
    assert_eq!(image.write_at(0, &[3; 512]).map_err(|e| e.kind()), Err(ErrorKind::Io), "{what}");
    assert_eq!(image.flush().map_err(|e| e.kind()), Err(ErrorKind::Io), "{what}, again");
}

#[test]
fn an_image_that_is_cut_gets_its_length_back_from_no_write() {
    for way in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let image = open(&path, way);
        let end = image.size() - 512;
        image.write_at(end, &[1; 512]).unwrap();
        image.flush().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(20 << 20).unwrap();
        assert_eq!(image.write_at(end, &[2; 512]).map_err(|e| e.kind()), Err(ErrorKind::Io), "{way}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 20 << 20, "{way}");
        write_and_flush_fail(&image, way);
    }
}

#[test]
fn an_image_that_is_removed_or_replaced_fails_its_flushes() {
    for (way, is_replaced) in WAYS.iter().flat_map(|way| [(way, false), (way, true)]) {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let image = open(&path, way);
        image.write_at(0, &[1; 512]).unwrap();
        if is_replaced {
            fs::copy(&path, folder.path().join("other")).unwrap();
            fs::rename(folder.path().join("other"), &path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        write_and_flush_fail(&image, way);
    }
}

/// As `cryptsetup reencrypt --decrypt` does it before it takes a lock.
#[test]
fn a_volume_whose_header_was_overwritten_fails_its_flushes() {
    /// In sectors.
    const START: u32 = 1 << 11;
    for (way, in_partition) in WAYS.iter().flat_map(|way| [(way, false), (way, true)]) {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let (mut opened, mut start) = (options(), 0);
        if in_partition {
            let volume = fs::read(&path).unwrap();
            let mut disk = vec![0; 1 << 20];
            disk[446 + 4] = 0x83;
            disk[446 + 8..446 + 12].copy_from_slice(&START.to_le_bytes());
            disk[446 + 12..446 + 16].copy_from_slice(&(24_u32 << 11).to_le_bytes());
            disk[510..512].copy_from_slice(&[0x55, 0xaa]);
            fs::write(&path, [disk, volume].concat()).unwrap();
            (opened, start) = (opened.partition(1), u64::from(START) * 512);
        }
        let image = open_with(&opened, &path, way);
        let other = File::options().write(true).open(&path).unwrap();
        image.write_at(0, &[1; 512]).unwrap();
        image.flush().unwrap();
        other.write_all_at(&[0; 4096], start).unwrap();
        image.flush().unwrap();
        other.write_all_at(&[2; 32 << 10], start).unwrap();
        let error = image.flush().unwrap_err();
        assert!(format!("{error:?}").contains("place of"), "{way}: {error:?}");
        write_and_flush_fail(&image, way);
    }
}

/// The lock of reencryptions has the UUID in its name. cryptsetup changes that of an open image.
#[test]
fn a_volume_whose_uuid_was_changed_fails_its_flushes() {
    const UUID: u64 = 168;
    for (way, detached) in WAYS.iter().flat_map(|way| [(way, false), (way, true)]) {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let (mut opened, mut header) = (options(), path.clone());
        if detached {
            header = folder.path().join("header");
            fs::copy(&path, &header).unwrap();
            opened = opened.header(&header);
        }
        let image = open_with(&opened, &path, way);
        let other = File::options().write(true).open(&header).unwrap();
        image.write_at(0, &[1; 512]).unwrap();
        image.flush().unwrap();
        for (copy, is_last) in [(0, false), (16 << 10, true)] {
            other.write_all_at(b"77777777-2222-3333-4444-555555555555", copy + UUID).unwrap();
            assert_eq!(image.flush().is_err(), is_last, "{way}");
        }
        write_and_flush_fail(&image, way);
    }
}

/// A device whose sync fails once.
struct FailsOnce {
    file: File,
    fails: AtomicBool,
}

impl LowerDevice for FailsOnce {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(&self.file, bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(&self.file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        if self.fails.swap(false, SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

#[test]
fn a_flush_that_failed_is_followed_by_none_that_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::options().read(true).write(true).open(image(folder.path())).unwrap();
    let device = Arc::new(FailsOnce { file, fails: AtomicBool::new(false) });
    let image = options().open_on(device.clone()).unwrap();
    image.flush().unwrap();
    device.fails.store(true, SeqCst);
    image.write_at(0, &[1; 512]).unwrap();
    image.flush().unwrap_err();
    let again = image.flush().unwrap_err();
    assert!(format!("{again:?}").contains("an earlier flush has failed"), "{again:?}");
    options().open_on(device).unwrap().flush().unwrap();
}
