//! The metrics that a server gives to scrapers.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::tools::PATIENCE;

/// The address of the metrics, from the server's log.
pub(crate) fn address(log: &str) -> String {
    let line = log.lines().find(|line| line.contains("serving metrics on tcp:")).expect(log);
    line.rsplit("tcp:").next().unwrap().trim().into()
}

/// The answer to a request, its head included.
pub(crate) fn get(address: &str, request: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}
