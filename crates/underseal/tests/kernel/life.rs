//! Volumes whose keyslots were added and removed, or whose headers were converted and restored, and
//! that the kernel then opens.

use crate::kernel::tables::guest;
use crate::support::volume::{PASSPHRASE, Volume, underseal};
use crate::support::{Scratch, bytes, run, seed, tool};

/// Where LUKS2's data begin, and how much there is of it before a volume grows.
const LUKS2_DATA: u64 = 16 << 20;
const LEN: u64 = 1 << 20;

/// The type, the commands that change the volume, and the file with the passphrase that opens it
/// afterwards. CHEAP is a key derivation that costs nothing.
const LIVES: [(&str, &[&str], &str); 13] = [
    ("luks1", &["keyslot add IMG OLD NEW --new-key-slot 6 CHEAP", "keyslot remove IMG OLD"], "second"),
    ("luks2", &["keyslot add IMG OLD NEW --new-key-slot 6 CHEAP", "keyslot remove IMG OLD"], "second"),
    ("luks1", &["keyslot change IMG OLD NEW CHEAP"], "second"),
    ("luks1", &["keyslot change IMG OLD NEW --key-slot 0 CHEAP"], "second"),
    ("luks2", &["keyslot change IMG OLD NEW CHEAP"], "second"),
    (
        "luks2",
        &["keyslot convert IMG OLD --pbkdf argon2id --pbkdf-force-iterations 4 --pbkdf-memory 64"],
        "pass",
    ),
    ("luks1", &["header convert IMG --to luks2"], "pass"),
    ("luks2", &["header convert IMG --to luks1"], "pass"),
    ("luks1", &["header convert IMG --to luks2", "header convert IMG --to luks1"], "pass"),
    (
        "luks1",
        &[
            "header backup IMG IMG.backup",
            "keyslot add IMG OLD NEW --new-key-slot 7 CHEAP",
            "header erase IMG --force",
            "header restore IMG IMG.backup --force",
        ],
        "pass",
    ),
    (
        "luks2",
        &[
            "header backup IMG IMG.backup",
            "keyslot change IMG OLD NEW CHEAP",
            "header erase IMG --force",
            "header restore IMG IMG.backup --force",
        ],
        "pass",
    ),
    ("luks1", &["grow"], "pass"),
    ("luks2", &["grow", "keyslot add IMG OLD NEW CHEAP"], "second"),
];

#[test]
fn the_kernel_opens_what_header_operations_leave() {
    let scratch = Scratch::new();
    scratch.file("pass", PASSPHRASE.as_bytes());
    scratch.file("second", b"another secret");
    let mut guest = guest(&scratch);
    let seed = seed("life");
    for (number, (kind, steps, opens)) in (0..).zip(LIVES) {
        let name = format!("life{number}");
        let image = format!("{name}.img");
        let data = if kind == "luks2" { LUKS2_DATA } else { 2 << 20 };
        let options = ["--type", kind, "--sector-size", "512"];
        let volume = Volume::at(&scratch, &image).format(&(data + LEN).to_string(), &options);
        let mut plain = bytes(seed ^ number, usize::try_from(LEN).unwrap());
        volume.write(0, &plain);
        for step in steps {
            if *step == "grow" {
                run(tool("truncate").args(["--size", "+1M"]).arg(&volume.image));
                let more = bytes(seed ^ number ^ 99, plain.len());
                volume.write(LEN, &more);
                plain.extend(more);
                continue;
            }
            let words = step
                .replace("IMG", &image)
                .replace("OLD", "--passphrase-file pass")
                .replace("NEW", "--new-passphrase-file second")
                .replace("CHEAP", "--pbkdf pbkdf2 --pbkdf-force-iterations 1000");
            run(underseal().args(words.split(' ')).current_dir(scratch.folder()));
        }
        scratch.file(&format!("{name}.plain"), &plain);
        guest.task(
            &name,
            &format!(
                "loop=$(losetup --find --show --read-only {image})\n\
                 cryptsetup open --readonly --type luks --key-file {opens} $loop {name}\n\
                 [ $(blockdev --getsize64 /dev/mapper/{name}) = {len} ]\n\
                 cmp {name}.plain /dev/mapper/{name}\n\
                 cryptsetup close {name}\n\
                 losetup --detach $loop\n",
                len = plain.len()
            ),
        );
    }
    guest.boot();
}
