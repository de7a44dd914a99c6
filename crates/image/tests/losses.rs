//! Images that lose what was written to them: cut, removed or replaced files, and syncs that fail.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use underseal_image::{ErrorKind, FormatOptions, Header, Image, LowerDevice, OpenOptions};

fn image(folder: &Path) -> PathBuf {
    let path = folder.join("an image");
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    Header::format(&path, b"secret", &FormatOptions::luks2().pbkdf2(1000)).unwrap();
    path
}

fn options() -> OpenOptions {
    OpenOptions::new().passphrase(b"secret").unwrap().writable(true)
}

fn by_path_and_by_file(path: &Path) -> [Box<dyn Fn() -> Image>; 2] {
    let [first, second] = [path.to_owned(), path.to_owned()];
    let file = move || File::options().read(true).write(true).open(&second).unwrap();
    [
        Box::new(move || options().open(&first).unwrap()),
        Box::new(move || options().open_file(file()).unwrap()),
    ]
}

fn write_and_flush_fail(image: &Image, what: &str) {
    assert_eq!(image.flush().map_err(|e| e.kind()), Err(ErrorKind::Io), "{what}");
    assert_eq!(image.write_at(0, &[3; 512]).map_err(|e| e.kind()), Err(ErrorKind::Io), "{what}");
    assert_eq!(image.flush().map_err(|e| e.kind()), Err(ErrorKind::Io), "{what}, again");
}

#[test]
fn an_image_that_is_cut_gets_its_length_back_from_no_write() {
    for which in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let image = by_path_and_by_file(&path)[which]();
        let end = image.size() - 512;
        image.write_at(end, &[1; 512]).unwrap();
        image.flush().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(20 << 20).unwrap();
        assert_eq!(image.write_at(end, &[2; 512]).map_err(|e| e.kind()), Err(ErrorKind::Io));
        assert_eq!(fs::metadata(&path).unwrap().len(), 20 << 20);
        write_and_flush_fail(&image, "cut");
    }
}

#[test]
fn an_image_that_is_removed_or_replaced_fails_its_flushes() {
    for (which, is_replaced) in [(0, false), (0, true), (1, false), (1, true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path());
        let image = by_path_and_by_file(&path)[which]();
        image.write_at(0, &[1; 512]).unwrap();
        if is_replaced {
            fs::copy(&path, folder.path().join("other")).unwrap();
            fs::rename(folder.path().join("other"), &path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        write_and_flush_fail(&image, "removed");
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
