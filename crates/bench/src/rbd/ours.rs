//! Our queue over an image, like in a server's thread: under a cipher and without a cipher, over
//! one connection.

use std::sync::Arc;

use underseal_cipher::{Key, SectorSize, build};
use underseal_datapath::{Mapping, Policy, Queue, QueueOptions, Request};
use underseal_device::{Device, RbdDevice};
use underseal_volume::{Segment, Volume};

use super::drive::{Drive, NextOffset};
use super::images::{DATA, key};
use super::{BenchError, Workload};

/// The largest number of bytes in flight, as in a server's queue.
const MEMORY: usize = 32 << 20;
const DEPTH: u32 = 128;

pub(super) struct Ours {
    encrypted: Arc<Mapping>,
    plain: Arc<Mapping>,
}

impl Ours {
    pub(super) fn open(image: &str, size: u64) -> Result<Self, BenchError> {
        let work = || -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
            let device: Arc<dyn Device> = Arc::new(RbdDevice::open(&image.parse()?, false, None)?);
            let mapping = |spec: &str, key: &[u8]| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
                let cipher = build(&spec.parse()?, &Key::new(key)?, SectorSize::S4096)?;
                let volume = Volume::new(vec![Segment::stored(0, size, DATA, 0, cipher)])?;
                let mapping = Mapping::new(volume, device.clone())?;
                // Like in a server.
                mapping.set_policy(Policy::ADAPTIVE)?;
                Ok(Arc::new(mapping))
            };
            Ok(Self {
                encrypted: mapping("aes-xts-plain64", &key())?,
                plain: mapping("cipher_null-ecb", &[])?,
            })
        };
        work().map_err(|e| BenchError::because(format!("{image} cannot be opened"), e))
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        // The lock is released even while another reference to the device exists.
        self.encrypted.let_go();
    }
}

impl Drive for Ours {
    fn drive(
        &mut self,
        workload: Workload,
        ciphers: bool,
        places: NextOffset<'_>,
    ) -> Result<u64, BenchError> {
        let mapping = if ciphers { &self.encrypted } else { &self.plain };
        let options = QueueOptions { depth: DEPTH, max_request: MEMORY };
        let failed = |e: underseal_datapath::Error| BenchError::because("a request failed", e);
        let mut queue = Queue::open(mapping.clone(), options).map_err(failed)?;
        let full = || BenchError::new("the queue has no room");
        let mut submit = |queue: &mut Queue, tag: u64| -> Result<bool, BenchError> {
            let Some(offset) = places() else { return Ok(false) };
            let request = if workload.writes {
                let data = queue.alloc(workload.block).ok_or_else(full)?;
                Request::Write { offset, data, durable: false }
            } else {
                Request::Read { offset, len: workload.block }
            };
            queue.submit(tag, request).map(|()| true).map_err(|_| full())
        };
        let (mut requests, mut in_flight) = (0, 0);
        for tag in 0..workload.depth as u64 {
            in_flight += u64::from(submit(&mut queue, tag)?);
        }
        while in_flight > 0 {
            let Some(over) = queue.next_completion() else {
                queue.wait().map_err(|e| BenchError::because("the queue cannot wait", e))?;
                continue;
            };
            over.result.map_err(failed)?;
            over.buffer.into_iter().for_each(|buffer| queue.free(buffer));
            requests += 1;
            in_flight -= 1;
            in_flight += u64::from(submit(&mut queue, over.tag)?);
        }
        Ok(requests)
    }
}
