//! Refused volumes, and formatted ones.

use underseal_integrity::{
    Disk, DiskSizes, Disks, ErrorKind, Flags, KeyedHash, NewSuperblock, OpenSettings, Recalculate,
    Superblock, VolumeGeometry, VolumeReader, Wipe, WriteMode, format, look, open, wipe,
};

use crate::support::*;

fn crc32c() -> OpenSettings {
    OpenSettings {
        hash: Some(KeyedHash::new("crc32c", None).unwrap()),
        ..OpenSettings::new(WriteMode::Journal)
    }
}

fn made(format_options: &NewSuperblock, options: &OpenSettings, size: usize) -> Image {
    let image = Image { data: Memory::new(vec![0; size]), meta: None };
    let superblock = format_options.superblock(options, image.disks().sizes().unwrap()).unwrap();
    format(&image.disks(), options, &superblock).unwrap();
    image
}

#[test]
fn a_new_volume_has_the_kernels_geometry() {
    // Everything except the salt, the version and later writes is as in the kernel's volumes.
    for (name, expected) in images() {
        let table = expected["table"].as_str().unwrap();
        let words: Vec<&str> = table.split(' ').collect();
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
        let options = options(table);
        let format_options = NewSuperblock {
            tag_size: options.tag_size,
            block_size: options.block_size.unwrap_or(512),
            journal_sectors: value("journal_sectors").and_then(|n| n.parse().ok()),
            interleave_sectors: value("interleave_sectors").and_then(|n| n.parse().ok()),
            legacy_padding: !words.contains(&"fix_padding"),
            legacy_hmac: !words.contains(&"fix_hmac"),
            recalculating: false,
        };
        let image = unpack(&name);
        let superblock = format_options.superblock(&options, image.disks().sizes().unwrap()).unwrap();
        let theirs =
            look(&image.disks(), &OpenSettings { legacy_recalculate: true, ..options }).unwrap().superblock;
        let (mut ours, mut theirs) = (superblock, theirs);
        for superblock in [&mut ours, &mut theirs] {
            superblock.salt = [0; 16];
            superblock.recalculated = 0;
            superblock.flags.set(Flags::DIRTY_BITMAP, false);
            superblock.flags.set(Flags::RECALCULATING, false);
        }
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn a_new_volume_opens_and_once_wiped_reads_as_zeros() {
    for block_size in [512, 1024, 2048, 4096] {
        let image = made(&NewSuperblock { block_size, ..NewSuperblock::default() }, &crc32c(), 2 << 20);
        let opened = open(&image.disks(), &crc32c()).unwrap();
        let mut data = vec![1; usize::try_from(opened.geometry.provided() * 512).unwrap()];
        let mut bad = Vec::new();
        let reader = VolumeReader::new(image.disks(), &opened, &crc32c());
        reader.read(0, &mut data, &mut bad).unwrap();
        assert_eq!(bad.len(), data.len() / opened.geometry.block_size(), "no tag is there yet");
        let tags = opened.tags.as_ref().unwrap();
        wipe(&image.disks(), &opened.geometry, tags, 0..opened.geometry.provided(), Wipe::All).unwrap();
        bad.clear();
        reader.read(0, &mut data, &mut bad).unwrap();
        assert!(bad.is_empty() && data.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_does_not_fit_the_superblock_is_refused() {
    let image = made(&NewSuperblock::default(), &crc32c(), 2 << 20);
    let kind = |options: &OpenSettings| look(&image.disks(), options).unwrap_err().kind();
    assert_eq!(kind(&OpenSettings { mode: WriteMode::Inline, ..crc32c() }), ErrorKind::BadSuperblock);
    assert_eq!(kind(&OpenSettings { tag_size: Some(8), ..crc32c() }), ErrorKind::BadSuperblock);
    assert_eq!(kind(&OpenSettings { block_size: Some(4096), ..crc32c() }), ErrorKind::BadSuperblock);
    let mac = KeyedHash::new("sha256", None).ok();
    assert_eq!(kind(&OpenSettings { journal_mac: mac, ..crc32c() }), ErrorKind::BadSuperblock);
    assert_eq!(kind(&OpenSettings { start: 8, ..crc32c() }), ErrorKind::NoSuperblock);
    assert_eq!(kind(&OpenSettings { start: 1 << 60, ..crc32c() }), ErrorKind::BadOption);
    assert_eq!(kind(&OpenSettings { hash: None, mode: WriteMode::Bitmap, ..crc32c() }), ErrorKind::BadOption);
    assert_eq!(kind(&OpenSettings { hash: None, allow_discards: true, ..crc32c() }), ErrorKind::BadOption);
    let meta = Memory::new(vec![0; 1 << 20]);
    let disks = Disks { data: &image.data, meta: Some(&image.data) };
    assert_eq!(look(&disks, &crc32c()).unwrap_err().kind(), ErrorKind::BadSuperblock);
    let disks = Disks { data: &image.data, meta: Some(&meta) };
    assert_eq!(look(&disks, &crc32c()).unwrap_err().kind(), ErrorKind::NoSuperblock);
}

#[test]
fn damaged_superblocks_are_refused() {
    let image = made(&NewSuperblock::default(), &crc32c(), 2 << 20);
    let refused = |at: usize, value: u8| {
        let mut bytes = image.data.bytes();
        bytes[at] = value;
        let image = Image { data: Memory::new(bytes), meta: None };
        look(&image.disks(), &crc32c()).unwrap_err().kind()
    };
    assert_eq!(refused(0, 0), ErrorKind::NoSuperblock);
    for (at, value) in
        [(8, 0), (8, 7), (9, 0), (9, 1), (9, 32), (9, 255), (10, 0), (11, 2), (12, 0), (24, 0x38), (28, 4)]
    {
        assert_eq!(refused(at, value), ErrorKind::BadSuperblock, "byte {at} = {value}");
    }
    // The journal is larger than the device.
    assert_eq!(refused(15, 1), ErrorKind::TooSmall);
}

#[test]
fn a_superblock_with_a_mac_opens_with_its_key_only_but_in_recovery_without() {
    let with_key = |key: &str| {
        let mac = KeyedHash::new("hmac(sha256)", Some(&key_of(key))).unwrap();
        OpenSettings { journal_mac: Some(mac), ..crc32c() }
    };
    let image = made(&NewSuperblock::default(), &with_key("00112233"), 2 << 20);
    open(&image.disks(), &with_key("00112233")).unwrap();
    let wrong = open(&image.disks(), &with_key("00112234")).unwrap_err();
    assert_eq!((wrong.kind(), wrong.errno()), (ErrorKind::Integrity, 84));
    let recovery = OpenSettings { mode: WriteMode::Recovery, ..with_key("00112234") };
    open(&image.disks(), &recovery).unwrap();
    // A flipped bit of the superblock's contents.
    let mut bytes = image.data.bytes();
    bytes[32] ^= 1;
    let forged = Image { data: Memory::new(bytes), meta: None };
    assert_eq!(open(&forged.disks(), &with_key("00112233")).unwrap_err().kind(), ErrorKind::Integrity);
}

#[test]
fn recalculation_with_a_key_is_refused_unless_the_superblock_is_authentic_or_it_is_allowed() {
    let hmac = |key: &str| KeyedHash::new("hmac(sha256)", Some(&key_of(key))).unwrap();
    let keyed = OpenSettings {
        hash: Some(hmac("aa")),
        recalculate: Recalculate::Begin,
        ..OpenSettings::new(WriteMode::Journal)
    };
    let legacy = NewSuperblock { legacy_hmac: true, ..NewSuperblock::default() };
    for (format_options, mac, refused) in [
        (&NewSuperblock::default(), None, true),
        (&NewSuperblock::default(), Some(hmac("bb")), false),
        (&legacy, Some(hmac("bb")), true),
    ] {
        let options = OpenSettings { journal_mac: mac, ..keyed.clone() };
        let image = made(format_options, &options, 2 << 20);
        let opened = open(&image.disks(), &options);
        assert_eq!(opened.is_err_and(|e| e.kind() == ErrorKind::Unsupported), refused);
        open(&image.disks(), &OpenSettings { legacy_recalculate: true, ..options }).unwrap();
    }
}

#[test]
fn a_recalculation_goes_on_where_it_was_stopped() {
    let options = OpenSettings { recalculate: Recalculate::Begin, ..crc32c() };
    let image = made(
        &NewSuperblock { interleave_sectors: Some(256), ..NewSuperblock::default() },
        &crc32c(),
        2 << 20,
    );
    let mut opened = open(&image.disks(), &options).unwrap();
    let mut steps = 0;
    opened
        .recalculate(&image.disks(), &options, |_| {
            steps += 1;
            steps < 3
        })
        .unwrap();
    let mut opened = open(&image.disks(), &crc32c()).unwrap();
    assert_eq!(opened.recalculation(), Some(768));
    let all = usize::try_from(opened.geometry.provided() * 512).unwrap();
    let (mut data, mut bad) = (vec![0; all], Vec::new());
    VolumeReader::new(image.disks(), &opened, &crc32c()).read(0, &mut data, &mut bad).unwrap();
    assert!(bad.is_empty(), "what has no tag yet is not compared with one");
    opened.recalculate(&image.disks(), &crc32c(), |_| true).unwrap();
    let opened = open(&image.disks(), &crc32c()).unwrap();
    assert_eq!(opened.recalculation(), None);
    assert!(opened.superblock.flags.has(Flags::RECALCULATING), "as the kernel leaves it");
    VolumeReader::new(image.disks(), &opened, &crc32c()).read(0, &mut data, &mut bad).unwrap();
    assert!(bad.is_empty());
}

#[test]
fn the_geometry_in_which_the_kernel_loses_data_is_refused() {
    let sizes = DiskSizes { data: 8 << 20, meta: None };
    let legacy = |interleave| NewSuperblock {
        legacy_padding: true,
        interleave_sectors: Some(interleave),
        ..NewSuperblock::default()
    };
    for interleave in [8, 32, 64] {
        let refused = legacy(interleave).superblock(&crc32c(), sizes).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{interleave}");
        let small = OpenSettings { buffer_sectors: 8, ..crc32c() };
        legacy(interleave).superblock(&small, sizes).unwrap();
    }
    legacy(128).superblock(&crc32c(), sizes).unwrap();
    NewSuperblock { interleave_sectors: Some(8), ..NewSuperblock::default() }
        .superblock(&crc32c(), sizes)
        .unwrap();
}

#[test]
fn a_journal_shrinks_until_a_metadata_device_has_room_for_it() {
    let options = crc32c();
    let sizes = DiskSizes { data: 64 << 20, meta: Some(1 << 20) };
    let format_options = NewSuperblock { journal_sectors: Some(1 << 20), ..NewSuperblock::default() };
    let superblock = format_options.superblock(&options, sizes).unwrap();
    // 131072 tags of 4 bytes are 1024 sectors; of the other 1024 the superblock takes 8, and
    // sections have 176.
    assert_eq!((superblock.journal_sections, superblock.log2_interleave), (5, 0));
    let none = DiskSizes { data: 64 << 20, meta: Some(512 << 10) };
    assert_eq!(format_options.superblock(&options, none).unwrap_err().kind(), ErrorKind::TooSmall);
}

#[test]
fn recovery_goes_without_a_superblock() {
    let image = made(&NewSuperblock::default(), &crc32c(), 2 << 20);
    let missing: Superblock = look(&image.disks(), &crc32c()).unwrap().superblock;
    image.data.write_at(0, &[0; 4096]).unwrap();
    let options = OpenSettings { mode: WriteMode::Recovery, missing: Some(missing.clone()), ..crc32c() };
    assert_eq!(open(&image.disks(), &options).unwrap().superblock, missing);
    let journal = OpenSettings { mode: WriteMode::Journal, ..options };
    assert_eq!(open(&image.disks(), &journal).unwrap_err().kind(), ErrorKind::NoSuperblock);
}

#[test]
fn the_last_page_of_tags_lies_on_the_metadata_device_also_behind_a_start() {
    let sizes = |meta| DiskSizes { data: 1 << 20, meta: Some(meta) };
    let (superblock, options) = {
        let options = OpenSettings { start: 3, ..crc32c() };
        (NewSuperblock::default().superblock(&options, sizes(1 << 20)).unwrap(), options)
    };
    let initial = VolumeGeometry::new(&superblock, &options, sizes(1 << 20)).unwrap().initial();
    // 2048 tags of 4 bytes are two pages.
    let end = (3 + initial + 16) * 512;
    VolumeGeometry::new(&superblock, &options, sizes(end)).unwrap();
    let short = VolumeGeometry::new(&superblock, &options, sizes(end - 512)).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::TooSmall);
}

#[test]
fn tags_that_a_device_keeps_are_written_nowhere_else() {
    let options = OpenSettings { mode: WriteMode::Inline, ..crc32c() };
    let image = made(&NewSuperblock { recalculating: true, ..NewSuperblock::default() }, &options, 1 << 20);
    let mut opened = open(&image.disks(), &options).unwrap();
    let before = image.data.bytes();
    let refused = opened.recalculate(&image.disks(), &options, |_| true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let (geometry, tags) = (opened.geometry, opened.tags.unwrap());
    let refused = wipe(&image.disks(), &geometry, &tags, 0..8, Wipe::Tags).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(image.data.bytes() == before);
}
