//! Tables that a real kernel wrote (crates/cipher/tests/vectors), a random sample of them through the command.

use std::fs;

use fastrand::Rng;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::scratch::assert_same;
use crate::support::{Scratch, seed};
use crate::{decrypt, encrypt};

/// No kept library has these.
const OBSOLETE: [&str; 5] = ["anubis", "khazad", "seed", "tea", "xeta"];
const SAMPLE: usize = 12;

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
    // The kernel reads 66048 as 512; we refuse it.
    rows.retain(|row| {
        let cipher = row["cipher"].as_str().unwrap();
        !OBSOLETE.contains(&cipher.split(['-', ':']).next().unwrap())
            && !OBSOLETE.iter().any(|name| cipher.contains(&format!("({name})")))
            && !row["opts"].to_string().contains("66048")
    });
    let mut rng = Rng::with_seed(seed("kernels"));
    rng.shuffle(&mut rows);
    // Where the data begins on the device is in few of them.
    let offset = rows.iter().position(|row| row["start"] != 0).expect("the manifest has device offsets");
    rows.swap(0, offset);

    let scratch = Scratch::new();
    let plain = stream("r3-golden-plain", 65536);
    for row in &rows[..SAMPLE] {
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
