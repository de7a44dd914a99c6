//! Authenticated tables from a real kernel, on every CPU path; and laws for every authenticated
//! cipher.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};
use underseal_cipher::{
    Authentication, BadSector, BuildOptions, CpuPath, InOutBuf, Integrity, IntegrityKind, Key, Result,
    SectorCipher, SectorSize, SharedDestination, SharedSource, authentication, build, build_with, key_sizes,
};

/// SHA-256(label || le64(i)) for i = 0, 1, ..
fn stream(label: &str, bytes: usize) -> Vec<u8> {
    let block = |i: u64| Sha256::new().chain_update(label).chain_update(i.to_le_bytes()).finalize();
    let mut stream: Vec<u8> = (0..bytes.div_ceil(32) as u64).flat_map(block).collect();
    stream.truncate(bytes);
    stream
}

fn paths() -> impl Iterator<Item = CpuPath> {
    CpuPath::ALL.into_iter().filter(|path| path.is_available())
}

/// A table of the manifest, or of this test.
#[derive(Clone, Copy)]
struct Table<'a> {
    cipher: &'a str,
    key_bytes: usize,
    sector_size: u32,
    large: bool,
    integrity: Integrity,
}

impl Table<'_> {
    fn build(&self, cpu: CpuPath) -> Result<Arc<dyn SectorCipher>> {
        build_with(&BuildOptions {
            spec: &self.cipher.parse()?,
            key: &Key::new(&stream("r3-golden-key", self.key_bytes)).unwrap(),
            sector_size: SectorSize::new(self.sector_size)?,
            iv_large_sectors: self.large,
            integrity: Some(self.integrity),
            cpu: Some(cpu),
        })
    }
}

fn integrity(bytes: usize, kind: IntegrityKind) -> Integrity {
    Integrity { bytes, tuple: bytes, kind, key_size: None, iv_offset: 0 }
}

fn table(row: &Value) -> Table<'_> {
    let number = |field: &str| usize::try_from(row[field].as_u64().unwrap()).unwrap();
    let kind = if row["type"] == "aead" { IntegrityKind::Aead } else { IntegrityKind::None };
    let mut table = Table {
        cipher: row["cipher"].as_str().unwrap(),
        key_bytes: number("key_bytes"),
        sector_size: 512,
        large: false,
        integrity: integrity(number("tag"), kind),
    };
    for option in row["opts"].as_array().unwrap() {
        let option = option.as_str().unwrap();
        match option.split_once(':') {
            Some(("sector_size", size)) => table.sector_size = size.parse().unwrap(),
            Some(("integrity_key_size", size)) => table.integrity.key_size = Some(size.parse().unwrap()),
            _ => {
                assert_eq!(option, "iv_large_sectors");
                table.large = true;
            }
        }
    }
    table
}

fn manifest() -> Vec<Value> {
    let manifest: Value = serde_json::from_str(include_str!("vectors/aead/aead.json")).unwrap();
    let vectors = manifest["vectors"].as_array().unwrap().clone();
    assert_eq!(vectors.len(), 52);
    vectors
}

#[test]
fn every_path_reads_and_writes_the_kernels_authenticated_tables() {
    let plain = stream("r3-golden-plain", 65536);
    let (mut derived, mut stored, mut missing) = (0, 0, 0);
    for row in manifest().iter().filter(|row| row["roundtrip"] == true) {
        let (table, id) = (table(row), row["id"].as_str().unwrap());
        let count = plain.len() / table.sector_size as usize;
        let blob = row["blob"].as_str().map(|text| text.split(' ').next().unwrap());
        let blob = blob.and_then(|name| {
            let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/aead").join(name);
            std::fs::read(at).ok()
        });
        for path in paths() {
            let on = format!("{id} {} on {}", table.cipher, path.name());
            let cipher = table.build(path).unwrap_or_else(|e| panic!("{on}: {e}"));
            let tuple = table.integrity.tuple;
            assert_eq!(cipher.tag_size(), tuple, "{on}");
            let (mut out, mut tags) = (vec![0; plain.len()], vec![0xee; count * tuple]);
            cipher.seal(0, InOutBuf::new(&plain, &mut out).unwrap(), &mut tags).unwrap();
            if row["iv"] == 0 {
                assert_eq!(hex::encode(Sha256::digest(&out)), row["ct_sha256"].as_str().unwrap(), "{on}");
                assert_eq!(hex::encode(&tags[..tuple]), row["tags_first2"][0].as_str().unwrap(), "{on}");
                assert_eq!(hex::encode(Sha256::digest(&tags)), row["tags_sha256"].as_str().unwrap(), "{on}");
            }
            let mut back = vec![0; plain.len()];
            cipher.open(0, InOutBuf::new(&out, &mut back).unwrap(), &tags).unwrap();
            cipher.open(0, (&mut out[..]).into(), &tags).unwrap();
            assert!(back == plain && out == plain, "{on}");
            if let Some(blob) = &blob {
                let (data, tags) = blob.split_at(plain.len());
                assert_eq!(hex::encode(Sha256::digest(data)), row["ct_sha256"].as_str().unwrap(), "{on}");
                cipher.open(0, InOutBuf::new(data, &mut back).unwrap(), tags).unwrap();
                assert!(back == plain, "{on}: the kernel's own");
            }
        }
        match (row["iv"] == 0, blob.is_some()) {
            (true, _) => derived += 1,
            (_, true) => stored += 1,
            _ => missing += 1,
        }
    }
    // For the last ones the manifest has digests of random bytes only.
    assert_eq!((derived, stored, missing), (29, 11, 7));
}

#[test]
fn what_the_kernel_refuses_is_refused_in_its_words() {
    let rows = manifest();
    let refused: Vec<_> = rows.iter().filter(|row| row["roundtrip"] != true).collect();
    assert_eq!(refused.len(), 5);
    for row in refused {
        // Tables of `ccm` load, but each of their requests fails.
        let words = row["error"][0].as_str().unwrap_or("crypt: Error allocating crypto tfm");
        let words = words.trim_start_matches("crypt: ").split([' ', '.']).collect::<Vec<_>>();
        let words = words.iter().take_while(|word| !word.starts_with('(')).copied().collect::<Vec<_>>();
        let words = words.join(" ");
        for path in paths() {
            let error = table(row).build(path).err().unwrap().to_string();
            assert!(error.starts_with(words.trim()), "{}: {error}; the kernel says {words}", row["id"]);
        }
    }
}

const AEAD: IntegrityKind = IntegrityKind::Aead;
const NONE: IntegrityKind = IntegrityKind::None;

#[test]
fn what_does_not_fit_together_is_refused_with_the_reason() {
    let gcm = Table {
        cipher: "capi:gcm(aes)-random",
        key_bytes: 32,
        sector_size: 512,
        large: false,
        integrity: integrity(28, AEAD),
    };
    let authenc = Table {
        cipher: "capi:authenc(hmac(sha256),xts(aes))-plain64",
        key_bytes: 96,
        integrity: integrity(32, AEAD),
        ..gcm
    };
    let with = |cipher, key_bytes, bytes, kind| Table {
        cipher,
        key_bytes,
        integrity: integrity(bytes, kind),
        ..gcm
    };
    let tag = "Integrity AEAD auth tag size is not supported";
    let key = "Error decoding and setting key";
    let api = "Error allocating crypto tfm";
    for (table, words) in [
        (with("capi:gcm(aes)-random", 32, 11, AEAD), tag),
        (with("capi:gcm(aes)-random", 32, 12, AEAD), tag),
        (with("capi:gcm(aes)-random", 32, 29, AEAD), tag),
        (with("capi:rfc7539(chacha20,poly1305)-plain64", 32, 12, AEAD), tag),
        (with("capi:aegis128-plain64", 16, 7, AEAD), tag),
        (with("capi:rfc4309(ccm(aes))-plain64", 19, 14, AEAD), tag),
        (with("capi:authenc(hmac(sha256),xts(aes))-plain64", 96, 33, AEAD), tag),
        (with("capi:gcm(aes)-random", 31, 28, AEAD), key),
        (with("capi:rfc4309(ccm(aes))-random", 16, 24, AEAD), key),
        (with("capi:aegis128-plain64", 32, 16, AEAD), key),
        (with("capi:authenc(hmac(sha256),xts(aes))-plain64", 95, 32, AEAD), key),
        (with("capi:authenc(cmac(aes),xts(aes))-plain64", 64 + 32, 16, AEAD), key),
        (Table { integrity: Integrity { key_size: Some(97), ..authenc.integrity }, ..authenc }, key),
        (Table { integrity: Integrity { key_size: Some(16), ..gcm.integrity }, ..gcm }, key),
        (with("capi:gcm(aes)-random", 32, 28, NONE), api),
        (with("capi:xts(aes)-random", 64, 16, AEAD), api),
        (with("capi:gcm(aes)-essiv:sha256", 32, 16, AEAD), api),
        (with("capi:gcm(des3_ede)-plain64", 24, 16, AEAD), api),
        (with("capi:aegis256-random", 32, 48, AEAD), api),
        (with("capi:authenc(sha256,xts(aes))-plain64", 96, 32, AEAD), api),
        (with("capi:authenc(hmac(sha256),gcm(aes))-plain64", 64, 32, AEAD), api),
        (with("aes-gcm-random", 32, 28, AEAD), "Bad cipher specification"),
        (with("capi:authenc(hmac(sha256),cbc(aes))-eboiv", 64, 32, AEAD), "Error creating IV"),
        (with("capi:authenc(hmac(sha256),cbc(aes))-elephant", 64, 32, AEAD), "Error creating IV"),
        (with("capi:authenc(hmac(sha256),cbc(aes))-tcw", 64, 32, AEAD), "Error creating IV"),
        (with("capi:authenc(hmac(sha256),cbc(aes))-lmk", 64, 32, AEAD), key),
        (with("capi:authenc(hmac(sha256),cbc(aes))-other", 64, 32, AEAD), "Invalid IV mode"),
        (with("aes-xts-random", 64, 15, NONE), "Not enough space for integrity tag in the profile"),
        (with("aes-xts-plain64", 64, 0, NONE), "Invalid integrity arguments"),
        (with("aes-xts-plain64", 64, 481, NONE), "Invalid integrity arguments"),
        (
            Table { integrity: Integrity { tuple: 27, ..gcm.integrity }, ..gcm },
            "Integrity profile tag size mismatch",
        ),
    ] {
        for path in paths() {
            let error = table.build(path).err().unwrap_or_else(|| panic!("{} is refused", table.cipher));
            assert!(error.to_string().starts_with(&format!("{words}: ")), "{}: {error}", table.cipher);
        }
    }
    // Ciphers with tags or stored IVs, built without room for tuples.
    for (spec, bytes, words) in
        [("capi:gcm(aes)-random", 32, api), ("aes-xts-random", 64, "Error creating IV")]
    {
        let key = Key::zeroed(bytes).unwrap();
        let error = build(&spec.parse().unwrap(), &key, SectorSize::S512).err().unwrap().to_string();
        assert!(error.starts_with(&format!("{words}: ")), "{error}");
    }
}

/// Specifications with the key's length and the length of the tuple, with the whole tag.
const SPECS: [(&str, usize, usize, IntegrityKind); 31] = [
    ("capi:gcm(aes)-random", 32, 28, AEAD),
    ("capi:gcm(aes)-plain64", 16, 16, AEAD),
    ("capi:gcm(aes)-plain64be", 24, 4, AEAD),
    ("capi:gcm(serpent)-random", 32, 28, AEAD),
    ("capi:gcm(sm4)-plain", 16, 8, AEAD),
    ("capi:rfc4106(gcm(aes))-random", 36, 24, AEAD),
    ("capi:rfc7539(chacha20,poly1305)-random", 32, 28, AEAD),
    ("capi:rfc7539(chacha20,poly1305)-plain64", 32, 16, AEAD),
    ("capi:rfc7539esp(chacha20,poly1305)-random", 36, 24, AEAD),
    ("capi:rfc4309(ccm(aes))-random", 35, 24, AEAD),
    ("capi:rfc4309(ccm(aes))-plain64", 19, 8, AEAD),
    ("capi:rfc4309(ccm(twofish))-benbi", 27, 12, AEAD),
    ("capi:aegis128-random", 16, 32, AEAD),
    ("capi:aegis128-plain64", 16, 11, AEAD),
    ("capi:authenc(hmac(sha256),xts(aes))-random", 96, 48, AEAD),
    ("capi:authenc(hmac(sha256),xts(aes))-plain64", 64, 32, AEAD),
    ("capi:authenc(hmac(sha256),cbc(aes))-essiv:sha256", 64, 32, AEAD),
    ("capi:authenc(hmac(sha256),ctr(aes))-random", 64, 48, AEAD),
    ("capi:authenc(hmac(sha1),xts(aes))-random", 84, 36, AEAD),
    ("capi:authenc(hmac(sha512),cbc(aes))-plain64", 96, 64, AEAD),
    ("capi:authenc(hmac(sha384),lrw(twofish))-benbi", 96, 48, AEAD),
    ("capi:authenc(hmac(md5),cbc(blowfish))-null", 48, 16, AEAD),
    ("capi:authenc(hmac(wp512),xts(camellia))-random", 128, 80, AEAD),
    ("capi:authenc(cmac(aes),xts(aes))-random", 80, 32, AEAD),
    ("capi:authenc(cmac(serpent),cbc(aes))-plain64", 48, 9, AEAD),
    ("capi:authenc(hmac(sha256),adiantum(xchacha12,aes))-random", 64, 64, AEAD),
    ("aes-xts-random", 64, 16, NONE),
    ("capi:ctr(aes)-random", 32, 16, NONE),
    ("aes-cbc-essiv:sha256", 32, 5, NONE),
    ("aes-cbc-tcw", 64, 1, NONE),
    ("capi:cbc(des3_ede)-random", 24, 8, NONE),
];

fn law(nth: usize, sector_size: u32, large: bool, spare: usize, iv_offset: u64) -> Table<'static> {
    let (cipher, key_bytes, bytes, kind) = SPECS[nth];
    let integrity = Integrity { tuple: bytes + spare, iv_offset, ..integrity(bytes, kind) };
    let sector_size = if cipher.ends_with("tcw") { 512 } else { sector_size };
    Table { cipher, key_bytes, sector_size, large, integrity }
}

/// Pseudorandom bytes, the same in every run.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    stream(&format!("noise {seed}"), bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Sectors that one path seals open on another, in pieces or whole, in place or not; spare
    /// bytes are zero.
    #[test]
    fn paths_and_pieces_agree(
        nth in 0..SPECS.len(), log in 9u32..=16, large: bool, spare in 0usize..9, first in 0u64..1 << 40,
        iv_offset in 0u64..1 << 33, count in 1usize..70, seed: u64,
    ) {
        let table = law(nth, 1 << log, large, spare, iv_offset);
        let size = table.sector_size as usize;
        let count = count.min(((64 << 10) / size).max(1));
        let tuple = table.integrity.tuple;
        let units = size as u64 / 512;
        let (first, plain) = (first / units * units, noise(count * size, seed));
        let ciphers: Vec<_> = paths().map(|path| table.build(path).unwrap()).collect();
        for sealer in &ciphers {
            let (mut data, mut tags) = (plain.clone(), vec![0xee; count * tuple]);
            sealer.seal(first, (&mut data[..]).into(), &mut tags).unwrap();
            for place in tags.chunks(tuple) {
                prop_assert!(place[tuple - spare..].iter().all(|&byte| byte == 0), "{}", table.cipher);
            }
            for opener in &ciphers {
                let mut back = vec![0; plain.len()];
                opener.open(first, InOutBuf::new(&data, &mut back).unwrap(), &tags).unwrap();
                prop_assert!(back == plain, "{}", table.cipher);
                let (mut shared, mut ours) = (vec![0; plain.len()], data.clone());
                // SAFETY: the vector stays, and nothing else uses it meanwhile.
                let destination = unsafe { SharedDestination::new(shared.as_mut_ptr(), shared.len()) };
                opener.open_to(first, &mut ours, destination, &tags).unwrap();
                prop_assert!(shared == plain, "{} into shared memory", table.cipher);
                // SAFETY: as above.
                let source = unsafe { SharedSource::new(shared.as_ptr(), shared.len()) };
                let mut others = vec![0; tags.len()];
                opener.seal_from(first, source, &mut ours, &mut others).unwrap();
                back.fill(0);
                opener.open(first, InOutBuf::new(&ours, &mut back).unwrap(), &others).unwrap();
                prop_assert!(back == plain, "{} out of shared memory", table.cipher);
                let pieces = data.chunks(size).zip(tags.chunks(tuple)).zip(plain.chunks(size));
                for (n, ((sector, tag), plain)) in pieces.enumerate() {
                    let mut sector = sector.to_vec();
                    opener.open(first + n as u64 * units, (&mut sector[..]).into(), tag).unwrap();
                    prop_assert!(sector == plain, "{} sector {n}", table.cipher);
                }
            }
            if table.cipher.ends_with("-random") {
                let (mut again, mut others) = (plain.clone(), vec![0; count * tuple]);
                sealer.seal(first, (&mut again[..]).into(), &mut others).unwrap();
                for (n, (one, other)) in data.chunks(size).zip(again.chunks(size)).enumerate() {
                    prop_assert!(one != other, "{} sector {n} has the IV that it had", table.cipher);
                }
            } else {
                for (n, plain) in plain.chunks(size).enumerate() {
                    let (mut sector, mut tag) = (plain.to_vec(), vec![0xee; tuple]);
                    sealer.seal(first + n as u64 * units, (&mut sector[..]).into(), &mut tag).unwrap();
                    prop_assert!(sector == data[n * size..][..size], "{} sector {n}", table.cipher);
                    prop_assert!(tag == tags[n * tuple..][..tuple], "{} tag {n}", table.cipher);
                }
            }
        }
    }

    /// A flipped bit in data, tag or stored IV, another sector's number, another mapping's IV
    /// offset: the error names the sector, and its plaintext stays hidden.
    #[test]
    fn what_was_changed_does_not_open(
        nth in 0..SPECS.len(), log in 9u32..=13, first in 0u64..1 << 40, count in 1usize..40, seed: u64,
        what in 0..4, at: prop::sample::Index, bit in 0..8, in_place: bool,
    ) {
        let table = law(nth, 1 << log, false, 0, 8);
        prop_assume!(table.integrity.kind == AEAD);
        let (size, tuple) = (table.sector_size as usize, table.integrity.tuple);
        let units = size as u64 / 512;
        let (mut first, plain) = (first / units * units, noise(count * size, seed));
        for path in paths() {
            let mut table = table;
            let cipher = table.build(path).unwrap();
            let (mut data, mut tags) = (plain.clone(), vec![0; count * tuple]);
            cipher.seal(first, (&mut data[..]).into(), &mut tags).unwrap();
            let bad = match what {
                0 => {
                    let at = at.index(data.len());
                    data[at] ^= 1u8 << bit;
                    at / size
                }
                1 => {
                    let at = at.index(tags.len());
                    tags[at] ^= 1u8 << bit;
                    at / tuple
                }
                2 => {
                    first += units << 3;
                    0
                }
                _ => {
                    table.integrity.iv_offset += units;
                    0
                }
            };
            let cipher = table.build(path).unwrap();
            let mut out = vec![0; data.len()];
            let opened = if in_place {
                out.copy_from_slice(&data);
                cipher.open(first, (&mut out[..]).into(), &tags)
            } else {
                cipher.open(first, InOutBuf::new(&data, &mut out).unwrap(), &tags)
            };
            prop_assert_eq!(opened, Err(BadSector(bad)), "{} on {}", table.cipher, path.name());
            let (mut shared, mut ours) = (vec![0; data.len()], data.clone());
            // SAFETY: the vector stays, and nothing else uses it meanwhile.
            let destination = unsafe { SharedDestination::new(shared.as_mut_ptr(), shared.len()) };
            prop_assert_eq!(cipher.open_to(first, &mut ours, destination, &tags), Err(BadSector(bad)));
            prop_assert!(shared[bad * size..][..size].iter().all(|&byte| byte == 0), "something reaches the other");
            let sector = &out[bad * size..][..size];
            let untouched = sector == &data[bad * size..][..size];
            prop_assert!(
                sector.iter().all(|&byte| byte == 0) || in_place && untouched,
                "{} on {} lets something out", table.cipher, path.name()
            );
        }
    }
}

#[test]
fn requests_of_another_shape_are_refused() {
    for nth in 0..SPECS.len() {
        let table = law(nth, 512, false, 0, 0);
        let cipher = table.build(CpuPath::Portable).unwrap();
        let tuple = table.integrity.tuple;
        for (bytes, tags) in [(1024, tuple), (512, 2 * tuple), (700, tuple), (512, 0), (0, tuple)] {
            let (mut data, mut tags) = (vec![0; bytes], vec![0; tags]);
            assert!(cipher.seal(0, (&mut data[..]).into(), &mut tags).is_err(), "{}", table.cipher);
            assert!(cipher.open(0, (&mut data[..]).into(), &tags).is_err(), "{}", table.cipher);
        }
        let mut none = [0; 0];
        cipher.seal(0, (&mut none[..]).into(), &mut []).unwrap();
        cipher.open(0, (&mut none[..]).into(), &[]).unwrap();
    }
}

#[test]
fn what_a_new_volume_needs_is_told_by_its_cipher() {
    for (spec, keys, tag, stored_iv, mac_key) in [
        ("capi:gcm(aes)-random", &[16, 24, 32][..], 16, 12, 0),
        ("capi:rfc7539(chacha20,poly1305)-plain64", &[32], 16, 0, 0),
        ("capi:rfc4309(ccm(aes))-random", &[19, 27, 35], 16, 8, 0),
        ("capi:aegis128-random", &[16], 16, 16, 0),
        ("capi:authenc(hmac(sha256),xts(aes))-random", &[32, 48, 64], 32, 16, 32),
        ("capi:authenc(cmac(aes),ctr(aes))-random", &[16, 24, 32], 16, 16, 16),
        ("aes-xts-random", &[32, 48, 64], 0, 16, 0),
        ("aes-xts-plain64", &[32, 48, 64], 0, 0, 0),
    ] {
        let parsed = spec.parse().unwrap();
        assert_eq!(key_sizes(&parsed).unwrap(), keys, "{spec}");
        assert_eq!(authentication(&parsed).unwrap(), Authentication { tag, stored_iv, mac_key }, "{spec}");
    }
}
