//! Two programs on one image: through loop devices, and through a program's own device on a file.

mod own;
mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_image::{
    ErrorKind, FormatOptions, Header, Image, OpenOptions, Result, VeracryptOptions, format_veracrypt,
};

use self::own::{Own, image};
use self::support::Loop;

fn options(writable: bool) -> OpenOptions {
    OpenOptions::new().passphrase(b"secret").unwrap().writable(writable)
}

fn kind(opened: Result<Image>) -> ErrorKind {
    opened.map(drop).unwrap_err().kind()
}

#[test]
fn the_file_of_a_programs_own_device_is_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    let own = |writable| {
        let file = File::options().read(true).write(true).open(&path).unwrap();
        options(writable).open_on(Arc::new(Own(file)))
    };
    let writer = own(true).unwrap();
    assert_eq!(kind(options(false).open(&path)), ErrorKind::Busy);
    assert_eq!(kind(own(false)), ErrorKind::Busy);
    drop(writer);
    let readers = [own(false).unwrap(), options(false).open(&path).unwrap()];
    assert_eq!(kind(own(true)), ErrorKind::Busy);
    drop(readers);
    // A header is changed beside its volume's users, as that of a file.
    let reader = options(true).open(&path).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    Header::open_on(Arc::new(Own(file))).unwrap();
    drop(reader);
}

#[test]
fn users_of_one_descriptor_have_locks_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let writer = options(true).open_file(file.try_clone().unwrap()).unwrap();
    for writable in [true, false] {
        assert_eq!(kind(options(writable).open_file(file.try_clone().unwrap())), ErrorKind::Busy);
    }
    let step = |_, _| std::ops::ControlFlow::Continue(());
    let wanted = underseal_image::ReencryptionOptions::new();
    let refused = Header::reencrypt_file(file.try_clone().unwrap(), b"secret", &wanted, step).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    drop(writer);
    // A file that is open for reading only is not opened for writing.
    let file = File::open(&path).unwrap();
    let refused = options(true).open_file(file.try_clone().unwrap()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Io);
    assert!(refused.text().contains("is not open for writing"), "{}", refused.text());
    options(false).open_file(file).unwrap();
}

/// A detached header's options.
fn apart(header: &Path) -> FormatOptions {
    FormatOptions::luks2().pbkdf2(1000).header(header).force(true)
}

/// An open image whose header is in another file, so that its own first bytes are zeros.
fn with_header_apart(folder: &Path) -> (PathBuf, Image) {
    let [path, header] = ["data", "header"].map(|name| folder.join(name));
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    Header::format(&path, b"secret", &apart(&header)).unwrap();
    let volume = options(true).header(&header).open(&path).unwrap();
    (path, volume)
}

#[test]
fn no_header_is_restored_over_an_image_that_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let backup = Header::open(image(folder.path())).unwrap().backup().unwrap();
    let (path, volume) = with_header_apart(folder.path());
    let before = std::fs::read(&path).unwrap();
    let restored_to = |path: &Path| Header::restore(path, &backup, false).map_err(|e| e.kind());
    let restored = || restored_to(&path);
    assert_eq!(restored(), Err(ErrorKind::Busy));
    if let Some(device) = Loop::over(&path) {
        assert_eq!(restored_to(device.as_ref()), Err(ErrorKind::Busy));
    }
    assert!(std::fs::read(&path).unwrap() == before);
    drop(volume);
    restored().unwrap();
    // A user of the volume itself expects a restore of its header.
    let volume = options(true).open(&path).unwrap();
    restored().unwrap();
    volume.flush().unwrap();
}

#[test]
fn no_detached_header_is_made_over_an_image_that_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let other = image(folder.path());
    let (path, volume) = with_header_apart(folder.path());
    let before = std::fs::read(&path).unwrap();
    let link = folder.path().join("link");
    std::fs::hard_link(&path, &link).unwrap();
    for file in [&path, &link] {
        let made = Header::format(&other, b"secret", &apart(file));
        assert_eq!(made.map(drop).unwrap_err().kind(), ErrorKind::Busy);
    }
    assert!(std::fs::read(&path).unwrap() == before);
    drop(volume);
    Header::format(&other, b"secret", &apart(&link)).unwrap();
}

/// The image of a volume with a detached header is another file than the one that has its key.
#[test]
fn a_detached_header_stays_that_of_the_open_volume() {
    for options in [FormatOptions::luks1(), FormatOptions::luks2()] {
        let folder = tempfile::tempdir().unwrap();
        let other = image(folder.path());
        let backup = Header::open(&other).unwrap().backup().unwrap();
        let (path, header) = (folder.path().join("data"), folder.path().join("header"));
        File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
        Header::format(&path, b"secret", &options.pbkdf2(1000).header(&header)).unwrap();
        let volume = self::options(true).header(&header).open(&path).unwrap();
        let before = std::fs::read(&header).unwrap();
        let image = FormatOptions::luks1().pbkdf2(1000).force(true);
        let veracrypt = VeracryptOptions::new().unwrap().quick(true).force(true);
        let step = |_, _| std::ops::ControlFlow::Continue(());
        let changes: [(&str, &dyn Fn() -> Result<()>); 4] = [
            ("a detached header", &|| Header::format(&other, b"new", &apart(&header)).map(drop)),
            ("an image", &|| Header::format(&header, b"new", &image).map(drop)),
            ("VeraCrypt", &|| format_veracrypt(&header, &[b'x'; 20], &veracrypt, step).map(drop)),
            ("a backup", &|| Header::restore(&header, &backup, true)),
        ];
        for (what, change) in changes {
            assert_eq!(change().map_err(|e| e.kind()), Err(ErrorKind::Busy), "{what}");
            assert!(std::fs::read(&header).unwrap() == before, "{what}");
        }
        volume.write_at(0, b"x").unwrap();
        volume.flush().unwrap();
        drop(volume);
        Header::format(&other, b"secret", &apart(&header)).unwrap();
    }
}

#[test]
fn the_file_below_a_loop_device_is_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    let Some(device) = Loop::over(&path) else { return };
    let own = || Own(File::options().read(true).write(true).open(&device).unwrap());
    let attempts = || -> [(&str, Result<Image>); 3] {
        [
            ("path", options(true).open(&device)),
            ("file", options(true).open_file(own().0)),
            ("own device", options(true).open_on(Arc::new(own()))),
        ]
    };
    let file = options(true).open(&path).unwrap();
    for (how, opened) in attempts() {
        assert_eq!(opened.map(drop).map_err(|e| e.kind()), Err(ErrorKind::Busy), "{how}");
    }
    let upper = Loop::over(&device).unwrap();
    assert_eq!(kind(options(true).open(&upper)), ErrorKind::Busy);
    drop((file, upper));
    let _through = options(true).open(&device).unwrap();
    assert_eq!(kind(options(false).open(&path)), ErrorKind::Busy);
}
