//! The table of attacks of `docs/integrity.md`: each attack changes the bytes of a volume's disk,
//! under each kind of protection.

mod volume;

use std::ops::Range;

use underseal_cipher::InOutBuf;
use underseal_integrity::{DISCARDED, ErrorKind, Flags, TagMaker, WriteMode};
use volume::{
    AEAD, AEAD_MAC, Block, CHACHA, CHANGED, Column, Copies, HASH, KEYED, KEYED_MAC, NONE, SIZE, contents,
    open,
};

/// The effect of an attack that the owner sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The volume does not open, and is not changed.
    Refused(ErrorKind),
    /// Reading the changed bytes fails.
    Fails,
    /// Nothing: the attacker's bytes are read.
    Nothing,
}

use Seen::{Fails, Nothing, Refused};

const TAG: Seen = Refused(ErrorKind::Integrity);
const ID: Seen = Refused(ErrorKind::BadJournal);
const KEY: Seen = Refused(ErrorKind::Unsupported);
const OPTION: Seen = Refused(ErrorKind::BadOption);
const SMALL: Seen = Refused(ErrorKind::TooSmall);

const COLUMNS: [Column; 7] = [HASH, KEYED, KEYED_MAC, AEAD, CHACHA, AEAD_MAC, NONE];

/// A disk after an attack.
struct Attacked {
    bytes: Vec<u8>,
    /// The attacked blocks, with their contents after a successful attack; `None`: any new
    /// contents.
    blocks: Vec<(u64, Option<Block>)>,
}

/// An attack, and its effect in each column.
struct Row {
    name: &'static str,
    make: fn(&Copies) -> Attacked,
    seen: [Seen; 7],
}

/// The table. Columns: hash, keyed, keyed with a journal MAC, AES-GCM, ChaCha20-Poly1305, authenc
/// with a journal MAC, none.
const TABLE: [Row; 21] = [
    Row {
        name: "a byte of data",
        make: data_byte,
        seen: [Fails, Fails, Fails, Fails, Fails, Fails, Nothing],
    },
    Row {
        name: "a byte of a tag",
        make: tag_byte,
        seen: [Fails, Fails, Fails, Fails, Fails, Fails, Nothing],
    },
    Row {
        name: "data with a tag",
        make: forged,
        seen: [Nothing, Fails, Fails, Fails, Fails, Fails, Nothing],
    },
    Row { name: "two blocks", make: swap_data, seen: [Fails, Fails, Fails, Fails, Fails, Fails, Nothing] },
    Row { name: "two tags", make: swap_tags, seen: [Fails, Fails, Fails, Fails, Fails, Fails, Nothing] },
    Row { name: "both", make: swap_both, seen: [Fails, Fails, Fails, Fails, Fails, Fails, Nothing] },
    Row { name: "two areas", make: swap_areas, seen: [Fails, Fails, Fails, Fails, Fails, Fails, Nothing] },
    Row { name: "an old block", make: old_block, seen: [Nothing; 7] },
    Row { name: "an old device", make: old_device, seen: [Nothing; 7] },
    Row { name: "another volume", make: foreign, seen: [Fails, Fails, Fails, Fails, Fails, Fails, Nothing] },
    Row { name: "an entry's sector", make: entry_sector, seen: [TAG, TAG, TAG, Fails, Fails, TAG, Nothing] },
    Row { name: "an entry's tag", make: entry_tag, seen: [TAG, TAG, TAG, Fails, Fails, Fails, Nothing] },
    Row { name: "an entry's data", make: entry_data, seen: [TAG, TAG, TAG, Fails, Fails, Fails, Nothing] },
    Row { name: "a commit id", make: commit_id, seen: [ID; 7] },
    Row { name: "an old journal", make: old_journal, seen: [Nothing; 7] },
    Row {
        name: "an entry less",
        make: one_entry_less,
        seen: [Nothing, Nothing, TAG, Nothing, Nothing, TAG, Nothing],
    },
    Row { name: "no entry", make: no_entry, seen: [Nothing; 7] },
    Row { name: "recalculating", make: recalculating, seen: [Nothing, KEY, TAG, Fails, Fails, TAG, Nothing] },
    Row { name: "a bitmap", make: bitmap, seen: [Nothing, KEY, TAG, OPTION, OPTION, TAG, OPTION] },
    Row { name: "cut short", make: cut, seen: [SMALL; 7] },
    Row {
        name: "and it says so",
        make: cut_and_said,
        seen: [Nothing, Nothing, TAG, Nothing, Nothing, TAG, Nothing],
    },
];

fn swap(bytes: &mut [u8], a: &Range<usize>, b: &Range<usize>) {
    a.clone().zip(b.clone()).for_each(|(a, b)| bytes.swap(a, b));
}

/// Two blocks of one area.
const PAIR: [u64; 2] = [5, 40];

fn data_byte(copies: &Copies) -> Attacked {
    let mut bytes = copies.old.clone();
    bytes[copies.places(5)[0].start + 17] ^= 4;
    Attacked { bytes, blocks: vec![(5, None)] }
}

fn tag_byte(copies: &Copies) -> Attacked {
    let mut bytes = copies.old.clone();
    bytes[copies.places(5)[1].end - 1] ^= 4;
    Attacked { bytes, blocks: vec![(5, None)] }
}

/// Writes a block as an attacker without the keys: with a key of the attacker, and the public hash.
fn forge(copies: &Copies, bytes: &mut [u8], block: u64, of: &[u8]) {
    let [data, tag] = copies.places(block);
    let mut made = vec![0; tag.len()];
    bytes[data.clone()].copy_from_slice(of);
    if let Some(hash) = copies.column.hash(77) {
        let salt = copies.superblock.flags.has(Flags::FIXED_HMAC).then_some(copies.superblock.salt);
        TagMaker::new(hash, salt, tag.len(), data.len()).make(block, of, &mut made);
    } else {
        copies.column.cipher(77).seal(block, InOutBuf::from(&mut bytes[data]), &mut made).unwrap();
    }
    bytes[tag].copy_from_slice(&made);
}

fn forged(copies: &Copies) -> Attacked {
    let mut bytes = copies.old.clone();
    forge(copies, &mut bytes, 5, &[66; 512]);
    Attacked { bytes, blocks: vec![(5, None)] }
}

/// Swaps parts of the pair.
fn swap_pair(copies: &Copies, parts: &[usize]) -> Attacked {
    let mut bytes = copies.old.clone();
    let (one, two) = (copies.places(PAIR[0]), copies.places(PAIR[1]));
    parts.iter().for_each(|part| swap(&mut bytes, &one[*part], &two[*part]));
    let other = |block, by: u64| (block, (parts.len() == 2).then(|| contents(by, 1)));
    Attacked { bytes, blocks: vec![other(PAIR[0], PAIR[1]), other(PAIR[1], PAIR[0])] }
}

fn swap_data(copies: &Copies) -> Attacked {
    swap_pair(copies, &[0])
}

fn swap_tags(copies: &Copies) -> Attacked {
    swap_pair(copies, &[1])
}

fn swap_both(copies: &Copies) -> Attacked {
    swap_pair(copies, &[0, 1])
}

fn swap_areas(copies: &Copies) -> Attacked {
    let mut bytes = copies.old.clone();
    let [first, second] = [0, 64].map(|block| copies.places(block)[1].start);
    swap(&mut bytes, &(first..second), &(second..2 * second - first));
    let blocks = (0..128).map(|block| (block, Some(contents(block ^ 64, 1)))).collect();
    Attacked { bytes, blocks }
}

fn old_block(copies: &Copies) -> Attacked {
    let mut bytes = copies.new.clone();
    copies.places(CHANGED).into_iter().for_each(|at| bytes[at.clone()].copy_from_slice(&copies.old[at]));
    Attacked { bytes, blocks: vec![(CHANGED, Some(contents(CHANGED, 1)))] }
}

fn old_device(copies: &Copies) -> Attacked {
    Attacked { bytes: copies.old.clone(), blocks: vec![(CHANGED, Some(contents(CHANGED, 1)))] }
}

/// A block of another owner's volume, with another key and another salt.
fn foreign(copies: &Copies) -> Attacked {
    let mut bytes = copies.old.clone();
    let theirs = Copies::of(copies.column, true);
    let mut other = theirs.old.clone();
    if copies.column.hash != Some("sha256") {
        forge(&theirs, &mut other, 5, &[66; 512]);
    }
    copies.places(5).into_iter().for_each(|at| bytes[at.clone()].copy_from_slice(&other[at]));
    Attacked { bytes, blocks: vec![(5, None)] }
}

/// Changes the section of the journal that has entries for [`CHANGED`] and the next block.
fn in_journal(copies: &Copies, block: u64, wanted: Option<Block>, change: impl Fn(&mut [u8])) -> Attacked {
    let mut bytes = copies.journal.clone();
    change(&mut bytes[copies.section()..]);
    Attacked { bytes, blocks: vec![(block, wanted)] }
}

fn entry_sector(copies: &Copies) -> Attacked {
    in_journal(copies, 20, Some(contents(CHANGED, 2)), |section| section[0] = 20)
}

fn entry_tag(copies: &Copies) -> Attacked {
    in_journal(copies, CHANGED, None, |section| section[17] ^= 1)
}

fn entry_data(copies: &Copies) -> Attacked {
    in_journal(copies, CHANGED, None, |section| section[8 * 512] ^= 1)
}

fn commit_id(copies: &Copies) -> Attacked {
    in_journal(copies, CHANGED, None, |section| section[504] ^= 1)
}

fn old_journal(copies: &Copies) -> Attacked {
    let area = copies.journal_area();
    let mut bytes = copies.journal.clone();
    bytes[area.clone()].copy_from_slice(&copies.old[area]);
    Attacked { bytes, blocks: vec![(CHANGED, Some(contents(CHANGED, 1)))] }
}

/// The first entry is marked as unused.
fn one_entry_less(copies: &Copies) -> Attacked {
    in_journal(copies, CHANGED, Some(contents(CHANGED, 1)), |section| section[4..8].fill(0xff))
}

/// Both entries are marked: that is an empty journal.
fn no_entry(copies: &Copies) -> Attacked {
    let mut attacked = one_entry_less(copies);
    attacked.bytes[copies.section() + 512..][4..8].fill(0xff);
    attacked.blocks.push((CHANGED + 1, Some(contents(CHANGED + 1, 1))));
    attacked
}

fn with_flag(copies: &Copies, flag: Flags) -> Attacked {
    let mut attacked = data_byte(copies);
    attacked.bytes[24] |= u8::try_from(flag.0).unwrap();
    attacked
}

fn recalculating(copies: &Copies) -> Attacked {
    with_flag(copies, Flags::RECALCULATING)
}

fn bitmap(copies: &Copies) -> Attacked {
    let mut attacked = with_flag(copies, Flags::DIRTY_BITMAP);
    attacked.bytes[copies.journal_area()].fill(0xff);
    attacked
}

fn cut(copies: &Copies) -> Attacked {
    let mut bytes = copies.old.clone();
    bytes.truncate(bytes.len() - (64 << 10));
    Attacked { bytes, blocks: vec![] }
}

fn cut_and_said(copies: &Copies) -> Attacked {
    let mut attacked = cut(copies);
    attacked.bytes[16..24].copy_from_slice(&(copies.superblock.provided / 2).to_le_bytes());
    attacked
}

/// Opens the attacked bytes in a mode, and checks the effect.
fn look_at(copies: &Copies, attacked: &Attacked, mode: WriteMode, seen: Seen, what: &str) {
    let column = &copies.column;
    let opened = open(column, &attacked.bytes, &column.options(mode));
    let mut volume = match (opened, seen) {
        (Err((e, bytes)), Refused(kind)) => {
            assert_eq!(e.kind(), kind, "{what}: {e}");
            return assert!(bytes == attacked.bytes, "{what}: what is refused is left as it was");
        }
        (Err((e, _)), _) => panic!("{what}: {}", underseal_error::with_causes(&e)),
        (Ok(_), Refused(_)) => panic!("{what}: it opens"),
        (Ok(volume), _) => volume,
    };
    if column.hash.is_some() {
        volume.wait_until_recalculated();
    }
    for block in 0..volume.blocks() {
        let read = volume.read(block);
        let known = [contents(block, 1), contents(block, 2)];
        match (attacked.blocks.iter().find(|(of, _)| *of == block), seen) {
            (None, _) => {
                assert!(read.is_ok_and(|data| known.contains(&data)), "{what}: block {block} is another")
            }
            (Some(_), Fails) => {
                let error = read.err();
                assert_eq!(error, Some(underseal_datapath::ErrorKind::Integrity), "{what}: {block}");
            }
            (Some((_, wanted)), _) => {
                let data = read.unwrap_or_else(|e| panic!("{what}: block {block}: {e:?}"));
                match wanted {
                    Some(wanted) => assert!(data == *wanted, "{what}: block {block} is not what was wanted"),
                    None => assert!(!known.contains(&data), "{what}: block {block} is as before"),
                }
            }
        }
    }
}

#[test]
fn every_attack_is_noticed_or_not_as_the_table_says() {
    for (nth, column) in COLUMNS.iter().enumerate() {
        let copies = Copies::of(*column, true);
        // Without an attack nothing is noticed.
        for bytes in [&copies.old, &copies.journal, &copies.new] {
            let attacked = Attacked { bytes: bytes.clone(), blocks: vec![] };
            look_at(&copies, &attacked, WriteMode::Journal, Nothing, column.name);
        }
        for row in &TABLE {
            let what = format!("{}: {}", column.name, row.name);
            look_at(&copies, &(row.make)(&copies), WriteMode::Journal, row.seen[nth], &what);
        }
    }
}

#[test]
fn what_the_mode_makes_of_a_bitmap_that_somebody_claims() {
    let copies = Copies::of(KEYED, true);
    for (mode, seen) in [(WriteMode::Journal, KEY), (WriteMode::Direct, KEY), (WriteMode::Bitmap, Nothing)] {
        look_at(&copies, &bitmap(&copies), mode, seen, &format!("{mode:?}"));
    }
    // With legacy recalculation allowed, the forger's data gets valid tags.
    let options =
        underseal_integrity::OpenSettings { legacy_recalculate: true, ..KEYED.options(WriteMode::Journal) };
    for attacked in [recalculating(&copies), bitmap(&copies)] {
        let mut volume = open(&KEYED, &attacked.bytes, &options).map_err(|(e, _)| e).unwrap();
        volume.wait_until_recalculated();
        assert!(volume.read(5).is_ok_and(|data| data != contents(5, 1)));
    }
}

#[test]
fn blocks_of_other_volumes_are_taken_where_tags_have_neither_key_nor_salt() {
    let copies = Copies::of(HASH, false);
    let theirs = Copies::of(HASH, false);
    let mut bytes = copies.old.clone();
    for at in theirs.places(CHANGED) {
        bytes[at.clone()].copy_from_slice(&theirs.new[at]);
    }
    let attacked = Attacked { bytes, blocks: vec![(CHANGED, Some(contents(CHANGED, 2)))] };
    look_at(&copies, &attacked, WriteMode::Journal, Nothing, "no salt");
}

#[test]
fn a_forger_may_write_where_discards_are_allowed() {
    for column in [HASH, KEYED, KEYED_MAC, AEAD, NONE] {
        let copies = Copies::of(column, true);
        let mut attacked = data_byte(&copies);
        attacked.bytes[copies.places(5)[1].clone()].fill(DISCARDED);
        let seen = if column.name == "none" { Nothing } else { Fails };
        look_at(&copies, &attacked, WriteMode::Journal, seen, column.name);
        let mut options = column.options(WriteMode::Journal);
        options.allow_discards = true;
        match open(&column, &attacked.bytes, &options) {
            Ok(mut volume) => assert!(volume.read(5).is_ok_and(|data| data != contents(5, 1))),
            Err((e, _)) => assert_eq!((e.kind(), column.hash), (ErrorKind::BadOption, None)),
        }
    }
}

#[test]
fn a_journal_that_is_refused_leaves_what_is_in_place_for_recovery() {
    for column in COLUMNS {
        let copies = Copies::of(column, true);
        let attacked = commit_id(&copies);
        let volume = open(&column, &attacked.bytes, &column.options(WriteMode::Recovery));
        let mut volume = volume.map_err(|(e, _)| e).unwrap();
        for block in 0..volume.blocks() {
            assert!(volume.read(block) == Ok(contents(block, 1)), "{}: {block}", column.name);
        }
    }
}

/// The bit without which the superblock has no MAC.
const FIXED_HMAC: usize = 24 * 8 + 4;

#[test]
fn the_flag_that_gives_the_superblock_its_mac_can_be_taken_away() {
    for (column, seen) in [(AEAD_MAC, Nothing), (KEYED_MAC, Fails)] {
        let copies = Copies::of(column, true);
        let mut attacked = cut_and_said(&copies);
        look_at(&copies, &attacked, WriteMode::Journal, TAG, column.name);
        attacked.bytes[FIXED_HMAC / 8] ^= 1 << (FIXED_HMAC % 8);
        // Salt and MAC belong together: recalculated tags have neither now.
        let blocks = (0..copies.geometry.provided()).map(|block| (block, Some(contents(block, 1))));
        attacked.blocks = blocks.collect();
        look_at(&copies, &attacked, WriteMode::Journal, seen, column.name);
        // The attack does not work together with a recalculation.
        attacked.bytes[24] |= u8::try_from(Flags::RECALCULATING.0).unwrap();
        if column.hash.is_some() {
            look_at(&copies, &attacked, WriteMode::Journal, KEY, column.name);
        }
    }
}

#[test]
fn no_bit_of_a_superblock_makes_wrong_data_right() {
    for column in [HASH, KEYED, AEAD, AEAD_MAC, KEYED_MAC] {
        let copies = Copies::of(column, true);
        let (mut opened, mut lost) = (0, 0);
        for bit in 0..64 * 8 {
            let mut bytes = copies.old.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Ok(mut volume) = open(&column, &bytes, &column.options(WriteMode::Journal)) else { continue };
            opened += 1;
            assert!(!column.mac || bit == FIXED_HMAC, "{}: bit {bit} is in the MAC", column.name);
            let blocks = volume.blocks();
            for block in [0, 5, CHANGED, 63, 64, 130].into_iter().filter(|block| *block < blocks) {
                match volume.read(block) {
                    Ok(data) => assert!(data == contents(block, 1), "{}: bit {bit}: {block}", column.name),
                    Err(e) => {
                        assert_eq!(e, underseal_datapath::ErrorKind::Integrity);
                        lost += 1;
                    }
                }
            }
        }
        assert!(column.mac || (opened > 0 && lost > 0), "{}: {opened}, {lost}", column.name);
    }
}

#[test]
fn a_header_that_names_another_type_makes_a_forger_s_data_be_read() {
    // AES-GCM encrypts as CTR does, from its second counter on: with the type changed to `none`, an
    // attacker can flip any bit.
    let copies = Copies::of(AEAD, true);
    let mut bytes = copies.old.clone();
    let [data, tuple] = copies.places(5);
    let iv = bytes[tuple.start + 16..tuple.end].to_vec();
    bytes[tuple.start..tuple.start + 12].copy_from_slice(&iv);
    bytes[tuple.start + 12..tuple.start + 16].copy_from_slice(&2_u32.to_be_bytes());
    bytes[data.start + 100] ^= 0x20;
    let ctr = Column {
        cipher: ("capi:ctr(aes)-random", 32),
        beside: Some((28, underseal_cipher::IntegrityKind::None)),
        ..NONE
    };
    let mut volume = open(&ctr, &bytes, &ctr.options(WriteMode::Journal)).map_err(|(e, _)| e).unwrap();
    let mut wanted = contents(5, 1);
    wanted[100] ^= 0x20;
    assert!(volume.read(5) == Ok(wanted), "it is read as the forger wanted it");
}

#[test]
fn a_volume_that_was_cut_short_says_how_large_it_was() {
    let copies = Copies::of(AEAD, true);
    for len in [0, 1 << 9, 4 << 10, 8 << 10, 100 << 10, 400 << 10, SIZE - 16384] {
        let bytes = &copies.old[..len];
        let Err((e, _)) = open(&AEAD, bytes, &AEAD.options(WriteMode::Journal)) else {
            panic!("{len} bytes open")
        };
        let text = underseal_error::with_causes(&e).to_string();
        assert_eq!(e.kind(), ErrorKind::TooSmall, "{text}");
        assert!(text.contains(&format!("{} sectors", len / 512)), "{text}");
    }
    // The rest can be read.
    let bytes = &copies.old[..SIZE - (128 << 10)];
    let recovery = open(&AEAD, bytes, &AEAD.options(WriteMode::Recovery));
    let mut volume = recovery.map_err(|(e, _)| e).unwrap();
    assert!(volume.blocks() > 100 && volume.blocks() < copies.geometry.provided());
    assert!((0..volume.blocks()).all(|block| volume.read(block) == Ok(contents(block, 1))));
}
