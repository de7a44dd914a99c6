//! A server on a Unix socket or a port, with a disk in memory behind it.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command as Process,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use tempfile::TempDir;
use underseal_export::nbd::{
    Connection, ConnectionHandler, ExportInfo, Exports, Server, ServerConfig, Stopper,
    protocol::{
        CHUNK_HEADER_LEN, Errno, ExtentState, OFFSET_DATA_HEADER_LEN, REQUEST_LEN, RequestHeader,
        RequestType, TransmissionFlags, block_descriptor, block_status_header, none_chunk,
        offset_data_header, simple_reply,
    },
};
use underseal_export::net::{Endpoint, Listener, listen};

pub(crate) use underseal_testing::PATIENCE;

use crate::client::{Client, FLAGS};

/// A running server; dropping it stops the server and waits for its end.
pub(crate) struct Served {
    pub(crate) directory: TempDir,
    tcp: Option<SocketAddr>,
    stopper: Stopper,
    thread: Option<JoinHandle<underseal_export::Result<()>>>,
}

impl Served {
    /// On a Unix socket.
    pub(crate) fn unix(config: ServerConfig, handler: impl ConnectionHandler) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listeners = listen(&Endpoint::Unix(directory.path().join("nbd.sock"))).unwrap();
        Self::start(directory, listeners, config, handler)
    }

    /// On a port of 127.0.0.1.
    pub(crate) fn tcp(config: ServerConfig, handler: impl ConnectionHandler) -> Self {
        let endpoint = "tcp:127.0.0.1:0".parse().unwrap();
        Self::start(tempfile::tempdir().unwrap(), listen(&endpoint).unwrap(), config, handler)
    }

    fn start(
        directory: TempDir,
        listeners: Vec<Listener>,
        config: ServerConfig,
        handler: impl ConnectionHandler,
    ) -> Self {
        let tcp = listeners[0].tcp_address();
        let server = Server::new(config, listeners, Arc::new(handler)).unwrap();
        let stopper = server.stopper();
        Self { directory, tcp, stopper, thread: Some(std::thread::spawn(move || server.run())) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("nbd.sock")
    }

    pub(crate) fn port(&self) -> u16 {
        self.tcp.unwrap().port()
    }

    /// A connection before its first byte; a read on it fails after a long time instead of blocking
    /// a test.
    pub(crate) fn connect(&self) -> Box<dyn Stream> {
        let patience = Some(PATIENCE);
        match self.tcp {
            Some(address) => {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(patience).unwrap();
                Box::new(stream)
            }
            None => {
                let stream = UnixStream::connect(self.socket()).unwrap();
                stream.set_read_timeout(patience).unwrap();
                Box::new(stream)
            }
        }
    }

    /// A client after the greeting.
    pub(crate) fn client(&self) -> Client<Box<dyn Stream>> {
        Client::greet(self.connect(), FLAGS).unwrap()
    }

    /// A client that is being served.
    pub(crate) fn served_client(&self) -> Client<Box<dyn Stream>> {
        let mut client = self.client();
        client.go("disk").unwrap();
        client
    }

    pub(crate) fn begin_to_stop(&self) {
        self.stopper.stop();
    }

    /// Stops the server and returns its result.
    pub(crate) fn stop(mut self) -> underseal_export::Result<()> {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stopper.stop();
            thread.join().unwrap().unwrap();
        }
    }
}

pub(crate) trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// Bytes of the disk in memory.
pub(crate) const DISK: usize = 1 << 20;

/// The disk's contents: in the first half, each 512-byte sector begins with its number; the second
/// half is a hole.
pub(crate) fn disk() -> Vec<u8> {
    let mut disk = vec![0; DISK];
    for (number, sector) in disk[..DISK / 2].chunks_exact_mut(512).enumerate() {
        sector[..8].copy_from_slice(&(number as u64).to_be_bytes());
    }
    disk
}

/// An export "disk" of [`DISK`] bytes, and another, "big-sectors", whose minimum block is 4096.
pub(crate) fn exports() -> Exports {
    let disk = ExportInfo {
        name: "disk".into(),
        description: "a disk in memory".into(),
        size: DISK as u64,
        min_block: 512,
        preferred_block: 4096,
        max_block: 1 << 25,
        flags: TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_DF | TransmissionFlags::CAN_MULTI_CONN,
    };
    let big = ExportInfo {
        name: "big-sectors".into(),
        description: String::new(),
        min_block: 4096,
        ..disk.clone()
    };
    Exports::new(vec![disk, big]).unwrap()
}

pub(crate) fn config() -> ServerConfig {
    ServerConfig { handshake_timeout: PATIENCE, drain_timeout: PATIENCE, ..ServerConfig::new(exports()) }
}

/// Serves a disk from memory, one request after the other: enough for real clients to inspect and
/// copy.
pub(crate) struct MemoryDisk(Mutex<Vec<u8>>);

impl Default for MemoryDisk {
    fn default() -> Self {
        Self(Mutex::new(disk()))
    }
}

impl ConnectionHandler for MemoryDisk {
    fn serve(&self, mut connection: Connection) -> underseal_export::Result<()> {
        let mut header = [0; REQUEST_LEN];
        loop {
            match connection.transport.read_exact(&mut header) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                done => done?,
            }
            let request = RequestHeader::parse(&header).map_err(io::Error::other)?;
            if request.command == RequestType::Disconnect {
                break;
            }
            let mut payload = vec![0; request.payload_len() as usize];
            connection.transport.read_exact(&mut payload)?;
            connection.transport.write_all(&self.reply(&connection, &request, &payload))?;
            connection.transport.flush()?;
        }
        // The client may have closed the connection already.
        let _ = connection.transport.finish();
        Ok(())
    }
}

impl MemoryDisk {
    fn reply(&self, connection: &Connection, request: &RequestHeader, payload: &[u8]) -> Vec<u8> {
        let negotiated = &connection.negotiated;
        let mut disk = self.0.lock().unwrap();
        let range =
            usize::try_from(request.offset).unwrap()..usize::try_from(request.end().unwrap()).unwrap();
        let mut reply = [0; 64];
        let cookie = request.cookie;
        match (request.command, negotiated.base_allocation) {
            (RequestType::Read, _) if negotiated.structured_replies => {
                let header = offset_data_header(&mut reply, cookie, false, request.offset, request.length);
                assert_eq!(header, OFFSET_DATA_HEADER_LEN);
                let mut end = [0; CHUNK_HEADER_LEN];
                none_chunk(&mut end, cookie);
                [&reply[..header], &disk[range], &end].concat()
            }
            (RequestType::Read, _) => {
                let header = simple_reply(&mut reply, cookie, None);
                [&reply[..header], &disk[range]].concat()
            }
            (RequestType::BlockStatus, Some(context)) => {
                let header = block_status_header(&mut reply, cookie, true, context, 2);
                // No test asks for more than the disk, nor for less than half of it.
                let data = u32::try_from(DISK / 2).unwrap();
                let first = block_descriptor(&mut reply[header..], data, ExtentState::empty());
                let second =
                    block_descriptor(&mut reply[header + first..], request.length - data, ExtentState::all());
                reply[..header + first + second].to_vec()
            }
            (RequestType::Write, _) => {
                disk[range].copy_from_slice(payload);
                let length = simple_reply(&mut reply, cookie, None);
                reply[..length].to_vec()
            }
            (command, _) => {
                let error = (command != RequestType::Flush).then_some(Errno::Inval);
                let length = simple_reply(&mut reply, cookie, error);
                reply[..length].to_vec()
            }
        }
    }
}

/// Runs a tool and returns what it printed. A tool that is missing or fails fails the test.
pub(crate) fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Process::new(tool).args(arguments).output().unwrap_or_else(|error| {
        panic!("{tool}: {error}; install libnbd-bin, python3-libnbd, qemu-utils and openssl for these tests")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{tool} {arguments:?}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Makes a CA, a certificate for localhost and one for a client, under the names that libnbd and
/// qemu look for.
pub(crate) fn make_certificates(directory: &Path) {
    let openssl = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output =
            Process::new("openssl").args(&arguments).current_dir(directory).output().expect("openssl");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(
        directory.join("ext"),
        "[server]\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:false\n\
         [client]\nbasicConstraints=CA:false\nextendedKeyUsage=clientAuth\n",
    )
    .unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc";
    openssl(&format!("req -x509 {key} -days 2 -subj /CN=test-ca -keyout ca-key.pem -out ca-cert.pem"));
    for who in ["server", "client"] {
        openssl(&format!("req -new {key} -subj /CN=localhost -keyout {who}-key.pem -out {who}.csr"));
        openssl(&format!(
            "x509 -req -in {who}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile ext \
             -extensions {who} -out {who}-cert.pem"
        ));
    }
}
