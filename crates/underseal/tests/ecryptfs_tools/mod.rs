//! `underseal ecryptfs` without a mount: trees that a kernel wrote, trees of its own, and whatever
//! is wrong with them.
//!
//! ```text
//!   trees.rs      the kernel's trees come out exactly; trees of ours go in and out
//!   access.rs     modes and access control lists of copies
//!   archives.rs   tar archives go in, hostile ones nowhere else
//!   long_names.rs names of 144 to 255 bytes: in, out, renamed, damaged
//!   look_alikes.rs  plain names that look like encrypted ones, and like name files
//!   beside.rs     files that other programs change while a tool waits for them
//!   convert.rs    headers moved by runs that are killed, and by two at a time
//!   marks.rs      marks of conversions that other programs wrote
//!   keys.rs       rewrap, add-key, remove-key, interrupted and repeated; passphrases' ways in;
//!                 wrap and unwrap
//!   holes.rs      extents that are missing, files of zeros
//!   in_use.rs     trees that change meanwhile, folders that two tools are to write to
//!   lost_writes.rs  a disk that loses what was written
//!   renamed.rs    names under another key by runs that are killed
//!   replaced.rs   names that another program replaces or removes in a tool's last moment
//!   refusals.rs   damage, hostile names, missing keys: each entry by itself, with lower path and
//!                 exit status
//! ```

mod access;
mod archives;
mod beside;
mod convert;
mod holes;
mod in_use;
mod keys;
mod long_names;
mod look_alikes;
mod lost_writes;
mod marks;
mod refusals;
mod renamed;
mod replaced;
mod trees;

use std::path::Path;
use std::process::Output;

use crate::support::volume::underseal;
use crate::support::{Scratch, output};

/// The trees that the kernel wrote.
const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ecryptfs/tests/vectors");

/// Runs a verb with a passphrase in a file called `pass`.
fn ecryptfs(scratch: &Scratch, verb: &str, args: &[&str]) -> Output {
    let pass = scratch.path("pass");
    let mut command = underseal();
    command.current_dir(scratch.folder()).args(["ecryptfs", verb, "-q"]).args(args);
    output(command.arg("--passphrase-file").arg(pass))
}

#[track_caller]
fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}\n{}", output.status, stderr(output));
}

/// Fails unless it ended so, and said all of the words.
#[track_caller]
fn assert_refused(output: &Output, status: i32, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{said}");
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A plain tree and its lower one, made with these options.
fn imported(scratch: &Scratch, options: &str) {
    scratch.file("pass", b"the test's passphrase\n");
    std::fs::create_dir(scratch.path("plain")).unwrap();
    crate::ecryptfs_kernel::tree::make(&scratch.path("plain"), 3);
    let mut args = vec!["plain", "lower"];
    if !options.is_empty() {
        args.extend(["-o", options]);
    }
    assert_done(&ecryptfs(scratch, "import", &args));
}

/// Exports what must come out as it went in.
#[track_caller]
fn assert_exports(scratch: &Scratch) {
    assert_done(&ecryptfs(scratch, "export", &["lower", "back"]));
    let (back, plain) = (scratch.path("back"), scratch.path("plain"));
    crate::ecryptfs_kernel::tree::assert_same_tree(&back, &plain, "exported");
    std::fs::remove_dir_all(back).unwrap();
}

/// A lower file that a whole tree may be damaged by.
fn lower_file(scratch: &Scratch, name: &str) -> std::path::PathBuf {
    Path::new(&scratch.path("lower")).join(name)
}
