//! The sector kernels: our CPU paths and the peers, group by group.

use std::sync::{Arc, Barrier};
use std::thread;

use underseal_cipher::{
    BuildOptions, CipherSpec, CpuPath, Key, Result, SectorCipher, SectorSize, build_with,
};

use crate::Machine;
use crate::limits::{AES_BYTES, aes_rounds, read_xor_write, widths};
use crate::measure::{Effort, Subject, interleaved, rate, sample};
use crate::observer::Observer;
use crate::peers::{PeerTask, SLACK, all};
use crate::report::{CipherRow, Report, Scaling};

/// The largest request.
const LARGEST: usize = 64 << 20;
/// The size from which a request exceeds the caches, so that memory is the limit.
const OUT_OF_CACHE: usize = 32 << 20;

/// A kind of requests.
#[derive(Clone, Copy)]
struct Group {
    spec: &'static str,
    aes_bits: usize,
    encrypt: bool,
    sector: u32,
    request: usize,
}

/// Measures AES-XTS and AES-CBC-ESSIV, and some other ciphers: each CPU path, the peers of this
/// build, and their limits. The observer gets the rows.
///
/// # Errors
/// The kinds of [`build_with`].
pub fn cipher(effort: Effort, observer: &mut impl Observer) -> Result<()> {
    let mut report = Report { machine: Machine::this()?, rows: Vec::new(), scaling: Vec::new() };
    let mut memory = vec![0x5au8; LARGEST + 8192];
    let start = memory.as_ptr().align_offset(4096);
    let buffer = &mut memory[start..start + LARGEST + SLACK];
    for group in groups() {
        if observer.is_stopped() {
            return Ok(());
        }
        report.rows.extend(measure(group, effort, buffer)?);
        observer.rows(&report);
    }
    if report.machine.processors > 1 {
        for request in [64 << 10, LARGEST] {
            report.scaling.push(two_threads(request, effort)?);
        }
        observer.rows(&report);
    }
    Ok(())
}

fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for aes_bits in [256, 128] {
        for request in [64 << 10, 1 << 20, LARGEST] {
            for sector in [512, 4096, 65536] {
                groups.push(Group { spec: "aes-xts-plain64", aes_bits, encrypt: true, sector, request });
            }
        }
    }
    for (sector, request) in [(4096, 64 << 10), (512, 512), (4096, 4096), (512, 4096)] {
        let encrypt = request != 64 << 10;
        groups.push(Group { spec: "aes-xts-plain64", aes_bits: 256, encrypt, sector, request });
    }
    for encrypt in [true, false] {
        for sector in [512, 4096] {
            let request = 64 << 10;
            groups.push(Group { spec: "aes-cbc-essiv:sha256", aes_bits: 256, encrypt, sector, request });
        }
    }
    let (sector, request) = (4096, 64 << 10);
    for (spec, bits) in WIDE {
        for (aes_bits, encrypt) in bits.iter().flat_map(|&bits| [(bits, true), (bits, false)]) {
            for sector in [512, 4096] {
                groups.push(Group { spec, aes_bits, encrypt, sector, request });
            }
        }
    }
    for (spec, sectors) in IVS {
        for (&sector, encrypt) in sectors.iter().flat_map(|sector| [(sector, true), (sector, false)]) {
            groups.push(Group { spec, aes_bits: 256, encrypt, sector, request });
        }
    }
    for (spec, aes_bits) in BLOCKS {
        groups.extend([true, false].map(|encrypt| Group { spec, aes_bits, encrypt, sector, request }));
    }
    groups
}

/// Modes that process a sector as one block, with their key sizes.
const WIDE: [(&str, &[usize]); 3] = [
    ("xchacha12,aes-adiantum-plain64", &[256]),
    ("xchacha20,aes-adiantum-plain64", &[256]),
    ("aes-hctr2-plain64", &[256, 192, 128]),
];

/// Other block ciphers, and the bits of a key: the rates of underseal's vector code for them, or of
/// their libraries, across sectors.
const BLOCKS: [(&str, usize); 7] = [
    ("serpent-xts-plain64", 256),
    ("twofish-xts-plain64", 256),
    ("camellia-xts-plain64", 256),
    ("aria-xts-plain64", 256),
    ("sm4-xts-plain64", 128),
    ("cast6-xts-plain64", 256),
    ("kuznyechik-xts-plain64", 256),
];

/// IV generators that hash or encrypt, each below its reference; with the generator's sector sizes.
const IVS: [(&str, &[u32]); 6] = [
    ("aes-cbc-plain64", &[512, 4096]),
    ("aes-cbc-tcw", &[512]),
    ("aes-cbc-lmk", &[512]),
    ("aes-cbc-elephant", &[512, 4096]),
    ("aes:64-cbc-plain64", &[512]),
    ("aes:64-cbc-lmk", &[512]),
];

fn key(group: Group) -> Result<Key> {
    let one = group.aes_bits / 8;
    let bytes = match group.spec {
        // A key for each sector number, and a seed.
        "aes:64-cbc-lmk" => one * 65,
        "aes:64-cbc-plain64" => one * 64,
        // An IV's seed, and whitening.
        "aes-cbc-tcw" => one + 32,
        "aes-cbc-elephant" => one * 2,
        spec if spec.contains("xts") => one * 2,
        _ => one,
    };
    let mut key = Key::zeroed(bytes)?;
    key.as_mut_bytes().iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, n)| *byte = n);
    Ok(key)
}

fn ours(group: Group, cpu: Option<CpuPath>) -> Result<Arc<dyn SectorCipher>> {
    let spec: CipherSpec = group.spec.parse()?;
    let sector_size = SectorSize::new(group.sector)?;
    let options = BuildOptions {
        spec: &spec,
        key: &key(group)?,
        sector_size,
        iv_large_sectors: false,
        integrity: None,
        cpu,
    };
    build_with(&options)
}

fn measure(group: Group, effort: Effort, buffer: &mut [u8]) -> Result<Vec<CipherRow>> {
    let rounds = group.aes_bits / 32 + 6;
    let (bytes, encrypt, sector) = (group.request, group.encrypt, group.sector as usize);
    // The subjects' names, and the limits for comparison.
    let mut names: Vec<(String, &'static str)> = Vec::new();
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    let memory = (bytes >= OUT_OF_CACHE).then_some("read-xor-write");
    for width in widths() {
        let limit = limit(width);
        names.push((limit.into(), limit));
        subjects.push(Subject { bytes: AES_BYTES, call: Box::new(move |_| aes_rounds(width, rounds)) });
    }
    if let Some(name) = memory {
        names.push((name.into(), name));
        subjects.push(Subject { bytes, call: Box::new(move |b| read_xor_write(&mut b[..bytes])) });
        names.push(("memcpy".into(), name));
        let mut other = vec![1; bytes];
        subjects.push(Subject { bytes, call: Box::new(move |b| other.copy_from_slice(&b[..bytes])) });
    }
    for path in CpuPath::ALL.into_iter().rev().filter(|path| path.is_available()) {
        let cipher = ours(group, Some(path))?;
        let width = match path {
            CpuPath::Avx512 => "zmm",
            CpuPath::Vaes256 => "ymm",
            CpuPath::AesNi => "xmm",
            CpuPath::Portable | CpuPath::Neon => widths().first().copied().unwrap_or(""),
        };
        names.push((format!("underseal {}", path.name()), memory.unwrap_or(limit(width))));
        let call = move |b: &mut [u8]| {
            let data = (&mut b[..bytes]).into();
            if encrypt { cipher.encrypt(0, data) } else { cipher.decrypt(0, data) }
        };
        subjects.push(Subject { bytes, call: Box::new(call) });
    }
    let key = key(group)?;
    let mut parts = group.spec.split('-');
    let (cipher, chain, iv) = (parts.next(), parts.next(), parts.next().unwrap_or(""));
    // In CBC the peers make ESSIV's IVs only.
    let chain = chain.filter(|&chain| chain != "cbc" || iv.starts_with("essiv")).unwrap_or("");
    let cipher = cipher.unwrap_or("");
    for mut peer in all(PeerTask { cipher, chain, key: key.as_bytes(), encrypt, salt: &[7; 32] }) {
        names.push((peer.name, memory.unwrap_or(limit(widths().first().copied().unwrap_or("")))));
        let call = move |b: &mut [u8]| {
            for (nth, at) in (0..bytes).step_by(sector).enumerate() {
                let iv = (nth as u128 * (sector as u128 / 512)).to_le_bytes();
                (peer.sector)(&iv, &mut b[at..at + sector + SLACK]);
            }
        };
        subjects.push(Subject { bytes, call: Box::new(call) });
    }
    let samples = interleaved(effort, &mut subjects, buffer);
    let find = |name: &str| names.iter().position(|(n, _)| n == name).map(|at| samples[at].gb_per_s);
    // The path of this mode and direction.
    let paths = ours(group, None)?.cpu_paths();
    let path = paths.map_or_else(CpuPath::chosen, |paths| Ok(paths[usize::from(!encrypt)]))?;
    let in_use = format!("underseal {}", path.name());
    let chosen = find(&in_use).unwrap_or(f64::NAN);
    let rows = names.iter().zip(&samples).map(|((name, limit), sample)| CipherRow {
        cipher: group.spec.into(),
        aes_bits: group.aes_bits,
        direction: if encrypt { "encrypt" } else { "decrypt" },
        sector,
        request: bytes,
        subject: name.clone(),
        in_use: *name == in_use,
        sample: *sample,
        ns: bytes as f64 / sample.gb_per_s,
        limit,
        percent_of_limit: 100.0 * sample.gb_per_s / find(limit).unwrap_or(f64::NAN),
        ours_over_this: chosen / sample.gb_per_s,
    });
    Ok(rows.collect())
}

/// Returns the name of a register width's limit.
fn limit(width: &str) -> &'static str {
    match width {
        "zmm" => "aes rounds zmm",
        "ymm" => "aes rounds ymm",
        "xmm" => "aes rounds xmm",
        _ => "none",
    }
}

/// Measures the chosen kernel on one thread and on two, each with its own buffer.
fn two_threads(request: usize, effort: Effort) -> Result<Scaling> {
    let group = Group { spec: "aes-xts-plain64", aes_bits: 256, encrypt: true, sector: 4096, request };
    let cipher = ours(group, None)?;
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        one.push(together(1, &cipher, request, effort));
        two.push(together(2, &cipher, request, effort));
    }
    let (one, two) = (sample(one), sample(two));
    Ok(Scaling { request, one, two, factor: two.gb_per_s / one.gb_per_s })
}

/// The throughput of `threads` threads together, in GB/s.
fn together(threads: usize, cipher: &Arc<dyn SectorCipher>, request: usize, effort: Effort) -> f64 {
    let barrier = Barrier::new(threads);
    let work = || {
        let mut buffer = vec![0x5a; request];
        let call = |b: &mut [u8]| cipher.encrypt(0, b.into());
        let mut subject = Subject { bytes: request, call: Box::new(call) };
        (subject.call)(&mut buffer);
        barrier.wait();
        rate(effort.slice, &mut subject, &mut buffer)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).sum()
    })
}
