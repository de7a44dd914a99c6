//! `format --plain-size`: the image is as large as the volume wants, and no larger.

use serde_json::Value;

use crate::command::common::{CHEAP, Place};

/// The report of `format --json`.
fn told(place: &Place, args: &[&str]) -> Value {
    let all = [&["format", "disk", "--json", "--passphrase-file", "pass"][..], &CHEAP, args].concat();
    serde_json::from_str(&place.run(&all).succeeds()).unwrap()
}

/// Makes a volume of that size, and one on a smaller image; returns the first one's report.
#[track_caller]
fn fits(args: &[&str], plain: u64, step: u64) -> (Place, Value) {
    let place = Place::new();
    let bytes = plain.to_string();
    let wanted = [&["--plain-size", bytes.as_str()][..], args].concat();
    let would = told(&place, &[&wanted[..], &["--dry-run"]].concat());
    assert!(!place.path("disk").exists() && would["made"] == false, "{would}");
    let made = told(&place, &wanted);
    assert_eq!(made["plain_size"], plain, "{args:?}: {made}");
    for field in ["image_size", "data_offset", "plain_size", "type", "cipher", "integrity"] {
        assert_eq!(made[field], would[field], "{args:?} {field}: {would}");
    }
    let image = made["image_size"].as_u64().unwrap();
    assert_eq!(std::fs::metadata(place.path("disk")).unwrap().len(), image);

    let less = Place::new();
    let smaller = (image - step).to_string();
    let all = [&["--size", smaller.as_str()][..], args].concat();
    let all = [&["format", "disk", "--json", "--passphrase-file", "pass"][..], &CHEAP, &all[..]].concat();
    let ran = less.run(&all);
    if plain > step {
        let less: Value = serde_json::from_str(&ran.succeeds()).unwrap();
        assert!(less["plain_size"].as_u64().unwrap() < plain, "{args:?}: {image} is too large: {less}");
    } else {
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
    }
    (place, made)
}

#[test]
fn header_and_sectors_are_reckoned_with() {
    for (args, data_offset, sectors) in [
        (&[][..], 16 << 20, 4096),
        (&["--sector-size", "512"], 16 << 20, 512),
        (&["--sector-size", "2048"], 16 << 20, 2048),
        (&["--data-offset", "8M"], 8 << 20, 4096),
        (&["--keyslots-size", "32M"], (32 << 20) + (32 << 10), 4096),
        (&["--type", "luks1"], 2 << 20, 512),
        (&["--type", "luks1", "--key-size", "256", "--data-offset", "4M"], 4 << 20, 512),
        (&["--header", "head"], 0, 4096),
        (&["--header", "head", "--type", "luks1"], 0, 512),
        (&["--cipher", "aes-cbc-essiv:sha256"], 16 << 20, 4096),
    ] {
        for plain in [sectors, 5 * sectors, (4 << 20) + sectors] {
            let (place, made) = fits(args, plain, sectors);
            assert_eq!(made["data_offset"], data_offset, "{args:?}");
            assert_eq!(made["image_size"], data_offset + plain, "{args:?}");
            assert_eq!(made["sector_size"], sectors, "{args:?}");
            let header: &[&str] = if args.contains(&"--header") { &["--header", "head"] } else { &[] };
            let all = place.unlock("read", "disk", header);
            assert_eq!(all.bytes.len() as u64, plain, "{args:?}: {}", all.stderr);
        }
    }
    // Where large sectors do not fit, the volume has small ones.
    let (_, made) = fits(&[], 4096 + 512, 512);
    assert_eq!(made["sector_size"], 512);
}

#[test]
fn tags_and_journal_are_reckoned_with() {
    // A run of tags is before each 16 MiB of data.
    const AREA: u64 = 16 << 20;
    for args in [
        &["--cipher", "aes-gcm-random", "--integrity", "aead"][..],
        &["--cipher", "aes-xts-plain64", "--integrity", "hmac-sha512", "--sector-size", "512"],
        &["--cipher", "chacha20-random", "--integrity", "poly1305", "--integrity-no-journal"],
        &["--cipher", "aes-gcm-random", "--integrity", "aead", "--header", "head"],
    ] {
        let args = [args, &["--integrity-no-wipe"]].concat();
        for plain in [4096, 8192, AREA - 4096, AREA, AREA + 4096, 5 * AREA + 12288, 1 << 40] {
            fits(&args, plain, 4096);
        }
    }
    let args = ["--cipher", "aes-gcm-random", "--integrity", "aead"];
    let (place, _) = fits(&args, AREA + 4096, 4096);
    let all = place.unlock("read", "disk", &[]);
    assert!(all.bytes == vec![0; 4096 + (16 << 20)], "{} bytes: {}", all.bytes.len(), all.stderr);
}

#[test]
fn a_file_that_is_there_grows_and_what_cannot_is_told() {
    let place = Place::new();
    std::fs::write(place.path("disk"), vec![0; 1 << 20]).unwrap();
    let format = [&["format", "disk", "--passphrase-file", "pass", "-q"], &CHEAP[..]].concat();
    let with = |args: &[&str]| place.run(&[&format[..], args].concat());
    let refused = with(&["--plain-size", "3M"]);
    refused.fails(2, "is there already, of 1 MiB");
    assert!(refused.stderr.contains("try: an image of 19 MiB"), "{}", refused.stderr);
    with(&["--plain-size", "3M", "--force"]).succeeds();
    assert_eq!(std::fs::metadata(place.path("disk")).unwrap().len(), 19 << 20);
    // The image has the right size already.
    with(&["--plain-size", "3M", "--force"]).succeeds();
    assert_eq!(place.unlock("read", "disk", &[]).bytes.len(), 3 << 20);

    for (args, told) in [
        ("--plain-size 0", "0 bytes are no volume"),
        ("--plain-size 1000", "try: --plain-size 1024"),
        ("--plain-size 4608 --sector-size 4096", "try: --plain-size 8192"),
        ("--plain-size 4608 --cipher aes-gcm-random --integrity aead", "try: --plain-size 8192"),
        ("--plain-size 9223372036854775296", "larger than any image"),
        ("--plain-size 9223372036854771712 --cipher aes-gcm-random --integrity aead", "larger than any"),
        ("--plain-size 9223372036854775296 --type plain --data-offset 512", "larger than any image"),
        ("--plain-size 18446744073709551104", "larger than any image"),
        ("--plain-size 4608 --type luks1 --integrity aead", "LUKS2"),
    ] {
        let args: Vec<_> = args.split(' ').collect();
        let refused = place.run(&[&["format", "new", "--passphrase-file", "pass"], &args[..]].concat());
        refused.fails(2, told);
        assert!(!place.path("new").exists());
    }
}

#[test]
fn a_dry_run_needs_neither_image_nor_passphrase() {
    let place = Place::new();
    let run = |args: &[&str]| place.run(&[&["format", "rbd:pool/none", "--dry-run"], args].concat());
    assert_eq!(run(&["--plain-size", "1G"]).succeeds(), "1090519040\n");
    // A dry run that is none would be worse than an error.
    for args in [&["--size", "1G"][..], &[]] {
        let refused = run(args);
        assert!(refused.code == Some(2) && refused.stderr.starts_with("error: "), "{refused:?}");
    }
    assert_eq!(run(&["--plain-size", "1G", "--type", "plain"]).succeeds(), "1073741824\n");
    let told: Value =
        serde_json::from_str(&run(&["--plain-size", "1G", "--type", "luks1", "--json"]).succeeds()).unwrap();
    assert_eq!((&told["image_size"], &told["uuid"]), (&((1_u64 << 30) + (2 << 20)).into(), &Value::Null));
}

#[test]
fn little_memory_is_made_up_for_by_passes() {
    let place = Place::new();
    let format = ["format", "disk", "--plain-size", "1M", "--passphrase-file", "pass", "--iter-time", "300"];
    place.run(&[&format[..], &["--pbkdf-memory", "low"]].concat()).succeeds();
    let info: Value = serde_json::from_str(&place.run(&["info", "disk", "--json"]).succeeds()).unwrap();
    let kdf = &info["keyslots"][0]["kdf"];
    assert_eq!(&kdf["memory_kib"], 32 << 10, "{info}");
    assert!(kdf["iterations"].as_u64().is_some_and(|passes| passes >= 4), "{kdf}");
    let limited = place.unlock("read", "disk", &["--max-kdf-memory", "32M", "--length", "512"]);
    assert_eq!(limited.code, Some(0), "{}", limited.stderr);
    place.unlock("read", "disk", &["--max-kdf-memory", "31M"]).fails(6, "memory");
    let refused = place.run(&[&format[..], &["--pbkdf-memory", "lower"]].concat());
    assert!(refused.code == Some(2) && refused.stderr.contains("or low"), "{refused:?}");
}
