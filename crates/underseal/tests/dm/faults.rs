//! Hostile callers, processes that are killed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::dm::mapper::Mapper;

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
    // Root's own connection is answered; the inherited one and the node's are not, whoever asks.
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
