//! A volume on a loop device that another process takes over: the file below it stays locked.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};

use underseal_device::{ErrorKind, lock_image};

use crate::control::operator::Operator;
use crate::support::mounts::{Loop, cannot_mount, skip};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{CHEAP_PBKDF2, Volume, underseal};
use crate::support::{fails, run};

#[test]
fn the_file_below_a_loop_device_is_locked_by_the_new_server_too() {
    if let Some(reason) = cannot_mount() {
        return skip("the_file_below_a_loop_device_is_locked_by_the_new_server_too", reason);
    }
    let operator = Operator::new();
    let volume = Volume::luks2(&operator.scratch, "48M");
    let device = Loop::attach(&volume.image, &[]);
    let on_loop = Volume { image: device.device().into(), ..volume.clone() };
    let server = operator.serve(&on_loop, &["--hand-over", "--name", "image"]);
    let is_locked = || {
        let file = File::options().read(true).write(true).open(&volume.image).unwrap();
        lock_image(&file, "the file", true).is_err_and(|e| e.kind() == ErrorKind::Locked)
    };
    assert!(is_locked());
    for _ in 0..2 {
        let old = operator.pid();
        let program = format!("/proc/{old}/exe");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let always = scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    assert!(is_locked(), "no other program gets the file meanwhile");
                }
            });
            operator.does("upgrade image");
            assert_ne!(operator.pid(), old);
            wait_until("the old server is gone", PATIENCE, || fs::read_link(&program).is_err());
            ended.store(true, Ordering::SeqCst);
            always.join().unwrap();
        });
        assert!(is_locked());
    }
    operator.does("close image");
    wait_until("the file is free", PATIENCE, || !is_locked());
    drop(server);
}

#[test]
fn the_file_at_the_bottom_of_two_loop_devices_is_locked() {
    if let Some(reason) = cannot_mount() {
        return skip("the_file_at_the_bottom_of_two_loop_devices_is_locked", reason);
    }
    let operator = Operator::new();
    let volume = Volume::luks2(&operator.scratch, "48M");
    let lower = Loop::attach(&volume.image, &[]);
    let upper = Loop::attach(lower.device(), &[]);
    let on = |device: &Loop| Volume { image: device.device().into(), ..volume.clone() };
    let open = |on: &Volume| {
        let mut open = operator.command("open");
        let socket = operator.scratch.path("second");
        open.arg(&on.image).args(["--name", "second", "--nbd", &format!("unix:{}", socket.display())]);
        let (status, said) = fails(open.arg("--passphrase-file").arg(&on.passphrase));
        assert_eq!(status, 4, "{said}");
    };
    let server = operator.serve(&on(&upper), &["--hand-over", "--name", "image"]);
    for _ in 0..2 {
        open(&volume);
        open(&on(&lower));
        operator.does("upgrade image");
    }
    operator.does("close image");
    drop(server);
    let server = operator.serve(&volume, &["--name", "image"]);
    open(&on(&upper));
    server.stop();
}

/// As partitions of a disk's image are.
#[test]
fn two_parts_of_a_file_are_two_images() {
    if let Some(reason) = cannot_mount() {
        return skip("two_parts_of_a_file_are_two_images", reason);
    }
    let operator = Operator::new();
    let disk = operator.scratch.file("disk", &vec![0; 72 << 20]);
    let part = |offset: u64| {
        let (offset, size) = ((offset << 20).to_string(), (32 << 20).to_string());
        Loop::attach(&disk, &["--offset", &offset, "--sizelimit", &size])
    };
    let [first, again, second] = [1, 1, 33].map(part);
    let volume =
        |device: &Loop| Volume { image: device.device().into(), ..Volume::at(&operator.scratch, "part") };
    for device in [&first, &second] {
        let mut format = underseal();
        format.args(["format", "-q", "--force"]).arg(device.device()).args(CHEAP_PBKDF2);
        run(format.arg("--passphrase-file").arg(&volume(device).passphrase));
    }
    let refused = |image: &std::path::Path| {
        let mut open = operator.command("open");
        open.arg(image).args(["--name", "other", "--nbd", "unix:other.nbd"]);
        let (status, said) = fails(open.arg("--passphrase-file").arg(&volume(&first).passphrase));
        assert_eq!(status, 4, "{said}");
    };
    let server = operator.serve(&volume(&first), &["--hand-over", "--name", "image"]);
    let beside = operator.serve(&volume(&second), &["--name", "second"]);
    for _ in 0..2 {
        refused(again.device());
        refused(&disk);
        operator.does("upgrade image");
    }
    operator.does("close image");
    drop(server);
    operator.serve(&volume(&again), &["--name", "image"]).stop();
    beside.stop();
}
