//! The state of a volume. These types are the JSON of `underseal status --json`; fields are added,
//! never changed. Times are in nanoseconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use underseal_datapath as datapath;

use super::protocol::Rate;
use crate::fuse::FuseTransport;

/// A volume's state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The volume's name.
    pub name: String,
    /// The path or URI of the image.
    pub image: String,
    /// How the volume was opened; `None` from servers of older versions.
    #[serde(default)]
    pub opened: Option<Opened>,
    /// The addresses of the exports: URIs, and the path of a mount.
    pub addresses: Vec<String>,
    /// The PID of the server.
    pub pid: u32,
    /// How long the volume has been open.
    pub uptime_ns: u64,
    /// The size in bytes.
    pub size: u64,
    /// The block size in bytes: requests are multiples of it.
    pub block: u32,
    /// True when writes are refused.
    pub read_only: bool,
    /// The policy, in the words of `underseal policy`.
    pub policy: String,
    /// True while the volume is suspended.
    pub suspended: bool,
    /// Whether the key is `set`, or was `wiped` by a message.
    pub key: KeyState,
    /// The server's sandbox; `None` without one, and from servers of older versions.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
    /// How the kernel passes the requests of the mount; `None` without a mount, and from servers of
    /// older versions.
    #[serde(default)]
    pub fuse: Option<FuseTransport>,
    /// Whether the server can reencrypt the volume online.
    #[serde(default)]
    pub can_reencrypt: bool,
    /// The volume's reencryption, if one is unfinished, or has ended since the volume was opened.
    #[serde(default)]
    pub reencryption: Option<Reencryption>,
    /// A lower device that has not answered a request for some seconds.
    #[serde(default)]
    pub waiting: Option<Waiting>,
    /// The number of queues.
    pub queues: u64,
    /// The number of requests in flight.
    pub in_flight: u64,
    /// Counts of completed requests.
    pub requests: Requests,
    /// The backlog: crypto work that waits for a worker.
    pub backlog: Backlog,
    /// The threads that did the crypto.
    pub dispatched: Dispatched,
    /// Latency by stage.
    pub latency: Latencies,
    /// Reads that found data differing from the data written; `None` for volumes without tags.
    #[serde(default)]
    pub mismatches: Option<Mismatches>,
    /// The CPU paths for encryption and decryption; `None` where the cipher has one path only, or
    /// the key is wiped.
    #[serde(default)]
    pub cpu_paths: Option<[String; 2]>,
}

/// A lower device that is slow to answer, or does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The path or address of the device.
    pub on: String,
    /// The age of its oldest request.
    pub for_ns: u64,
}

/// Reads of sectors whose tags do not match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatches {
    /// The number of reads, or parts of reads, that found a mismatch.
    pub count: u64,
    /// The offsets of the first ones, in bytes.
    pub first: Vec<u64>,
}

/// How a volume was opened: everything about its key except the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The format of the volume.
    pub format: Format,
    /// The path or URI of a detached header.
    pub header: Option<String>,
    /// The offset in bytes of the header in the image: the start of its partition.
    #[serde(default)]
    pub header_offset: u64,
    /// The key's length in bytes, if the volume has exactly one key.
    pub key_size: Option<usize>,
    /// The hash that made a plain volume's key of a passphrase, in cryptsetup's words; `None` with
    /// a key file.
    pub hash: Option<String>,
    /// The layout of a plain volume; `None` for formats with a header, and from servers of older
    /// versions.
    #[serde(default)]
    pub plain: Option<Plain>,
    /// Whether discards reach the lower device.
    #[serde(default)]
    pub discards: bool,
}

/// The layout of a plain volume on its device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plain {
    /// The cipher specification, in dm-crypt's words.
    pub cipher: String,
    /// The sector size in bytes.
    pub sector_size: u32,
    /// The offset in bytes of the volume's first byte on the device.
    pub offset: u64,
    /// The number added to sector numbers for IVs, in 512-byte units.
    pub skip: u64,
}

/// The format that describes a volume's layout.
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

/// The progress of a volume's reencryption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reencryption {
    /// The kind of the reencryption.
    pub mode: Mode,
    /// The state of the reencryption's thread.
    pub state: Going,
    /// Bytes that are reencrypted.
    pub done: u64,
    /// Total bytes to reencrypt.
    pub total: u64,
    /// The recent rate in bytes a second.
    pub bytes_per_second: u64,
    /// The time left at that rate; `None` while the reencryption makes no progress.
    pub left_ns: Option<u64>,
    /// The rate that the operator set.
    pub rate: Rate,
    /// The error that ended the reencryption.
    pub error: Option<String>,
}

/// The kind of a reencryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum Mode {
    Reencrypt,
    Encrypt,
    Decrypt,
}

/// The state of a reencryption's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Going {
    /// The thread works.
    Running,
    /// The thread waits until the pause ends.
    Paused,
    /// This server has no thread for the reencryption.
    Stopped,
    /// The thread failed; it can be started again.
    Failed,
    /// The reencryption is complete.
    Done,
}

/// Whether the server has the volume's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum KeyState {
    Set,
    Wiped,
}

/// The restrictions of a server's process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The capabilities that the process kept.
    pub capabilities: Vec<String>,
    /// True when the bounding set has only these capabilities.
    pub bounded: bool,
    /// True when executed programs gain no privileges.
    pub no_new_privileges: bool,
    /// The version of Landlock that restricts access to files.
    pub landlock: Option<u32>,
    /// True when the process's rings accept only the operations of queues.
    pub io_uring: bool,
    /// True when a seccomp filter refuses system calls that the server does not need.
    pub seccomp: bool,
    /// True when the process may connect to any port: the image is on a Ceph cluster, which alone
    /// knows the machine of each object.
    #[serde(default)]
    pub any_port: bool,
    /// The restrictions that this machine does not support, and why.
    pub missing: Vec<String>,
}

/// Completed requests, by kind.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the words say it")]
pub struct Requests {
    pub read: Count,
    pub write: Count,
    pub flush: Count,
    /// Discards, zeroing, prefetches.
    pub other: Count,
}

/// Requests of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The number of completed requests, failed ones included.
    pub requests: u64,
    /// The bytes of successful requests.
    pub bytes: u64,
    /// The number of failed requests.
    pub errors: u64,
}

/// Crypto work that waits for a worker.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Backlog {
    /// The number of requests.
    pub requests: u64,
    /// The bytes of these requests.
    pub bytes: u64,
    /// The estimated time of their crypto.
    pub cost_ns: u64,
    /// The cost above which the adaptive policy hands work to workers.
    pub watermark_ns: u64,
}

/// The number of requests, or of parts of them, by the thread that did their crypto.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Dispatched {
    /// By the request's own thread.
    pub inline: u64,
    /// By a worker.
    pub workers: u64,
    /// Handed to a worker, and taken back before the worker began.
    pub taken_back: u64,
}

/// Latency by stage.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// From the arrival of a request until a thread began it.
    pub queued: Latency,
    /// From the time that the crypto could begin until it was done.
    pub crypto: Latency,
    /// The time in the lower device.
    pub lower: Latency,
    /// From the completion until the reply was sent.
    pub reply: Latency,
    /// From the arrival to the completion.
    pub total: Latency,
}

/// A histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The number of values.
    pub count: u64,
    /// The sum of the values.
    pub total_ns: u64,
    /// The median; this value and the following ones are too large by a sixteenth at most.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The upper limit of each bucket that is not empty, and its count; in order.
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
    /// The sum over all kinds.
    pub fn total(&self) -> Count {
        [self.read, self.write, self.flush, self.other].into_iter().fold(Count::default(), |sum, of| Count {
            requests: sum.requests.saturating_add(of.requests),
            bytes: sum.bytes.saturating_add(of.bytes),
            errors: sum.errors.saturating_add(of.errors),
        })
    }
}

impl Latencies {
    /// Returns the stages by name, in the order in which a request goes through them, and the
    /// total.
    pub fn stages(&self) -> [(&'static str, &Latency); 5] {
        let Self { queued, crypto, lower, reply, total } = self;
        [("queued", queued), ("crypto", crypto), ("lower", lower), ("reply", reply), ("total", total)]
    }
}

impl Latency {
    /// Returns the values added since an earlier state of the same histogram.
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

    /// Returns the value that `mille` of 1000 values do not exceed.
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
