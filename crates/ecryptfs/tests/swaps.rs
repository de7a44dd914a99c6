//! Trees whose owner replaces entries while a tool is running: nothing outside of the tree is read,
//! changed or created.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use underseal_ecryptfs::tools::{
    ExportOptions, FolderSink, ImportOptions, KeyChange, ProgressWatch, Summary, TreeKeys, convert, export,
    import, rekey, rename,
};
use underseal_ecryptfs::{AuthToken, Cipher, Error, ErrorKind, HeaderLocation, NameCipher};

/// Calls a function once, at a tool's first report of bytes or of a failure.
struct Swap<F>(Option<F>);

impl<F: FnOnce()> ProgressWatch for Swap<F> {
    fn advance(&mut self, _bytes: u64) {
        self.0.take().into_iter().for_each(|swap| swap());
    }

    fn failed(&mut self, _lower: &Path, _error: Error) {
        self.advance(0);
    }
}

/// A watch that does nothing, and expects no failure.
struct Quiet;

impl ProgressWatch for Quiet {
    fn advance(&mut self, _bytes: u64) {}

    fn failed(&mut self, lower: &Path, error: Error) {
        panic!("{}: {error}", lower.display());
    }
}

struct Trees {
    scratch: tempfile::TempDir,
}

impl Trees {
    /// Creates the trees, with a folder outside of the tree that has the same names as the tree's
    /// `dir`.
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let place = Self { scratch };
        for folder in ["plain/dir", "outside"] {
            fs::create_dir_all(place.at(folder)).unwrap();
        }
        for n in 0..20 {
            fs::write(place.at(&format!("plain/dir/file{n}")), b"the tree's").unwrap();
            fs::write(place.at(&format!("outside/file{n}")), b"secret").unwrap();
        }
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().canonicalize().unwrap().join(name)
    }

    /// Replaces a folder by a symlink to `outside`.
    fn swap(&self, folder: &str) {
        fs::rename(self.at(folder), self.at("moved")).unwrap();
        symlink(self.at("outside"), self.at(folder)).unwrap();
    }

    /// Returns the state that must not change.
    fn outside(&self) -> Vec<(PathBuf, u64, u32, Vec<u8>)> {
        let entries = fs::read_dir(self.at("outside")).unwrap().map(|entry| entry.unwrap().path());
        let about = |path: PathBuf| {
            let (about, bytes) = (fs::metadata(&path).unwrap(), fs::read(&path).unwrap_or_default());
            (path, about.ino(), about.mode(), bytes)
        };
        let mut all: Vec<_> = entries.map(about).collect();
        all.sort();
        all
    }

    fn import(&self, to: &str, watch: &mut dyn ProgressWatch, names: bool) -> Summary {
        self.try_import(to, watch, names).unwrap()
    }

    fn try_import(&self, to: &str, watch: &mut dyn ProgressWatch, names: bool) -> Result<Summary, Error> {
        let names = names.then(|| NameCipher::new(token(AuthToken::NAME_SALT), Cipher::DEFAULT).unwrap());
        let tokens = vec![token(AuthToken::DEFAULT_SALT)];
        let how = ImportOptions {
            tokens,
            cipher: Cipher::DEFAULT,
            place: HeaderLocation::File,
            names,
            long_names: false,
        };
        import(&self.at("plain"), &self.at(to), &how, watch)
    }
}

fn token(salt: [u8; 8]) -> Arc<AuthToken> {
    Arc::new(AuthToken::from_passphrase(b"passphrase", salt).unwrap())
}

fn keys() -> TreeKeys {
    let mut keys = TreeKeys::new(Cipher::DEFAULT);
    keys.add(token(AuthToken::DEFAULT_SALT));
    keys.add(token(AuthToken::NAME_SALT));
    keys
}

const HOW: ExportOptions = ExportOptions { passthrough: false, strict: true };

#[test]
fn import_reads_only_the_folder_that_it_began_with() {
    let place = Trees::new();
    place.import("lower", &mut Swap(Some(|| place.swap("plain/dir"))), false);
    let mut sink = FolderSink::new(&place.at("back")).unwrap();
    export(&place.at("lower"), &mut keys(), HOW, &mut sink, &mut Quiet).unwrap();
    for n in 0..20 {
        let found = fs::read(place.at(&format!("back/dir/file{n}"))).unwrap();
        assert_eq!(found, b"the tree's", "file{n}");
    }
}

#[test]
fn import_writes_only_into_the_folder_that_it_made() {
    let place = Trees::new();
    let before = place.outside();
    place.import("lower", &mut Swap(Some(|| place.swap("lower/dir"))), false);
    assert_eq!(place.outside(), before);
    assert_eq!(fs::read_dir(place.at("moved")).unwrap().count(), 20);
}

#[test]
fn export_reads_and_writes_only_the_folders_that_it_began_with() {
    for swapped in ["lower/dir", "back/dir"] {
        let place = Trees::new();
        place.import("lower", &mut Quiet, false);
        let before = place.outside();
        let mut sink = FolderSink::new(&place.at("back")).unwrap();
        let mut swap = Swap(Some(|| place.swap(swapped)));
        let done = export(&place.at("lower"), &mut keys(), HOW, &mut sink, &mut swap).unwrap();
        assert_eq!((done.files, done.failed), (20, 0), "{swapped}");
        assert_eq!(place.outside(), before, "{swapped}");
        let made = if swapped == "back/dir" { place.at("moved") } else { place.at("back/dir") };
        assert_eq!(fs::read_dir(made).unwrap().count(), 20, "{swapped}");
    }
}

#[test]
fn import_does_not_enter_its_destination() {
    let place = Trees::new();
    let refused = place.try_import("plain/dir/lower", &mut Quiet, false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadOption);
    assert!(!place.at("plain/dir/lower").exists());
    // The destination takes the place of a file that has not been read yet.
    let moves = || {
        let is_left = |n: &u32| !place.at(&format!("lower/dir/file{n}")).exists();
        let left = place.at(&format!("plain/dir/file{}", (0..20).find(is_left).unwrap()));
        fs::remove_file(&left).unwrap();
        fs::rename(place.at("lower"), left).unwrap();
    };
    let done = place.import("lower", &mut Swap(Some(moves)), false);
    assert_eq!((done.files, done.failed), (19, 1));
}

#[test]
fn export_does_not_enter_its_destination() {
    let place = Trees::new();
    place.import("lower", &mut Quiet, false);
    let mut sink = FolderSink::new(&place.at("lower/dir/back")).unwrap();
    let done = export(&place.at("lower"), &mut keys(), HOW, &mut sink, &mut Swap(Some(|| ()))).unwrap();
    assert_eq!((done.files, done.failed), (20, 1));
}

/// Runs a tool that changes files, and replaces `lower/dir` by another folder while the tool waits
/// for a file's lock.
fn while_it_waits(tool: impl FnOnce(&Path, &mut dyn ProgressWatch) -> Summary + Send) {
    let place = Trees::new();
    fs::remove_dir_all(place.at("plain/dir")).unwrap();
    fs::create_dir(place.at("plain/dir")).unwrap();
    fs::write(place.at("plain/dir/file0"), b"the tree's").unwrap();
    place.import("lower", &mut Quiet, false);
    let before = place.outside();
    let file = place.at("lower/dir/file0");
    let held = File::open(&file).unwrap();
    held.lock().unwrap();
    thread::scope(|scope| {
        let lower = place.at("lower");
        let tool = scope.spawn(move || tool(&lower, &mut Swap(Some(|| {}))));
        // The test's descriptor, the tool's pinned one, and the one with which the tool waits.
        let asked = Instant::now();
        while descriptors_of(&file) < 3 && !tool.is_finished() {
            assert!(asked.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        place.swap("lower/dir");
        drop(held);
        tool.join().unwrap();
    });
    assert_eq!(place.outside(), before);
    let names: Vec<_> = fs::read_dir(place.at("moved")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["file0"]);
}

fn descriptors_of(path: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter(|link| fs::read_link(link.path()).is_ok_and(|to| to == path)).count()
}

#[test]
fn convert_replaces_only_the_file_that_it_opened() {
    while_it_waits(|lower, watch| convert(lower, &mut keys(), HeaderLocation::Xattr, watch).unwrap());
}

#[test]
fn rewrap_changes_only_the_file_that_it_opened() {
    let new = Arc::new(AuthToken::from_passphrase(b"new", AuthToken::DEFAULT_SALT).unwrap());
    while_it_waits(|lower, watch| rekey(lower, &mut keys(), &KeyChange::Replace(new), watch).unwrap());
}

#[test]
fn rename_renames_only_in_the_folder_that_it_began_with() {
    let place = Trees::new();
    fs::remove_dir_all(place.at("plain/dir")).unwrap();
    fs::create_dir_all(place.at("plain/dir/sub")).unwrap();
    place.import("lower", &mut Quiet, true);
    let only = |folder: &Path| fs::read_dir(folder).unwrap().next().unwrap().unwrap().file_name();
    let dir = only(&place.at("lower")).into_string().unwrap();
    let sub = only(&place.at("lower").join(&dir)).into_string().unwrap();
    // A name that fails, in the innermost folder: all folders around it come after it.
    fs::write(place.at("lower").join(&dir).join(&sub).join("ECRYPTFS_FNEK_ENCRYPTED.FWb"), b"").unwrap();
    fs::create_dir(place.at("outside").join(&sub)).unwrap();
    let before = place.outside();
    let mut swap = Swap(Some(|| place.swap(&format!("lower/{dir}"))));
    rename(&place.at("lower"), &mut keys(), None, false, &mut swap).unwrap();
    assert_eq!(place.outside(), before);
    assert_eq!(only(&place.at("moved")), "sub");
}

#[test]
fn a_single_file_is_converted_and_its_other_names_follow_in_a_tree() {
    let place = Trees::new();
    fs::hard_link(place.at("plain/dir/file0"), place.at("plain/dir/again")).unwrap();
    place.import("lower", &mut Quiet, false);
    let one = place.at("lower/dir/file1");
    let done = convert(&one, &mut keys(), HeaderLocation::Xattr, &mut Quiet).unwrap();
    assert_eq!(done.files, 1);
    let done = convert(&place.at("lower"), &mut keys(), HeaderLocation::Xattr, &mut Quiet).unwrap();
    assert_eq!((done.files, done.others, done.unchanged), (19, 1, 1));
    let inode = |name: &str| fs::metadata(place.at("lower/dir").join(name)).unwrap().ino();
    assert_eq!(inode("file0"), inode("again"));
}
