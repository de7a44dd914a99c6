//! What is refused, and what format makes.

use underseal_integrity::{
    Disk, Disks, ErrorKind, Flags, Format, Geometry, Hash, Mode, Options, Reader, Recalculate, Sizes,
    Superblock, Wipe, format, look, open, wipe,
};

use crate::support::*;

fn crc32c() -> Options {
    Options { hash: Some(Hash::new("crc32c", None).unwrap()), ..Options::new(Mode::Journal) }
}

fn made(format_options: &Format, options: &Options, size: usize) -> Image {
    let image = Image { data: Memory::new(vec![0; size]), meta: None };
    let superblock = format_options.superblock(options, image.disks().sizes().unwrap()).unwrap();
    format(&image.disks(), options, &superblock).unwrap();
    image
}

#[test]
fn a_new_volume_has_the_kernels_geometry() {
    // All but the salt, the version and what was written later is as in the kernel's volumes.
    for (name, expected) in images() {
        let table = expected["table"].as_str().unwrap();
        let words: Vec<&str> = table.split(' ').collect();
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
        let options = options(table);
        let format_options = Format {
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
            look(&image.disks(), &Options { legacy_recalculate: true, ..options }).unwrap().superblock;
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
        let image = made(&Format { block_size, ..Format::default() }, &crc32c(), 2 << 20);
        let opened = open(&image.disks(), &crc32c()).unwrap();
        let mut data = vec![1; usize::try_from(opened.geometry.provided() * 512).unwrap()];
        let mut bad = Vec::new();
        let reader = Reader::new(image.disks(), &opened, &crc32c());
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
    let image = made(&Format::default(), &crc32c(), 2 << 20);
    let kind = |options: &Options| look(&image.disks(), options).unwrap_err().kind();
    assert_eq!(kind(&Options { mode: Mode::Inline, ..crc32c() }), ErrorKind::BadSuperblock);
    assert_eq!(kind(&Options { tag_size: Some(8), ..crc32c() }), ErrorKind::BadSuperblock);
    assert_eq!(kind(&Options { block_size: Some(4096), ..crc32c() }), ErrorKind::BadSuperblock);
    let mac = Hash::new("sha256", None).ok();
    assert_eq!(kind(&Options { journal_mac: mac, ..crc32c() }), ErrorKind::BadSuperblock);
    assert_eq!(kind(&Options { start: 8, ..crc32c() }), ErrorKind::NoSuperblock);
    assert_eq!(kind(&Options { start: 1 << 60, ..crc32c() }), ErrorKind::BadOption);
    assert_eq!(kind(&Options { hash: None, mode: Mode::Bitmap, ..crc32c() }), ErrorKind::BadOption);
    assert_eq!(kind(&Options { hash: None, allow_discards: true, ..crc32c() }), ErrorKind::BadOption);
    let meta = Memory::new(vec![0; 1 << 20]);
    let disks = Disks { data: &image.data, meta: Some(&image.data) };
    assert_eq!(look(&disks, &crc32c()).unwrap_err().kind(), ErrorKind::BadSuperblock);
    let disks = Disks { data: &image.data, meta: Some(&meta) };
    assert_eq!(look(&disks, &crc32c()).unwrap_err().kind(), ErrorKind::NoSuperblock);
}

#[test]
fn damaged_superblocks_are_refused() {
    let image = made(&Format::default(), &crc32c(), 2 << 20);
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
    // More journal than device.
    assert_eq!(refused(15, 1), ErrorKind::TooSmall);
}

#[test]
fn a_superblock_with_a_mac_opens_with_its_key_only_but_in_recovery_without() {
    let with_key = |key: &str| {
        let mac = Hash::new("hmac(sha256)", Some(&key_of(key))).unwrap();
        Options { journal_mac: Some(mac), ..crc32c() }
    };
    let image = made(&Format::default(), &with_key("00112233"), 2 << 20);
    open(&image.disks(), &with_key("00112233")).unwrap();
    let wrong = open(&image.disks(), &with_key("00112234")).unwrap_err();
    assert_eq!((wrong.kind(), wrong.errno()), (ErrorKind::Integrity, 84));
    let recovery = Options { mode: Mode::Recovery, ..with_key("00112234") };
    open(&image.disks(), &recovery).unwrap();
    // One bit of what the superblock says.
    let mut bytes = image.data.bytes();
    bytes[32] ^= 1;
    let forged = Image { data: Memory::new(bytes), meta: None };
    assert_eq!(open(&forged.disks(), &with_key("00112233")).unwrap_err().kind(), ErrorKind::Integrity);
}

#[test]
fn recalculation_with_a_key_is_refused_unless_the_superblock_is_authentic_or_it_is_allowed() {
    let hmac = |key: &str| Hash::new("hmac(sha256)", Some(&key_of(key))).unwrap();
    let keyed =
        Options { hash: Some(hmac("aa")), recalculate: Recalculate::Begin, ..Options::new(Mode::Journal) };
    let legacy = Format { legacy_hmac: true, ..Format::default() };
    for (format_options, mac, refused) in [
        (&Format::default(), None, true),
        (&Format::default(), Some(hmac("bb")), false),
        (&legacy, Some(hmac("bb")), true),
    ] {
        let options = Options { journal_mac: mac, ..keyed.clone() };
        let image = made(format_options, &options, 2 << 20);
        let opened = open(&image.disks(), &options);
        assert_eq!(opened.is_err_and(|e| e.kind() == ErrorKind::Unsupported), refused);
        open(&image.disks(), &Options { legacy_recalculate: true, ..options }).unwrap();
    }
}

#[test]
fn a_recalculation_goes_on_where_it_was_stopped() {
    let options = Options { recalculate: Recalculate::Begin, ..crc32c() };
    let image = made(&Format { interleave_sectors: Some(256), ..Format::default() }, &crc32c(), 2 << 20);
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
    Reader::new(image.disks(), &opened, &crc32c()).read(0, &mut data, &mut bad).unwrap();
    assert!(bad.is_empty(), "what has no tag yet is not compared with one");
    opened.recalculate(&image.disks(), &crc32c(), |_| true).unwrap();
    let opened = open(&image.disks(), &crc32c()).unwrap();
    assert_eq!(opened.recalculation(), None);
    assert!(opened.superblock.flags.has(Flags::RECALCULATING), "as the kernel leaves it");
    Reader::new(image.disks(), &opened, &crc32c()).read(0, &mut data, &mut bad).unwrap();
    assert!(bad.is_empty());
}

#[test]
fn the_geometry_in_which_the_kernel_loses_data_is_refused() {
    let sizes = Sizes { data: 8 << 20, meta: None };
    let legacy = |interleave| Format {
        legacy_padding: true,
        interleave_sectors: Some(interleave),
        ..Format::default()
    };
    for interleave in [8, 32, 64] {
        let refused = legacy(interleave).superblock(&crc32c(), sizes).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{interleave}");
        let small = Options { buffer_sectors: 8, ..crc32c() };
        legacy(interleave).superblock(&small, sizes).unwrap();
    }
    legacy(128).superblock(&crc32c(), sizes).unwrap();
    Format { interleave_sectors: Some(8), ..Format::default() }.superblock(&crc32c(), sizes).unwrap();
}

#[test]
fn a_journal_shrinks_until_a_metadata_device_has_room_for_it() {
    let options = crc32c();
    let sizes = Sizes { data: 64 << 20, meta: Some(1 << 20) };
    let format_options = Format { journal_sectors: Some(1 << 20), ..Format::default() };
    let superblock = format_options.superblock(&options, sizes).unwrap();
    // 131072 tags of 4 bytes are 1024 sectors; of the other 1024 the superblock takes 8, and sections have 176.
    assert_eq!((superblock.journal_sections, superblock.log2_interleave), (5, 0));
    let none = Sizes { data: 64 << 20, meta: Some(512 << 10) };
    assert_eq!(format_options.superblock(&options, none).unwrap_err().kind(), ErrorKind::TooSmall);
}

#[test]
fn recovery_goes_without_a_superblock() {
    let image = made(&Format::default(), &crc32c(), 2 << 20);
    let missing: Superblock = look(&image.disks(), &crc32c()).unwrap().superblock;
    image.data.write_at(0, &[0; 4096]).unwrap();
    let options = Options { mode: Mode::Recovery, missing: Some(missing.clone()), ..crc32c() };
    assert_eq!(open(&image.disks(), &options).unwrap().superblock, missing);
    let journal = Options { mode: Mode::Journal, ..options };
    assert_eq!(open(&image.disks(), &journal).unwrap_err().kind(), ErrorKind::NoSuperblock);
}

#[test]
fn the_last_page_of_tags_lies_on_the_metadata_device_also_behind_a_start() {
    let sizes = |meta| Sizes { data: 1 << 20, meta: Some(meta) };
    let (superblock, options) = {
        let options = Options { start: 3, ..crc32c() };
        (Format::default().superblock(&options, sizes(1 << 20)).unwrap(), options)
    };
    let initial = Geometry::new(&superblock, &options, sizes(1 << 20)).unwrap().initial();
    // 2048 tags of 4 bytes are two pages.
    let end = (3 + initial + 16) * 512;
    Geometry::new(&superblock, &options, sizes(end)).unwrap();
    let short = Geometry::new(&superblock, &options, sizes(end - 512)).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::TooSmall);
}

#[test]
fn tags_that_a_device_keeps_are_written_nowhere_else() {
    let options = Options { mode: Mode::Inline, ..crc32c() };
    let image = made(&Format { recalculating: true, ..Format::default() }, &options, 1 << 20);
    let mut opened = open(&image.disks(), &options).unwrap();
    let before = image.data.bytes();
    let refused = opened.recalculate(&image.disks(), &options, |_| true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let (geometry, tags) = (opened.geometry, opened.tags.unwrap());
    let refused = wipe(&image.disks(), &geometry, &tags, 0..8, Wipe::Tags).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(image.data.bytes() == before);
}
