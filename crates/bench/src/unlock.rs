//! The time of an unlock compared with cryptsetup's of the same keyslot, interleaved; and of
//! answers that need no key.
//!
//! ```text
//!   unlock()     every number of lanes: ours, theirs, in turn, in each of the rounds: the whole
//!                program's time and peak memory
//!   answers      info, keyslot list, info of a file that is no volume
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::nbd::NbdError as BenchError;
use crate::observer::Observer;
use crate::{Machine, Range};

/// The interval at which a program's memory is read. The value is a running maximum, so that little
/// is missed.
const LOOK: Duration = Duration::from_millis(2);

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct UnlockBenchOptions {
    /// The measured command.
    pub underseal: PathBuf,
    /// The number of rounds.
    pub rounds: usize,
    /// The place of the headers.
    pub directory: PathBuf,
    /// Argon2's memory.
    pub memory_kib: u32,
    /// Argon2's passes.
    pub passes: u32,
}

/// The results of the measurement.
#[derive(Debug, Serialize)]
pub struct UnlockReport {
    machine: Machine,
    memory_kib: u32,
    passes: u32,
    unlocks: Vec<UnlockRow>,
    answers: Vec<AnswerRow>,
}

/// An unlock with some number of lanes.
#[derive(Debug, Serialize)]
struct UnlockRow {
    lanes: u32,
    underseal_ms: Range,
    cryptsetup_ms: Range,
    /// The quotient of the rounds, one by one: below 1 is faster than cryptsetup.
    ratio: Range,
    underseal_peak_kib: u64,
    cryptsetup_peak_kib: u64,
}

/// A question that needs no key.
#[derive(Debug, Serialize)]
struct AnswerRow {
    question: &'static str,
    ms: Range,
}

/// Measures, and reports to the observer.
///
/// # Errors
/// When cryptsetup is missing, or a program fails.
pub fn unlock(options: &UnlockBenchOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    let place = Place::new(options)?;
    let (memory_kib, passes) = (options.memory_kib, options.passes);
    let mut report = UnlockReport { machine, memory_kib, passes, unlocks: Vec::new(), answers: Vec::new() };
    for lanes in [1, 2, 4] {
        observer.progress(&format!("{lanes} lanes"));
        place.format(options, lanes)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            for turn in 0..2 {
                // The order alternates, so that neither program always runs second.
                let (seen, ran) = match (turn + round) % 2 {
                    0 => (&mut ours, run(place.ours(&["keyslot", "test"]))),
                    _ => (&mut theirs, run(place.theirs())),
                };
                if observer.is_stopped() {
                    return Ok(());
                }
                seen.push(ran?);
            }
        }
        let ms = |runs: &[Ran]| runs.iter().map(|ran| ran.took.as_secs_f64() * 1e3).collect::<Vec<_>>();
        let peak = |runs: &[Ran]| runs.iter().map(|ran| ran.peak_kib).max().unwrap_or(0);
        report.unlocks.push(UnlockRow {
            lanes,
            underseal_ms: Range::of(ms(&ours)),
            cryptsetup_ms: Range::of(ms(&theirs)),
            ratio: Range::of_ratios(&ms(&ours), &ms(&theirs)),
            underseal_peak_kib: peak(&ours),
            cryptsetup_peak_kib: peak(&theirs),
        });
        observer.rows(&report);
    }
    report.answers = answers(&place, options.rounds)?;
    observer.rows(&report);
    Ok(())
}

fn answers(place: &Place, rounds: usize) -> Result<Vec<AnswerRow>, BenchError> {
    let questions: [(&str, &[&str], &Path, i32); 3] = [
        ("info", &["info"], &place.image, 0),
        ("keyslot list", &["keyslot", "list"], &place.image, 0),
        ("info of what is no volume", &["info"], &place.passphrase, 5),
    ];
    let mut rows = Vec::new();
    for (question, words, image, code) in questions {
        let mut took = Vec::new();
        for _ in 0..rounds.max(5) {
            let mut command = Command::new(&place.underseal);
            command.args(words).arg(image);
            let start = Instant::now();
            let status = quiet(&mut command).status().map_err(|e| failed(&command, e))?;
            took.push(start.elapsed().as_secs_f64() * 1e3);
            if status.code() != Some(code) {
                return Err(BenchError::new(format!("{command:?}: {status}")));
            }
        }
        rows.push(AnswerRow { question, ms: Range::of(took) });
    }
    Ok(rows)
}

/// An image and its passphrase, removed on drop.
struct Place {
    underseal: PathBuf,
    image: PathBuf,
    passphrase: PathBuf,
}

impl Place {
    fn new(options: &UnlockBenchOptions) -> Result<Self, BenchError> {
        let stem = format!("underseal-bench-unlock-{}", std::process::id());
        let path = |end: &str| options.directory.join(format!("{stem}.{end}"));
        let this =
            Self { underseal: options.underseal.clone(), image: path("img"), passphrase: path("pass") };
        std::fs::write(&this.passphrase, "benchmark")
            .map_err(|e| crate::place::cannot_make(&this.passphrase, e))?;
        Ok(this)
    }

    fn format(&self, options: &UnlockBenchOptions, lanes: u32) -> Result<(), BenchError> {
        let mut command = self.ours(&["format"]);
        command.args(["--force", "--size", "20M", "--pbkdf", "argon2id"]);
        command.args(["--pbkdf-force-iterations", &options.passes.to_string()]);
        command.args(["--pbkdf-memory", &options.memory_kib.to_string()]);
        command.args(["--pbkdf-parallel", &lanes.to_string()]);
        run(command).map(|_| ())
    }

    fn ours(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.underseal);
        command.args(words).arg(&self.image).arg("--key-file").arg(&self.passphrase);
        command
    }

    fn theirs(&self) -> Command {
        let mut command = Command::new("cryptsetup");
        command.args(["open", "--test-passphrase", "--key-file"]).arg(&self.passphrase).arg(&self.image);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Files that a failed removal leaves are small.
        let _ = std::fs::remove_file(&self.image);
        let _ = std::fs::remove_file(&self.passphrase);
    }
}

struct Ran {
    took: Duration,
    peak_kib: u64,
}

/// Runs a program that must succeed, and watches its memory.
fn run(mut command: Command) -> Result<Ran, BenchError> {
    let start = Instant::now();
    let mut child = quiet(&mut command).spawn().map_err(|e| failed(&command, e))?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    loop {
        peak_kib =
            std::fs::read_to_string(&status).ok().and_then(|text| peak(&text)).unwrap_or(0).max(peak_kib);
        match child.try_wait().map_err(|e| failed(&command, e))? {
            None => std::thread::sleep(LOOK),
            Some(status) if status.success() => return Ok(Ran { took: start.elapsed(), peak_kib }),
            Some(status) => return Err(BenchError::new(format!("{command:?}: {status}"))),
        }
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

fn failed(command: &Command, e: std::io::Error) -> BenchError {
    BenchError::because(format!("cannot run {}", command.get_program().display()), e)
}

/// The most memory that a program used, from /proc's status.
fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

impl fmt::Display for UnlockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "argon2id, {} passes over {} KiB: the whole program, median of the rounds",
            self.passes, self.memory_kib
        )?;
        writeln!(
            f,
            "{:>5}  {:>12}  {:>13}  {:>24}  {:>12}  {:>12}",
            "lanes", "underseal ms", "cryptsetup ms", "ratio (least .. most)", "peak KiB", "theirs"
        )?;
        for row in &self.unlocks {
            let ratio = format!("{:.3} ({:.3} .. {:.3})", row.ratio.median, row.ratio.least, row.ratio.most);
            let (ours, theirs) = (row.underseal_ms.median, row.cryptsetup_ms.median);
            let (peak, their_peak) = (row.underseal_peak_kib, row.cryptsetup_peak_kib);
            writeln!(
                f,
                "{:>5}  {ours:>12.1}  {theirs:>13.1}  {ratio:>24}  {peak:>12}  {their_peak:>12}",
                row.lanes
            )?;
        }
        for (number, row) in self.answers.iter().enumerate() {
            if number == 0 {
                writeln!(f)?;
            }
            writeln!(f, "{:<26} {:.1} ms (at most {:.1})", row.question, row.ms.median, row.ms.most)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_most_memory_is_read_from_the_status() {
        assert_eq!(super::peak("VmPeak:\t 9 kB\nVmHWM:\t  1234 kB\nVmRSS:\t 7 kB\n"), Some(1234));
        assert_eq!(super::peak("Name:\tx\n"), None);
    }
}
