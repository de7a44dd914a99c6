//! Tar archives go in, and hostile ones nowhere else.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::ecryptfs_kernel::tree::{self, assert_same_tree};
use crate::ecryptfs_tools::{assert_done, assert_refused, ecryptfs};
use crate::support::volume::underseal;
use crate::support::{Scratch, run, tool};

#[test]
fn archives_of_every_kind_come_in_and_out_again() {
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    let plain = scratch.path("plain");
    fs::create_dir(&plain).unwrap();
    tree::make(&plain, 9);
    run(tool("touch").args(["-d", "2001-02-03 04:05:06.789"]).arg(plain.join("file15")));
    run(tool("touch").args(["-d", "1969-02-03 04:05:06.25"]).arg(plain.join("file4096")));
    let xattr = b"with\nline feeds\n";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(plain.join("file15"), "user.test", xattr, flags).unwrap();
    fs::write(plain.join("w".repeat(255)), b"longer than a header").unwrap();
    run(tool("mkfifo").arg(plain.join("pipe")));
    let options = "ecryptfs_enable_filename_crypto,long_names";
    assert_done(&ecryptfs(&scratch, "import", &["plain", "from folder", "-o", options]));
    assert_done(&ecryptfs(&scratch, "export", &["from folder", "ours.tar", "--tar"]));
    for format in ["gnu", "posix"] {
        let mut make = tool("tar");
        make.current_dir(&plain).args(["--xattrs", "-cf", &format!("../{format}.tar")]);
        // GNU's own format has no xattrs: tar then takes pax's.
        if format == "gnu" {
            make.arg("--no-xattrs");
        }
        run(make.args([&format!("--format={format}"), "."]));
    }
    // The comparison reads every file, and a pipe has no end.
    fs::remove_file(plain.join("pipe")).unwrap();
    for archive in ["ours.tar", "gnu.tar", "posix.tar"] {
        assert_done(&ecryptfs(&scratch, "import", &[archive, "lower", "-o", options]));
        assert_done(&ecryptfs(&scratch, "check", &["lower"]));
        assert_done(&ecryptfs(&scratch, "export", &["lower", "back"]));
        let back = scratch.path("back");
        fs::remove_file(back.join("pipe")).unwrap();
        run(tool("touch").arg("-r").arg(&plain).arg(&back));
        assert_same_tree(&back, &plain, archive);
        if archive != "gnu.tar" {
            let mut value = [0; 100];
            let len = rustix::fs::getxattr(back.join("file15"), "user.test", &mut value[..]).unwrap();
            assert_eq!(&value[..len], xattr, "{archive}");
        }
        fs::remove_dir_all(back).unwrap();
        fs::remove_dir_all(scratch.path("lower")).unwrap();
    }
    // Through a pipe.
    let mut import = underseal();
    import.current_dir(scratch.folder()).args(["ecryptfs", "import", "-q", "-", "lower"]);
    let mut import =
        import.args(["--passphrase-file", "pass"]).stdin(Stdio::piped()).spawn().expect("it starts");
    import.stdin.take().unwrap().write_all(&fs::read(scratch.path("posix.tar")).unwrap()).unwrap();
    assert!(import.wait().unwrap().success());
    assert!(scratch.path("lower/file20000").exists());
    assert_refused(&ecryptfs(&scratch, "import", &["gnu.tar", "lower"]), 2, &["something in it"]);
}

/// A member, as an archive's maker would not write it.
fn member(out: &mut Vec<u8>, kind: u8, path: &str, link: &str, data: &[u8]) {
    header(out, kind, path, link, data.len() as u64);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn header(out: &mut Vec<u8>, kind: u8, path: &str, link: &str, size: u64) {
    let mut block = [0; 512];
    block[..path.len()].copy_from_slice(path.as_bytes());
    block[100..108].copy_from_slice(b"0000755\0");
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    block[108..116].copy_from_slice(format!("{uid:07o}\0").as_bytes());
    block[116..124].copy_from_slice(format!("{gid:07o}\0").as_bytes());
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[136..148].copy_from_slice(b"00000000000\0");
    block[148..156].fill(b' ');
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link.as_bytes());
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&block);
}

fn pax(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let len = (1..).find(|len: &usize| *len == len.to_string().len() + rest.len()).unwrap();
    format!("{len}{rest}").into_bytes()
}

#[test]
fn hostile_archives_write_nothing_outside() {
    for options in ["ecryptfs_passthrough", "ecryptfs_enable_filename_crypto"] {
        let scratch = Scratch::new();
        scratch.file("pass", b"the test's passphrase\n");
        scratch.file("secret", b"not theirs");
        let outside = scratch.path("outside");
        fs::create_dir(&outside).unwrap();
        let outside_path = outside.to_str().unwrap();
        let mut tar = Vec::new();
        for (path, data) in [
            (format!("{outside_path}/absolute"), b"1"),
            ("../outside/up".into(), b"2"),
            ("folder/../../outside/up".into(), b"3"),
        ] {
            member(&mut tar, b'0', &path, "", data);
        }
        member(&mut tar, b'x', "pax", "", &pax("path", "../outside/by pax"));
        member(&mut tar, b'0', "harmless", "", b"4");
        member(&mut tar, b'L', "long", "", b"../outside/by gnu\0");
        member(&mut tar, b'0', "harmless", "", b"5");
        // Through symlinks, of which there may be any.
        member(&mut tar, b'2', "way", outside_path, b"");
        member(&mut tar, b'0', "way/through", "", b"6");
        member(&mut tar, b'5', "way/folder", "", b"");
        member(&mut tar, b'5', "way", "", b"");
        member(&mut tar, b'0', "way", "", b"7");
        member(&mut tar, b'2', "file", "../secret", b"");
        member(&mut tar, b'0', "file", "", b"8");
        // Links to targets outside of the archive.
        member(&mut tar, b'1', "link1", scratch.path("secret").to_str().unwrap(), b"");
        member(&mut tar, b'1', "link2", "../secret", b"");
        member(&mut tar, b'1', "link3", "way/../secret", b"");
        member(&mut tar, b'1', "link4", "way/x", b"");
        member(&mut tar, b'1', "link5", "none", b"");
        member(&mut tar, b'x', "pax", "", &pax("GNU.sparse.major", "1"));
        member(&mut tar, b'0', "sparse", "", b"9");
        member(&mut tar, b'Z', "unknown", "", b"10");
        member(&mut tar, b'0', "", "", b"11");
        // Sound ones, with what would be another file's header.
        member(&mut tar, b'x', "pax", "", &pax("SCHILY.xattr.user.ecryptfs", "made up"));
        member(&mut tar, b'0', "folder/without its folder", "", b"sound");
        member(&mut tar, b'1', "linked", "folder/without its folder", b"");
        tar.extend([0; 1024]);
        scratch.file("hostile.tar", &tar);
        let imported = ecryptfs(&scratch, "import", &["hostile.tar", "lower", "-o", options]);
        let said = ["absolute: its path begins at the root", "../outside/up: its path leads out"];
        assert_refused(&imported, 7, &said);
        assert_refused(&imported, 7, &["by pax", "by gnu", "way/through", "--sparse", "18 entries failed"]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(fs::read(scratch.path("secret")).unwrap(), b"not theirs");
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&fs::metadata(scratch.path("secret")).unwrap()), 1);
        assert_done(&ecryptfs(&scratch, "export", &["lower", "back"]));
        let back = scratch.path("back");
        for sound in ["folder/without its folder", "linked"] {
            assert_eq!(fs::read(back.join(sound)).unwrap(), b"sound");
        }
        let mut names: Vec<_> = fs::read_dir(&back).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["file", "folder", "linked", "way"]);
        assert_eq!(fs::read_link(back.join("way")).unwrap(), Path::new(outside_path));
    }
}

#[test]
fn sizes_that_lie_and_archives_that_are_cut_are_refused() {
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    let mut sound = Vec::new();
    member(&mut sound, b'0', "first", "", b"sound");
    let with = |more: &dyn Fn(&mut Vec<u8>)| {
        let mut tar = sound.clone();
        more(&mut tar);
        tar
    };
    let lies: [(&str, &str, Vec<u8>); 8] = [
        ("nothing", "end mark", Vec::new()),
        ("no mark", "end mark", sound.clone()),
        (
            "larger",
            "cut",
            with(&|tar| {
                header(tar, b'0', "larger", "", 1 << 32);
                tar.extend([7; 100_000]);
            }),
        ),
        (
            "huge",
            "larger than any file",
            with(&|tar| {
                member(tar, b'x', "pax", "", &pax("size", &u64::MAX.to_string()));
                member(tar, b'0', "huge", "", b"x");
            }),
        ),
        (
            "described",
            "describe one member",
            with(&|tar| {
                header(tar, b'x', "pax", "", 1 << 32);
                tar.extend([7; 100_000]);
            }),
        ),
        (
            "smaller",
            "checksum",
            with(&|tar| {
                header(tar, b'0', "smaller", "", 10);
                tar.extend([7; 5120]);
            }),
        ),
        ("records", "pax record", with(&|tar| member(tar, b'x', "pax", "", b"999 path=x\n"))),
        ("text", "checksum", b"this is a text, and no archive at all".repeat(100)),
    ];
    for (name, word, tar) in lies {
        File::create(scratch.path("lies.tar")).unwrap().write_all(&tar).unwrap();
        let imported = ecryptfs(&scratch, "import", &["lies.tar", "lower"]);
        let said = crate::ecryptfs_tools::stderr(&imported);
        assert!(!imported.status.success() && said.contains(word), "{name}: {said}");
        if tar.starts_with(&sound) {
            assert_eq!(imported.status.code(), Some(7), "{name}: {said}");
            assert_eq!(ecryptfs(&scratch, "cat", &["lower", "first"]).stdout, b"sound", "{name}");
        }
        // Half a file looks like a whole one.
        for none in ["larger", "huge"] {
            assert!(!scratch.path("lower").join(none).exists(), "{name}");
        }
        fs::remove_dir_all(scratch.path("lower")).unwrap();
    }
}

/// `=` ends a record's key, and `%` begins what GNU tar writes in the place of both.
#[test]
fn any_names_of_xattrs_come_in_and_out_again() {
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    fs::create_dir(scratch.path("plain")).unwrap();
    let file = scratch.path("plain/file");
    fs::write(&file, b"contents").unwrap();
    let names = [&b"user.a=b"[..], b"user.100%", b"user.%3D", b"user.n\xff"];
    for name in names {
        rustix::fs::setxattr(&file, name, name, rustix::fs::XattrFlags::empty()).unwrap();
    }
    let read = |path: &Path, name: &[u8]| {
        let mut value = [0; 100];
        let len = rustix::fs::getxattr(path, name, &mut value[..]);
        len.map(|len| value[..len].to_vec()).unwrap_or_default()
    };
    assert_done(&ecryptfs(&scratch, "import", &["plain", "lower"]));
    assert_done(&ecryptfs(&scratch, "export", &["lower", "ours.tar", "--tar"]));
    let mut make = tool("tar");
    run(make.current_dir(scratch.folder()).args(["--xattrs", "-cf", "gnu.tar", "-C", "plain", "."]));
    let theirs = scratch.path("theirs");
    fs::create_dir(&theirs).unwrap();
    let mut extract = tool("tar");
    extract.current_dir(&theirs).args(["--xattrs", "--xattrs-include=*", "-xf", "../ours.tar"]);
    run(&mut extract);
    for archive in ["ours.tar", "gnu.tar"] {
        assert_done(&ecryptfs(&scratch, "import", &[archive, archive.trim_end_matches(".tar")]));
    }
    for name in names {
        let shown = name.escape_ascii();
        assert_eq!(read(&scratch.path("ours/file"), name), name, "{shown}");
        assert_eq!(read(&scratch.path("gnu/file"), name), name, "{shown}");
        assert_eq!(read(&theirs.join("file"), name), name, "{shown}");
    }
}

/// Two lower names that are one plain name, as a tree of plain and encrypted names may have.
#[test]
fn a_second_entry_of_one_path_does_not_go_into_an_archive() {
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    let encrypted = ["-o", "ecryptfs_enable_filename_crypto"];
    for (plain, lower, options) in [("one", "lower", &[][..]), ("two", "other", &encrypted)] {
        fs::create_dir_all(scratch.path(plain).join("folder")).unwrap();
        for name in ["a", "folder/a", &format!("folder/{plain}")] {
            fs::write(scratch.path(plain).join(name), plain).unwrap();
        }
        assert_done(&ecryptfs(&scratch, "import", &[&[plain, lower], options].concat()));
    }
    for entry in fs::read_dir(scratch.path("other")).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, scratch.path("lower").join(path.file_name().unwrap())).unwrap();
    }
    let said = ["ECRYPTFS_FNEK_ENCRYPTED.", "/a", "File exists", "2 entries failed"];
    let refused = ecryptfs(&scratch, "export", &["lower", "folder"]);
    assert_eq!(refused.status.code(), Some(7));
    let refused = ecryptfs(&scratch, "export", &["lower", "a.tar", "--tar"]);
    let text = crate::ecryptfs_tools::stderr(&refused);
    assert_eq!(refused.status.code(), Some(7), "{text}");
    assert!(text.contains("File exists") && text.contains(said[3]), "{text}");
    let mut list = tool("tar");
    let listed = crate::support::output(list.args(["-tf"]).arg(scratch.path("a.tar")));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut paths: Vec<_> = listed.lines().map(|line| line.trim_end_matches('/')).collect();
    let count = paths.len();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), count, "{listed}");
}

#[test]
fn the_size_of_a_member_without_bytes_is_not_skipped() {
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    let mut tar = Vec::new();
    member(&mut tar, b'0', "first", "", &[1; 1024]);
    for (kind, path, link) in
        [(b'1', "link", "first"), (b'2', "symlink", "first"), (b'5', "folder", ""), (b'6', "pipe", "")]
    {
        header(&mut tar, kind, path, link, 1024);
        member(&mut tar, b'0', &format!("{path}.after"), "", b"after");
    }
    tar.resize(tar.len() + 1024, 0);
    fs::write(scratch.path("a.tar"), &tar).unwrap();
    assert_done(&ecryptfs(&scratch, "import", &["a.tar", "lower"]));
    for path in ["link", "symlink", "folder", "pipe"] {
        let there = |name: &str| scratch.path("lower").join(name).symlink_metadata().is_ok();
        assert!(there(path) && there(&format!("{path}.after")), "{path}");
    }
}

/// The group bits of the mode of a file with a list are the list's mask: without the list its group
/// would have what only one user may do.
#[test]
fn access_control_lists_come_in() {
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    let plain = scratch.path("plain");
    fs::create_dir_all(plain.join("folder")).unwrap();
    fs::write(plain.join("folder/file"), b"of two users").unwrap();
    run(tool("setfacl").args(["-m", "u:nobody:rw,u:12345:r,g::-,o::-"]).arg(plain.join("folder/file")));
    run(tool("setfacl").args(["-d", "-m", "u:daemon:rwx"]).arg(plain.join("folder")));
    let lists = |tree: &Path| run(tool("getfacl").args(["--recursive", "."]).current_dir(tree));
    for names in [&[][..], &["--numeric-owner"]] {
        let archive = scratch.path("lists.tar");
        run(tool("tar")
            .args(["--acls", "-C"])
            .arg(&plain)
            .args(names)
            .arg("-cf")
            .arg(&archive)
            .arg("folder"));
        assert_done(&ecryptfs(&scratch, "import", &["lists.tar", "lower", "-o", ""]));
        let lower = scratch.path("lower");
        assert!(lists(&lower).contains("user:nobody:rw-"), "{}", lists(&lower));
        assert_eq!(lists(&lower.join("folder")), lists(&plain.join("folder")));
        fs::remove_dir_all(lower).unwrap();
    }
}
