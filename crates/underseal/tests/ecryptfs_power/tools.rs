//! Tools that say that they are done, and a power cut right after, or a disk that has failed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Output;

use crate::ecryptfs_mount::mounted::underseal;
use crate::ecryptfs_power::disk::Disk;
use crate::ecryptfs_power::stacked::{Stack, StackedTree};
use crate::support::mounts::{Mount, cannot_fuse, cannot_mount, skip};
use crate::support::{Scratch, output, run, seed, tool};

pub(super) const EXT4: &[&str] =
    &["mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
const XFS: &[&str] = &["mkfs.xfs", "-q"];

fn unable(test: &str) -> bool {
    let reason = cannot_mount().or_else(cannot_fuse);
    if let Some(reason) = reason {
        skip(test, reason);
    }
    reason.is_some()
}

/// A plain tree: files of many lengths in folders.
fn plain(scratch: &Scratch, files: usize) -> Vec<(String, Vec<u8>)> {
    scratch.file("pass", b"the old passphrase\n");
    scratch.file("new", b"the new passphrase\n");
    let content =
        |n: usize| (format!("dir{}/file{n}", n % 3), vec![u8::try_from(n % 251 + 1).unwrap(); n * 3001]);
    let all: Vec<_> = (0..files).map(content).collect();
    for (name, bytes) in &all {
        let path = scratch.path("plain").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    all
}

fn ecryptfs(scratch: &Scratch, args: &[&str]) -> Output {
    let mut command = underseal();
    output(command.current_dir(scratch.folder()).args(["ecryptfs", "-q"]).args(args))
}

#[track_caller]
fn done(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_a_tool_has_done_survives_a_power_cut_on_ext4() {
    cut_after_each_tool("what_a_tool_has_done_survives_a_power_cut_on_ext4", EXT4, 96 << 20, None);
}

#[test]
fn what_a_tool_has_done_survives_a_power_cut_on_xfs() {
    cut_after_each_tool("what_a_tool_has_done_survives_a_power_cut_on_xfs", XFS, 336 << 20, None);
}

pub(super) fn cut_after_each_tool(test: &str, make: &[&str], bytes: u64, stack: Option<Stack>) {
    if unable(test) {
        return;
    }
    let seed = seed(test);
    let scratch = Scratch::new();
    let all = plain(&scratch, 40);
    let disk = Disk::new(&scratch, bytes, seed);
    let device = disk.attach();
    run(tool(make[0]).args(&make[1..]).arg(device.device()));
    drop(device);
    // A tool, the tree that it leaves, and the passphrase of that tree.
    let steps: [(&[&str], &str, &str); 6] = [
        (&["import", "plain", "below/lower", "--passphrase-file", "pass"], "below/lower", "pass"),
        (
            &["rewrap", "below/lower", "--passphrase-file", "pass", "--new-passphrase-file", "new"],
            "below/lower",
            "new",
        ),
        (&["convert", "below/lower", "--header", "xattr"], "below/lower", "new"),
        (&["convert", "below/lower", "--header", "file"], "below/lower", "new"),
        (
            &[
                "rename-tree",
                "below/lower",
                "--passphrase-file",
                "new",
                "-o",
                "ecryptfs_enable_filename_crypto",
            ],
            "below/lower",
            "new",
        ),
        (&["export", "below/lower", "below/back", "--passphrase-file", "new"], "below/back", ""),
    ];
    // A stack passes on what it has been given: the disk itself is in no hurry.
    let options: &[&str] = if stack.is_some() { &["-o", "commit=300"] } else { &[] };
    for (args, tree, passphrase) in steps {
        let what = format!("{test}: {}", args[0]);
        let device = disk.attach();
        let below = StackedTree::mount(&scratch, &device, options, stack);
        done(ecryptfs(&scratch, args));
        disk.cut();
        drop((below, device));
        disk.power_on();
        let device = disk.attach();
        let below = StackedTree::mount(&scratch, &device, options, stack);
        if passphrase.is_empty() {
            assert_tree(&scratch.path(tree), &all, &what);
        } else {
            done(ecryptfs(&scratch, &["check", tree, "--passphrase-file", passphrase]));
            done(ecryptfs(&scratch, &["export", tree, "found", "--passphrase-file", passphrase]));
            assert_tree(&scratch.path("found"), &all, &what);
            fs::remove_dir_all(scratch.path("found")).unwrap();
        }
        drop((below, device));
    }
}

fn assert_tree(found: &Path, all: &[(String, Vec<u8>)], what: &str) {
    for (name, bytes) in all {
        let found = fs::read(found.join(name)).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        assert!(found == *bytes, "{what}: {name}: {} bytes of {}", found.len(), bytes.len());
    }
}

/// The page cache shows a header that the disk has lost.
#[test]
fn a_header_that_a_rewrap_could_not_sync_is_written_by_the_next_one() {
    let test = "a_header_that_a_rewrap_could_not_sync_is_written_by_the_next_one";
    if unable(test) {
        return;
    }
    let scratch = Scratch::new();
    let all = plain(&scratch, 3);
    let disk = Disk::new(&scratch, 96 << 20, 1);
    let device = disk.attach();
    run(tool(EXT4[0]).args(&EXT4[1..]).arg(device.device()));
    let below = Mount::new(device.device(), &scratch.path("below"), &[]);
    done(ecryptfs(&scratch, &["import", "plain", "below/lower", "--passphrase-file", "pass"]));
    run(tool("sync").arg("-f").arg(scratch.path("below")));
    let inode = fs::metadata(scratch.path("below/lower").join(&all[1].0)).unwrap().ino();
    let bmap = format!("bmap <{inode}> 0");
    let block: u64 = run(tool("debugfs").args(["-R", &bmap]).arg(device.device())).trim().parse().unwrap();
    let rewrap = ["rewrap", "below/lower", "--passphrase-file", "pass", "--new-passphrase-file", "new"];
    disk.fail_writes(block * 4096..(block + 1) * 4096);
    let failed = ecryptfs(&scratch, &rewrap);
    assert!(!failed.status.success(), "{failed:?}");
    disk.heal();
    done(ecryptfs(&scratch, &rewrap));
    drop((below, device));
    let device = disk.attach();
    let below = Mount::new(device.device(), &scratch.path("below"), &[]);
    done(ecryptfs(&scratch, &["export", "below/lower", "found", "--passphrase-file", "new"]));
    assert_tree(&scratch.path("found"), &all, test);
    drop((below, device));
}

#[test]
fn a_disk_that_fails_is_an_error_of_import_and_export() {
    let test = "a_disk_that_fails_is_an_error_of_import_and_export";
    if unable(test) {
        return;
    }
    let scratch = Scratch::new();
    plain(&scratch, 40);
    done(ecryptfs(&scratch, &["import", "plain", "lower", "--passphrase-file", "pass"]));
    for args in [
        ["import", "plain", "below/tree", "--passphrase-file", "pass"],
        ["export", "lower", "below/tree", "--passphrase-file", "pass"],
    ] {
        let disk = Disk::new(&scratch, 96 << 20, 1);
        let device = disk.attach();
        run(tool(EXT4[0]).args(&EXT4[1..]).arg(device.device()));
        let below = Mount::new(device.device(), &scratch.path("below"), &[]);
        disk.fail_writes(0..96 << 20);
        let failed = ecryptfs(&scratch, &args);
        assert!(!failed.status.success(), "{args:?}: {failed:?}");
        let said = String::from_utf8_lossy(&failed.stderr);
        assert!(said.contains("below/tree"), "{args:?}: {said}");
        disk.heal();
        drop((below, device));
    }
}

#[test]
fn a_rewrap_after_one_that_could_not_sync_writes_the_headers_again() {
    const BLOCK: u64 = 4096;
    let test = "a_rewrap_after_one_that_could_not_sync_writes_the_headers_again";
    if unable(test) {
        return;
    }
    let scratch = Scratch::new();
    let all = plain(&scratch, 2);
    let disk = Disk::new(&scratch, 96 << 20, 1);
    let device = disk.attach();
    run(tool(EXT4[0]).args(&EXT4[1..]).arg(device.device()));
    let below = Mount::new(device.device(), &scratch.path("below"), &[]);
    done(ecryptfs(&scratch, &["import", "plain", "below/lower", "--passphrase-file", "pass"]));
    let block = run(tool("debugfs").args(["-R", "bmap /lower/dir1/file1 0"]).arg(device.device()));
    let block: u64 = block.trim().parse().unwrap();
    let rewrap = ["rewrap", "below/lower", "--passphrase-file", "pass", "--new-passphrase-file", "new"];
    disk.fail_writes(block * BLOCK..(block + 1) * BLOCK);
    let failed = ecryptfs(&scratch, &rewrap);
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && said.contains("file1"), "{said}");
    // While the disk fails nothing says that it is done, whatever the kernel's pages have.
    assert!(!ecryptfs(&scratch, &rewrap).status.success());
    disk.heal();
    done(ecryptfs(&scratch, &rewrap));
    drop(below);
    let below = Mount::new(device.device(), &scratch.path("below"), &[]);
    done(ecryptfs(&scratch, &["export", "below/lower", "found", "--passphrase-file", "new"]));
    assert_tree(&scratch.path("found"), &all, test);
    drop((below, device));
}

#[test]
fn a_wrapped_passphrase_that_is_not_safe_on_the_disk_is_not_there() {
    let scratch = Scratch::new();
    scratch.file("pass", b"the mount's passphrase\n");
    scratch.file("login", b"the login's passphrase\n");
    let wrap = |fault: &str| {
        let mut traced = tool("strace");
        traced.current_dir(scratch.folder()).args(["-f", "-o", "/dev/null", "-e", "trace=fsync", "-e"]);
        traced.arg(format!("inject=fsync:{fault}")).arg(env!("CARGO_BIN_EXE_underseal"));
        traced.args(["ecryptfs", "-q", "wrap", "wrapped", "--passphrase-file", "pass"]);
        output(traced.args(["--new-passphrase-file", "login"])).status.success()
    };
    // Of the file, and of the folder that its name is in.
    for number in 1..3 {
        assert!(!wrap(&format!("error=EIO:when={number}")), "sync number {number} failed");
        assert!(!scratch.path("wrapped").exists(), "sync number {number} failed");
    }
    assert!(wrap("error=EIO:when=3"), "there is no third sync");
    let mut unwrap = underseal();
    unwrap.args(["ecryptfs", "unwrap"]).arg(scratch.path("wrapped"));
    let found = run(unwrap.arg("--passphrase-file").arg(scratch.path("login")));
    assert_eq!(found, "the mount's passphrase\n");
}
