//! Everything that is done with a volume.

use crate::rbd::cluster::Image;
use crate::support::fio::verifying;
use crate::support::scratch::assert_same;
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, text, underseal};
use crate::support::{Scratch, Server, bytes, output, run, seed, tool};

#[test]
fn a_volume_is_made_written_served_and_read_again() {
    let Some((_scratch, image, volume)) = Image::with_volume(96, &[]) else { return };
    let info = run(underseal().arg("info").arg(&volume.image));
    assert!(info.contains("luks2"), "{info}");
    let mark = bytes(seed("mark"), 300_000);
    volume.write((1 << 20) + 777, &mark);
    assert_same(&volume.read((1 << 20) + 777, mark.len()), &mark, "what was written");

    let server = Server::start(&volume, &["--allow-discards"]);
    let name = image.path().replace("rbd/", "");
    let status = run(underseal().args(["status", &name]));
    assert!(status.contains("nbd+unix") && status.contains("seccomp, connections to any port"), "{status}");
    let mut fio = verifying(&server, 2, 16 << 20);
    fio.args(["--offset=4M", "--rw=randrw", "--fsync=32"]);
    run(fio.args(["--bsrange=4096-1M", "--blockalign=4096"]));
    run(tool("nbdcopy").arg(server.uri()).arg("null:"));
    let script = [
        "-f",
        "raw",
        "-c",
        "write -f -P 7 64k 64k",
        "-c",
        "write -z 128k 64k",
        "-c",
        "discard 8M 8M",
        "-c",
        "flush",
    ];
    run(tool("qemu-io").args(script).arg(server.uri()));
    let log = server.stop();
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
    assert_eq!(volume.read(64 << 10, 64 << 10), [7; 64 << 10]);
    assert_eq!(volume.read(128 << 10, 64 << 10), [0; 64 << 10]);
    assert_same(&volume.read((1 << 20) + 777, mark.len()), &mark, "what was written first");
}

#[test]
fn keyslots_header_and_sizes_are_changed_as_on_a_file() {
    let Some((scratch, _image, volume)) = Image::with_volume(48, &["--type", "luks1"]) else { return };
    let data = bytes(seed("keyslots"), 100_000);
    volume.write(4096, &data);
    let second = scratch.file("second", b"another one");
    let mut add = underseal();
    add.args(["keyslot", "add"]).arg(&volume.image).args(CHEAP_PBKDF2);
    run(add.arg("--passphrase-file").arg(&volume.passphrase).arg("--new-passphrase-file").arg(&second));
    run(underseal().args(["keyslot", "kill", "--force"]).arg(&volume.image).arg("0"));
    let changed = Volume { passphrase: second, ..volume.clone() };
    assert_same(&changed.read(4096, data.len()), &data, "with the new passphrase");
    assert_eq!(output(&mut volume.command("read")).status.code(), Some(3));

    run(underseal().args(["header", "convert", "--to", "luks2", "--force"]).arg(&volume.image));
    let backup = scratch.path("backup");
    run(underseal().args(["header", "backup"]).arg(&volume.image).arg(&backup));
    run(underseal().args(["header", "set", "--label", "far"]).arg(&volume.image));
    let info = run(underseal().arg("info").arg(&volume.image));
    assert!(info.contains("luks2"), "{info}");
    assert_same(&changed.read(4096, data.len()), &data, "converted");
    run(underseal().args(["header", "restore", "--force"]).arg(&volume.image).arg(&backup));
    assert_same(&changed.read(4096, data.len()), &data, "restored");
}

#[test]
fn a_volume_is_encrypted_anew_where_it_lies() {
    let Some((_scratch, _image, volume)) = Image::with_volume(40, &[]) else { return };
    let data = bytes(seed("reencrypt"), 1 << 20);
    volume.write(0, &data);
    run(volume.command("reencrypt").args(["-q"]).args(CHEAP_PBKDF2));
    assert_same(&volume.read(0, data.len()), &data, "under another key");
}

/// An image formatted by librbd has an ordinary LUKS header; the image has the same bytes as a
/// file.
#[test]
fn what_librbd_formatted_opens_here_and_as_a_file() {
    let scratch = Scratch::new();
    for format in ["luks1", "luks2"] {
        let Some(image) = Image::new(48) else { return };
        let volume = image.volume(&scratch, "");
        run(image.rbd("encryption").arg("format").arg(image.path()).arg(format).arg(&volume.passphrase));
        let info = run(underseal().arg("info").arg(&volume.image));
        assert!(info.contains(format) && info.contains("aes-xts-plain64"), "{info}");
        let data = bytes(seed(format), 5 << 20);
        // The test opens the volume rarely, since each opening derives a key at the cost that
        // librbd gave its header.
        volume.write(12_288, &data);
        let file = scratch.path(format);
        run(image.rbd("export").arg("--no-progress").arg(image.path()).arg(&file));
        let exported = Volume { image: file, ..volume };
        assert_same(&exported.read(12_288, data.len()), &data, format);
    }
}

#[test]
fn an_image_with_our_header_is_the_same_bytes_for_ceph() {
    let scratch = Scratch::new();
    let file = Volume::luks2(&scratch, "40M");
    let data = bytes(seed("import"), 2 << 20);
    file.write(0, &data);
    let Some(image) = Image::of(&file.image) else { return };
    assert_same(&image.volume(&scratch, "").read(0, data.len()), &data, "as it was imported");
    // The header is detached, in another file.
    let apart = scratch.path("apart");
    let other = Image::new(8).unwrap();
    let volume = other.volume(&scratch, "").with(["--header", text(&apart)]);
    let mut format = underseal();
    format.args(["format", "-q", "--header", text(&apart)]).arg(&volume.image).args(CHEAP_PBKDF2);
    run(format.arg("--passphrase-file").arg(scratch.file("new", PASSPHRASE.as_bytes())));
    volume.write(0, &data);
    assert_same(&volume.read(0, data.len()), &data, "a detached header");
}

/// A new image holds nothing, and shows holes where it has a map of its objects.
#[test]
fn holes_are_told_of() {
    let Some((_scratch, _image, volume)) = Image::with_volume(64, &[]) else { return };
    volume.write(20 << 20, &[1; 4096]);
    let server = Server::start(&volume, &[]);
    let map = run(tool("nbdinfo").args(["--map", "--totals"]).arg(server.uri()));
    assert!(map.contains("data") && map.contains("hole"), "{map}");
    server.stop();
}
