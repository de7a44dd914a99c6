//! LUKS2 volumes with integrity from cryptsetup and a kernel, some of them stopped with a full
//! journal, read through the data path as a server does.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use underseal_cipher::Key;
use underseal_datapath::{ErrorKind, Mapping, Queue, QueueOptions, Request};
use underseal_device::{Device, FileDevice, OpenOptions};
use underseal_integrity::{IntegrityDevice, OpenSettings, RunSettings, WriteMode};
use underseal_volume::{ActivateOptions, Header, UnlockOptions};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../volume/tests/vectors/luks");
const POLICIES: [&str; 4] = ["inline", "workers", "adaptive", "workers,order=arrival"];

fn manifest(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(Path::new(FOLDER).join(name)).unwrap()).unwrap()
}

fn unpack(folder: &Path, id: &str) -> PathBuf {
    let packed = Path::new(FOLDER).join(format!("{id}.img.xz"));
    let output = Command::new("xz").arg("-dc").arg(packed).output().unwrap();
    assert!(output.status.success(), "{id}: {}", String::from_utf8_lossy(&output.stderr));
    let image = folder.join(id);
    std::fs::write(&image, output.stdout).unwrap();
    image
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// The volume over its layer, opened with the key that the manifest has.
fn open(image: &Path, about: &Value, mode: WriteMode) -> (Arc<Mapping>, Arc<IntegrityDevice>) {
    open_as(image, about, mode, false)
}

fn open_as(
    image: &Path,
    about: &Value,
    mode: WriteMode,
    read_only: bool,
) -> (Arc<Mapping>, Arc<IntegrityDevice>) {
    let header = Header::read(&File::open(image).unwrap()).unwrap();
    let key = Key::new(&hex(about["volume_key"].as_str().unwrap())).unwrap();
    let key = header.volume_key(key, &UnlockOptions::default()).unwrap();
    let layer = header.integrity_layer().unwrap().expect("it is authenticated");
    let options = OpenSettings {
        start: layer.offset / 512,
        tag_size: Some(u16::try_from(layer.tag_size).unwrap()),
        block_size: Some(u32::try_from(layer.sector_size.bytes()).unwrap()),
        ..OpenSettings::new(mode)
    };
    let below = OpenOptions { read_only, ..OpenOptions::default() };
    let file = Arc::new(FileDevice::open(image, below).unwrap());
    let open = if read_only { IntegrityDevice::open_to_read } else { IntegrityDevice::open };
    let over = Arc::new(open(file, None, &options, &RunSettings::default()).unwrap());
    let how = ActivateOptions { over_integrity: true, ..ActivateOptions::default() };
    let volume = header.activate(&key, over.geometry().size, &how).unwrap();
    let mapping = Mapping::new(volume, over.clone()).unwrap();
    (Arc::new(mapping), over)
}

fn queue(mapping: &Arc<Mapping>) -> Queue {
    Queue::open(mapping.clone(), QueueOptions { depth: 16, max_request: 1 << 20 }).unwrap()
}

fn read(queue: &mut Queue, offset: u64, len: usize) -> Result<Vec<u8>, ErrorKind> {
    queue.submit(0, Request::Read { offset, len }).expect("there is room");
    let over = finish(queue);
    let bytes = over.buffer.as_ref().map(|buffer| buffer.to_vec());
    over.buffer.into_iter().for_each(|buffer| queue.free(buffer));
    over.result.map_err(|e| e.kind())?;
    Ok(bytes.expect("a read brings its bytes"))
}

fn write(queue: &mut Queue, offset: u64, bytes: &[u8]) {
    let mut data = queue.alloc(bytes.len()).unwrap();
    data.copy_from_slice(bytes);
    queue.submit(0, Request::Write { offset, data, durable: false }).expect("there is room");
    let over = finish(queue);
    over.buffer.into_iter().for_each(|buffer| queue.free(buffer));
    over.result.unwrap();
}

fn finish(queue: &mut Queue) -> underseal_datapath::Completion {
    loop {
        if let Some(over) = queue.next_completion() {
            return over;
        }
        queue.wait().unwrap();
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_authenticated_volume_reads_back_exactly_and_takes_writes() {
    let manifest = manifest("integrity.json");
    let images = manifest["images"].as_object().unwrap();
    assert_eq!(images.len(), 7);
    for (id, about) in images {
        let folder = tempfile::tempdir().unwrap();
        let image = unpack(folder.path(), id);
        let len = usize::try_from(about["data_bytes"].as_u64().unwrap()).unwrap();
        let (mapping, over) = open(&image, about, WriteMode::Journal);
        let sectors: u64 = about["tables"][0].as_str().unwrap().split(' ').nth(2).unwrap().parse().unwrap();
        assert_eq!(mapping.size(), sectors * 512, "{id}");
        let mut queue = queue(&mapping);
        for text in POLICIES {
            mapping.set_policy(text.parse().unwrap()).unwrap();
            let plain = read(&mut queue, 0, len).unwrap_or_else(|e| panic!("{id}: {text}: {e:?}"));
            assert_eq!(sha256(&plain), about["plain_sha256"].as_str().unwrap(), "{id}: {text}");
        }
        // The sectors behind were never written.
        let beyond = read(&mut queue, mapping.size() - 65536, 65536).map(drop);
        let is_checked = !id.contains("none");
        assert_eq!(beyond, if is_checked { Err(ErrorKind::Integrity) } else { Ok(()) }, "{id}");
        assert_eq!(mapping.stats().mismatches, u64::from(is_checked), "{id}");
        let plain: Vec<u8> = (0..200_704_u32).map(|i| (i / 7 % 251) as u8).collect();
        let at = mapping.size() - 65536 * 6;
        write(&mut queue, at, &plain);
        assert!(read(&mut queue, at, plain.len()) == Ok(plain.clone()), "{id}");
        drop(queue);
        drop(mapping);
        over.close().unwrap();
        drop(over);
        let (mapping, _over) = open(&image, about, WriteMode::Direct);
        let mut queue = self::queue(&mapping);
        assert!(read(&mut queue, at, plain.len()) == Ok(plain), "{id}: opened again");
        assert_eq!(
            sha256(&read(&mut queue, 0, len).unwrap()),
            about["plain_sha256"].as_str().unwrap(),
            "{id}"
        );
    }
}

#[test]
fn volumes_that_stopped_with_a_journal_are_what_the_kernel_makes_of_them() {
    let manifest = manifest("integrity-dirty.json");
    let images = manifest["images"].as_object().unwrap();
    assert!(!images.is_empty());
    for ((id, about), read_only) in images.iter().flat_map(|image| [(image, true), (image, false)]) {
        let folder = tempfile::tempdir().unwrap();
        let image = unpack(folder.path(), id);
        let before = std::fs::read(&image).unwrap();
        let (mapping, over) = open_as(&image, about, WriteMode::Journal, read_only);
        assert_eq!(mapping.read_only(), read_only, "{id}");
        assert_eq!(mapping.size(), about["mapping_sectors"].as_u64().unwrap() * 512, "{id}");
        let mut queue = queue(&mapping);
        let mut sum = Sha256::new();
        let mut readable = Vec::new();
        for extent in about["extents"].as_array().unwrap() {
            let (sector, count) = (extent[0].as_u64().unwrap(), extent[1].as_u64().unwrap());
            let len = usize::try_from(count * 512).unwrap();
            sum.update(
                read(&mut queue, sector * 512, len).unwrap_or_else(|e| panic!("{id}: {sector}: {e:?}")),
            );
            readable.push(sector..sector + count);
        }
        let sum: String = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum, about["extents_sha256"].as_str().unwrap(), "{id}");
        let block = u64::from(mapping.block() / 512);
        let elsewhere = (0..mapping.size() / 512).step_by(usize::try_from(block * 61).unwrap());
        for sector in
            elsewhere.filter(|at| !readable.iter().any(|run| run.start < at + block && *at < run.end))
        {
            let found = read(&mut queue, sector * 512, mapping.block() as usize).map(drop);
            let is_checked = !id.contains("none");
            assert_eq!(found, if is_checked { Err(ErrorKind::Integrity) } else { Ok(()) }, "{id}: {sector}");
        }
        drop(queue);
        drop(mapping);
        over.close().unwrap();
        let after = std::fs::read(&image).unwrap();
        if read_only {
            assert!(after == before, "{id}: reading changed something");
        } else {
            assert_eq!(sha256(&after), about["after_sha256"].as_str().unwrap(), "{id}: after closing");
        }
    }
}
