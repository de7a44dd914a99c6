//! Laws over random volumes.

use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use underseal_integrity::{
    DiskSizes, Flags, KeyedHash, NewSuperblock, OpenSettings, Superblock, VolumeGeometry, WriteMode, look,
    open,
};

use crate::support::*;

fn superblocks() -> impl Strategy<Value = Superblock> {
    let shape = (0u8..=33, 1u16..=424, 0u32..40, 0u8..4, any::<u8>());
    (shape, any::<u64>(), 0u32..0x40, any::<u64>()).prop_map(|(shape, provided, flags, recalculated)| {
        let (log2_interleave, tag_size, journal_sections, log2_block, log2_bitmap) = shape;
        let (flags, salt) = (Flags(flags), [7; 16]);
        Superblock {
            log2_interleave,
            tag_size,
            journal_sections,
            provided,
            flags,
            log2_block,
            log2_bitmap,
            recalculated,
            salt,
        }
    })
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

proptest! {
    #[test]
    fn nothing_overlaps_and_nothing_leaves_the_device(
        superblock in superblocks(),
        start in 0u64..5000,
        data in 0u64..(1 << 24),
        meta in proptest::option::of(0u64..(1 << 24)),
        blocks in proptest::collection::vec(any::<u64>(), 2..20),
    ) {
        let options = OpenSettings { start, ..OpenSettings::new(WriteMode::Journal) };
        let sizes = DiskSizes { data, meta };
        let Ok(geometry) = VolumeGeometry::new(&superblock, &options, sizes) else { return Ok(()) };
        let inline = superblock.flags.has(Flags::INLINE);
        let block_size = geometry.block_size() as u64;
        let count = geometry.provided() / geometry.block_sectors();
        let mut on_data: Vec<Range<u64>> = Vec::new();
        let head = start * 512..geometry.journal_offset() + geometry.journal_bytes();
        let mut on_meta = vec![head];
        let mut blocks: Vec<u64> = blocks.iter().map(|block| block % count).chain([0, count - 1]).collect();
        blocks.sort_unstable();
        blocks.dedup();
        for block in blocks {
            let place = geometry.place(block * geometry.block_sectors());
            prop_assert!(place.sectors >= geometry.block_sectors());
            on_data.push(place.data..place.data + block_size);
            if !inline {
                on_meta.push(place.tag..place.tag + u64::from(superblock.tag_size));
            }
        }
        let meta_size = if inline { data } else { meta.unwrap_or(data) };
        prop_assert!(on_data.iter().all(|range| range.end <= data));
        prop_assert!(on_meta.iter().all(|range| range.end <= meta_size));
        let mut lists = vec![on_data.clone(), on_meta.clone()];
        if meta.is_none() || inline {
            lists.push([on_data, on_meta].concat());
        }
        for ranges in lists {
            for (i, a) in ranges.iter().enumerate() {
                for b in &ranges[i + 1..] {
                    prop_assert!(!overlap(a, b), "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn one_more_unit_of_sectors_would_not_fit(superblock in superblocks(), start in 0u64..500, data in 0u64..(1 << 24)) {
        let options = OpenSettings { start, ..OpenSettings::new(WriteMode::Journal) };
        let Ok(geometry) = VolumeGeometry::new(&superblock, &options, DiskSizes { data, meta: None }) else { return Ok(()) };
        let sectors = geometry.provided();
        prop_assert_eq!(sectors % 8, 0);
        // The position of the sector after the last one, computed from the last one's.
        let last = geometry.place(sectors - 1);
        let areas = match (geometry.interleave(), geometry.run()) {
            (Some(interleave), Some(run)) => ((sectors + 7) / interleave - (sectors - 1) / interleave) * run,
            _ => 0,
        };
        prop_assert!(last.data / 512 + 8 + areas >= data / 512);
    }

    #[test]
    fn a_superblock_survives_its_bytes(superblock in superblocks(), journal in any::<bool>()) {
        let mode = if journal { WriteMode::Journal } else { WriteMode::Bitmap };
        let bytes = superblock.encode(mode, None).unwrap();
        if let Ok(parsed) = Superblock::parse(&bytes) {
            prop_assert_eq!(parsed, superblock);
        }
    }

    #[test]
    fn no_superblock_makes_a_reader_panic(
        superblock in superblocks(),
        noise in proptest::collection::vec(any::<u8>(), 0..64),
        at in 0usize..64,
        size in 0usize..200_000,
        mode in 0usize..5,
    ) {
        let mode = [WriteMode::Journal, WriteMode::Bitmap, WriteMode::Direct, WriteMode::Recovery, WriteMode::Inline][mode];
        let mut bytes = superblock.encode(mode, None).unwrap().to_vec();
        let end = (at + noise.len()).min(64);
        bytes[at..end].copy_from_slice(&noise[..end - at]);
        bytes.resize(size, 0x11);
        let image = Image { data: Memory::new(bytes), meta: None };
        let options = OpenSettings { hash: KeyedHash::new("crc32c", None).ok(), ..OpenSettings::new(mode) };
        let _ = look(&image.disks(), &options);
        let _ = open(&image.disks(), &options);
    }
}

#[test]
fn a_damaged_journal_is_replayed_or_refused_and_then_nothing_is_changed() {
    let changes = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8);
    for name in ["int-a-sha256-512-torn", "int-a-crc32c-cbc", "int-a-hmac256-mac256"] {
        let options = options(images()[name]["table"].as_str().unwrap());
        let whole = unpack(name).data.bytes();
        TestRunner::new(ProptestConfig::with_cases(24))
            .run(&changes, |changes| {
                let image = Image { data: Memory::new(whole.clone()), meta: None };
                let geometry = look(&image.disks(), &options).unwrap().geometry;
                let journal = usize::try_from(geometry.journal_offset()).unwrap();
                let len = usize::try_from(geometry.journal_bytes()).unwrap();
                for (at, value) in changes {
                    image.data.0.lock().unwrap()[journal + at.index(len)] ^= value;
                }
                let before = image.data.bytes();
                if open(&image.disks(), &options).is_err() {
                    prop_assert!(image.data.bytes() == before, "a volume that is refused was changed");
                }
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn a_format_that_is_taken_can_be_opened() {
    let format_options = (
        0u16..300,
        0u32..5,
        proptest::option::of(0u64..5000),
        proptest::option::of(0u32..5000),
        any::<bool>(),
        any::<bool>(),
    );
    let sizes = (4096usize..3_000_000, proptest::option::of(4096usize..3_000_000));
    TestRunner::new(ProptestConfig::with_cases(64))
        .run(&(format_options, sizes), |((tag, block, journal, interleave, padding, hmac), (data, meta))| {
            let format_options = NewSuperblock {
                tag_size: (tag > 0).then_some(tag),
                block_size: 256 << block,
                journal_sectors: journal,
                interleave_sectors: interleave,
                legacy_padding: padding,
                legacy_hmac: hmac,
                recalculating: false,
            };
            let image =
                Image { data: Memory::new(vec![0; data]), meta: meta.map(|size| Memory::new(vec![0; size])) };
            let options = OpenSettings {
                hash: KeyedHash::new("crc32c", None).ok(),
                ..OpenSettings::new(WriteMode::Journal)
            };
            let sizes = image.disks().sizes().unwrap();
            if let Ok(superblock) = format_options.superblock(&options, sizes) {
                underseal_integrity::format(&image.disks(), &options, &superblock).unwrap();
                let opened = open(&image.disks(), &options).unwrap();
                prop_assert_eq!(&opened.superblock, &superblock);
                prop_assert_eq!(opened.replayed.unwrap().entries, 0);
            }
            Ok(())
        })
        .unwrap();
}
