//! A volume in a file that is served, and a client in the transmission phase.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_cipher::{Key, SectorCipher, SectorSize, build};
use underseal_datapath::Mapping;
use underseal_device::{FileDevice, OpenOptions};
use underseal_export::nbd::protocol::{
    BASE_ALLOCATION, CommandFlags, RequestHeader, RequestType, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
    TransmissionFlags, option, option_reply,
};
use underseal_export::nbd::{ExportInfo, Exports, MAX_PAYLOAD, ServerConfig, VolumeHandler};
use underseal_volume::{Segment, Volume};

use crate::client::{Client, contexts};
use crate::fixture::{PATIENCE, Served, Stream};

/// The size of the volume in bytes.
pub(crate) const SIZE: u64 = 64 << 20;

pub(crate) fn cipher(spec: &str) -> Arc<dyn SectorCipher> {
    let key: &[u8] = if spec.starts_with("cipher_null") {
        &[]
    } else {
        &std::array::from_fn::<u8, 64, _>(|i| i.to_le_bytes()[0])
    };
    build(&spec.parse().unwrap(), &Key::new(key).unwrap(), SectorSize::S4096).unwrap()
}

pub(crate) struct Disk {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) served: Served,
}

impl Disk {
    pub(crate) fn new(spec: &str, options: OpenOptions) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("image");
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        Self { served: serve(&path, spec, options), folder }
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    pub(crate) fn client(&self, structured: bool) -> Talker {
        let mut client = self.served.client();
        if structured {
            assert_eq!(client.verdict(option::STRUCTURED_REPLY, &[]).unwrap(), option_reply::ACK);
            let meta = contexts("", &[BASE_ALLOCATION]);
            assert_eq!(client.verdict(option::SET_META_CONTEXT, &meta).unwrap(), option_reply::ACK);
        }
        client.go("").unwrap();
        Talker { client, next: 0 }
    }
}

pub(crate) fn serve(path: &Path, spec: &str, options: OpenOptions) -> Served {
    let device = Arc::new(FileDevice::open(path, options).unwrap());
    let segment = Segment::stored(0, SIZE, 0, 0, cipher(spec));
    let volume = Volume::new(vec![segment]).unwrap().with_discards(spec.starts_with("cipher_null"));
    let mapping = Arc::new(Mapping::new(volume, device).unwrap());
    let export = ExportInfo {
        name: "volume".into(),
        description: String::new(),
        size: SIZE,
        min_block: mapping.block(),
        preferred_block: mapping.preferred_block(),
        max_block: MAX_PAYLOAD,
        flags: TransmissionFlags::SEND_FLUSH
            | TransmissionFlags::SEND_FUA
            | TransmissionFlags::SEND_WRITE_ZEROES
            | TransmissionFlags::SEND_FAST_ZERO
            | TransmissionFlags::SEND_DF
            | TransmissionFlags::SEND_CACHE,
    };
    let config =
        ServerConfig { drain_timeout: PATIENCE, ..ServerConfig::new(Exports::new(vec![export]).unwrap()) };
    Served::unix(config, VolumeHandler::new(vec![mapping]))
}

/// A client in the transmission phase that numbers its requests.
pub(crate) struct Talker {
    pub(crate) client: Client<Box<dyn Stream>>,
    pub(crate) next: u64,
}

/// A reply: the request's number, its error, its data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
}

impl Talker {
    pub(crate) fn send(
        &mut self,
        command: RequestType,
        flags: CommandFlags,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> u64 {
        self.next += 1;
        let cookie = self.next.to_be_bytes();
        let header = RequestHeader { flags, command, cookie, offset, length }.encode();
        self.client.0.write_all(&[&header[..], payload].concat()).unwrap();
        self.next
    }

    /// Reads one reply: simple (of a read of `len` bytes) or one structured chunk with the done
    /// flag.
    pub(crate) fn answer(&mut self, len: usize) -> Answer {
        match self.client.u32().unwrap() {
            SIMPLE_REPLY_MAGIC => {
                let error = self.client.u32().unwrap();
                let number = self.client.u64().unwrap();
                let mut data = vec![0; if error == 0 { len } else { 0 }];
                self.client.0.read_exact(&mut data).unwrap();
                Answer { number, error, data }
            }
            STRUCTURED_REPLY_MAGIC => {
                let [_, done, high, low] = self.client.array::<4>().unwrap();
                assert_eq!(done, 1);
                let number = self.client.u64().unwrap();
                let mut payload = vec![0; self.client.u32().unwrap() as usize];
                self.client.0.read_exact(&mut payload).unwrap();
                let kind = u16::from_be_bytes([high, low]);
                let (error, data) = match kind {
                    0 => (0, Vec::new()),
                    1 => (0, payload.split_off(8)),
                    5 => (0, payload.split_off(4)),
                    0x8001 => (u32::from_be_bytes(payload[..4].try_into().unwrap()), Vec::new()),
                    other => panic!("chunk type {other:#x}"),
                };
                Answer { number, error, data }
            }
            other => panic!("reply magic {other:#x}"),
        }
    }

    pub(crate) fn ask(
        &mut self,
        command: RequestType,
        flags: CommandFlags,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Answer {
        let number = self.send(command, flags, offset, length, payload);
        let len = if command == RequestType::Read { length as usize } else { 0 };
        let answer = self.answer(len);
        assert_eq!(answer.number, number);
        answer
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Answer {
        self.ask(RequestType::Write, CommandFlags::empty(), offset, u32::try_from(data.len()).unwrap(), data)
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let answer =
            self.ask(RequestType::Read, CommandFlags::empty(), offset, u32::try_from(len).unwrap(), &[]);
        assert_eq!(answer.error, 0);
        answer.data
    }
}
