//! Volumes made by cryptsetup and written by a kernel: all of them are read here, byte for byte.

use std::path::{Path, PathBuf};

use serde_json::Value;
use underseal_cipher::{CipherSpec, ErrorKind as Cipher, key_sizes};
use underseal_volume::{ActivateOptions, Header, UnlockOptions};

use crate::support::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/luks");

fn manifest() -> Value {
    let text = std::fs::read_to_string(Path::new(FOLDER).join("basic.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the label's stream, as defined in the README.
fn stream(label: &str, len: usize) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let block = |i: u64| Sha256::new().chain_update(label).chain_update(i.to_le_bytes()).finalize();
    (0..).map(block).flat_map(|b| b.to_vec()).take(len).collect()
}

/// Returns the image and its header, which may be the same file.
fn unpack(scratch: &Scratch, image: &Value) -> (PathBuf, PathBuf) {
    let names = image["files"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let unpacked: Vec<PathBuf> = names
        .map(|name| {
            let packed = Path::new(FOLDER).join(name);
            scratch
                .file(name.strip_suffix(".xz").unwrap(), &run_raw("xz", &["-dc", packed.to_str().unwrap()]))
        })
        .collect();
    (unpacked[0].clone(), unpacked.last().unwrap().clone())
}

#[test]
fn every_volume_whose_cipher_is_supported_reads_back_exactly() {
    let manifest = manifest();
    let passphrase = manifest["passphrases"]["slot A"].as_str().unwrap();
    let (mut skipped, mut luks1_headers) = (Vec::new(), 0);
    for (id, image) in manifest["images"].as_object().unwrap() {
        let table = image["tables"][0].as_str().unwrap();
        let spec: Result<CipherSpec, _> = table.split(' ').nth(4).unwrap().parse();
        if matches!(spec.and_then(|spec| key_sizes(&spec)), Err(e) if e.kind() == Cipher::Unsupported) {
            skipped.push(id.as_str());
            continue;
        }
        let scratch = Scratch::new();
        let (data, header) = unpack(&scratch, image);
        let file = open(&header);
        let read = Header::read(&file).unwrap_or_else(|e| panic!("{id}: {e}"));
        assert_eq!(read.damage(), None, "{id}");
        match &read {
            Header::Luks2(luks2) => {
                assert_eq!(&Value::Object(luks2.json().clone()), &image["json"], "{id}");
            }
            Header::Luks1(luks1) => {
                assert!(std::fs::read(&header).unwrap().starts_with(&luks1.encode()), "{id}");
                luks1_headers += 1;
            }
            other => panic!("{id}: {other:?}"),
        }
        let opened = read.unlock(&file, &key(passphrase.as_bytes()), &UnlockOptions::default());
        let opened = opened.unwrap_or_else(|e| panic!("{id}: {e}"));
        assert_eq!(hex(opened.key.key().as_bytes()), image["volume_key"].as_str().unwrap(), "{id}");

        let options = ActivateOptions { detached: data != header, ..ActivateOptions::default() };
        let volume =
            read.activate(&opened.key, size(&data), &options).unwrap_or_else(|e| panic!("{id}: {e}"));
        let sectors: u64 = table.split(' ').nth(2).unwrap().parse().unwrap();
        assert_eq!(volume.size(), sectors * 512, "{id}");
        assert_eq!(volume.allow_discards(), table.contains("allow_discards"), "{id}");
        let len = usize::try_from(image["data_bytes"].as_u64().unwrap()).unwrap();
        assert!(plaintext(&volume, &data, len) == stream(&format!("luks:{id}"), len), "{id}");
    }
    assert!(luks1_headers > 3, "{luks1_headers}");
    eprintln!("skipped: no such cipher in this build: {}", skipped.join(", "));
    let may_lack = ["serpent", "lrw", "twofish", "adiantum", "eboiv"];
    assert!(skipped.iter().all(|id| may_lack.iter().any(|cipher| id.contains(cipher))), "{skipped:?}");
}

#[test]
fn every_passphrase_opens_its_own_slot() {
    let manifest = manifest();
    let passphrase = |name: &str| manifest["passphrases"][name].as_str().unwrap().as_bytes().to_vec();
    let key_file = stream("keyfile", 1000);
    for (id, slots) in [
        ("luks1-multislot", [(0, passphrase("slot A")), (3, passphrase("slot B")), (7, key_file.clone())]),
        ("luks2-rich", [(0, passphrase("slot A")), (9, passphrase("slot B")), (2, key_file)]),
    ] {
        let scratch = Scratch::new();
        let (_, image) = unpack(&scratch, &manifest["images"][id]);
        let file = open(&image);
        let header = Header::read(&file).unwrap();
        for (slot, passphrase) in slots {
            let opened = header.unlock(&file, &key(&passphrase), &UnlockOptions::default());
            assert_eq!(opened.unwrap_or_else(|e| panic!("{id} {slot}: {e}")).slot, slot, "{id}");
        }
    }
}
