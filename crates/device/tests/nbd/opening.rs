//! A server's description of an export, and the device made of it.

use super::{Behaviour, NbdDevice, Server, address, open, plain, refusal};
use underseal_device::{Device, Extent};
use underseal_nbd_protocol::TransmissionFlags as Flags;

#[test]
fn the_servers_blocks_are_the_devices() {
    let geometry = |behaviour| open(&Server::start(behaviour), "").geometry();
    let told = geometry(Behaviour { blocks: Some([4096, 65_536, 1 << 20]), ..plain() });
    assert_eq!((told.block, told.preferred_block, told.size), (4096, 65_536, 1 << 20));
    assert!(told.discard && !told.read_only);
    let untold = geometry(plain().without(Flags::SEND_TRIM));
    assert_eq!((untold.block, untold.preferred_block, untold.discard), (512, 4096, false));
    let odd = geometry(Behaviour { blocks: Some([4096, 4096, 1 << 20]), ..Behaviour::plain(4096 * 3 + 100) });
    assert_eq!(odd.size, 4096 * 3, "the last block is whole");
}

#[test]
fn blocks_that_cannot_be_are_refused() {
    for blocks in [[3, 4096, 1 << 20], [1 << 17, 1 << 17, 1 << 20], [4096, 4096, 512]] {
        let server = Server::start(Behaviour { blocks: Some(blocks), ..plain() });
        let error = refusal(&server.uri(""), false);
        assert!(error.contains("cannot be"), "{blocks:?}: {error}");
    }
}

#[test]
fn what_is_read_only_is_opened_so_only() {
    let server = Server::start(plain().with(Flags::READ_ONLY));
    assert!(refusal(&server.uri(""), false).contains("--read-only"));
    let device = NbdDevice::open(address(&server.uri("")), true).unwrap();
    assert!(device.geometry().read_only);
}

#[test]
fn a_server_that_is_not_there_is_told_of() {
    let server = Server::start(plain());
    let missing = server.path().with_file_name("nothing");
    let error = refusal(&format!("nbd+unix:///?socket={}", missing.display()), false);
    assert!(error.contains("cannot connect") && error.contains("No such file"), "{error}");
    let socket = server.path();
    let stale = socket.with_file_name("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let error = refusal(&format!("nbd+unix:///?socket={}", stale.display()), false);
    assert!(error.contains("Connection refused"), "{error}");
    let error = refusal(&format!("nbd+unix:///missing?socket={}", socket.display()), false);
    assert!(error.contains("no export of that name: \"no?such export\""), "{error}");
}

#[test]
fn holes_are_told_of_where_all_connections_see_the_same() {
    let server = Server::start(plain());
    server.memory()[8192..16_384].fill(1);
    let device = open(&server, "");
    assert_eq!(device.extent(0, 1 << 20), Extent { len: 8192, hole: true });
    assert_eq!(device.extent(4096, 1 << 20), Extent { len: 4096, hole: true });
    assert_eq!(device.extent(8192, 1 << 20), Extent { len: 8192, hole: false });
    assert_eq!(device.extent(12_288, 512), Extent { len: 512, hole: false });
    assert_eq!(device.extent(16_384, (1 << 20) - 16_384), Extent { len: (1 << 20) - 16_384, hole: true });
    server.vanish();
    assert_eq!(device.extent(0, 4096), Extent { len: 4096, hole: false }, "who cannot tell says data");

    for behaviour in [plain().without(Flags::CAN_MULTI_CONN), Behaviour { structured: false, ..plain() }] {
        let server = Server::start(behaviour);
        assert_eq!(open(&server, "").extent(0, 1 << 20), Extent { len: 1 << 20, hole: false });
    }
}
