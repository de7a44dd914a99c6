//! Tables from a real kernel: the same bytes in both directions, on every CPU path; and tables that
//! it refused, with the same words.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use underseal_cipher::{
    BuildOptions, CipherSpec, CpuPath, InOutBuf, Key, Result, SectorCipher, SectorSize, build_with,
};

/// Ciphers that no maintained library has: their tables are counted, by name.
const OBSOLETE: [&str; 5] = ["anubis", "khazad", "seed", "tea", "xeta"];

/// Options that affect how a table is served and not the bytes on disk.
const OTHER_OPTIONS: [&str; 8] = [
    "allow_discards",
    "same_cpu_crypt",
    "high_priority",
    "submit_from_crypt_cpus",
    "no_read_workqueue",
    "no_write_workqueue",
    "integrity:16:none",
    "integrity_key_size:32",
];

fn manifest() -> Value {
    serde_json::from_str(include_str!("vectors/tables.json")).unwrap()
}

/// SHA-256(label || le64(i)) for i = 0, 1, ..
fn stream(label: &str, bytes: usize) -> Vec<u8> {
    let block = |i: u64| Sha256::new().chain_update(label).chain_update(i.to_le_bytes()).finalize();
    let mut stream: Vec<u8> = (0..bytes.div_ceil(32) as u64).flat_map(block).collect();
    stream.truncate(bytes);
    stream
}

/// A row of the manifest.
struct Table<'a>(&'a Value);

impl Table<'_> {
    fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap()
    }

    fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap()
    }

    fn options(&self) -> impl Iterator<Item = &str> {
        self.0["opts"].as_array().unwrap().iter().map(|option| option.as_str().unwrap())
    }

    fn build(&self, cpu: CpuPath) -> Result<Arc<dyn SectorCipher>> {
        let (mut sector_size, mut iv_large_sectors) = (SectorSize::S512, false);
        for option in self.options() {
            match option.split_once(':') {
                // The kernel keeps 16 bits of it, and uses 512.
                Some(("sector_size", "66048")) => {}
                Some(("sector_size", size)) => sector_size = SectorSize::new(size.parse().unwrap())?,
                _ if option == "iv_large_sectors" => iv_large_sectors = true,
                _ => assert!(OTHER_OPTIONS.contains(&option), "{option}"),
            }
        }
        let bytes = usize::try_from(self.number("key_bytes")).unwrap();
        let key = Key::new(&stream("r3-golden-key", bytes)).unwrap();
        let spec: CipherSpec = self.text("cipher").parse()?;
        build_with(&BuildOptions {
            spec: &spec,
            key: &key,
            sector_size,
            iv_large_sectors,
            integrity: None,
            cpu: Some(cpu),
        })
    }
}

#[test]
fn every_path_reads_and_writes_the_kernels_tables() {
    let manifest = manifest();
    let plain = stream("r3-golden-plain", 65536);
    let vectors = manifest["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 371);
    let (mut skipped, mut failed) = (BTreeSet::new(), Vec::new());
    let (mut done, mut obsolete) = (0, 0);
    for table in vectors.iter().map(Table) {
        let spec: CipherSpec = table.text("cipher").parse().unwrap();
        assert_eq!(spec.as_written(), table.text("cipher"));
        if OBSOLETE.contains(&spec.cipher()) {
            skipped.insert(spec.cipher().to_owned());
            obsolete += 1;
            continue;
        }
        for path in CpuPath::ALL.into_iter().filter(|path| path.is_available()) {
            let cipher = match table.build(path) {
                Ok(cipher) => cipher,
                Err(e) => {
                    failed.push(format!("{}: {e}", table.text("id")));
                    continue;
                }
            };
            let first = table.number("iv_offset");
            let mut out = vec![0; plain.len()];
            cipher.encrypt(first, InOutBuf::new(&plain, &mut out).unwrap());
            if hex::encode(Sha256::digest(&out)) != table.text("ct_sha256") {
                let first =
                    if hex::encode(&out[..64]) == table.text("ct_first64") { "later" } else { "at once" };
                failed.push(format!("{} on {}: differs {first}", table.text("id"), path.name()));
                continue;
            }
            let mut back = vec![0; plain.len()];
            cipher.decrypt(first, InOutBuf::new(&out, &mut back).unwrap());
            cipher.decrypt(first, (&mut out[..]).into());
            if back != plain || out != plain {
                failed.push(format!("{} on {}: does not read back", table.text("id"), path.name()));
            }
        }
        done += 1;
    }
    assert!(failed.is_empty(), "{} failures:\n{}", failed.len(), failed.join("\n"));
    eprintln!("{done} tables, {obsolete} skipped of obsolete ciphers: {skipped:?}");
    assert_eq!((done, obsolete), (351, 20));
}

#[test]
fn what_the_kernel_refuses_is_refused_in_its_words() {
    let manifest = manifest();
    let rejected = manifest["rejected"].as_array().unwrap();
    assert_eq!(rejected.len(), 93);
    let mut failed = Vec::new();
    let mut checked = 0;
    for table in rejected.iter().map(Table) {
        let cipher = table.text("cipher");
        // No kernel of the manifest has hctr2, and device offsets and option texts belong to the
        // table line.
        let of_the_line = table.options().any(|o| {
            ["integrity:28:aead", "sector_size:65536", "sector_size:1000", "sector_size:4096x"].contains(&o)
        });
        let is_obsolete = OBSOLETE.contains(&cipher.split('-').next().unwrap());
        if is_obsolete || cipher.contains("hctr2") || of_the_line || table.number("start") == 3 {
            continue;
        }
        checked += 1;
        let errors = table.0["errors"].as_array().unwrap();
        let words = errors.last().map_or("Error allocating crypto tfm", |e| {
            let text = e.as_str().unwrap();
            text.trim_start_matches("crypt: ").split(" (-").next().unwrap()
        });
        // The kernel has no words for this error.
        let words = if words == "Unknown error" { "Error decoding and setting key" } else { words };
        for path in CpuPath::ALL.into_iter().filter(|path| path.is_available()) {
            match table.build(path) {
                Ok(_) => failed.push(format!("{}: accepted; the kernel says {words}", table.text("id"))),
                Err(e) if !e.to_string().starts_with(&format!("{words}: ")) => {
                    failed.push(format!("{}: \"{e}\"; the kernel says {words}", table.text("id")));
                }
                Err(_) => {}
            }
        }
    }
    assert!(failed.is_empty(), "{} failures:\n{}", failed.len(), failed.join("\n"));
    assert_eq!(checked, 65);
}

/// The null cipher in chain modes: kernel 6.1's output for counting bytes, with these IV offsets.
#[test]
fn the_null_cipher_is_chained_as_the_kernel_chains_it() {
    let plain: Vec<u8> = (0..=u8::MAX).cycle().take(8192).collect();
    for (spec, first, sum) in [
        ("cipher_null", 0, "89ec710ec22b25e4"),
        ("cipher_null", 4660, "a688acc89fadd0eb"),
        ("cipher_null-plain", 0, "89ec710ec22b25e4"),
        ("cipher_null:1", 0, "89ec710ec22b25e4"),
        ("cipher_null-cbc-plain64", 0, "89ec710ec22b25e4"),
        ("cipher_null:2-cbc-plain64", 4660, "a688acc89fadd0eb"),
        ("capi:cbc(cipher_null)-plain", 0, "89ec710ec22b25e4"),
        ("cipher_null-cbc-plain64be", 4660, "c5e7c71c155e2c85"),
        ("cipher_null-cbc-benbi", 4660, "c5e7c71c155e2c85"),
        ("cipher_null-cbc-null", 4660, "c5e7c71c155e2c85"),
        ("cipher_null-pcbc-plain", 0, "ad1d189ee0c17ab1"),
        ("cipher_null-pcbc-plain", 4660, "619464be8acdc8d3"),
        ("cipher_null-ecb", 4660, "dc404a613fedaeb5"),
    ] {
        let parsed: CipherSpec = spec.parse().unwrap();
        let build = |key: &[u8]| {
            let key = Key::new(key).unwrap();
            let sector_size = SectorSize::S512;
            build_with(&BuildOptions {
                spec: &parsed,
                key: &key,
                sector_size,
                iv_large_sectors: false,
                integrity: None,
                cpu: None,
            })
        };
        let cipher = build(&[]).unwrap_or_else(|e| panic!("{spec}: {e}"));
        let mut data = plain.clone();
        cipher.encrypt(first, (&mut data[..]).into());
        assert_eq!(hex::encode(&Sha256::digest(&data)[..8]), sum, "{spec} from {first}");
        assert_eq!(cipher.is_null(), data == plain, "{spec}");
        cipher.decrypt(first, (&mut data[..]).into());
        assert!(data == plain, "{spec}");
        let refused = build(&[7; 16]).err().unwrap().to_string();
        assert!(refused.starts_with("Error decoding and setting key: "), "{spec}: {refused}");
    }
    for (spec, words) in [
        ("cipher_null-xts-plain64", "Error allocating crypto tfm"),
        ("cipher_null-ctr-plain", "Error allocating crypto tfm"),
        ("cipher_null-lrw-plain64", "Error allocating crypto tfm"),
        ("cipher_null-cbc-essiv:sha256", "Error allocating crypto tfm"),
        ("cipher_null-cbc-eboiv", "Error creating IV"),
        ("capi:cipher_null-plain", "Error allocating crypto tfm"),
        ("Cipher_Null", "Error allocating crypto tfm"),
    ] {
        let (spec, key) = (spec.parse().unwrap(), Key::new(&[]).unwrap());
        let refused = underseal_cipher::build(&spec, &key, SectorSize::S512).err().unwrap().to_string();
        assert!(refused.starts_with(&format!("{words}: ")), "{refused}; the kernel says {words}");
    }
}

/// With sectors of 512 bytes IVs count the same either way, so `iv_large_sectors` changes nothing,
/// for every cipher of the kernels' tables.
#[test]
fn large_sectors_of_512_bytes_are_sectors_of_512_bytes() {
    let plain = stream("r3-golden-plain", 8192);
    for (spec, bytes) in [
        ("aes-hctr2-plain64", 32),
        ("aes-xts-plain64", 64),
        ("aes-cbc-essiv:sha256", 32),
        ("aes-cbc-eboiv", 32),
        ("aes-cbc-elephant", 64),
        ("aes-lrw-benbi", 48),
        ("aes:64-cbc-lmk", 1024),
        ("xchacha12,aes-adiantum-plain64", 32),
    ] {
        let (parsed, key) = (spec.parse().unwrap(), Key::new(&stream("r3-golden-key", bytes)).unwrap());
        let [small, large] = [false, true].map(|iv_large_sectors| {
            let (spec, key, sector_size) = (&parsed, &key, SectorSize::S512);
            let cipher = build_with(&BuildOptions {
                spec,
                key,
                sector_size,
                iv_large_sectors,
                integrity: None,
                cpu: None,
            });
            let mut data = plain.clone();
            cipher.unwrap().encrypt(77, (&mut data[..]).into());
            data
        });
        assert!(small == large, "{spec}");
    }
}
