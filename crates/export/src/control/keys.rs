//! A volume's key as its operator handles it: wiped, checked, set.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use underseal_cipher::{Key, SectorCipher};
use underseal_datapath::{self as datapath, Mapping};
use underseal_volume::{self as volume, ErrorKind, KeyCheck, Keyless};

use super::protocol::{Refusal, RefusalKind};
use super::volume::Answer;

/// How long threads may take to notice that the key is gone.
const FORGETTING: Duration = Duration::from_secs(10);

/// What is known of a volume's key without it.
pub(super) struct Keys {
    mapping: Arc<Mapping>,
    check: Option<KeyCheck>,
    /// For who takes the volume over; none once it is wiped.
    key: Option<Arc<Key>>,
    /// Whether it is kept at all.
    keeps: bool,
    /// What the wiped key was in: nobody changes the volume until it has one again.
    wiped: Option<Keyless>,
}

impl Keys {
    pub(super) fn new(mapping: Arc<Mapping>, check: Option<KeyCheck>, key: Option<Arc<Key>>) -> Self {
        Self { mapping, check, keeps: key.is_some(), key, wiped: None }
    }

    /// The key, where it is kept. A reencryption does not change it here: whoever uses it tries it
    /// first.
    pub(super) fn key(&self) -> Option<Arc<Key>> {
        self.key.clone()
    }

    /// A volume that could never get a key again would be lost to its clients.
    pub(super) fn can_be_wiped(&self) -> Answer {
        self.mapping.volume().map_or(Ok(()), |volume| volume.without_key().map(drop)).map_err(|e| keyless(&e))
    }

    /// Forgets the key, and waits until no thread has it.
    pub(super) fn wipe(&mut self, refused: impl Fn(&datapath::Error) -> Refusal) -> Answer {
        let Some(volume) = self.mapping.volume() else { return Ok(()) };
        self.wiped = Some(volume.without_key().map_err(|e| keyless(&e))?);
        let stored = volume.segments().iter().filter_map(|segment| segment.as_stored());
        let keyed = stored.filter(|stored| stored.recipe.is_some());
        let ciphers: Vec<Weak<dyn SectorCipher>> =
            keyed.map(|stored| Arc::downgrade(&stored.cipher)).collect();
        drop(volume);
        self.mapping.wipe_key().map_err(|e| refused(&e))?;
        // Nobody has a copy: who hands the volume over keeps all others out.
        self.key = None;
        // Each thread that serves the volume drops the key as it learns of it.
        let deadline = Instant::now() + FORGETTING;
        while ciphers.iter().any(|cipher| cipher.strong_count() > 0) {
            if Instant::now() > deadline {
                let message =
                    "the key is wiped for all requests to come, but a thread still holds it in memory";
                return Err(Refusal::new(RefusalKind::Failed, message, "`underseal close`"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Gives a suspended volume a key: the volume's own, where a header tells.
    ///
    /// `newer` is what tells that where it is not what it was when the volume was opened.
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
        let bits = keyless.recipe().key_size * 8;
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
        // Without a copy it cannot be handed over, and is served all the same.
        self.key = self.keeps.then(|| Key::new(key.as_bytes()).ok()).flatten().map(Arc::new);
        Ok(())
    }
}

fn keyless(error: &volume::Error) -> Refusal {
    Refusal::new(RefusalKind::Unsupported, error.to_string(), "")
}
