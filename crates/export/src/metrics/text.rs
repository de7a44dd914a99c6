//! A volume's status as Prometheus text (exposition format 0.0.4).

use std::fmt::{Display, Write};

use crate::control::Status;
use crate::control::status::{Going, KeyState, Latency};

/// Histograms have a bound at every power of two of nanoseconds, from a microsecond to 17 s. These
/// are bounds of the data path's buckets, too, so every value is counted on the right side.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;

/// Returns all metrics of a volume.
pub fn text(status: &Status) -> String {
    let mut text = Text { out: String::new(), volume: escape(&status.name) };
    let of = &status.requests;
    let kinds = [("read", of.read), ("write", of.write), ("flush", of.flush), ("other", of.other)];
    let kinds = |of: fn(&crate::control::status::Count) -> u64| {
        kinds
            .iter()
            .map(move |(kind, count)| (format!("operation=\"{kind}\""), of(count)))
            .collect::<Vec<_>>()
    };
    text.family("requests_total", "counter", "Completed requests, failed or not.", kinds(|c| c.requests));
    text.family("bytes_total", "counter", "Bytes of successful requests.", kinds(|c| c.bytes));
    text.family("errors_total", "counter", "Requests that failed.", kinds(|c| c.errors));

    let by = &status.dispatched;
    let by = [("inline", by.inline), ("workers", by.workers), ("taken_back", by.taken_back)];
    let by = by.map(|(by, n)| (format!("by=\"{by}\""), n));
    text.family("dispatched_total", "counter", "Crypto of requests, or of parts, by thread.", by);

    let backlog = &status.backlog;
    text.gauge("queues", "Queues, one for each stream of requests.", status.queues);
    text.gauge("in_flight_requests", "Requests in flight.", status.in_flight);
    let waiting = Seconds(status.waiting.as_ref().map_or(0, |waiting| waiting.for_ns));
    let help = "Age of the lower device's oldest request; 0 up to some seconds.";
    text.gauge("waiting_seconds", help, waiting);
    text.gauge("backlog_requests", "Requests whose crypto waits for a worker.", backlog.requests);
    text.gauge("backlog_bytes", "Bytes whose crypto waits for a worker.", backlog.bytes);
    text.gauge("backlog_cost_seconds", "Estimated time of the backlog's crypto.", Seconds(backlog.cost_ns));
    let help = "The backlog's cost above which the adaptive policy hands work to workers.";
    text.gauge("backlog_watermark_seconds", help, Seconds(backlog.watermark_ns));
    text.gauge("suspended", "1 while the volume is suspended.", u8::from(status.suspended));
    text.gauge("key_set", "0 when the key was wiped.", u8::from(status.key == KeyState::Set));
    text.gauge("size_bytes", "The volume's size.", status.size);
    text.gauge("uptime_seconds", "Time since the volume was opened.", Seconds(status.uptime_ns));
    if let Some(of) = &status.mismatches {
        let help = "Reads, or parts of them, that found a sector whose tag does not match.";
        text.family("mismatches_total", "counter", help, [(String::new(), of.count)]);
    }
    if let Some(of) = &status.reencryption {
        let running = u8::from(of.state == Going::Running);
        text.gauge("reencryption_running", "1 while the reencryption runs.", running);
        text.gauge("reencryption_failed", "1 after it failed.", u8::from(of.state == Going::Failed));
        text.gauge("reencryption_done_bytes", "Bytes reencrypted so far.", of.done);
        text.gauge("reencryption_total_bytes", "Total bytes to reencrypt.", of.total);
    }
    let policy = [(format!("policy=\"{}\"", escape(&status.policy)), 1)];
    text.family("policy_info", "gauge", "The policy in force.", policy);

    text.head("latency_seconds", "histogram", "Latency by stage of a request; total is all of it.");
    for (stage, latency) in status.latency.stages() {
        text.histogram("latency_seconds", &format!("stage=\"{stage}\""), latency);
    }
    text.out
}

struct Text {
    out: String,
    volume: String,
}

// Writing to a string does not fail.
impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.out, "# HELP underseal_{name} {help}\n# TYPE underseal_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let volume = &self.volume;
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = writeln!(self.out, "underseal_{name}{{volume=\"{volume}\"{comma}{labels}}} {value}");
    }

    fn family<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, V)>,
    ) {
        self.head(name, kind, help);
        samples.into_iter().for_each(|(labels, value)| self.sample(name, &labels, value));
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help, [(String::new(), value)]);
    }

    fn histogram(&mut self, name: &str, labels: &str, latency: &Latency) {
        let bucket = format!("{name}_bucket");
        for bound in BOUNDS.map(|power| 1_u64 << power) {
            // The longest value of a bucket is one less than its bound.
            let below: u64 = latency.buckets.iter().filter(|(upper, _)| *upper < bound).map(|(_, n)| n).sum();
            self.sample(&bucket, &format!("{labels},le=\"{}\"", Seconds(bound)), below);
        }
        self.sample(&bucket, &format!("{labels},le=\"+Inf\""), latency.count);
        self.sample(&format!("{name}_sum"), labels, Seconds(latency.total_ns));
        self.sample(&format!("{name}_count"), labels, latency.count);
    }
}

/// Nanoseconds, printed as seconds without rounding.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Escapes a label's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
