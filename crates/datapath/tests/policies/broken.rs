//! A cipher that refuses sectors, because they do not match their tags.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use underseal_cipher::{BadSector, InOutBuf, SectorCipher, SectorSize};
use underseal_datapath::{ErrorKind, Mapping, Request};
use underseal_device::RamDevice;

use super::*;

/// A cipher that refuses one sector, in one direction or both.
struct Refuses {
    inner: Arc<dyn SectorCipher>,
    /// The sector's number in the volume.
    sector: u64,
    encrypts: AtomicBool,
    decrypts: AtomicBool,
}

impl Refuses {
    fn look(&self, first: u64, len: usize, active: &AtomicBool) -> Result<(), BadSector> {
        let first = first >> 3;
        let count = len as u64 / SECTOR;
        if !active.load(SeqCst) || !(first..first + count).contains(&self.sector) {
            return Ok(());
        }
        Err(BadSector(usize::try_from(self.sector - first).unwrap()))
    }
}

impl SectorCipher for Refuses {
    fn sector_size(&self) -> SectorSize {
        self.inner.sector_size()
    }

    fn encrypt(&self, _: u64, _: InOutBuf<'_, '_, u8>) {
        panic!("who cannot fail is not asked");
    }

    fn decrypt(&self, _: u64, _: InOutBuf<'_, '_, u8>) {
        panic!("who cannot fail is not asked");
    }

    fn is_local(&self) -> bool {
        true
    }

    fn seal(&self, first: u64, data: InOutBuf<'_, '_, u8>, tags: &mut [u8]) -> Result<(), BadSector> {
        self.look(first, data.len(), &self.encrypts)?;
        self.inner.seal(first, data, tags)
    }

    fn open(&self, first: u64, data: InOutBuf<'_, '_, u8>, tags: &[u8]) -> Result<(), BadSector> {
        self.look(first, data.len(), &self.decrypts)?;
        self.inner.open(first, data, tags)
    }
}

fn refuses(sector: u64) -> Arc<Refuses> {
    let inner = xts(SectorSize::S4096);
    Arc::new(Refuses { inner, sector, encrypts: AtomicBool::new(false), decrypts: AtomicBool::new(false) })
}

#[test]
fn a_sector_that_the_cipher_refuses_fails_its_request_and_is_named() {
    // The third sector of the fourth request.
    const BAD: u64 = 3 * 16 + 2;
    for text in POLICIES {
        let cipher = refuses(BAD);
        let mapping = Mapping::new(volume(cipher.clone()), Arc::new(RamDevice::new(SIZE))).unwrap();
        let mapping = mapping.with_block(512).unwrap();
        let mapping = Arc::new(mapping);
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        let name = format!("byte {}", BAD * SECTOR);
        let check = |over: Vec<underseal_datapath::Completion>, what: &str| {
            for completion in over {
                let failed = completion.result.err();
                let kind = failed.as_ref().map(|e| e.kind());
                let expected = (completion.tag == 3).then_some(ErrorKind::Integrity);
                assert_eq!(kind, expected, "{text}: {what} {}", completion.tag);
                assert!(failed.is_none_or(|e| e.to_string().contains(&name)), "{text}: {what}");
            }
        };
        for round in 0..2 {
            (0..8).for_each(|tag| submit_write(&mut queue, tag, tag * 65536, 65536, 8));
            succeed(&mut queue);
            cipher.decrypts.store(true, SeqCst);
            for tag in 0..8 {
                queue.submit(tag, Request::Read { offset: tag * 65536, len: 65536 }).unwrap();
            }
            check(finish(&mut queue), "read");
            // A part of the sector cannot be changed either.
            submit_write(&mut queue, 3, BAD * SECTOR + 512, 1024, 9);
            check(finish(&mut queue), "change");
            cipher.decrypts.store(false, SeqCst);
            cipher.encrypts.store(true, SeqCst);
            for tag in 0..8 {
                if round == 0 {
                    submit_write(&mut queue, tag, tag * 65536, 65536, 8);
                } else {
                    queue.write_in_place(tag, tag * 65536, &mut [8; 65536], false).unwrap();
                }
            }
            check(finish(&mut queue), "write");
            let (offset, len) = (3 * 65536, 65536);
            let zeroes = Request::WriteZeroes { offset, len, durable: false, punch: false, fast: false };
            queue.submit(3, zeroes).unwrap();
            check(finish(&mut queue), "zeroes");
            cipher.encrypts.store(false, SeqCst);
        }
        assert_eq!(mapping.stats().in_flight, 0);
        let whole = queue.alloc(16 << 20).expect("all memory has come back");
        queue.free(whole);
    }
}
