//! Images through the facade: vectors of real kernels, random ranges against a model, refusals.

mod support;

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};
use underseal_image::{ErrorKind, FormatOptions, Header, Image, KeyslotOptions, LowerDevice, OpenOptions};

use self::support::Loop;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../volume/tests/vectors/luks");

fn manifest(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(Path::new(VECTORS).join(name)).unwrap()).unwrap()
}

fn unpack(folder: &Path, name: &str) -> PathBuf {
    let name = Path::new(name).file_name().unwrap();
    let output = Command::new("xz").arg("-dc").arg(Path::new(VECTORS).join(name)).output().unwrap();
    assert!(output.status.success(), "{name:?}: {}", String::from_utf8_lossy(&output.stderr));
    let image = folder.join(name).with_extension("");
    std::fs::write(&image, output.stdout).unwrap();
    image
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_volume_that_a_kernel_wrote_reads_back_exactly() {
    let mut read = 0;
    for name in ["basic.json", "integrity.json"] {
        for (id, about) in manifest(name)["images"].as_object().unwrap() {
            let folder = tempfile::tempdir().unwrap();
            let files = about["files"].as_array().unwrap().iter();
            let files: Vec<PathBuf> =
                files.map(|file| unpack(folder.path(), file.as_str().unwrap())).collect();
            let mut options =
                OpenOptions::new().volume_key(&hex(about["volume_key"].as_str().unwrap())).unwrap();
            if files.len() > 1 {
                options = options.header(&files[1]);
            }
            let image = options.open(&files[0]).unwrap_or_else(|e| panic!("{id}: {}", e.text()));
            let mut bytes = vec![0; usize::try_from(about["data_bytes"].as_u64().unwrap()).unwrap()];
            assert_eq!(image.read_at(0, &mut bytes).unwrap(), bytes.len(), "{id}");
            assert_eq!(sha256(&bytes), about["plain_sha256"].as_str().unwrap(), "{id}");
            // Bytes within sectors, across their borders.
            let mut some = vec![0; 5000];
            image.read_at(1234, &mut some).unwrap();
            assert!(some == bytes[1234..6234], "{id}");
            read += 1;
        }
    }
    assert_eq!(read, 29);
}

#[test]
fn a_journal_that_was_not_replayed_is_read_as_its_replay_would_leave_it() {
    let manifest = manifest("integrity-dirty.json");
    let images = manifest["images"].as_object().unwrap();
    assert_eq!(images.len(), 6);
    for (id, about) in images {
        let folder = tempfile::tempdir().unwrap();
        let path = unpack(folder.path(), &format!("{id}.img.xz"));
        let before = std::fs::read(&path).unwrap();
        let key = hex(about["volume_key"].as_str().unwrap());
        let image = OpenOptions::new().volume_key(&key).unwrap().open(&path).unwrap();
        for write in about["writes"].as_array().unwrap() {
            let [sector, count] = [&write[0], &write[1]].map(|value| value.as_u64().unwrap());
            if about["lost"].as_array().unwrap().contains(&write[2]) {
                continue;
            }
            let mut bytes = vec![0; usize::try_from(count * 512).unwrap()];
            image.read_at(sector * 512, &mut bytes).unwrap_or_else(|e| panic!("{id}: {}", e.text()));
        }
        drop(image);
        assert!(std::fs::read(&path).unwrap() == before, "{id}: reading changed the image");
    }
}

#[test]
fn authenticated_volumes_are_written_and_what_was_flushed_survives_a_crash() {
    let manifest = manifest("integrity.json");
    let mut written = 0;
    for (id, about) in manifest["images"].as_object().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        let path = unpack(folder.path(), about["files"][0].as_str().unwrap());
        let key = hex(about["volume_key"].as_str().unwrap());
        let open = |path: &Path, writable| {
            let options = OpenOptions::new().volume_key(&key).unwrap().writable(writable);
            options.open(path).unwrap_or_else(|e| panic!("{id}: {}", e.text()))
        };
        let image = open(&path, true);
        let mut model = vec![0; usize::try_from(about["data_bytes"].as_u64().unwrap()).unwrap()];
        image.read_at(0, &mut model).unwrap();
        let end = model.len();
        let mut write = |at: usize, len: usize, byte: u8| {
            image.write_at(at as u64, &vec![byte; len]).unwrap_or_else(|e| panic!("{id}: {}", e.text()));
            model[at..at + len].fill(byte);
        };
        // Whole sectors, a part of one, parts of two and all between.
        for (at, len, byte) in
            [(0, 8192, 1), (100, 7, 2), (4000, 30_000, 3), (end - 5000, 5000, 4), (1, 1, 5)]
        {
            write(at, len, byte);
        }
        image.flush().unwrap();
        let crashed = folder.path().join("crashed");
        std::fs::copy(&path, &crashed).unwrap();
        let read = |image: &Image| {
            let mut bytes = vec![0; model.len()];
            image.read_at(0, &mut bytes).unwrap_or_else(|e| panic!("{id}: {}", e.text()));
            bytes
        };
        assert!(read(&image) == model, "{id}");
        assert_eq!(image.discard(0, 4096).unwrap_err().kind(), ErrorKind::Unsupported, "{id}");
        drop(image);
        // As the volume was left; as a crash behind the flush left it, read only and after a
        // replay.
        for (path, writable) in [(&path, false), (&crashed, false), (&crashed, true)] {
            assert!(read(&open(path, writable)) == model, "{id}: {writable}");
        }
        written += 1;
    }
    assert_eq!(written, 7);
}

/// A volume of 8 MiB beside its model.
struct Modelled {
    _folder: tempfile::TempDir,
    image: Image,
    model: Vec<u8>,
}

impl Modelled {
    fn new(options: &FormatOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
        Header::format(&path, b"secret", options).unwrap();
        let image = OpenOptions::new().passphrase(b"secret").unwrap().writable(true).open(&path).unwrap();
        let mut model = vec![0; usize::try_from(image.size()).unwrap()];
        image.read_at(0, &mut model).unwrap();
        Self { _folder: folder, image, model }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.image.write_at(at as u64, bytes).unwrap();
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_range_is_written_and_read_back_and_nothing_beside_it(
        luks1: bool,
        large: bool,
        writes in prop::collection::vec((0..8_000_000_usize, 1..300_000_usize, any::<u8>()), 1..6),
    ) {
        let options = if luks1 {
            FormatOptions::luks1()
        } else {
            FormatOptions::luks2().sector_size(if large { 4096 } else { 512 })
        };
        let mut volume = Modelled::new(&options.pbkdf2(1000));
        for (at, len, byte) in writes {
            let at = at % (volume.model.len() - len);
            let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add(u8::try_from(i / 3 % 256).unwrap())).collect();
            volume.write(at, &bytes);
            let mut back = vec![0; len + 1000];
            let from = at.saturating_sub(500);
            let read = volume.image.read_at(from as u64, &mut back).unwrap();
            prop_assert!(back[..read] == volume.model[from..from + read]);
        }
        let mut all = vec![0; volume.model.len()];
        volume.image.read_at(0, &mut all).unwrap();
        prop_assert!(all == volume.model);
    }
}

#[test]
fn reads_at_the_end_are_short_and_writes_beyond_it_change_nothing() {
    let mut volume = Modelled::new(&FormatOptions::luks2().pbkdf2(1000));
    let size = volume.image.size();
    let mut bytes = [7; 100];
    assert_eq!(volume.image.read_at(size - 10, &mut bytes).unwrap(), 10);
    assert_eq!(volume.image.read_at(size, &mut bytes).unwrap(), 0);
    assert_eq!(volume.image.read_at(u64::MAX, &mut bytes).unwrap(), 0);
    for at in [size - 99, size, u64::MAX] {
        assert_eq!(volume.image.write_at(at, &bytes).unwrap_err().kind(), ErrorKind::OutOfRange);
    }
    volume.write(0, &[]);
    let mut all = vec![0; volume.model.len()];
    volume.image.read_at(0, &mut all).unwrap();
    assert!(all == volume.model);
    assert_eq!(volume.image.discard(0, 4096).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn an_image_that_is_written_to_is_nobody_elses_and_one_that_is_read_is_shared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    Header::format(&path, b"secret", &FormatOptions::luks2().pbkdf2(1000)).unwrap();
    let open = |writable| OpenOptions::new().passphrase(b"secret").unwrap().writable(writable).open(&path);
    let readers = [open(false).unwrap(), open(false).unwrap()];
    assert_eq!(open(true).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(readers[0].write_at(0, b"x").unwrap_err().kind(), ErrorKind::ReadOnly);
    drop(readers);
    let writer = open(true).unwrap();
    assert_eq!(open(false).unwrap_err().kind(), ErrorKind::Busy);
    drop(writer);
    open(false).unwrap();
}

#[test]
fn secrets_and_headers_that_do_not_fit_are_refused_by_their_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    let open = |options: OpenOptions| options.open(&path).map(drop).unwrap_err().kind();
    assert_eq!(open(OpenOptions::new()), ErrorKind::BadOption);
    assert_eq!(open(OpenOptions::new().passphrase(b"x").unwrap()), ErrorKind::NoHeader);
    Header::format(&path, b"secret", &FormatOptions::luks2().pbkdf2(1000)).unwrap();
    assert_eq!(open(OpenOptions::new().passphrase(b"x").unwrap()), ErrorKind::WrongPassphrase);
    assert_eq!(open(OpenOptions::new().volume_key(&[1; 64]).unwrap()), ErrorKind::WrongPassphrase);
    assert_eq!(open(OpenOptions::new().passphrase(b"secret").unwrap().keyslot(3)), ErrorKind::Keyslot);
    let again = Header::format(&path, b"other", &FormatOptions::luks2().pbkdf2(1000));
    assert_eq!(again.map(drop).unwrap_err().kind(), ErrorKind::BadOption);
    let missing = OpenOptions::new().passphrase(b"x").unwrap().open(folder.path().join("missing"));
    assert_eq!(missing.unwrap_err().errno(), 2);
}

#[test]
fn keyslots_come_change_and_go_and_cryptsetup_opens_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    let cheap = KeyslotOptions::new().pbkdf2(1000);
    let mut header = Header::format(&path, b"one", &FormatOptions::luks2().pbkdf2(1000)).unwrap();
    let key = header.unlock(b"one", None).unwrap();
    assert_eq!(header.add_keyslot(&key, b"two", &cheap.clone().number(5)).unwrap(), 5);
    assert_eq!(header.change_keyslot(b"two", b"three", Some(5), &cheap).unwrap(), 5);
    let backup = header.backup().unwrap();
    header.remove_keyslot(0, false).unwrap();
    assert_eq!(header.keyslots(), [5]);
    assert_eq!(header.remove_keyslot(5, false).unwrap_err().kind(), ErrorKind::Keyslot);
    let tests = |passphrase: &str| {
        let pipe = format!(
            "printf {passphrase} | cryptsetup open --test-passphrase --key-file - {}",
            path.display()
        );
        Command::new("sh").arg("-c").arg(pipe).status().unwrap().code()
    };
    assert_eq!([tests("three"), tests("one"), tests("two")], [Some(0), Some(2), Some(2)]);
    Header::restore(&path, &backup, false).unwrap();
    assert_eq!([tests("three"), tests("one")], [Some(0), Some(0)]);
    let check: Value = serde_json::from_str(&Header::check(&path).unwrap()).unwrap();
    assert_eq!(check["sound"], true);
    let info: Value = serde_json::from_str(&Header::open(&path).unwrap().info_json().unwrap()).unwrap();
    assert_eq!(info["format"], "luks2");
}

/// A program's device over a file's bytes, which fails on demand.
struct Bytes {
    bytes: Mutex<Vec<u8>>,
    claims: u64,
    fails_from: u64,
}

impl LowerDevice for Bytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.claims)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.lock().unwrap();
        let from = usize::try_from(offset).unwrap();
        if offset + into.len() as u64 > self.fails_from {
            return Err(io::Error::from_raw_os_error(121));
        }
        into.copy_from_slice(bytes.get(from..from + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[test]
fn a_programs_own_device_is_read_and_its_errors_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    Header::format(&path, b"secret", &FormatOptions::luks2().pbkdf2(1000)).unwrap();
    let image = OpenOptions::new().passphrase(b"secret").unwrap().writable(true).open(&path).unwrap();
    image.write_at(0, &[9; 8192]).unwrap();
    image.flush().unwrap();
    drop(image);
    let bytes = std::fs::read(&path).unwrap();
    let open = |claims: u64, fails_from: u64| {
        let device = Bytes { bytes: Mutex::new(bytes.clone()), claims, fails_from };
        OpenOptions::new().passphrase(b"secret").unwrap().open_on(Arc::new(device))
    };
    let mut back = [0; 8192];
    let image = open(24 << 20, u64::MAX).unwrap();
    image.read_at(0, &mut back).unwrap();
    assert_eq!(back, [9; 8192]);
    // A device that lies about its size, and one with a bad sector.
    let image = open(1 << 40, u64::MAX).unwrap();
    assert_eq!(image.read_at(500 << 20, &mut back).unwrap_err().kind(), ErrorKind::Io);
    let image = open(24 << 20, 17 << 20).unwrap();
    image.read_at(0, &mut back).unwrap();
    assert_eq!(image.read_at((1 << 20) + 5, &mut back).unwrap_err().errno(), 121);
    assert_eq!(open(1 << 10, u64::MAX).unwrap_err().kind(), ErrorKind::TooSmall);
}

/// A program's own device that reads the image while the image writes to it.
struct Recursive {
    bytes: Mutex<Vec<u8>>,
    image: Mutex<Option<Arc<Image>>>,
}

impl LowerDevice for Recursive {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap();
        into.copy_from_slice(&self.bytes.lock().unwrap()[from..from + into.len()]);
        Ok(())
    }

    fn write_all_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        // Opening for writing writes the header again as it is.
        let Some(image) = self.image.lock().unwrap().clone() else { return Ok(()) };
        image.read_at(0, &mut [0; 16]).map(drop).map_err(io::Error::from)
    }

    fn sync(&self) -> io::Result<()> {
        let image = self.image.lock().unwrap().clone();
        if let Some(image) = image {
            assert_eq!(image.flush().unwrap_err().errno(), 35);
        }
        Ok(())
    }
}

#[test]
fn a_device_that_uses_its_own_image_fails_instead_of_waiting_for_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    Header::format(&path, b"secret", &FormatOptions::luks2().pbkdf2(1000)).unwrap();
    let bytes = Mutex::new(std::fs::read(&path).unwrap());
    let device = Arc::new(Recursive { bytes, image: Mutex::default() });
    let options = OpenOptions::new().passphrase(b"secret").unwrap().writable(true);
    let image = Arc::new(options.open_on(device.clone()).unwrap());
    *device.image.lock().unwrap() = Some(image.clone());
    let (done, ends) = std::sync::mpsc::channel();
    std::thread::spawn({
        let image = image.clone();
        move || done.send(image.write_at(0, &[1; 4096]).unwrap_err().text())
    });
    let text = ends.recv_timeout(std::time::Duration::from_secs(30)).expect("the write waits for itself");
    assert!(text.contains("uses the volume that lies on it"), "{text}");
    assert_eq!(image.read_at(0, &mut [0; 16]).unwrap(), 16, "later requests are served");
    image.flush().unwrap();
    device.image.lock().unwrap().take();
}

#[test]
fn a_new_header_file_is_its_owners_and_gone_when_formatting_fails() {
    let folder = tempfile::tempdir().unwrap();
    let [path, header] = ["image", "header"].map(|name| folder.path().join(name));
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    let options = FormatOptions::luks2().pbkdf2(1000).header(&header);
    assert!(Header::format(&path, b"secret", &options.clone().cipher("aes-xts-nothing")).is_err());
    assert!(Header::format(&path, b"secret", &options.clone().key_size(7)).is_err());
    assert!(!header.exists());
    Header::format(&path, b"secret", &options).unwrap();
    assert_eq!(std::fs::metadata(&header).unwrap().permissions().mode() & 0o777, 0o600);
    // A file that was there stays when it is refused.
    assert!(Header::format(&path, b"secret", &options.key_size(7).force(true)).is_err());
    assert!(header.exists());
}

#[test]
fn an_image_is_not_the_file_of_its_own_detached_header() {
    let folder = tempfile::tempdir().unwrap();
    let [path, symbolic, hard] = ["image", "symbolic", "hard"].map(|name| folder.path().join(name));
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    std::os::unix::fs::symlink(&path, &symbolic).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    for header in [&path, &symbolic, &hard] {
        let options = FormatOptions::luks2().pbkdf2(1000).header(header).force(true);
        let error = Header::format(&path, b"secret", &options).err().expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::BadOption, "{}", error.text());
        assert!(error.text().contains("image itself"), "{}", error.text());
    }
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    // The header of a new file is the one that was made, and can be changed.
    let options = FormatOptions::luks2().pbkdf2(1000).header(folder.path().join("header"));
    let mut header = Header::format(&path, b"secret", &options).unwrap();
    let key = header.unlock(b"secret", None).unwrap();
    header.add_keyslot(&key, b"second", &KeyslotOptions::new().pbkdf2(1000)).unwrap();
}

#[test]
fn threads_read_while_another_writes_and_each_sector_is_old_or_new() {
    let mut volume = Modelled::new(&FormatOptions::luks2().pbkdf2(1000));
    volume.write(0, &[1; 1 << 16]);
    let image = &volume.image;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut bytes = [0; 3000];
                    image.read_at(4090, &mut bytes).unwrap();
                    assert!(bytes == [1; 3000] || bytes == [2; 3000]);
                }
            });
        }
        scope.spawn(|| {
            for round in 0..200_u32 {
                image.write_at(4090, &[1 + u8::from(round % 2 == 1); 3000]).unwrap();
            }
        });
    });
}

#[test]
fn an_image_in_the_middle_of_a_reencryption_is_not_opened_as_if_it_were_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let marker = folder.path().join("image.underseal-state");
    let text = r#"{"underseal reencryption marker":1,"identity":"00000000-0000-4000-8000-000000000007","state":"/nowhere"}"#;
    std::fs::write(&marker, text).unwrap();
    let plain = |writable| {
        let options = OpenOptions::new().plain("aes-xts-plain64", 32, "sha256", 512).unwrap();
        options.volume_key(&[7; 32]).unwrap().writable(writable)
    };
    for writable in [false, true] {
        assert_eq!(plain(writable).open(&path).unwrap_err().kind(), ErrorKind::Unsupported);
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(plain(writable).open_file(file).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let formatted = Header::format(&path, b"x", &FormatOptions::luks2().force(true));
    assert_eq!(formatted.err().map(|e| e.kind()), Some(ErrorKind::Unsupported));
    std::fs::remove_file(&marker).unwrap();
    plain(true).open(&path).unwrap();
}

/// The marker of a loop device is beside its file.
#[test]
fn a_plain_image_that_is_being_reencrypted_is_refused_through_a_loop_device_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create_new(&path).unwrap().set_len(1 << 20).unwrap();
    let Some(device) = Loop::over(&path) else { return };
    let open = |by_file: bool| {
        let options = OpenOptions::new().plain("aes-xts-plain64", 32, "sha256", 512).unwrap();
        let options = options.volume_key(&[7; 32]).unwrap();
        let opened =
            if by_file { options.open_file(File::open(&device).unwrap()) } else { options.open(&device) };
        opened.map(drop)
    };
    let whole = [false, true].map(open);
    let text = r#"{"underseal reencryption marker":1,"identity":"00000000-0000-4000-8000-000000000007","state":"/nowhere"}"#;
    std::fs::write(folder.path().join("image.underseal-state"), text).unwrap();
    let marked = [false, true].map(open);
    drop(device);
    assert!(whole.iter().all(std::result::Result::is_ok), "{whole:?}");
    for refused in marked {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.text().contains("in the middle of a reencryption"), "{}", error.text());
    }
}
