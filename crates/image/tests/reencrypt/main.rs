//! Reencryption through the facade: both ways beside the real cryptsetup, killed at each write,
//! stopped by the caller, refused.

mod killed;
mod lost_header;

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use underseal_image::{
    ErrorKind, FormatOptions, Header, KeyslotOptions, LowerDevice, OpenOptions, ReencryptionEnd,
    ReencryptionOptions,
};

const SECRET: &[u8] = b"correct horse";
/// The data of a volume, behind a header of 16 MiB.
const SIZE: usize = 4 << 20;

/// An image in a folder of its own, and what its data are.
struct Case {
    folder: tempfile::TempDir,
    image: PathBuf,
    plain: Vec<u8>,
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}

impl Case {
    fn new(format: &FormatOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (image, plain) = (folder.path().join("image"), noise(SIZE));
        File::create_new(&image).unwrap().set_len((16 << 20) + SIZE as u64).unwrap();
        Header::format(&image, SECRET, format).unwrap();
        let volume = OpenOptions::new().passphrase(SECRET).unwrap().writable(true).open(&image).unwrap();
        volume.write_at(0, &plain).unwrap();
        volume.flush().unwrap();
        drop(volume);
        fs::write(folder.path().join("key"), SECRET).unwrap();
        Self { folder, image, plain }
    }

    fn luks2() -> Self {
        Self::new(&FormatOptions::luks2().pbkdf2(1000))
    }

    /// Plain data of `len` bytes.
    fn plain(len: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (image, plain) = (folder.path().join("image"), noise(len));
        fs::write(&image, &plain).unwrap();
        fs::write(folder.path().join("key"), SECRET).unwrap();
        Self { folder, image, plain }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Copies of image and key in another folder.
    fn copy(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        fs::copy(&self.image, &image).unwrap();
        fs::write(folder.path().join("key"), SECRET).unwrap();
        Self { folder, image, plain: self.plain.clone() }
    }

    fn reencrypt(&self, options: &ReencryptionOptions) -> underseal_image::Result<ReencryptionEnd> {
        Header::reencrypt(&self.image, SECRET, options, on)
    }

    /// Stops after this many steps.
    fn stop_after(&self, steps: u32, options: &ReencryptionOptions) -> ReencryptionEnd {
        let mut left = steps + 1;
        let stop = |_, _| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        Header::reencrypt(&self.image, SECRET, options, stop).unwrap()
    }

    /// The volume's data are what they were.
    fn is_whole(&self, header: Option<&Path>, context: &str) {
        let mut options = OpenOptions::new().passphrase(SECRET).unwrap();
        if let Some(header) = header {
            options = options.header(header);
        }
        let volume = options.open(&self.image).unwrap_or_else(|e| panic!("{context}: {}", e.text()));
        let len = self.plain.len().min(usize::try_from(volume.size()).unwrap());
        let mut bytes = vec![0; len];
        assert_eq!(volume.read_at(0, &mut bytes).unwrap(), len);
        assert!(bytes == self.plain[..len], "{context}: other data");
    }

    fn dump(&self) -> String {
        let output = cryptsetup(&["luksDump"]).arg(&self.image).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn is_under_way(&self) -> bool {
        self.dump().contains("online-reencrypt")
    }

    /// cryptsetup with the passphrase as a key file.
    fn cryptsetup(&self, words: &str) -> Command {
        let mut command = cryptsetup(&words.split_whitespace().collect::<Vec<_>>());
        command.arg("-q").arg(&self.image).arg("-d").arg(self.path("key"));
        command
    }
}

fn cryptsetup(words: &[&str]) -> Command {
    let mut command = Command::new("cryptsetup");
    command.args(words).stdin(Stdio::null());
    command
}

fn run(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A progress that goes on.
fn on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn step(bytes: u64) -> ReencryptionOptions {
    ReencryptionOptions::new().hotzone_size(bytes)
}

#[test]
fn a_volume_gets_another_key_cipher_and_sector_size() {
    let new = ReencryptionOptions::new;
    for (options, words) in [
        (new(), "aes-xts-plain64"),
        (new().cipher("serpent-xts-plain64").key_size(32), "serpent-xts-plain64"),
        (new().resilience("journal").unwrap().hotzone_size(1 << 20), "aes-xts-plain64"),
        (new().resilience("none").unwrap(), "aes-xts-plain64"),
        (new().sector_size(512).keep_key(true), "sector: 512"),
        (new().sector_size(512).resilience_hash("sha512").unwrap(), "sector: 512"),
    ] {
        let case = Case::new(&FormatOptions::luks2().pbkdf2(1000).sector_size(4096));
        let before = fs::read(&case.image).unwrap();
        let context = format!("{options:?}");
        assert_eq!(case.reencrypt(&options).unwrap(), ReencryptionEnd::Finished, "{context}");
        case.is_whole(None, &context);
        let dump = case.dump();
        assert!(dump.contains(words) && !dump.contains("Requirements"), "{context}: {dump}");
        run(case.cryptsetup("open --test-passphrase"));
        let after = fs::read(&case.image).unwrap();
        assert!(before[16 << 20..] != after[16 << 20..], "{context}: the data are as they were");
    }
}

#[test]
fn the_progress_tells_of_all_bytes_and_stops_between_two_steps() {
    let case = Case::luks2();
    let mut told = vec![];
    let stop = |done, all| {
        told.push((done, all));
        if done >= 1 << 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let end = Header::reencrypt(&case.image, SECRET, &step(256 << 10), stop).unwrap();
    assert_eq!(end, ReencryptionEnd::Stopped);
    let quarter = 256 << 10;
    assert_eq!(told, (0..5).map(|nth| (nth * quarter, SIZE as u64)).collect::<Vec<_>>());
    // The volume opens as it is, for reading only.
    assert!(case.is_under_way());
    case.is_whole(None, "stopped");
    let writable = OpenOptions::new().passphrase(SECRET).unwrap().writable(true).open(&case.image);
    assert_eq!(writable.unwrap_err().kind(), ErrorKind::Unsupported);
    // Nothing else begins.
    for other in [ReencryptionOptions::encrypt(), ReencryptionOptions::decrypt()] {
        let other = other.header(case.path("header"));
        assert_eq!(case.reencrypt(&other).unwrap_err().kind(), ErrorKind::BadOption);
    }
    assert!(!case.path("header").exists());
    let mut last = (0, 0);
    let end = Header::reencrypt(&case.image, SECRET, &ReencryptionOptions::resume(), |done, all| {
        assert!(done >= 1 << 20);
        last = (done, all);
        ControlFlow::Continue(())
    });
    assert_eq!((end.unwrap(), last), (ReencryptionEnd::Finished, (SIZE as u64, SIZE as u64)));
    case.is_whole(None, "finished");
    assert!(!case.is_under_way());
    let over = case.reencrypt(&ReencryptionOptions::resume()).unwrap_err();
    assert!(over.kind() == ErrorKind::BadOption && over.text().contains("no reencryption is under way"));
}

#[test]
fn what_is_stopped_here_goes_on_in_cryptsetup_and_the_other_way_round() {
    for resilience in ["checksum", "journal"] {
        let case = Case::luks2();
        let options = step(512 << 10).resilience(resilience).unwrap();
        assert_eq!(case.stop_after(3, &options), ReencryptionEnd::Stopped);
        assert!(case.is_under_way());
        run(case.cryptsetup("reencrypt --resume-only --force-offline-reencrypt"));
        assert!(!case.is_under_way());
        case.is_whole(None, resilience);
    }
    for options in ["--init-only", "--init-only --resilience journal"] {
        let case = Case::luks2();
        run(case.cryptsetup(&format!("reencrypt {options} --pbkdf pbkdf2 --pbkdf-force-iterations 1000")));
        assert!(case.is_under_way());
        assert_eq!(case.reencrypt(&ReencryptionOptions::resume()).unwrap(), ReencryptionEnd::Finished);
        assert!(!case.is_under_way());
        case.is_whole(None, options);
    }
}

#[test]
fn plain_data_are_encrypted_in_place_and_decrypted_again_beside_cryptsetup() {
    const REDUCE: usize = 32 << 20;
    /// More than the data move by.
    const DATA: usize = 20 << 20;
    let encrypt = || ReencryptionOptions::encrypt().reduce(REDUCE as u64).pbkdf2(1000).hotzone_size(1 << 20);
    let decrypt = |header: &Path| ReencryptionOptions::decrypt().header(header).hotzone_size(1 << 20);
    let resume = || ReencryptionOptions::resume();
    // Whether cryptsetup begins the encryption, and whether it ends encryption and decryption.
    for (theirs_first, theirs_last) in [(false, false), (false, true), (true, false)] {
        let context = format!("{theirs_first} {theirs_last}");
        let mut case = Case::plain(REDUCE + DATA);
        if theirs_first {
            let pbkdf = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
            run(case.cryptsetup(&format!("reencrypt --encrypt --reduce-device-size 32M --init-only {pbkdf}")));
        } else {
            assert_eq!(case.stop_after(2, &encrypt()), ReencryptionEnd::Stopped, "{context}");
        }
        case.plain.truncate(DATA);
        case.is_whole(None, &context);
        match theirs_last {
            true => run(case.cryptsetup("reencrypt --resume-only --force-offline-reencrypt")),
            // The same call goes on, as resume does.
            false if theirs_first => drop(case.reencrypt(&resume()).unwrap()),
            false => drop(case.reencrypt(&encrypt()).unwrap()),
        }
        case.is_whole(None, &context);
        assert!(!case.is_under_way(), "{context}");

        let header = case.path("header");
        assert_eq!(case.stop_after(2, &decrypt(&header)), ReencryptionEnd::Stopped, "{context}");
        case.is_whole(Some(&header), &context);
        assert_eq!(Header::open(&case.image).map(drop).unwrap_err().kind(), ErrorKind::NoHeader);
        if theirs_last {
            let mut command = case.cryptsetup("reencrypt --resume-only --force-offline-reencrypt");
            command.arg("--header").arg(&header);
            run(command);
        } else {
            assert_eq!(case.reencrypt(&decrypt(&header)).unwrap(), ReencryptionEnd::Finished);
        }
        let bytes = fs::read(&case.image).unwrap();
        assert!(bytes[..case.plain.len()] == case.plain, "{context}: other data");
    }
}

#[test]
fn a_header_in_a_file_of_its_own_takes_no_room_from_the_data() {
    let case = Case::plain(SIZE);
    let header = case.path("header");
    let encrypt = || ReencryptionOptions::encrypt().header(&header).pbkdf2(1000).hotzone_size(1 << 20);
    assert_eq!(case.stop_after(1, &encrypt()), ReencryptionEnd::Stopped);
    case.is_whole(Some(&header), "stopped");
    assert_eq!(case.reencrypt(&encrypt()).unwrap(), ReencryptionEnd::Finished);
    case.is_whole(Some(&header), "encrypted");
    assert!(fs::read(&case.image).unwrap()[..4096] != case.plain[..4096]);
    assert_eq!(
        case.reencrypt(&ReencryptionOptions::new().header(&header)).unwrap(),
        ReencryptionEnd::Finished
    );
    case.is_whole(Some(&header), "another key");
    let decrypt = ReencryptionOptions::decrypt().header(&header);
    assert_eq!(case.reencrypt(&decrypt).unwrap(), ReencryptionEnd::Finished);
    assert!(fs::read(&case.image).unwrap() == case.plain);
}

/// Bytes in memory.
struct Memory(Mutex<Vec<u8>>);

impl LowerDevice for Memory {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        bytes.copy_from_slice(&self.0.lock().unwrap()[at..at + bytes.len()]);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        self.0.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

#[test]
fn a_volume_on_a_device_of_the_programs_own_is_reencrypted() {
    let case = Case::luks2();
    let device = Arc::new(Memory(Mutex::new(fs::read(&case.image).unwrap())));
    let options = ReencryptionOptions::new().cipher("twofish-xts-plain64");
    let end = Header::reencrypt_on(device.clone(), SECRET, &options, on).unwrap();
    assert_eq!(end, ReencryptionEnd::Finished);
    fs::write(&case.image, &*device.0.lock().unwrap()).unwrap();
    case.is_whole(None, "in memory");
    assert!(case.dump().contains("twofish-xts-plain64"));
}

#[test]
fn keyslots_are_lost_only_if_that_is_meant() {
    let case = Case::luks2();
    let mut header = Header::open_writable(&case.image).unwrap();
    let key = header.unlock(SECRET, None).unwrap();
    for other in [b"second", b"third!"] {
        header.add_keyslot(&key, other, &KeyslotOptions::new().pbkdf2(1000)).unwrap();
    }
    let before = fs::read(&case.image).unwrap();
    let keep = || ReencryptionOptions::new().keep_passphrase(b"second").unwrap();
    let refused = case.reencrypt(&keep()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadOption);
    assert!(refused.text().contains("keyslots 2 were not given"), "{}", refused.text());
    assert!(before == fs::read(&case.image).unwrap(), "nothing was changed");
    case.reencrypt(&keep().lose_keyslots(true)).unwrap();
    case.is_whole(None, "kept");
    let opens = |passphrase: &[u8]| Header::open(&case.image).unwrap().unlock(passphrase, None).is_ok();
    assert!(opens(SECRET) && opens(b"second") && !opens(b"third!"));
}

#[test]
fn a_file_system_is_not_cut_off_unless_that_is_meant() {
    // Of the whole image, and of what is left of it.
    for (taken, fits) in [("64M", false), ("32M", true)] {
        let case = Case::plain(64 << 20);
        fs::write(&case.image, vec![0; 64 << 20]).unwrap();
        let mut mkfs = Command::new("/usr/sbin/mke2fs");
        mkfs.args(["-q", "-t", "ext4", "-b", "1024"]).arg(&case.image).arg(taken);
        run(mkfs);
        let before = fs::read(&case.image).unwrap();
        let encrypt = || ReencryptionOptions::encrypt().reduce(32 << 20).pbkdf2(1000);
        if !fits {
            let refused = case.reencrypt(&encrypt()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::BadOption);
            assert!(refused.text().contains("the file system takes 67108864 bytes"), "{}", refused.text());
            assert!(before == fs::read(&case.image).unwrap(), "nothing was changed");
        }
        case.reencrypt(&encrypt().force(!fits)).unwrap();
        let volume = OpenOptions::new().passphrase(SECRET).unwrap().open(&case.image).unwrap();
        let mut found = vec![0; 1 << 20];
        volume.read_at(0, &mut found).unwrap();
        assert!(found == before[..1 << 20], "{taken}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    use ErrorKind::{BadOption, Busy, Unsupported, WrongPassphrase};
    let new = ReencryptionOptions::new;
    let (encrypt, decrypt) = (ReencryptionOptions::encrypt, ReencryptionOptions::decrypt);
    let volume = Case::new(&FormatOptions::luks2().pbkdf2(1000).sector_size(512));
    let luks1 = Case::new(&FormatOptions::luks1().pbkdf2(1000));
    let mut data = Case::plain(SIZE);
    // The superblock of an ext4 file system with blocks of 1024 bytes.
    data.plain[1024..2048].fill(0);
    data.plain[0x438..0x43a].copy_from_slice(b"\x53\xef");
    fs::write(&data.image, &data.plain).unwrap();
    let taken = volume.path("taken");
    fs::write(&taken, "a file").unwrap();
    let there = |case: &Case| case.path("new header");
    let cases: [(&Case, ReencryptionOptions, ErrorKind); 15] = [
        (&luks1, new(), Unsupported),
        (&volume, new().cipher("aes-xts-nothing"), BadOption),
        (&volume, new().key_size(7), BadOption),
        (&volume, new().keep_key(true), BadOption),
        (&volume, new().keep_key(true).key_size(64), BadOption),
        (&volume, new().sector_size(4096), BadOption),
        (&volume, ReencryptionOptions::resume(), BadOption),
        (&volume, encrypt().reduce(1 << 20), BadOption),
        (&volume, decrypt(), BadOption),
        (&volume, decrypt().header(&taken), BadOption),
        (&volume, decrypt().cipher("aes-xts-plain64").header(there(&volume)), BadOption),
        (&data, encrypt(), BadOption),
        (&data, encrypt().reduce(1 << 20).header(there(&data)), BadOption),
        (&data, encrypt().sector_size(4096).header(there(&data)), BadOption),
        (&data, new(), ErrorKind::NoHeader),
    ];
    for (case, options, kind) in cases {
        let before = fs::read(&case.image).unwrap();
        let context = format!("{options:?}");
        let refused = case.reencrypt(&options).expect_err(&context);
        let is_kind = refused.kind() == kind
            || context.contains("nothing") && matches!(refused.kind(), Unsupported | BadOption);
        assert!(is_kind, "{context}: {:?} {}", refused.kind(), refused.text());
        assert!(before == fs::read(&case.image).unwrap(), "{context}: something was changed");
        assert!(!there(case).exists(), "{context}: a header was made");
    }
    assert_eq!(fs::read(&taken).unwrap(), b"a file");
    let wrong = Header::reencrypt(&volume.image, b"wrong", &new(), on);
    assert_eq!(wrong.unwrap_err().kind(), WrongPassphrase);
    let open = OpenOptions::new().passphrase(SECRET).unwrap().open(&volume.image).unwrap();
    assert_eq!(volume.reencrypt(&new()).unwrap_err().kind(), Busy);
    drop(open);
    assert!(new().resilience("hope").is_err() && new().resilience_hash("crc32").is_err());
}

#[test]
fn an_image_in_the_middle_of_a_reencryption_without_a_header_is_refused() {
    let case = Case::plain(SIZE);
    // The state is on a disk that is not there now.
    std::os::unix::fs::symlink("/unplugged/state", case.path("image.underseal-state")).unwrap();
    let options = ReencryptionOptions::encrypt().reduce(1 << 20);
    assert_eq!(case.reencrypt(&options).unwrap_err().kind(), ErrorKind::Io);
    let plain = OpenOptions::new().plain("aes-xts-plain64", 64, "sha256", 512).unwrap();
    let opened = plain.passphrase(SECRET).unwrap().open(&case.image);
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Io);
    assert!(fs::read(&case.image).unwrap() == case.plain);
}
