//! A client that sends exactly the given bytes, over any stream.

use std::io::{self, Read, Write};

use underseal_export::nbd::protocol::{
    CommandFlags, INIT_PASSWD, OPTION_MAGIC, OPTION_REPLY_MAGIC, RequestHeader, RequestType,
    SIMPLE_REPLY_MAGIC, info, option, option_reply as reply,
};

pub(crate) struct Client<S>(pub(crate) S);

/// A reply to an option.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) option: u32,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
}

impl<S: Read + Write> Client<S> {
    /// Reads the greeting and answers with these flags.
    pub(crate) fn greet(stream: S, flags: u32) -> io::Result<Self> {
        let mut client = Self(stream);
        assert_eq!(client.u64()?, INIT_PASSWD);
        assert_eq!(client.u64()?, OPTION_MAGIC);
        assert_eq!(client.array::<2>()?, [0, 3], "fixed newstyle, no zeroes");
        client.0.write_all(&flags.to_be_bytes())?;
        Ok(client)
    }

    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        self.0.write_all(&message(option, data))?;
        self.0.flush()
    }

    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        assert_eq!(self.u64()?, OPTION_REPLY_MAGIC);
        let (option, kind, length) = (self.u32()?, self.u32()?, self.u32()?);
        let mut data = vec![0; length as usize];
        self.0.read_exact(&mut data)?;
        Ok(Reply { option, kind, data })
    }

    /// Sends an option and reads up to its final reply.
    pub(crate) fn ask(&mut self, option: u32, data: &[u8]) -> io::Result<Vec<Reply>> {
        self.option(option, data)?;
        let mut replies = Vec::new();
        loop {
            replies.push(self.reply()?);
            let last = replies.last().unwrap();
            assert_eq!(last.option, option);
            if last.kind == reply::ACK || last.kind >= reply::ERR_UNSUP {
                return Ok(replies);
            }
        }
    }

    /// The type of the final reply to an option.
    pub(crate) fn verdict(&mut self, option: u32, data: &[u8]) -> io::Result<u32> {
        Ok(self.ask(option, data)?.last().unwrap().kind)
    }

    /// GO for an export, asking for block sizes.
    pub(crate) fn go(&mut self, name: &str) -> io::Result<()> {
        match self.ask(option::GO, &go(name, &[info::BLOCK_SIZE]))?.pop().unwrap() {
            Reply { kind: reply::ACK, .. } => Ok(()),
            refused => Err(io::Error::other(String::from_utf8_lossy(&refused.data).into_owned())),
        }
    }

    /// A read with a simple reply.
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        self.0.write_all(&request(RequestType::Read, offset, length))?;
        self.0.flush()?;
        self.read_reply(length)
    }

    pub(crate) fn read_reply(&mut self, length: u32) -> io::Result<Vec<u8>> {
        assert_eq!(self.u32()?, SIMPLE_REPLY_MAGIC);
        let error = self.u32()?;
        assert_eq!(&self.array::<8>()?, COOKIE);
        if error != 0 {
            return Err(io::Error::other(format!("NBD error {error}")));
        }
        let mut data = vec![0; length as usize];
        self.0.read_exact(&mut data)?;
        Ok(data)
    }

    pub(crate) fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Waits for the server to close. Returns false when it sends a byte, or nothing for too long.
    pub(crate) fn is_closed(&mut self) -> bool {
        is_closed(&mut self.0)
    }
}

/// Flags of a client that knows fixed newstyle and wants no zeroes.
pub(crate) const FLAGS: u32 = 3;

/// Waits for the peer to close. Returns false when it sends a byte, or nothing for too long.
pub(crate) fn is_closed(stream: &mut impl Read) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}

const COOKIE: &[u8; 8] = b"a cookie";

pub(crate) fn message(option: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap().to_be_bytes();
    [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &length, data].concat()
}

pub(crate) fn request(command: RequestType, offset: u64, length: u32) -> Vec<u8> {
    RequestHeader { flags: CommandFlags::empty(), command, cookie: *COOKIE, offset, length }.encode().to_vec()
}

/// Data of INFO and GO.
pub(crate) fn go(name: &str, infos: &[u16]) -> Vec<u8> {
    let count = u16::try_from(infos.len()).unwrap();
    let infos: Vec<u8> = infos.iter().flat_map(|info| info.to_be_bytes()).collect();
    [&string(name)[..], &count.to_be_bytes(), &infos].concat()
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub(crate) fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let count = u32::try_from(queries.len()).unwrap();
    let queries: Vec<u8> = queries.iter().flat_map(|query| string(query)).collect();
    [&string(name)[..], &count.to_be_bytes(), &queries].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
}
