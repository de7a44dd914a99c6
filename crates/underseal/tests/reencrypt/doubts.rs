//! Plain data that are a volume of another system, or a whole disk: encrypted after a word only.

use super::*;
use crate::control::operator::Ran;
use crate::support::output;
use crate::support::scratch::assert_same;

/// A disk of 8 MiB with noise, an MBR, and a partition from byte 1 MiB on.
fn disk() -> Vec<u8> {
    let mut disk = bytes(crate::support::seed("disk"), 8 << 20);
    disk[446..510].fill(0);
    disk[446..462].copy_from_slice(b"\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\x38\0\0");
    disk[510..512].copy_from_slice(b"\x55\xaa");
    disk
}

#[test]
fn another_systems_volume_and_a_whole_disk_are_encrypted_by_force_only() {
    let mut bitlocker = bytes(crate::support::seed("bitlocker"), 8 << 20);
    bitlocker[3..11].copy_from_slice(b"-FVE-FS-");
    for (plain, said, remedy) in [
        (bitlocker, "a BitLocker volume, which is encrypted already", "decrypt it by its own system first"),
        (disk(), "a partition table", "the device of one partition"),
    ] {
        let scratch = Scratch::new();
        let (image, header) = (scratch.file("image", &plain), scratch.path("header"));
        let volume = Volume::at(&scratch, "image").with(["--header", text(&header)]);
        let encrypt = format!("--encrypt {}", CHEAP_PBKDF2.join(" "));
        let refused = Ran::from(output(&mut reencrypt(&volume, &encrypt)));
        assert_eq!(refused.code, Some(2), "{refused:?}");
        for words in [said, remedy, "--force"] {
            assert!(refused.err.contains(words), "{words}: {refused:?}");
        }
        assert_same(&std::fs::read(&image).unwrap(), &plain, "refused");
        assert!(!header.exists());
        let forced = Ran::from(output(&mut reencrypt(&volume, &format!("{encrypt} --force"))));
        assert!(forced.code == Some(0) && forced.err.contains(said), "{forced:?}");
        assert_same(&volume.read_all(), &plain, "encrypted");
    }
}

#[test]
fn a_partition_of_a_disk_is_encrypted_where_it_lies() {
    let scratch = Scratch::new();
    let plain = disk();
    let (image, header) = (scratch.file("image", &plain), scratch.path("header"));
    let volume = Volume::at(&scratch, "image").with(["--header", text(&header)]);
    let cheap = CHEAP_PBKDF2.join(" ");
    // The partition table is in front of the data, and stays.
    run(&mut reencrypt(&volume, &format!("--encrypt --data-offset 1M {cheap}")));
    assert_same(&std::fs::read(&image).unwrap()[..1 << 20], &plain[..1 << 20], "in front");
    assert_same(&volume.read_all(), &plain[1 << 20..], "encrypted");
}
