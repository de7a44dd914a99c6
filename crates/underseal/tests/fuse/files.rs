//! The mounted file: its properties and behaviour.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::fuse::mounted::{Mounted, client};
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::scratch::{assert_same, bytes, seed};
use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, nbd, output, run};

const SIZE: usize = 16 << 20;

fn volume(scratch: &Scratch) -> Volume {
    // A LUKS2 header takes 16 MiB.
    Volume::luks2(scratch, "32M")
}

fn dd(args: &[&str]) -> Command {
    let mut command = client("dd");
    command.args(args).args(["status=none"]);
    command
}

#[test]
fn the_file_has_the_volumes_size_and_block() {
    if let Some(reason) = cannot_fuse() {
        return skip("sizes", reason);
    }
    let scratch = Scratch::new();
    let mounted = Mounted::start(&scratch, &volume(&scratch), &[]);
    let seen = run(client("stat").args(["-c", "%F %s %o %b %a"]).arg(mounted.path()));
    assert_eq!(seen.trim(), format!("regular file {SIZE} 4096 {} 600", SIZE / 512));
    let seen = run(client("stat").args(["-f", "-c", "%b %s"]).arg(mounted.path()));
    assert_eq!(seen.trim(), format!("{} 4096", SIZE / 4096));
    mounted.stop();
}

#[test]
fn what_is_written_in_any_way_is_read_back_in_any_way() {
    if let Some(reason) = cannot_fuse() {
        return skip("any way", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    for open in [&[][..], &["--direct"], &["--fuse-no-cache"], &["--fuse-threads", "4"]] {
        let volume = volume.clone().with(open.iter().copied().filter(|o| *o == "--direct"));
        let options: Vec<&str> = open.iter().copied().filter(|o| *o != "--direct").collect();
        for (write, read) in [("", "iflag=direct"), ("oflag=direct", ""), ("oflag=direct", "iflag=direct")] {
            let plain = bytes(seed("any way"), SIZE);
            let source = scratch.file("source", &plain);
            let mounted = Mounted::start(&scratch, &volume, &options);
            let mut copy = dd(&["bs=1M", "conv=notrunc,fsync"]);
            copy.arg(format!("if={}", text(&source))).arg(format!("of={}", text(mounted.path())));
            run(copy.args(Some(write).filter(|w| !w.is_empty())));
            let back = scratch.path("back");
            let mut copy = dd(&["bs=128k"]);
            copy.arg(format!("if={}", text(mounted.path()))).arg(format!("of={}", text(&back)));
            run(copy.args(Some(read).filter(|r| !r.is_empty())));
            assert_same(&std::fs::read(&back).unwrap(), &plain, &format!("{open:?} {write} {read}"));
            mounted.stop();
            assert_same(&volume.read_all(), &plain, "from the image");
        }
    }
}

#[test]
fn cp_writes_over_the_whole_volume() {
    if let Some(reason) = cannot_fuse() {
        return skip("cp", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let plain = bytes(seed("cp"), SIZE);
    let source = scratch.file("source", &plain);
    let mounted = Mounted::start(&scratch, &volume, &[]);
    // cp first truncates the file to nothing, which a volume ignores.
    run(client("cp").arg(&source).arg(mounted.path()));
    run(client("cmp").arg(&source).arg(mounted.path()));
    let ran = output(client("truncate").args(["-s", "1G"]).arg(mounted.path()));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("No space left"), "{ran:?}");
    let ran = output(client("chmod").arg("777").arg(mounted.path()));
    assert!(!ran.status.success(), "nobody else is let in");
    mounted.stop();
    assert_same(&volume.read_all(), &plain, "from the image");
}

#[test]
fn writes_of_any_bytes_change_these_bytes_alone() {
    if let Some(reason) = cannot_fuse() {
        return skip("any bytes", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mounted = Mounted::start(&scratch, &volume, &[]);
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    let mut rng = fastrand::Rng::with_seed(seed("any bytes"));
    let mut model = bytes(rng.u64(..), SIZE);
    file.write_all_at(&model, 0).unwrap();
    for _ in 0..300 {
        let len = rng.usize(1..20_000);
        let at = rng.usize(..SIZE - len);
        let data = bytes(rng.u64(..), len);
        file.write_all_at(&data, at as u64).unwrap();
        model[at..at + len].copy_from_slice(&data);
    }
    // The last byte, and no byte behind it.
    file.write_all_at(b"!", SIZE as u64 - 1).unwrap();
    model[SIZE - 1] = b'!';
    let beyond = file.write_at(b"!", SIZE as u64).unwrap_err();
    assert_eq!(beyond.raw_os_error(), Some(28), "{beyond}");
    let mut back = vec![0; SIZE];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_same(&back, &model, "through the mount");
    assert_eq!(file.read_at(&mut [0; 10], SIZE as u64).unwrap(), 0, "the end");
    drop(file);
    mounted.stop();
    assert_same(&volume.read_all(), &model, "from the image");
}

#[test]
fn parts_of_one_sector_written_at_once_are_all_kept() {
    if let Some(reason) = cannot_fuse() {
        return skip("parts at once", reason);
    }
    const THREADS: usize = 8;
    const PART: usize = 512;
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    for options in [&[][..], &["--fuse-no-cache", "--fuse-threads", "4"]] {
        let mounted = Mounted::start(&scratch, &volume, options);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let path = mounted.path();
                scope.spawn(move || {
                    let file = File::options().write(true).open(path).unwrap();
                    for sector in 0..100 {
                        let at = sector * 4096 + thread * PART;
                        file.write_all_at(&[u8::try_from(thread + 1).unwrap(); PART], at as u64).unwrap();
                    }
                });
            }
        });
        mounted.stop();
        let seen = volume.read(0, 100 * 4096);
        let expected: Vec<u8> =
            (0..100 * THREADS * PART).map(|i| u8::try_from(i / PART % THREADS + 1).unwrap()).collect();
        assert_same(&seen, &expected, "from the image");
    }
}

#[test]
fn punched_and_zeroed_ranges_read_as_zeros() {
    if let Some(reason) = cannot_fuse() {
        return skip("zeros", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mut model = bytes(seed("zeros"), SIZE);
    volume.write(0, &model);
    let mounted = Mounted::start(&scratch, &volume, &[]);
    // Pages of the range that are in the page cache are stale afterwards, and must not be seen.
    run(dd(&["of=/dev/null", "bs=1M"]).arg(format!("if={}", text(mounted.path()))));
    let fallocate = |options: &[&str]| output(client("fallocate").args(options).arg(mounted.path()));
    for (how, at, len) in [("-p", 4096, 3 << 20), ("-z", 8 << 20, 8192)] {
        let ran = fallocate(&[how, "-o", &at.to_string(), "-l", &len.to_string()]);
        assert!(ran.status.success(), "{how}: {ran:?}");
        model[at..at + len].fill(0);
    }
    assert!(fallocate(&["-l", "4096"]).status.success(), "all that is there is allocated");
    for refused in
        [&["-o", "16777216", "-l", "4096"][..], &["-c", "-l", "4096"], &["-p", "-o", "1", "-l", "4096"]]
    {
        assert!(!fallocate(refused).status.success(), "{refused:?}");
    }
    let back = scratch.path("back");
    run(client("cp").arg(mounted.path()).arg(&back));
    assert_same(&std::fs::read(&back).unwrap(), &model, "through the mount");
    mounted.stop();
    assert_same(&volume.read_all(), &model, "from the image");
}

#[test]
fn unaligned_direct_requests_are_refused_as_by_a_block_device() {
    if let Some(reason) = cannot_fuse() {
        return skip("unaligned direct", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mounted = Mounted::start(&scratch, &volume, &[]);
    let to = format!("of={}", text(mounted.path()));
    let ran = output(dd(&["if=/dev/zero", "bs=512", "count=1", "oflag=direct", "conv=notrunc"]).arg(to));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("Invalid argument"), "{ran:?}");
    mounted.stop();
}

#[test]
fn a_read_only_volume_cannot_be_written() {
    if let Some(reason) = cannot_fuse() {
        return skip("read-only", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let plain = bytes(seed("read-only"), SIZE);
    volume.write(0, &plain);
    let mounted = Mounted::start(&scratch, &volume, &["--read-only"]);
    assert_eq!(run(client("stat").args(["-c", "%a"]).arg(mounted.path())).trim(), "400");
    let ran =
        output(dd(&["if=/dev/zero", "count=1", "conv=notrunc"]).arg(format!("of={}", text(mounted.path()))));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("Read-only file system"), "{ran:?}");
    let source = scratch.file("source", &plain);
    run(client("cmp").arg(&source).arg(mounted.path()));
    mounted.stop();
    assert_same(&volume.read_all(), &plain, "from the image");
}

#[test]
fn a_folder_shows_a_file_for_each_segment() {
    if let Some(reason) = cannot_fuse() {
        return skip("folder", reason);
    }
    let scratch = Scratch::new();
    let disk = scratch.sparse("a", 4 << 20);
    let key: String = (0..64_u8).map(|i| format!("{:02x}", i.wrapping_mul(7))).collect();
    let lines =
        format!("0 1024 crypt aes-xts-plain64 {key} 0 {0} 0\n1024 512 linear {0} 4096\n", text(&disk));
    let table = scratch.file("table", lines.as_bytes());
    let command = || {
        let mut command = underseal();
        command.args(["table", "open", "--table", text(&table)]);
        command
    };
    let folder = scratch.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let first = bytes(seed("folder"), 1024 * 512);
    let second = bytes(seed("folder"), 512 * 512);
    let sources = [scratch.file("first", &first), scratch.file("second", &second)];

    let mounted = Mounted::start_at(&scratch, command(), &folder, &[]);
    let listing = run(client("ls").args(["-a", "-1"]).arg(&folder));
    assert_eq!(listing.lines().collect::<Vec<_>>(), [".", "..", "segment0", "segment1"]);
    for (i, source) in sources.iter().enumerate() {
        let file = folder.join(format!("segment{i}"));
        assert_eq!(std::fs::metadata(&file).unwrap().len(), std::fs::metadata(source).unwrap().len());
        run(client("cp").arg(source).arg(&file));
    }
    for (i, source) in sources.iter().enumerate() {
        run(client("cmp").arg(source).arg(folder.join(format!("segment{i}"))));
    }
    assert!(std::fs::metadata(folder.join("segment2")).is_err());
    assert!(std::fs::write(folder.join("new"), b"").is_err(), "nothing can be made there");
    let mut behind = File::options().write(true).open(folder.join("segment0")).unwrap();
    let refused = behind.write_all_at(b"!", first.len() as u64).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(28), "a file does not reach into the next one");
    std::io::Write::flush(&mut behind).unwrap();
    drop(behind);
    mounted.stop();

    // The same volume mounted over a file: the segments one after the other.
    let path = scratch.file("disk", b"");
    let mounted = Mounted::start_at(&scratch, command(), &path, &[]);
    let whole = scratch.file("whole", &[first, second].concat());
    run(client("cmp").arg(&whole).arg(&path));
    mounted.stop();
}

#[test]
fn nbd_and_the_file_show_the_same_volume() {
    if let Some(reason) = cannot_fuse() {
        return skip("nbd beside", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let socket = scratch.path("s");
    let mounted = Mounted::start(&scratch, &volume, &["--nbd", &format!("unix:{}", text(&socket))]);
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    let mut client = nbd::Client::connect(&socket).unwrap();
    let mut back = [0; 4096];
    for round in 0..10_u8 {
        client.write(8192, &[round; 4096]).unwrap();
        file.read_exact_at(&mut back, 8192).unwrap();
        assert_eq!(back, [round; 4096], "what NBD wrote is seen at once");
        file.write_all_at(&[round + 100; 4096], 8192).unwrap();
        assert_eq!(client.read(8192, 4096).unwrap(), [round + 100; 4096], "and the other way round");
    }
    drop((file, client));
    mounted.stop();
    assert!(!socket.exists(), "the socket is gone too");
}
