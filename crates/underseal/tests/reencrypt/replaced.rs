//! Images and headers that are removed or replaced by another program while they are reencrypted.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::online::{wait_for, wait_for_progress, words};
use super::*;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::underseal;

/// At this rate there is time to replace a file.
const SLOW: &str = "--rate 4M";

/// A volume of 24 MiB with a detached header.
fn detached(scratch: &Scratch, test: &str) -> (Volume, PathBuf) {
    let header = scratch.path("header");
    let options = ["--header", text(&header)];
    let volume = Volume::at(scratch, "image").format("24M", &options).with(options);
    volume.write(0, &bytes(crate::support::seed(test), 24 << 20));
    (volume, header)
}

/// Puts a copy of a file in its place; returns the copy's contents.
fn replace(path: &Path) -> Vec<u8> {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    fs::rename(&copy, path).unwrap();
    fs::read(path).unwrap()
}

/// Runs a command that has an image replaced once its first bytes have changed, and asserts that it
/// notices that.
fn notices_a_replaced_image(mut command: Command, image: &Path) {
    let start = || {
        let mut start = vec![0; 4096];
        File::open(image).unwrap().read_exact(&mut start).unwrap();
        start
    };
    let before = start();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the first bytes are new", PATIENCE, || start() != before);
    let new = replace(image);
    assert_fails(&child.wait_with_output().unwrap(), "another program");
    assert_same(&fs::read(image).unwrap(), &new, "nothing is written to the new file");
}

#[track_caller]
fn assert_fails(ran: &Output, why: &str) {
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains(why), "{}: {said}", ran.status);
}

#[test]
fn an_image_that_is_replaced_is_not_reencrypted_to_the_end() {
    let scratch = Scratch::new();
    let (volume, header) = detached(&scratch, "an_image_that_is_replaced");
    notices_a_replaced_image(reencrypt(&volume, SLOW), &volume.image);
    assert!(dump(&header).contains("online-reencrypt"), "the old key is kept");
}

#[test]
fn an_image_that_is_replaced_while_it_is_open_is_not_reencrypted_to_the_end() {
    let operator = Operator::new();
    let (volume, header) = detached(&operator.scratch, "an_image_that_is_replaced_while_it_is_open");
    let server = operator.serve(&volume, &[]);
    operator.does(&words(&volume, "--rate 2M --no-wait"));
    wait_for_progress(&operator, "image");
    replace(&volume.image);
    wait_for(&operator, "image", "failed");
    assert!(dump(&header).contains("online-reencrypt"), "the old key is kept");
    server.kill();
}

/// Each file that is replaced has another name, or has none.
#[test]
fn a_header_that_is_replaced_while_it_is_open_ends_the_reencryption_and_all_flushes() {
    for links in [false, true] {
        let operator = Operator::new();
        let (volume, header) = detached(&operator.scratch, "a_header_that_is_replaced_while_it_is_open");
        if links {
            fs::hard_link(&header, operator.scratch.path("link")).unwrap();
        }
        let server = operator.serve(&volume, &[]);
        operator.does(&words(&volume, "--rate 2M --no-wait"));
        wait_for_progress(&operator, "image");
        replace(&header);
        wait_for(&operator, "image", "failed");
        assert!(dump(&header).contains("online-reencrypt"), "the new file is not the volume's");
        let mut client = Client::connect(&server.socket()).unwrap();
        assert!(client.flush().is_err());
        client.write(0, &[1; 4096]).unwrap_err();
        drop(client);
        operator.is_refused("close image", 8, "the last flush");
    }
}

/// cryptsetup finds the file that has the header's name, and knows nothing of the server's.
#[test]
fn a_server_acknowledges_nothing_once_its_header_or_image_was_replaced() {
    for (is_header, links, is_handed_over) in
        [(true, false, false), (true, true, true), (false, true, false), (false, true, true)]
    {
        let operator = Operator::new();
        let (volume, header) = detached(&operator.scratch, "a_server_acknowledges_nothing_once_its_header");
        let path = if is_header { &header } else { &volume.image };
        if links {
            fs::hard_link(path, operator.scratch.path("link")).unwrap();
        }
        let server = operator.serve(&volume, &["--hand-over"]);
        let client = || Client::connect(&server.socket()).unwrap();
        client().write(0, &[1; 4096]).unwrap();
        if is_handed_over {
            operator.does("upgrade image");
        }
        client().flush().unwrap();
        replace(path);
        // A new server would know nothing of the file that was replaced.
        assert_ne!(operator.run("upgrade image").code, Some(0));
        let mut client = client();
        assert!(client.flush().is_err(), "header {is_header}, links {links}");
        assert!(client.write(0, &[2; 4096]).is_err());
        drop(client);
        operator.is_refused("close image", 8, "the last flush");
    }
}

#[test]
fn a_server_goes_on_where_its_files_are_moved_and_where_its_header_was_fetched() {
    let operator = Operator::new();
    let (volume, header) = detached(&operator.scratch, "a_server_goes_on_where_its_files_are_moved");
    let folder = operator.scratch.path("folder");
    fs::create_dir(&folder).unwrap();
    let fetched = folder.join("header");
    fs::copy(&header, &fetched).unwrap();
    let image = folder.join("image");
    fs::rename(&volume.image, &image).unwrap();
    let moved = Volume { image, options: vec!["--header".into(), text(&fetched).into()], ..volume };
    let server = operator.serve(&moved, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    let mut writes = |what| {
        client.write(0, &[1; 4096]).unwrap();
        client.flush().unwrap_or_else(|e| panic!("{what}: {e}"));
    };
    writes("as it was opened");
    fs::remove_file(&fetched).unwrap();
    writes("without the header that was fetched");
    fs::copy(&header, &fetched).unwrap();
    writes("with a header that was fetched once more");
    let other = operator.scratch.path("other");
    fs::rename(&folder, &other).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("image"), "another folder's").unwrap();
    writes("in a folder that was renamed");
    fs::rename(other.join("image"), other.join("moved")).unwrap();
    writes("under another name");
    drop(client);
    server.stop();
}

#[test]
fn an_image_without_a_header_that_is_replaced_is_not_reencrypted_to_the_end() {
    let scratch = Scratch::new();
    let image = scratch.file("image", &bytes(crate::support::seed("an_image_without_a_header"), 24 << 20));
    let mut command = underseal();
    command.arg("reencrypt").arg(&image).args(["-q", "--pbkdf-force-iterations", "1000"]);
    command.arg("--state").arg(scratch.path("state")).args(SLOW.split(' '));
    let key = "5d3c91f07a62e8b4c1479f0326ad58ee90b7f41c3ad8652e7bf60914c28da3e7";
    for (option, target) in
        [("--old-table", "linear"), ("--new-table", &*format!("crypt aes-xts-plain64 {key} 0"))]
    {
        let line = format!("0 {} {target} {} 0\n", 24 << 11, text(&image));
        command.arg(option).arg(scratch.file(option, line.as_bytes()));
    }
    notices_a_replaced_image(command, &image);
}

/// Runs a command that makes a header's file and syncs slowly; removes the file as soon as
/// something is in it. Asserts that the command fails.
fn loses_new_header(scratch: &Scratch, command: &Command, header: &Path) {
    let mut traced = tool("strace");
    traced.args(["-f", "-o"]).arg(scratch.path("calls")).args(["-e", "trace=fsync,fdatasync"]);
    traced.args(["-e", "inject=fsync,fdatasync:delay_enter=300000"]);
    traced.arg(command.get_program()).args(command.get_args());
    let child = traced.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the header is written", PATIENCE, || fs::metadata(header).is_ok_and(|of| of.len() > 0));
    fs::remove_file(header).unwrap();
    assert_fails(&child.wait_with_output().unwrap(), "removed or replaced");
}

#[test]
fn an_encryption_whose_new_header_is_removed_as_it_begins_changes_no_data() {
    let scratch = Scratch::new();
    let plain = bytes(crate::support::seed("an_encryption_whose_new_header_is_removed"), 24 << 20);
    let (image, header) = (scratch.file("image", &plain), scratch.path("header"));
    let volume = Volume::at(&scratch, "image").with(["--header", text(&header)]);
    let command = reencrypt(&volume, &format!("--encrypt --force {}", CHEAP_PBKDF2.join(" ")));
    loses_new_header(&scratch, &command, &header);
    assert_same(&fs::read(&image).unwrap(), &plain, "the data");
}

#[test]
fn a_decryption_whose_new_header_is_removed_as_it_begins_leaves_the_old_one() {
    let scratch = Scratch::new();
    let (volume, plain) = filled_to(&scratch, "a_decryption_whose_new_header_is_removed", 8, &[]);
    let header = scratch.path("header");
    let command = reencrypt(&volume, &format!("--decrypt --header {} --force", text(&header)));
    loses_new_header(&scratch, &command, &header);
    assert_same(&volume.read_all(), &plain, "the data");
}
