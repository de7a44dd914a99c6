//! Trees that other programs change while a tool reads them, and folders that two tools are to
//! write to.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use underseal_ecryptfs::tools::{
    ExportOptions, FolderSink, ImportOptions, LowerFile, ProgressWatch, TreeKeys, export, import,
};
use underseal_ecryptfs::{AuthToken, Cipher, Error, ErrorKind, HeaderLocation};

use crate::ecryptfs_tools::{assert_done, assert_refused, ecryptfs};
use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::volume::underseal;
use crate::support::{Scratch, run, tool};

const PAIRS: usize = 40;
const OLD: usize = 10;
const NEW: usize = 5000;

/// The two names of a file.
fn names(pair: usize) -> [String; 2] {
    [format!("one{pair}"), format!("two{pair}")]
}

/// Replaces files with two names, one of which has been copied.
struct Replacing<'a> {
    source: &'a Path,
    target: &'a Path,
    /// The file that takes their place.
    other: &'a Path,
    seen: BTreeSet<usize>,
    replaced: BTreeSet<usize>,
}

impl<'a> Replacing<'a> {
    fn new(source: &'a Path, target: &'a Path, other: &'a Path) -> Self {
        Self { source, target, other, seen: BTreeSet::new(), replaced: BTreeSet::new() }
    }
}

impl ProgressWatch for Replacing<'_> {
    fn advance(&mut self, _bytes: u64) {
        for pair in 0..PAIRS {
            let names = names(pair);
            let copied = names.iter().filter(|name| self.target.join(name).exists()).count();
            // The tool has closed a file only when it copies another one.
            if copied != 1 || self.seen.insert(pair) || !self.replaced.insert(pair) {
                continue;
            }
            let [one, two] = names.map(|name| self.source.join(name));
            fs::remove_file(&one).unwrap();
            fs::remove_file(&two).unwrap();
            // The new file gets the number of the one that is gone.
            fs::copy(self.other, &one).unwrap();
            fs::hard_link(&one, &two).unwrap();
        }
    }

    fn failed(&mut self, lower: &Path, error: Error) {
        panic!("{}: {error}", lower.display());
    }
}

fn token() -> Arc<AuthToken> {
    Arc::new(AuthToken::from_passphrase(b"the test's passphrase", AuthToken::DEFAULT_SALT).unwrap())
}

fn how() -> ImportOptions {
    let (tokens, cipher) = (vec![token()], Cipher::DEFAULT);
    ImportOptions { tokens, cipher, place: HeaderLocation::File, names: None, long_names: false }
}

fn assert_one_of_each(replaced: &BTreeSet<usize>, size: impl Fn(&str) -> u64) {
    assert!(!replaced.is_empty(), "no file was replaced between its names");
    for &pair in replaced {
        let mut sizes = names(pair).map(|name| size(&name));
        sizes.sort_unstable();
        assert_eq!(sizes, [OLD, NEW].map(|size| size as u64), "pair {pair}");
    }
}

#[test]
fn a_new_file_with_the_number_of_an_old_one_is_not_a_name_of_it() {
    if let Some(reason) = cannot_mount() {
        return skip("a_new_file_with_the_number_of_an_old_one", reason);
    }
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 48 << 20);
    let device = Loop::attach(&image, &[]);
    run(tool("mkfs.ext4").arg("-q").arg(device.device()));
    let disk = Mount::new(device.device(), &scratch.path("disk"), &[]);
    let plain = disk.directory().join("plain");
    fs::create_dir(&plain).unwrap();
    for pair in 0..PAIRS {
        let [one, two] = names(pair).map(|name| plain.join(name));
        fs::write(&one, [1; OLD]).unwrap();
        fs::hard_link(&one, &two).unwrap();
    }
    let other = scratch.file("other", &[2; NEW]);
    let source = disk.directory().join("source");
    run(tool("cp").arg("-a").arg(&plain).arg(&source));

    let lower = scratch.path("lower");
    let mut replacing = Replacing::new(&source, &lower, &other);
    import(&source, &lower, &how(), &mut replacing).unwrap();
    assert_one_of_each(&replacing.replaced, |name| LowerFile::open(&lower.join(name)).unwrap().header.size());

    // The same with a lower tree that is exported.
    fs::write(plain.join("other"), [2; NEW]).unwrap();
    let source = disk.directory().join("lower");
    let mut quiet = Replacing::new(&plain, &plain, &other);
    import(&plain, &source, &how(), &mut quiet).unwrap();
    let other = scratch.path("other lower");
    fs::rename(source.join("other"), disk.directory().join("other")).unwrap();
    fs::copy(disk.directory().join("other"), &other).unwrap();
    let back = scratch.path("back");
    let mut keys = TreeKeys::new(Cipher::DEFAULT);
    keys.add(token());
    let mut sink = FolderSink::new(&back).unwrap();
    let mut replacing = Replacing::new(&source, &back, &other);
    let how = ExportOptions { passthrough: false, strict: true };
    export(&source, &mut keys, how, &mut sink, &mut replacing).unwrap();
    assert_one_of_each(&replacing.replaced, |name| fs::metadata(back.join(name)).unwrap().len());
}

/// A plain tree and its lower one, of a file.
fn small(scratch: &Scratch) {
    scratch.file("pass", b"the test's passphrase\n");
    fs::create_dir(scratch.path("plain")).unwrap();
    fs::write(scratch.path("plain/file"), b"contents").unwrap();
    assert_done(&ecryptfs(scratch, "import", &["plain", "lower"]));
}

#[test]
fn a_folder_that_one_tool_writes_to_is_refused_to_another() {
    let scratch = Scratch::new();
    small(&scratch);
    let _sink = FolderSink::new(&scratch.path("target")).unwrap();
    let process = format!("(process {})", std::process::id());
    for args in [["export", "lower", "target"], ["import", "plain", "target"]] {
        let refused = ecryptfs(&scratch, args[0], &args[1..]);
        assert_refused(&refused, 4, &["target", "it is in use by", &process]);
    }
    assert_eq!(FolderSink::new(&scratch.path("target")).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(fs::read_dir(scratch.path("target")).unwrap().count(), 0);
}

#[test]
fn a_folder_is_empty_when_it_is_locked_and_not_only_before() {
    let scratch = Scratch::new();
    small(&scratch);
    for args in [["export", "lower"], ["import", "plain"]] {
        let target = scratch.path(&format!("{} target", args[0]));
        fs::create_dir(&target).unwrap();
        let held = fs::File::open(&target).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let mut command = underseal();
        command.current_dir(scratch.folder()).args(["ecryptfs", args[0], "-q", args[1]]).arg(&target);
        command.arg("--passphrase-file").arg(scratch.path("pass"));
        let started = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        // The tool waits for a second.
        thread::sleep(Duration::from_millis(600));
        fs::write(target.join("other"), b"of the tool before").unwrap();
        drop(held);
        let refused = started.wait_with_output().unwrap();
        assert_refused(&refused, 2, &["there is something in it"]);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1, "{}", args[0]);
    }
}
