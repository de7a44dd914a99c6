//! New volumes of VeraCrypt through the facade.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use underseal_image::{
    ErrorKind, Formatted, Image, OpenOptions, TcryptOptions, VeracryptOptions, format_veracrypt,
};

const OUTER: &[u8] = b"a long outer passphrase";
const HIDDEN: &[u8] = b"a long hidden passphrase";
const SIZE: u64 = 1 << 20;

fn image() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create_new(&path).unwrap().set_len(SIZE).unwrap();
    (folder, path)
}

/// Few rounds, which passphrases of this length may have.
fn options() -> VeracryptOptions {
    VeracryptOptions::new().unwrap().pim(1).unwrap()
}

fn on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn open(path: &Path, passphrase: &[u8], options: TcryptOptions) -> underseal_image::Result<Image> {
    let options = options.pim(1).unwrap().prf("sha512").unwrap();
    OpenOptions::new().passphrase(passphrase)?.tcrypt(options).writable(true).open(path)
}

#[test]
fn a_volume_and_a_hidden_one_inside_open_read_and_are_protected() {
    let (_folder, path) = image();
    let mut last = (0, 0);
    let made =
        format_veracrypt(&path, OUTER, &options().cipher("serpent-twofish-aes").unwrap(), |done, all| {
            assert!(done > last.0);
            last = (done, all);
            ControlFlow::Continue(())
        });
    assert_eq!((made.unwrap(), last), (Formatted::Completed, (SIZE, SIZE)));
    let outer = open(&path, OUTER, TcryptOptions::new()).unwrap();
    assert_eq!(outer.size(), SIZE - 4 * 65536);
    outer.write_at(5, b"outer").unwrap();
    drop(outer);

    let hidden = options().hidden(256 << 10);
    let refused = format_veracrypt(&path, HIDDEN, &hidden, on).unwrap_err();
    assert!(refused.kind() == ErrorKind::BadOption && refused.text().contains("pass force"));
    let made = format_veracrypt(&path, HIDDEN, &hidden.force(true), on).unwrap();
    assert_eq!(made, Formatted::Completed);
    let inner = open(&path, HIDDEN, TcryptOptions::new().hidden(true)).unwrap();
    assert_eq!(inner.size(), 256 << 10);
    inner.write_at(7, b"hidden").unwrap();
    drop(inner);

    let protected = TcryptOptions::new().protect_hidden(HIDDEN, 1, []).unwrap();
    let outer = open(&path, OUTER, protected).unwrap();
    let mut bytes = [0; 5];
    outer.read_at(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"outer");
    assert_eq!(outer.write_at(outer.size() - 65536, &[1]).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(outer.write_at(0, &[1]).unwrap_err().kind(), ErrorKind::ReadOnly, "nor any later write");
}

#[test]
fn no_force_makes_a_hidden_volume_in_another_format() {
    let (_folder, path) = image();
    let mut bytes = vec![0x5a; usize::try_from(SIZE).unwrap()];
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(&path, &bytes).unwrap();
    let hidden = options().hidden(256 << 10).force(true);
    let refused = format_veracrypt(&path, HIDDEN, &hidden, on).unwrap_err();
    assert!(refused.kind() == ErrorKind::BadOption && refused.text().contains("no outer volume"));
    assert!(std::fs::read(&path).unwrap() == bytes, "nothing is written");
}

#[test]
fn a_stopped_format_leaves_no_volume() {
    let (_folder, path) = image();
    format_veracrypt(&path, OUTER, &options().quick(true), on).unwrap();
    open(&path, OUTER, TcryptOptions::new()).unwrap();
    let mut told = 0;
    let stop = |_, _| {
        told += 1;
        ControlFlow::Break(())
    };
    let stopped = format_veracrypt(&path, HIDDEN, &options().force(true), stop).unwrap();
    assert_eq!((stopped, told), (Formatted::Stopped, 1));
    for passphrase in [OUTER, HIDDEN] {
        let opened = open(&path, passphrase, TcryptOptions::new());
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::WrongPassphrase);
    }
}

#[test]
fn what_is_there_and_what_does_not_fit_is_refused() {
    let (folder, path) = image();
    let mut disk = vec![0; usize::try_from(SIZE).unwrap()];
    disk[0x438..0x43a].copy_from_slice(b"\x53\xef");
    fs::write(&path, &disk).unwrap();
    let key_file = folder.path().join("key");
    fs::write(&key_file, "some bytes").unwrap();
    let refused = |passphrase: &[u8], options: &VeracryptOptions| {
        let refused = format_veracrypt(&path, passphrase, options, on).unwrap_err().kind();
        assert!(fs::read(&path).unwrap() == disk, "something was written");
        refused
    };
    assert_eq!(refused(OUTER, &options()), ErrorKind::BadOption, "a file system is there");
    let force = || options().force(true);
    assert_eq!(refused(b"short", &force()), ErrorKind::BadOption, "few rounds");
    assert_eq!(refused(b"", &force().pim(0).unwrap()), ErrorKind::WrongPassphrase);
    assert_eq!(refused(OUTER, &force().sector_size(100)), ErrorKind::BadOption);
    assert_eq!(refused(OUTER, &force().hidden(SIZE)), ErrorKind::BadOption);
    assert!(options().cipher("rot13").is_err() && options().prf("md5").is_err());
    // Key files make up for a short passphrase.
    let with_file = force().key_file(&key_file);
    assert_eq!(format_veracrypt(&path, b"", &with_file, on).unwrap(), Formatted::Completed);
    open(&path, b"", TcryptOptions::new().key_file(&key_file)).unwrap();
}
