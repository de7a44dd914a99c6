//! A small NBD client: one connection, simple replies, whatever order and whatever bytes a test
//! wants.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::tools::PATIENCE;

pub(crate) const EIO: u32 = 5;
pub(crate) const ENOSPC: u32 = 28;

/// Commands of doc/proto.md, "Request types".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
}

/// A client past its handshake.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) size: u64,
}

impl Client {
    /// Connects and asks for the default export.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        const ACK: u32 = 1;
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&Self::hello())?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut size = 0;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut payload = vec![0; word(16) as usize];
            stream.read_exact(&mut payload)?;
            match (word(12), payload.get(..2)) {
                (ACK, _) => return Ok(Self { stream, size }),
                // NBD_INFO_EXPORT
                (3, Some([0, 0])) => size = u64::from_be_bytes(payload[2..10].try_into().unwrap()),
                (3, _) => {}
                (kind, _) => return Err(io::Error::other(format!("NBD_OPT_GO: {kind:#x}"))),
            }
        }
    }

    /// All that a client says before the first request: newstyle fixed, no zeroes, NBD_OPT_GO for
    /// the default export with NBD_INFO_BLOCK_SIZE.
    pub(crate) fn hello() -> Vec<u8> {
        let go = [&0_u32.to_be_bytes()[..], &1_u16.to_be_bytes(), &3_u16.to_be_bytes()].concat();
        [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &7_u32.to_be_bytes(), &8_u32.to_be_bytes(), &go].concat()
    }

    /// A request's header.
    pub(crate) fn header(command: Command, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        [
            &0x2560_9513_u32.to_be_bytes()[..],
            &0_u16.to_be_bytes(),
            &(command as u16).to_be_bytes(),
            &cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
        ]
        .concat()
    }

    pub(crate) fn send_write(&mut self, cookie: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let header = Self::header(Command::Write, cookie, offset, u32::try_from(data.len()).unwrap());
        self.stream.write_all(&[&header, data].concat())
    }

    /// The next reply of a request without data: its cookie and error number.
    pub(crate) fn reply(&mut self) -> io::Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes(), "a simple reply's magic");
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        Ok((u64::from_be_bytes(reply[8..].try_into().unwrap()), error))
    }

    /// Writes and waits: `Err` is the server's error number.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.send_write(1, offset, data).unwrap();
        self.done()
    }

    pub(crate) fn flush(&mut self) -> Result<(), u32> {
        self.stream.write_all(&Self::header(Command::Flush, 1, 0, 0)).unwrap();
        self.done()
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, u32> {
        let header = Self::header(Command::Read, 1, offset, u32::try_from(len).unwrap());
        self.stream.write_all(&header).unwrap();
        self.done()?;
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        Ok(data)
    }

    fn done(&mut self) -> Result<(), u32> {
        match self.reply().unwrap() {
            (1, 0) => Ok(()),
            (1, error) => Err(error),
            (cookie, _) => panic!("a reply to request {cookie}, which was not sent"),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.stream.write_all(&Self::header(Command::Disconnect, 0, 0, 0));
    }
}
