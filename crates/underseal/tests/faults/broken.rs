//! A disk that fails. nbdkit plays the disk, nbdfuse makes it a file.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::control::operator::Operator;
use crate::support::mounts::{NbdFuse, cannot_fuse, skip};
use crate::support::nbd::{Client, EIO};
use crate::support::scratch::assert_same;
use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, Server, bytes, fails, seed};

const BLOCK: usize = 65_536;
const BLOCKS: usize = 96;

/// A volume with its header elsewhere, filled, and then put on a disk that nbdkit plays.
struct Broken {
    scratch: Scratch,
    volume: Volume,
    plain: Vec<u8>,
    disk: NbdFuse,
}

impl Broken {
    /// `nbdkit`: its arguments, for the image's path and that of a file that exists while the disk
    /// is to fail.
    fn new(test: &str, nbdkit: impl Fn(&str, &str) -> Vec<String>) -> Self {
        let scratch = Scratch::new();
        let header = scratch.path("header");
        let mut volume = Volume::at(&scratch, "image")
            .with(["--header", text(&header)])
            .format(&(BLOCK * BLOCKS).to_string(), &["--header", text(&header)]);
        let plain = bytes(seed(test), BLOCK * BLOCKS);
        volume.write(0, &plain);
        let trigger = scratch.path("trigger");
        let mut command: Vec<String> = ["[", "nbdkit", "--exit-with-parent"].map(Into::into).into();
        command.extend(nbdkit(text(&volume.image), text(&trigger)));
        command.push("]".into());
        let disk = NbdFuse::mount(&scratch.path("fuse/disk"), &[], &command);
        volume.image = disk.file().into();
        Self { scratch, volume, plain, disk }
    }

    fn fail(&self) {
        self.scratch.file("trigger", b"");
    }

    fn recover(&self) {
        fs::remove_file(self.scratch.path("trigger")).unwrap();
    }

    fn block(&self, number: usize) -> &[u8] {
        &self.plain[number * BLOCK..][..BLOCK]
    }
}

fn offset(block: usize) -> u64 {
    (block * BLOCK) as u64
}

#[test]
fn reads_and_writes_that_the_disk_fails_are_eio_and_all_others_are_right() {
    if let Some(reason) = cannot_fuse() {
        return skip("a broken disk", reason);
    }
    for open in [&[][..], &["--direct"]] {
        let mut broken = Broken::new("broken disk", |image, trigger| {
            let rules = ["pread", "pwrite"].into_iter().flat_map(|call| {
                [
                    format!("error-{call}=EIO"),
                    format!("error-{call}-rate=30%"),
                    format!("error-{call}-file={trigger}"),
                ]
            });
            ["--filter=error", "file", image].map(String::from).into_iter().chain(rules).collect()
        });
        let server = Server::start(&broken.volume, open);
        let mut other = Client::connect(&server.socket()).unwrap();
        let mut client = Client::connect(&server.socket()).unwrap();

        broken.fail();
        let (mut failed, mut right) = (0, 0);
        for number in 0..BLOCKS {
            match client.read(offset(number), BLOCK) {
                Ok(data) => {
                    assert_same(&data, broken.block(number), "a read that did not fail");
                    right += 1;
                }
                Err(error) => {
                    assert_eq!(error, EIO);
                    failed += 1;
                }
            }
        }
        assert!(failed > 0 && right > 0, "{failed} reads failed, {right} did not, {open:?}");
        let mut failed = 0;
        for number in 0..BLOCKS / 2 {
            let new = bytes(number as u64, BLOCK);
            match client.write(offset(number), &new) {
                Ok(()) => broken.plain[number * BLOCK..][..BLOCK].copy_from_slice(&new),
                Err(error) => {
                    assert_eq!(error, EIO);
                    failed += 1;
                    // All, some or none of it is there now.
                    broken.recover();
                    other.write(offset(number), broken.block(number)).unwrap();
                    broken.fail();
                }
            }
        }
        assert!(failed > 0, "no write failed, {open:?}");

        broken.recover();
        for client in [&mut client, &mut other] {
            for number in 0..BLOCKS {
                assert_same(&client.read(offset(number), BLOCK).unwrap(), broken.block(number), "afterwards");
            }
        }
        client.flush().unwrap();
        drop((client, other));
        let log = server.stop();
        let line =
            log.lines().find(|line| line.contains("Input/output error")).expect("a line for the operator");
        assert!(line.contains(text(&broken.volume.image)) && line.contains("at byte "), "{line}");
        broken.disk.unmount();
    }
}

#[test]
fn a_flush_that_the_disk_fails_is_not_acknowledged_and_the_last_one_decides_the_exit_status() {
    if let Some(reason) = cannot_fuse() {
        return skip("a disk that cannot flush", reason);
    }
    let broken = Broken::new("broken flush", no_flush);
    let mut server = Server::start(&broken.volume, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    let new = bytes(1, 4096);
    client.write(0, &new).unwrap();
    client.flush().unwrap();
    broken.fail();
    client.write(4096, &new).unwrap();
    assert_eq!(client.flush(), Err(EIO));
    assert_same(&client.read(4096, 4096).unwrap(), &new, "after a flush that failed");
    drop(client);

    server.signal(Signal::TERM);
    let status = server.wait();
    assert_eq!(status.code(), Some(8), "signal {:?}: {}", status.signal(), server.log());
    assert!(server.log().contains("the last flush"), "{}", server.log());
    assert!(!server.socket().exists());
    broken.recover();
}

#[test]
fn who_takes_a_volume_down_hears_that_its_last_flush_failed() {
    if let Some(reason) = cannot_fuse() {
        return skip("a disk that cannot flush its last", reason);
    }
    let broken = Broken::new("last flush", no_flush);
    let runtime = broken.scratch.path("run");
    let mut command = broken.volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", &runtime);
    let mut server = Server::start_command(command, &["--name", "disk"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &bytes(2, 4096)).unwrap();
    drop(client);
    broken.fail();
    let line =
        format!("disk {} {} nbd\n", text(&broken.volume.image), text(&broken.scratch.file("key", b"key")));
    let list = broken.scratch.file("volumes", line.as_bytes());
    let mut down = underseal();
    down.args(["down", "disk", "--config", text(&list)]).env("UNDERSEAL_RUNTIME_DIR", &runtime);
    let (status, said) = fails(&mut down);
    assert!(status == 8 && said.contains("the last flush") && !said.contains("is down"), "{status}: {said}");
    assert_eq!(said.matches("disk: ").count(), 1, "{said}");
    assert_eq!(server.wait().code(), Some(8), "{}", server.log());
    broken.recover();
}

#[test]
fn a_sync_of_the_reencryption_that_the_disk_fails_fails_every_later_flush() {
    if let Some(reason) = cannot_fuse() {
        return skip("a reencryption on a disk that cannot flush", reason);
    }
    let broken = Broken::new("broken sync", no_flush);
    let operator = Operator::new();
    let mut server = operator.serve(&broken.volume, &["--name", "disk"]);
    let reencrypt = format!("reencrypt disk --passphrase-file {}", text(&broken.volume.passphrase));
    operator.does(&format!("{reencrypt} --init-only"));
    broken.fail();
    operator.is_refused(&format!("{reencrypt} --resume-only"), 1, "a sync of the image failed");
    broken.recover();
    assert_eq!(Client::connect(&server.socket()).unwrap().flush(), Err(EIO));
    operator.is_refused("close disk", 8, "acknowledged writes may be lost");
    assert_eq!(server.wait().code(), Some(8), "{}", server.log());
}

/// A disk that flushes nothing while it is to fail.
fn no_flush(image: &str, trigger: &str) -> Vec<String> {
    [
        "eval".into(),
        format!("get_size=stat -c %s {image}"),
        format!("pread=dd if={image} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"),
        format!("pwrite=dd of={image} seek=$4 oflag=seek_bytes conv=notrunc status=none"),
        "can_write=exit 0".into(),
        "can_flush=exit 0".into(),
        format!("flush=if test -e {trigger}; then echo EIO >&2; exit 1; fi"),
    ]
    .into()
}
