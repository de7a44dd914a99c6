//! Under the kernel: a block device below, a file system above.

use super::*;
use crate::support::mounts::{Loop, Mount, cannot_mount, client, skip};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};

#[test]
fn a_block_device_is_reencrypted_by_a_server_in_its_sandbox() {
    if let Some(why) = cannot_mount() {
        return skip("all of it", why);
    }
    let operator = Operator::new();
    let (file, plain) = filled(&operator.scratch, "a_block_device_is_reencrypted", &[]);
    let device = Loop::attach(&file.image, &[]);
    let volume = Volume { image: device.device().to_owned(), ..file.clone() };
    let server = operator.serve(&volume, &["--name", "disk"]);
    let mut command = volume.command("reencrypt");
    run(command.env("UNDERSEAL_RUNTIME_DIR", operator.directory()));
    let log = server.stop();
    assert!(!log.contains("sandbox has refused"), "{log}");
    run(&mut reencrypt(&volume, ""));
    drop(device);
    assert_same(&file.read(0, plain.len()), &plain, "behind the device");
    run(&mut cryptsetup(&file, "open --test-passphrase"));
}

#[test]
fn an_ext4_under_fio_stays_sound_while_its_volume_is_reencrypted_twice() {
    if let Some(why) = cannot_mount() {
        return skip("all of it", why);
    }
    let operator = Operator::new();
    let volume = Volume::at(&operator.scratch, "image").format("112M", &[]);
    let disk = operator.scratch.file("disk", b"");
    let server = operator.serve(&volume, &["--fuse", text(&disk)]);
    run(client("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(&disk));
    {
        let device = Loop::attach(&disk, &[]);
        let mount = Mount::new(device.device(), &operator.scratch.path("mnt"), &[]);
        let begun = operator.scratch.path("begun");
        let mut fio = client("fio");
        fio.args(["--name=x", "--rw=randrw", "--bsrange=4k-64k", "--size=24m", "--numjobs=2", "--loops=50"])
            .args([
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--fsync=32",
                "--ioengine=psync",
                "--runtime=120",
            ])
            .arg(format!("--directory={}", text(mount.directory())))
            .arg(format!("--exec_prerun=touch {}", text(&begun)))
            // fio leaves the output of the command in its working folder.
            .current_dir(operator.scratch.folder());
        let mut fio = fio.stdout(std::process::Stdio::piped()).spawn().unwrap();
        // Interrupted while it still makes its files, fio prints no result.
        wait_until("fio has begun", PATIENCE, || begun.exists());
        for _ in 0..2 {
            let words = format!("reencrypt image --passphrase-file {}", text(&volume.passphrase));
            operator.does(&format!("{words} --rate 64M"));
        }
        assert!(fio.try_wait().unwrap().is_none(), "it ended too soon to be a test");
        // fio has verified its writes several times by now; the rest of its loops would only take
        // time.
        rustix::process::kill_process(rustix::process::Pid::from_child(&fio), rustix::process::Signal::INT)
            .unwrap();
        let mut ended = None;
        wait_until("fio has ended", PATIENCE, || {
            ended = fio.try_wait().unwrap();
            ended.is_some()
        });
        let mut said = String::new();
        std::io::Read::read_to_string(&mut fio.stdout.take().unwrap(), &mut said).unwrap();
        let jobs = said.matches("err=").count();
        assert!(jobs > 0 && jobs == said.matches("err= 0").count() && !said.contains("bad magic"), "{said}");
        drop(mount);
    }
    run(client("e2fsck").arg("-fn").arg(&disk));
    server.stop();
}
