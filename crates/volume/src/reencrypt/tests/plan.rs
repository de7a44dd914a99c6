//! The arithmetic, tried on a disk of blocks that know their contents.

use proptest::prelude::*;

use super::*;

const BLOCK: u64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    /// A block of the volume in its old form, whose only copy this is.
    Old(u64),
    New(u64),
}

fn blocks(range: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
    (range.start / BLOCK)..(range.end / BLOCK)
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sectors = prop::sample::select(vec![512u32, 1024, 4096]);
    let all = (0..6usize, sectors.clone(), sectors, 1..40u64, 1..9u64, 1..12u64, 0..3u8, any::<bool>());
    all.prop_map(|(kind, old, new, units, hot, shift, guard, backward)| {
        let unit = u64::from(old.max(new));
        let protection = match guard {
            0 => Protection::None,
            1 => checksum(unit << (hot % 2)),
            _ => Protection::Journal,
        };
        let (size, shift) = (units * unit, shift * unit);
        let mut shape = match kind {
            0 | 1 => in_place(form(XTS, old, 4096), form(XTS, new, 4096), size, protection),
            2 => encrypt_shifted(shift, size),
            3 => {
                let moved = (hot * 512).min(size).min(shift);
                decrypt_shifted(shift, moved, size, protection)
            }
            4 => shifted(form(XTS, old, 8192), form(XTS, new, 8192 + shift), size),
            _ => shifted(form(XTS, old, 8192 + shift), form(XTS, new, 8192), size),
        };
        if kind < 2 {
            // Blocks of checksums may be larger than the unit of the size.
            shape.direction = if backward { Direction::Backward } else { Direction::Forward };
            shape.hot_zone = hot * shape.alignment;
        } else {
            shape.hot_zone = (hot * unit).max(shape.alignment);
        }
        // The moved part of a decryption is a whole number of blocks only if these are sectors.
        if kind == 3 && guard == 1 {
            (shape.protection, shape.alignment) = (checksum(512), 512);
        }
        shape
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_byte_is_made_new_once_and_never_over_another_that_is_only_there(shape in shapes()) {
        let plan = shape.plan();
        plan.check().unwrap();
        let mut disk = vec![Holds::Nothing; usize::try_from(plan.end() / BLOCK).unwrap()];
        let place = |x: u64, lower: u64| usize::try_from(x + lower / BLOCK).unwrap();
        let first = plan.moved.map_or(0, |moved| moved.len);
        for x in blocks(0..plan.size) {
            let lower = if x * BLOCK < first { plan.moved.unwrap().lower } else { plan.old.lower };
            disk[place(x, lower)] = Holds::Old(x);
        }
        let mut progress = Progress::default();
        let mut steps = 0;
        while let Some(step) = plan.step(progress) {
            prop_assert!(!step.is_empty());
            prop_assert_eq!(step.before(), progress);
            plan.check_progress(step.finished()).unwrap();
            if step.protection == Protection::None {
                plan.check_progress(step.started()).unwrap_err();
            } else {
                plan.check_progress(step.started()).unwrap();
                prop_assert_eq!(plan.step(step.started()), Some(step.clone()));
            }
            prop_assert!(step.guard_len(step.len()) <= plan.area);
            let is_moved = step.range.start < first;
            prop_assert!(is_moved || step.len() <= plan.hot_zone.max(plan.shift().unwrap_or(0)));
            // The bytes that are read ahead stay unchanged.
            if let Some(next) = plan.step(step.finished()) {
                let (source, target) = (next.source, step.target);
                prop_assert!(source + next.len() <= target || target + step.len() <= source);
            }
            let lower = |place: u64| place - step.range.start;
            for x in blocks(step.range.clone()) {
                let source = usize::try_from((step.source - step.range.start) / BLOCK + x);
                if step.source >= step.range.start {
                    prop_assert_eq!(disk[source.unwrap()], Holds::Old(x));
                }
            }
            for x in blocks(step.range.clone()) {
                let target = place(x, lower(step.target));
                match disk[target] {
                    Holds::Old(y) if y == x && step.source == step.target => {}
                    Holds::Nothing => {}
                    // The step has copied these bytes already.
                    Holds::Old(y) => {
                        let done = disk[place(y, plan.new.lower)];
                        prop_assert_eq!(done, Holds::New(y), "{:?} writes over {}", &step, y);
                    }
                    Holds::New(y) => prop_assert!(false, "{:?} writes over the new {}", &step, y),
                }
                disk[target] = Holds::New(x);
            }
            for state in [step.started(), step.finished()] {
                agree(&plan, state, &step, &disk)?;
            }
            progress = step.finished();
            steps += 1;
            prop_assert!(steps <= plan.size / BLOCK);
        }
        prop_assert_eq!(progress, Progress { done: plan.size, hot: None });
        for x in blocks(0..plan.size) {
            prop_assert_eq!(disk[place(x, plan.new.lower)], Holds::New(x));
        }
        for (at, holds) in (0..).step_by(512).zip(&disk) {
            let named = plan.leftovers().iter().any(|range| range.contains(&at));
            match holds {
                Holds::Old(_) => prop_assert!(named, "byte {} is left over", at),
                Holds::New(_) => prop_assert!(!named, "byte {} is in use", at),
                Holds::Nothing => {}
            }
        }
    }

    #[test]
    fn progress_from_a_disk_is_refused_or_leads_to_steps_of_the_plan(
        shape in shapes(),
        done in 0..200u64,
        hot in prop::option::of(0..200u64),
        tiny in any::<bool>(),
    ) {
        let plan = shape.plan();
        let scale = if tiny { 1 } else { BLOCK };
        let progress = Progress { done: done * scale, hot: hot.map(|hot| hot * scale) };
        if plan.check_progress(progress).is_ok() {
            let parts = plan.parts(progress);
            prop_assert_eq!(parts.iter().map(|part| part.range.end - part.range.start).sum::<u64>(), plan.size);
            prop_assert!(plan.step(progress).is_none_or(|step| step.range.end <= plan.size));
            plan.volume(progress).unwrap();
        }
    }
}

/// Numbers that a disk may hold, and that the arithmetic may fail with.
fn edges() -> impl Strategy<Value = u64> {
    let near = prop::sample::select(vec![0, 512, 4096, 65_536, 1 << 20, 1 << 62, 1 << 63, u64::MAX]);
    prop_oneof![
        (near, 0..3u64, any::<bool>()).prop_map(|(near, by, below)| {
            let by = 512 * by + u64::from(by == 2);
            if below { near.wrapping_sub(by) } else { near.wrapping_add(by) }
        }),
        (0..64u64).prop_map(|i| i * 512),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn whatever_a_disk_says_is_refused_or_can_be_reckoned_with(
        (size, old, new) in (edges(), edges(), edges()),
        (area, hot_zone, alignment) in (edges(), edges(), edges()),
        moved in prop::option::of((edges(), edges())),
        (guard, block, backward) in (0..4u8, edges(), any::<bool>()),
        (done, hot) in (edges(), prop::option::of(edges())),
        fits in 0..4u8,
    ) {
        let mut plan = in_place(form(XTS, 512, 0), form(XTS, 4096, 0), 4096, Protection::None).plan();
        (plan.size, plan.old.lower, plan.new.lower) = (size, old, new);
        (plan.area, plan.hot_zone, plan.alignment) = (area, hot_zone, alignment);
        plan.moved = moved.map(|(lower, len)| Moved { lower, len });
        plan.protection = match guard {
            0 => Protection::None,
            1 => checksum(block),
            2 => Protection::Journal,
            _ => Protection::Source,
        };
        plan.direction = if backward { Direction::Backward } else { Direction::Forward };
        if fits > 0 {
            // Otherwise almost all of them are refused.
            plan.size = (size & !4095).clamp(4096, 1 << 62);
            plan.alignment = alignment.clamp(4096, 1 << 61).next_power_of_two();
            plan.hot_zone = plan.alignment * (1 + hot_zone % 2);
            (plan.old.lower, plan.new.lower) = (old % (1 << 62), new % (1 << 62));
            plan.area = area.max(4096);
        }
        if fits > 1 {
            plan.new.lower = plan.old.lower;
            plan.moved = None;
        }
        if plan.check().is_err() {
            return Ok(());
        }
        plan.volume(Progress::default()).unwrap();
        prop_assert!(plan.end() <= i64::MAX as u64);
        prop_assert!(plan.leftovers().iter().all(|place| place.start < place.end && place.end <= plan.end()));
        for progress in [Progress::default(), Progress { done, hot }] {
            if plan.check_progress(progress).is_err() {
                continue;
            }
            if let Some(step) = plan.step(progress) {
                prop_assert!(!step.is_empty() && step.range.end <= plan.size);
                prop_assert!(step.source + step.len() <= plan.end() && step.target + step.len() <= plan.end());
                prop_assert!(step.guard_len(step.len()) <= plan.area);
                plan.check_progress(step.finished()).unwrap();
            }
            prop_assert_eq!(plan.parts(progress).last().map(|part| part.range.end), Some(plan.size));
        }
    }
}

/// Checks that the parts match the contents of the disk.
fn agree(
    plan: &Plan,
    progress: Progress,
    step: &Step,
    disk: &[Holds],
) -> std::result::Result<(), TestCaseError> {
    let mut end = 0;
    let mut before = None;
    for part in plan.parts(progress) {
        prop_assert_eq!(part.range.start, end);
        prop_assert!(part.range.end > end);
        prop_assert!(before != Some(part.which), "two parts are one");
        (before, end) = (Some(part.which), part.range.end);
        prop_assert_eq!(part.which == Which::Hot, part.range == step.range && progress.hot.is_some());
        for (i, x) in blocks(part.range.clone()).enumerate() {
            let holds = disk[usize::try_from(part.lower / BLOCK).unwrap() + i];
            let right = match part.which {
                Which::Old | Which::Moved => Holds::Old(x),
                Which::New | Which::Hot => Holds::New(x),
            };
            prop_assert_eq!(holds, right, "{:?} at block {}", &part, x);
        }
    }
    prop_assert_eq!(end, plan.size);
    Ok(())
}

/// The rows of the table of shapes, as LUKS2 writes them.
#[test]
fn parts_have_the_shapes_of_the_table() {
    let parts = |shape: &Shape, done, hot| {
        let parts = shape.plan().parts(Progress { done, hot });
        parts.into_iter().map(|part| (part.which, part.range.start, part.lower)).collect::<Vec<_>>()
    };
    use Which::{Hot, Moved as Aside, New, Old};
    let mut shape = in_place(form(XTS, 512, 8192), form(XTS, 512, 8192), 4096, Protection::Journal);
    assert_eq!(parts(&shape, 0, None), [(Old, 0, 8192)]);
    assert_eq!(parts(&shape, 1024, None), [(New, 0, 8192), (Old, 1024, 9216)]);
    assert_eq!(parts(&shape, 1024, Some(512)), [(New, 0, 8192), (Hot, 1024, 9216), (Old, 1536, 9728)]);
    assert_eq!(parts(&shape, 4096, None), [(New, 0, 8192)]);
    shape.direction = Direction::Backward;
    assert_eq!(parts(&shape, 1024, Some(512)), [(Old, 0, 8192), (Hot, 2560, 10752), (New, 3072, 11264)]);
    // As in the vector enc-hot: the hot part is at its new place.
    let shape = encrypt_shifted(184_320, 225_280);
    assert_eq!(parts(&shape, 0, None), [(Aside, 0, 593_920), (Old, 184_320, 184_320)]);
    assert_eq!(
        parts(&shape, 0, Some(184_320)),
        [(Aside, 0, 593_920), (Old, 184_320, 184_320), (Hot, 225_280, 409_600)]
    );
    assert_eq!(parts(&shape, 225_280, None), [(Aside, 0, 593_920), (New, 184_320, 368_640)]);
    assert_eq!(parts(&shape, 225_280, Some(184_320)), [(Hot, 0, 184_320), (New, 184_320, 368_640)]);
    assert_eq!(shape.plan().leftovers(), [0..184_320, 593_920..778_240]);
    // As in the vector dec-hot.
    let shape = decrypt_shifted(524_288, 32_768, 163_840, checksum(512));
    assert_eq!(parts(&shape, 0, Some(131_072)), [(Aside, 0, 0), (Hot, 32_768, 32_768)]);
    assert_eq!(parts(&shape, 131_072, Some(32_768)), [(Hot, 0, 0), (New, 32_768, 32_768)]);
    assert_eq!(shape.plan().leftovers().as_slice(), std::slice::from_ref(&(163_840..688_128)));
    // As in the vector shift-last.
    let shape = shifted(form(XTS, 512, 524_288), form(XTS, 512, 589_824), 98_304);
    let last = shape.plan().step(Progress { done: 65_536, hot: Some(32_768) }).unwrap();
    assert_eq!((last.range, last.source, last.target), (0..32_768, 524_288, 589_824));
    assert_eq!(parts(&shape, 65_536, Some(32_768)), [(Hot, 0, 589_824), (New, 32_768, 622_592)]);
}

#[test]
fn plans_that_would_lose_bytes_are_refused() {
    let fine = in_place(form(XTS, 512, 8192), form(XTS, 4096, 8192), 65_536, checksum(4096)).plan();
    fine.check().unwrap();
    let encrypt = encrypt_shifted(8192, 65_536).plan();
    let decrypt = decrypt_shifted(8192, 4096, 65_536, Protection::Journal).plan();
    type Change = fn(&mut Plan);
    let cases: [(&str, &Plan, Change); 23] = [
        ("no whole number", &fine, |plan| plan.size += 512),
        ("no whole number", &fine, |plan| plan.size = 0),
        ("beyond any device", &fine, |plan| plan.old.lower = u64::MAX - 4096),
        ("beyond any device", &fine, |plan| plan.size = !4095),
        ("cannot be aligned", &fine, |plan| plan.alignment = 2048),
        ("cannot be aligned", &fine, |plan| plan.alignment = 12_288),
        ("cannot be aligned", &fine, |plan| plan.alignment = 0),
        ("no multiple of", &fine, |plan| plan.hot_zone = 0),
        ("no multiple of", &fine, |plan| plan.hot_zone = 6144),
        ("blocks of 512 bytes", &fine, |plan| plan.protection = checksum(512)),
        ("blocks of 131072 bytes", &fine, |plan| {
            (plan.protection, plan.alignment, plan.hot_zone) = (checksum(131_072), 131_072, 131_072);
        }),
        ("blocks of 8192 bytes", &fine, |plan| plan.protection = checksum(8192)),
        ("too small to protect", &fine, |plan| plan.area = 31),
        ("too small to protect", &fine, |plan| (plan.protection, plan.area) = (Protection::Journal, 4095)),
        ("not protected by it", &fine, |plan| plan.protection = Protection::Source),
        ("encrypted already", &fine, |plan| plan.mode = Mode::Encrypt),
        ("stay encrypted", &fine, |plan| plan.mode = Mode::Decrypt),
        ("nothing else is", &fine, |plan| plan.moved = Some(Moved { lower: 1 << 20, len: 4096 })),
        ("done backward", &encrypt, |plan| plan.direction = Direction::Forward),
        ("done backward", &decrypt, |plan| plan.direction = Direction::Backward),
        ("lies on other bytes", &encrypt, |plan| plan.moved = Some(Moved { lower: 65_536, len: 8192 })),
        ("does not fit", &encrypt, |plan| plan.moved = Some(Moved { lower: 1 << 20, len: 1 << 19 })),
        ("too small to protect", &decrypt, |plan| plan.area = 2048),
    ];
    for (why, of, change) in cases {
        let mut plan = of.clone();
        change(&mut plan);
        let refused = plan.check().unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::BadLayout);
        assert!(refused.to_string().contains(why), "{why}: {refused}");
    }
}

#[test]
fn hot_zones_keep_to_memory_alignment_and_what_is_asked_for() {
    let memory = 8 << 30;
    assert_eq!(hot_zone(None, 4096, memory), 64 << 20);
    assert_eq!(hot_zone(Some(5 << 30), 4096, memory), 1 << 30);
    assert_eq!(hot_zone(Some(1 << 30), 4096, 1 << 30), 256 << 20);
    assert_eq!(hot_zone(Some(9000), 4096, memory), 8192);
    assert_eq!(hot_zone(Some(1), 4096, memory), 4096);
}

#[test]
fn a_plan_says_which_torn_writes_it_survives() {
    let atomic = |old, new, protection| in_place(old, new, 65_536, protection).plan().atomic();
    let (small, large) = (form(XTS, 512, 0), form(XTS, 4096, 0));
    assert_eq!(atomic(small, large, Protection::Journal), Some(512));
    assert_eq!(atomic(small, large, checksum(4096)), Some(512));
    assert_eq!(atomic(form(CBC, 4096, 0), large, checksum(4096)), Some(4096));
    assert_eq!(atomic(form(CBC, 512, 0), large, checksum(4096)), Some(512));
    assert_eq!(atomic(small, form(XTS, 65_536, 0), checksum(65_536)), Some(65_536));
    assert_eq!(atomic(small, large, Protection::None), None);
    assert_eq!(encrypt_shifted(8192, 65_536).plan().atomic(), Some(512));
}

#[test]
fn checksums_mend_what_is_torn_where_ciphers_decrypt_its_parts() {
    for (cipher, sector_size, block, mends) in [
        ("aes-xts-plain64", SectorSize::S4096, 4096, true),
        ("aes-xts-plain64", SectorSize::new(65_536).unwrap(), 65_536, false),
        ("aes-cbc-essiv:sha256", SectorSize::S512, 4096, true),
        ("aes-cbc-essiv:sha256", SectorSize::S4096, 4096, false),
        ("xchacha12,aes-adiantum-plain64", SectorSize::S4096, 4096, false),
        ("cipher_null-ecb", SectorSize::S512, 4096, true),
    ] {
        let found = checksums_mend(block, &cipher.parse().unwrap(), sector_size).unwrap();
        assert_eq!(found, mends, "{cipher}, {block}");
    }
}
