//! The transmission phase over a real volume: every command, pipelined, refused, cut off.

use std::fs::{File, OpenOptions as StdOpenOptions};
use std::time::{Duration, Instant};

use underseal_cipher::InOutBuf;
use underseal_device::OpenOptions;
use underseal_export::nbd::protocol::{
    BASE_ALLOCATION, CommandFlags, RequestHeader, RequestType, STRUCTURED_REPLY_MAGIC, option, option_reply,
};
use underseal_export::nbd::{MAX_PAYLOAD, ServerConfig};

use crate::client::contexts;
use crate::fixture::{MemoryDisk, Served, config, disk as fixture_disk, run};
use crate::talker::{Disk, SIZE, cipher, serve};

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).to_le_bytes()[0])
        .collect()
}

fn cached() -> OpenOptions {
    OpenOptions::default()
}

fn direct() -> OpenOptions {
    OpenOptions { direct: true, ..Default::default() }
}

/// Lengths on both sides of every threshold in the receiving code.
const LENGTHS: [usize; 9] =
    [4096, 8192, 61_440, 65_536, 69_632, 253_952, 262_144, 1 << 20, MAX_PAYLOAD as usize];

#[test]
fn every_length_is_written_and_read_back_and_lies_encrypted_below() {
    for options in [cached(), direct()] {
        let disk = Disk::new("aes-xts-plain64", options);
        for structured in [false, true] {
            let mut talker = disk.client(structured);
            for (i, len) in LENGTHS.into_iter().enumerate() {
                let data = bytes(len, i as u64);
                let offset = i as u64 * 4096;
                assert_eq!(talker.write(offset, &data).error, 0);
                assert!(talker.read(offset, len) == data, "{len} bytes at {offset}, {options:?}");
                let mut expected = data;
                cipher("aes-xts-plain64").encrypt(offset >> 9, InOutBuf::from(&mut expected[..]));
                let stored = std::fs::read(disk.image()).unwrap();
                let offset = usize::try_from(offset).unwrap();
                assert!(stored[offset..offset + len] == expected, "ciphertext of {len} bytes at {offset}");
            }
        }
    }
}

#[test]
fn requests_of_all_kinds_and_sizes_may_be_sent_without_waiting() {
    for options in [cached(), direct()] {
        let disk = Disk::new("aes-xts-plain64", options);
        let mut talker = disk.client(true);
        // Three times as many writes as a queue holds, each to another offset; then all are read at
        // once.
        let mut places = Vec::new();
        let mut at = 0;
        for i in 0..384usize {
            let len = LENGTHS[i % 6];
            places.push((at, bytes(len, i as u64)));
            at += len as u64;
        }
        std::thread::scope(|scope| {
            let (places, talker_ref) = (&places, &mut talker);
            scope.spawn(move || {
                for (offset, data) in places {
                    let len = u32::try_from(data.len()).unwrap();
                    let flags = if offset % 3 == 0 { CommandFlags::FUA } else { CommandFlags::empty() };
                    talker_ref.send(RequestType::Write, flags, *offset, len, data);
                }
            });
        });
        for _ in &places {
            assert_eq!(talker.answer(0).error, 0);
        }
        let first = talker.next + 1;
        for (offset, data) in &places {
            talker.send(
                RequestType::Read,
                CommandFlags::empty(),
                *offset,
                u32::try_from(data.len()).unwrap(),
                &[],
            );
        }
        for _ in &places {
            let answer = talker.answer(0);
            let index = usize::try_from(answer.number - first).unwrap();
            assert!(answer.data == places[index].1, "read {index}");
        }
        assert_eq!(talker.ask(RequestType::Flush, CommandFlags::empty(), 0, 0, &[]).error, 0);
    }
}

#[test]
fn a_bad_request_gets_its_error_and_the_next_one_is_served() {
    let disk = Disk::new("aes-xts-plain64", cached());
    let (none, fua, df) = (CommandFlags::empty(), CommandFlags::FUA, CommandFlags::DF);
    let unknown = CommandFlags::from_bits_retain(1 << 12);
    use RequestType::{BlockStatus, Cache, Other, Read, Trim, Write, WriteZeroes};
    let table = [
        (Read, none, 512, 4096, EINVAL),
        (Read, none, 0, 512, EINVAL),
        (Read, none, 0, 0, EINVAL),
        (Read, none, SIZE, 4096, EINVAL),
        (Read, none, SIZE - 4096, 8192, EINVAL),
        (Read, none, u64::MAX - 4095, 8192, EINVAL),
        (Read, none, 0, MAX_PAYLOAD + 4096, EINVAL),
        (Read, unknown, 0, 4096, EINVAL),
        (Write, none, 512, 4096, EINVAL),
        (Write, none, 0, 1000, EINVAL),
        (Write, none, SIZE, 4096, ENOSPC),
        (Write, none, u64::MAX - 4095, 8192, ENOSPC),
        (Write, none, 0, MAX_PAYLOAD + 4096, EINVAL),
        (Write, df, 0, 4096, EINVAL),
        (Write, unknown, 0, 131_072, EINVAL),
        (WriteZeroes, none, SIZE - 4096, 8192, ENOSPC),
        (WriteZeroes, none, 100, 4096, EINVAL),
        (WriteZeroes, CommandFlags::FAST_ZERO, 0, 4096, ENOTSUP),
        (WriteZeroes, df, 0, 4096, EINVAL),
        (Trim, none, 0, 4096, EINVAL),
        (Cache, none, SIZE, 4096, EINVAL),
        (Cache, none, 0, 4096, 0),
        (Cache, fua, 0, 4096, 0),
        (BlockStatus, none, SIZE, 4096, EINVAL),
        (BlockStatus, none, 0, 0, EINVAL),
        (BlockStatus, none, 17, 4096, EINVAL),
        (BlockStatus, df, 0, 4096, EINVAL),
        (Other(77), none, 0, 0, EINVAL),
    ];
    for structured in [false, true] {
        let mut talker = disk.client(structured);
        assert_eq!(talker.write(0, &bytes(4096, 1)).error, 0);
        for (command, flags, offset, length, error) in table {
            let payload = vec![0xaa; if command == Write { length as usize } else { 0 }];
            let answer = talker.ask(command, flags, offset, length, &payload);
            assert_eq!(answer.error, error, "{command:?} {flags:?} {length} at {offset}");
            assert_eq!(talker.read(0, 4096), bytes(4096, 1), "after {command:?} {length} at {offset}");
        }
    }
    let mut simple = disk.client(false);
    assert_eq!(simple.ask(Read, df, 0, 4096, &[]).error, EINVAL, "DF needs structured replies");
    assert_eq!(simple.ask(BlockStatus, none, 0, 4096, &[]).error, EINVAL, "no context was negotiated");
}

#[test]
fn a_read_only_volume_refuses_writes_with_eperm() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("image");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    let options = OpenOptions { read_only: true, ..Default::default() };
    let disk = Disk { served: serve(&path, "aes-xts-plain64", options), folder };
    let mut talker = disk.client(true);
    for len in [4096, 131_072] {
        assert_eq!(talker.write(0, &bytes(len, 1)).error, EPERM);
    }
    assert_eq!(talker.ask(RequestType::WriteZeroes, CommandFlags::empty(), 0, 4096, &[]).error, EPERM);
    talker.read(0, 4096);
}

#[test]
fn zeroes_are_written_durably_over_any_length() {
    for spec in ["aes-xts-plain64", "cipher_null-ecb"] {
        let disk = Disk::new(spec, cached());
        let mut talker = disk.client(true);
        let data = bytes(8 << 20, 3);
        assert_eq!(talker.write(0, &data).error, 0);
        for flags in [CommandFlags::FUA, CommandFlags::NO_HOLE, CommandFlags::FUA | CommandFlags::NO_HOLE] {
            assert_eq!(talker.ask(RequestType::WriteZeroes, flags, 4096, (5 << 20) + 4096, &[]).error, 0);
        }
        let mut expected = data;
        expected[4096..(5 << 20) + 8192].fill(0);
        assert!(talker.read(0, 8 << 20) == expected, "{spec}");
        // The length exceeds the limit of a payload.
        assert_eq!(
            talker
                .ask(RequestType::WriteZeroes, CommandFlags::empty(), 0, u32::try_from(SIZE).unwrap(), &[])
                .error,
            0
        );
        assert!(talker.read(0, 8 << 20).iter().all(|&b| b == 0));
    }
}

#[test]
fn block_status_tells_holes_and_only_without_a_cipher_zeroes() {
    for (spec, hole) in [("cipher_null-ecb", 3), ("aes-xts-plain64", 1)] {
        let disk = Disk::new(spec, cached());
        let mut talker = disk.client(true);
        assert_eq!(talker.write(1 << 20, &bytes(1 << 20, 1)).error, 0);
        assert_eq!(talker.ask(RequestType::Flush, CommandFlags::empty(), 0, 0, &[]).error, 0);
        let mut status = |flags, offset, length| -> Vec<(u32, u32)> {
            let answer = talker.ask(RequestType::BlockStatus, flags, offset, length, &[]);
            assert_eq!(answer.error, 0);
            let word = |b: &[u8]| u32::from_be_bytes(b.try_into().unwrap());
            answer.data.chunks(8).map(|d| (word(&d[..4]), word(&d[4..]))).collect()
        };
        let all = status(CommandFlags::empty(), 0, 4 << 20);
        assert_eq!(all, [(1 << 20, hole), (1 << 20, 0), (2 << 20, hole)], "{spec}");
        assert_eq!(status(CommandFlags::REQ_ONE, 0, 4 << 20), [(1 << 20, hole)]);
        assert_eq!(status(CommandFlags::empty(), (1 << 20) + 4096, 4096), [(4096, 0)]);
    }
}

#[test]
fn trim_frees_space_below_where_discards_are_allowed() {
    use std::os::unix::fs::MetadataExt;
    let disk = Disk::new("cipher_null-ecb", cached());
    let mut talker = disk.client(true);
    assert_eq!(talker.write(0, &bytes(4 << 20, 1)).error, 0);
    assert_eq!(talker.ask(RequestType::Flush, CommandFlags::empty(), 0, 0, &[]).error, 0);
    let before = std::fs::metadata(disk.image()).unwrap().blocks();
    assert_eq!(talker.ask(RequestType::Trim, CommandFlags::FUA, 0, 4 << 20, &[]).error, 0);
    let after = std::fs::metadata(disk.image()).unwrap().blocks();
    assert!(after < before, "{after} < {before}");
}

#[test]
fn a_client_that_leaves_anywhere_harms_nobody() {
    let disk = Disk::new("aes-xts-plain64", cached());
    let mut good = disk.client(true);
    assert_eq!(good.write(0, &bytes(4096, 9)).error, 0);
    let whole = |command, length: u32| {
        let payload = vec![0; if command == RequestType::Write { length as usize } else { 0 }];
        let header =
            RequestHeader { flags: CommandFlags::empty(), command, cookie: [0; 8], offset: 1 << 20, length }
                .encode();
        [&header[..], &payload].concat()
    };
    let requests = [
        whole(RequestType::Write, 4096),
        whole(RequestType::Write, 1 << 20),
        whole(RequestType::Read, 8 << 20),
    ];
    for request in &requests {
        for cut in [1, 27, 28, 29, 4000, 100_000, request.len()] {
            let mut leaver = disk.client(true);
            leaver.client.0.write_all(&request[..cut.min(request.len())]).unwrap();
            drop(leaver);
            assert_eq!(good.read(0, 4096), bytes(4096, 9));
        }
    }
    disk.served.stop().unwrap();
}

#[test]
fn a_server_of_simple_replies_refuses_structured_ones_and_serves() {
    let served = Served::unix(ServerConfig { simple_replies: true, ..config() }, MemoryDisk::default());
    let mut client = served.client();
    assert_eq!(client.verdict(option::STRUCTURED_REPLY, &[]).unwrap(), option_reply::ERR_UNSUP);
    let meta = contexts("", &[BASE_ALLOCATION]);
    assert!(client.verdict(option::SET_META_CONTEXT, &meta).unwrap() >= option_reply::ERR_UNSUP);
    client.go("disk").unwrap();
    assert_eq!(client.read(0, 512).unwrap(), fixture_disk()[..512]);
}

#[test]
fn a_stream_that_is_no_request_is_closed() {
    let disk = Disk::new("aes-xts-plain64", cached());
    let mut talker = disk.client(true);
    talker.client.0.write_all(&[0x55; 28]).unwrap();
    assert!(talker.client.is_closed());
}

#[test]
fn a_client_that_never_reads_its_replies_is_stopped_from_asking() {
    // The client runs in a process of its own, because the process's memory is measured.
    let own = std::env::current_exe().unwrap();
    let child = "transmission::child_with_a_client_that_never_reads_its_replies";
    run(own.to_str().unwrap(), &["--exact", child, "--ignored"]);
}

#[test]
#[ignore = "the child process of the test above"]
fn child_with_a_client_that_never_reads_its_replies() {
    let disk = Disk::new("aes-xts-plain64", cached());
    let mut good = disk.client(true);
    let mut lazy = disk.client(true);
    // Four times the memory that the server may use for one client, in as few requests as the
    // socket accepts unread.
    for i in 0..8u64 {
        lazy.send(RequestType::Read, CommandFlags::empty(), 0, MAX_PAYLOAD, &[]);
        lazy.send(RequestType::Read, CommandFlags::empty(), i << 20, 4096, &[]);
    }
    // The time is long enough for the server to read all requests, if it does so.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        good.read(0, 4096);
    }
    let resident = most_resident_mib();
    assert!(resident < 160, "{resident} MiB were in use");
    for _ in 0..16 {
        assert_eq!(lazy.answer(0).error, 0);
    }
}

fn most_resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn a_file_that_shrinks_fails_its_reads_with_eio_and_nothing_else() {
    for options in [cached(), direct()] {
        let disk = Disk::new("aes-xts-plain64", options);
        let mut talker = disk.client(true);
        assert_eq!(talker.write(0, &bytes(4096, 2)).error, 0);
        StdOpenOptions::new().write(true).open(disk.image()).unwrap().set_len(1 << 20).unwrap();
        let answer = talker.ask(RequestType::Read, CommandFlags::empty(), 2 << 20, 4096, &[]);
        assert_eq!(answer.error, EIO);
        assert_eq!(talker.read(0, 4096), bytes(4096, 2));
    }
}

#[test]
fn stopping_answers_what_was_sent_before() {
    let disk = Disk::new("aes-xts-plain64", direct());
    let mut talker = disk.client(true);
    for i in 0..64u64 {
        talker.send(RequestType::Write, CommandFlags::empty(), i << 16, 1 << 16, &bytes(1 << 16, i));
    }
    // The first answer shows that the server has begun.
    assert_eq!(talker.answer(0).error, 0);
    disk.served.begin_to_stop();
    let mut answered = 1;
    while answered < 64 && talker.client.u32().is_ok_and(|magic| magic == STRUCTURED_REPLY_MAGIC) {
        assert_eq!(talker.client.array::<16>().unwrap()[..4], [0, 1, 0, 0]);
        answered += 1;
    }
    let stored = std::fs::read(disk.image()).unwrap();
    let written = |i: u64| {
        let mut expected = bytes(1 << 16, i);
        cipher("aes-xts-plain64").encrypt(i << 7, InOutBuf::from(&mut expected[..]));
        let at = usize::try_from(i << 16).unwrap();
        stored[at..at + (1 << 16)] == expected
    };
    assert!((0..64).filter(|&i| written(i)).count() >= answered, "every acknowledged write is there");
}
