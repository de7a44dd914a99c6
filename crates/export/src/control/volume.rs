//! A volume as its control socket sees it: requests in, replies out. No socket here.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use underseal_cipher::Key;
use underseal_datapath::{self as datapath, Mapping, Policy};
use underseal_volume::{self as volume, Keyless};

use super::Name;
use super::protocol::{Refusal, RefusalKind, Reply, Request};
use super::status::{KeyState, Sandbox, Status, nanos};

/// What a volume tells of itself besides what it does.
#[derive(Debug, Clone)]
pub struct Described {
    /// What it is called.
    pub name: Name,
    /// What it was opened from.
    pub image: PathBuf,
    /// Where it is served: URIs, and the path of a mount.
    pub addresses: Vec<String>,
    /// What its process has given up, as soon as it has.
    pub sandbox: Arc<OnceLock<Sandbox>>,
}

/// An open volume, for its control socket and its metrics.
pub struct Controlled {
    described: Described,
    mapping: Arc<Mapping>,
    since: Instant,
    /// What another key is put into.
    keyless: Option<volume::Result<Keyless>>,
    stop: Box<dyn Fn() + Send + Sync>,
}

/// How long threads may take to notice that the key is gone.
const FORGETTING: Duration = Duration::from_secs(10);

type Answer<T = ()> = std::result::Result<T, Refusal>;

impl Controlled {
    /// `stop` makes the server end as SIGTERM does, and returns at once.
    pub fn new(described: Described, mapping: Arc<Mapping>, stop: impl Fn() + Send + Sync + 'static) -> Self {
        let keyless = mapping.volume().map(|volume| volume.without_key());
        Self { described, mapping, since: Instant::now(), keyless, stop: Box::new(stop) }
    }

    /// Does what is asked. `Close` only asks the server to stop.
    pub fn answer(&self, request: &Request, key: Option<&Key>) -> Reply {
        let done = match (request, key) {
            (Request::Status, _) => return Reply::Status(Box::new(self.status())),
            (Request::SetPolicy(policy), _) => self.set_policy(policy),
            (Request::Suspend { seconds }, _) => self.suspend(Duration::from_secs((*seconds).into())),
            (Request::Resume, _) => self.resume(),
            (Request::Message(words), _) => self.message(words),
            (Request::SetKey { .. }, Some(key)) => self.set_key(key),
            (Request::SetKey { .. }, None) => Err(unrecognised("there is no key")),
            (Request::Close, _) => {
                (self.stop)();
                Ok(())
            }
        };
        done.map_or_else(Reply::Refused, |()| Reply::Done)
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let Described { name, image, addresses, sandbox } = &self.described;
        let mapping = &*self.mapping;
        let stats = mapping.stats();
        Status {
            name: name.to_string(),
            image: image.display().to_string(),
            addresses: addresses.clone(),
            pid: std::process::id(),
            uptime_ns: nanos(self.since.elapsed()),
            size: mapping.size(),
            block: mapping.block(),
            read_only: mapping.read_only(),
            policy: mapping.policy().to_string(),
            suspended: mapping.is_suspended(),
            key: if mapping.volume().is_some() { KeyState::Set } else { KeyState::Wiped },
            sandbox: sandbox.get().cloned(),
            queues: stats.queues,
            in_flight: stats.in_flight,
            requests: super::status::Requests {
                read: stats.reads.into(),
                write: stats.writes.into(),
                flush: stats.flushes.into(),
                other: stats.others.into(),
            },
            backlog: stats.backlog.into(),
            dispatched: stats.dispatched.into(),
            latency: (&stats.stages).into(),
        }
    }

    fn set_policy(&self, text: &str) -> Answer {
        let policy: Policy = text.parse().map_err(|e: datapath::Error| self.refused(&e))?;
        self.mapping.set_policy(policy).map_err(|e| self.refused(&e))
    }

    fn suspend(&self, limit: Duration) -> Answer {
        self.mapping.suspend(limit).map_err(|e| self.refused(&e))
    }

    fn resume(&self) -> Answer {
        self.mapping.resume().map_err(|e| self.refused(&e))
    }

    fn message(&self, words: &str) -> Answer {
        if words.split_ascii_whitespace().ne(["key", "wipe"]) {
            return Err(unrecognised("`key wipe`, or `key set` with the key on stdin"));
        }
        // A volume that could never get a key again would be lost to its clients.
        self.keyless()?;
        let ciphers: Vec<_> = self.mapping.volume().map_or_else(Vec::new, |volume| {
            let stored = volume.segments().iter().filter_map(|segment| segment.as_stored());
            let keyed = stored.filter(|stored| stored.recipe.is_some());
            keyed.map(|stored| Arc::downgrade(&stored.cipher)).collect()
        });
        self.mapping.wipe_key().map_err(|e| self.refused(&e))?;
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

    fn set_key(&self, key: &Key) -> Answer {
        let keyless = self.keyless()?;
        if !self.mapping.is_suspended() {
            return Err(self.not_suspended());
        }
        let volume = keyless.with_key(key).map_err(|e| {
            let bits = keyless.recipe().key_size * 8;
            Refusal::new(
                RefusalKind::Key,
                e.to_string(),
                format!("a key of {bits} bits, as {} digits", bits / 4),
            )
        })?;
        self.mapping.replace_volume(volume).map_err(|e| self.refused(&e))
    }

    fn keyless(&self) -> Answer<&Keyless> {
        match &self.keyless {
            Some(Ok(keyless)) => Ok(keyless),
            Some(Err(e)) => Err(Refusal::new(RefusalKind::Unsupported, e.to_string(), "")),
            None => Err(Refusal::new(RefusalKind::Unsupported, "it had no key when it was opened", "")),
        }
    }

    fn not_suspended(&self) -> Refusal {
        let name = &self.described.name;
        let remedy = format!("underseal suspend {name}");
        Refusal::new(RefusalKind::NotSuspended, "not suspended during key manipulation", remedy)
    }

    /// In dm-crypt's words where it has some.
    fn refused(&self, error: &datapath::Error) -> Refusal {
        use datapath::ErrorKind as Kind;
        let name = &self.described.name;
        match error.kind() {
            Kind::NotSuspended => self.not_suspended(),
            Kind::NoKey => Refusal::new(
                RefusalKind::NoKey,
                "aborting resume - crypt key is not set.",
                format!("underseal message {name} key set --key-file FILE"),
            ),
            Kind::Policy => {
                Refusal::new(RefusalKind::Policy, error.to_string(), "`underseal help policy` lists them")
            }
            Kind::Busy => {
                Refusal::new(RefusalKind::Busy, error.to_string(), "again, with a longer --timeout")
            }
            Kind::Unsupported => Refusal::new(RefusalKind::Unsupported, error.to_string(), ""),
            _ => Refusal::new(RefusalKind::Failed, with_cause(error), ""),
        }
    }
}

fn unrecognised(remedy: &str) -> Refusal {
    Refusal::new(RefusalKind::Request, "unrecognised message received.", remedy)
}

fn with_cause(error: &datapath::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}
