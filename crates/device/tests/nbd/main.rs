//! The NBD client against servers that go away, come back, lose writes, and lie.

#[path = "../queue/mod.rs"]
mod queue;
#[path = "../server/mod.rs"]
mod server;

mod crashes;
mod flushes;
mod growing;
mod hostile;
mod opening;
mod poison;
mod requests;
mod sharing;
mod vanishing;

use server::{Behaviour, Server};
use underseal_device::nbd::NbdAddress;
use underseal_device::{Error, NbdDevice};
use underseal_testing::PATIENCE;

const SIZE: usize = 1 << 20;

fn open(server: &Server, parameters: &str) -> NbdDevice {
    NbdDevice::open(address(&server.uri(parameters)), false).unwrap()
}

fn address(uri: &str) -> NbdAddress {
    uri.parse().unwrap()
}

fn refusal(uri: &str, read_only: bool) -> String {
    said(&NbdDevice::open(address(uri), read_only).err().expect("it is refused"))
}

/// An error with its cause.
fn said(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|e| format!(": {e}"));
    format!("{error}{}", cause.unwrap_or_default())
}

#[track_caller]
fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    underseal_testing::wait_until(what, PATIENCE, holds);
}

fn plain() -> Behaviour {
    Behaviour::plain(SIZE)
}
