//! A disk with several device nodes, each with a page cache of its own: a header that was changed
//! through one of them is not read from the cache of another.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;

use crate::fuse::mounted::Mounted;
use crate::support::mounts::{cannot_mount, client, skip};
use crate::support::tools::{PATIENCE, within};
use crate::support::volume::{CHEAP_PBKDF2, Volume, underseal};
use crate::support::{Scratch, output, run, tool};

/// A loop device over a file.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Self {
        Self(PathBuf::from(run(client("losetup").args(["--find", "--show"]).arg(file)).trim()))
    }
}

impl Drop for Loop {
    /// A device that another program looks at is detached once it is closed.
    fn drop(&mut self) {
        let _ = client("losetup").arg("--detach").arg(&self.0).status();
        let name = self.0.file_name().unwrap_or_default();
        let file = Path::new("/sys/block").join(name).join("loop/backing_file");
        within(PATIENCE, || !file.exists());
    }
}

/// An empty file system over a folder.
struct Hides(PathBuf);

impl Hides {
    fn with_tmpfs(folder: &Path) -> Self {
        run(client("mount").args(["-t", "tmpfs", "none"]).arg(folder));
        Self(folder.to_owned())
    }
}

impl Drop for Hides {
    fn drop(&mut self) {
        let _ = client("umount").arg(&self.0).status();
    }
}

#[test]
fn a_passphrase_that_was_removed_through_another_node_opens_nothing() {
    if let Some(reason) = cannot_mount() {
        return skip("a_passphrase_that_was_removed_through_another_node", reason);
    }
    let scratch = Scratch::new();
    let [old, new] = ["old", "new"].map(|word| scratch.file(word, word.as_bytes()));
    for kind in ["luks1", "luks2"] {
        let image = scratch.path(kind);
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let [one, other] = [Loop::over(&image), Loop::over(&image)];
        let mut format = underseal();
        format.args(["format", "-q", "--force", "--type", kind]).args(CHEAP_PBKDF2).arg(&one.0);
        run(format.arg("--passphrase-file").arg(&old));
        // A monitor that keeps the disk open, and once read it: its pages stay.
        let mut monitor = File::open(&other.0).unwrap();
        monitor.read_exact(&mut vec![0; 20 << 20]).unwrap();
        let mut change = tool("/usr/sbin/cryptsetup");
        change.args(["luksChangeKey", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
        run(change.arg("--key-file").arg(&old).arg(&one.0).arg(&new));
        for (passphrase, opens) in [(&old, false), (&new, true)] {
            let mut test = underseal();
            test.args(["keyslot", "test"]).arg(&other.0).arg("--passphrase-file").arg(passphrase);
            let tested = output(&mut test);
            assert_eq!(tested.status.success(), opens, "{kind}: {tested:?}");
        }
        drop(monitor);
    }
}

#[test]
fn a_file_below_a_loop_device_is_not_encrypted_in_place() {
    if let Some(reason) = cannot_mount() {
        return skip("a_file_below_a_loop_device", reason);
    }
    let scratch = Scratch::new();
    let key = scratch.file("key", b"secret");
    let image = scratch.path("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let encrypt = || {
        let mut encrypt = underseal();
        encrypt.args(["reencrypt", "-q", "--force", "--encrypt", "--reduce-device-size", "32M"]).arg(&image);
        output(encrypt.args(CHEAP_PBKDF2).arg("--passphrase-file").arg(&key))
    };
    let device = Loop::over(&image);
    let is_refused = |refused: std::process::Output, by: &Loop| {
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(&by.0.display().to_string()), "{said}");
        assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 0));
    };
    is_refused(encrypt(), &device);
    // Between two tables.
    let table = |name: &str, cipher: &str| {
        let target = if cipher.is_empty() { "linear" } else { "crypt" };
        scratch.file(name, format!("0 131072 {target} {cipher}{} 0\n", image.display()).as_bytes())
    };
    let key_of = "0".repeat(63) + "1";
    let [old, new] = [table("old", ""), table("new", &format!("aes-xts-plain64 {key_of} 0 "))];
    let mut between = underseal();
    between.args(["reencrypt", "-q", "--force"]).arg(&image).arg("--state").arg(scratch.path("state"));
    is_refused(output(between.arg("--old-table").arg(old).arg("--new-table").arg(new)), &device);
    // The file has another name now; a second device is over the file of the one that is encrypted.
    let renamed = scratch.path("renamed");
    std::fs::rename(&image, &renamed).unwrap();
    std::os::unix::fs::symlink(&renamed, &image).unwrap();
    is_refused(encrypt(), &device);
    let second = Loop::over(&renamed);
    let mut encrypt_device = underseal();
    encrypt_device.args(["reencrypt", "-q", "--force", "--encrypt", "--reduce-device-size", "32M"]);
    encrypt_device.arg(&second.0).args(CHEAP_PBKDF2).arg("--passphrase-file").arg(&key);
    is_refused(output(&mut encrypt_device), &device);
    drop(second);
    drop(device);
    let done = encrypt();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_loop_device_over_a_file_without_an_answer_does_not_stop_a_reencryption() {
    if let Some(reason) = cannot_mount() {
        return skip("a_loop_device_over_a_file_without_an_answer", reason);
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "17M");
    let folder = scratch.path("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("disk"), "").unwrap();
    let mounted = Mounted::start_at(&scratch, volume.command("open"), &folder.join("disk"), &[]);
    let device = Loop::over(mounted.path());
    for (name, is_hidden) in [("seen", false), ("hidden", true)] {
        let other = Volume::at(&scratch, name).format("17M", &[]);
        let hides = is_hidden.then(|| Hides::with_tmpfs(&folder));
        mounted.signal(Signal::STOP);
        let mut begin = tool("timeout");
        begin.args(["--kill-after=5", "20", env!("CARGO_BIN_EXE_underseal"), "reencrypt", "-q"]);
        begin.arg("--init-only").arg(&other.image).arg("--passphrase-file").arg(&other.passphrase);
        // A process that waits for the server would keep a pipe open, even after SIGKILL.
        let log = scratch.path("begin.log");
        let begun = begin.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).status().unwrap();
        mounted.signal(Signal::CONT);
        drop(hides);
        assert!(begun.success(), "{name}: {begun}: {}", std::fs::read_to_string(&log).unwrap());
    }
    drop(device);
    mounted.stop();
}

#[test]
fn a_loop_device_is_found_when_its_file_is_hidden_by_a_mount() {
    if let Some(reason) = cannot_mount() {
        return skip("a_loop_device_is_found_when_its_file_is_hidden", reason);
    }
    let scratch = Scratch::new();
    let below = Volume::at(&scratch, "below").format("17M", &[]);
    let other = scratch.path("other name");
    std::fs::hard_link(&below.image, &other).unwrap();
    let device = Loop::over(&below.image);
    let served = Volume::at(&scratch, "served").format("17M", &[]);
    let mounted = Mounted::start_at(&scratch, served.command("open"), &below.image, &[]);
    let mut reencrypt = underseal();
    reencrypt.args(["reencrypt", "-q"]).arg(&other).args(CHEAP_PBKDF2);
    let refused = output(reencrypt.arg("--passphrase-file").arg(&below.passphrase));
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains(&format!("is in use by the loop device {}", device.0.display())), "{said}");
    drop(device);
    mounted.stop();
}
