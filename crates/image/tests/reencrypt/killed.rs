//! A reencryption whose program is killed in the middle of a write.

use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A file whose program is killed in the middle of a write.
struct KilledDevice {
    file: File,
    /// The number of the write.
    writes_left: AtomicU32,
}

impl LowerDevice for KilledDevice {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.writes_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            // A disk writes whole sectors, and the page cache whole pages.
            self.file.write_all_at(&bytes[..bytes.len() / 1024 * 512], offset)?;
            let pid = std::process::id().to_string();
            Command::new("kill").args(["-9", &pid]).status()?;
            loop {
                std::thread::park();
            }
        }
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

const KILLED: &str = "UNDERSEAL_TEST_KILLED";

/// The program that reencrypts an image, and is killed: image, write and options are in a variable.
#[test]
fn the_program_that_is_killed() {
    let Some(text) = std::env::var_os(KILLED) else { return };
    let text = text.into_string().unwrap();
    let [image, write, what] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let file = File::options().read(true).write(true).open(image).unwrap();
    let device = KilledDevice { file, writes_left: AtomicU32::new(write.parse().unwrap()) };
    Header::reencrypt_on(Arc::new(device), SECRET, &killed(what), on).unwrap();
}

fn killed(what: &str) -> ReencryptionOptions {
    match what {
        "encrypt" => ReencryptionOptions::encrypt().reduce(32 << 20).pbkdf2(1000).hotzone_size(2 << 20),
        resilience => step(2 << 20).resilience(resilience).unwrap(),
    }
}

#[test]
fn a_kill_in_the_middle_of_any_write_loses_nothing() {
    let volume = Case::luks2();
    let data = Case::plain((32 << 20) + (2 << 20));
    for what in ["checksum", "journal", "encrypt"] {
        let (mut killed_at, mut write) = (0, 1);
        loop {
            let mut case = if what == "encrypt" { data.copy() } else { volume.copy() };
            let context = format!("{what} {write}");
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "killed::the_program_that_is_killed"])
                .env(KILLED, format!("{} {write} {what}", case.image.display()))
                .stdout(Stdio::null())
                .status()
                .unwrap();
            if status.success() {
                break;
            }
            assert_eq!(status.signal(), Some(9), "{context}");
            killed_at += 1;
            // cryptsetup mends and ends each second reencryption that has begun.
            let theirs = what != "encrypt" && killed_at % 2 == 0 && case.is_under_way();
            if theirs {
                run(case.cryptsetup("repair"));
                run(case.cryptsetup("reencrypt --resume-only --force-offline-reencrypt"));
            } else {
                let again = if what == "encrypt" {
                    case.reencrypt(&killed(what))
                } else {
                    case.reencrypt(&ReencryptionOptions::resume())
                };
                match again {
                    Ok(end) => assert_eq!(end, ReencryptionEnd::Finished, "{context}"),
                    // The reencryption had not begun, or had ended.
                    Err(e) => assert!(
                        e.text().contains("no reencryption is under way")
                            || e.text().contains("is encrypted already"),
                        "{context}: {}",
                        e.text()
                    ),
                }
            }
            case.plain.truncate(if what == "encrypt" { 2 << 20 } else { SIZE });
            case.is_whole(None, &context);
            assert!(!case.is_under_way(), "{context}");
            write += if write < 12 { 1 } else { 7 };
        }
        assert!(killed_at > 12, "{what}: {killed_at}");
    }
}
