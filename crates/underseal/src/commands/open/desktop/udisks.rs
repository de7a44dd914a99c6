//! udisks, asked by `udisksctl`: its answers are checked against the kernel's.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open, syncfs};
use rustix::io::Errno;
use rustix::process::geteuid;
use underseal_device::MountEntry;

use crate::descriptors::standard_only;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::front::loops::losetup;

const PROGRAM: &str = "udisksctl";
/// The folders of root's programs.
const SEARCH: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
/// How long udisks may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a file system may be in use that is to be unmounted.
pub(super) const BUSY: Duration = Duration::from_secs(15);
/// How long the programs of a system that is shut down may write without udisks: as long as logind
/// lets programs delay it.
pub(super) const LAST: Duration = Duration::from_secs(5);
/// How long one attempt to unmount it takes: programs that look at a new file system close it soon.
const SOON: Duration = Duration::from_secs(2);

/// The result of a request to udisks; the failure is one line.
type Answer<T> = std::result::Result<T, String>;

/// Looks whether udisks answers.
pub(super) fn find() -> Result<()> {
    match start(&["status"]) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let error = Error::new(Exit::Failed, "--desktop needs udisks: there is no program udisksctl");
            Err(error.with_remedy("install udisks2, or pass --fuse PATH"))
        }
        Err(e) => Err(Error::new(Exit::Failed, "udisksctl cannot be started").because(&e)),
        Ok(child) => finish(child).map(drop).map_err(|why| {
            let error = Error::new(Exit::Failed, format!("--desktop: udisks does not answer: {why}"));
            error.with_remedy("`systemctl start udisks2`, or pass --fuse PATH")
        }),
    }
}

/// Returns true when the system is shut down, and udisks has ended: a user cannot unmount any more.
pub(super) fn is_gone_for_good() -> bool {
    let answers = start(&["status"]).is_ok_and(|child| finish(child).is_ok());
    let state = || program("systemctl")?.arg("is-system-running").stdin(Stdio::null()).output();
    !answers && state().is_ok_and(|state| state.stdout.trim_ascii() == b"stopping")
}

/// A loop device that udisks has made over a file.
#[derive(Debug)]
pub(super) struct LoopDevice {
    /// `loopN`.
    name: String,
    /// The kernel's number of this use of the device (Linux 5.15).
    sequence: Option<String>,
}

impl LoopDevice {
    /// Makes one over a file of this size.
    pub(super) fn make(path: &Path, size: u64, read_only: bool) -> Answer<Self> {
        let shown = path.to_string_lossy();
        let mut args = vec!["loop-setup", "--no-user-interaction", "--file", &*shown];
        args.extend(read_only.then_some("--read-only"));
        let answer = call(&args)?;
        let device = answer.split_whitespace().last().unwrap_or_default().trim_end_matches('.');
        let name = device.strip_prefix("/dev/").unwrap_or_default();
        let unexpected = || format!("udisks answered {:?}, which names no loop device", answer.trim());
        let device = Self::named(name).ok_or_else(unexpected)?;
        device.check(path, size)?;
        Ok(device)
    }

    /// All that are over a file.
    pub(super) fn over(path: &Path) -> Vec<Self> {
        let names = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let devices = names.filter_map(|entry| Self::named(entry.file_name().to_str()?));
        devices.filter(|device| device.is_over(path)).collect()
    }

    fn named(name: &str) -> Option<Self> {
        let number = name.strip_prefix("loop")?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let device = is_number.then(|| Self { name: name.to_owned(), sequence: None });
        device.map(|device| Self { sequence: device.about("diskseq"), ..device })
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    fn about(&self, what: &str) -> Option<String> {
        let text = fs::read_to_string(Path::new("/sys/block").join(&self.name).join(what)).ok()?;
        Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    /// The file that it is over, as the kernel has it.
    fn file(&self) -> Option<PathBuf> {
        self.about("loop/backing_file").map(PathBuf::from)
    }

    /// Fails unless it is over this file, all of it, and the device node is the kernel's.
    fn check(&self, path: &Path, size: u64) -> Answer<()> {
        let shown = self.path().display().to_string();
        let node = fs::metadata(self.path()).map_err(|e| format!("{shown}: {e}"))?;
        let number = format!("{}:{}", rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
        if self.about("dev").as_deref() != Some(&number) {
            return Err(format!("{shown} is another device than the kernel calls so"));
        }
        match self.file() {
            _ if self.is_over(path) => {}
            Some(file) => return Err(format!("{shown} is over {}, another file", file.display())),
            None => return Err(format!("{shown} is over no file")),
        }
        let sectors = self.about("size").and_then(|text| text.parse::<u64>().ok());
        if sectors != Some(size / 512) {
            return Err(format!("{shown} has another size than the volume"));
        }
        Ok(())
    }

    /// Mounts its file system: where.
    pub(super) fn mount(&self, path: &Path, size: u64) -> Answer<String> {
        let shown = self.path().to_string_lossy().into_owned();
        let answer = call(&["mount", "--no-user-interaction", "--block-device", &shown]);
        // The device that was checked is the one that is mounted.
        self.check(path, size)?;
        match (self.mounted(), answer) {
            // By this process, or by a program that mounts every new device.
            (Some(at), _) => Ok(at),
            (None, Ok(answer)) => Err(format!("udisks answered {:?}, and it is not mounted", answer.trim())),
            (None, Err(why)) => Err(why),
        }
    }

    /// Where it is mounted, as the kernel has it.
    fn mounted(&self) -> Option<String> {
        let number = self.about("dev")?;
        let (major, minor) = number.split_once(':')?;
        let mounts = MountEntry::of_device((major.parse().ok()?, minor.parse().ok()?)).ok()?;
        mounts.last()?.point.to_str().map(str::to_owned)
    }

    /// Writes back what its file system has, where it is mounted.
    pub(super) fn sync(&self, path: &Path) -> Answer<()> {
        let Some(at) = self.mounted().filter(|_| self.is_same(path)) else { return Ok(()) };
        OpenMount::new(&at).and_then(|mount| mount.sync()).map_err(|e| format!("{at}: {e}"))
    }

    /// Unmounts it, and gives it back. The user may do so at the same time, and another file may
    /// have the device after that: it is looked at before each step. Fails soon while the file
    /// system is in use; unmounting is forced when the first attempt, at `since`, is long ago.
    pub(super) fn give_back(&self, path: &Path, since: Instant) -> Answer<()> {
        let shown = self.path().to_string_lossy().into_owned();
        let now = Instant::now();
        while let Some(at) = self.mounted().filter(|_| self.is_same(path)) {
            let is_late = since.elapsed() >= BUSY;
            let mut args = vec!["unmount", "--no-user-interaction", "--block-device", &shown];
            args.extend(is_late.then_some("--force"));
            // udisks forces an unmount by making it lazy, which writes nothing back.
            let mount = OpenMount::new(&at);
            // The server counts the writes that fail.
            let _ = mount.as_ref().map(OpenMount::sync);
            let unmounted = match mount {
                Err(Errno::ACCESS) if is_late => return Err(format!("{at} may not be opened, to sync it")),
                Ok(mount) if is_late && self.is_same(path) => {
                    let unmounted = call(&args);
                    let _ = mount.sync();
                    unmounted
                }
                // The descriptor would keep it in use.
                mount => {
                    drop(mount);
                    if self.is_same(path) { call(&args) } else { break }
                }
            };
            let is_last = is_late || now.elapsed() >= SOON;
            match unmounted {
                Err(why) if is_last && self.mounted().is_some() => {
                    return Err(format!("{at} is in use: {why}"));
                }
                Err(_) => thread::sleep(BUSY / 50),
                Ok(_) => {}
            }
        }
        if !self.is_same(path) {
            return Ok(());
        }
        let deleted = call(&["loop-delete", "--no-user-interaction", "--block-device", &shown]);
        // udisks may not know it, where it has waited for udev in vain. Root can do without.
        if deleted.is_err() && geteuid().is_root() && self.is_same(path) {
            let _ = losetup().args(["--detach", &shown]).stdin(Stdio::null()).output();
        }
        // The device goes by itself when its last user closes it.
        let until = Instant::now() + BUSY / 5;
        while self.is_same(path) && Instant::now() < until {
            thread::sleep(BUSY / 300);
        }
        match deleted {
            _ if !self.is_same(path) => Ok(()),
            Err(why) => Err(why),
            Ok(_) => Err(format!("a program has a file on {shown} open")),
        }
    }

    /// Whether it is over this file.
    fn is_over(&self, path: &Path) -> bool {
        self.file().is_some_and(|file| file == path)
    }

    /// Whether no other file has it since it was found over this one. The kernel has another path
    /// for a file whose mount was detached.
    fn is_same(&self, path: &Path) -> bool {
        match &self.sequence {
            Some(sequence) => self.file().is_some() && self.about("diskseq").as_ref() == Some(sequence),
            None => self.is_over(path),
        }
    }
}

/// A mounted file system whose bytes can be written back.
struct OpenMount(OwnedFd);

impl OpenMount {
    fn new(at: &str) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Self(open(at, flags, Mode::empty())?))
    }

    /// Writes back what has changed.
    fn sync(&self) -> rustix::io::Result<()> {
        syncfs(&self.0)
    }
}

fn start(args: &[&str]) -> io::Result<std::process::Child> {
    let mut command = program(PROGRAM)?;
    command.args(args).env("LC_ALL", "C").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    standard_only(&mut command).spawn()
}

/// Returns a program: for root the system's, with an empty environment.
fn program(name: &str) -> io::Result<Command> {
    if !geteuid().is_root() {
        return Ok(Command::new(name));
    }
    let mut places = SEARCH.iter().map(|folder| Path::new(folder).join(name));
    let found = places.find(|path| path.exists()).ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(found);
    command.env_clear().env("PATH", SEARCH.join(":"));
    Ok(command)
}

fn call(args: &[&str]) -> Answer<String> {
    start(args).map_err(|e| format!("udisksctl cannot be started: {e}")).and_then(finish)
}

/// The output of a program, whose answers are short.
fn finish(mut child: std::process::Child) -> Answer<String> {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().is_ok_and(|ended| ended.is_none()) {
        if Instant::now() >= until {
            let _ = child.kill();
            let _ = child.wait();
            return Err("it does not answer".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // Where there is no terminal for a passphrase, that comes first, and none is asked for here.
    let lines = said.lines().filter(|line| !line.contains("authentication agent"));
    // The name of a D-Bus error says less than its text.
    let words = lines.flat_map(str::split_whitespace).filter(|word| !word.starts_with("GDBus.Error:"));
    Err(words.collect::<Vec<_>>().join(" "))
}
