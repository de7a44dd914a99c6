//! The crypto alone: whole requests on each path of the processor, and extents one by one.

use serde::Serialize;
use underseal_cipher::CpuPath;
use underseal_ecryptfs::{Cipher, Contents, EXTENT, FileKey, Result};

use super::EcryptfsReport;
use crate::measure::{Effort, Subject, ThroughputSample, interleaved};
use crate::observer::Observer;

/// A subject over a shape of work.
#[derive(Debug, Clone, Serialize)]
pub struct CryptoRow {
    /// The cipher with its key's size.
    pub cipher: String,
    /// `encrypt` or `decrypt`.
    pub direction: &'static str,
    /// The size of the request in bytes.
    pub request: usize,
    /// `extent by extent`, or `whole request` with the processor's path.
    pub subject: String,
    /// The throughput.
    pub sample: ThroughputSample,
    /// Nanoseconds for one request.
    pub ns: f64,
    /// The subject's throughput divided by that of extents one by one.
    pub over_serial: f64,
}

/// The largest request.
const LARGEST: usize = 1 << 20;

pub(super) fn measure(
    effort: Effort,
    report: &mut EcryptfsReport,
    observer: &mut impl Observer,
) -> Result<()> {
    let mut memory = vec![0x5au8; LARGEST + EXTENT];
    let start = memory.as_ptr().align_offset(EXTENT);
    let buffer = &mut memory[start..start + LARGEST];
    for (name, key_bytes, requests) in [
        ("aes", 16, &[EXTENT, 16 << 10, 32 << 10, 128 << 10, LARGEST][..]),
        ("aes", 32, &[128 << 10]),
        ("twofish", 32, &[128 << 10]),
        ("blowfish", 16, &[128 << 10]),
    ] {
        for &request in requests {
            for encrypt in [true, false] {
                if observer.is_stopped() {
                    return Ok(());
                }
                let rows = group(Cipher::new(name, key_bytes)?, request, encrypt, effort, buffer)?;
                report.crypto.extend(rows);
                observer.rows(report);
            }
        }
    }
    Ok(())
}

fn group(
    cipher: Cipher,
    request: usize,
    encrypt: bool,
    effort: Effort,
    buffer: &mut [u8],
) -> Result<Vec<CryptoRow>> {
    let key = FileKey::random(cipher)?;
    let crypt = move |contents: &Contents, first, data: &mut [u8]| match encrypt {
        true => contents.encrypt(first, data),
        false => contents.decrypt(first, data),
    };
    let contents = key.contents()?;
    let mut names = vec!["extent by extent".to_owned()];
    let one_by_one = move |buffer: &mut [u8]| {
        for (nth, extent) in (0..).zip(buffer[..request].chunks_exact_mut(EXTENT)) {
            crypt(&contents, nth, extent);
        }
    };
    let mut subjects = vec![Subject { bytes: request, call: Box::new(one_by_one) }];
    let has_paths = cipher.name() == "aes";
    let available = CpuPath::ALL.into_iter().rev().filter(|path| path.is_available());
    for path in available.take(if has_paths { CpuPath::ALL.len() } else { 1 }) {
        let contents = key.contents_on(path)?;
        names.push(if has_paths {
            format!("whole request, {}", path.name())
        } else {
            "whole request".into()
        });
        let whole = move |buffer: &mut [u8]| crypt(&contents, 0, &mut buffer[..request]);
        subjects.push(Subject { bytes: request, call: Box::new(whole) });
    }
    let samples = interleaved(effort, &mut subjects, buffer);
    let serial = samples[0].gb_per_s;
    let rows = names.into_iter().zip(samples).map(|(subject, sample)| CryptoRow {
        cipher: cipher.to_string(),
        direction: if encrypt { "encrypt" } else { "decrypt" },
        request,
        subject,
        sample,
        ns: request as f64 / sample.gb_per_s,
        over_serial: sample.gb_per_s / serial,
    });
    Ok(rows.collect())
}
