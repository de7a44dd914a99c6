//! The time to reencrypt a closed volume, compared with cryptsetup, interleaved, and with the time
//! to read and write its bytes once.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Serialize;

use crate::nbd::NbdError as BenchError;
use crate::observer::Observer;
use crate::place::cannot_make;
use crate::{Machine, Range};

/// The beginning of LUKS2's data.
const DATA: u64 = 16 << 20;
const PIECE: usize = 1 << 20;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct ReencryptOptions {
    /// The measured command.
    pub underseal: PathBuf,
    /// The number of rounds.
    pub rounds: usize,
    /// The place of the image.
    pub directory: PathBuf,
    /// The size of the volume in bytes.
    pub size: u64,
}

/// The results of the measurement.
#[derive(Debug, Serialize)]
pub struct ReencryptReport {
    machine: Machine,
    size: u64,
    rows: Vec<Row>,
}

/// A resilience mode, which keeps a crash from losing data.
#[derive(Debug, Serialize)]
struct Row {
    resilience: &'static str,
    bare_s: Range,
    underseal_s: Range,
    cryptsetup_s: Range,
    /// The speed as a multiple of cryptsetup's, round by round.
    times: Range,
}

/// Measures reencryptions to a new key with the same cipher, by the whole program's time. The
/// observer gets the rows.
///
/// # Errors
/// When cryptsetup is missing, or a program fails. When cryptsetup is missing, or a program fails.
pub fn reencrypt(options: &ReencryptOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    let place = Place::new(options)?;
    let mut report = ReencryptReport { machine, size: options.size, rows: Vec::new() };
    for resilience in ["checksum", "journal"] {
        let [mut bare, mut ours, mut theirs] = [const { Vec::new() }; 3];
        for round in 0..options.rounds {
            observer.progress(&format!("{resilience}: round {} of {}", round + 1, options.rounds));
            // The order of the subjects rotates, so that no subject always follows the same one.
            for turn in 0..3 {
                let (seen, took) = match (turn + round) % 3 {
                    0 => (&mut bare, place.bare()),
                    1 => (&mut ours, run(place.ours(resilience))),
                    _ => (&mut theirs, run(place.theirs(resilience))),
                };
                if observer.is_stopped() {
                    return Ok(());
                }
                seen.push(took?);
            }
        }
        report.rows.push(Row {
            resilience,
            times: Range::of_ratios(&theirs, &ours),
            bare_s: Range::of(bare),
            underseal_s: Range::of(ours),
            cryptsetup_s: Range::of(theirs),
        });
        observer.rows(&report);
    }
    Ok(())
}

/// An image and its passphrase, removed on drop.
struct Place {
    underseal: PathBuf,
    image: PathBuf,
    passphrase: PathBuf,
    size: u64,
}

impl Place {
    fn new(options: &ReencryptOptions) -> Result<Self, BenchError> {
        let stem = format!("underseal-bench-reencrypt-{}", std::process::id());
        let path = |end: &str| options.directory.join(format!("{stem}.{end}"));
        let size = options.size.next_multiple_of(PIECE as u64);
        let this =
            Self { underseal: options.underseal.clone(), image: path("img"), passphrase: path("pass"), size };
        std::fs::write(&this.passphrase, "benchmark").map_err(|e| cannot_make(&this.passphrase, e))?;
        let mut format = Command::new(&this.underseal);
        format.arg("format").arg(&this.image).args(["--force", "--size", &(DATA + size).to_string()]);
        // So that unlocking costs almost nothing.
        format
            .args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-file"])
            .arg(&this.passphrase);
        run(format)?;
        this.fill().map_err(|e| cannot_make(&this.image, e))?;
        Ok(this)
    }

    fn open(&self) -> io::Result<File> {
        File::options().read(true).write(true).open(&self.image)
    }

    fn fill(&self) -> io::Result<()> {
        let (file, mut piece) = (self.open()?, vec![0; PIECE]);
        for at in (0..self.size).step_by(PIECE) {
            // Every piece differs; all pieces decrypt to noise.
            piece[..8].copy_from_slice(&at.to_le_bytes());
            file.write_all_at(&piece, DATA + at)?;
        }
        Ok(())
    }

    /// The least work of a reencryption: all bytes are read, and written back to their places.
    fn bare(&self) -> Result<f64, BenchError> {
        let start = Instant::now();
        let copied = || -> io::Result<()> {
            let (file, mut piece) = (self.open()?, vec![0; PIECE]);
            for at in (0..self.size).step_by(PIECE) {
                file.read_exact_at(&mut piece, DATA + at)?;
                file.write_all_at(&piece, DATA + at)?;
            }
            file.sync_data()
        };
        copied().map_err(|e| cannot_make(&self.image, e))?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn ours(&self, resilience: &str) -> Command {
        let mut command = Command::new(&self.underseal);
        command.arg("reencrypt").arg(&self.image).arg("--key-file").arg(&self.passphrase);
        command.args(["--force", "--quiet", "--resilience", resilience]);
        command
    }

    fn theirs(&self, resilience: &str) -> Command {
        let mut command = Command::new("cryptsetup");
        command.arg("reencrypt").arg(&self.image).arg("--key-file").arg(&self.passphrase);
        command.args(["--batch-mode", "--force-offline-reencrypt", "--resilience", resilience]);
        command.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.image);
        let _ = std::fs::remove_file(&self.passphrase);
    }
}

/// Runs a program that must succeed. Returns the time in seconds.
fn run(mut command: Command) -> Result<f64, BenchError> {
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output();
    let output = output
        .map_err(|e| BenchError::because(format!("cannot run {}", command.get_program().display()), e))?;
    let took = start.elapsed().as_secs_f64();
    if output.status.success() {
        return Ok(took);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(BenchError::new(format!("{}: {}: {}", command.get_program().display(), output.status, said.trim())))
}

impl fmt::Display for ReencryptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "a closed LUKS2 volume of {} MiB gets a new key: seconds, median of the rounds",
            self.size >> 20
        )?;
        writeln!(
            f,
            "{:<10}  {:>15}  {:>9}  {:>10}  {:>28}",
            "resilience", "read and write", "underseal", "cryptsetup", "times as fast (least .. most)"
        )?;
        for row in &self.rows {
            let times = format!("{:.2} ({:.2} .. {:.2})", row.times.median, row.times.least, row.times.most);
            let (bare, ours, theirs) = (row.bare_s.median, row.underseal_s.median, row.cryptsetup_s.median);
            writeln!(f, "{:<10}  {bare:>15.2}  {ours:>9.2}  {theirs:>10.2}  {times:>28}", row.resilience)?;
        }
        Ok(())
    }
}
