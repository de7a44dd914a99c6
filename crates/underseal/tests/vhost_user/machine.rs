//! A virtual machine whose disk the volume is: QEMU with a Debian kernel, in software.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::control::operator::Operator;
use crate::guest::{Guest, MEMORY, TWO_PROCESSORS};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, run};
use crate::vhost_user::disk::serve;

/// A machine with the device of this socket, which it comes back to when the server does.
fn machine<'s>(scratch: &'s Scratch, socket: &std::path::Path) -> Guest<'s> {
    let mut guest = Guest::new(scratch);
    guest.modules(&["virtio_blk"]);
    let memory = format!("memory-backend-memfd,id=ram,size={MEMORY},share=on");
    let channel = format!("socket,id=disk,path={},reconnect=1", text(socket));
    guest.hardware(&["-object", &memory, "-machine", "memory-backend=ram", "-chardev", &channel]);
    guest.hardware(&["-device", "vhost-user-blk-pci,chardev=disk,num-queues=2"]);
    guest
}

#[test]
fn a_machine_whose_plug_is_pulled_finds_its_files_again() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "200M");
    let (server, socket) = serve(&volume, &["--allow-discards"]);
    let mut first = machine(&scratch, &socket);
    first.hardware(&TWO_PROCESSORS);
    first.task("fill", FILL);
    let mut running = first.start();
    running.wait_for("synced");
    // Amid the writes that follow.
    thread::sleep(Duration::from_secs(2));
    running.kill();
    drop(running);
    let mut second = machine(&scratch, &socket);
    second.task("check", CHECK);
    second.boot();
    server.stop();
}

/// The disk has the announced properties; then a filesystem on it, files that are on stable
/// storage, and more that are not.
const FILL: &str = "
[ $(cat /sys/block/vda/serial) = image ]
[ $(blockdev --getss /dev/vda) = 4096 ]
[ $(ls /sys/block/vda/mq | wc -l) = 2 ]
[ $(cat /sys/block/vda/queue/discard_max_bytes) -gt 0 ]
mkfs.ext4 -q /dev/vda
mount /dev/vda /mnt
cp -r /usr/share/doc/util-linux /usr/bin/bash /mnt/
sync -f /mnt
touch synced
while :; do
    cp /usr/bin/bash /mnt/more
    sync -f /mnt
    fstrim /mnt
    rm /mnt/more
done
";

const CHECK: &str = "
mount /dev/vda /mnt
diff -r /usr/share/doc/util-linux /mnt/util-linux
cmp /usr/bin/bash /mnt/bash
umount /mnt
e2fsck -fn /dev/vda
";

#[test]
fn a_machine_goes_on_when_its_disks_server_is_killed_and_comes_back() {
    let operator = Operator::new();
    let scratch = &operator.scratch;
    let socket = scratch.path("vm");
    let options = ["--vhost-user", text(&socket)];
    let (volume, mut server) = operator.open(&options);
    let mut guest = machine(scratch, &socket);
    guest.hardware(&TWO_PROCESSORS);
    guest.task("load", LOAD);
    let mut running = guest.start();
    running.wait_for("begun");
    for round in 0..5 {
        thread::sleep(Duration::from_millis(700 + 300 * round));
        // Now and then it is certain that requests are in flight.
        let held = round % 3 == 1;
        if held {
            operator.does("suspend image");
            let in_flight = || operator.status("image")["in_flight"].as_u64().unwrap();
            wait_until("the machine has asked for something", PATIENCE, || in_flight() > 0);
        }
        server.kill();
        // In every second round the machine also finds a socket on which no process listens.
        thread::sleep(Duration::from_millis(700 * (round % 2)));
        server = operator.serve(&volume, &options);
        if held {
            let again = || server.log().contains("are done again");
            wait_until("what was in flight is done again", PATIENCE, again);
        }
    }
    fs::write(scratch.path("enough"), "").unwrap();
    running.finish();
    server.stop();
}

#[test]
fn a_machine_does_not_notice_that_another_process_has_its_disk() {
    let operator = Operator::new();
    let scratch = &operator.scratch;
    let socket = scratch.path("vm");
    let (_volume, server) = operator.open(&["--hand-over", "--vhost-user", text(&socket)]);
    let mut guest = machine(scratch, &socket);
    guest.hardware(&TWO_PROCESSORS);
    guest.task("load", LOAD);
    let mut running = guest.start();
    running.wait_for("begun");
    for round in 0..4 {
        thread::sleep(Duration::from_millis(700 + 200 * round));
        let before = operator.pid();
        operator.does("upgrade image");
        assert_ne!(operator.pid(), before);
    }
    // The next one is asked by the machine, too.
    let requests = || operator.status("image")["requests"]["write"]["requests"].as_u64().unwrap();
    wait_until("the machine writes", PATIENCE, || requests() > 0);
    fs::write(scratch.path("enough"), "").unwrap();
    running.finish();
    operator.does("close image");
    drop(server);
}

/// Writes bursts of 64 requests and verifies them until it is enough, then some more without being
/// disturbed. Between two bursts the machine, whose processors are emulated, has nothing to do.
const LOAD: &str = "
fio='fio --name=load --filename=/dev/vda --ioengine=libaio --direct=1 --iodepth=16 --rw=randwrite --bsrange=4k-64k
    --size=8M --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output=load.fio'
$fio --loops=1000000 --verify_backlog=64 --thinktime=500ms --thinktime_blocks=64 &
load=$!
{ set +x; } 2> /dev/null
until read -r _ _ _ _ writes _ < /sys/block/vda/stat && [ $writes -gt 0 ]; do kill -0 $load; sleep 0.1; done
touch begun
until [ -e enough ]; do kill -0 $load; sleep 0.5; done
set -x
kill -INT $load
status=0
wait $load || status=$?
# fio's, when a signal ends it.
[ $status = 128 ]
$fio
";

#[test]
fn a_machine_does_not_notice_that_its_disk_is_reencrypted_twice() {
    let operator = Operator::new();
    let scratch = &operator.scratch;
    let socket = scratch.path("vm");
    let (volume, server) = operator.open(&["--vhost-user", text(&socket)]);
    let mut guest = machine(scratch, &socket);
    guest.task("load", LOAD);
    let mut running = guest.start();
    running.wait_for("begun");
    // Salts and digests are others under another key.
    let digest = || {
        let mut info = underseal();
        let info: serde_json::Value =
            serde_json::from_str(&run(info.args(["info", "--json"]).arg(&volume.image))).unwrap();
        info["digests"].to_string()
    };
    let mut digests = vec![digest()];
    for _ in 0..2 {
        let passphrase = text(&volume.passphrase);
        // A quarter of the time passes in what the machine writes to, which takes more than one
        // burst.
        let options = format!("--force --rate 8M --passphrase-file {passphrase}");
        let told = operator.does(&format!("reencrypt image {options}"));
        assert!(told.contains("image: done"), "{told}");
        digests.push(digest());
    }
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 3, "the key is another one each time");
    fs::write(scratch.path("enough"), "").unwrap();
    running.finish();
    server.stop();
}
