//! Programs that make system calls themselves, under `dm run --supervise`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::dm::mapper::Mapper;
use crate::dm::silent::SilentFile;
use crate::support::mounts::skip;
use crate::support::output;

/// Compiles a program that is linked statically. None, with a word about it, where there is no
/// compiler.
fn static_program(mapper: &Mapper) -> Option<()> {
    mapper.scratch.file("static.c", include_bytes!("static.c"));
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-O1", "-o", "static", "static.c"]).current_dir(mapper.scratch.folder());
    match compiler.output() {
        Ok(done) if done.status.success() => Some(()),
        done => {
            skip("a static program under a supervisor", &format!("no static program is made: {done:?}"));
            None
        }
    }
}

#[test]
fn a_static_program_sees_the_device_mapper() {
    let Some(mapper) = Mapper::new() else { return };
    let Some(()) = static_program(&mapper) else { return };
    // The library does not reach it: the kernel has no device mapper, or another's devices.
    mapper.script("fails ./static preloaded-$N");
    let out = mapper.supervised(
        "
./static $N-s
dmsetup table $N-s
blockdev --getsz /dev/mapper/$N-s
fails ./static $N-s 2> /dev/null
dmsetup remove $N-s
dmsetup ls",
    );
    assert_eq!(out, "1 line\n0 2048 zero\n0 2048 zero \n2048\nNo devices found\n", "{}", mapper.log());
}

/// A system call that a signal interrupts is made again: a device made twice exists already.
#[test]
fn a_static_go_program_makes_each_device_once_though_signals_interrupt_it() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.scratch.file("goroutines.go", include_bytes!("goroutines.go"));
    let mut go = Command::new("go");
    go.args(["build", "-o", "goroutines", "goroutines.go"]).env("CGO_ENABLED", "0");
    match go.current_dir(mapper.scratch.folder()).output() {
        Ok(built) => {
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        Err(e) => return skip("a static Go program under a supervisor", &format!("there is no Go: {e}")),
    }
    let out = mapper.supervised("./goroutines $N-go; dmsetup ls");
    assert_eq!(out, "done\nNo devices found\n", "{}", mapper.log());
}

#[test]
fn cryptsetup_is_told_of_no_keys_by_name_and_sends_digits() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.supervised(
        "
dmsetup targets | sed -n 's/^crypt *//p'
truncate --size 32M disk.img
printf pass | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 disk.img -
printf pass | cryptsetup open disk.img $N-x -
cryptsetup status $N-x | sed -n 's/^ *key location: *//p'
printf kept | dd of=/dev/mapper/$N-x oflag=direct bs=4096 conv=sync,notrunc status=none
cryptsetup luksSuspend $N-x
printf pass | cryptsetup luksResume $N-x
dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 status=none | tr -d '\\000'; echo
cryptsetup close $N-x",
    );
    assert_eq!(out, "v1.18.0\ndm-crypt\nkept\n", "{}", mapper.log());
}

#[test]
fn who_has_given_root_up_asks_nothing_of_the_supervisor() {
    let Some(mapper) = Mapper::new() else { return };
    // Descriptor 9 was opened by root.
    let out = mapper.supervised(
        "
python3 -c '
import fcntl, os, struct
control = os.open(\"/dev/mapper/control\", os.O_RDWR)
asked = struct.pack(\"=3I6IQ\", 4, 0, 0, 312, 312, 0, 0, 0, 0, 0).ljust(312, b\"\\0\")
assert struct.unpack_from(\"=I\", fcntl.ioctl(control, 0xc138fd00, asked))[0] == 4
os.setresuid(65534, 65534, 65534)
try: fcntl.ioctl(control, 0xc138fd00, asked); print(\"asked\")
except OSError as e: print(e.errno)
try: os.open(\"/dev/mapper/control\", os.O_RDWR); print(\"opened\")
except OSError as e: print(e.errno)'",
    );
    assert_eq!(out, "13\n13\n", "{}", mapper.log());
}

#[test]
fn the_supervisor_ends_with_its_last_program_and_no_sooner() {
    let Some(mapper) = Mapper::new() else { return };
    let is_there = || {
        let all = output(Command::new("ps").args(["-eo", "args"])).stdout;
        let folder = mapper.folder();
        let folder = folder.to_str().unwrap();
        String::from_utf8_lossy(&all)
            .lines()
            .any(|line| line.contains("dm supervisor") && line.contains(folder))
    };
    mapper.supervised("(sleep 3; dmsetup create $N-late --table '0 8 zero') > /dev/null 2>&1 < /dev/null &");
    assert!(is_there());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while is_there() {
        assert!(std::time::Instant::now() < until, "the supervisor stays");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(mapper.script("dmsetup table"), format!("{}: 0 8 zero \n", mapper.name("late")));
}

#[test]
fn an_ioctl_that_waits_ends_with_its_caller() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.supervised(
        "
dmsetup create $N-w --table '0 8 zero'
dmsetup wait --noflush $N-w 0 > waited &
dmsetup wait $N-w & waits=$!
sleep 0.5
kill $waits
code=0; wait $waits || code=$?; echo $code
dmsetup rename $N-w $N-v
wait
dmsetup remove $N-v",
    );
    assert_eq!(out, "143\n", "{}", mapper.log());
}

/// The kernel's device mapper makes only those wait whose path or descriptor it is.
#[test]
fn callers_whose_files_hang_hold_up_no_other() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.scratch.file("silent.py", include_bytes!("silent.py"));
    std::fs::set_permissions(mapper.scratch.folder(), Permissions::from_mode(0o755)).unwrap();
    // More callers than one user has threads in the supervisor.
    for (what, callers, expected) in
        [("path", 1, "begun\n"), ("descriptor", 1, "ENOTTY\nbegun\n"), ("path", 40, "begun\n")]
    {
        let file = SilentFile::new(&mapper.scratch);
        let out = mapper.supervised(&format!(
            "
python3 silent.py {what} {callers} {file} > $N-hangs 2>&1 &
tries=300; until test $(wc --lines < $N-hangs) -ge {lines}; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
sleep 1
begun=$(date +%s)
cat /etc/hostname > name
dmsetup create $N-s --table '0 8 zero'; dmsetup remove $N-s
test $(($(date +%s) - begun)) -lt 5 || echo root waits
setpriv --reuid=65534 --regid=65534 --clear-groups cat /etc/hostname > name
test $(($(date +%s) - begun)) -lt 15 || echo the user waits
sort $N-hangs; rm $N-hangs",
            file = file.path().display(),
            lines = expected.lines().count()
        ));
        assert_eq!(out, expected, "{what} {callers}: {}", mapper.log());
    }
}
