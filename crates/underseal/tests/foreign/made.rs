//! VeraCrypt volumes that are made here, and volumes in partitions.

use std::fs;

use super::run_in;
use crate::support::{Scratch, tool};

/// Longer than VeraCrypt asks for with a low PIM.
const OUTER: &[u8] = b"a passphrase of the outer volume\n";
const HIDDEN: &[u8] = b"a passphrase of the hidden volume\n";
const FAST: [&str; 6] = ["--pim", "1", "--prf", "sha512", "--passphrase-fd", "0"];

fn underseal(scratch: &Scratch, words: &[&str], stdin: &[u8]) -> Vec<u8> {
    let output = run_in(scratch.folder(), words, stdin);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn fails(scratch: &Scratch, words: &[&str], stdin: &[u8], code: i32, why: &str) {
    let output = run_in(scratch.folder(), words, stdin);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    assert!(said.contains(why), "{words:?}: {said}");
}

/// The header as `cryptsetup tcryptDump` prints it.
fn dumped(scratch: &Scratch, options: &[&str], passphrase: &[u8]) -> String {
    let mut command = tool("cryptsetup");
    command.args(["tcryptDump", "--veracrypt", "--veracrypt-pim", "1", "disk"]).args(options);
    command.current_dir(scratch.folder());
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let line = passphrase.strip_suffix(b"\n").unwrap();
    String::from_utf8_lossy(&super::feed(&mut command, line).stdout).into_owned()
}

#[test]
fn a_volume_that_is_made_here_opens_here_and_in_cryptsetup_and_so_does_a_hidden_one() {
    let scratch = Scratch::new();
    let format = ["format", "disk", "--type", "veracrypt", "--size", "1M", "--cipher", "aes"];
    underseal(&scratch, &[&format[..], &FAST].concat(), OUTER);
    let hidden = ["format", "disk", "--type", "veracrypt", "--hidden-size", "256K", "--force"];
    underseal(&scratch, &[&hidden[..], &FAST].concat(), HIDDEN);
    for (options, ours, secret, offset) in [
        (&[][..], &[][..], OUTER, 131_072),
        (&["--tcrypt-backup"], &["--backup-header"], OUTER, 131_072),
        (&["--tcrypt-hidden"], &["--hidden"], HIDDEN, (1 << 20) - 131_072 - 4096 - (256 << 10)),
        (
            &["--tcrypt-hidden", "--tcrypt-backup"],
            &["--hidden", "--backup-header"],
            HIDDEN,
            (1 << 20) - 131_072 - 4096 - (256 << 10),
        ),
    ] {
        let dump = dumped(&scratch, options, secret);
        for want in [&format!("MK offset:\t{offset}\n")[..], "PBKDF2 hash:\tsha512\n", "Cipher chain:\taes\n"]
        {
            assert!(dump.contains(want), "{options:?}: {dump}");
        }
        let info =
            underseal(&scratch, &[&["info", "disk", "--type", "tcrypt"][..], ours, &FAST].concat(), secret);
        assert!(String::from_utf8_lossy(&info).contains(&format!("{offset} bytes")), "{ours:?}");
    }
    let write = ["write", "disk", "--type", "tcrypt", "--hidden"];
    underseal(&scratch, &[&write[..], &FAST].concat(), &[HIDDEN, b"plain bytes"].concat());
    let read = ["read", "disk", "--type", "tcrypt", "--hidden", "--length", "11"];
    assert_eq!(underseal(&scratch, &[&read[..], &FAST].concat(), HIDDEN), b"plain bytes");
}

#[test]
fn what_would_lose_something_or_protect_little_is_refused() {
    let scratch = Scratch::new();
    scratch.file("disk", &[7; 1 << 20]);
    let format = ["format", "disk", "--type", "veracrypt"];
    fails(&scratch, &[&format[..], &FAST].concat(), OUTER, 2, "would be lost");
    let hidden = [&format[..], &["--hidden-size", "64K"], &FAST].concat();
    fails(&scratch, &hidden, HIDDEN, 2, "will be lost");
    let short = [&format[..], &["--force"], &FAST].concat();
    fails(&scratch, &short, b"short\n", 2, "20 bytes of passphrase");
    let large = [&format[..], &["--force", "--hidden-size", "1M"], &FAST].concat();
    fails(&scratch, &large, HIDDEN, 2, "does not fit");
    fails(&scratch, &["format", "new", "--size", "1M", "--pim", "1"], b"", 2, "--type veracrypt");
    assert_eq!(fs::read(scratch.path("disk")).unwrap(), [7; 1 << 20]);
}

#[test]
fn a_hidden_volume_is_made_in_no_other_format() {
    let scratch = Scratch::new();
    let luks = ["format", "disk", "--size", "20M", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    underseal(&scratch, &[&luks[..], &["--passphrase-fd", "0"]].concat(), OUTER);
    let whole = fs::read(scratch.path("disk")).unwrap();
    let hidden = ["format", "disk", "--type", "veracrypt", "--hidden-size", "4M"];
    for force in [&[][..], &["--force"]] {
        fails(&scratch, &[&hidden[..], force, &FAST].concat(), HIDDEN, 2, "holds a LUKS2 volume");
    }
    assert!(fs::read(scratch.path("disk")).unwrap() == whole);
}

/// A volume, `disk`, and the backup of its headers, `saved`.
fn volume_and_backup() -> Scratch {
    let scratch = Scratch::new();
    let format = ["format", "disk", "--type", "veracrypt", "--size", "1M", "--quick"];
    underseal(&scratch, &[&format[..], &FAST].concat(), OUTER);
    underseal(&scratch, &["header", "backup", "disk", "saved", "--type", "tcrypt"], b"");
    scratch
}

/// An image that ends before its volume, and one with something behind it.
#[test]
fn headers_are_replaced_in_an_image_that_ends_with_its_volume_only() {
    let scratch = volume_and_backup();
    scratch.file("new", HIDDEN);
    let volume = fs::read(scratch.path("disk")).unwrap();
    let change = ["keyslot", "change", "disk", "--type", "tcrypt", "--new-passphrase-file", "new"];
    let restore = ["header", "restore", "disk", "saved", "--type", "tcrypt", "--force"];
    for (image, why) in [
        (volume[..3 << 18].to_vec(), "was it cut short"),
        ([&volume[..], &[7; 1 << 20]].concat(), "--sizelimit"),
    ] {
        scratch.file("disk", &image);
        for words in [&[&change[..], &["--new-pim", "1"]].concat()[..], &restore] {
            let output = run_in(scratch.folder(), &[words, &FAST].concat(), OUTER);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{words:?}");
            assert!(said.contains(why), "{words:?}: {said}");
            assert!(fs::read(scratch.path("disk")).unwrap() == image, "{words:?}: nothing is written");
        }
    }
}

#[test]
fn a_header_is_put_back_over_a_file_system_only_with_force() {
    let scratch = volume_and_backup();
    let mut image = fs::read(scratch.path("disk")).unwrap();
    image[1080..1082].copy_from_slice(&[0x53, 0xef]);
    scratch.file("disk", &image);
    let restore = ["header", "restore", "disk", "saved", "--type", "tcrypt"];
    fails(&scratch, &[&restore[..], &FAST].concat(), OUTER, 2, "holds an ext");
    underseal(&scratch, &[&restore[..], &["--force"], &FAST].concat(), OUTER);
}

#[test]
fn a_passphrase_is_changed_and_a_header_put_back() {
    let scratch = volume_and_backup();
    assert_eq!(fs::read(scratch.path("saved")).unwrap().len(), 131_072);
    scratch.file("new", HIDDEN);
    let change = ["keyslot", "change", "disk", "--type", "tcrypt", "--new-passphrase-file", "new"];
    let to = ["--new-pim", "2", "--new-prf", "whirlpool"];
    underseal(&scratch, &[&change[..], &to, &FAST].concat(), OUTER);
    let info = ["info", "disk", "--type", "tcrypt", "--passphrase-fd", "0"];
    for backup in [&[][..], &["--backup-header"]] {
        let said = underseal(&scratch, &[&info[..], &["--pim", "2"], backup].concat(), HIDDEN);
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains("whirlpool") && said.contains("17000"), "{said}");
        fails(
            &scratch,
            &[&info[..], &["--pim", "1", "--prf", "sha512"], backup].concat(),
            OUTER,
            3,
            "nothing opens",
        );
    }
    // The backup still has the old passphrase.
    let restore = ["header", "restore", "disk", "saved", "--type", "tcrypt", "--force"];
    underseal(&scratch, &[&restore[..], &FAST].concat(), OUTER);
    for backup in [&[][..], &["--backup-header"]] {
        underseal(&scratch, &[&info[..], &["--pim", "1", "--prf", "sha512"], backup].concat(), OUTER);
    }
    // A file that this passphrase does not open puts nothing back.
    let before = fs::read(scratch.path("disk")).unwrap();
    fails(&scratch, &[&restore[..], &FAST].concat(), HIDDEN, 3, "nothing opens");
    assert!(fs::read(scratch.path("disk")).unwrap() == before);
}

#[test]
fn a_luks_volume_in_a_partition_is_read_and_written_and_nothing_beside_it() {
    let scratch = Scratch::new();
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--passphrase-fd", "0"];
    underseal(&scratch, &[&["format", "volume", "--size", "17M"][..], &cheap].concat(), OUTER);
    let volume = fs::read(scratch.path("volume")).unwrap();
    let mut disk = vec![9; 20 << 20];
    disk[..512].fill(0);
    // A partition of type 0x83 at 1 MiB, in sectors.
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&(17u32 << 11).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[1 << 20..18 << 20].copy_from_slice(&volume);
    scratch.file("disk", &disk);
    let secret = ["--passphrase-fd", "0"];
    for part in [&["--partition", "1"][..], &["--offset-bytes", "1M"]] {
        let write = [&["write", "disk", "--offset", "4096"][..], part, &secret].concat();
        underseal(&scratch, &write, &[OUTER, b"plain bytes"].concat());
        let read = [&["read", "disk", "--offset", "4096", "--length", "11"][..], part, &secret].concat();
        assert_eq!(underseal(&scratch, &read, OUTER), b"plain bytes");
    }
    let after = fs::read(scratch.path("disk")).unwrap();
    assert!(after[..1 << 20] == disk[..1 << 20] && after[18 << 20..] == disk[18 << 20..]);
    // The volume's own image has the same bytes.
    fs::write(scratch.path("volume"), &after[1 << 20..18 << 20]).unwrap();
    let read = ["read", "volume", "--offset", "4096", "--length", "11", "--passphrase-fd", "0"];
    assert_eq!(underseal(&scratch, &read, OUTER), b"plain bytes");
    fails(
        &scratch,
        &["read", "disk", "--partition", "2", "--passphrase-fd", "0"],
        OUTER,
        2,
        "no partition 2",
    );
}
