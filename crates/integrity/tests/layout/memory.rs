//! A disk in memory.

use std::io;
use std::sync::Mutex;

use underseal_integrity::Disk;

pub(crate) struct Memory(pub(crate) Mutex<Vec<u8>>);

impl Memory {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Disk for Memory {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let all = self.0.lock().unwrap();
        let from = usize::try_from(offset).unwrap();
        let there = all.get(from..).and_then(|tail| tail.get(..bytes.len()));
        bytes.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.lock().unwrap();
        let from = usize::try_from(offset).unwrap();
        let place = all.get_mut(from..).and_then(|tail| tail.get_mut(..bytes.len()));
        place.ok_or(io::ErrorKind::WriteZero)?.copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
