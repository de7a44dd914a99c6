//! What a volume tells about itself. These types are the JSON of `underseal status --json`; fields
//! are added, never changed. Times are in nanoseconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use underseal_datapath as datapath;

use super::protocol::Rate;
use crate::fuse::FuseTransport;

/// A volume's state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// What the volume is called.
    pub name: String,
    /// What it was opened from.
    pub image: String,
    /// How it was opened: nothing where its server is of a version that did not tell.
    #[serde(default)]
    pub opened: Option<Opened>,
    /// Where it is served: URIs, and the path of a mount.
    pub addresses: Vec<String>,
    /// The process that serves it.
    pub pid: u32,
    /// How long it has been open.
    pub uptime_ns: u64,
    /// In bytes.
    pub size: u64,
    /// What requests are multiples of, in bytes.
    pub block: u32,
    /// No writes.
    pub read_only: bool,
    /// Who runs the crypto, as `underseal policy` takes it.
    pub policy: String,
    /// No request is taken up.
    pub suspended: bool,
    /// `set`, or `wiped` by a message.
    pub key: KeyState,
    /// What its process has given up; nothing, where it has given up nothing, or is of a version
    /// that could not.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
    /// How the requests of its mount come from the kernel; nothing without one, and of servers that
    /// did not tell.
    #[serde(default)]
    pub fuse: Option<FuseTransport>,
    /// Whether its server could reencrypt it.
    #[serde(default)]
    pub can_reencrypt: bool,
    /// Its reencryption, where it is in one, or was in one since it was opened.
    #[serde(default)]
    pub reencryption: Option<Reencryption>,
    /// The lower device that requests wait for, where one has waited for some seconds.
    #[serde(default)]
    pub waiting: Option<Waiting>,
    /// Clients' streams of requests.
    pub queues: u64,
    /// Requests that came and are not over.
    pub in_flight: u64,
    /// Requests that are over.
    pub requests: Requests,
    /// What waits for a thread.
    pub backlog: Backlog,
    /// Where the crypto was done.
    pub dispatched: Dispatched,
    /// Latency by stage.
    pub latency: Latencies,
    /// What was read and is not as it was written; nothing of a volume that keeps no tags beside
    /// its sectors.
    #[serde(default)]
    pub mismatches: Option<Mismatches>,
    /// The CPU path that sectors are encrypted on, and the one that they are decrypted on; nothing
    /// where the cipher has no choice of them, or the key is wiped.
    #[serde(default)]
    pub cpu_paths: Option<[String; 2]>,
}

/// A lower device that is slow to answer, or does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// What it is: the path or address of an image.
    pub on: String,
    /// How long it has had its oldest request.
    pub for_ns: u64,
}

/// Sectors that are not as they were written, by their tags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatches {
    /// Reads, or parts of them, that found one.
    pub count: u64,
    /// Where the first of them begin, in bytes.
    pub first: Vec<u64>,
}

/// How a volume was opened: what there is to know of its key without having it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// What says how it lies.
    pub format: Format,
    /// The path or URI of a header that is in another file than the data.
    pub header: Option<String>,
    /// The key's length in bytes, where there is exactly one key.
    pub key_size: Option<usize>,
    /// How a plain volume's passphrase became its key, in cryptsetup's words; nothing where a key
    /// file was.
    pub hash: Option<String>,
    /// How a plain volume lies; nothing of other formats, which have a header for it, and of
    /// servers that did not tell.
    #[serde(default)]
    pub plain: Option<Plain>,
    /// Discards reach the lower device.
    #[serde(default)]
    pub discards: bool,
}

/// How a plain volume lies on its device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plain {
    /// The cipher in dm-crypt's words.
    pub cipher: String,
    /// In bytes.
    pub sector_size: u32,
    /// Where its first byte lies on the device, in bytes.
    pub offset: u64,
    /// What is added to sector numbers for IVs, in 512-byte units.
    pub skip: u64,
}

/// What says how a volume lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum Format {
    Luks1,
    Luks2,
    Plain,
    Table,
    Integrity,
    Tcrypt,
    Bitlk,
    Fvault2,
    Loopaes,
}

/// A volume whose bytes go from an old form to a new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reencryption {
    /// What becomes of it.
    pub mode: Mode,
    /// Whether it goes on.
    pub state: Going,
    /// Bytes that have their new form.
    pub done: u64,
    /// Bytes that there are.
    pub total: u64,
    /// Bytes a second, lately.
    pub bytes_per_second: u64,
    /// How long the rest takes at that rate; nothing while nothing moves.
    pub left_ns: Option<u64>,
    /// How fast it may be.
    pub rate: Rate,
    /// What it failed of.
    pub error: Option<String>,
}

/// What becomes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum Mode {
    Reencrypt,
    Encrypt,
    Decrypt,
}

/// Whether a reencryption goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Going {
    /// It does.
    Running,
    /// Not until it is told to.
    Paused,
    /// Not in this server unless it is started.
    Stopped,
    /// It failed; it can be started again.
    Failed,
    /// It has come to its end.
    Done,
}

/// Whether a volume has its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum KeyState {
    Set,
    Wiped,
}

/// What keeps a server to what it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Capabilities that were kept.
    pub capabilities: Vec<String>,
    /// The bounding set holds no others.
    pub bounded: bool,
    /// Programs that it executes get no privileges that it lacks.
    pub no_new_privileges: bool,
    /// The version of Landlock that keeps files away.
    pub landlock: Option<u32>,
    /// Its rings do only what queues do.
    pub io_uring: bool,
    /// System calls that it does not need fail.
    pub seccomp: bool,
    /// It may connect to any port: its image is on a cluster, and only that knows which machine has
    /// the data.
    #[serde(default)]
    pub any_port: bool,
    /// What could not be had on this machine, and why.
    pub missing: Vec<String>,
}

/// Requests that are over, by kind.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the words say it")]
pub struct Requests {
    pub read: Count,
    pub write: Count,
    pub flush: Count,
    /// Discards, zeroing, prefetching.
    pub other: Count,
}

/// Requests of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// How many ended, well or not.
    pub requests: u64,
    /// Bytes of those that ended well.
    pub bytes: u64,
    /// How many failed.
    pub errors: u64,
}

/// Work that waits for a thread.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Backlog {
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What the cipher will take for them.
    pub cost_ns: u64,
    /// Above this cost the adaptive policy hands work over.
    pub watermark_ns: u64,
}

/// Where the crypto of requests, or of parts of them, was done.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Dispatched {
    /// The thread that brought the request.
    pub inline: u64,
    /// A worker.
    pub workers: u64,
    /// Given to a worker and taken back before one came to it.
    pub taken_back: u64,
}

/// Latency by stage.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// Until a thread took the request up.
    pub queued: Latency,
    /// From the moment that the crypto was due until it was done.
    pub crypto: Latency,
    /// In the lower device.
    pub lower: Latency,
    /// Until the answer was sent.
    pub reply: Latency,
    /// From the arrival to the completion.
    pub total: Latency,
}

/// A histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Values.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// Half of them took at most so long, as all of these at most a sixteenth too much.
    pub p50_ns: u64,
    /// Nine in ten.
    pub p90_ns: u64,
    /// 99 in 100.
    pub p99_ns: u64,
    /// 999 in 1000.
    pub p999_ns: u64,
    /// The longest of a bucket and how many there are in it, where there are any; in order.
    #[serde(with = "buckets")]
    pub buckets: Vec<(u64, u64)>,
}

/// Buckets as objects: `{"up_to_ns": 1023, "count": 5}`.
mod buckets {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Bucket {
        up_to_ns: u64,
        count: u64,
    }

    pub(super) fn serialize<S: Serializer>(buckets: &[(u64, u64)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(buckets.iter().map(|&(up_to_ns, count)| Bucket { up_to_ns, count }))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<(u64, u64)>, D::Error> {
        let buckets = Vec::<Bucket>::deserialize(from)?;
        Ok(buckets.into_iter().map(|bucket| (bucket.up_to_ns, bucket.count)).collect())
    }
}

impl Requests {
    /// All kinds together.
    pub fn total(&self) -> Count {
        [self.read, self.write, self.flush, self.other].into_iter().fold(Count::default(), |sum, of| Count {
            requests: sum.requests.saturating_add(of.requests),
            bytes: sum.bytes.saturating_add(of.bytes),
            errors: sum.errors.saturating_add(of.errors),
        })
    }
}

impl Latencies {
    /// The stages by name, in the order in which a request goes through them, and the whole.
    pub fn stages(&self) -> [(&'static str, &Latency); 5] {
        let Self { queued, crypto, lower, reply, total } = self;
        [("queued", queued), ("crypto", crypto), ("lower", lower), ("reply", reply), ("total", total)]
    }
}

impl Latency {
    /// What came since an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |upper: u64| {
            earlier
                .buckets
                .binary_search_by_key(&upper, |(upper, _)| *upper)
                .map_or(0, |i| earlier.buckets[i].1)
        };
        let buckets = self.buckets.iter().map(|(upper, n)| (*upper, n.saturating_sub(before(*upper))));
        let buckets = buckets.filter(|(_, n)| *n > 0).collect();
        Self::new(buckets, self.total_ns.saturating_sub(earlier.total_ns))
    }

    fn new(buckets: Vec<(u64, u64)>, total_ns: u64) -> Self {
        let mut this =
            Self { count: buckets.iter().map(|(_, n)| n).sum(), total_ns, buckets, ..Self::default() };
        [this.p50_ns, this.p90_ns, this.p99_ns, this.p999_ns] =
            [500, 900, 990, 999].map(|mille| this.quantile(mille));
        this
    }

    /// What so many in a thousand took at most.
    fn quantile(&self, mille: u64) -> u64 {
        let rank = u128::from(self.count) * u128::from(mille);
        let mut below = 0_u128;
        let found = self.buckets.iter().find(|(_, n)| {
            below += u128::from(*n);
            below * 1000 >= rank
        });
        found.map_or(0, |(upper, _)| *upper)
    }
}

impl From<&datapath::Histogram> for Latency {
    fn from(histogram: &datapath::Histogram) -> Self {
        let buckets = histogram.buckets().map(|(upper, n)| (nanos(upper), n)).collect();
        Self::new(buckets, nanos(histogram.total()))
    }
}

impl From<&datapath::Stages> for Latencies {
    fn from(stages: &datapath::Stages) -> Self {
        let datapath::Stages { queued, crypto, lower, reply, total } = stages;
        Self {
            queued: queued.into(),
            crypto: crypto.into(),
            lower: lower.into(),
            reply: reply.into(),
            total: total.into(),
        }
    }
}

impl From<datapath::RequestCount> for Count {
    fn from(count: datapath::RequestCount) -> Self {
        Self { requests: count.requests, bytes: count.bytes, errors: count.errors }
    }
}

impl From<datapath::BacklogStats> for Backlog {
    fn from(of: datapath::BacklogStats) -> Self {
        let (cost_ns, watermark_ns) = (nanos(of.cost), nanos(of.watermark));
        Self { requests: of.requests, bytes: of.bytes, cost_ns, watermark_ns }
    }
}

impl From<datapath::LowerWait> for Waiting {
    fn from(of: datapath::LowerWait) -> Self {
        Self { on: of.on, for_ns: nanos(of.lasts) }
    }
}

impl From<datapath::DispatchStats> for Dispatched {
    fn from(of: datapath::DispatchStats) -> Self {
        let datapath::DispatchStats { inline, workers, taken_back } = of;
        Self { inline, workers, taken_back }
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(micros: impl IntoIterator<Item = u64>) -> datapath::Histogram {
        let mut histogram = datapath::Histogram::default();
        micros.into_iter().for_each(|m| histogram.record(Duration::from_micros(m)));
        histogram
    }

    #[test]
    fn quantiles_are_those_of_the_data_path() {
        let histogram = histogram(1..=1000);
        let latency = Latency::from(&histogram);
        for (found, share) in
            [(latency.p50_ns, 0.5), (latency.p90_ns, 0.9), (latency.p99_ns, 0.99), (latency.p999_ns, 0.999)]
        {
            assert_eq!(found, nanos(histogram.quantile(share)), "{share}");
        }
        assert_eq!((latency.count, latency.total_ns), (1000, nanos(histogram.total())));
        assert_eq!(Latency::default().quantile(999), 0);
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let (early, late) = (histogram(1..=10), histogram((1..=10).chain(1000..=1010)));
        let since = Latency::from(&late).since(&Latency::from(&early));
        assert_eq!(since, Latency::from(&histogram(1000..=1010)));
        assert_eq!(Latency::from(&early).since(&Latency::from(&late)).count, 0);
    }
}
