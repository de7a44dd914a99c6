//! LUKS1 headers that an attacker or a failing disk would write.

use underseal_volume::ErrorKind;

use crate::tampered::{Outcome, luks1, outcome};

#[test]
fn luks1_headers_that_break_a_rule_are_refused() {
    use Outcome::{Activate, Opens, Read, Unlock};
    let bad = || Read(ErrorKind::BadHeader);
    let word = |at: usize, value: u32| (at, value.to_be_bytes().to_vec());
    let text = |at: usize, value: &str| (at, [value.as_bytes(), &[0]].concat());
    let slot = |number: usize, field: usize| 208 + 48 * number + field;
    let rows = [
        ("version 3", vec![(7, vec![3])], Read(ErrorKind::BadHeader)),
        ("cipher unknown", vec![text(8, "rot13")], Unlock(ErrorKind::Unsupported)),
        ("cipher null", vec![text(8, "cipher_null"), text(40, "ecb")], Unlock(ErrorKind::NullCipher)),
        ("cipher empty", vec![text(8, "")], Read(ErrorKind::Unsupported)),
        ("cipher endless", vec![(8, vec![b'a'; 32])], bad()),
        ("cipher with a newline", vec![text(8, "aes\n")], Read(ErrorKind::Unsupported)),
        ("mode empty", vec![text(40, "")], Read(ErrorKind::Unsupported)),
        ("mode without IV", vec![text(40, "xts")], Read(ErrorKind::Unsupported)),
        ("mode endless", vec![(40, vec![b'a'; 32])], bad()),
        ("hash unknown", vec![text(72, "md5")], Read(ErrorKind::Unsupported)),
        ("hash endless", vec![(72, vec![b'a'; 32])], bad()),
        ("hash in capitals", vec![text(72, "SHA256")], Opens),
        ("payload in the header", vec![word(104, 1)], bad()),
        ("payload in key material", vec![word(104, 100)], bad()),
        ("payload 0", vec![word(104, 0)], Activate(ErrorKind::BadLayout)),
        ("payload beyond", vec![word(104, u32::MAX)], Activate(ErrorKind::TooSmall)),
        ("key of 0 bytes", vec![word(108, 0)], bad()),
        ("key of 63 bytes", vec![word(108, 63)], Unlock(ErrorKind::BadHeader)),
        ("key of 1025 bytes", vec![word(108, 1025)], bad()),
        ("key of 4 GiB", vec![word(108, u32::MAX)], bad()),
        ("digest wrong", vec![(112, vec![0; 20])], Unlock(ErrorKind::WrongPassphrase)),
        ("digest of 0 iterations", vec![word(164, 0)], bad()),
        ("digest of 2^32", vec![word(164, u32::MAX)], Unlock(ErrorKind::TooCostly)),
        ("UUID endless", vec![(168, vec![b'1'; 40])], bad()),
        ("UUID none", vec![text(168, "")], Opens),
        ("slot state", vec![word(slot(0, 0), 1)], bad()),
        ("no slots", vec![word(slot(0, 0), 0xDEAD)], Unlock(ErrorKind::NoKeyslot)),
        ("slot of 0 iterations", vec![word(slot(0, 4), 0)], bad()),
        ("slot of 2^32", vec![word(slot(0, 4), u32::MAX)], Unlock(ErrorKind::TooCostly)),
        ("slot in the header", vec![word(slot(0, 40), 1)], bad()),
        ("slot at 0", vec![word(slot(0, 40), 0)], bad()),
        ("slot in the data", vec![word(slot(0, 40), 4095)], bad()),
        ("slot at the end", vec![word(slot(0, 40), u32::MAX)], bad()),
        ("stripes 3999", vec![word(slot(0, 44), 3999)], bad()),
        ("stripes 0", vec![word(slot(0, 44), 0)], bad()),
        (
            "two slots in one place",
            vec![word(slot(1, 0), 0x00AC_71F3), word(slot(1, 4), 1000), word(slot(1, 40), 8)],
            bad(),
        ),
        ("a second slot", vec![word(slot(1, 0), 0x00AC_71F3), word(slot(1, 4), 1000)], Opens),
        ("a free slot's fields", vec![word(slot(5, 4), 0), word(slot(5, 40), u32::MAX)], Opens),
    ];
    let mut wrong = Vec::new();
    for (name, changes, want) in rows {
        let mut image = luks1();
        for (at, bytes) in changes {
            image[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let found = outcome(&image);
        if found != want {
            wrong.push(format!("{name}: {found:?}, not {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
