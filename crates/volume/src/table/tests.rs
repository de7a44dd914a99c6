//! The text of the tables that a kernel made, and malformed lines.

use std::fmt::Write;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn manifest() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cipher/tests/vectors/tables.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the line of a row, with a key of its length.
fn line(row: &Value) -> String {
    let key = match row["key_bytes"].as_u64().unwrap() {
        0 => "-".to_owned(),
        n => "a7".repeat(usize::try_from(n).unwrap()),
    };
    let opts: Vec<&str> = row["opts"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
    let cipher = row["cipher"].as_str().unwrap();
    let mut line =
        format!("0 {} crypt {cipher} {key} {} 1:0 {}", row["sectors"], row["iv_offset"], row["start"]);
    if !opts.is_empty() {
        write!(line, " {} {}", opts.len(), opts.join(" ")).unwrap();
    }
    line
}

#[test]
fn what_the_kernel_takes_prints_as_the_kernel_prints_it() {
    let (mut compared, mut seen) = (0, 0);
    for row in manifest()["vectors"].as_array().unwrap() {
        seen += 1;
        let line = line(row);
        // The kernel reads 66048 as 512; this parser refuses it.
        if line.contains("66048") {
            assert!(
                Table::parse(&line)
                    .unwrap_err()
                    .to_string()
                    .contains("Invalid feature value for sector_size")
            );
            continue;
        }
        let table = Table::parse(&line).unwrap();
        let printed = table.print(true);
        assert_eq!(Table::parse(&printed).unwrap().print(true), printed, "printing is stable");
        let key = line.split(' ').nth(4).unwrap();
        let status = row["status"].as_str().unwrap();
        // In some rows of the manifest the IV offset is masked with the key.
        if !status.contains("KEY KEY") {
            assert_eq!(*printed, status.replacen("KEY", key, 1));
            compared += 1;
        }
        assert!(key == "-" || !table.to_string().contains("a7"), "keys are hidden unless asked for");
    }
    assert_eq!(seen, 371);
    assert!(compared > 350, "{compared}");
}

#[test]
fn what_the_kernel_refuses_is_refused_in_its_words() {
    let mut checked = 0;
    for row in manifest()["rejected"].as_array().unwrap() {
        let cipher = row["cipher"].as_str().unwrap();
        let obsolete =
            ["anubis", "khazad", "seed", "tea", "xeta"].contains(&cipher.split('-').next().unwrap());
        let line = line(row);
        // No kernel of the manifest has hctr2, and no kernel accepts 64 KiB sectors.
        if obsolete || cipher.contains("hctr2") || line.contains("sector_size:65536") {
            continue;
        }
        let errors = row["errors"].as_array().unwrap();
        let words = |text: &str| {
            text.rsplit_once(": ").map_or(text, |(_, w)| w).split(" (-").next().unwrap().to_owned()
        };
        let mut words = match errors.last().and_then(Value::as_str) {
            None => "Error allocating crypto tfm".to_owned(),
            Some(text) if text.starts_with("ioctl") => "Cannot calculate initial queue limits".to_owned(),
            Some(text) => words(text),
        };
        if words == "Unknown error" {
            words = "Error decoding and setting key".to_owned();
        }
        let refused = match Line::parse(&line) {
            Err(e) => Some(e),
            Ok(Line { target: Target::Crypt(crypt), .. }) if crypt.cipher.is_authenticated() => {
                assert!(crypt.build(&crypt.cipher_parameters(0)).is_err(), "{line}");
                continue;
            }
            Ok(Line { target: Target::Crypt(crypt), .. }) => crypt.build(&crypt.cipher_parameters(0)).err(),
            Ok(other) => panic!("{other:?}"),
        };
        let refused = refused.unwrap_or_else(|| panic!("accepted: {line}; the kernel says {words}"));
        assert!(
            refused.to_string().starts_with(&format!("{words}: ")),
            "{line}: {refused}; the kernel: {words}"
        );
        checked += 1;
    }
    assert!(checked > 65, "{checked}");
}

#[test]
fn malformed_lines_are_refused_in_the_kernels_words() {
    let key = "00".repeat(32);
    for (line, words) in [
        ("", "the table has no line"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev", "Not enough arguments"),
        ("0 8 nosuch", "unknown target type"),
        ("x 8 zero", "Invalid format"),
        ("0 0 zero", "Zero-length target"),
        ("1 8 zero", "Gap in table"),
        ("0 18446744073709551615 zero", "Invalid format"),
        ("0 8 zero\n9 8 zero", "Gap in table"),
        ("0 8 zero 1", "No arguments required"),
        ("0 8 linear dev", "Invalid device sector"),
        ("0 8 linear dev 0 1", "Invalid argument count"),
        ("0 8 crypt aes-xts-plain64 :32:user 0 dev 0", "Error decoding and setting key"),
        ("0 8 crypt aes-xts-plain64 :32:user: 0 dev 0", "Error decoding and setting key"),
        ("0 8 crypt aes-xts-plain64 :32:USER:name 0 dev 0", "Error decoding and setting key"),
        ("0 8 crypt aes-xts-plain64 :0:user:name 0 dev 0", "Error decoding and setting key"),
        ("0 8 crypt aes-xts-plain64 :+32:user:name 0 dev 0", "Cannot parse key size"),
        ("0 8 crypt aes-xts-plain64 :x:user:name 0 dev 0", "Cannot parse key size"),
        ("0 8 crypt aes-xts-plain64 :32:nosuch:name 0 dev 0", "Error decoding and setting key"),
        ("0 8 crypt aes-xts-plain64 0g 0 dev 0", "Error decoding and setting key"),
        ("0 8 crypt aes-xts-plain64 000 0 dev 0", "Error decoding and setting key"),
        ("0 8 crypt aes-xts-plain64 KEY -1 dev 0", "Invalid iv_offset sector"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev +1", "Invalid device sector"),
        ("0 8 crypt aes-xts-plain64 KEY 1 dev 0 1 sector_size:4096", "Invalid iv_offset sector"),
        ("0 9 crypt aes-xts-plain64 KEY 0 dev 0 1 sector_size:4096", "Device size is not multiple"),
        (
            "0 8 crypt aes-xts-plain64 KEY 0 dev 0 1 sector_size:66048",
            "Invalid feature value for sector_size",
        ),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 2 allow_discards", "Invalid number of feature args"),
        (
            "0 8 crypt aes-xts-plain64 KEY 0 dev 0 10 allow_discards same_cpu_crypt submit_from_crypt_cpus \
             no_read_workqueue no_write_workqueue sector_size:4096 iv_large_sectors allow_discards allow_discards \
             allow_discards",
            "Invalid number of feature args",
        ),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 1 SECTOR_SIZE:4096", "Invalid feature arguments"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 1 INTEGRITY:16:none", "Invalid feature arguments"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 1 allow_discards:1", "Invalid feature arguments"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 x", "Invalid number of feature args"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 99 allow_discards", "Invalid number of feature args"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 1 nosuch", "Invalid feature arguments"),
        ("0 8 crypt aes-hctr2-plain64 KEY 0 dev 0 1 iv_large_sectors", "Invalid feature arguments"),
        ("0 8 crypt capi:hctr2(aes)-plain64 KEY 0 dev 0 1 iv_large_sectors", "Invalid feature arguments"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 1 integrity:0:none", "Invalid integrity arguments"),
        ("0 8 crypt aes-xts-plain64 KEY 0 dev 0 1 integrity:481:none", "Invalid integrity arguments"),
        ("0 8 crypt aes-cbc KEY 0 dev 0", "IV mechanism required"),
        ("0 8 crypt xts(aes)-plain64 KEY 0 dev 0", "Bad cipher specification"),
    ] {
        let error = Table::parse(&line.replace("KEY", &key)).unwrap_err().to_string();
        let error = error
            .split_once(": ")
            .filter(|(place, _)| place.starts_with("table line"))
            .map_or(&*error, |e| e.1);
        assert!(error.starts_with(words), "{line}: {error}");
    }
}

#[test]
fn a_volume_is_dispatched_as_any_of_its_lines_says() {
    let crypt = |start: u64, options: &str| {
        format!("{start} 8 crypt aes-xts-plain64 {} 0 a 0 {options}\n", "a7".repeat(16) + &"5b".repeat(16))
    };
    let dispatch = |text: String| Table::parse(&text).unwrap().volume(&[1 << 20]).unwrap().dispatch();
    assert!(dispatch(crypt(0, "1 allow_discards")).is_empty());
    let found = dispatch(crypt(0, "1 same_cpu_crypt") + &crypt(8, "2 force_inline high_priority"));
    let all =
        DispatchFlags { same_cpu_crypt: true, force_inline: true, high_priority: true, ..Default::default() };
    assert_eq!(found, all);
}

/// Case, repetition and counts are as in the kernel.
#[test]
fn options_are_read_as_the_kernel_reads_them() {
    let key = "a7".repeat(32) + &"5b".repeat(32);
    let each = "allow_discards same_cpu_crypt submit_from_crypt_cpus no_read_workqueue no_write_workqueue \
                sector_size:4096 iv_large_sectors";
    for (options, printed, ignored) in [
        (" 1 ALLOW_DISCARDS", " 1 allow_discards", false),
        (" 1 Iv_Large_Sectors", " 1 iv_large_sectors", false),
        (" 2 NO_READ_WORKQUEUE No_Write_Workqueue", " 2 no_read_workqueue no_write_workqueue", false),
        (" 2 SAME_CPU_CRYPT SUBMIT_FROM_CRYPT_CPUS", " 2 same_cpu_crypt submit_from_crypt_cpus", false),
        (" 2 HIGH_PRIORITY FORCE_INLINE", " 2 high_priority force_inline", false),
        (" 1 integrity:16:NONE", " 1 integrity:16:none", false),
        (" 2 allow_discards allow_discards", " 1 allow_discards", false),
        (" 2 sector_size:4096 sector_size:512", "", false),
        (" 2 sector_size:512 sector_size:4096", " 1 sector_size:4096", false),
        (" 01 allow_discards", " 1 allow_discards", false),
        (" 0", "", false),
        (" 0 allow_discards", "", true),
        (" 1 allow_discards iv_large_sectors nosuch", " 1 allow_discards", true),
        (&format!(" 9 allow_discards allow_discards {each}"), &format!(" 7 {each}"), false),
    ] {
        let line = format!("0 64 crypt aes-xts-plain64 {key} 0 1:0 0");
        let table = Table::parse(&format!("{line}{options}")).unwrap_or_else(|e| panic!("{options}: {e}"));
        assert_eq!(*table.print(true), format!("{line}{printed}"), "{options}");
        let warned = table.warnings().iter().any(|why| why.contains("ignored"));
        assert_eq!(warned, ignored, "{options}: {:?}", table.warnings());
    }
}

#[test]
fn our_own_options_are_taken_and_warned_of() {
    let key = "07".repeat(32) + &"08".repeat(32);
    let line = format!("0 256 crypt aes-xts-plain64 {key} 128 my\\ disk 8 2 force_inline sector_size:65536");
    let table = Table::parse(&line).unwrap();
    assert_eq!(*table.print(true), *line);
    assert_eq!(table.devices(), ["my disk"]);
    assert!(matches!(&table.warnings()[..], [one] if one.contains("sector_size:65536")));
    let segment = &table.volume(&[1 << 20]).unwrap().segments()[0].clone();
    let stored = segment.as_stored().unwrap();
    assert_eq!((stored.lower, stored.iv_offset, segment.len), (4096, 128, 131_072));
    assert_eq!(table.volume(&[4096]).unwrap_err().kind(), ErrorKind::TooSmall);
}

/// The seeds of the fuzzer, with its findings.
#[test]
fn seeds_of_the_fuzz_target_print_stably() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/table");
    let mut parsed = 0;
    for seed in std::fs::read_dir(folder).unwrap() {
        let path = seed.unwrap().path();
        if let Ok(table) = Table::parse(&std::fs::read_to_string(&path).unwrap()) {
            let printed = table.print(true);
            assert_eq!(Table::parse(&printed).unwrap().print(true), printed, "{}", path.display());
            parsed += 1;
        }
    }
    assert!(parsed > 100, "{parsed}");
}

#[test]
fn several_lines_make_one_volume() {
    let key = "5a".repeat(32);
    let text = format!("# two\n0 8 linear disk 16\n\n8 8 crypt aes-cbc-essiv:sha256 {key} 0 disk 0\n");
    let volume = Table::parse(&text).unwrap().volume(&[1 << 20]).unwrap();
    assert_eq!((volume.size(), volume.segments().len()), (8192, 2));
    assert!(volume.segments()[0].cipher(0).unwrap().0.is_null());
}

#[test]
fn lines_of_every_target_make_one_volume_over_several_devices() {
    let key = "5a".repeat(32);
    let text = format!(
        "0 8 crypt aes-cbc-essiv:sha256 {key} 0 b 0 1 allow_discards\n8 8 zero\n16 8 linear a 8\n24 8 error\n\
         32 8 linear b 16"
    );
    let table = Table::parse(&text).unwrap();
    assert_eq!(table.devices(), ["b", "a"]);
    let volume = table.volume(&[24 << 9, 16 << 9]).unwrap();
    let [first, zero, linear, error, last] = volume.segments() else { panic!("five lines, five segments") };
    let found = [first, linear, last].map(|s| s.lower(s.start));
    assert_eq!(found, [Some((0, 0)), Some((1, 4096)), Some((0, 8192))]);
    assert!(matches!((&zero.kind, &error.kind), (SegmentKind::Zero, SegmentKind::Error)));
    assert!(volume.allow_discards());
    for sizes in [[24 << 9, (16 << 9) - 1], [(24 << 9) - 1, 16 << 9]] {
        let error = table.volume(&sizes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooSmall);
        assert!(error.to_string().contains("too small for target"), "{error}");
    }
}

#[test]
fn lines_that_cut_each_others_sectors_are_refused_as_the_kernel_does() {
    let key = "5a".repeat(32);
    let large = format!("crypt aes-cbc-essiv:sha256 {key} 0 a 0 1 sector_size:4096");
    for (text, fits) in [
        (format!("0 4 zero\n4 8 {large}"), false),
        (format!("0 8 {large}\n8 4 zero"), false),
        (format!("0 8 {large}\n8 4 zero\n12 4 error"), true),
        (format!("0 4 zero\n4 4 error\n8 8 {large}"), true),
    ] {
        let made = Table::parse(&text).unwrap().volume(&[1 << 20]);
        match made {
            Ok(_) => assert!(fits, "{text}"),
            Err(e) => {
                assert!(!fits && e.to_string().contains("not aligned to h/w logical block size"), "{e}")
            }
        }
    }
}

#[test]
fn authenticated_tables_print_and_have_their_tags() {
    let line = format!("0 8 crypt capi:gcm(aes)-random {} 0 disk 0 1 integrity:28:aead", "0".repeat(64));
    let table = Table::parse(&line).unwrap();
    assert_eq!(*table.print(true), line);
    let volume = table.volume(&[1 << 20]).unwrap();
    assert_eq!(volume.segments()[0].as_stored().unwrap().cipher.tag_size(), 28);
}

#[test]
fn a_key_of_the_keyring_is_fetched_by_name() {
    use linux_keyutils::{KeyRing, KeyRingIdentifier};
    let ring = match KeyRing::from_special_id(KeyRingIdentifier::Process, true) {
        Ok(ring) => ring,
        Err(e) => {
            return underseal_testing::skip("keyring", &format!("no keyring here: {e:?}"));
        }
    };
    ring.add_key("underseal:table", &[9; 32]).unwrap();
    let line = "0 8 crypt aes-cbc-essiv:sha256 :32:user:underseal:table 0 disk 0";
    let table = Table::parse(line).unwrap();
    assert_eq!(*table.print(true), *line);
    assert_eq!(table.volume(&[1 << 20]).unwrap().size(), 4096);
    let longer = line.replace(":32:", ":16:");
    assert_eq!(Table::parse(&longer).unwrap().volume(&[1 << 20]).unwrap_err().kind(), ErrorKind::WrongKey);
    let logon = line.replace(":user:", ":logon:");
    assert_eq!(Table::parse(&logon).unwrap().volume(&[1 << 20]).unwrap_err().kind(), ErrorKind::Unsupported);
    let missing = line.replace("underseal:table", "underseal:nosuch");
    assert_eq!(Table::parse(&missing).unwrap().volume(&[1 << 20]).unwrap_err().kind(), ErrorKind::WrongKey);
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic_and_what_parses_prints_stably(
        text in "[0-9]{1,3} [0-9]{1,4} (crypt|linear|zero) [ -~]{0,80}",
    ) {
        if let Ok(table) = Table::parse(&text) {
            let printed = table.print(true);
            prop_assert_eq!(Table::parse(&printed).unwrap().print(true), printed);
        }
    }
}

#[test]
fn a_table_stands_on_integrity_lines_of_its_own() {
    let stack = format!(
        "a_dif: 0 1600 integrity disk 8 28 J 3 block_size:4096 fix_padding journal_crypt:ctr(aes):{key}\n\
         a: 0 1600 crypt capi:gcm(aes)-random {key} 0 /dev/mapper/a_dif 0 2 integrity:28:aead sector_size:4096\n\
         a: 1600 8 linear other 0",
        key = "07".repeat(32)
    );
    let table = Table::parse(&stack).unwrap();
    assert_eq!(table.devices(), ["disk", "other"]);
    let layer = table.layer(0).unwrap();
    assert_eq!((layer.start, layer.tag_size, layer.mode), (8, Some(28), 'J'));
    assert_eq!((layer.option("block_size"), layer.option("fix_padding")), (Some("4096"), Some("")));
    assert_eq!((layer.option("block"), table.layer(1).is_none()), (None, true));
    let volume = table.volume(&[1600 * 512, 4096]).unwrap();
    assert_eq!(volume.segments()[0].as_stored().unwrap().cipher.tag_size(), 28);
    let shown = table.print(false);
    assert!(!shown.contains("0707") && shown.contains("journal_crypt:ctr(aes):0000"), "{}", &*shown);
    assert!(!format!("{table:?}").contains("0707"));
    let again = Table::parse(&table.print(true)).unwrap();
    assert_eq!(again.print(true), table.print(true));
    // A layer alone is a volume, too.
    let alone = Table::parse("0 1600 integrity disk 0 - D 1 internal_hash:crc32c").unwrap();
    assert_eq!((alone.devices(), alone.layer(0).unwrap().tag_size), (vec!["disk"], None));
    assert_eq!(alone.volume(&[1600 * 512]).unwrap().size(), 1600 * 512);
}

#[test]
fn a_layer_under_both_of_its_names_is_one_device() {
    let stack = "below: 0 1600 integrity disk 0 - J 1 internal_hash:crc32c\n\
                 a: 0 8 linear below 0\na: 8 8 linear /dev/mapper/below 8";
    let table = Table::parse(stack).unwrap();
    assert_eq!(table.devices(), ["disk"]);
    assert!(table.layer(0).is_some() && table.layer(1).is_none());
    let volume = table.volume(&[1600 * 512]).unwrap();
    assert!(volume.segments().iter().all(|segment| segment.as_stored().unwrap().device == 0));
}

#[test]
fn each_device_has_one_layer() {
    let layer = "integrity disk 0 - J 1 internal_hash:crc32c";
    for (text, why) in [
        // The name of another layer: the upper one would be dropped.
        (format!("low: 0 1600 {layer}\na: 0 8 integrity low 0 28 J 0"), "on an integrity line"),
        (format!("low: 0 1600 {layer}\na: 0 8 integrity /dev/mapper/low 0 28 J 0"), "on an integrity line"),
        (
            format!("low: 0 1600 {layer}\nb: 0 80 integrity low 0 28 J 0\na: 0 8 linear b 0"),
            "on an integrity line",
        ),
        (
            format!("low: 0 1600 {layer}\n/dev/mapper/low: 0 1600 {layer}\na: 0 8 linear low 0"),
            "one integrity",
        ),
        (format!("0 8 {layer}\n8 8 {layer}"), "two integrity lines"),
        (format!("b: 0 80 {layer}\na: 0 8 {layer}\na: 8 8 linear b 0"), "two integrity lines"),
        (format!("0 8 {layer}\n8 8 linear disk 0"), "another line is on the device"),
        // The line would write over the journal of the layer below.
        (format!("low: 0 80 {layer}\na: 0 8 linear low 0\na: 8 80 linear disk 8"), "another line is on"),
    ] {
        let refused = Table::parse(&text).unwrap_err();
        assert!(refused.to_string().contains(why), "{text}: {refused}");
    }
}

#[test]
fn a_cipher_may_ask_for_less_than_the_device_keeps() {
    let line = format!("0 8 crypt capi:gcm(aes)-random {} 0 disk 0 1 integrity:28:aead", "0".repeat(64));
    let table = Table::parse(&line).unwrap();
    for (tuple, kept) in [(0, 28), (28, 28), (32, 32), (27, 28)] {
        let volume = table.volume_on(&[Room { size: 1 << 20, tuple }]).unwrap();
        let stored = volume.segments()[0].as_stored().unwrap();
        assert_eq!(stored.cipher.tag_size(), kept);
        assert_eq!(stored.cipher_parameters.as_ref().unwrap().integrity.unwrap().bytes, 28);
    }
    // Only authenticated ciphers use the room.
    let plain = line.replace("capi:gcm(aes)-random", "aes-xts-plain64").replace(" 1 integrity:28:aead", "");
    let volume = Table::parse(&plain).unwrap().volume_on(&[Room { size: 1 << 20, tuple: 32 }]).unwrap();
    assert_eq!(volume.segments()[0].as_stored().unwrap().cipher.tag_size(), 0);
}

#[test]
fn what_is_no_stack_is_refused() {
    let refused = |text: &str| Table::parse(text).unwrap_err().to_string();
    assert!(refused("a: 0 8 zero\nb: 0 8 zero").contains("several devices"));
    assert!(refused("a: 0 8 zero\nb: 0 8 linear a 0").contains("one integrity line"));
    assert!(refused("a: 0 8 linear b 0\nb: 0 8 linear a 0").contains("one integrity line"));
    for (line, words) in [
        ("disk 0 28 J 1", "Invalid number of feature args"),
        ("disk 0 28 J", "Invalid argument count"),
        ("disk 0 x J 0", "Invalid tag size"),
        ("disk 0 28 X 0", "Invalid mode"),
        ("disk -1 28 J 0", "Invalid starting offset"),
    ] {
        let found = refused(&format!("0 8 integrity {line}"));
        assert!(found.contains(words), "{line}: {found}");
    }
}
