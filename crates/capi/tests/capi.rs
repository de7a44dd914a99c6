//! libunderseal from C: the header compiles without warnings, and a program runs without a leak or a bad
//! access under the compiler's sanitizers. (Valgrind does not show a program its vDSO, which rustix reads.)

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

#[test]
fn a_c_program_reads_writes_and_is_refused_as_the_header_says() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    File::create_new(&image).unwrap().set_len(24 << 20).unwrap();
    let formatted = Command::new("sh")
        .arg("-c")
        .arg(
            "printf secret | cryptsetup luksFormat -q --type luks2 --sector-size 4096 --pbkdf pbkdf2 \
             --pbkdf-force-iterations 1000 --key-file - \"$1\"",
        )
        .arg("sh")
        .arg(&image)
        .status()
        .unwrap();
    assert!(formatted.success());
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (program, library) = (folder.path().join("capi"), library());
    // Programs look for the soname.
    std::os::unix::fs::symlink(library.join("libunderseal.so"), folder.path().join("libunderseal.so.0"))
        .unwrap();
    let compiled = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-g",
            "-pthread",
            "-fsanitize=address,undefined",
        ])
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join("tests/capi.c"))
        .arg("-o")
        .arg(&program)
        .arg(folder.path().join("libunderseal.so.0"))
        .status()
        .expect("cc starts");
    assert!(compiled.success());
    let ran = Command::new(&program).arg(&image).env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
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
    assert_eq!(declared.len(), 25);
}
