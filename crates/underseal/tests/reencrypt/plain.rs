use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::*;
use crate::control::operator::Ran;
use crate::support::cutter::Cutter;
use crate::support::mounts::{Mount, cannot_mount, skip};
use crate::support::scratch::{assert_same, put_back};
use crate::support::volume::underseal;

#[test]
fn an_image_is_encrypted_where_it_lies_and_decrypted_again() {
    let scratch = Scratch::new();
    let plain = bytes(crate::support::seed("an_image_is_encrypted_where_it_lies"), 24 << 20);
    let image = scratch.file("image", &plain);
    let header = scratch.path("header");
    let volume = Volume::at(&scratch, "image").with(["--header", text(&header)]);
    for options in ["", "--resilience journal"] {
        let cheap = CHEAP_PBKDF2.join(" ");
        run(&mut reencrypt(&volume, &format!("--encrypt {options} {cheap}")));
        assert!(std::fs::read(&image).unwrap() != plain, "it is not encrypted");
        assert_same(&volume.read_all(), &plain, "encrypted");
        let mut test = tool("cryptsetup");
        test.args(["open", "--test-passphrase", "-q", "--header"]).arg(&header).arg(&image);
        run(test.arg("-d").arg(&volume.passphrase));
        run(&mut reencrypt(&volume, &format!("--decrypt {options}")));
        assert_same(&std::fs::read(&image).unwrap(), &plain, "decrypted");
        let again = Ran::from(crate::support::output(&mut reencrypt(&volume, "--keep-key")));
        assert!(again.err.contains("use the device without this header"), "{again:?}");
        std::fs::remove_file(&header).unwrap();
    }
}

#[test]
fn a_header_comes_in_front_of_data_that_move_and_goes_again() {
    let scratch = Scratch::new();
    const UUID: &str = "4f0c6c1e-7b1e-4a8e-9d53-27f5d7a3b1c9";
    let (data, room) = (24 << 20, 32 << 20);
    let plain = bytes(crate::support::seed("a_header_comes_in_front_of_data_that_move"), data);
    let image = scratch.file("image", &plain);
    std::fs::File::options().write(true).open(&image).unwrap().set_len((data + room) as u64).unwrap();
    let volume = Volume::at(&scratch, "image");
    let cheap = CHEAP_PBKDF2.join(" ");
    let begin = format!("--encrypt --reduce-device-size 32M --data-offset 8M --uuid {UUID} {cheap}");
    let refused = Ran::from(crate::support::output(&mut reencrypt(&volume, &begin)));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("last 32 MiB"), "{refused:?}");
    run(&mut reencrypt(&volume, &format!("{begin} --force")));
    assert_same(&volume.read(0, data), &plain, "encrypted");
    let dump = dump(&image);
    assert!(!dump.contains("online-reencrypt"));
    assert!(dump.contains(UUID) && dump.contains("offset: 8388608"), "{dump}");

    let header = scratch.path("header");
    let refused = Ran::from(crate::support::output(&mut reencrypt(&volume, "--decrypt")));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("--header FILE"), "{refused:?}");
    run(&mut reencrypt(&volume, &format!("--decrypt --header {}", text(&header))));
    assert_same(&std::fs::read(&image).unwrap()[..data], &plain, "decrypted");
}

#[test]
fn an_encryption_that_is_killed_as_it_begins_can_always_be_gone_on_with() {
    let data = 20 << 20;
    let plain = bytes(crate::support::seed("an_encryption_that_is_killed_as_it_begins"), data);
    for turn in 0..8 {
        let scratch = Scratch::in_memory();
        let image = scratch.file("image", &plain);
        std::fs::File::options()
            .write(true)
            .open(&image)
            .unwrap()
            .set_len((data + (32 << 20)) as u64)
            .unwrap();
        let volume = Volume::at(&scratch, "image");
        let cheap = CHEAP_PBKDF2.join(" ");
        let begin = format!("--encrypt --reduce-device-size 32M --force {cheap}");
        let mut child = reencrypt(&volume, &begin).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20 + turn * 25));
        child.kill().unwrap();
        child.wait().unwrap();
        let files = std::fs::read_dir(scratch.path("")).unwrap().count();
        let on = Ran::from(crate::support::output(&mut reencrypt(&volume, "--resume-only")));
        if on.code != Some(0) {
            // Either nothing was begun, or the reencryption is over.
            let untouched = std::fs::read(&image).unwrap()[..data] == plain;
            assert!(untouched || on.err.contains("no reencryption is under way"), "{turn}: {on:?}");
            if untouched {
                run(&mut reencrypt(&volume, &begin));
            }
        }
        assert_eq!(
            std::fs::read_dir(scratch.path("")).unwrap().count(),
            files,
            "nothing lies beside the image"
        );
        assert_same(&volume.read(0, data), &plain, "encrypted");
    }
}

#[test]
fn a_decryption_that_is_killed_as_it_moves_the_header_is_begun_again_by_the_same_command() {
    let scratch = Scratch::in_memory();
    let (volume, plain) = filled_to(&scratch, "a_decryption_that_is_killed_as_it_moves", 4, &[]);
    let encrypted = fs::read(&volume.image).unwrap();
    let header = scratch.path("header");
    let decrypt = format!("--decrypt --header {} --hotzone-size 1M --force", text(&header));
    let begin = reencrypt(&volume, &format!("{decrypt} --init-only"));
    let cutter = Cutter::new();
    let mut moved = 0;
    for at in 1.. {
        put_back(&volume.image, &encrypted);
        let _ = fs::remove_file(&header);
        if cutter.kill_at(at, &["pwrite64"], &begin).status.success() {
            break;
        }
        let there = fs::read(&volume.image).unwrap();
        if there == encrypted {
            // The file holds a part of the header, or the whole.
            let _ = fs::remove_file(&header);
        }
        moved += usize::from(there != encrypted);
        let on = Ran::from(crate::support::output(&mut reencrypt(&volume, &decrypt)));
        assert_eq!(on.code, Some(0), "killed at write {at}: {on:?}");
        assert_same(&fs::read(&volume.image).unwrap()[..plain.len()], &plain, "decrypted");
    }
    assert!(moved >= 3, "{moved}");
}

/// Starts an encryption and stops it at its sync number `sync`.
fn cut_start(cutter: &Cutter, image: &Path, plain: &[u8], sync: u32, passphrase: &Path) {
    put_back(image, plain);
    File::options().write(true).open(image).unwrap().set_len((plain.len() + (8 << 20)) as u64).unwrap();
    let mut begin = underseal();
    begin.arg("reencrypt").arg(image).args(["--encrypt", "--reduce-device-size", "8M", "--force"]);
    begin.args(["--init-only", "--passphrase-file"]).arg(passphrase).args(CHEAP_PBKDF2);
    cutter.kill_at(sync, &["fsync", "fdatasync"], &begin);
}

#[test]
fn a_start_that_was_cut_off_is_found_by_any_name_of_the_image_from_any_folder() {
    // Twice as much as moves at the start.
    let plain = bytes(crate::support::seed("a_start_that_was_cut_off_is_found"), 8 << 20);
    let scratch = Scratch::in_memory();
    let image = scratch.path("image");
    // A name that earlier versions took for their own.
    let backup = scratch.file("link.luks-header", b"an encrypted backup of a header");
    let passphrase = scratch.file("typed", b"of the new volume");
    let link = scratch.path("link");
    std::os::unix::fs::symlink("image", &link).unwrap();
    let cutter = Cutter::new();
    let mut cut = 0;
    for sync in 1..24 {
        for again in ["--resume-only", "--encrypt --reduce-device-size 8M --force --init-only"] {
            cut_start(&cutter, &image, &plain, sync, &passphrase);
            let begun = std::fs::read(&image).unwrap()[..512] != plain[..512];
            let open = crate::support::output(underseal().arg("info").arg(&link));
            let marked = String::from_utf8_lossy(&open.stderr).contains("cut off as it began");
            cut += u32::from(marked);
            assert!(begun || !marked, "{sync}");
            let mut command = underseal();
            command.current_dir("/").arg("reencrypt").arg(&link).args(again.split_whitespace());
            let again =
                crate::support::output(command.arg("--passphrase-file").arg(&passphrase).args(CHEAP_PBKDF2));
            if marked || !begun {
                let is_plain = std::fs::read(&image).unwrap()[..plain.len()] == plain;
                assert!(is_plain || again.status.success(), "{sync}: {again:?}");
                if is_plain {
                    continue;
                }
            }
            let mut read = underseal();
            read.arg("read").arg(&image).arg("--passphrase-file").arg(&passphrase);
            let read = crate::support::output(&mut read);
            assert!(read.status.success(), "{sync}: {read:?}");
            assert!(read.stdout[..plain.len()] == plain, "{sync}");
        }
    }
    assert!(cut >= 4, "some starts were cut off between the data and the header: {cut}");
    assert_eq!(std::fs::read(backup).unwrap(), b"an encrypted backup of a header");
}

/// An ext4 with blocks of this size in a file of 64 MiB, of which it takes 24.
fn ext4(scratch: &Scratch, block: &str) -> PathBuf {
    let image = scratch.sparse("ext4", 64 << 20);
    run(tool("mkfs.ext4").args(["-q", "-b", block]).arg(&image).arg("24M"));
    image
}

#[test]
fn sectors_are_never_larger_than_the_blocks_of_the_file_system() {
    let cheap = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    let scratch = Scratch::new();
    let image = ext4(&scratch, "1024");
    let plain = std::fs::read(&image).unwrap();
    let volume = Volume::at(&scratch, "ext4");
    let begin = format!("--encrypt --reduce-device-size 16M --force {cheap}");
    let refused =
        Ran::from(crate::support::output(&mut reencrypt(&volume, &format!("{begin} --sector-size 4096"))));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.err.contains("blocks of 1024 bytes") && refused.err.contains("--sector-size 1024"),
        "{refused:?}"
    );
    assert!(std::fs::read(&image).unwrap() == plain, "nothing was written");
    run(&mut reencrypt(&volume, &begin));
    assert!(dump(&image).contains("sector: 512"), "{}", dump(&image));
    // The volume holds a sound file system still.
    let read = scratch.file("read", &volume.read_all());
    run(tool("e2fsck").args(["-f", "-n"]).arg(read));
    // The same check applies to a new sector size of an encrypted volume.
    let refused = Ran::from(crate::support::output(&mut reencrypt(
        &volume,
        "--sector-size 4096 --force-offline-reencrypt",
    )));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("blocks of 1024 bytes"), "{refused:?}");
    run(&mut reencrypt(&volume, "--sector-size 1024"));
    assert!(dump(&image).contains("sector: 1024"), "{}", dump(&image));
}

#[test]
fn sectors_become_larger_under_what_can_take_them_or_on_demand() {
    let scratch = Scratch::new();
    let (volume, _) =
        filled(&scratch, "sectors_become_larger_under_what_can_take_them", &["--sector-size", "512"]);
    let unknown = Ran::from(crate::support::output(&mut reencrypt(&volume, "--sector-size 4096")));
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.err.contains("--force-offline-reencrypt"), "{unknown:?}");
    assert!(dump(&volume.image).contains("sector: 512"));
    volume.write(0, &std::fs::read(ext4(&scratch, "4096")).unwrap()[..24 << 20]);
    run(&mut reencrypt(&volume, "--sector-size 2048"));
    assert!(dump(&volume.image).contains("sector: 2048"));
    volume.write(0, &[0; 1 << 20]);
    run(&mut reencrypt(&volume, "--sector-size 4096 --force-offline-reencrypt"));
    assert!(dump(&volume.image).contains("sector: 4096"));
}

#[test]
fn a_header_that_its_disk_has_no_room_for_is_not_there_afterwards() {
    let scratch = Scratch::new();
    if let Some(reason) = cannot_mount() {
        return skip("a full disk", reason);
    }
    let disk = Mount::tmpfs(&scratch.path("disk"), 128 << 10);
    let header = disk.directory().join("header");
    let luks = Volume::at(&scratch, "luks").format("24M", &[]);
    let plain = Volume::at(&scratch, "plain");
    scratch.file("plain", &bytes(1, 4 << 20));
    let cheap = CHEAP_PBKDF2.join(" ");
    for (volume, options) in
        [(luks, "--decrypt --force".into()), (plain, format!("--encrypt --force {cheap}"))]
    {
        let before = std::fs::read(&volume.image).unwrap();
        let begin = |header: &Path| reencrypt(&volume, &format!("{options} --header {}", text(header)));
        let refused = Ran::from(crate::support::output(&mut begin(&header)));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains(text(&header)), "{refused:?}");
        assert!(!header.exists() && std::fs::read(&volume.image).unwrap() == before);
        run(&mut begin(&scratch.path("elsewhere")));
        std::fs::remove_file(scratch.path("elsewhere")).unwrap();
    }
}
