//! Sockets from systemd: libnbd's tools start a server the same way.

use std::sync::Arc;

use underseal_export::nbd::{Connection, ConnectionHandler, Server, Stopper};
use underseal_export::net::activated;

use crate::fixture::{MemoryDisk, config, run};

#[test]
fn server_takes_over_the_socket_it_is_started_with() {
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let child = "activation::child_that_serves_one_client_on_an_activated_socket";
    // The child's test harness prints, too, and must not mix its lines with nbdinfo's.
    let quietly = ["sh", "-c", "exec \"$0\" \"$@\" >&2", own, "--exact", child, "--ignored"];
    let said = run("nbdinfo", &[&["--size", "--", "["], &quietly[..], &["]"]].concat());
    assert_eq!(said, "1048576\n");
}

#[test]
#[ignore = "the child process of the test above"]
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn child_that_serves_one_client_on_an_activated_socket() {
    struct Once(MemoryDisk, std::sync::OnceLock<Stopper>);
    impl ConnectionHandler for Once {
        fn serve(&self, connection: Connection) -> underseal_export::Result<()> {
            let served = self.0.serve(connection);
            self.1.get().expect("set before the server runs").stop();
            served
        }
    }
    let listeners = activated().unwrap();
    if listeners.is_empty() {
        println!("skipped: started without a socket");
        return;
    }
    let flags = rustix::io::fcntl_getfd(&listeners[0]).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "no child of ours inherits it");
    assert!(activated().unwrap().is_empty(), "handed out once");
    let handler = Arc::new(Once(MemoryDisk::default(), std::sync::OnceLock::new()));
    let server = Server::new(config(), listeners, Arc::clone(&handler) as _).unwrap();
    handler.1.set(server.stopper()).unwrap();
    server.run().unwrap();
}
