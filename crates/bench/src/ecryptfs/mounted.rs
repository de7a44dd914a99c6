//! A mounted folder beside its peers, each over a separate folder in memory.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::work::{MountWork, pack};
use crate::Machine;
use crate::comparison::{self, ServerRow};
use crate::nbd::{NbdError as BenchError, process_time};
use crate::observer::Observer;
use crate::place::this_program;
use crate::rounds::{BenchWorkload, InterleavedRounds, interleaved};

const OURS: &str = "underseal, aes-128, names";
const DEVICE: &str = "underseal, /dev/fuse";
/// Ours of an earlier build, as it mounts by default.
const BEFORE: &str = "before, aes-128, names";
const BARE: &str = "underseal, no cipher";
const GOCRYPTFS: &str = "gocryptfs";

/// The programs that gocryptfs needs, including root's mounts, and their packages.
const NEEDED: [(&str, &str); 2] = [("gocryptfs", "gocryptfs"), ("fusermount3", "fuse3")];

/// The packages of gocryptfs that are missing in these folders.
fn to_install(path: &OsStr) -> String {
    let is_there = |program: &str| std::env::split_paths(path).any(|folder| folder.join(program).exists());
    let missing = NEEDED.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package);
    match missing.collect::<Vec<_>>().as_slice() {
        [] => String::new(),
        [one] => format!(": install the package {one}"),
        several => format!(": install the packages {}", several.join(" and ")),
    }
}

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct MountBenchOptions {
    /// The rounds of the benchmark.
    pub turns: InterleavedRounds,
    /// The place of folders and mounts: a file system in memory.
    pub directory: PathBuf,
    /// The size of each of fio's files in bytes.
    pub size: u64,
    /// The number of small files in the tree.
    pub files: u32,
    /// The number of threads that serve our mounts.
    pub threads: u16,
}

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct MountReport {
    /// The machine.
    pub machine: Machine,
    /// The number of threads of our mounts.
    pub threads: u16,
    /// The number of small files in the tree.
    pub files: u32,
    /// The rows by workload, then by mount.
    pub rows: Vec<ServerRow>,
    /// The peers that could not be measured, with reasons.
    pub left_out: Vec<String>,
}

/// A mount until this is dropped.
pub(super) struct MountedFolder {
    pub(super) name: &'static str,
    pub(super) plain: PathBuf,
    process: Child,
}

impl MountedFolder {
    /// Returns the processor time of its process.
    pub(super) fn cpu_time(&self) -> Result<Duration, BenchError> {
        process_time(self.name, self.process.id())
    }

    /// Starts a command that mounts and stays, and waits for the mount.
    fn start(name: &'static str, mut command: Command, plain: PathBuf) -> Result<Self, BenchError> {
        let failed = |e| BenchError::because(format!("{name} cannot be run"), e);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(failed)?;
        let mut this = Self { name, plain, process };
        let started = Instant::now();
        let plain = this.plain.display().to_string();
        while !fs::read_to_string("/proc/self/mounts").is_ok_and(|all| all.split(' ').any(|w| w == plain)) {
            if started.elapsed() > Duration::from_secs(30)
                || this.process.try_wait().is_ok_and(|s| s.is_some())
            {
                return Err(BenchError::new(format!("{name} does not mount")));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(this)
    }
}

impl Drop for MountedFolder {
    fn drop(&mut self) {
        let mut unmount = Command::new("fusermount3");
        let _ = unmount.args(["-u", "-q", "-z", "--"]).arg(&self.plain).stderr(Stdio::null()).status();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The folders of all mounts, removed on drop.
struct Place(PathBuf);

impl Place {
    fn new(directory: &Path) -> Result<Self, BenchError> {
        let place = Self(directory.join(format!("underseal-bench-{}", std::process::id())));
        place.folder("")?;
        fs::write(place.0.join("passphrase"), "of no importance\n").map_err(cannot_make)?;
        Ok(place)
    }

    fn folder(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.0.join(name);
        fs::create_dir_all(&path).map_err(cannot_make)?;
        Ok(path)
    }

    fn start(&self, options: &MountBenchOptions) -> Result<(Vec<MountedFolder>, Vec<String>), BenchError> {
        let threads = options.threads.to_string();
        let ours = |name, underseal: &Path, folder: &str, more: &[&str]| {
            let mut ours = Command::new(underseal);
            let (lower, plain) = (self.folder(&format!("{folder}.lower"))?, self.folder(folder)?);
            ours.args(["-q", "ecryptfs", "mount"]).arg(lower).arg(&plain).args(["--threads", &threads]);
            ours.args(["-o", "ecryptfs_enable_filename_crypto", "--passphrase-file"])
                .arg(self.0.join("passphrase"))
                .args(more);
            MountedFolder::start(name, ours, plain)
        };
        let built = &options.turns.underseal;
        let mut mounts =
            vec![ours(OURS, built, "ours", &[])?, ours(DEVICE, built, "device", &["--no-io-uring"])?];
        if let Some(before) = &options.turns.before {
            mounts.extend([
                ours(BEFORE, before, "before", &[])?,
                ours(BEFORE, before, "then", &[])?,
                ours(DEVICE, built, "late-device", &["--no-io-uring"])?,
                ours(OURS, built, "late", &[])?,
            ]);
            return Ok((mounts, Vec::new()));
        }

        let mut bare = this_program()?;
        let (lower, plain) = (self.folder("bare.lower")?, self.folder("bare")?);
        bare.args(["serve-bare-mount"]).arg(lower).arg(&plain).args(["--threads", &threads]);
        mounts.push(MountedFolder::start(BARE, bare, plain)?);

        let mut left_out = Vec::new();
        match self.gocryptfs() {
            Ok(mounted) => mounts.push(mounted),
            Err(e) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                left_out.push(format!("{GOCRYPTFS}: left out: {e}{}", to_install(&path)));
            }
        }
        Ok((mounts, left_out))
    }

    fn gocryptfs(&self) -> Result<MountedFolder, BenchError> {
        let (lower, plain) = (self.folder("gocryptfs.lower")?, self.folder("gocryptfs")?);
        let command = || {
            let mut command = Command::new("gocryptfs");
            command.args(["-q", "-nosyslog", "-passfile"]).arg(self.0.join("passphrase"));
            command
        };
        let made = command().args(["-init", "-scryptn", "10"]).arg(&lower).stdout(Stdio::null()).status();
        if !made.map_err(|e| BenchError::because("it cannot be run", e))?.success() {
            return Err(BenchError::new("it creates no folder"));
        }
        let mut mount = command();
        mount.arg("-fg").arg(lower).arg(&plain);
        MountedFolder::start(GOCRYPTFS, mount, plain)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cannot_make(e: std::io::Error) -> BenchError {
    BenchError::because("the folders cannot be made", e)
}

/// Measures, and reports to the observer.
///
/// # Errors
/// When a tool is missing, or a mount or a client fails.
pub fn ecryptfs_mount(options: &MountBenchOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    let place = Place::new(&options.directory)?;
    let tar = pack(&place.0, options.files)?;
    let (mounts, left_out) = place.start(options)?;
    let only = &options.turns.only;
    // The steps of a tree depend on each other.
    let wanted = |work: &MountWork| match work {
        MountWork::Tree(_) => only.as_ref().is_none_or(|only| only.contains("tree")),
        MountWork::Requests { .. } => options.turns.want(&work.name()),
    };
    let work: Vec<MountWork> = super::work::WORK.into_iter().filter(wanted).collect();
    let run = |on: &MountedFolder, work: &MountWork| work.run(on, options, &tar);
    let names: Vec<_> = mounts.iter().map(|mounted| mounted.name).collect();
    let titles: Vec<_> = work.iter().map(MountWork::name).collect();
    let goal = |server, work: &str| match server {
        BARE if work.starts_with("1M") => Some(0.7),
        GOCRYPTFS => Some(MountWork::goal(work)),
        _ => None,
    };
    let report = |seen: &[_]| MountReport {
        machine: machine.clone(),
        threads: options.threads,
        files: options.files,
        rows: comparison::rows(&titles, &names, seen, goal),
        left_out: left_out.clone(),
    };
    interleaved(options.turns.rounds, &work, &mounts, observer, run, report)
}

impl fmt::Display for MountReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, processors, chosen, .. } = &self.machine;
        writeln!(
            f,
            "{cpu}, {processors} processors; AES kernel {chosen}; client: fio, through the page cache"
        )?;
        writeln!(
            f,
            "folders in memory; our mounts have {} threads; trees of {} small files, each file a request; \
             ratio: underseal over this one",
            self.threads, self.files
        )?;
        self.left_out.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        comparison::table(f, &self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_that_are_missing_are_named() {
        let folder = std::env::temp_dir().join(format!("underseal-bench-test-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let named = |programs: &[&str]| {
            for program in programs {
                fs::write(folder.join(program), b"").unwrap();
            }
            to_install(folder.as_os_str())
        };
        assert_eq!(named(&[]), ": install the packages gocryptfs and fuse3");
        assert_eq!(named(&["gocryptfs"]), ": install the package fuse3");
        assert_eq!(named(&["fusermount3"]), "");
        fs::remove_dir_all(&folder).unwrap();
    }
}
