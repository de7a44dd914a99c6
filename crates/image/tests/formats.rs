//! Volumes of other systems through the facade, whole: VeraCrypt and TrueCrypt, BitLocker,
//! FileVault 2, loop-AES, made by an independent maker, checked against the manifest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};
use underseal_image::{Error, ErrorKind, Image, OpenOptions, TcryptOptions};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/tests/vectors");

/// The images in a temporary folder, and the manifest's entries of a format.
fn images(format: &str) -> (tempfile::TempDir, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let archive = format!("{FOLDER}/images.tar.xz");
    let unpacked = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(folder.path()).status();
    assert!(unpacked.unwrap().success(), "tar and xz unpack the images");
    let text = fs::read_to_string(format!("{FOLDER}/formats.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let entries = manifest["images"].as_array().unwrap().iter();
    (folder, entries.filter(|entry| entry["format"] == format).cloned().collect())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts<'e>(entry: &'e Value, name: &str) -> Vec<&'e str> {
    entry[name].as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect()
}

fn number(entry: &Value, name: &str) -> u32 {
    entry[name].as_u64().map_or(0, |number| u32::try_from(number).unwrap())
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn all(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(image.size()).unwrap()];
    assert_eq!(image.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Opens a copy of the image with the options, and compares its plaintext, and the image after the
/// manifest's writes.
fn check(
    entry: &Value,
    folder: &Path,
    options: impl Fn(bool) -> Result<OpenOptions, Error>,
) -> Result<(), Error> {
    let name = entry["image"].as_str().unwrap();
    let path = folder.join(name);
    let image = options(false)?.open(&path)?;
    let plain = all(&image);
    assert_eq!(image.size(), entry["plaintext_size"].as_u64().unwrap(), "{name}");
    assert_eq!(sha256(&plain), entry["plaintext_sha256"].as_str().unwrap(), "{name}");
    // Bytes within sectors, across the borders of sectors and segments.
    for at in (0..plain.len() - 3000).step_by(plain.len() / 23) {
        let mut some = vec![0; 3000];
        image.read_at(at as u64 + 7, &mut some).unwrap();
        assert!(some[..2993] == plain[at + 7..at + 3000], "{name}: {at}");
    }
    let info: Value = serde_json::from_str(image.info_json()).unwrap();
    assert_eq!(info["format"], entry["format"], "{name}");
    drop(image);
    let Some(writes) = entry["writes"].as_array() else { return Ok(()) };
    let copy = path.with_extension("written");
    fs::copy(&path, &copy).unwrap();
    let image = options(true)?.open(&copy)?;
    for write in writes {
        let [offset, len] = [0, 1].map(|nth| write[nth].as_u64().unwrap());
        let bytes: Vec<u8> = (offset..offset + len).map(|at| (7 * at + 13).to_le_bytes()[0]).collect();
        // In two pieces that end within a sector.
        let (first, second) = bytes.split_at(bytes.len() / 3);
        image.write_at(offset, first).unwrap();
        image.write_at(offset + first.len() as u64, second).unwrap();
    }
    image.flush().unwrap();
    drop(image);
    assert_eq!(sha256(&fs::read(&copy).unwrap()), entry["image_sha256_after"].as_str().unwrap(), "{name}");
    fs::remove_file(&copy).unwrap();
    Ok(())
}

/// The kind of the manifest's refusal.
fn refusal(entry: &Value) -> ErrorKind {
    let reason = entry["reason"].as_str().unwrap();
    let is = |part: &str| reason.contains(part);
    match entry["format"].as_str().unwrap() {
        _ if is("no recovery password at all") || is("startup key of another") => ErrorKind::WrongPassphrase,
        _ if entry["negative"] == true => ErrorKind::WrongPassphrase,
        "loopaes" => ErrorKind::BadOption,
        "tcrypt" if is("no header opens") => ErrorKind::WrongPassphrase,
        "tcrypt" if is("magic is right") || is("sector size") => ErrorKind::BadHeader,
        "tcrypt" => ErrorKind::Unsupported,
        _ if is("only protectors") => ErrorKind::Keyslot,
        _ if is("not BitLocker") => ErrorKind::NoHeader,
        _ if is("no copy") || is("sealed") || is("lie where") || is("sector size") => ErrorKind::BadHeader,
        _ => ErrorKind::Unsupported,
    }
}

fn tcrypt(entry: &Value, folder: &Path, options: TcryptOptions) -> Result<OpenOptions, Error> {
    let mut options = options.pim(number(entry, "pim"))?.prf(entry["kdf"][0].as_str().unwrap())?;
    options = match entry["header"].as_str().unwrap() {
        "normal" => options,
        "hidden" => options.hidden(true),
        "backup" => options.backup_header(true),
        "backup-hidden" => options.hidden(true).backup_header(true),
        "system" => options.system(true),
        other => panic!("header {other}"),
    };
    if entry["reason"] == "another chain is asked for" {
        options = options.cipher(entry["chain_cryptsetup"].as_str().unwrap().rsplit(' ').next().unwrap())?;
    }
    for name in texts(entry, "keyfiles") {
        options = options.key_file(folder.join(name));
    }
    Ok(OpenOptions::new().passphrase(entry["passphrase"].as_str().unwrap().as_bytes())?.tcrypt(options))
}

#[test]
fn every_volume_of_truecrypt_and_veracrypt_reads_and_writes_as_the_manifest_says() {
    let (folder, entries) = images("tcrypt");
    let (mut opened, mut refused, mut old) = (0, 0, 0);
    for entry in &entries {
        let name = format!("{} {}", entry["image"], entry["header"]);
        let options = |writable| -> Result<OpenOptions, Error> {
            let mut options = tcrypt(entry, folder.path(), TcryptOptions::new())?.writable(writable);
            if let Some(number) = entry["partition"]["number"].as_u64() {
                options = options.partition(u32::try_from(number).unwrap());
            }
            Ok(options)
        };
        let mut entry = entry.clone();
        let chain = entry["chain_cryptsetup"].as_str().unwrap();
        if chain.starts_with("outer-cbc") || chain.starts_with("inner-cbc") {
            // No program writes these any more.
            entry["writes"].take();
            let writes = options(true).unwrap().open(folder.path().join(entry["image"].as_str().unwrap()));
            assert_eq!(writes.unwrap_err().kind(), ErrorKind::Unsupported, "{name}");
            old += 1;
        }
        match (entry["expect"].as_str(), check(&entry, folder.path(), options)) {
            (Some("open"), done) => {
                done.unwrap_or_else(|e| panic!("{name}: {}", e.text()));
                opened += 1;
            }
            (_, done) => {
                assert_eq!(done.expect_err(&name).kind(), refusal(&entry), "{name}");
                refused += 1;
            }
        }
    }
    assert_eq!((opened, refused), (81, 16));
    assert!(old >= 4, "{old} of old modes");
}

#[test]
fn a_write_that_would_reach_a_protected_hidden_volume_is_the_last_one() {
    let (folder, entries) = images("tcrypt");
    let mut seen = 0;
    for entry in entries.iter().filter(|entry| entry["hidden_protection"].is_object()) {
        let name = entry["image"].as_str().unwrap();
        let of = &entry["hidden_protection"];
        let path = folder.path().join(name);
        let before = fs::read(&path).unwrap();
        for write in of["refused_writes"].as_array().unwrap() {
            let protected = TcryptOptions::new()
                .protect_hidden(of["passphrase"].as_str().unwrap().as_bytes(), number(of, "pim"), [])
                .unwrap();
            let image = tcrypt(entry, folder.path(), protected).unwrap().writable(true).open(&path).unwrap();
            let [offset, len] = [0, 1].map(|nth| write[nth].as_u64().unwrap());
            let bytes = vec![1; usize::try_from(len).unwrap()];
            assert_eq!(image.write_at(offset, &bytes).unwrap_err().kind(), ErrorKind::ReadOnly, "{name}");
            // A place far from the hidden volume.
            assert_eq!(image.write_at(0, &[1]).unwrap_err().kind(), ErrorKind::ReadOnly, "{name}");
            image.write_at(0, &[]).unwrap();
            drop(image);
            assert!(fs::read(&path).unwrap() == before, "{name}");
        }
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn every_volume_of_bitlocker_opens_by_each_of_its_secrets_and_is_told_by_its_header() {
    let (folder, entries) = images("bitlk");
    let (mut opened, mut refused) = (0, 0);
    for entry in &entries {
        let name = entry["image"].as_str().unwrap();
        type Secret = Box<dyn Fn(OpenOptions) -> Result<OpenOptions, Error>>;
        let mut secrets: Vec<Secret> = Vec::new();
        for text in entry["passphrase"].as_str().into_iter().chain(texts(entry, "recovery")) {
            let text = text.to_owned();
            secrets.push(Box::new(move |options| options.passphrase(text.as_bytes())));
        }
        for file in texts(entry, "startup_keys") {
            let path = folder.path().join(file);
            secrets.push(Box::new(move |options| options.key_file(&path)));
        }
        if entry["clear_key"] == true {
            secrets.push(Box::new(Ok));
        }
        if let (Some(key), "open") = (entry["volume_key"].as_str(), entry["expect"].as_str().unwrap()) {
            let key = hex(key);
            secrets.push(Box::new(move |options| options.volume_key(&key)));
        }
        if secrets.is_empty() {
            // Only protectors that nothing here opens.
            secrets.push(Box::new(Ok));
        }
        for secret in secrets {
            let options = |writable| secret(OpenOptions::new()).map(|options| options.writable(writable));
            if entry["expect"] == "open" {
                check(entry, folder.path(), options).unwrap_or_else(|e| panic!("{name}: {}", e.text()));
                opened += 1;
            } else if name == "bl-paused.img" {
                // Read, and no write.
                check(entry, folder.path(), options).unwrap_or_else(|e| panic!("{name}: {}", e.text()));
                let writes = options(true).unwrap().open(folder.path().join(name));
                assert_eq!(writes.unwrap_err().kind(), ErrorKind::Unsupported, "{name}");
            } else {
                let failed = check(entry, folder.path(), options).expect_err(name);
                assert_eq!(failed.kind(), refusal(entry), "{name}: {}", failed.text());
                refused += 1;
            }
        }
    }
    assert!(opened >= 60 && refused >= 16, "{opened} opened, {refused} refused");
}

#[test]
fn writes_to_metadata_of_bitlocker_are_refused_and_change_nothing() {
    let (folder, entries) = images("bitlk");
    let entry = entries.iter().find(|entry| entry["image"] == "bl-8004-512.img").unwrap();
    let path = folder.path().join("bl-8004-512.img");
    let before = fs::read(&path).unwrap();
    let passphrase = entry["passphrase"].as_str().unwrap();
    let open = || OpenOptions::new().passphrase(passphrase.as_bytes()).unwrap().writable(true).open(&path);
    let image = open().unwrap();
    for range in entry["zero_ranges"].as_array().unwrap() {
        let [start, len] = [0, 1].map(|nth| range[nth].as_u64().unwrap());
        for at in [start - 1, start, start + len - 1] {
            assert_eq!(image.write_at(at, &[1; 2]).unwrap_err().kind(), ErrorKind::ReadOnly, "{at}");
        }
    }
    drop(image);
    assert!(fs::read(&path).unwrap() == before);
    let image = open().unwrap();
    image.write_at(100, b"other places are written").unwrap();
}

#[test]
fn every_volume_of_filevault_2_opens_by_each_of_its_secrets() {
    let (folder, entries) = images("fvault2");
    let (mut opened, mut refused) = (0, 0);
    for entry in &entries {
        let name = entry["image"].as_str().unwrap();
        for passphrase in texts(entry, "passphrases") {
            let options =
                |writable| Ok(OpenOptions::new().passphrase(passphrase.as_bytes())?.writable(writable));
            match (entry["expect"].as_str(), check(entry, folder.path(), options)) {
                (Some("open"), done) => {
                    done.unwrap_or_else(|e| panic!("{name}: {}", e.text()));
                    opened += 1;
                }
                (_, done) => {
                    done.expect_err(name);
                    refused += 1;
                }
            }
        }
        if entry["expect"] == "open" {
            let key = hex(entry["volume_key"].as_str().unwrap());
            let options = |writable| Ok(OpenOptions::new().fvault2([]).volume_key(&key)?.writable(writable));
            check(entry, folder.path(), options).unwrap_or_else(|e| panic!("{name}: {}", e.text()));
        }
    }
    assert_eq!((opened, refused), (7, 3));
}

#[test]
fn every_volume_of_loop_aes_reads_and_writes_as_the_manifest_says() {
    let (folder, entries) = images("loopaes");
    let (mut opened, mut refused) = (0, 0);
    for entry in &entries {
        let name = format!("{} {}", entry["image"], entry["keyfile"]);
        let options = |writable| -> Result<OpenOptions, Error> {
            let key_file = folder.path().join(entry["keyfile"].as_str().unwrap());
            let mut options = OpenOptions::new().key_file(&key_file)?.loopaes().writable(writable);
            options = options.set("key-size", &(number(entry, "key_bits") / 8).to_string())?;
            for (name, field) in [("offset", "offset_sectors"), ("skip", "skip_sectors")] {
                if let Some(sectors) = entry[field].as_u64() {
                    options = options.set(name, &sectors.to_string())?;
                }
            }
            if let Some(hash) = entry["hash"].as_str() {
                options = options.set("hash", hash)?;
            }
            Ok(options)
        };
        match (entry["expect"].as_str(), check(entry, folder.path(), options)) {
            (Some("open"), done) => {
                done.unwrap_or_else(|e| panic!("{name}: {}", e.text()));
                opened += 1;
            }
            (_, done) => {
                assert_eq!(done.expect_err(&name).kind(), refusal(entry), "{name}");
                refused += 1;
            }
        }
    }
    assert_eq!((opened, refused), (15, 6));
}

#[test]
fn options_by_name_open_what_the_builders_open_and_those_that_do_not_fit_are_refused() {
    let (folder, entries) = images("loopaes");
    let entry = entries.iter().find(|entry| entry["image"] == "loop-v2-128-o16-p0.img").unwrap();
    let path = folder.path().join("loop-v2-128-o16-p0.img");
    let key_file = folder.path().join(entry["keyfile"].as_str().unwrap());
    let set = |pairs: &[(&str, &str)]| {
        let options = OpenOptions::new().set("key-file", key_file.to_str().unwrap());
        pairs.iter().try_fold(options.unwrap(), |options, (name, value)| options.set(name, value))
    };
    let loop_aes = [("type", "loopaes"), ("key-size", "16"), ("offset", "16"), ("skip", "0")];
    let image = set(&loop_aes).unwrap().open(&path).unwrap();
    assert_eq!(sha256(&all(&image)), entry["plaintext_sha256"].as_str().unwrap());
    for (name, value) in [
        ("type", "zip"),
        ("key-size", "x"),
        ("hidden", "yes"),
        ("pim", "-1"),
        ("no-option", "1"),
        ("offset", ""),
    ] {
        let refused = set(&[(name, value)]).err().unwrap_or_else(|| panic!("{name}={value}"));
        assert_eq!(refused.kind(), ErrorKind::BadOption, "{name}={value}");
    }
    for (name, value) in [("pim", "5"), ("sector-size", "512"), ("other-device", "x"), ("system", "1")] {
        let options = set(&[&loop_aes[..], &[(name, value)]].concat()).unwrap();
        let error = options.open(&path).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadOption, "{name}");
    }
    let both = set(&loop_aes).unwrap().passphrase(b"x").unwrap();
    assert_eq!(both.open(&path).unwrap_err().kind(), ErrorKind::BadOption);
}

#[test]
fn headers_that_need_no_secret_are_described() {
    let (folder, _) = images("bitlk");
    for (name, format) in [("bl-8004-512.img", "bitlk"), ("fv-plain.img", "fvault2")] {
        let path: PathBuf = folder.path().join(name);
        let info: Value = serde_json::from_str(&underseal_image::info_json(&path).unwrap()).unwrap();
        assert_eq!(info["format"], format);
    }
    let none = underseal_image::info_json(folder.path().join("vc-aes.img")).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NoHeader);
}
