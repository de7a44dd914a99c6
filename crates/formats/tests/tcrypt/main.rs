//! TrueCrypt and VeraCrypt images of an independent maker: each opens to the manifest's plaintext,
//! takes its writes, or is refused for the manifest's reason.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use underseal_cipher::{InOutBuf, Key};
use underseal_formats::tcrypt::{
    ChainFilter, KeyFiles, Password, Pim, Place, Prf, UnlockOptions, Unlocked, unlock,
};
use underseal_formats::{ErrorKind, OpenedFormat, Result};
use underseal_volume::{GuardRule, Hash, ReadAt};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");

/// The images in a temporary folder.
fn images() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for archive in ["images.tar.xz", "further.tar.xz"] {
        let archive = format!("{FOLDER}/{archive}");
        let unpacked = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(folder.path()).status();
        assert!(unpacked.unwrap().success(), "tar and xz unpack the images");
    }
    folder
}

/// The manifests' entries of this format.
fn entries() -> Vec<Value> {
    let entries = ["formats.json", "further.json"].map(|manifest| {
        let manifest = fs::read_to_string(format!("{FOLDER}/{manifest}")).unwrap();
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        manifest["images"].as_array().unwrap().clone()
    });
    entries.into_iter().flatten().filter(|entry| entry["format"] == "tcrypt").collect()
}

fn text<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry[field].as_str().unwrap()
}

fn number(entry: &Value, field: &str) -> u64 {
    entry[field].as_u64().unwrap()
}

/// The password of an entry with key files in `folder`.
fn password(entry: &Value, folder: &Path) -> Result<Password> {
    let mut files = KeyFiles::new()?;
    for name in entry["keyfiles"].as_array().into_iter().flatten() {
        files.add(&folder.join(name.as_str().unwrap()))?;
    }
    Password::new(&Key::new(text(entry, "passphrase").as_bytes()).unwrap(), &files)
}

fn options(entry: &Value) -> UnlockOptions {
    let place = match text(entry, "header") {
        "normal" => Place::Normal,
        "hidden" => Place::Hidden,
        "backup" => Place::Backup,
        "backup-hidden" => Place::BackupHidden,
        "system" => Place::System,
        other => panic!("header {other}"),
    };
    let pim = Pim::new(u32::try_from(number(entry, "pim")).unwrap()).unwrap();
    let prfs = vec![entry["kdf"][0].as_str().unwrap().parse::<Prf>().unwrap()];
    UnlockOptions { place, pim, prfs, ..UnlockOptions::default() }
}

fn open(
    entry: &Value,
    folder: &Path,
    image: &File,
    options: &UnlockOptions,
) -> Result<(Unlocked, OpenedFormat)> {
    let unlocked = unlock(image, &password(entry, folder)?, options)?;
    let partition = entry.get("partition").map(|of| {
        let start = number(of, "first_byte");
        start..start + number(of, "length")
    });
    let opened = unlocked.open(ReadAt::size(image).unwrap(), partition.as_ref())?;
    Ok((unlocked, opened))
}

/// Bytes of the only segment, decrypted.
fn plain(opened: &OpenedFormat, image: &File, range: Range<u64>) -> Vec<u8> {
    let segment = &opened.volume.segments()[0];
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
    let (_, at) = segment.lower(range.start).unwrap();
    FileExt::read_exact_at(image, &mut bytes, at).unwrap();
    let (cipher, sector) = segment.cipher(range.start).unwrap();
    cipher.decrypt(sector, InOutBuf::from(&mut bytes[..]));
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Hash::Sha256.digest(&[bytes]))
}

#[test]
fn every_image_opens_or_is_refused_as_the_manifest_says() {
    let folder = images();
    let (mut opened, mut refused, mut written) = (0, 0, 0);
    for entry in entries() {
        let name = format!("{} {}", text(&entry, "image"), text(&entry, "header"));
        let path = folder.path().join(text(&entry, "image"));
        let image = File::options().read(true).write(true).open(&path).unwrap();
        let mut options = options(&entry);
        if entry["expect"] == "refuse" {
            let reason = text(&entry, "reason");
            if reason == "another chain is asked for" {
                let chain = text(&entry, "chain_cryptsetup").rsplit(' ').next().unwrap();
                options.chains = chain.parse::<ChainFilter>().unwrap();
            }
            let error = open(&entry, folder.path(), &image, &options).map(|_| ()).expect_err(&name);
            let want = match reason {
                _ if entry["negative"] == true => ErrorKind::WrongPassphrase,
                _ if reason.contains("no header opens") => ErrorKind::WrongPassphrase,
                _ if reason.contains("magic is right") || reason.contains("sector size") => {
                    ErrorKind::BadHeader
                }
                _ => ErrorKind::Unsupported,
            };
            assert_eq!(error.kind(), want, "{name}: {reason}: {error}");
            refused += 1;
            continue;
        }
        let (unlocked, volume) =
            open(&entry, folder.path(), &image, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (mode, chain) = text(&entry, "chain_cryptsetup").split_once(' ').unwrap();
        assert_eq!(unlocked.chain.name(), chain, "{name}");
        let is_mode = match mode {
            "outer-cbc" => "cbci-tcrypt",
            "inner-cbc" => "cbc-tcrypt",
            "cbc" => "cbc-tcw",
            "lrw" => "lrw-benbi",
            _ => "xts-plain64",
        };
        assert_eq!(unlocked.chain.mode().name(), is_mode, "{name}");
        assert_eq!(Some(u64::from(unlocked.derivation.rounds)), entry["kdf"][1].as_u64(), "{name}");
        assert_eq!(volume.volume.size(), number(&entry, "plaintext_size"), "{name}");
        let all = plain(&volume, &image, 0..volume.volume.size());
        assert_eq!(sha256(&all), text(&entry, "plaintext_sha256"), "{name}");
        let read_only = entry["read_only"] == true || mode.starts_with("outer") || mode.starts_with("inner");
        assert_eq!(volume.read_only.is_some(), read_only, "{name}");
        if let Some(writes) = entry.get("writes") {
            write(&volume, &path, writes);
            let after = sha256(&fs::read(path.with_extension("written")).unwrap());
            assert_eq!(after, text(&entry, "image_sha256_after"), "{name}");
            written += 1;
        }
        if let Some(protection) = entry.get("hidden_protection") {
            protects(&entry, protection, &unlocked, &image);
        }
        opened += 1;
    }
    assert_eq!((opened, refused, written), (87, 19, 78));
}

/// Does the manifest's writes in a copy of the image.
fn write(opened: &OpenedFormat, path: &Path, writes: &Value) {
    let copy = path.with_extension("written");
    fs::copy(path, &copy).unwrap();
    let image = File::options().write(true).open(&copy).unwrap();
    let segment = &opened.volume.segments()[0];
    for pair in writes.as_array().unwrap() {
        let (offset, len) = (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap());
        let byte = |i: u64| (7 * (offset + i) + 13).to_le_bytes()[0];
        let mut bytes: Vec<u8> = (0..len).map(byte).collect();
        let (cipher, sector) = segment.cipher(offset).unwrap();
        cipher.encrypt(sector, InOutBuf::from(&mut bytes[..]));
        FileExt::write_all_at(&image, &bytes, segment.lower(offset).unwrap().1).unwrap();
    }
}

/// The hidden volume is guarded inside of the outer one, exactly.
fn protects(entry: &Value, protection: &Value, outer: &Unlocked, image: &File) {
    let pim = Pim::new(u32::try_from(number(protection, "pim")).unwrap()).unwrap();
    let prfs = Vec::new();
    let place = Place::Hidden;
    let options = UnlockOptions { place, pim, prfs, ..UnlockOptions::default() };
    let mut secret = entry.clone();
    secret["passphrase"] = protection["passphrase"].clone();
    let password = password(&secret, Path::new("")).unwrap();
    let hidden = unlock(image, &password, &options).unwrap();
    let size = ReadAt::size(image).unwrap();
    let opened = outer.open_around(&hidden, size).unwrap();
    let start = number(protection, "first_byte");
    let end = start + number(protection, "length");
    let name = text(entry, "image");
    let [guard] = &opened.guards[..] else { panic!("{name}: one guard") };
    assert_eq!(guard.rule, GuardRule::RefuseAll, "{name}");
    // An old hidden header behind the data is guarded too.
    let behind = if outer.header.version >= 4 { end } else { end + 512 };
    assert_eq!(guard.range, start..behind, "{name}");
    for write in protection["refused_writes"].as_array().unwrap() {
        let (offset, len) = (write[0].as_u64().unwrap(), write[1].as_u64().unwrap());
        assert!(offset < guard.range.end && guard.range.start < offset + len, "{name}: {offset}");
    }
    assert_eq!(hidden.open_around(outer, size).unwrap_err().kind(), ErrorKind::BadOption);
}

#[test]
fn a_search_without_any_hint_finds_the_header_of_either_program() {
    let folder = images();
    for (name, header, chain, prf) in [
        ("vc-camellia-serpent-kuznyechik.img", "normal", "camellia-serpent-kuznyechik", Prf::Sha256),
        ("vc-hidden.img", "hidden", "serpent-twofish-aes", Prf::Whirlpool),
        ("tc5-aes.img", "normal", "aes", Prf::Sha512),
        ("sys-mbr-partition.img", "system", "aes", Prf::Sha256),
    ] {
        let find = |entry: &Value| entry["image"] == name && entry["header"] == header;
        let entry = entries().into_iter().find(find).unwrap();
        let image = File::open(folder.path().join(name)).unwrap();
        let options = UnlockOptions { prfs: Vec::new(), ..options(&entry) };
        let (unlocked, _) = open(&entry, folder.path(), &image, &options).unwrap();
        assert_eq!((unlocked.chain.name(), unlocked.derivation.prf), (chain, prf), "{name}");
    }
}

#[test]
fn images_that_are_cut_anywhere_are_refused_without_a_panic() {
    let folder = images();
    let entry = entries().into_iter().find(|entry| entry["image"] == "vc-aes.img").unwrap();
    let whole = fs::read(folder.path().join("vc-aes.img")).unwrap();
    let password = password(&entry, folder.path()).unwrap();
    for len in [0, 63, 511, 512, 131_072, 131_073, 196_607] {
        let bytes = &whole[..len];
        let opened = unlock(bytes, &password, &options(&entry)).and_then(|of| of.open(len as u64, None));
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::TooSmall, "{len}");
    }
}
