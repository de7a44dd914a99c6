//! `UNDERSEAL_CPU` chooses the path of a whole process: the tests run again under each.

use std::process::Command;

use underseal_cipher::{CipherSpec, CpuPath, Key, SectorSize, build};

/// 0, 1, 2, ..
const KEY: [u8; 64] = {
    let mut key = [0; 64];
    let mut n = 0u8;
    while n < 64 {
        key[n as usize] = n;
        n += 1;
    }
    key
};

/// The program, with arguments, that runs this test on another processor: an emulator.
const RUNNER: &str = "UNDERSEAL_TEST_RUNNER";

/// Runs a test of this file in a separate process, with the variable set.
fn run(test: &str, path: &str) -> (bool, String) {
    let this = std::env::current_exe().unwrap();
    let runner = std::env::var(RUNNER).unwrap_or_default();
    let mut words = runner.split_whitespace().map(std::ffi::OsStr::new).chain([this.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command.args([test, "--exact", "--ignored", "--nocapture"]).env(CpuPath::VARIABLE, path);
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn each_available_path_can_be_forced() {
    for path in CpuPath::ALL {
        let (ok, text) = run("build_under_the_variable", path.name());
        assert_eq!(ok, path.is_available(), "{}: {text}", path.name());
        let says = if ok { format!("runs {}", path.name()) } else { "cannot run".into() };
        assert!(text.contains(&says), "{}: {text}", path.name());
    }
}

#[test]
fn an_unknown_path_is_an_error_that_names_the_known_ones() {
    let (ok, text) = run("build_under_the_variable", "avx1024");
    assert!(!ok);
    assert!(text.contains("want one of portable, aesni, vaes256, avx512, neon"), "{text}");
}

#[test]
#[ignore = "run by the tests above in a process of its own"]
fn build_under_the_variable() {
    let spec: CipherSpec = "aes-xts-plain64".parse().unwrap();
    let key = Key::new(&KEY).unwrap();
    let cipher = build(&spec, &key, SectorSize::S512).unwrap_or_else(|e| panic!("{e}"));
    let mut data = [7; 2048];
    cipher.encrypt(0, (&mut data[..]).into());
    // The first block of sector 0, as OpenSSL has it.
    let expected = openssl_first_block();
    assert_eq!(data[..16], expected);
    eprintln!("runs {}", CpuPath::chosen().unwrap().name());
}

fn openssl_first_block() -> [u8; 16] {
    let cipher = openssl::symm::Cipher::aes_256_xts();
    let out = openssl::symm::encrypt(cipher, &KEY, Some(&[0; 16]), &[7; 512]).unwrap();
    out[..16].try_into().unwrap()
}
