//! All tables that a real kernel wrote (crates/cipher/tests/vectors), through the command.

use std::fs;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::Scratch;
use crate::support::scratch::assert_same;
use crate::table::{decrypt, encrypt};

/// Ciphers that no maintained library has.
const OBSOLETE: [&str; 5] = ["anubis", "khazad", "seed", "tea", "xeta"];
/// Options of rows that are left out: `integrity:` wants a device that keeps tags, which a file
/// does not (tests/kernel has such devices); the kernel reads 66048 as 512, and here it is refused.
const NOT_HERE: [&str; 2] = ["integrity:", "sector_size:66048"];

/// SHA-256(label || le64(i)) for i = 0, 1, ..
fn stream(label: &str, bytes: usize) -> Vec<u8> {
    let block = |i: u64| Sha256::new().chain_update(label).chain_update(i.to_le_bytes()).finalize();
    let mut stream: Vec<u8> = (0..bytes.div_ceil(32) as u64).flat_map(block).collect();
    stream.truncate(bytes);
    stream
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_command_writes_what_the_kernel_wrote_and_reads_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cipher/tests/vectors/tables.json");
    let manifest: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut rows: Vec<&Value> = manifest["vectors"].as_array().unwrap().iter().collect();
    rows.retain(|row| {
        let (cipher, opts) = (row["cipher"].as_str().unwrap(), row["opts"].to_string());
        !OBSOLETE.contains(&cipher.split(['-', ':']).next().unwrap())
            && !OBSOLETE.iter().any(|name| cipher.contains(&format!("({name})")))
            && !NOT_HERE.iter().any(|option| opts.contains(option))
    });
    assert!(rows.len() > 340 && rows.iter().any(|row| row["start"] != 0), "{} rows", rows.len());

    let scratch = Scratch::new();
    let plain = stream("r3-golden-plain", 65536);
    for row in &rows {
        let number = |field: &str| row[field].as_u64().unwrap();
        let start = usize::try_from(number("start")).unwrap() << 9;
        let len = usize::try_from(number("sectors")).unwrap() << 9;
        let key = stream("r3-golden-key", usize::try_from(number("key_bytes")).unwrap());
        let key = if key.is_empty() { "-".to_owned() } else { hex(&key) };
        let mut line = format!(
            "0 {} crypt {} {key} {} disk {}",
            number("sectors"),
            row["cipher"].as_str().unwrap(),
            number("iv_offset"),
            number("start")
        );
        let opts: Vec<_> = row["opts"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
        if !opts.is_empty() {
            line += &format!(" {} {}", opts.len(), opts.join(" "));
        }
        let id = row["id"].as_str().unwrap();
        eprintln!("{id}");
        scratch.sparse("disk", (start + len) as u64);
        encrypt(&scratch, &line, &plain[..len]);
        let disk = fs::read(scratch.path("disk")).unwrap();
        assert_eq!(hex(&Sha256::digest(&disk[start..])), row["ct_sha256"].as_str().unwrap(), "{id}");
        assert!(disk[..start].iter().all(|&byte| byte == 0), "{id}: written before the table");
        assert_same(&decrypt(&scratch, &line), &plain[..len], id);
    }
}
