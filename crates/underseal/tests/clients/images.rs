//! LUKS images that other programs made or changed, and ours in other programs.

use std::path::Path;

use crate::support::scratch::assert_same;
use crate::support::volume::{CHEAP_PBKDF2, Volume, text};
use crate::support::{Scratch, bytes, run, seed, tool};

/// qemu's options for a LUKS image.
fn qemu_options(volume: &Volume) -> [String; 2] {
    [
        format!("secret,id=key,file={}", text(&volume.passphrase)),
        format!("driver=luks,key-secret=key,file.driver=file,file.filename={}", text(&volume.image)),
    ]
}

/// The plain bytes as qemu-img reads them.
fn qemu_reads(volume: &Volume, to: &Path) -> Vec<u8> {
    let [secret, image] = qemu_options(volume);
    run(tool("qemu-img").args([
        "convert",
        "--object",
        &secret,
        "--image-opts",
        &image,
        "-O",
        "raw",
        text(to),
    ]));
    std::fs::read(to).unwrap()
}

#[test]
fn a_luks_image_that_qemu_made_is_read_and_written_as_qemu_does() {
    let scratch = Scratch::new();
    let seed = seed("qemu luks");
    for (i, cipher) in [
        "cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64,hash-alg=sha256",
        "cipher-alg=aes-128,cipher-mode=xts,ivgen-alg=plain64,hash-alg=sha512",
        "cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256,hash-alg=sha1",
    ]
    .into_iter()
    .enumerate()
    {
        let volume = Volume::at(&scratch, &format!("qemu{i}.img"));
        let [secret, image] = qemu_options(&volume);
        let options = format!("key-secret=key,iter-time=10,{cipher}");
        run(tool("qemu-img")
            .args(["create", "-q", "-f", "luks", "--object", &secret, "-o", &options])
            .args([text(&volume.image), "4M"]));
        let plain = scratch.file("plain", &bytes(seed, 4 << 20));
        run(tool("qemu-img").args(["convert", "-n", "-f", "raw", "--object", &secret]).args([
            "--target-image-opts",
            text(&plain),
            &image,
        ]));
        let read = volume.read_all();
        assert_same(&read, &std::fs::read(&plain).unwrap(), cipher);
        volume.write(12_345, &bytes(!seed, 1 << 20));
        let mut expected = read;
        expected[12_345..][..1 << 20].copy_from_slice(&bytes(!seed, 1 << 20));
        assert_same(&qemu_reads(&volume, &scratch.path("back")), &expected, cipher);
    }
}

#[test]
fn our_luks1_volume_is_read_by_qemu_img_and_qemu_nbd_and_nbdkit() {
    let scratch = Scratch::new();
    let volume = Volume::at(&scratch, "image").format("8M", &["--type", "luks1"]);
    let len = usize::try_from(volume.size()).unwrap();
    let plain = bytes(seed("luks1"), len);
    volume.write(0, &plain);
    assert_same(&qemu_reads(&volume, &scratch.path("by-qemu-img")), &plain, "qemu-img");

    let (socket, pid, back) = (scratch.path("q"), scratch.path("q.pid"), scratch.path("by-qemu-nbd"));
    let [secret, image] = qemu_options(&volume);
    // qemu-nbd returns when it listens; its server ends with its only client.
    run(tool("qemu-nbd")
        .args(["--fork", "--read-only", "--object", &secret, "--socket", text(&socket)])
        .args(["--pid-file", text(&pid), "--image-opts", &image]));
    run(tool("nbdcopy").args([format!("nbd+unix:///?socket={}", text(&socket)), text(&back).into()]));
    assert_same(&std::fs::read(back).unwrap(), &plain, "qemu-nbd");

    let back = scratch.path("by-nbdkit");
    run(tool("nbdkit").args(["--readonly", "-U", "-", "--filter=luks", "file", text(&volume.image)]).args([
        format!("passphrase=+{}", text(&volume.passphrase)),
        "--run".into(),
        format!("nbdcopy \"$uri\" {}", text(&back)),
    ]));
    assert_same(&std::fs::read(back).unwrap(), &plain, "nbdkit's luks filter");
}

#[test]
fn nbdkit_and_qemu_write_our_luks1_volume_and_we_read_it() {
    let scratch = Scratch::new();
    let volume = Volume::at(&scratch, "image").format("8M", &["--type", "luks1"]);
    let len = usize::try_from(volume.size()).unwrap();
    let seed = seed("luks1 written");
    let first = bytes(seed, len);
    let plain = scratch.file("plain", &first);
    run(tool("nbdkit").args(["-U", "-", "--filter=luks", "file", text(&volume.image)]).args([
        format!("passphrase=+{}", text(&volume.passphrase)),
        "--run".into(),
        format!("nbdcopy --flush {} \"$uri\"", text(&plain)),
    ]));
    assert_same(&volume.read_all(), &first, "nbdkit");

    let second = bytes(!seed, len);
    std::fs::write(&plain, &second).unwrap();
    let [secret, image] = qemu_options(&volume);
    run(tool("qemu-img").args(["convert", "-n", "-f", "raw", "--object", &secret]).args([
        "--target-image-opts",
        text(&plain),
        &image,
    ]));
    assert_same(&volume.read_all(), &second, "qemu-img");
}

#[test]
fn a_volume_of_ours_that_cryptsetup_reencrypts_is_read_as_before() {
    let scratch = Scratch::new();
    // From which sector size, to what.
    for (i, (sector, options)) in [
        ("512", &["--cipher", "aes-cbc-essiv:sha256", "--key-size", "256"][..]),
        ("512", &["--sector-size", "4096"]),
        ("4096", &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let volume = Volume::at(&scratch, &format!("image{i}")).format("20M", &["--sector-size", sector]);
        let plain = bytes(seed("reencrypt"), usize::try_from(volume.size()).unwrap());
        volume.write(0, &plain);
        let before = std::fs::read(&volume.image).unwrap();
        run(tool("cryptsetup")
            .args(["reencrypt", "--batch-mode", "--force-offline-reencrypt", "--disable-locks"])
            .args(["--key-file", text(&volume.passphrase)])
            .args(CHEAP_PBKDF2)
            .args(options)
            .arg(&volume.image));
        let after = std::fs::read(&volume.image).unwrap();
        assert_ne!(before[16 << 20..][..4096], after[16 << 20..][..4096], "nothing was reencrypted");
        assert_same(&volume.read_all(), &plain, &format!("sectors of {sector}, then {options:?}"));
    }
}
