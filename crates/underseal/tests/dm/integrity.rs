//! integritysetup's options here and on a kernel with dm-integrity.

use std::fs;

use crate::dm::mapper::Mapper;
use crate::guest::Guest;
use crate::support::volume::text;

/// The same commands on both sides print the same; and what one side has formatted and written the
/// other side opens and reads, with every tag right.
#[test]
fn integritysetups_devices_are_the_kernels_in_both_directions() {
    let Some(mapper) = Mapper::new() else { return };
    let scratch = &mapper.scratch;
    scratch.file("integrity.sh", include_bytes!("integrity.sh"));
    for folder in ["ours", "theirs"] {
        fs::create_dir(scratch.path(folder)).unwrap();
    }
    let ours = mapper.script("bash integrity.sh make ours 2>&1 | sed \"s/$N/cmp/g\"");
    let folder = text(scratch.folder());
    let mut guest = Guest::without_hardware(scratch);
    guest.modules(&["dm_integrity", "crc32c_generic", "sha256_generic", "ctr", "aes_generic"]);
    guest.task("make", &format!("N=cmp bash integrity.sh make {folder}/theirs > made 2>&1"));
    guest.task("check", &format!("N=cmp bash integrity.sh check {folder}/ours > checked 2>&1"));
    guest.boot();
    let read = |name: &str| fs::read_to_string(scratch.path(name)).unwrap();
    let theirs = read("made");
    assert!(theirs.contains("journal watermark: 30%"), "{theirs}");
    for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {}\n{theirs}\n{}", number + 1, mapper.log());
    }
    assert_eq!(ours.lines().count(), theirs.lines().count(), "{ours}\n{theirs}");
    let checked = read("checked");
    assert_eq!(mapper.script("bash integrity.sh check theirs 2>&1"), checked, "{}", mapper.log());
    let said: Vec<_> = checked.lines().filter(|line| !line.starts_with("== ")).collect();
    assert_eq!(said, ["not opened"], "{checked}");
}
