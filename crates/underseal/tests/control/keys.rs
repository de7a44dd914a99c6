use std::io::Read;

use crate::control::operator::Operator;
use crate::support::nbd::{Client, EIO};

const FIRST: &str = "5d3c91f07a62e8b4c1479f0326ad58ee90b7f41c3ad8652e7bf60914c28da3e7";
const SECOND: &str = "b81f6ca02d97e354fb08416be7d22a9c13ce750f84ba69d1265efa3870c4990d";

#[test]
fn a_key_is_wiped_and_set_again_as_dm_crypt_does() {
    let operator = Operator::new();
    let server = operator.open_table(FIRST, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[5; 4096]).unwrap();

    operator.is_refused("message table key wipe", 2, "not suspended during key manipulation");
    let ran = operator.run_with("message table key set", FIRST);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("not suspended during key manipulation"), "{ran:?}");
    assert!(ran.err.contains("try: underseal suspend table"), "{ran:?}");
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);

    operator.does("suspend table");
    operator.does("message table key wipe");
    assert_eq!(operator.status("table")["key"], "wiped");
    operator.is_refused("resume table", 3, "aborting resume - crypt key is not set.");
    let short = operator.run_with("message table key set", &FIRST[..32]);
    assert_eq!(short.code, Some(2), "{short:?}");
    assert!(short.err.contains("16 bytes") && short.err.contains("32"), "{short:?}");
    let set = operator.run_with("message table key set", &format!("{FIRST}\n"));
    assert_eq!(set.code, Some(0), "{set:?}");
    operator.does("resume table");
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);

    // Another key, from a file, reads other bytes; the first key, from a descriptor, reads the same
    // bytes again.
    let file = operator.scratch.file("second", SECOND.as_bytes());
    operator.does("suspend table");
    operator.does(&format!("message table key set --key-file {}", file.display()));
    operator.does("resume table");
    assert_ne!(client.read(0, 4096).unwrap(), [5; 4096]);
    client.write(4096, &[6; 4096]).unwrap();
    operator.does("suspend table");
    let set = operator.run_with("message table key set --key-fd 0", FIRST);
    assert_eq!(set.code, Some(0), "{set:?}");
    operator.does("resume table");
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);
    drop(client);
    let log = server.stop();
    assert!(log.contains("message key set"), "{log}");
    assert!(!log.contains(FIRST) && !log.contains(SECOND), "a key in the log");

    // A server opened with the second key reads the bytes that were written under that key.
    let server = operator.open_table(SECOND, &[]);
    assert_eq!(Client::connect(&server.socket()).unwrap().read(4096, 4096).unwrap(), [6; 4096]);
    server.stop();
}

#[test]
fn a_key_comes_from_the_keyring() {
    let operator = Operator::new();
    let server = operator.open_table(FIRST, &[]);
    operator.does("suspend table");
    let missing = operator.run_with("message table key set", ":32:user:underseal-no-such-key");
    assert_eq!(missing.code, Some(3), "{missing:?}");
    let refused = operator.run_with("message table key set", ":32:logon:underseal-no-such-key");
    assert_ne!(refused.code, Some(0), "{refused:?}");
    operator.does("resume table");
    server.stop();
}

#[test]
fn a_key_never_is_an_argument_and_other_messages_are_not_recognised() {
    let operator = Operator::new();
    let server = operator.open_table(FIRST, &[]);
    operator.does("suspend table");
    operator.is_refused(&format!("message table key set {FIRST}"), 2, "never an argument");
    for message in ["key", "key wipe now", "key get", "resize 7", "KEY WIPE"] {
        operator.is_refused(&format!("message table {message}"), 2, "unrecognised message received.");
    }
    for nonsense in ["xyz", "0", "", ":32:user"] {
        let ran = operator.run_with("message table key set", nonsense);
        assert_eq!(ran.code, Some(2), "{nonsense}: {ran:?}");
    }
    assert_eq!(operator.status("table")["key"], "set");
    operator.does("resume table");
    server.stop();
}

#[test]
fn lines_without_a_key_are_no_hindrance() {
    let operator = Operator::new();
    let image = operator.scratch.sparse("image", 1 << 20);
    let image = image.display();
    let text = format!("0 64 linear {image} 0\n64 64 crypt aes-xts-plain64 {FIRST} 0 {image} 64\n128 8 zero");
    let table = operator.scratch.file("mixed", text.as_bytes());
    let mut command = operator.command("table open --table");
    command.arg(&table);
    let server = crate::support::Server::start_command(command, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[4; 65536]).unwrap();
    operator.does("suspend mixed");
    operator.does("message mixed key wipe");
    let set = operator.run_with("message mixed key set", SECOND);
    assert_eq!(set.code, Some(0), "{set:?}");
    operator.does("resume mixed");
    assert_eq!(client.read(0, 32768).unwrap(), [4; 32768]);
    assert_ne!(client.read(32768, 32768).unwrap(), [4; 32768]);
    drop(client);
    server.stop();
}

#[test]
fn a_table_of_two_keys_takes_no_key_message() {
    let operator = Operator::new();
    let image = operator.scratch.sparse("image", 1 << 20);
    let line = |start, key| format!("{start} 64 crypt aes-xts-plain64 {key} 0 {} {start}\n", image.display());
    let table = operator.scratch.file("two", (line(0, FIRST) + &line(64, SECOND)).as_bytes());
    let mut command = operator.command("table open --table");
    command.arg(&table);
    let server = crate::support::Server::start_command(command, &[]);
    operator.does("suspend two");
    operator.is_refused("message two key wipe", 6, "goes to one target");
    let ran = operator.run_with("message two key set", FIRST);
    assert_eq!(ran.code, Some(6), "{ran:?}");
    operator.does("resume two");
    Client::connect(&server.socket()).unwrap().read(0, 512).unwrap();
    server.stop();
}

#[test]
fn a_volume_whose_key_is_wiped_can_be_closed() {
    let operator = Operator::new();
    let mut server = operator.open_table(FIRST, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[5; 512]).unwrap();
    operator.does("suspend table");
    operator.does("message table key wipe");
    let reader = std::thread::spawn(move || client.read(0, 512));
    std::thread::sleep(std::time::Duration::from_millis(300));
    operator.does("close table");
    assert!(server.wait().success(), "{}", server.log());
    assert_eq!(reader.join().unwrap(), Err(EIO));
}

#[test]
fn a_wiped_key_is_nowhere_in_memory_and_a_set_one_on_locked_pages_only() {
    if !rustix::process::geteuid().is_root() {
        return crate::support::mounts::skip(
            "a_wiped_key_is_nowhere_in_memory",
            "another process's memory needs root",
        );
    }
    let operator = Operator::new();
    let server = operator.open_table(FIRST, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[5; 4096]).unwrap();
    let pid = operator.status("table")["pid"].as_u64().unwrap();
    let bytes = |hex: &str| -> Vec<u8> {
        (0..16).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
    };
    assert!(!pages_with(pid, &bytes(FIRST)).is_empty(), "this test cannot see the key");
    operator.does("suspend table");
    operator.does("message table key wipe");
    assert_eq!(pages_with(pid, &bytes(FIRST)), Vec::<String>::new());
    let set = operator.run_with("message table key set", SECOND);
    assert_eq!(set.code, Some(0), "{set:?}");
    operator.does("resume table");
    client.read(0, 4096).unwrap();
    let pages = pages_with(pid, &bytes(SECOND));
    assert!(!pages.is_empty(), "this test cannot see the key");
    for flags in pages {
        assert!(flags.contains(" lo") && flags.contains(" dd"), "{flags}");
    }
    // Neither in hex, as it came.
    assert_eq!(pages_with(pid, &SECOND.as_bytes()[..32]), Vec::<String>::new());
    drop(client);
    server.stop();
}

/// The flags of a process's mappings that hold these bytes.
pub(crate) fn pages_with(pid: u64, bytes: &[u8]) -> Vec<String> {
    use std::os::unix::fs::FileExt;
    let mut smaps = String::new();
    std::fs::File::open(format!("/proc/{pid}/smaps")).unwrap().read_to_string(&mut smaps).unwrap();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut range = None;
    let mut found = Vec::new();
    for line in smaps.lines() {
        let parse =
            |(a, b): (&str, &str)| Some((u64::from_str_radix(a, 16).ok()?, u64::from_str_radix(b, 16).ok()?));
        if let Some(new) = line.split(' ').next().and_then(|word| word.split_once('-')).and_then(parse) {
            range = Some(new);
        } else if let (Some(flags), Some((start, end))) = (line.strip_prefix("VmFlags:"), range) {
            let mut content = vec![0; usize::try_from(end - start).unwrap()];
            // Guard pages and the kernel's own cannot be read.
            if memory.read_exact_at(&mut content, start).is_ok()
                && memchr::memmem::find(&content, bytes).is_some()
            {
                found.push(flags.to_owned());
            }
        }
    }
    found
}
