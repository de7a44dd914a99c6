//! The fuzzer's use of its bytes. Shared between `fuzz/` and the tests that replay its seeds and
//! findings.

#[path = "memory.rs"]
pub(crate) mod memory;

use memory::Memory;
use underseal_integrity::{
    Disk, Disks, JournalFormat, JournalRound, KeyedHash, NewSuperblock, OpenSettings, Overlay, VolumeReader,
    WriteMode, format, look, open,
};

const MODES: [WriteMode; 5] =
    [WriteMode::Journal, WriteMode::Bitmap, WriteMode::Direct, WriteMode::Recovery, WriteMode::Inline];
/// The size of a small volume, for many runs, with room for a few sections of the journal.
const SIZE: usize = 512 << 10;

fn options(mode: WriteMode) -> OpenSettings {
    OpenSettings { hash: KeyedHash::new("crc32c", None).ok(), ..OpenSettings::new(mode) }
}

/// A superblock with any first 64 bytes except the magic, over zeros: the first byte chooses the
/// mode, and whether there is a metadata device.
pub(crate) fn superblock(bytes: &[u8]) -> bool {
    let Some((how, bytes)) = bytes.split_first() else { return false };
    let mode = MODES[usize::from(*how) % MODES.len()];
    let mut head = vec![0; SIZE];
    head[..8].copy_from_slice(b"integrt\0");
    let len = bytes.len().min(SIZE - 8);
    head[8..8 + len].copy_from_slice(&bytes[..len]);
    let (head, data) = (Memory::new(head), Memory::new(vec![0; SIZE]));
    let disks = match how & 0x80 {
        0 => Disks::one(&head),
        _ => Disks { data: &data, meta: Some(&head) },
    };
    let Ok(opened) = look(&disks, &options(mode)) else { return false };
    // All positions of the geometry are on the devices.
    let (geometry, sizes) = (&opened.geometry, disks.sizes().unwrap());
    let last = geometry.place(geometry.provided() - geometry.block_sectors());
    assert!(last.data + geometry.block_size() as u64 <= sizes.data);
    assert!(last.tag + geometry.tag_size() as u64 <= sizes.meta.unwrap_or(sizes.data));
    opens(&disks, mode)
}

/// The journal of a small volume: any bytes, or sections with right commit ids; the first byte
/// chooses.
pub(crate) fn journal(bytes: &[u8]) -> bool {
    let Some((how, bytes)) = bytes.split_first() else { return false };
    let mode = MODES[usize::from(*how) % 3];
    let format_options = NewSuperblock {
        journal_sectors: Some(600),
        block_size: 512 << (how >> 2 & 3),
        ..NewSuperblock::default()
    };
    let disk = Memory::new(vec![0; SIZE]);
    let disks = Disks::one(&disk);
    let superblock = format_options.superblock(&options(mode), disks.sizes().unwrap()).unwrap();
    format(&disks, &options(mode), &superblock).unwrap();
    let geometry = look(&disks, &options(mode)).unwrap().geometry;
    if how & 0x80 == 0 {
        let len = bytes.len().min(usize::try_from(geometry.journal_bytes()).unwrap());
        disk.write_at(geometry.journal_offset(), &bytes[..len]).unwrap();
        return opens(&disks, mode);
    }
    // A byte is the round of a section, the next one the number of its sectors with another; then
    // follow entries of a byte each.
    let journal = JournalFormat::new(&geometry, &superblock, &options(mode)).unwrap();
    let tags = look(&disks, &options(mode)).unwrap().tags.unwrap();
    let mut dice = bytes.iter().copied();
    for index in 0..geometry.sections() {
        let mut section = journal.section();
        geometry.section().clear(&mut section);
        let (round, torn) = (dice.next().unwrap_or(0), dice.next().unwrap_or(0));
        for n in 0..geometry.section().entries() {
            let Some(what) = dice.next().filter(|what| *what != 0) else { break };
            // Some entries are beyond the end, or where no block begins.
            let sector = if what == 255 { u64::from(what) << 30 | 1 } else { u64::from(what) * 8 };
            let block = vec![what; geometry.block_size()];
            let mut tag = vec![0; geometry.tag_size()];
            tags.make(sector, &block, &mut tag);
            if what == 254 {
                tag[0] ^= 1;
            }
            geometry.section().fill(&mut section, n, sector, &block, &tag);
        }
        let mut sealed = section.clone();
        journal.seal(index, JournalRound::new(round), &mut sealed).unwrap();
        let mut other = section;
        journal.seal(index, JournalRound::new(round >> 2), &mut other).unwrap();
        let from = sealed.len() - (usize::from(torn) * 512).min(sealed.len());
        sealed[from..].copy_from_slice(&other[from..]);
        disk.write_at(geometry.section_offset(index), &sealed).unwrap();
    }
    opens(&disks, mode)
}

/// Opens the volume over the unchanged bytes, and reads all: a refusal writes nothing, and a second
/// opening has nothing to do.
fn opens(disks: &Disks<'_>, mode: WriteMode) -> bool {
    let (data, meta) = (Overlay::new(disks.data), disks.meta.map(Overlay::new));
    let over = Disks { data: &data, meta: meta.as_ref().map(|meta| meta as &dyn Disk) };
    let bytes = || {
        let of = |disk: &dyn Disk| {
            let mut bytes = vec![0; SIZE];
            disk.read_at(0, &mut bytes).unwrap();
            bytes
        };
        (of(over.data), over.meta.map(of))
    };
    let before = bytes();
    let mut opened = match open(&over, &options(mode)) {
        Ok(opened) => opened,
        Err(_) => {
            assert!(bytes() == before, "what is refused was changed");
            return false;
        }
    };
    let is_inline = mode == WriteMode::Inline;
    let recalculated = opened.recalculate(&over, &options(mode), |_| true);
    assert!(recalculated.is_ok() || is_inline);
    let mut plain = vec![0; usize::try_from(opened.geometry.provided() * 512).unwrap()];
    let mut bad = Vec::new();
    VolumeReader::new(over, &opened, &options(mode)).read(0, &mut plain, &mut bad).unwrap();
    opened.close_bitmap(&over, &options(mode)).unwrap();
    let once = bytes();
    let mut again = open(&over, &options(mode)).unwrap();
    assert!(again.recalculate(&over, &options(mode), |_| true).is_ok() || is_inline);
    again.close_bitmap(&over, &options(mode)).unwrap();
    assert!(bytes() == once, "opening again changed something");
    true
}
