//! libunderseal from C: the header compiles without warnings, and a program runs without a leak or
//! a bad access under the compiler's sanitizers. (Valgrind does not show a program its vDSO, which
//! rustix reads.)

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the library that cargo built for this test.
fn library() -> PathBuf {
    let deps = std::env::current_exe().expect("the test has a path");
    let deps = deps.parent().expect("it lies in a folder").to_owned();
    [deps.clone(), deps.join("..")]
        .into_iter()
        .find(|folder| folder.join("libunderseal.so").exists())
        .expect("cargo builds the library before its tests")
}

/// A LUKS2 image with the passphrase "secret".
fn luks2(path: &Path) {
    File::create_new(path).unwrap().set_len(24 << 20).unwrap();
    let formatted = Command::new("sh")
        .arg("-c")
        .arg(
            "printf secret | cryptsetup luksFormat -q --type luks2 --sector-size 4096 --pbkdf pbkdf2 \
             --pbkdf-force-iterations 1000 --key-file - \"$1\"",
        )
        .arg("sh")
        .arg(path)
        .status()
        .unwrap();
    assert!(formatted.success());
}

/// Compiles a program of this folder, with the compiler's sanitizers, and links it to the library.
fn compiled(source: &str, folder: &Path) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join(source).with_extension("");
    // Programs look for the soname.
    let library = folder.join("libunderseal.so.0");
    std::os::unix::fs::symlink(self::library().join("libunderseal.so"), &library).unwrap();
    let flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"];
    let compiled = Command::new("cc")
        .args(flags)
        .arg("-fsanitize=address,undefined")
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join("tests").join(source))
        .arg("-o")
        .arg(&program)
        .arg(&library)
        .status()
        .expect("cc starts");
    assert!(compiled.success());
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", folder);
    command
}

/// Runs the program and returns what it prints.
fn ran(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// The folder of the images of other systems.
fn unpack(folder: &Path) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/vectors/images.tar.xz");
    let unpacked = Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(folder).status();
    assert!(unpacked.unwrap().success());
}

#[test]
fn a_c_program_reads_writes_and_is_refused_as_the_header_says() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    luks2(&image);
    unpack(folder.path());
    assert_eq!(ran(compiled("capi.c", folder.path()).arg(&image).arg(folder.path())), "ok\n");
}

#[test]
fn a_callback_that_uses_its_handle_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    luks2(&image);
    assert_eq!(ran(compiled("callbacks.c", folder.path()).arg(&image)), "ok\n");
}

#[test]
fn a_child_of_a_fork_waits_for_no_thread_of_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    luks2(&image);
    assert_eq!(ran(compiled("fork.c", folder.path()).arg(&image)), "ok\n");
}

#[test]
fn a_c_program_reencrypts_stops_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    luks2(&image);
    for (slot, secret) in [("1", "two"), ("2", "three")] {
        let script = "printf '%s' \"$2\" > \"$1.new\" && printf secret | cryptsetup luksAddKey -q --pbkdf pbkdf2 \
                      --pbkdf-force-iterations 1000 --key-slot \"$3\" --key-file - \"$1\" \"$1.new\"";
        let added = Command::new("sh").args(["-c", script, "sh"]).arg(&image).args([secret, slot]).status();
        assert!(added.unwrap().success());
    }
    let header = folder.path().join("header");
    assert_eq!(ran(compiled("reencrypt.c", folder.path()).arg(&image).arg(&header)), "ok\n");
    // The real program opens the volume with the passphrases that were kept.
    let opens = |secret: &str| {
        let script = "printf '%s' \"$2\" | cryptsetup open --test-passphrase --key-file - \"$1\"";
        let opened = Command::new("sh").args(["-c", script, "sh"]).arg(&image).arg(secret).status();
        opened.unwrap().success()
    };
    assert!(opens("secret") && opens("two") && !opens("three"));
    let dump = Command::new("cryptsetup").arg("luksDump").arg(&image).output().unwrap();
    let dump = String::from_utf8(dump.stdout).unwrap();
    assert!(dump.contains("aes-cbc-essiv:sha256") && !dump.contains("online-reencrypt"), "{dump}");
}

/// Images that are cut, damaged in their header, or forged by an independent maker.
#[test]
fn cut_and_forged_images_and_devices_that_lie_end_with_an_errno_and_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let sound = folder.path().join("sound");
    luks2(&sound);
    let whole = std::fs::read(&sound).unwrap();
    let mut images = vec![sound];
    let mut write = |bytes: &[u8]| {
        let path = folder.path().join(format!("image{}", images.len()));
        std::fs::write(&path, bytes).unwrap();
        images.push(path);
    };
    for len in [0, 1, 511, 4096, 16384, 32768, 1 << 20, 16 << 20, (16 << 20) + 4095] {
        write(&whole[..len]);
    }
    // Bits of both headers and their checksums, the same ones each time.
    let mut dice = 1_u32;
    for _ in 0..12 {
        let mut damaged = whole[..(16 << 20) + 8192].to_vec();
        for _ in 0..4 {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            damaged[(dice >> 12) as usize % 32768] ^= 1 << (dice >> 29);
        }
        write(&damaged);
    }
    let made = tempfile::tempdir().unwrap();
    unpack(made.path());
    for name in ["bl-crc-all.img", "bl-misplaced.img", "fv-bad-crc.img", "fv-no-19.img", "fv-plain.img"] {
        let bytes = std::fs::read(made.path().join(name)).unwrap();
        write(&bytes);
        write(&bytes[..bytes.len() / 2]);
    }
    let told = ran(compiled("hostile.c", folder.path()).arg("secret").args(&images));
    let opened: usize = told.trim_end().strip_suffix(" opened").unwrap().parse().unwrap();
    assert!((1..images.len() / 2).contains(&opened), "{told}");
}

#[test]
fn the_library_has_just_the_functions_of_the_header() {
    let header =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/underseal.h")).unwrap();
    let declared = header.match_indices("underseal_").filter_map(|(at, _)| {
        let rest = &header[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        let before = header[..at].chars().next_back()?;
        (rest.as_bytes()[end] == b'(' && " *".contains(before)).then(|| rest[..end].to_owned())
    });
    let mut declared: Vec<String> = declared.filter(|name| name != "underseal_callbacks").collect();
    declared.sort_unstable();
    declared.dedup();
    let symbols =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library().join("libunderseal.so")).output();
    let symbols = String::from_utf8(symbols.expect("nm starts").stdout).unwrap();
    let mut exported: Vec<String> =
        symbols.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect();
    exported.retain(|name| name.starts_with("underseal_"));
    exported.sort_unstable();
    assert_eq!(exported, declared);
    assert_eq!(declared.len(), 28);
    let packaged = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/debian/libunderseal0.symbols");
    let packaged = std::fs::read_to_string(packaged).unwrap();
    let packaged = packaged.lines().filter_map(|line| line.strip_prefix(' ')?.split_once('@'));
    assert_eq!(packaged.map(|(name, _)| name).collect::<Vec<_>>(), declared, "Debian's symbols");
}
