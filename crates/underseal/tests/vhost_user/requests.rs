//! The disk's properties and behaviour.

use virtio_driver::{VirtioBlkFeatureFlags as Feature, VirtioFeatureFlags};

use crate::control::mismatches;
use crate::control::operator::Operator;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, bytes, seed};
use crate::vhost_user::disk::{Ask, Disk, EIO, ENOTSUP, RING, serve};

#[test]
fn what_is_written_is_read_there_and_elsewhere() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut nbd = Client::connect(&server.socket()).unwrap();
    let mut disk = Disk::connect(&socket, 1);
    let data = bytes(seed("written_is_read"), 1 << 20);
    assert_eq!(disk.write(4096, &data), 0);
    assert_same(&disk.read(4096, data.len()).unwrap(), &data, "through the same ring");
    assert_same(&nbd.read(4096, data.len()).unwrap(), &data, "through NBD");
    nbd.write(8 << 20, &data[..8192]).unwrap();
    assert_same(&disk.read(8 << 20, 8192).unwrap(), &data[..8192], "what NBD wrote");
    assert_eq!(disk.ask(Ask::Flush), 0);
    drop((disk, nbd));
    server.stop();
    assert_same(&volume.read(4096, data.len()), &data, "after the server has ended");
}

#[test]
fn a_sector_that_is_not_as_it_was_written_is_an_error_until_it_is_written_again() {
    let operator = Operator::new();
    let data = bytes(seed("damaged"), 4 << 20);
    let (volume, bad) = Volume::damaged(&operator.scratch, &data);
    let at = usize::try_from(bad).unwrap();
    let socket = operator.scratch.path("disk");
    let server = operator.serve(&volume, &["--vhost-user", text(&socket), "--metrics", "127.0.0.1:0"]);
    let mut disk = Disk::connect(&socket, 1);
    for (offset, len) in [(at, 4096), (at - 4096, 64 << 10)] {
        assert_eq!(disk.read(offset as u64, len), Err(EIO), "{len} bytes from {offset} on");
    }
    for near in [at - 4096, at + 4096] {
        assert_same(&disk.read(near as u64, 4096).unwrap(), &data[near..near + 4096], "beside it");
    }
    assert_eq!(mismatches::are_told(&operator, "image", &server.log(), bad), 2);
    assert_eq!(disk.write(bad, &data[at..at + 4096]), 0);
    assert!(operator.does("check image").contains("as it was written"));
    assert_same(&disk.read(0, 1 << 20).unwrap(), &data[..1 << 20], "before it");
    assert_same(&disk.read(bad, 4096).unwrap(), &data[at..at + 4096], "itself");
    drop(disk);
    server.stop();
    assert_same(&volume.read(0, data.len()), &data, "after it was written again");
}

#[test]
fn the_disk_says_what_it_is() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &["--vhost-user-queues", "3"]);
    let disk = Disk::connect(&socket, 3);
    let config = disk.config();
    assert_eq!(u64::from(config.capacity) * 512, volume_size(&volume, &server));
    assert_eq!((u32::from(config.blk_size), u16::from(config.num_queues)), (4096, 3));
    assert_eq!((u32::from(config.seg_max), u32::from(config.size_max)), (126, 256 << 10));
    assert!(disk.has(Feature::FLUSH | Feature::WRITE_ZEROES | Feature::MQ));
    assert!(!disk.has(Feature::RO) && !disk.has(Feature::DISCARD));
    drop(disk);
    server.stop();
}

fn volume_size(volume: &Volume, server: &crate::support::Server) -> u64 {
    let info = crate::support::run(crate::support::tool("nbdinfo").args(["--size", &server.uri()]));
    let size = info.trim().parse().unwrap();
    assert!(size > 0, "{volume:?}");
    size
}

#[test]
fn random_requests_on_several_rings_at_once_end_as_in_a_file() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "64M");
    for ring in [VirtioFeatureFlags::RING_EVENT_IDX, VirtioFeatureFlags::empty()] {
        let (server, socket) = serve(&volume, &["--vhost-user-queues", "2", "--allow-discards"]);
        let mut disk = Disk::connect_with(&socket, 2, ring);
        random_requests(&mut disk, seed("random_requests"));
        drop(disk);
        server.stop();
    }
}

/// Each ring has a half of the disk to itself, and many requests at a time that do not overlap.
fn random_requests(disk: &mut Disk, seed: u64) {
    const BLOCK: usize = 4096;
    const SLOTS: usize = 32;
    const SLOT: usize = 1 << 19;
    let mut random = fastrand::Rng::with_seed(seed);
    let half = SLOTS * SLOT;
    let mut model = vec![0; 2 * half];
    for queue in 0..2 {
        for slot in 0..SLOTS {
            let offset = (queue * half + slot * SLOT) as u64;
            disk.submit(queue, slot, Ask::WriteZeroes { offset, len: SLOT as u64, unmap: slot % 2 == 0 });
        }
        (0..SLOTS).for_each(|_| assert_eq!(disk.next(queue).1, 0));
    }
    for round in 0..40 {
        let mut asked = Vec::new();
        for tag in 0..2 * SLOTS {
            let (queue, slot) = (tag % 2, tag / 2);
            let start = random.usize(0..SLOT / BLOCK);
            let longest = if random.u8(0..8) == 0 { SLOT } else { 4 * BLOCK };
            let len = (1 + random.usize(0..longest / BLOCK)).min(SLOT / BLOCK - start) * BLOCK;
            let at = queue * half + slot * SLOT;
            let place = at + start * BLOCK;
            let offset = place as u64;
            let ask = match random.u8(0..10) {
                0..5 => Ask::Read { offset, at, len },
                5..9 => {
                    let data = bytes(random.u64(..), len);
                    disk.put(at, &data);
                    model[place..place + len].copy_from_slice(&data);
                    Ask::Write { offset, at, len }
                }
                _ => {
                    model[place..place + len].fill(0);
                    Ask::WriteZeroes { offset, len: len as u64, unmap: random.bool() }
                }
            };
            asked.push(ask);
            disk.submit(queue, tag, ask);
        }
        for queue in 0..2 {
            for _ in 0..SLOTS {
                let (tag, error) = disk.next(queue);
                assert_eq!((tag % 2, error), (queue, 0), "round {round}: {:?}", asked[tag]);
                if let Ask::Read { offset, at, len } = asked[tag] {
                    let place = usize::try_from(offset).unwrap();
                    let what = format!("round {round}: {:?}", asked[tag]);
                    assert_same(&disk.get(at, len), &model[place..place + len], &what);
                }
            }
        }
    }
}

#[test]
fn requests_that_cannot_be_are_answered_with_errors() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut disk = Disk::connect(&socket, 1);
    let size = volume_size(&volume, &server);
    assert_eq!(disk.read(size, 4096), Err(EIO), "beyond the end");
    assert_eq!(disk.read(512, 4096), Err(EIO), "not on a sector");
    assert_eq!(disk.write(0, &[1; 512]), EIO, "a part of a sector");
    assert_eq!(disk.ask(Ask::Read { offset: 0, at: 0, len: 100 }), EIO, "not in units of 512");
    assert_eq!(disk.ask(Ask::Discard { offset: 0, len: 4096 }), ENOTSUP, "not offered");
    assert_eq!(disk.ask(Ask::WriteZeroes { offset: 0, len: 64 << 20, unmap: false }), EIO, "too long");
    assert_eq!(disk.write(u64::MAX - 511, &[1; 4096]), EIO, "an end that no number has");
    assert_eq!(disk.write(0, &[7; 4096]), 0, "and the next is served");
    assert_same(&disk.read(0, 4096).unwrap(), &[7; 4096], "what was written");
    drop(disk);
    server.stop();
}

#[test]
fn a_read_only_volume_is_a_read_only_disk() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    volume.write(0, &[3; 4096]);
    let (server, socket) = serve(&volume, &["--read-only"]);
    let mut disk = Disk::connect(&socket, 1);
    assert!(disk.has(Feature::RO) && !disk.has(Feature::WRITE_ZEROES));
    assert_eq!(disk.write(0, &[1; 4096]), EIO);
    assert_eq!(disk.ask(Ask::WriteZeroes { offset: 0, len: 4096, unmap: false }), EIO);
    assert_same(&disk.read(0, 4096).unwrap(), &[3; 4096], "what was there");
    assert_eq!(disk.ask(Ask::Flush), 0);
    drop(disk);
    server.stop();
}

#[test]
fn discards_free_space_where_they_are_allowed() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &["--allow-discards"]);
    let mut disk = Disk::connect(&socket, 1);
    assert!(disk.has(Feature::DISCARD));
    assert_eq!(disk.write(0, &bytes(1, 4 << 20)), 0);
    assert_eq!(disk.ask(Ask::Flush), 0);
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&volume.image).unwrap());
    let before = blocks();
    assert_eq!(disk.ask(Ask::Discard { offset: 0, len: 4 << 20 }), 0);
    assert_eq!(disk.ask(Ask::Flush), 0);
    assert!(blocks() + (3 << 11) < before, "{} of {before} blocks are left", blocks());
    drop(disk);
    server.stop();
}

#[test]
fn a_ring_full_of_requests_is_answered_whole() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut disk = Disk::connect(&socket, 1);
    // A chain has three descriptors; long ones need more memory than a queue has at a time.
    let most = usize::from(RING) / 3;
    for len in [4096, 1 << 20] {
        (0..most).for_each(|tag| {
            disk.submit(0, tag, Ask::Read { offset: (tag % 16) as u64 * 4096, at: tag * len, len });
        });
        let mut tags: Vec<_> = (0..most).map(|_| disk.next(0)).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..most).map(|tag| (tag, 0)).collect::<Vec<_>>());
    }
    drop(disk);
    server.stop();
}
