//! The seeds of the fuzzer of the C functions.
//!
//!   exercise    the fuzzer's function

mod exercise;

#[test]
fn the_fuzzers_seeds_unlock_and_reencrypt_volumes_and_end_well() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/c_edge");
    let (mut unlocked, mut reencrypted) = (0, 0);
    for seed in std::fs::read_dir(seeds).unwrap() {
        let path = seed.unwrap().path();
        let reached = exercise::calls(&std::fs::read(&path).unwrap());
        unlocked += u32::from(reached.unlocked);
        reencrypted += u32::from(reached.reencrypted);
    }
    assert!(unlocked >= 3, "{unlocked} of the seeds unlock a volume");
    assert!(reencrypted >= 1, "no seed reencrypts");
}

#[test]
fn no_sequence_of_calls_panics() {
    let mut dice = 1_u64;
    for len in 0..3000 {
        let bytes: Vec<u8> = (0..len % 300)
            .map(|_| {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                dice.to_le_bytes()[7]
            })
            .collect();
        let _ = exercise::calls(&bytes);
    }
}
