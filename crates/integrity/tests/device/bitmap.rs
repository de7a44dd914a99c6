//! Volumes with a remaining bitmap.

use super::*;

/// A volume of mode B with one dirty region, whose tags may be wrong: its first 64 sectors. Blocks
/// 3 and 8 were written before.
fn left_with_a_bitmap() -> Arc<dyn Device> {
    let below: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    let options = OpenSettings { sectors_per_bit: Some(64), ..options(WriteMode::Bitmap, "crc32c") };
    make(&*below, &options, 4096, None);
    let volume = open(below.clone(), &options);
    wait_until("tags are made anew", || volume.status().recalculated.is_none());
    for number in [3, 8] {
        Blocking::new(&volume).unwrap().write(number * 4096, &block(4096, number, 7), false).unwrap();
    }
    volume.close().unwrap();
    let faulty = Arc::new(FaultDevice::with_volatile_cache(below.clone(), 1, 512));
    let control = faulty.control();
    let volume = open(faulty, &options);
    Blocking::new(&volume).unwrap().write(4096, &block(4096, 1, 8), true).unwrap();
    control.power_cut().unwrap();
    assert!(volume.close().is_err());
    control.power_on();
    below
}

/// Changes a byte of a block that occurs once on the device.
fn damage(device: &dyn Device, block: &[u8]) {
    let (mut way, mut found) = (Blocking::new(device).unwrap(), vec![0; block.len()]);
    let mut is_there = |at: &u64| {
        way.read(*at, &mut found).unwrap();
        found == block
    };
    let places: Vec<u64> = (0..SIZE as u64 - 4096).step_by(512).filter(&mut is_there).collect();
    let [at] = places[..] else { panic!("the block lies at {places:?}") };
    let mut damaged = block.to_vec();
    damaged[0] ^= 1;
    way.write(at, &damaged, true).unwrap();
}

#[test]
fn who_only_reads_a_volume_with_a_bitmap_goes_without_tags_where_that_says_so_only() {
    for mode in [WriteMode::Journal, WriteMode::Bitmap, WriteMode::Direct] {
        let below = left_with_a_bitmap();
        damage(&*below, &block(4096, 3, 7));
        damage(&*below, &block(4096, 8, 7));
        let strict = Arc::new(Strict { inner: below, block: 512, read_only: true });
        let settings = RunSettings::default();
        let volume =
            IntegrityDevice::open_to_read(strict, None, &options(mode, "crc32c"), &settings).unwrap();
        let mut way = Blocking::new(&volume).unwrap();
        let mut data = vec![0; 4096];
        way.read(3 * 4096, &mut data).unwrap();
        assert!(way.read(8 * 4096, &mut data).unwrap_err().mismatch_at().is_some(), "{mode:?}");
        way.read(9 * 4096, &mut data).unwrap();
    }
}

#[test]
fn a_block_beside_one_without_a_tag_is_compared() {
    let below = left_with_a_bitmap();
    let strict = Arc::new(Strict { inner: below.clone(), block: 512, read_only: true });
    let options = options(WriteMode::Bitmap, "crc32c");
    let volume = IntegrityDevice::open_to_read(strict, None, &options, &RunSettings::default()).unwrap();
    assert_eq!(volume.unverified(), 64 * 512);
    damage(&*below, &block(4096, 3, 7));
    let (mut way, mut data) = (Blocking::new(&volume).unwrap(), vec![0; 16 * 4096]);
    way.read(0, &mut data).unwrap();
    damage(&*below, &block(4096, 8, 7));
    assert_eq!(way.read(0, &mut data).unwrap_err().mismatch_at(), Some(8 * 4096));
    drop(way);
    assert_eq!(volume.status().mismatches, 1);
}

#[test]
fn a_tag_that_was_read_before_is_read_again_once_it_is_forgotten() {
    let below: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    let options = options(WriteMode::Direct, "crc32c");
    make(&*below, &options, 4096, None);
    let volume = open(below.clone(), &options);
    wait_until("tags are made anew", || volume.status().recalculated.is_none());
    let (mut way, mut data) = (Blocking::new(&volume).unwrap(), vec![0; 4096]);
    let mut written = |version| {
        way.write(4 * 4096, &block(4096, 4, version), true).unwrap();
        let mut bytes = vec![0; SIZE];
        Blocking::new(&*below).unwrap().read(0, &mut bytes).unwrap();
        bytes
    };
    let (first, second) = (written(1), written(2));
    // The tag lies before the data.
    let at = (0..SIZE).find(|at| first[*at] != second[*at]).unwrap();
    let mut sector = second[at / 512 * 512..][..512].to_vec();
    sector[at % 512] ^= 1;
    Blocking::new(&*below).unwrap().write((at / 512 * 512) as u64, &sector, true).unwrap();
    way.read(4 * 4096, &mut data).unwrap();
    volume.forget();
    assert_eq!(way.read(4 * 4096, &mut data).unwrap_err().mismatch_at(), Some(4 * 4096));
    way.write(4 * 4096, &block(4096, 4, 3), false).unwrap();
    volume.forget();
    way.read(4 * 4096, &mut data).unwrap();
    assert_eq!(data, block(4096, 4, 3));
}
