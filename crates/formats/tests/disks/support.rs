//! The manifest of `tests/vectors`, its images, and plaintext through a volume's segments.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use underseal_formats::OpenedFormat;
use underseal_volume::SegmentKind;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");

/// The entries of a format in the manifest.
pub(crate) fn entries(format: &str) -> Vec<Value> {
    listed("formats.json", format)
}

/// The volume on two disks, and its disks in the order of their numbers.
pub(crate) fn two_disks() -> (Value, [Vec<u8>; 2]) {
    let entry = listed("further.json", "fvault2").remove(0);
    let disks = [0, 1].map(|nth| {
        let disk = file(entry["images"][nth].as_str().unwrap());
        assert_eq!(sha256(&disk), entry["image_sha256s"][nth].as_str().unwrap());
        disk
    });
    (entry, disks)
}

fn listed(manifest: &str, format: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new(FOLDER).join(manifest)).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let images = manifest["images"].as_array().unwrap();
    images.iter().filter(|entry| entry["format"] == format).cloned().collect()
}

/// The bytes of a file of the archive.
pub(crate) fn file(name: &str) -> Vec<u8> {
    static UNPACKED: OnceLock<HashMap<String, Vec<u8>>> = OnceLock::new();
    let files = UNPACKED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        for archive in ["images.tar.xz", "further.tar.xz"] {
            let archive = Path::new(FOLDER).join(archive);
            let unpack = Command::new("tar").arg("-xJf").arg(archive).current_dir(&folder).status();
            assert!(unpack.unwrap().success());
        }
        let is_ours = |name: &String| {
            ["bl-", "fv-", "loop-"].iter().any(|start| name.starts_with(start)) || name.ends_with(".BEK")
        };
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap());
        let named = files.map(|file| (file.file_name().into_string().unwrap(), file.path()));
        named
            .filter(|(name, _)| is_ours(name))
            .map(|(name, path)| (name, std::fs::read(path).unwrap()))
            .collect()
    });
    files.get(name).unwrap_or_else(|| panic!("{name} is not in the archive")).clone()
}

/// The bytes of an image, as the manifest has them.
pub(crate) fn image(entry: &Value) -> Vec<u8> {
    let image = file(entry["image"].as_str().unwrap());
    if let Some(expected) = entry["image_sha256"].as_str() {
        assert_eq!(sha256(&image), expected, "{}", entry["image"]);
    }
    image
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(underseal_volume::Hash::Sha256.digest(&[bytes]))
}

pub(crate) fn text<'a>(entry: &'a Value, name: &str) -> Option<&'a str> {
    entry[name].as_str()
}

/// The texts of an array; none where it is missing.
pub(crate) fn texts(entry: &Value, name: &str) -> Vec<String> {
    let array = entry[name].as_array().cloned().unwrap_or_default();
    array.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The whole plaintext of a volume over its devices.
pub(crate) fn read_all(opened: &OpenedFormat, devices: &[&[u8]]) -> Vec<u8> {
    let mut all = Vec::new();
    for segment in opened.volume.segments() {
        let len = usize::try_from(segment.len).unwrap();
        match &segment.kind {
            SegmentKind::Stored(stored) => {
                let at = usize::try_from(stored.lower).unwrap();
                let mut data = devices[stored.device][at..at + len].to_vec();
                stored.cipher.decrypt(stored.iv_offset, data.as_mut_slice().into());
                all.extend(data);
            }
            SegmentKind::Zero => all.resize(all.len() + len, 0),
            SegmentKind::Error => panic!("an error segment"),
        }
    }
    all
}

/// Does the manifest's writes, whole sectors each, and compares the image with the expected image.
pub(crate) fn check_writes(entry: &Value, opened: &OpenedFormat, mut image: Vec<u8>) {
    let Some(writes) = entry["writes"].as_array() else { return };
    for write in writes {
        let [mut offset, end] = [0, 1].map(|nth| write[nth].as_u64().unwrap());
        let end = offset + end;
        while offset < end {
            let segment = &opened.volume.segments()[opened.volume.segment_index(offset).unwrap()];
            let (device, at) = segment.lower(offset).expect("a stored segment");
            let (cipher, number) = segment.cipher(offset).unwrap();
            let len = usize::try_from(end.min(segment.end()) - offset).unwrap();
            let byte = |nth: usize| (7 * (offset + nth as u64) + 13).to_le_bytes()[0];
            let mut data: Vec<u8> = (0..len).map(byte).collect();
            cipher.encrypt(number, data.as_mut_slice().into());
            let at = usize::try_from(at).unwrap();
            assert_eq!(device, 0);
            image[at..at + len].copy_from_slice(&data);
            offset += len as u64;
        }
    }
    assert_eq!(sha256(&image), text(entry, "image_sha256_after").unwrap(), "{}", entry["image"]);
}
