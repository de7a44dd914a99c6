//! An ioctl of a test's own.

use rustix::io::Errno;
use underseal_cipher::Key;
use underseal_dm::header::{HEADER, Message};
use underseal_dm::{Caller, Command, GrantedKeys, Mapper, server};

/// An ioctl's buffer.
#[derive(Default, Clone)]
pub(crate) struct Ioctl {
    pub(crate) name: &'static str,
    pub(crate) uuid: &'static str,
    pub(crate) dev: u64,
    pub(crate) flags: u32,
    pub(crate) event: u32,
    pub(crate) count: u32,
    pub(crate) data: Vec<u8>,
    /// The number of bytes besides the structure and the data.
    pub(crate) room: usize,
}

impl Ioctl {
    pub(crate) fn named(name: &'static str) -> Self {
        Self { name, room: 1000, ..Self::default() }
    }

    pub(crate) fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    pub(crate) fn buffer(&self) -> Key {
        let size = HEADER + self.data.len() + self.room;
        let mut key = Key::zeroed(size).unwrap();
        let bytes = key.as_mut_bytes();
        let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        put(0, 4);
        put(12, u32::try_from(size).unwrap());
        put(16, 312);
        put(20, self.count);
        put(28, self.flags);
        put(32, self.event);
        bytes[40..48].copy_from_slice(&self.dev.to_ne_bytes());
        bytes[48..48 + self.name.len()].copy_from_slice(self.name.as_bytes());
        bytes[176..176 + self.uuid.len()].copy_from_slice(self.uuid.as_bytes());
        bytes[HEADER..HEADER + self.data.len()].copy_from_slice(&self.data);
        key
    }

    pub(crate) fn ask(&self, mapper: &Mapper, command: Command) -> Result<Message, Errno> {
        self.ask_while(&|| false, mapper, command)
    }

    /// Asks while the caller exists.
    pub(crate) fn ask_while(
        &self,
        is_there: &dyn Fn() -> bool,
        mapper: &Mapper,
        command: Command,
    ) -> Result<Message, Errno> {
        let request = 0xc138_fd00 | command as u32;
        let caller = Caller { is_there, keys: &GrantedKeys::default() };
        server::answer(mapper, request, self.buffer(), &caller).map_err(|e| e.errno())
    }
}

/// Returns a load of lines `(length, target, parameters)`.
pub(crate) fn load(name: &'static str, lines: &[(u64, &str, &str)]) -> Ioctl {
    let mut data = Vec::new();
    let mut start = 0_u64;
    for (len, target, params) in lines {
        let begin = data.len();
        data.extend(start.to_ne_bytes());
        data.extend(len.to_ne_bytes());
        data.extend([0; 24]);
        data[begin + 24..begin + 24 + target.len()].copy_from_slice(target.as_bytes());
        data.extend(params.as_bytes());
        data.push(0);
        data.resize(data.len().next_multiple_of(8), 0);
        let next = u32::try_from(data.len() - begin).unwrap();
        data[begin + 20..begin + 24].copy_from_slice(&next.to_ne_bytes());
        start += len;
    }
    Ioctl { count: u32::try_from(lines.len()).unwrap(), data, ..Ioctl::named(name) }
}

pub(crate) fn text(name: &'static str, text: &str) -> Ioctl {
    Ioctl { data: [text.as_bytes(), b"\0"].concat(), ..Ioctl::named(name) }
}

pub(crate) fn message(name: &'static str, sector: u64, text: &str) -> Ioctl {
    let data = [&sector.to_ne_bytes(), text.as_bytes(), b"\0"].concat();
    Ioctl { data, ..Ioctl::named(name) }
}

/// Creates a device with a live table.
pub(crate) fn open(mapper: &Mapper, name: &'static str, lines: &[(u64, &str, &str)]) -> Message {
    Ioctl::named(name).ask(mapper, Command::DevCreate).unwrap();
    load(name, lines).ask(mapper, Command::TableLoad).unwrap();
    Ioctl::named(name).ask(mapper, Command::DevSuspend).unwrap()
}
