use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::host::host::Host;
use crate::support::nbd::Client;
use crate::support::tool;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{text, underseal};

/// Listens as systemd does.
struct Supervisor(UnixDatagram);

impl Supervisor {
    fn hear(&self) -> String {
        let mut message = [0; 4096];
        let len = self.0.recv(&mut message).expect("something is said");
        String::from_utf8(message[..len].to_vec()).unwrap()
    }

    /// Serves one volume with `command`, from READY to the end.
    fn goes_through(&self, mut command: Command) {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        command.env("WATCHDOG_USEC", "100000").stdout(Stdio::null());
        let mut server: Child = command.spawn().unwrap();
        let ready = self.hear();
        let [first, main, status] = ready.lines().collect::<Vec<_>>()[..] else { panic!("{ready}") };
        assert_eq!((first, main), ("READY=1", &*format!("MAINPID={}", server.id())));
        assert!(status.starts_with("STATUS=serving nbd+unix://"), "{status}");
        for _ in 0..3 {
            assert_eq!(self.hear(), "WATCHDOG=1");
        }
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        let stopping = std::iter::repeat_with(|| self.hear()).find(|said| said != "WATCHDOG=1").unwrap();
        assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
        assert_eq!(server.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_supervisor_is_told_of_the_beginning_and_the_end() {
    let mut host = Host::new();
    host.volume("disk", "");
    let path = host.scratch.path("notify");
    let by_path = (SocketAddr::from_pathname(&path).unwrap(), text(&path).to_owned());
    let name = format!("underseal-test-{}", std::process::id());
    let abstract_ = (SocketAddr::from_abstract_name(&name).unwrap(), format!("@{name}"));
    for (address, named) in [by_path, abstract_] {
        let supervisor = Supervisor(UnixDatagram::bind_addr(&address).unwrap());
        let mut command = host.command("up --foreground disk");
        command.env("NOTIFY_SOCKET", named);
        supervisor.goes_through(command);
    }
}

#[test]
fn a_supervisor_that_is_busy_is_told_when_it_listens_again() {
    let mut host = Host::new();
    host.volume("disk", "");
    let path = host.scratch.path("notify");
    let supervisor = Supervisor(UnixDatagram::bind(&path).unwrap());
    supervisor.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let others = UnixDatagram::unbound().unwrap();
    others.connect(&path).unwrap();
    others.set_nonblocking(true).unwrap();
    while others.send(b"another's").is_ok() {}
    let mut command = host.command("up --foreground disk");
    let mut server = command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).spawn().unwrap();
    wait_until("it is open", PATIENCE, || host.pid("disk").is_some());
    let said = std::iter::repeat_with(|| supervisor.hear()).find(|said| said != "another's").unwrap();
    assert!(said.starts_with("READY=1\n"), "{said}");
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(supervisor.hear().starts_with("STOPPING=1\n"));
    assert_eq!(server.wait().unwrap().code(), Some(0));
    supervisor.0.set_nonblocking(true).unwrap();
    assert!(supervisor.0.recv(&mut [0; 64]).is_err(), "that is said once");
}

#[test]
fn servers_of_a_service_do_not_speak_for_it() {
    let mut host = Host::new();
    host.volume("disk", "");
    let path = host.scratch.path("notify");
    let supervisor = Supervisor(UnixDatagram::bind(&path).unwrap());
    let status = host.command("up -q").env("NOTIFY_SOCKET", &path).status().unwrap();
    assert!(status.success());
    supervisor.0.set_nonblocking(true).unwrap();
    assert!(supervisor.0.recv(&mut [0; 16]).is_err());
    host.does("down");
}

#[test]
fn a_credential_is_the_key_of_a_volume_without_one() {
    let mut host = Host::new();
    let volume = host.volume("first", "");
    host.line(format!("disk {} none", text(&volume.image)));
    let credentials = host.scratch.path("credentials");
    std::fs::create_dir(&credentials).unwrap();
    std::fs::rename(&volume.passphrase, credentials.join("underseal.disk")).unwrap();
    let status = host.command("up -q disk").env("CREDENTIALS_DIRECTORY", &credentials).status().unwrap();
    assert!(status.success());
    assert_eq!(host.states(), "first:down disk:up");
    host.does("down");
    // Without the credential, and without a terminal, no passphrase can be asked for.
    let ran = host.run("up disk");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("no terminal"), "{ran:?}");
}

#[test]
fn one_process_serves_one_volume() {
    let mut host = Host::new();
    host.volume("a", "");
    host.volume("b", "");
    assert_eq!(host.run("up --foreground a b").code, Some(2));
    assert_eq!(host.run("up --foreground").code, Some(2));
    assert_eq!(host.run("up --foreground c").code, Some(2));
}

#[test]
fn the_first_client_opens_a_volume_that_waits_for_one() {
    let mut host = Host::new();
    host.volume("disk", "nbd=systemd,hand-over");
    host.volume("other", "");
    host.does("up");
    assert_eq!(host.states(), "disk:down other:up");
    let ps = host.ps();
    assert_eq!((&ps["volumes"][0]["auto"], &ps["volumes"][0]["on_demand"]), (&false.into(), &true.into()));
    assert!(host.does("ps").contains("a client opens it"));
    let ran = host.run("up disk");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("try: systemctl start underseal@disk.socket"), "{ran:?}");

    let socket = host.scratch.path("disk.nbd");
    let up = host.command("up --foreground disk");
    let mut activate = tool("systemd-socket-activate");
    activate.arg(format!("--listen={}", text(&socket)));
    for (name, value) in up.get_envs() {
        activate.arg(format!("--setenv={}={}", name.to_str().unwrap(), value.unwrap().to_str().unwrap()));
    }
    activate.arg(up.get_program()).args(up.get_args()).stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = activate.spawn().unwrap();
    let mut client = None;
    wait_until("systemd listens", PATIENCE, || {
        client = Client::connect(&socket).ok();
        client.is_some()
    });
    let mut client = client.unwrap();
    client.write(0, &[7; 4096]).unwrap();
    assert_eq!(host.states(), "disk:up other:up");
    assert_eq!(host.does("up disk"), "");
    // The next process listens there, too.
    let mut upgrade = underseal();
    upgrade.args(["upgrade", "disk"]).env("UNDERSEAL_RUNTIME_DIR", host.directory());
    assert!(upgrade.status().unwrap().success());
    assert!(server.wait().unwrap().success());
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!(Client::connect(&socket).unwrap().read(0, 4096).unwrap(), [7; 4096]);
    host.does("down");
    assert_eq!(host.states(), "disk:down other:down");
    assert!(socket.exists(), "it is systemd's");
}
