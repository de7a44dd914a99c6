//! Hostile callers, processes that are killed.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::process::{Signal, kill_process};

use crate::dm::killed::servers;
use crate::dm::mapper::Mapper;
use crate::support::volume::{Volume, text};
use crate::support::{Server, output, tool};

#[test]
fn callers_that_say_nonsense_are_refused_and_others_served() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script("dmsetup create $N-a --table '0 8 zero'");
    let connect = || UnixStream::connect(mapper.folder().join("control")).unwrap();
    let ask = |request: u32, len: u32, bytes: &[u8]| {
        let mut socket = connect();
        socket.write_all(&[request.to_ne_bytes(), len.to_ne_bytes()].concat()).unwrap();
        socket.write_all(bytes).unwrap();
        let mut head = [0; 8];
        socket.read_exact(&mut head).unwrap();
        u32::from_ne_bytes(head[..4].try_into().unwrap())
    };
    let [invalid, not_known, too_long] = [22_u32, 25, 12];
    assert_eq!(ask(0xc138_fd00, 0, &[]), invalid);
    assert_eq!(ask(0xc138_fd00, 312, &[0xff; 312]), invalid);
    assert_eq!(ask(0xc138_4c00, 312, &[0; 312]), not_known);
    assert_eq!(ask(0xc138_fd00, u32::MAX, &[]), too_long);
    // Callers that go in the middle of a request, and one that stays there.
    for bytes in [&b""[..], b"abc", &[0; 8], &[0xff; 8]] {
        connect().write_all(bytes).unwrap();
    }
    let mut stays = connect();
    stays.write_all(&[1, 2, 3]).unwrap();
    mapper.script("dmsetup info $N-a; dmsetup remove $N-a");
}

/// Asks for a table with its key over each connection that it has, as another user; and over one
/// that it makes as root. Prints what came back.
const STEALS: &str = r#"
import os, socket, struct, sys
folder, name = sys.argv[1].encode(), sys.argv[2].encode()
kept = os.open("/dev/mapper/control", os.O_RDWR)
raw = socket.socket(socket.AF_UNIX)
raw.connect(folder + b"/control")
if sys.argv[3] == "drop": os.setresuid(65534, 65534, 65534)
request = bytearray(16384)
struct.pack_into("=IIIIIIiI", request, 0, 4, 0, 0, 16384, 312, 0, 0, 16)
request[48:48 + len(name)] = name
found = 0
for fd in range(3, 32):
    try:
        one = socket.socket(fileno=fd); peer = one.getpeername()
    except OSError:
        continue
    if not os.fsdecode(peer).endswith("control"): continue
    found += 1
    one.settimeout(3)
    try:
        one.sendall(struct.pack("=II", 0xc138fd0c, len(request)) + request)
        answer = one.recv(8)
    except OSError as e:
        answer = b""
    print("answered" if answer[:4] == bytes(4) else "nothing")
print(found)
"#;

#[test]
fn a_connection_does_not_outlive_its_owners_rights() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.scratch.file("steals.py", STEALS.as_bytes());
    mapper.script("dmsetup create $N-a --table '0 8 zero'");
    let ran =
        |how: &str| mapper.script(&format!("python3 steals.py {} $N-a {how}", mapper.folder().display()));
    // Root's own connection is answered; the inherited one and the node's never are.
    assert_eq!(ran("stay"), "nothing\nnothing\nanswered\n3\n");
    assert_eq!(ran("drop"), "nothing\nnothing\nnothing\n3\n");
    assert!(mapper.log().contains("of user 65534"), "{}", mapper.log());
    mapper.script("dmsetup remove $N-a");
}

#[test]
fn a_table_over_itself_and_a_lower_device_that_is_not_there_are_refused() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
dmsetup create $N-a --table '0 8 zero'
fails dmsetup reload $N-a --table \"0 8 linear /dev/mapper/$N-a 0\" 2> /dev/null
fails dmsetup create $N-b --table '0 8 linear /nowhere 0' 2> /dev/null
fails dmsetup create $N-b --table '0 8 linear 7:65000 0' 2> /dev/null
fails dmsetup create $N-b --table '0 8 snapshot 7:0 7:1 P 8' 2> /dev/null
dmsetup remove $N-a
test \"$(dmsetup ls)\" = 'No devices found'",
    );
    assert!(mapper.log().contains("Device lookup failed"), "{}", mapper.log());
}

#[test]
fn devices_of_a_killed_back_end_go_on_and_the_next_one_has_them() {
    let Some(mapper) = Mapper::new() else { return };
    // A writer that records each block that is on disk in a separate file.
    mapper.scratch.file(
        "writer.py",
        b"
import mmap, os, sys, time
disk = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
done = os.open('done', os.O_WRONLY | os.O_CREAT)
for block in range(int(sys.argv[2])):
    page[:8] = block.to_bytes(8, 'little')
    assert os.pwrite(disk, page, block * 4096) == 4096
    os.fdatasync(disk)
    os.pwrite(done, str(block + 1).encode(), 0)
    if os.path.exists('stop'): break
",
    );
    mapper.script(
        "
truncate --size 1G disk.img; truncate --size 32M low.img
printf pass | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 disk.img -
printf pass | cryptsetup open --disable-keyring disk.img $N-x -
dmsetup create $N-y --uuid U-$N --table \"0 4096 crypt aes-xts-plain64 $(printf %064d 7) 0 $(losetup --find --show low.img) 0\"
dmsetup suspend $N-y
dmsetup table --showkeys > tables
dmsetup info --columns --noheadings -o name,uuid,attr > infos
# More blocks than a fast machine writes before the file `stop` is there.
python3 writer.py /dev/mapper/$N-x 250000 > writer.log 2>&1 &
while test ! -s done; do sleep 0.05; done",
    );
    let before = mapper.back_end().expect("a back end");
    rustix::process::kill_process(before, rustix::process::Signal::KILL).unwrap();
    // The next command starts another back end, which has the same devices.
    let out = mapper.script(
        "
at=$(cat done)
dmsetup table --showkeys | cmp - tables
dmsetup info --columns --noheadings -o name,uuid,attr | cmp - infos
test \"$(dmsetup info -c --noheadings -o open $N-x)\" -ge 1
fails cryptsetup close $N-x 2> /dev/null
sleep 0.3; test $(cat done) -gt $at
# Another table takes the place of a table of the other back end's, under the writer.
dmsetup table --showkeys $N-x > table
dmsetup reload $N-x table; dmsetup resume $N-x
at=$(cat done); sleep 0.3; test $(cat done) -gt $at
touch stop
while fuser -s /dev/mapper/$N-x 2> /dev/null; do sleep 0.05; done
cat writer.log
low=$(dmsetup deps -o blkdevname $N-y | sed 's/.*(//; s/)//')
dmsetup resume $N-y
dmsetup remove $N-y
losetup --detach /dev/$low
cryptsetup close $N-x
dmsetup ls
test ! -e /dev/mapper/$N-x
printf pass | cryptsetup open disk.img $N-x -
python3 -c '
import sys
done = int(open(\"done\").read())
with open(sys.argv[1], \"rb\") as disk:
    for block in range(done):
        assert int.from_bytes(disk.read(4096)[:8], \"little\") == block, block
print(\"all\")' /dev/mapper/$N-x
cryptsetup close $N-x",
    );
    assert_eq!(out, "No devices found\nall\n", "{}", mapper.log());
    assert_ne!(mapper.back_end(), Some(before));
}

#[test]
fn a_device_whose_table_server_was_killed_with_the_back_end_is_given_up() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script("dmsetup create $N-a --table '0 4096 zero'; dmsetup create $N-b --table '0 4096 zero'");
    let back_end = mapper.back_end().expect("a back end");
    // Kills one of the two servers too.
    let pids = servers(&mapper);
    assert_eq!(pids.len(), 2);
    for pid in [pids[0], back_end] {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let out =
        mapper.script("dmsetup ls | wc -l; ls /dev/mapper | grep -c $N; dmsetup remove $(dmsetup ls | cut --fields 1); dmsetup ls");
    assert_eq!(out, "1\n1\nNo devices found\n", "{}", mapper.log());
}

/// The kernel's users of a device are in no list: another loop device, or a program in another PID
/// namespace.
#[test]
fn a_device_that_the_kernel_uses_stays_live_when_it_cannot_be_removed() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
dmsetup create $N-a --table '0 2048 zero'
upper=$(losetup --find --show /dev/mapper/$N-a)
trap 'losetup --detach $upper' EXIT
dmsetup info --columns --noheadings -o open $N-a
code=0; dmsetup remove --noudevsync $N-a 2> /dev/null || code=$?; echo $code
cat /sys/dev/block/$(stat --dereference --format %Hr:%Lr /dev/mapper/$N-a)/loop/autoclear
losetup --detach $upper
trap - EXIT
sleep 0.2
blockdev --getsz /dev/mapper/$N-a
dmsetup remove $N-a",
    );
    assert_eq!(out, "1\n1\n0\n2048\n", "{}", mapper.log());
}

/// A loop device is a number: once it is free for a moment, another program may have it.
#[test]
fn a_loop_device_that_another_program_has_taken_is_left_to_it() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
truncate --size 4M other.img
dmsetup create $N-a --table '0 2048 zero'
loop=/dev/loop$(stat --dereference --format %Lr /dev/mapper/$N-a)
losetup --detach $loop
losetup $loop other.img
trap 'losetup --detach $loop' EXIT
dmsetup remove $N-a
test ! -e /dev/mapper/$N-a
losetup --noheadings --output BACK-FILE $loop | sed 's,.*/,,'",
    );
    assert_eq!(out, "other.img\n", "{}", mapper.log());
}

#[test]
fn a_deferred_removal_takes_the_name_away_that_the_device_has_by_then() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
dmsetup create $N-x --table '0 2048 zero'
exec 3< /dev/mapper/$N-x
dmsetup remove --deferred $N-x
dmsetup rename $N-x $N-y
exec 3<&-
tries=100; while dmsetup info $N-y > /dev/null 2>&1; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
test ! -e /dev/mapper/$N-x
test ! -e /dev/mapper/$N-y",
    );
}

/// Two back ends share /dev/mapper.
#[test]
fn another_back_end_s_name_is_in_use() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script("dmsetup create $N-a --table '0 2048 zero'");
    let before = fs::metadata(format!("/dev/mapper/{}", mapper.name("a"))).unwrap().rdev();
    let second = mapper.beside();
    let refused = second.try_script("dmsetup create $N-a --table '0 8 zero'");
    assert!(!refused.status.success(), "{refused:?}");
    assert!(second.log().contains("is another program's"), "{}", second.log());
    let after = fs::metadata(format!("/dev/mapper/{}", mapper.name("a"))).unwrap().rdev();
    assert_eq!(before, after);
    mapper.script("test $(blockdev --getsz /dev/mapper/$N-a) = 2048; dmsetup remove $N-a");
}

/// `open` and a table over a loop device on the same file.
#[test]
fn one_image_has_one_writer_through_tables_and_servers() {
    let Some(mapper) = Mapper::new() else { return };
    let volume = Volume::luks2(&mapper.scratch, "17M");
    let [image, passphrase] = [text(&volume.image), text(&volume.passphrase)];
    let open = format!("cryptsetup open --key-file {passphrase} {image} $N-p");
    let server = Server::start(&volume, &[]);
    let refused = mapper.try_script(&open);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(mapper.log().contains("in use by another program"), "{}", mapper.log());
    server.stop();
    mapper.script(&open);
    let ran = output(volume.command("open").args(["--name", "second", "--daemon"]));
    assert_eq!(ran.status.code(), Some(4), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("in use"), "{ran:?}");
    mapper.script("cryptsetup close $N-p");
    Server::start(&volume, &[]).stop();
}

/// An unfinished reencryption of an image without a header: the file beside the image tells of it.
#[test]
fn an_image_in_the_middle_of_a_reencryption_takes_no_table() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        r#"
truncate -s 1M image; touch state
device=$(losetup --find --show image); trap 'losetup --detach $device' EXIT
echo '{"underseal reencryption marker":1,"identity":"67e55044-10b1-426f-9247-bb680e5fe0c8","state":"'$PWD/state'"}' \
    > image.underseal-state
fails dmsetup create $N-a --table "0 8 linear $device 0" 2> /dev/null
rm image.underseal-state
dmsetup create $N-a --table "0 8 linear $device 0"; dmsetup remove $N-a"#,
    );
    assert!(mapper.log().contains("in the middle of a reencryption"), "{}", mapper.log());
}

#[test]
fn a_device_whose_server_was_killed_is_removed_whole() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script("dmsetup create $N-a --table '0 2048 zero'");
    let servers = servers(&mapper);
    assert_eq!(servers.len(), 1, "{servers:?}");
    kill_process(servers[0], Signal::KILL).unwrap();
    mapper.script(
        "
dmsetup remove $N-a
dmsetup create $N-b --table '0 4096 zero'
test $(blockdev --getsz /dev/mapper/$N-b) = 4096
dmsetup remove $N-b",
    );
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(text(&mapper.folder())), "{mounts}");
}

#[test]
fn more_callers_than_descriptors_are_sent_away_and_later_ones_served() {
    let Some(mapper) = Mapper::new() else { return };
    let limited = |script: &str| {
        let command = mapper.command(&["sh", "-euc", script]);
        let program = command.get_program().to_owned();
        let mut limited = tool("prlimit");
        limited.arg("--nofile=64:64").arg(program).args(command.get_args());
        limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        output(limited.env("N", mapper.name("")))
    };
    let made = limited("dmsetup create ${N}a --table '0 8 zero'");
    assert!(made.status.success(), "{made:?}");
    let callers: Vec<_> =
        (0..100).map(|_| UnixStream::connect(mapper.folder().join("control")).unwrap()).collect();
    std::thread::sleep(std::time::Duration::from_millis(500));
    drop(callers);
    mapper.script("dmsetup info $N-a > info; dmsetup remove $N-a");
}

/// Kills the back end when it sends its message with this number, while a table is swapped.
fn kill_in_swap(mapper: &Mapper, message: u32) {
    let back_end = mapper.back_end().expect("a back end").as_raw_nonzero();
    let mut traced = tool("strace");
    traced.args(["-f", "-o", "/dev/null", "-e", "trace=sendmsg", "-e"]);
    traced.arg(format!("inject=sendmsg:signal=KILL:when={message}")).args(["-p", &back_end.to_string()]);
    let mut traced = traced.stderr(Stdio::piped()).spawn().unwrap();
    // strace writes a line when it is attached.
    let mut attached = [0; 16];
    traced.stderr.as_mut().unwrap().read_exact(&mut attached).unwrap();
    mapper.script("fails dmsetup resume $N-v 2> /dev/null");
    traced.wait().unwrap();
}

#[test]
fn a_back_end_that_is_killed_while_a_table_is_swapped_leaves_one_server() {
    let Some(mapper) = Mapper::new() else { return };
    // After the mount was given, and after it was taken; another back end comes late, or at once.
    for (message, late) in [(2, "sleep 3"), (3, "sleep 3"), (2, "true"), (3, "true")] {
        mapper.script(
            "
truncate --size 20M A.img B.img
dmsetup create $N-v --table \"0 40000 linear $(losetup --find --show A.img) 0\"
dmsetup load $N-v --table \"0 40000 linear $(losetup --find --show B.img) 0\"",
        );
        kill_in_swap(&mapper, message);
        // Requests are answered before another back end comes, where it comes late.
        let script = "
LATE
timeout 10 ls -l /dev/mapper/$N-v > /dev/null
timeout 10 losetup --list > /dev/null
# Where the loaded table is lost, that is said.
dmsetup resume $N-v 2> /dev/null || { dmsetup clear $N-v; dmsetup resume $N-v; }
for i in $(seq 100 140); do
    echo W$i | dd of=/dev/mapper/$N-v bs=512 seek=$i conv=sync oflag=direct status=none
done
low=$(dmsetup deps -o blkdevname $N-v | sed 's/.*(//; s/)//')
dmsetup remove $N-v
blockdev --flushbufs /dev/$low
echo $(grep --text --only-matching 'W1[0-9]*' A.img | wc -l) $(grep --text --only-matching 'W1[0-9]*' B.img | wc -l)
for l in $(losetup --list --noheadings --output NAME,BACK-FILE | grep \"$PWD/[AB].img\" | cut -d' ' -f1); do
    losetup --detach $l
done
rm A.img B.img";
        let out = mapper.script(&script.replace("LATE", late));
        let count = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let counts = count(out.trim());
        assert!(counts == ["41", "0"] || counts == ["0", "41"], "{message}: {out}: {}", mapper.log());
    }
}

#[test]
fn a_table_that_is_refused_at_resume_leaves_the_live_one() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
truncate --size 20M disk.img
L=$(losetup --find --show disk.img)
dmsetup create $N-v --table \"0 20000 integrity $L 0 4 J 1 internal_hash:crc32c\"
dd if=/dev/zero of=/dev/mapper/$N-v bs=4096 count=2400 oflag=direct status=none
dmsetup load $N-v --table \"0 20000 integrity $L 0 32 J 1 internal_hash:sha256\"
fails dmsetup resume $N-v 2> /dev/null
echo here | dd of=/dev/mapper/$N-v bs=4096 seek=5 conv=sync,fsync status=none
dd if=/dev/mapper/$N-v bs=4096 skip=5 count=1 iflag=direct status=none | head --bytes 4
dmsetup remove $N-v
losetup --detach $L",
    );
    assert_eq!(out.trim(), "here", "{}", mapper.log());
}

#[test]
fn root_without_the_capability_asks_nothing() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
truncate --size 20M disk.img
L=$(losetup --find --show disk.img)
dmsetup create $N-v --table \"0 4096 crypt aes-xts-plain64 $(printf %064d 7) 0 $L 0\"
for as in 'setpriv --bounding-set=-all --inh-caps=-all' 'unshare --user --map-root-user'; do
    fails $as dmsetup table --showkeys $N-v 2> /dev/null
    fails $as dmsetup remove $N-v 2> /dev/null
done
dmsetup remove $N-v
losetup --detach $L",
    );
    assert_eq!(out, "", "{}", mapper.log());
}

#[test]
fn the_back_end_and_its_devices_leave_the_callers_control_group() {
    let Some(mapper) = Mapper::new() else { return };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let root = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| at.to_owned())
    });
    let group = root.map(|root| format!("{root}/us-{}", std::process::id()));
    let Some(group) = group.filter(|group| fs::create_dir(group).is_ok()) else {
        // This is not counted as skipped: where no group can be made, none has to be left.
        return eprintln!("not tested here: a control group of the caller's, which cannot be made");
    };
    // A service that makes a device and ends.
    let inside = mapper.command(&["dmsetup", "create", &mapper.name("a"), "--table", "0 8 zero"]);
    let mut service = tool("sh");
    service.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"", &group]);
    service.arg(inside.get_program()).args(inside.get_args());
    service.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = output(&mut service);
    assert!(ran.status.success(), "{ran:?}");
    let left = fs::read_to_string(format!("{group}/cgroup.procs")).unwrap();
    assert_eq!(left, "", "{}", mapper.log());
    fs::remove_dir(&group).unwrap();
    mapper.script("dmsetup remove $N-a");
}

#[test]
fn a_caller_that_ignores_its_children_starts_a_back_end() {
    let Some(mapper) = Mapper::new() else { return };
    let plain = mapper.command(&["dmsetup", "create", &mapper.name("a"), "--table", "0 8 zero"]);
    // `timeout`, with its two words, would not ignore the signal.
    let words = plain.get_args().skip(2);
    let mut ignores = tool("env");
    ignores.arg("--ignore-signal=CHLD").args(words);
    ignores.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = output(&mut ignores);
    assert!(ran.status.success(), "{ran:?}");
    mapper.script("dmsetup remove $N-a");
}
