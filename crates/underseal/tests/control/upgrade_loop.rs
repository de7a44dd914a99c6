//! A volume on a loop device that another process takes over: the file below it stays locked.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};

use underseal_device::{ErrorKind, lock_image};

use crate::control::operator::Operator;
use crate::support::mounts::{Loop, cannot_mount, skip};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::Volume;

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
