//! Authenticated sectors: our CPU paths, with whole requests and with a sector a call, and AWS-LC,
//! group by group.

#![cfg_attr(feature = "aws-lc", expect(unsafe_code, reason = "other libraries' C functions"))]

use std::sync::Arc;

use underseal_cipher::{
    BuildOptions, CpuPath, InOutBuf, Integrity, IntegrityKind, Key, Result, SectorCipher, SectorSize,
    build_with,
};

use crate::Machine;
use crate::limits::{AES_BYTES, aes_rounds, widths};
use crate::measure::{Effort, Subject, interleaved};
use crate::observer::Observer;
use crate::report::{CipherRow, Report};

/// A kind of requests.
#[derive(Clone, Copy)]
struct Group {
    spec: &'static str,
    key: usize,
    /// The number of bytes beside each sector: the whole tag and the stored IV.
    beside: usize,
    /// AES rounds for each block, the processor's lower limit; 0 for a cipher other than AES.
    rounds: usize,
    seal: bool,
    sector: u32,
    request: usize,
}

const SPECS: [(&str, usize, usize, usize); 9] = [
    ("capi:gcm(aes)-random", 32, 28, 14),
    ("capi:gcm(aes)-plain64", 16, 16, 10),
    ("capi:aegis128-random", 16, 32, 5),
    ("capi:rfc7539(chacha20,poly1305)-random", 32, 28, 0),
    ("capi:rfc4309(ccm(aes))-random", 35, 24, 28),
    ("capi:authenc(hmac(sha256),xts(aes))-random", 96, 48, 14),
    ("capi:authenc(hmac(sha256),xts(aes))-plain64", 96, 32, 14),
    ("capi:authenc(hmac(sha512),xts(aes))-plain64", 128, 64, 14),
    ("capi:authenc(cmac(aes),xts(aes))-plain64", 80, 16, 24),
];

/// Measures authenticated ciphers, and reports rows to the observer: each CPU path over whole
/// requests, the chosen one with one sector per call, AWS-LC with one sector per call (a feature of
/// the build), and bare AES rounds.
///
/// # Errors
/// The kinds of [`build_with`].
pub fn aead(effort: Effort, observer: &mut impl Observer) -> Result<()> {
    let mut buffer = vec![0x5a; 1 << 20];
    let mut report = Report { machine: Machine::this()?, rows: Vec::new(), scaling: Vec::new() };
    for (spec, key, beside, rounds) in SPECS {
        for (sector, request) in [(4096, 64 << 10), (512, 64 << 10), (4096, 4096), (4096, 1 << 20)] {
            for seal in [true, false] {
                let group = Group { spec, key, beside, rounds, seal, sector, request };
                if observer.is_stopped() {
                    return Ok(());
                }
                report.rows.extend(measure(group, effort, &mut buffer)?);
                observer.rows(&report);
            }
        }
    }
    Ok(())
}

fn key(bytes: usize) -> Result<Key> {
    let mut key = Key::zeroed(bytes)?;
    key.as_mut_bytes().iter_mut().zip(0..).for_each(|(byte, n)| *byte = n);
    Ok(key)
}

fn ours(group: Group, cpu: CpuPath) -> Result<Arc<dyn SectorCipher>> {
    let (bytes, kind) = (group.beside, IntegrityKind::Aead);
    build_with(&BuildOptions {
        spec: &group.spec.parse()?,
        key: &key(group.key)?,
        sector_size: SectorSize::new(group.sector)?,
        iv_large_sectors: false,
        integrity: Some(Integrity { bytes, tuple: bytes, kind, key_size: None, iv_offset: 0 }),
        cpu: Some(cpu),
    })
}

/// Seals or opens the buffer in calls of `call` bytes.
fn subject<'a>(group: Group, cipher: Arc<dyn SectorCipher>, call: usize) -> Subject<'a> {
    let sectors = group.request / group.sector as usize;
    let mut tags = vec![0; sectors * group.beside];
    let beside = call / group.sector as usize * group.beside;
    let mut sealed = vec![0x5a; group.request];
    let units = call as u64 / 512;
    if !group.seal {
        let done = cipher.seal(0, (&mut sealed[..]).into(), &mut tags);
        debug_assert_eq!(done, Ok(()));
    }
    let work = move |b: &mut [u8]| {
        let calls = b[..group.request].chunks_exact_mut(call).zip(sealed.chunks_exact(call));
        for ((nth, (data, sealed)), tags) in (0..).zip(calls).zip(tags.chunks_exact_mut(beside)) {
            let done = match InOutBuf::new(sealed, data) {
                Ok(both) if !group.seal => cipher.open(nth * units, both, tags),
                _ => cipher.seal(nth * units, data.into(), tags),
            };
            debug_assert_eq!(done, Ok(()));
        }
    };
    Subject { bytes: group.request, call: Box::new(work) }
}

fn measure(group: Group, effort: Effort, buffer: &mut [u8]) -> Result<Vec<CipherRow>> {
    // The subjects' names, and the limits for comparison.
    let mut names: Vec<(String, &'static str)> = Vec::new();
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    for width in widths().into_iter().filter(|_| group.rounds > 0) {
        names.push((limit(width).into(), limit(width)));
        // Ten rounds represent the mode's number of rounds.
        let bytes = AES_BYTES * 10 / group.rounds;
        subjects.push(Subject { bytes, call: Box::new(move |_| aes_rounds(width, 10)) });
    }
    let of_path = |path| match path {
        _ if group.rounds == 0 => "none",
        CpuPath::Avx512 => limit("zmm"),
        CpuPath::Vaes256 => limit("ymm"),
        CpuPath::AesNi => limit("xmm"),
        CpuPath::Portable | CpuPath::Neon => widths().first().map_or("none", |width| limit(width)),
    };
    for path in CpuPath::ALL.into_iter().rev().filter(|path| path.is_available()) {
        names.push((format!("underseal {}", path.name()), of_path(path)));
        subjects.push(subject(group, ours(group, path)?, group.request));
    }
    let chosen = CpuPath::chosen()?;
    for path in [chosen, CpuPath::Portable] {
        names.push((format!("{}, a sector a call", path.name()), of_path(path)));
        subjects.push(subject(group, ours(group, path)?, group.sector as usize));
    }
    if let Some(peer) = peers::aws_lc(group, key(group.key)?.as_bytes()) {
        names.push(("aws-lc, a sector a call".into(), of_path(chosen)));
        subjects.push(peer);
    }
    let samples = interleaved(effort, &mut subjects, buffer);
    let find = |name: &str| names.iter().position(|(n, _)| n == name).map(|at| samples[at].gb_per_s);
    let in_use = format!("underseal {}", chosen.name());
    let ours = find(&in_use).unwrap_or(f64::NAN);
    let rows = names.iter().zip(&samples).map(|((name, limit), sample)| CipherRow {
        cipher: group.spec.into(),
        aes_bits: if group.spec.contains("aegis") || group.key == 16 { 128 } else { 256 },
        direction: if group.seal { "sealed" } else { "opened" },
        sector: group.sector as usize,
        request: group.request,
        subject: name.clone(),
        in_use: *name == in_use,
        sample: *sample,
        ns: group.request as f64 / sample.gb_per_s,
        limit,
        percent_of_limit: 100.0 * sample.gb_per_s / find(limit).unwrap_or(f64::NAN),
        ours_over_this: ours / sample.gb_per_s,
    });
    Ok(rows.collect())
}

/// Returns the name of a register width's limit.
fn limit(width: &str) -> &'static str {
    match width {
        "zmm" => "aes rounds zmm",
        "ymm" => "aes rounds ymm",
        _ => "aes rounds xmm",
    }
}

#[cfg(not(feature = "aws-lc"))]
mod peers {
    /// Missing in this build.
    pub(super) fn aws_lc<'a>(_group: super::Group, _key: &[u8]) -> Option<crate::Subject<'a>> {
        None
    }
}

#[cfg(feature = "aws-lc")]
mod peers {
    use std::ptr;

    use aws_lc_sys as lc;

    use super::Group;
    use crate::Subject;

    /// A context that stays keyed.
    struct Context(*mut lc::EVP_AEAD_CTX);

    impl Drop for Context {
        fn drop(&mut self) {
            // SAFETY: made by the library, freed once.
            unsafe { lc::EVP_AEAD_CTX_free(self.0) }
        }
    }

    /// Measures the library's AEAD over each sector, in place, in the way of its users.
    pub(super) fn aws_lc<'a>(group: Group, key: &[u8]) -> Option<Subject<'a>> {
        // SAFETY: these give the library's constants.
        let aead = unsafe {
            match (group.spec, group.key) {
                (spec, 32) if spec.contains("gcm(aes)") => lc::EVP_aead_aes_256_gcm(),
                (spec, 16) if spec.contains("gcm(aes)") => lc::EVP_aead_aes_128_gcm(),
                (spec, 32) if spec.contains("rfc7539(") => lc::EVP_aead_chacha20_poly1305(),
                _ => return None,
            }
        };
        // SAFETY: the key has `key.len()` bytes.
        let context = Context(unsafe { lc::EVP_AEAD_CTX_new(aead, key.as_ptr(), key.len(), 16) });
        assert!(!context.0.is_null(), "AWS-LC takes the key");
        let sector = group.sector as usize;
        let mut sealed = vec![[0u8; 16]; group.request / sector];
        let mut data = vec![0x5a; group.request];
        let seal = move |data: &mut [u8], tag: &mut [u8; 16], nonce: [u8; 12], head: [u8; 20]| {
            let (mut written, context) = (0, &context);
            // SAFETY: every pointer goes with its length; the tag is apart.
            unsafe {
                lc::EVP_AEAD_CTX_seal_scatter(
                    context.0,
                    data.as_mut_ptr(),
                    tag.as_mut_ptr(),
                    &raw mut written,
                    16,
                    nonce.as_ptr(),
                    12,
                    data.as_ptr(),
                    data.len(),
                    ptr::null(),
                    0,
                    head.as_ptr(),
                    head.len(),
                )
            }
        };
        let of = |nth: u64| {
            let (mut nonce, mut head) = ([0; 12], [0; 20]);
            nonce[..8].copy_from_slice(&nth.to_le_bytes());
            head[..8].copy_from_slice(&nth.to_le_bytes());
            (nonce, head)
        };
        if group.seal {
            let work = move |b: &mut [u8]| {
                let sectors = b[..group.request].chunks_exact_mut(sector).zip(&mut sealed);
                for (nth, (data, tag)) in (0..).zip(sectors) {
                    let (nonce, head) = of(nth);
                    let done = seal(data, tag, nonce, head);
                    debug_assert_eq!(done, 1);
                }
            };
            return Some(Subject { bytes: group.request, call: Box::new(work) });
        }
        for (nth, (data, tag)) in (0..).zip(data.chunks_exact_mut(sector).zip(&mut sealed)) {
            let (nonce, head) = of(nth);
            assert_eq!(seal(data, tag, nonce, head), 1);
        }
        // SAFETY: as above.
        let context = Context(unsafe { lc::EVP_AEAD_CTX_new(aead, key.as_ptr(), key.len(), 16) });
        let work = move |b: &mut [u8]| {
            let context = &context;
            let sectors = b[..group.request].chunks_exact_mut(sector).zip(data.chunks_exact(sector));
            for (nth, ((to, from), tag)) in (0..).zip(sectors.zip(&sealed)) {
                let (nonce, head) = of(nth);
                // SAFETY: as above; source and destination are apart.
                let done = unsafe {
                    lc::EVP_AEAD_CTX_open_gather(
                        context.0,
                        to.as_mut_ptr(),
                        nonce.as_ptr(),
                        12,
                        from.as_ptr(),
                        from.len(),
                        tag.as_ptr(),
                        16,
                        head.as_ptr(),
                        head.len(),
                    )
                };
                debug_assert_eq!(done, 1);
            }
        };
        Some(Subject { bytes: group.request, call: Box::new(work) })
    }
}
