//! Properties of the machine on which every test relies.

use std::fs;

use crate::guest::Guest;
use crate::support::Scratch;
use crate::support::scratch::assert_same;
use crate::support::volume::{Volume, text};

#[test]
fn a_machine_runs_our_command_its_plug_is_pulled_and_it_boots_again() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "20M");
    volume.write(8192, b"from outside");
    let mut guest = Guest::new(&scratch);
    guest
        .hardware(&["-object", &format!("memory-backend-memfd,id=m,size={},share=on", crate::guest::MEMORY)]);
    guest.hardware(&["-machine", "memory-backend=m"]);
    let (ours, image, pass) =
        (env!("CARGO_BIN_EXE_underseal"), text(&volume.image), text(&volume.passphrase));
    guest.task(
        "both",
        &format!(
            "{ours} read {image} --passphrase-file {pass} --offset 8192 --length 12 -o part
             mv part inside
             until [ -e go ]; do sleep 0.1; done
             loop=$(losetup --find --show {image})
             cryptsetup open --key-file {pass} $loop crypt
             cmp -n 12 -i 8192:0 /dev/mapper/crypt inside
             cryptsetup close crypt
             losetup --detach $loop"
        ),
    );
    let mut machine = guest.start();
    machine.wait_for("inside");
    assert_same(&fs::read(scratch.path("inside")).unwrap(), b"from outside", "what was read inside");
    machine.kill();
    assert!(!scratch.path("both.status").exists());
    scratch.file("go", b"");
    guest.boot();
}

#[test]
#[should_panic(expected = "== second: status \"3\"")]
fn a_task_that_fails_fails_the_test() {
    let scratch = Scratch::new();
    let mut guest = Guest::without_hardware(&scratch);
    guest.task("first", "true");
    guest.task("second", "exit 3");
    guest.boot();
}
