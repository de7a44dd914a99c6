//! Volumes of other systems: the cost of their ciphers and key derivations beside their parts.
//!
//! ```text
//!   formats()    chains       VeraCrypt's, beside their ciphers one by one
//!                stretch      BitLocker's SHA-256 in a chain, beside OpenSSL's of one long message
//!   search       a header of VeraCrypt with nothing known, beside the sum of its derivations
//! ```
//! The volumes' exports are those of LUKS volumes: `nbd()` has a row of VeraCrypt's AES.

use std::fmt;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use serde::Serialize;
use underseal_cipher::{Key, SectorCipher, SectorSize, build, chain, sha256_chain};
use underseal_formats::tcrypt::{KeyFiles, Password, Pim, Prf, UnlockOptions, unlock};

use crate::measure::{Effort, Subject, rates};
use crate::nbd::NbdError as BenchError;
use crate::observer::Observer;
use crate::{Machine, Range};

/// The effort of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct FormatsBenchOptions {
    /// The effort for the ciphers.
    pub effort: Effort,
    /// The number of searches of a header.
    pub rounds: usize,
    /// VeraCrypt's multiplier of rounds; 0 for its default counts.
    pub pim: u32,
}

/// The measured rows.
#[derive(Debug, Serialize)]
struct FormatRows {
    machine: Machine,
    chains: Vec<ChainRow>,
    stretch: Option<StretchRow>,
    search: Option<SearchRow>,
}

/// A chain of ciphers in XTS, 64 KiB requests of 512-byte sectors.
#[derive(Debug, Serialize)]
struct ChainRow {
    chain: String,
    encrypt: bool,
    gb_per_s: f64,
    /// The harmonic sum of its ciphers.
    of_ciphers_gb_per_s: f64,
    /// The chain's time over the sum of its ciphers' times, round by round.
    ratio: Range,
}

/// BitLocker's stretch of 2^20 links.
#[derive(Debug, Serialize)]
struct StretchRow {
    ms: f64,
    /// The time divided by that of OpenSSL's SHA-256 for the same number of blocks of one message;
    /// `None` without OpenSSL.
    over_openssl: Option<Range>,
}

/// A header that no passphrase opens.
#[derive(Debug, Serialize)]
struct SearchRow {
    pim: u32,
    processors: usize,
    /// Each function alone, on one processor.
    alone_ms: Vec<(String, f64)>,
    all_ms: Range,
    /// The search's time over the sum of the functions' divided by the processors.
    ratio: Range,
}

/// The size of a request in bytes.
const REQUEST: usize = 64 << 10;
/// The number of links of the chain that are timed at a time: the bytes of a request.
const LINKS: u64 = REQUEST as u64 / 128;

/// Chains of VeraCrypt, in the order of encryption.
const CHAINS: [&[&str]; 10] = [
    &["twofish", "aes"],
    &["serpent", "twofish", "aes"],
    &["aes", "serpent"],
    &["aes", "twofish", "serpent"],
    &["serpent", "twofish"],
    &["kuznyechik", "camellia"],
    &["twofish", "kuznyechik"],
    &["serpent", "camellia"],
    &["aes", "kuznyechik"],
    &["camellia", "serpent", "kuznyechik"],
];

/// Measures, and reports to the observer.
///
/// # Errors
/// When a cipher or a key cannot be made.
pub fn formats(options: &FormatsBenchOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    let mut report = FormatRows { machine, chains: Vec::new(), stretch: None, search: None };
    let mut buffer = vec![0x5a; REQUEST];
    for names in CHAINS {
        for encrypt in [true, false] {
            if observer.is_stopped() {
                return Ok(());
            }
            report.chains.push(chain_row(names, encrypt, options.effort, &mut buffer)?);
        }
        observer.rows(&report);
    }
    report.stretch = Some(stretch_row(options.effort, &mut buffer));
    observer.rows(&report);
    report.search = search_row(options, observer)?;
    observer.rows(&report);
    Ok(())
}

fn chain_row(
    names: &[&str],
    encrypt: bool,
    effort: Effort,
    buffer: &mut [u8],
) -> Result<ChainRow, BenchError> {
    let cannot = |e| BenchError::because(format!("{} cannot be made", names.join("-")), e);
    let of = |(nth, name): (usize, &&str)| {
        let mut key = Key::zeroed(64)?;
        let multiplier = u8::try_from(nth).unwrap_or(0) + 3;
        key.as_mut_bytes().iter_mut().zip(1u8..).for_each(|(byte, n)| *byte = n.wrapping_mul(multiplier));
        build(&format!("{name}-xts-plain64").parse()?, &key, SectorSize::S512)
    };
    let single: Result<Vec<Arc<dyn SectorCipher>>, _> = names.iter().enumerate().map(of).collect();
    let single = single.map_err(cannot)?;
    let whole = chain(single.clone()).map_err(cannot)?;
    let subject = |cipher: &Arc<dyn SectorCipher>| {
        let cipher = cipher.clone();
        Subject {
            bytes: REQUEST,
            call: Box::new(move |data: &mut [u8]| match encrypt {
                true => cipher.encrypt(7, data.into()),
                false => cipher.decrypt(7, data.into()),
            }),
        }
    };
    let mut subjects: Vec<Subject<'_>> = [&whole].into_iter().chain(&single).map(subject).collect();
    let seen = rates(effort, &mut subjects, buffer);
    let rounds = 0..seen[0].len();
    let sums: Vec<f64> =
        rounds.map(|round| 1.0 / seen[1..].iter().map(|of| 1.0 / of[round]).sum::<f64>()).collect();
    Ok(ChainRow {
        chain: names.join("-"),
        encrypt,
        gb_per_s: Range::of(seen[0].iter().copied()).median,
        of_ciphers_gb_per_s: Range::of(sums.iter().copied()).median,
        ratio: Range::of_ratios(&sums, &seen[0]),
    })
}

fn stretch_row(effort: Effort, buffer: &mut [u8]) -> StretchRow {
    let link = Subject {
        bytes: REQUEST,
        call: Box::new(|_: &mut [u8]| {
            // Memory for one key is available.
            let _ = std::hint::black_box(sha256_chain(&[7; 32], [9; 16], LINKS));
        }),
    };
    let mut subjects = vec![link];
    #[cfg(feature = "openssl")]
    subjects.push(Subject {
        bytes: REQUEST,
        call: Box::new(|data: &mut [u8]| {
            std::hint::black_box(openssl::sha::sha256(data));
        }),
    });
    let seen = rates(effort, &mut subjects, buffer);
    let gb_per_s = Range::of(seen[0].iter().copied()).median;
    StretchRow {
        ms: f64::from(128 << 20) / gb_per_s / 1e6,
        over_openssl: seen.get(1).map(|theirs| Range::of_ratios(theirs, &seen[0])),
    }
}

fn search_row(
    options: &FormatsBenchOptions,
    observer: &mut impl Observer,
) -> Result<Option<SearchRow>, BenchError> {
    let cannot = |e| BenchError::because("a header cannot be searched", e);
    // No passphrase opens it, so every derivation is tried.
    let header: Vec<u8> = (0..512u32).map(|nth| (nth * nth * 31 + 7).to_le_bytes()[1]).collect();
    let passphrase = Key::new(b"a passphrase of the benchmark").map_err(|e| cannot(e.into()))?;
    let password = Password::new(&passphrase, &KeyFiles::new().map_err(cannot)?).map_err(cannot)?;
    let pim = Pim::new(options.pim).map_err(cannot)?;
    let timed = |prfs: Vec<Prf>, threads: Option<usize>| {
        let options = UnlockOptions { pim, prfs, threads, truecrypt: false, ..UnlockOptions::default() };
        let start = Instant::now();
        let outcome = unlock(header.as_slice(), &password, &options);
        match outcome {
            Err(e) if e.kind() == underseal_formats::ErrorKind::WrongPassphrase => {
                Ok(start.elapsed().as_secs_f64() * 1e3)
            }
            Err(e) => Err(cannot(e)),
            Ok(_) => Err(BenchError::new("noise opens")),
        }
    };
    let (mut alone, mut all, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    let processors = available_parallelism().map_or(1, usize::from);
    for round in 0..options.rounds {
        observer.progress(&format!("a header with nothing known, round {}", round + 1));
        let mut each = Vec::new();
        for prf in Prf::ALL.into_iter().filter(|prf| *prf != Prf::Sha1) {
            if observer.is_stopped() {
                return Ok(None);
            }
            each.push((prf.name().to_owned(), timed(vec![prf], Some(1))?));
        }
        parts.push(each.iter().map(|(_, ms)| ms).sum::<f64>() / processors as f64);
        all.push(timed(Vec::new(), None)?);
        alone = each;
    }
    let ratio = Range::of_ratios(&all, &parts);
    Ok(Some(SearchRow { pim: options.pim, processors, alone_ms: alone, all_ms: Range::of(all), ratio }))
}

impl fmt::Display for FormatRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "chains in XTS, 64 KiB requests of 512-byte sectors, one thread")?;
        writeln!(
            f,
            "{:<30}  {:>7}  {:>6}  {:>10}  {:>28}",
            "chain", "", "GB/s", "of ciphers", "times their time"
        )?;
        let range = |of: &Range| format!("{:.3} ({:.3} .. {:.3})", of.median, of.least, of.most);
        for row in &self.chains {
            let way = if row.encrypt { "encrypt" } else { "decrypt" };
            let (ours, sum, ratio) = (row.gb_per_s, row.of_ciphers_gb_per_s, range(&row.ratio));
            writeln!(f, "{:<30}  {way}  {ours:>6.2}  {sum:>10.2}  {ratio:>28}", row.chain)?;
        }
        if let Some(row) = &self.stretch {
            let beside = match &row.over_openssl {
                Some(ratio) => format!("{} times OpenSSL's time for as many blocks", range(ratio)),
                None => "this build has no OpenSSL to compare with".to_owned(),
            };
            writeln!(f, "\nBitLocker's stretch: {:.1} ms, {beside}", row.ms)?;
        }
        if let Some(row) = &self.search {
            writeln!(f, "\na header of VeraCrypt with nothing known, PIM {}", row.pim)?;
            for (prf, ms) in &row.alone_ms {
                writeln!(f, "  {prf:<12} {ms:>9.1} ms on one processor")?;
            }
            let (ms, ratio) = (row.all_ms.median, range(&row.ratio));
            writeln!(
                f,
                "  all          {ms:>9.1} ms on {}, {ratio} times their sum over the processors",
                row.processors
            )?;
        }
        Ok(())
    }
}
