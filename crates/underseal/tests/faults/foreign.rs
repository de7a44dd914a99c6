//! Another program that syncs the image of a served volume: the kernel reports the lost writes to
//! that program, and the volume's clients learn of them all the same.

use std::path::Path;

use crate::control::operator::Operator;
use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::nbd::Client;
use crate::support::tools::{fails, output};
use crate::support::volume::{CHEAP_PBKDF2, Volume, text, underseal};
use crate::support::{Scratch, Server, bytes, run, seed, tool};

pub(crate) const MIB: u64 = 1 << 20;
/// The exit status of a server that may have lost acknowledged writes.
pub(crate) const LOST: i32 = 8;
/// The range that the first client writes, in MiB of the volume.
const WRITTEN: std::ops::Range<u64> = 16..48;

/// A disk whose file system has promised more than its storage holds: writing back fails, and no
/// write does.
pub(crate) struct Thin {
    pub(crate) disk: Mount,
    _device: Loop,
    _storage: Mount,
}

impl Thin {
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let storage = Mount::tmpfs(&scratch.path("storage"), 24 * MIB);
        let file = storage.directory().join("disk");
        std::fs::File::create(&file).unwrap().set_len(160 * MIB).unwrap();
        run(tool("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=1", "-O", "^has_journal"]).arg(&file));
        let device = Loop::attach(&file, &[]);
        // The loop driver takes a request that its file stores in part only for one that worked: a
        // page is stored or is not.
        let name = device.device().file_name().unwrap().to_str().unwrap();
        std::fs::write(format!("/sys/block/{name}/queue/max_sectors_kb"), "4").unwrap();
        let disk = Mount::new(device.device(), &scratch.path("disk"), &[]);
        Self { disk, _device: device, _storage: storage }
    }

    /// An overlayfs whose files lie on the disk.
    fn overlay(&self, scratch: &Scratch) -> Mount {
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| self.disk.directory().join(name));
        for folder in [&lower, &upper, &work] {
            std::fs::create_dir(folder).unwrap();
        }
        let folders = format!("lowerdir={},upperdir={},workdir={}", text(&lower), text(&upper), text(&work));
        Mount::new(Path::new("overlay"), &scratch.path("overlay"), &["-t", "overlay", "-o", &folders])
    }

    /// A volume in this folder, all of whose blocks are allocated.
    pub(crate) fn volume(scratch: &Scratch, folder: &Path) -> Volume {
        let mut volume = Volume::at(scratch, "image");
        volume.image = folder.join("image");
        let volume = volume.format("80M", &[]);
        run(tool("fallocate").args(["--length", "80MiB"]).arg(&volume.image));
        run(tool("sync").arg(&volume.image));
        volume
    }
}

/// A client writes and leaves. Another program syncs the image, and fails or not. A later flush of
/// another client fails, and so does closing the volume.
fn is_told_after(
    what: &str,
    prepare: impl FnOnce(&Operator, &Volume),
    sync: impl FnOnce(&Operator, &Volume),
) {
    if let Some(reason) = cannot_mount() {
        return skip(what, reason);
    }
    let operator = Operator::new();
    let thin = Thin::new(&operator.scratch);
    let volume = Thin::volume(&operator.scratch, thin.disk.directory());
    let server = operator.serve(&volume, &[]);
    prepare(&operator, &volume);
    write_and_leave(&server);
    sync(&operator, &volume);
    is_told(&operator, &volume, server);
}

/// Asserts that clients learn of the loss after another program received the kernel's error.
fn is_told(operator: &Operator, volume: &Volume, mut server: Server) {
    // The first sync consumes the error: a later one would succeed.
    run(tool("sync").arg(&volume.image));
    for _ in 0..2 {
        let mut late = Client::connect(&server.socket()).unwrap();
        late.flush().expect_err("it is told that lost writes are stored");
    }
    operator.is_refused("suspend image", 1, "acknowledged writes may be lost");
    operator.is_refused("close image", 8, "acknowledged writes may be lost");
    assert_eq!(server.wait().code(), Some(LOST), "{}", server.log());
}

fn write_and_leave(server: &Server) {
    let data = bytes(seed("foreign"), usize::try_from(MIB).unwrap());
    let mut client = Client::connect(&server.socket()).unwrap();
    for at in WRITTEN {
        client.write(at * MIB, &data).unwrap();
    }
}

#[test]
fn an_fsync_of_the_image_by_another_program_hides_no_loss() {
    is_told_after(
        "a foreign fsync",
        |_, _| {},
        |_, volume| {
            fails(tool("sync").arg(&volume.image));
        },
    );
}

#[test]
fn on_overlayfs_an_fsync_by_another_program_hides_no_loss_either() {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let lacks = (!known.contains("overlay")).then_some("this kernel has no overlayfs");
    if let Some(reason) = cannot_mount().or(lacks) {
        return skip("a foreign fsync on overlayfs", reason);
    }
    let operator = Operator::new();
    let thin = Thin::new(&operator.scratch);
    let overlay = thin.overlay(&operator.scratch);
    let volume = Thin::volume(&operator.scratch, overlay.directory());
    let server = operator.serve(&volume, &[]);
    write_and_leave(&server);
    fails(tool("sync").arg(&volume.image));
    is_told(&operator, &volume, server);
}

/// The flush of a loop device syncs its file, whose error goes to the program that flushed.
#[test]
fn on_a_loop_device_an_fsync_by_another_program_hides_no_loss_either() {
    if let Some(reason) = cannot_mount() {
        return skip("a foreign fsync of a loop device", reason);
    }
    let operator = Operator::new();
    let thin = Thin::new(&operator.scratch);
    let mut volume = Thin::volume(&operator.scratch, thin.disk.directory());
    let device = Loop::attach(&volume.image, &[]);
    let file = std::mem::replace(&mut volume.image, device.device().into());
    let server = operator.serve(&volume, &["--name", "image"]);
    write_and_leave(&server);
    fails(tool("sync").arg(&volume.image));
    run(tool("sync").arg(&volume.image));
    run(tool("sync").arg(&file));
    is_told(&operator, &volume, server);
}

#[test]
fn cryptsetup_that_changes_the_header_hides_no_loss() {
    is_told_after(
        "cryptsetup beside a server",
        |_, _| {},
        |_, volume| {
            // Some versions do not look whether their sync worked.
            output(tool("cryptsetup").args(["config", "--label", "label"]).arg(&volume.image));
        },
    );
}

#[test]
fn a_new_keyslot_hides_no_loss() {
    is_told_after(
        "a keyslot beside a server",
        |_, _| {},
        |_, volume| {
            let mut add = underseal();
            add.args(["keyslot", "add"]).arg(&volume.image).args(CHEAP_PBKDF2);
            add.args([
                "--passphrase-file",
                text(&volume.passphrase),
                "--new-passphrase-file",
                text(&volume.passphrase),
            ]);
            let (_, said) = fails(&mut add);
            assert!(said.contains("cannot sync"), "{said}");
        },
    );
}

#[test]
fn the_servers_own_reencryption_hides_no_loss() {
    let words = |volume: &Volume| format!("reencrypt image --passphrase-file {}", text(&volume.passphrase));
    is_told_after(
        "a reencryption amid losses",
        |operator, volume| drop(operator.does(&format!("{} --init-only", words(volume)))),
        |operator, volume| {
            let ran = operator.run(&format!("{} --resume-only --rate full", words(volume)));
            assert_eq!(ran.code, Some(1), "{ran:?}");
            // Lost bytes are still read from the page cache as if they were on the disk.
            let resume = format!("{} --resume-only", words(volume));
            operator.is_refused(&resume, 1, "a sync of the image failed");
        },
    );
}
