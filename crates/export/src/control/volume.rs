//! The requests of a control socket, answered for one volume, without the socket itself.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use underseal_cipher::Key;
use underseal_datapath::{self as datapath, Mapping, Policy};
use underseal_volume::KeyCheck;

use super::Name;
use super::keys::Keys;
use super::old_server::{self, OldServer};
use super::protocol::{Reencrypt, Refusal, RefusalKind, Reply, Request};
use super::reencryption::Reencrypter;
use super::status::{KeyState, Mismatches, Opened, Sandbox, Status, nanos};
use crate::TellSize;
use crate::fuse::FuseTransport;
use crate::net::Socket;

/// A lower device whose oldest request is older than this is reported.
const LONG: Duration = Duration::from_secs(3);

/// The description of a volume: the part of its state that seldom changes.
#[derive(Debug, Clone)]
pub struct Described {
    /// The volume's name.
    pub name: Name,
    /// The path or URI of the image.
    pub image: PathBuf,
    /// How the volume was opened.
    pub opened: Opened,
    /// The addresses of the exports: URIs, and the path of a mount.
    pub addresses: Vec<String>,
    /// The server's sandbox, once the server has entered it.
    pub sandbox: Arc<OnceLock<Sandbox>>,
    /// How the kernel passes a mount's requests.
    pub transport: Option<FuseTransport>,
}

/// Facts about how a volume was opened that are not part of its status.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The digest of the key, where the header has one.
    pub check: Option<KeyCheck>,
    /// The size in bytes, where a header has it.
    pub size: Option<u64>,
    /// The key itself, for the new server of a handover.
    pub key: Option<Arc<Key>>,
}

/// An open volume, for its control socket and its metrics.
pub struct Controlled {
    described: Described,
    size: Option<u64>,
    mapping: Arc<Mapping>,
    since: Instant,
    /// Locked during any operation that suspends or resumes the volume, or changes its key or size;
    /// not while a reencryption starts.
    keys: Mutex<Keys>,
    tell_size: Vec<TellSize>,
    reencrypter: Option<Arc<dyn Reencrypter>>,
    old_server: std::result::Result<Arc<OldServer>, String>,
    stop: Box<dyn Fn() + Send + Sync>,
}

pub(super) type Answer<T = ()> = std::result::Result<T, Refusal>;

impl Controlled {
    /// `tell_size` has one function for each export, which announces a new size; `stop` makes the
    /// server end as SIGTERM does, and returns at once.
    pub fn new(
        described: Described,
        known: Known,
        mapping: Arc<Mapping>,
        tell_size: Vec<TellSize>,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let Known { check, size, key } = known;
        let keys = Mutex::new(Keys::new(mapping.clone(), check, key));
        let (since, stop) = (Instant::now(), Box::new(stop));
        let old_server = Err("its server does not support handovers".to_owned());
        Self { described, size, mapping, since, keys, tell_size, reencrypter: None, old_server, stop }
    }

    /// Adds a reencrypter.
    #[must_use]
    pub fn with_reencrypter(mut self, reencrypter: Option<Arc<dyn Reencrypter>>) -> Self {
        // A volume that is or was reencrypted is not handed over.
        if reencrypter.as_ref().is_some_and(|reencrypter| reencrypter.status().is_some()) {
            self.keys().keep_none();
        }
        self.reencrypter = reencrypter;
        self
    }

    /// Adds the old server's side of a handover, or the reason why the volume cannot be handed
    /// over.
    #[must_use]
    pub fn with_old_server(mut self, old_server: std::result::Result<Arc<OldServer>, String>) -> Self {
        self.old_server = old_server;
        self
    }

    /// Answers a request. `Close` only asks the server to stop.
    pub fn answer(&self, request: &Request, key: Option<&Key>) -> Reply {
        let seconds = |seconds: &u32| Duration::from_secs((*seconds).into());
        let done = match (request, key) {
            (Request::Status, _) => return Reply::Status(Box::new(self.status())),
            (Request::SetPolicy(policy), _) => return self.set_policy(policy).unwrap_or_else(Reply::Refused),
            (Request::Resize { size, seconds: limit }, _) => {
                return self.resize(*size, seconds(limit)).unwrap_or_else(Reply::Refused);
            }
            (Request::Check { from }, _) => return self.check(*from).unwrap_or_else(Reply::Refused),
            (Request::Suspend { seconds: limit, wipe }, _) => self.suspend(seconds(limit), *wipe),
            (Request::Resume, _) => self.resume(),
            (Request::Message(words), _) => self.message(words),
            (Request::SetKey { resume, .. }, Some(key)) => self.set_key(key, *resume),
            (Request::Reencrypt(what), key) => self.reencrypt(what, key),
            (Request::HandOver { .. }, _) => Err(unrecognised("nobody is there to be given the volume")),
            (Request::SetKey { .. }, None) => Err(unrecognised("there is no key")),
            (Request::Close, _) => {
                (self.stop)();
                Ok(())
            }
        };
        done.map_or_else(Reply::Refused, |()| Reply::Done)
    }

    /// Returns the volume's state.
    pub fn status(&self) -> Status {
        let Described { name, image, opened, addresses, sandbox, transport } = &self.described;
        let mapping = &*self.mapping;
        let stats = mapping.stats();
        Status {
            name: name.to_string(),
            image: image.display().to_string(),
            opened: Some(opened.clone()),
            addresses: addresses.clone(),
            pid: std::process::id(),
            uptime_ns: nanos(self.since.elapsed()),
            size: mapping.size(),
            block: mapping.block(),
            read_only: mapping.read_only(),
            policy: mapping.policy().to_string(),
            suspended: mapping.is_suspended(),
            key: if mapping.volume().is_some() { KeyState::Set } else { KeyState::Wiped },
            fuse: transport.clone(),
            sandbox: sandbox.get().cloned(),
            can_reencrypt: self.reencrypter.is_some(),
            reencryption: self.reencrypter.as_ref().and_then(|reencrypter| reencrypter.status()),
            waiting: mapping.waiting(LONG).map(Into::into),
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
            mismatches: mapping
                .may_mismatch()
                .then_some(Mismatches { count: stats.mismatches, first: stats.mismatched }),
            cpu_paths: mapping.volume().and_then(|volume| {
                let mut stored = volume.segments().iter().filter_map(|segment| segment.as_stored());
                Some(stored.next()?.cipher.cpu_paths()?.map(|path| path.name().to_owned()))
            }),
        }
    }

    fn set_policy(&self, text: &str) -> Answer<Reply> {
        let policy: Policy = text.parse().map_err(|e: datapath::Error| self.refused(&e))?;
        self.mapping.set_policy(policy).map_err(|e| self.refused(&e))?;
        Ok(match policy.high_priority.then(datapath::may_run_first) {
            Some(Err(e)) => Reply::Noted(vec![format!(
                "high-priority has no effect, workers run like others: this server may not let them run first ({e}); it may \
                 where root opens the volume with --policy {policy}"
            )]),
            _ => Reply::Done,
        })
    }

    fn suspend(&self, limit: Duration, wipe: bool) -> Answer {
        let mut keys = self.keys();
        if wipe {
            // A key that could not be set again is not wiped.
            self.can_be_wiped(&keys)?;
        }
        let was_suspended = self.mapping.is_stopped();
        self.mapping.suspend(limit).map_err(|e| self.refused(&e))?;
        let wiped = if wipe { keys.wipe(|e| self.refused(e)) } else { Ok(()) };
        if wiped.is_err() && !was_suspended && self.mapping.volume().is_some() {
            self.mapping.resume().map_err(|e| self.refused(&e))?;
        }
        wiped
    }

    fn resume(&self) -> Answer {
        let _keys = self.keys();
        self.mapping.resume().map_err(|e| self.refused(&e))
    }

    fn message(&self, words: &str) -> Answer {
        if words.split_ascii_whitespace().ne(["key", "wipe"]) {
            return Err(unrecognised("`key wipe`, or `key set` with the key on stdin"));
        }
        let mut keys = self.keys();
        self.can_be_wiped(&keys)?;
        keys.wipe(|e| self.refused(e))
    }

    fn can_be_wiped(&self, keys: &Keys) -> Answer {
        if self.old_server.as_ref().is_ok_and(|old_server| old_server.is_at_it()) {
            let message = "it is handed over just now: another process has the key, too";
            return Err(Refusal::new(RefusalKind::Busy, message, "retry in a moment"));
        }
        keys.can_be_wiped()
    }

    fn set_key(&self, key: &Key, resume: bool) -> Answer {
        let mut keys = self.keys();
        if !self.mapping.is_stopped() {
            keys.can_be_wiped()?;
            return Err(self.not_suspended());
        }
        let newer = self.reencrypter.as_ref().and_then(|reencrypter| reencrypter.key_check());
        keys.set(key, newer, |e| self.refused(e))?;
        if resume { self.mapping.resume().map_err(|e| self.refused(&e)) } else { Ok(()) }
    }

    fn resize(&self, size: Option<u64>, limit: Duration) -> Answer<Reply> {
        let _keys = self.keys();
        let before = self.mapping.size();
        let size = self.mapping.resize(size.or(self.size), limit).map_err(|e| self.refused(&e))?;
        // Exports are notified even if the size did not change: an earlier notification may have
        // failed.
        let notes: Vec<_> = self.tell_size.iter().filter_map(|tell| tell(before, size)).collect();
        notes.iter().for_each(|note| log::warn!("resize: {note}"));
        Ok(Reply::Resized { size, notes })
    }

    fn check(&self, from: u64) -> Answer<Reply> {
        let name = &self.described.name;
        if self.mapping.is_stopped() {
            let remedy = format!("underseal resume {name}");
            return Err(Refusal::new(RefusalKind::Busy, "it is suspended: its data cannot be read", remedy));
        }
        if !self.mapping.is_authenticated() {
            let message = "its sectors are not authenticated: whatever is there reads as data";
            return Err(Refusal::new(RefusalKind::Unsupported, message, ""));
        }
        super::check::check(&self.mapping, from, |e| self.refused(e)).map(Reply::Checked)
    }

    fn reencrypt(&self, what: &Reencrypt, keys: Option<&Key>) -> Answer {
        let Some(reencrypter) = &self.reencrypter else {
            let message = "this volume cannot be reencrypted while it is open";
            return Err(Refusal::new(
                RefusalKind::Unsupported,
                message,
                "`underseal reencrypt` when it is closed",
            ));
        };
        match (what, keys) {
            (Reencrypt::Start { old, rate, .. }, Some(keys)) => {
                // Checking the keys takes long, so the lock is not held, and a suspend need not
                // wait for it: changes made meanwhile are noticed when the reencryption begins.
                let (old, new) = keys.as_bytes().split_at_checked(*old).ok_or_else(no_keys)?;
                let key = |bytes| Key::new(bytes);
                let keys = key(old).and_then(|old| Ok((old, key(new)?)));
                let (old, new) = keys.map_err(|e| Refusal::new(RefusalKind::Failed, e.to_string(), ""))?;
                reencrypter.start(&old, &new, *rate)?;
                self.keys().keep_none();
                Ok(())
            }
            (Reencrypt::Start { .. }, None) => Err(no_keys()),
            (Reencrypt::Pause, _) => reencrypter.pause(),
            (Reencrypt::GoOn, _) => reencrypter.go_on(),
            (Reencrypt::Stop, _) => reencrypter.stop(),
            (Reencrypt::Rate(rate), _) => reencrypter.set_rate(*rate),
        }
    }

    /// Hands the volume over to the client's process. The function returns only on failure: the
    /// refusal, and whether to send it to the client.
    pub(super) fn hand_over(&self, protocol: u32, client: &Socket) -> (Refusal, bool) {
        let state = old_server::State {
            described: &self.described,
            size: self.size,
            mapping: &self.mapping,
            keys: &self.keys,
            reencrypter: self.reencrypter.as_deref(),
        };
        let old_server = match &self.old_server {
            Ok(old_server) => old_server,
            Err(why) => return (Refusal::new(RefusalKind::Unsupported, why, old_server::INSTEAD), true),
        };
        let given = old_server.give(&state, protocol, client);
        if old_server.ends() {
            // The server was asked to stop during the handover.
            (self.stop)();
        }
        given
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_suspended(&self) -> Refusal {
        let name = &self.described.name;
        let remedy = format!("underseal suspend {name}");
        Refusal::new(RefusalKind::NotSuspended, "not suspended during key manipulation", remedy)
    }

    /// Converts an error to a refusal, in dm-crypt's words where dm-crypt has a message for it.
    fn refused(&self, error: &datapath::Error) -> Refusal {
        use datapath::ErrorKind as Kind;
        let name = &self.described.name;
        match error.kind() {
            Kind::NotSuspended => self.not_suspended(),
            Kind::NoKey => Refusal::new(
                RefusalKind::NoKey,
                "aborting resume - crypt key is not set.",
                format!("underseal resume {name} with its passphrase, or underseal message {name} key set"),
            ),
            Kind::Policy => {
                Refusal::new(RefusalKind::Policy, error.to_string(), "`underseal help policy` lists them")
            }
            Kind::Layout => Refusal::new(RefusalKind::Size, error.to_string(), ""),
            Kind::Busy => {
                Refusal::new(RefusalKind::Busy, error.to_string(), "again, with a longer --timeout")
            }
            Kind::Unsupported => Refusal::new(RefusalKind::Unsupported, error.to_string(), ""),
            _ => Refusal::new(RefusalKind::Failed, with_cause(error), ""),
        }
    }
}

fn no_keys() -> Refusal {
    unrecognised("there are no keys")
}

fn unrecognised(remedy: &str) -> Refusal {
    Refusal::new(RefusalKind::Request, "unrecognised message received.", remedy)
}

fn with_cause(error: &datapath::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}
