//! Volumes from a kernel, stopped at some time: all open with the kernel's contents, and leave the
//! kernel's bytes.

use serde_json::Value;
use underseal_integrity::{
    Flags, OpenSettings, OpenedVolume, Overlay, Result, VolumeReader, WriteMode, open,
};

use crate::support::*;

/// The readable sectors, with zeros for the rest; and the unreadable ones, as runs.
fn read_all(image: &Image, opened: &OpenedVolume, options: &OpenSettings) -> (Vec<u8>, Vec<(u64, u64)>) {
    let block = opened.geometry.block_sectors();
    let mut plain = vec![0; usize::try_from(opened.geometry.provided() * 512).unwrap()];
    let mut bad = Vec::new();
    VolumeReader::new(image.disks(), opened, options).read(0, &mut plain, &mut bad).unwrap();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for sector in bad {
        let at = usize::try_from(sector * 512).unwrap();
        plain[at..at + opened.geometry.block_size()].fill(0);
        match runs.last_mut().filter(|(start, len)| start + len == sector) {
            Some((_, len)) => *len += block,
            None => runs.push((sector, block)),
        }
    }
    (plain, runs)
}

fn pairs(value: &Value) -> Vec<(u64, u64)> {
    let pair = |pair: &Value| (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap());
    value.as_array().unwrap().iter().map(pair).collect()
}

/// Opens the volume and recalculates tags as the kernel would, and closes it.
fn open_and_close(image: &Image, options: &OpenSettings) -> Result<OpenedVolume> {
    let disks = image.disks();
    let mut opened = open(&disks, options)?;
    opened.recalculate(&disks, options, |_| true)?;
    opened.close_bitmap(&disks, options)?;
    Ok(opened)
}

#[test]
fn every_volume_gives_the_kernels_plaintext_and_leaves_the_kernels_bytes() {
    for (name, expected) in images() {
        let image = unpack(&name);
        let before = image.data.bytes();
        let options = options(expected["table"].as_str().unwrap());
        let opened = open_and_close(&image, &options);
        if !expected["refused"].is_null() {
            // The kernel opens the volume, and then fails each request.
            assert_eq!(opened.unwrap_err().errno(), expected["errno"][0], "{name}");
            assert!(image.data.bytes() == before, "{name}: a volume that is refused was changed");
        } else {
            let opened = opened.unwrap_or_else(|e| panic!("{name}: {e}"));
            let (plain, bad) = read_all(&image, &opened, &options);
            assert_eq!(bad, pairs(&expected["unreadable"]), "{name}");
            assert_eq!(sha256(&plain), expected["plain_sha256"], "{name}");
        }
        assert_eq!(sha256(&image.data.bytes()), expected["after_sha256"], "{name}");
        if let Some(meta) = &image.meta {
            assert_eq!(sha256(&meta.bytes()), expected["after_meta_sha256"], "{name}");
        }
    }
}

#[test]
fn replays_take_the_sections_in_the_order_in_which_the_kernel_takes_them() {
    let mut seen = 0;
    for (name, expected) in images() {
        let replay = &expected["replay"];
        if replay["order"].is_null() {
            continue;
        }
        let image = unpack(&name);
        let opened = open(&image.disks(), &options(expected["table"].as_str().unwrap())).unwrap();
        let replayed = opened.replayed.unwrap();
        let plan = &replayed.plan;
        let order: Vec<u64> = replay["order"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        assert_eq!(plan.order.iter().map(|i| u64::from(*i)).collect::<Vec<_>>(), order, "{name}");
        assert_eq!(u64::from(plan.next), replay["start"], "{name}");
        assert_eq!(plan.round.index(), replay["want"], "{name}");
        assert_eq!(plan.newest.index(), replay["last"], "{name}");
        assert_eq!(plan.is_empty, replay["empty"], "{name}");
        assert_eq!(plan.is_whole(opened.geometry.sections()), replay["complete"], "{name}");
        assert_eq!(replayed.entries, replay["applied"], "{name}");
        assert_eq!(
            replayed.cleared.map(|round| u64::from(round.index())),
            replay["cleared"].as_u64(),
            "{name}"
        );
        seen += 1;
    }
    assert_eq!(seen, 28);
}

#[test]
fn superblocks_and_geometries_are_the_kernels() {
    for (name, expected) in images() {
        let image = unpack(&name);
        let options =
            OpenSettings { mode: WriteMode::Recovery, ..options(expected["table"].as_str().unwrap()) };
        let opened = open(&image.disks(), &OpenSettings { legacy_recalculate: true, ..options }).unwrap();
        let (superblock, geometry, section) =
            (&opened.superblock, &opened.geometry, opened.geometry.section());
        let at = |field: &str| expected["superblock"][field].clone();
        let mode =
            if superblock.flags.has(Flags::DIRTY_BITMAP) { WriteMode::Bitmap } else { WriteMode::Journal };
        assert_eq!(superblock.version(mode), at("version"), "{name}");
        assert_eq!(superblock.log2_interleave, at("log2_interleave"), "{name}");
        assert_eq!(superblock.tag_size, at("tag"), "{name}");
        assert_eq!(superblock.journal_sections, at("journal_sections"), "{name}");
        assert_eq!(superblock.provided, at("provided"), "{name}");
        assert_eq!(geometry.provided(), expected["provided_sectors"], "{name}");
        assert_eq!(superblock.flags.names().collect::<Vec<_>>(), *at("flags").as_array().unwrap(), "{name}");
        assert_eq!(superblock.log2_bitmap, at("log2_blocks_per_bit"), "{name}");
        assert_eq!(superblock.recalculated, at("recalc"), "{name}");
        assert_eq!(hex::encode(superblock.salt), at("salt"), "{name}");
        assert_eq!(geometry.block_sectors(), at("spb"), "{name}");
        assert_eq!(section.entry_size, at("entry_size"), "{name}");
        assert_eq!(section.entries_per_sector, at("entries_per_sector"), "{name}");
        assert_eq!(section.sectors(), at("section_sectors"), "{name}");
        assert_eq!(geometry.initial(), at("initial"), "{name}");
        assert_eq!(geometry.run().unwrap_or(1), at("run"), "{name}");
    }
}

#[test]
fn volumes_open_in_other_modes_as_the_kernel_opens_them() {
    let mut seen = 0;
    for (name, expected) in images() {
        let also = &expected["also"];
        if also.is_null() {
            continue;
        }
        let image = unpack(&name);
        let mode = WriteMode::from_letter(also["mode"].as_str().unwrap().chars().next().unwrap()).unwrap();
        let arguments: Vec<&str> =
            also["opts"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let options = with(OpenSettings::new(mode), &arguments);
        let opened = open_and_close(&image, &options).unwrap();
        let (plain, bad) = read_all(&image, &opened, &options);
        assert_eq!(bad, pairs(&also["unreadable"]), "{name}");
        assert_eq!(sha256(&plain), also["plain_sha256"], "{name}");
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn an_overlay_shows_what_a_replay_would_give_and_changes_nothing() {
    for name in ["int-a-sha256-512-torn", "int-a-meta", "int-a-ctr-torn", "int-a-tag20-sha256"] {
        let expected = &images()[name];
        let image = unpack(name);
        let before = (image.data.bytes(), image.meta.as_ref().map(Memory::bytes));
        let options = options(expected["table"].as_str().unwrap());
        let (data, meta) = (Overlay::new(&image.data), image.meta.as_ref().map(Overlay::new));
        let disks = underseal_integrity::Disks { data: &data, meta: meta.as_ref().map(|meta| meta as _) };
        let opened = open(&disks, &options).unwrap();
        let mut plain = vec![0; usize::try_from(opened.geometry.provided() * 512).unwrap()];
        let mut bad = Vec::new();
        VolumeReader::new(disks, &opened, &options).read(0, &mut plain, &mut bad).unwrap();
        assert_eq!(
            (sha256(&plain), bad.len()),
            (expected["plain_sha256"].as_str().unwrap().into(), 0),
            "{name}"
        );
        assert!(before == (image.data.bytes(), image.meta.as_ref().map(Memory::bytes)), "{name}");
    }
}

#[test]
fn opening_again_changes_nothing_more() {
    for (name, expected) in images() {
        let image = unpack(&name);
        let options = options(expected["table"].as_str().unwrap());
        if open_and_close(&image, &options).is_ok() {
            let once = (image.data.bytes(), image.meta.as_ref().map(Memory::bytes));
            open_and_close(&image, &options).unwrap();
            assert!(once == (image.data.bytes(), image.meta.as_ref().map(Memory::bytes)), "{name}");
        }
    }
}
