//! A core dump of a program: its stopped process is read as gcore reads it, without the
//! pages that dumps leave out.
#![allow(unsafe_code, reason = "ptrace(2)")]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;

use underseal_image::{FormatOptions, Header, OpenOptions};

const IMAGE: &str = "UNDERSEAL_TEST_IMAGE";

/// The program: it uses an image, and stops.
#[test]
fn the_program_that_is_looked_at() {
    let Some(path) = std::env::var_os(IMAGE) else { return };
    let image = OpenOptions::new().passphrase(b"secret").unwrap().writable(true).open(path).unwrap();
    let mut bytes = vec![0; 65536];
    image.read_at(0, &mut bytes).unwrap();
    image.write_at(4096, &bytes).unwrap();
    image.read_at(100, &mut bytes[..1000]).unwrap();
    // SAFETY: the process stops.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Returns all memory in a core dump, and all vector registers.
fn dump(pid: i32) -> Vec<(String, Vec<u8>)> {
    let mut parts = Vec::new();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut head = "";
    for line in maps.lines() {
        let is_head = line.split(' ').next().is_some_and(|first| first.contains('-'));
        if is_head {
            head = line;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let (from, to) = head.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
            let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
            let is_dumped = flags.contains(" wr") && !flags.contains(" dd") && !head.contains("[v");
            if is_dumped
                && memory.seek(SeekFrom::Start(from)).is_ok()
                && memory.read_exact(&mut bytes).is_ok()
            {
                parts.push((head.to_owned(), bytes));
            }
        }
    }
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let tid: i32 = thread.unwrap().file_name().to_str().unwrap().parse().unwrap();
        let mut registers = vec![0_u8; 16384];
        let mut part = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: registers.len() };
        // NT_X86_XSTATE, and NT_PRFPREG.
        let set: usize = if cfg!(target_arch = "x86_64") { 0x202 } else { 2 };
        // SAFETY: the thread is this process's child's; the kernel writes into the buffer only.
        unsafe {
            assert_eq!(
                libc::ptrace(libc::PTRACE_ATTACH, tid, 0, 0),
                0,
                "{}",
                std::io::Error::last_os_error()
            );
            assert_eq!(libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL), tid);
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGSET, tid, set, &raw mut part), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_DETACH, tid, 0, 0), 0);
        }
        assert!(part.iov_len >= 512);
        parts.push((format!("registers of thread {tid}"), registers));
    }
    parts
}

/// The places where 16 bytes of the key are.
fn places(image: &Path, key: &[u8]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_program_that_is_looked_at", "--nocapture"]).env(IMAGE, image);
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let mut status = 0;
    // SAFETY: the kernel writes the status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
    assert!(libc::WIFSTOPPED(status), "the program ended: {status}");
    let parts = dump(pid);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(parts.len() > 10);
    let holds = |bytes: &[u8]| key.chunks(16).any(|part| bytes.windows(16).any(|window| window == part));
    parts.into_iter().filter(|(_, bytes)| holds(bytes)).map(|(place, _)| place).collect()
}

#[test]
fn a_core_dump_of_a_program_holds_no_part_of_the_volume_key() {
    for (cipher, size) in [
        ("aes-cbc-essiv:sha256", 16),
        ("aes-cbc-essiv:sha256", 32),
        ("aes-xts-plain64", 32),
        ("aes-xts-plain64", 64),
        ("serpent-xts-plain64", 64),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
        let options = FormatOptions::luks2().pbkdf2(1000).cipher(cipher).key_size(size);
        Header::format(&path, b"secret", &options).unwrap();
        let key = Header::open(&path).unwrap().unlock(b"secret", None).unwrap();
        let found = places(&path, key.reveal());
        assert!(found.is_empty(), "{cipher}, {size} bytes: {found:#?}");
    }
}
