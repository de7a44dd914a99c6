//! The rights that a server keeps, as the kernel and `status` report them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use rustix::process::{Pid, Signal, kill_process};

use crate::control::operator::Operator;
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::nbd::Client;
use crate::support::tools::children;
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, text, underseal};
use crate::support::{Scratch, Server, run};

/// The kernel's status fields of each thread of a process, without the fields of the whole process.
fn threads(pid: u32) -> Vec<Vec<(String, String)>> {
    let told = ["Name", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    status
        .map(|status| {
            let fields = status.lines().filter_map(|line| line.split_once(":\t"));
            let fields = fields.filter(|(name, _)| told.contains(name));
            fields.map(|(name, value)| (name.into(), value.trim().into())).collect()
        })
        .collect()
}

/// Every thread has these capabilities (as `/proc` writes them), and all of the rest.
#[track_caller]
fn holds(server: &Server, capabilities: &str) {
    let threads = threads(server.id());
    assert!(threads.len() > 1, "{threads:?}");
    let root = rustix::process::geteuid().is_root();
    for thread in &threads {
        let of = |name: &str| &thread.iter().find(|(field, _)| field == name).unwrap().1;
        // The kernel's threads of a ring have what their ring's thread had, and run no code of
        // ours.
        if of("Name").starts_with("iou-") {
            continue;
        }
        for set in ["CapPrm", "CapEff"] {
            assert_eq!(of(set), capabilities, "{set}: {thread:?}");
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(of(set), "0000000000000000", "{set}: {thread:?}");
        }
        assert!(!root || of("CapBnd") == capabilities, "{thread:?}");
        assert_eq!((of("NoNewPrivs").as_str(), of("Seccomp").as_str()), ("1", "2"), "{thread:?}");
    }
}

const NONE: &str = "0000000000000000";

/// A server is asked for everything that may need something of the system, and has refused itself
/// nothing.
#[track_caller]
fn works(operator: &Operator, server: &Server) {
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[9; 4096]).unwrap();
    client.flush().unwrap();
    for policy in ["workers", "same-cpu", "adaptive", "inline"] {
        operator.does(&format!("policy image {policy}"));
        client.write(65536, &[8; 65536]).unwrap();
        assert_eq!(client.read(65536, 65536).unwrap(), [8; 65536]);
    }
    operator.does("suspend image");
    operator.does("resume image");
    assert_eq!(client.read(0, 4096).unwrap(), [9; 4096]);
    let sandbox = &operator.status("image")["sandbox"];
    assert_eq!(sandbox["capabilities"], serde_json::json!([]));
    assert_eq!(sandbox["missing"], serde_json::json!([]), "{sandbox}");
    for part in ["no_new_privileges", "io_uring", "seccomp"] {
        assert_eq!(sandbox[part], true, "{part}: {sandbox}");
    }
    assert!(sandbox["landlock"].as_u64().is_some_and(|version| version > 0), "{sandbox}");
    let text = operator.does("status image");
    assert!(text.contains("no capabilities") && text.contains("seccomp"), "{text}");
    assert!(!server.log().contains("sandbox"), "{}", server.log());
}

#[test]
fn an_nbd_server_keeps_nothing() {
    let operator = Operator::new();
    let (_, server) = operator.open(&["--metrics", "127.0.0.1:0"]);
    holds(&server, NONE);
    works(&operator, &server);
    holds(&server, NONE);
    server.stop();
}

/// The ring of each client is the helper's, which is interrupted whenever one ends.
#[test]
fn clients_that_come_and_go_at_once_all_get_rings() {
    let operator = Operator::new();
    let (_, server) = operator.open(&[]);
    let comes_and_goes = || {
        for _ in 0..100 {
            assert_eq!(Client::connect(&server.socket()).unwrap().read(0, 4096).unwrap().len(), 4096);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(comes_and_goes);
        }
    });
    let log = server.stop();
    assert!(!log.contains("io_uring"), "{log}");
}

#[test]
fn a_server_whose_helper_was_killed_goes_on_and_flushes_at_the_end() {
    for options in [&[][..], &["--integrity", "hmac-sha256"]] {
        let operator = Operator::new();
        let volume = Volume::at(&operator.scratch, "image").format("64M", options);
        let server = operator.serve(&volume, &["--name", "image"]);
        let mut client = Client::connect(&server.socket()).unwrap();
        client.write(0, &[9; 4096]).unwrap();
        let helper = children(server.id());
        let [helper] = helper[..] else { panic!("{helper:?}") };
        kill_process(Pid::from_raw(helper).unwrap(), Signal::KILL).unwrap();
        client.write(4096, &[8; 4096]).unwrap();
        client.flush().unwrap();
        client.write(8192, &[7; 4096]).unwrap();
        for _ in 0..2 {
            operator.does("suspend image");
            operator.does("resume image");
        }
        let mut late = Client::connect(&server.socket()).unwrap();
        let answered = late.send_write(1, 0, &[6; 4096]).and_then(|()| late.reply());
        assert!(answered.is_err(), "a client came");
        assert_eq!(client.read(8192, 4096).unwrap(), [7; 4096]);
        let log = server.stop_leaving_its_socket();
        assert!(!log.contains("last flush"), "{log}");
        let server = operator.serve(&volume, &["--name", "again"]);
        assert_eq!(Client::connect(&server.socket()).unwrap().read(8192, 4096).unwrap(), [7; 4096]);
        server.stop();
    }
}

#[test]
fn a_server_of_machines_and_mounts_keeps_nothing() {
    if let Some(reason) = cannot_fuse() {
        return skip("sandbox", reason);
    }
    let operator = Operator::new();
    let disk = operator.scratch.file("disk", b"");
    let machine = operator.scratch.path("machine");
    let pid = operator.scratch.path("pid");
    let options = ["--fuse", text(&disk), "--vhost-user", text(&machine), "--pid-file", text(&pid)];
    let (_, server) = operator.open(&options);
    holds(&server, NONE);
    works(&operator, &server);
    assert_eq!(fs::read(&disk).unwrap()[..4096], [9; 4096]);
    fs::write(&disk, [1; 100]).unwrap();
    // The unmounting is the helper's.
    operator.does("close image");
    for path in [machine, pid] {
        assert!(!path.exists(), "{}", path.display());
    }
    assert_eq!(fs::metadata(&disk).unwrap().len(), 0, "it is unmounted");
}

#[test]
fn a_server_over_another_server_keeps_nothing() {
    let operator = Operator::new();
    let below = Scratch::new();
    let lower = Server::start(&Volume::luks2(&below, "64M"), &[]);
    let passphrase = operator.scratch.file("above.pass", PASSPHRASE.as_bytes());
    let volume = Volume { image: lower.uri().into(), passphrase, options: Vec::new() };
    let mut format = underseal();
    // The lower volume reads as noise: nothing was written through it yet.
    format.arg("format").arg(&volume.image).args(["-q", "--force"]).args(CHEAP_PBKDF2);
    run(format.arg("--passphrase-file").arg(&volume.passphrase));
    let server = operator.serve(&volume, &["--name", "image"]);
    holds(&server, NONE);
    works(&operator, &server);
    server.stop();
    lower.stop();
}

#[test]
fn root_keeps_what_another_user_s_image_takes() {
    if !rustix::process::geteuid().is_root() {
        return skip("sandbox", "only root serves images of others");
    }
    let operator = Operator::new();
    let volume = Volume::luks2(&operator.scratch, "48M");
    fs::set_permissions(&volume.image, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&volume.image, Some(1234), Some(1234)).unwrap();
    let server = operator.serve(&volume, &[]);
    // DAC_OVERRIDE.
    holds(&server, "0000000000000002");
    let kept = serde_json::json!(["dac_override"]);
    assert_eq!(operator.status("image")["sandbox"]["capabilities"], kept);
    Client::connect(&server.socket()).unwrap().write(0, &[1; 4096]).unwrap();
    server.stop();
}

#[test]
fn without_a_sandbox_nothing_is_given_up() {
    let operator = Operator::new();
    let (_, server) = operator.open(&["--no-sandbox"]);
    let own = threads(std::process::id());
    let of = |thread: &[(String, String)], name: &str| {
        thread.iter().find(|(field, _)| field == name).unwrap().1.clone()
    };
    for thread in threads(server.id()) {
        for field in ["CapPrm", "CapBnd", "NoNewPrivs", "Seccomp"] {
            assert_eq!(of(&thread, field), of(&own[0], field), "{field}: {thread:?}");
        }
    }
    assert!(operator.status("image")["sandbox"].is_null());
    assert!(operator.does("status image").contains("sandbox    none"));
    server.stop();
}
