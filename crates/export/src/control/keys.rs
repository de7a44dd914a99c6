//! Wiping, checking and setting the key of an open volume.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use underseal_cipher::{Key, SectorCipher};
use underseal_datapath::{self as datapath, Mapping};
use underseal_volume::{self as volume, ErrorKind, KeyCheck, Keyless};

use super::protocol::{Refusal, RefusalKind};
use super::volume::Answer;

/// How long threads may take to drop the key.
const FORGETTING: Duration = Duration::from_secs(10);

/// A volume's key state: how to recognise the key, and the key where the server keeps it.
pub(super) struct Keys {
    mapping: Arc<Mapping>,
    check: Option<KeyCheck>,
    /// The key for a new server of a handover; `None` once it is wiped.
    key: Option<Arc<Key>>,
    /// Whether the server keeps the key.
    keeps: bool,
    /// The volume without its wiped key: no operation changes the volume until the key is set
    /// again.
    wiped: Option<Keyless>,
    /// The wiped key's ciphers, which threads may still have.
    held: Vec<Weak<dyn SectorCipher>>,
}

impl Keys {
    pub(super) fn new(mapping: Arc<Mapping>, check: Option<KeyCheck>, key: Option<Arc<Key>>) -> Self {
        Self { mapping, check, keeps: key.is_some(), key, wiped: None, held: Vec::new() }
    }

    /// Returns the key, where the server keeps it. A reencryption does not update it, so the caller
    /// has to test it first.
    pub(super) fn key(&self) -> Option<Arc<Key>> {
        self.key.clone()
    }

    /// Keeps no key from now on, where no new server will need it.
    pub(super) fn keep_none(&mut self) {
        (self.key, self.keeps) = (None, false);
    }

    /// Refuses to wipe a key that could never be set again: clients would lose the volume.
    pub(super) fn can_be_wiped(&self) -> Answer {
        self.mapping.volume().map_or(Ok(()), |volume| volume.without_key().map(drop)).map_err(|e| keyless(&e))
    }

    /// Drops the key, and waits until no thread has it; also after an earlier call that did not.
    pub(super) fn wipe(&mut self, refused: impl Fn(&datapath::Error) -> Refusal) -> Answer {
        let (mut ciphers, mut wiped) = (Vec::<Weak<dyn SectorCipher>>::new(), Ok(()));
        if let Some(volume) = self.mapping.volume() {
            self.wiped = Some(volume.without_key().map_err(|e| keyless(&e))?);
            let stored = volume.segments().iter().filter_map(|segment| segment.as_stored());
            let keyed = stored.filter(|stored| stored.cipher_parameters.is_some());
            ciphers.extend(keyed.map(|stored| Arc::downgrade(&stored.cipher)));
            drop(volume);
            wiped = self.mapping.wipe_key();
        }
        // A queue that does not answer has the key still, but the volume has it no longer.
        if self.mapping.volume().is_none() {
            // No other thread has a copy: a handover excludes all other operations.
            self.key = None;
            self.held.append(&mut ciphers);
        }
        wiped.map_err(|e| refused(&e))?;
        // Each thread that serves the volume drops the key when it takes over the new settings
        // version.
        let deadline = Instant::now() + FORGETTING;
        while self.held.iter().any(|cipher| cipher.strong_count() > 0) {
            if Instant::now() > deadline {
                let message =
                    "the key is wiped for all requests to come, but a thread still holds it in memory";
                return Err(Refusal::new(RefusalKind::Failed, message, "`underseal close`"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.held.clear();
        Ok(())
    }

    /// Sets the key of a suspended volume. Where a header has a digest, only the volume's own key
    /// is accepted. \ `newer` is the digest where it has changed since the volume was opened.
    pub(super) fn set(
        &mut self,
        key: &Key,
        newer: Option<KeyCheck>,
        refused: impl Fn(&datapath::Error) -> Refusal,
    ) -> Answer {
        let present = self.mapping.volume().map(|volume| volume.without_key()).transpose();
        let present = present.map_err(|e| keyless(&e))?;
        let none = || Refusal::new(RefusalKind::Unsupported, "it had no key when it was opened", "");
        let keyless = present.as_ref().or(self.wiped.as_ref()).ok_or_else(none)?;
        let bits = keyless.cipher_parameters().key_size * 8;
        let volume = keyless.with_key(key).map_err(|e| {
            let remedy = format!("a key of {bits} bits, as {} digits", bits / 4);
            Refusal::new(RefusalKind::Key, e.to_string(), remedy)
        })?;
        if let Some(check) = newer.as_ref().or(self.check.as_ref()) {
            check.confirm(key).map_err(|e| match e.kind() {
                ErrorKind::WrongKey => {
                    let remedy = "the key, or a passphrase, of this volume; until then it stays suspended";
                    Refusal::new(RefusalKind::WrongKey, e.to_string(), remedy)
                }
                _ => Refusal::new(RefusalKind::Failed, e.to_string(), ""),
            })?;
        }
        self.mapping.replace_volume(volume).map_err(|e| refused(&e))?;
        // A failed copy rules out a handover, but the volume is served all the same.
        self.key = self.keeps.then(|| Key::new(key.as_bytes()).ok()).flatten().map(Arc::new);
        Ok(())
    }
}

fn keyless(error: &volume::Error) -> Refusal {
    Refusal::new(RefusalKind::Unsupported, error.to_string(), "")
}

#[cfg(test)]
mod tests {
    use underseal_cipher::SectorSize;
    use underseal_datapath::{Queue, QueueOptions};
    use underseal_device::RamDevice;
    use underseal_volume::{CipherParameters, Segment, Volume};

    use super::*;

    const SIZE: u64 = 1 << 20;

    #[test]
    fn a_wipe_that_a_thread_keeps_waiting_leaves_no_copy_of_the_key() {
        let key = || Key::new(&[7; 64]).unwrap();
        let spec = "aes-xts-plain64".parse().unwrap();
        let parameters = CipherParameters::new(&spec, SectorSize::S4096, 64);
        let segment = Segment::stored(0, SIZE, 0, 0, parameters.build(&key()).unwrap());
        let volume = Volume::new(vec![segment.with_recipe(parameters)]).unwrap();
        let mapping = Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(SIZE))).unwrap());
        let options = QueueOptions { depth: 1, max_request: 4096 };
        let mut queue = Queue::open(mapping.clone(), options).unwrap();
        std::thread::scope(|scope| {
            let suspended = scope.spawn(|| mapping.suspend(FORGETTING).unwrap());
            while !suspended.is_finished() {
                queue.poll().unwrap();
            }
        });
        let mut keys = Keys::new(mapping.clone(), None, Some(Arc::new(key())));
        let refused = |e: &datapath::Error| Refusal::new(RefusalKind::Failed, e.to_string(), "");
        // This thread's queue answers nothing meanwhile.
        assert!(keys.wipe(refused).unwrap_err().message.contains("still has the old key"));
        assert!(keys.key().is_none(), "the server keeps a copy");
        queue.poll().unwrap();
        keys.wipe(refused).unwrap();
    }
}
