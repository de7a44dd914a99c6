use std::process::Stdio;
use std::time::Duration;

use crate::control::operator::Operator;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::tools::PATIENCE;
use crate::support::{bytes, seed, tool};

/// Long enough for a request that is not held back to be answered, on a busy machine too.
const A_WHILE: Duration = Duration::from_millis(700);

#[test]
fn requests_wait_while_the_volume_is_suspended_and_go_on_afterwards() {
    let operator = Operator::new();
    let (volume, server) = operator.open(&[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    operator.does("suspend image");
    // Once more does no harm.
    operator.does("suspend image");
    assert_eq!(operator.status("image")["suspended"], true);
    assert!(operator.does("list").contains("suspended"));

    let before = std::fs::read(&volume.image).unwrap();
    client.send_write(5, 4096, &[2; 4096]).unwrap();
    client.stream.set_read_timeout(Some(A_WHILE)).unwrap();
    let held = client.reply().unwrap_err();
    assert!(matches!(held.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{held}");
    assert!(before == std::fs::read(&volume.image).unwrap(), "the image changed while it was suspended");

    // A client that connects meanwhile waits as well.
    let socket = server.socket();
    let late = std::thread::spawn(move || Client::connect(&socket).unwrap().read(0, 4096));
    operator.does("resume image");
    operator.does("resume image");
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(client.reply().unwrap(), (5, 0));
    assert_eq!(client.read(4096, 4096).unwrap(), [2; 4096]);
    assert_eq!(late.join().unwrap().unwrap(), [1; 4096]);
    assert_eq!(operator.status("image")["suspended"], false);
    drop(client);
    server.stop();
}

#[test]
fn a_copy_goes_through_suspensions_whole() {
    let operator = Operator::new();
    let (volume, server) = operator.open(&["--policy", "workers"]);
    let plain = bytes(seed("a_copy_goes_through_suspensions_whole"), 24 << 20);
    let source = operator.scratch.file("plain", &plain);
    let mut copy = tool("nbdcopy");
    copy.args(["--no-extents", "--connections=2", "--requests=4", "--request-size=16384"])
        .arg(&source)
        .arg(server.uri());
    let mut copy = copy.stderr(Stdio::piped()).spawn().unwrap();
    let mut suspensions = 0;
    while copy.try_wait().unwrap().is_none() && suspensions < 50 {
        operator.does("suspend image");
        let bytes = || operator.status("image")["requests"]["write"]["bytes"].as_u64().unwrap();
        let before = bytes();
        assert_eq!(bytes(), before, "something was written while suspended");
        operator.does("resume image");
        suspensions += 1;
    }
    let ended = copy.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(suspensions > 0);
    server.stop();
    assert_same(&volume.read(0, plain.len()), &plain, "the copy");
}

#[test]
fn closing_a_suspended_volume_finishes_what_was_sent() {
    let operator = Operator::new();
    let (volume, mut server) = operator.open(&[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    operator.does("suspend image");
    client.send_write(7, 4096, &[3; 4096]).unwrap();
    std::thread::sleep(A_WHILE);
    operator.does("close image");
    assert_eq!(client.reply().unwrap(), (7, 0));
    assert!(server.wait().success(), "{}", server.log());
    assert_eq!(volume.read(4096, 4096), [3; 4096]);
}
