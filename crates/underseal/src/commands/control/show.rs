//! The state of open volumes, for people.

use std::fmt::Write;

use underseal_export::control::status::{
    Format, Going, KeyState, Mismatches, Mode, Opened, Reencryption, Sandbox, Waiting,
};
use underseal_export::control::{Rate, Status};

use crate::output::printable;
use crate::size;

/// Formats a line for each volume.
pub(super) fn list(volumes: &[Status]) -> String {
    if volumes.is_empty() {
        return String::new();
    }
    let mut rows = vec![["NAME", "SIZE", "POLICY", "STATE", "PROCESS", "IMAGE"].map(str::to_owned)];
    rows.extend(volumes.iter().map(|volume| {
        let Status { name, policy, pid, image, .. } = volume;
        [name.clone(), size::show(volume.size), policy.clone(), state(volume), pid.to_string(), image.clone()]
    }));
    table(&rows)
}

/// Describes reads that found sectors whose tags do not match.
fn mismatches(of: &Mismatches) -> String {
    let first = of.first.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match of.count {
        0 => "every sector that was read is as it was written".into(),
        count => format!("{count} reads found a sector that is not as it was written; at bytes {first}"),
    }
}

/// Formats the complete state of a volume.
pub(super) fn status(of: &Status) -> String {
    let mut text = printable(&of.name) + "\n";
    let read_only = if of.read_only { ", read-only" } else { "" };
    let open = duration(of.uptime_ns);
    let backlog = &of.backlog;
    let by = &of.dispatched;
    for (what, value) in [
        ("image", of.image.clone()),
        ("format", format(of.opened.as_ref())),
        ("served at", of.addresses.join(" ")),
        ("process", format!("{}, open for {open}", of.pid)),
        ("size", format!("{} in blocks of {}{read_only}", size::show(of.size), size::show(of.block.into()))),
        ("policy", of.policy.clone()),
        ("state", state(of)),
        ("sandbox", sandbox(of.sandbox.as_ref())),
        ("in flight", format!("{} requests in {} queues", of.in_flight, of.queues)),
        (
            "backlog",
            format!(
                "{} requests, {}, {} of crypto (shared with worker threads above {})",
                backlog.requests,
                size::show(backlog.bytes),
                duration(backlog.cost_ns),
                duration(backlog.watermark_ns)
            ),
        ),
        (
            "crypto by",
            format!(
                "the request's own thread {}, worker threads {} (reclaimed from them {})",
                by.inline, by.workers, by.taken_back
            ),
        ),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {what:<11}{}", printable(&value));
    }
    if let Some([encryption, decryption]) = &of.cpu_paths {
        let paths = match encryption == decryption {
            true => encryption.clone(),
            false => format!("{encryption} encrypting, {decryption} decrypting"),
        };
        let _ = writeln!(text, "  {:<11}{}", "CPU path", printable(&paths));
    }
    if let Some(of) = &of.fuse {
        let _ = writeln!(text, "  {:<11}requests come {}", "FUSE", printable(&of.to_string()));
    }
    if let Some(Waiting { on, for_ns }) = &of.waiting {
        let waiting = format!("{on}, for {}", duration(*for_ns));
        let _ = writeln!(text, "  {:<11}{}", "waits for", printable(&waiting));
    }
    if let Some(of) = &of.mismatches {
        let _ = writeln!(text, "  {:<11}{}", "tags", mismatches(of));
    }
    if let Some(of) = &of.reencryption {
        let _ = writeln!(text, "  {:<11}{}", verb(of.mode), printable(&reencryption(of)));
    }

    let all = &of.requests;
    let mut rows = vec![["", "requests", "bytes", "errors"].map(str::to_owned)];
    for (kind, count) in
        [("read", all.read), ("write", all.write), ("flush", all.flush), ("other", all.other)]
    {
        rows.push([
            kind.into(),
            count.requests.to_string(),
            count.bytes.to_string(),
            count.errors.to_string(),
        ]);
    }
    let _ = write!(text, "\n{}", numbers(&rows));

    let mut rows = vec![["latency", "count", "p50", "p90", "p99", "p99.9"].map(str::to_owned)];
    for (stage, latency) in of.latency.stages() {
        let [p50, p90, p99, p999] =
            [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns].map(duration);
        rows.push([stage.into(), latency.count.to_string(), p50, p90, p99, p999]);
    }
    let _ = write!(text, "\n{}", numbers(&rows));
    text
}

/// Returns `open`, `suspended`, or `suspended, key wiped`, with the state of a reencryption.
pub(in crate::commands) fn state(of: &Status) -> String {
    let state = match (of.suspended, of.key) {
        (false, KeyState::Set) => "open",
        (true, KeyState::Set) => "suspended",
        (_, KeyState::Wiped) => "suspended, key wiped",
    };
    let state = if of.waiting.is_some() { format!("{state}, waiting") } else { state.into() };
    match of.reencryption.as_ref().filter(|of| of.state != Going::Done) {
        Some(of) => format!("{state}, {} {}%", verb(of.mode), percent(of)),
        None => state,
    }
}

/// Describes the progress and the rate of a reencryption.
pub(super) fn reencryption(of: &Reencryption) -> String {
    let far = format!("{} of {} ({}%)", size::show(of.done), size::show(of.total), percent(of));
    let pace = match of.rate {
        Rate::GiveWay => "giving way to users".into(),
        Rate::Full => "at full speed".into(),
        Rate::Limit(bytes) => format!("at most {}/s", size::show(bytes.get())),
    };
    match of.state {
        Going::Running => {
            let left = of.left_ns.map(|nanos| format!(", {} left", duration(nanos))).unwrap_or_default();
            format!("{far}, {}/s{left}, {pace}", size::about(of.bytes_per_second))
        }
        Going::Paused => format!("{far}, paused, {pace}"),
        Going::Stopped => format!("{far}, stopped"),
        Going::Failed => format!("{far}, failed: {}", of.error.as_deref().unwrap_or("for an unknown reason")),
        Going::Done => format!("{far}, done"),
    }
}

/// Returns the verb for the kind of a reencryption.
fn verb(mode: Mode) -> &'static str {
    match mode {
        Mode::Reencrypt => "reencrypts",
        Mode::Encrypt => "encrypts",
        Mode::Decrypt => "decrypts",
    }
}

fn percent(of: &Reencryption) -> u128 {
    u128::from(of.done) * 100 / u128::from(of.total.max(1))
}

/// Names the volume's format, and the file of a detached header.
fn format(of: Option<&Opened>) -> String {
    let Some(of) = of else { return "not told".into() };
    let name = match of.format {
        Format::Luks1 => "LUKS1",
        Format::Luks2 => "LUKS2",
        Format::Plain => "plain",
        Format::Table => "a table",
        Format::Integrity => "dm-integrity",
        Format::Tcrypt => "TrueCrypt or VeraCrypt",
        Format::Bitlk => "BitLocker",
        Format::Fvault2 => "FileVault 2",
        Format::Loopaes => "loop-AES",
    };
    let header = of.header.as_ref().map(|header| format!(", its header in {header}"));
    format!("{name}{}", header.unwrap_or_default())
}

/// Describes the server's sandbox in a line.
fn sandbox(of: Option<&Sandbox>) -> String {
    let Some(of) = of else { return "none".into() };
    let capabilities = match &of.capabilities[..] {
        [] => "no capabilities".into(),
        kept => format!("capabilities {}", kept.join(" ")),
    };
    let landlock = of.landlock.map(|version| format!("Landlock {version}"));
    let parts = [
        Some(capabilities),
        of.bounded.then(|| "bounded".into()),
        of.no_new_privileges.then(|| "no_new_privs".into()),
        landlock,
        of.io_uring.then(|| "io_uring".into()),
        of.seccomp.then(|| "seccomp".into()),
        of.any_port.then(|| "connections to any port".into()),
    ];
    let mut text = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if !of.missing.is_empty() {
        text += &format!("; without {}", of.missing.join("; "));
    }
    text
}

/// Formats nanoseconds in a suitable unit, with three digits.
pub(super) fn duration(nanos: u64) -> String {
    let units = [("ns", 1), ("µs", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    if nanos >= 100_000_000_000 {
        let minutes = nanos / 60_000_000_000;
        return match (minutes / 1440, minutes / 60 % 24, minutes % 60) {
            (0, 0, minutes) => format!("{minutes} min"),
            (0, hours, minutes) => format!("{hours} h {minutes} min"),
            (days, hours, _) => format!("{days} d {hours} h"),
        };
    }
    let (unit, size) = units.into_iter().rfind(|(_, size)| nanos >= *size).unwrap_or(units[0]);
    match (nanos / size, nanos % size * 100 / size) {
        (whole, _) if whole >= 100 || size == 1 => format!("{whole} {unit}"),
        (whole, parts) if whole >= 10 => format!("{whole}.{} {unit}", parts / 10),
        (whole, parts) => format!("{whole}.{parts:02} {unit}"),
    }
}

/// Aligns columns of text. The text comes from servers, so it is escaped.
pub(in crate::commands) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    align(rows, |text, width| format!("{text:<width$}"))
}

/// Aligns columns as `table`, all but the first to the right.
pub(super) fn numbers<const N: usize>(rows: &[[String; N]]) -> String {
    let body = rows.iter().map(|row| {
        let mut row = row.clone();
        row[0] = format!("  {:<9}", row[0]);
        row
    });
    align(&body.collect::<Vec<_>>(), |text, width| format!("{text:>width$}"))
}

fn align<const N: usize>(rows: &[[String; N]], pad: impl Fn(&str, usize) -> String) -> String {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| printable(cell))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(text, width)| pad(text, width)).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        for (nanos, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.00 µs"),
            (12_345, "12.3 µs"),
            (123_456, "123 µs"),
            (1_005_000, "1.00 ms"),
            (99_000_000_000, "99.0 s"),
            (130_000_000_000, "2 min"),
            (3_720_000_000_000, "1 h 2 min"),
            (90_000_000_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(nanos), text);
        }
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "1"], ["bbbb", "100"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "a     1\nbbbb  100\n");
        assert_eq!(numbers(&rows), "  a            1\n  bbbb       100\n");
    }
}
