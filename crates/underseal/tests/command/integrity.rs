//! `underseal integrity`.

use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::command::common::{Place, Server};

/// A place with keys and a volume `disk` of 8 MiB, made with these options.
fn with_volume(options: &[&str]) -> Place {
    let place = Place::new();
    std::fs::write(place.path("key"), [7; 32]).unwrap();
    std::fs::write(place.path("other"), [8; 32]).unwrap();
    place.run(&[&["integrity", "format", "disk", "--size", "8M"], options].concat()).succeeds();
    place
}

fn check(place: &Place, options: &[&str]) -> (Option<i32>, Value) {
    let ran = place.run(&[&["integrity", "check", "disk", "--json"], options].concat());
    (ran.code, serde_json::from_str(&ran.stdout).unwrap())
}

#[test]
fn a_new_volume_can_be_read_and_a_changed_byte_is_found() {
    for options in [
        &[][..],
        &["--integrity", "sha256", "--sector-size", "4096"],
        &["--integrity", "hmac-sha256", "--integrity-key-file", "key"],
        &["--integrity", "xxhash64", "--journal-crypt", "ctr-aes", "--journal-crypt-key-file", "key"],
        &["--journal-integrity", "hmac-sha256", "--journal-integrity-key-file", "key"],
    ] {
        let place = with_volume(options);
        // The other options are only for `integrity format`.
        let options = if options.contains(&"--sector-size") { &options[..2] } else { options };
        let (code, report) = check(&place, options);
        assert_eq!((code, report["bad"].as_array().map(Vec::len)), (Some(0), Some(0)), "{options:?}");
        let before = place.read("disk");
        let disk = std::fs::File::options().write(true).open(place.path("disk")).unwrap();
        // The last sector that it offers is near the end of the device.
        disk.write_all_at(&[1], (8 << 20) - (64 << 10)).unwrap();
        let (code, report) = check(&place, options);
        assert_eq!((code, report["bad"].as_array().map(Vec::len)), (Some(5), Some(1)), "{options:?}");
        disk.write_all_at(&before, 0).unwrap();
        assert_eq!(check(&place, options).0, Some(0));
    }
}

#[test]
fn with_another_key_nothing_can_be_read() {
    let keyed = ["--integrity", "hmac-sha256", "--integrity-key-file"];
    let place = with_volume(&[&keyed[..], &["key"]].concat());
    let (code, report) = check(&place, &[&keyed[..], &["other"]].concat());
    assert_eq!((code, &report["bad"][0]["sectors"]), (Some(5), &report["sectors"]));
}

#[test]
fn what_format_says_integritysetup_reads() {
    let place =
        with_volume(&["--integrity", "sha256", "--sector-size", "4096", "--interleave-sectors", "1024"]);
    let info: Value =
        serde_json::from_str(&place.run(&["integrity", "info", "disk", "--json"]).succeeds()).unwrap();
    let dump = place.tool("integritysetup", &["dump", "disk"]);
    for line in [
        "superblock_version 5".to_owned(),
        "integrity_tag_size 32".into(),
        "sector_size 4096".into(),
        "log2_interleave_sectors 10".into(),
        format!("journal_sections {}", info["journal_sections"]),
        format!("provided_data_sectors {}", info["size"].as_u64().unwrap() / 512),
    ] {
        assert!(dump.contains(&line), "{dump} lacks {line}");
    }
    assert_eq!(info["journal"]["state"], "clean");
    let said = place.run(&["integrity", "info", "disk"]).succeeds();
    assert!(said.contains("version 5") && said.contains("clean"), "{said}");
}

#[test]
fn what_was_not_wiped_can_be_read_once_it_is_recalculated() {
    let place = with_volume(&["--no-wipe"]);
    assert_eq!(check(&place, &[]).0, Some(5));
    let said = place.run(&["integrity", "recalculate", "disk"]).succeeds();
    assert!(said.contains("all checksums are made"), "{said}");
    assert_eq!(check(&place, &[]).0, Some(0));
}

#[test]
fn a_recalculation_with_a_key_wants_to_be_allowed() {
    let keyed = ["--integrity", "hmac-sha256", "--integrity-key-file", "key"];
    let place = with_volume(&[&keyed[..], &["--no-wipe"]].concat());
    let recalculate = [&["integrity", "recalculate", "disk"], &keyed[..]].concat();
    let before = place.read("disk");
    place.run(&recalculate).fails(6, "would authenticate what a forger wrote");
    assert!(place.read("disk") == before);
    place.run(&[&recalculate[..], &["--integrity-legacy-recalculate"]].concat()).succeeds();
    assert_eq!(check(&place, &keyed).0, Some(0));
}

#[test]
fn checksums_may_lie_on_a_device_of_their_own() {
    let place = Place::new();
    for name in ["head", "data"] {
        std::fs::write(place.path(name), vec![0; 4 << 20]).unwrap();
    }
    place.run(&["integrity", "format", "head", "--data-device", "data"]).succeeds();
    place.run(&["integrity", "check", "head", "--data-device", "data"]).succeeds();
    assert!(place.read("data").iter().all(|byte| *byte == 0), "the data device has data alone");
    place.run(&["integrity", "check", "head"]).fails(5, "metadata device");
}

#[test]
fn what_somebody_may_want_is_not_overwritten() {
    let place = with_volume(&[]);
    place.run(&["integrity", "format", "disk"]).fails(2, "holds an integrity volume");
    place.run(&["integrity", "format", "disk", "--size", "8M"]).fails(2, "is there already");
    place.run(&["integrity", "format", "disk", "--force"]).succeeds();
    place.run(&["integrity", "format", "new", "--size", "1000"]).fails(2, "too small");
    assert!(!place.path("new").exists());
    place
        .run(&["integrity", "format", "new", "--size", "8M", "--integrity", "md6"])
        .fails(6, "not supported");
    assert!(!place.path("new").exists());
}

#[test]
fn a_volume_is_served_and_what_is_wrong_is_counted_and_listed() {
    let keyed = ["--integrity", "hmac-sha256", "--integrity-key-file", "key"];
    let place = with_volume(&keyed);
    let serve = |options: &[&str]| {
        let open = ["integrity", "open", "disk", "--nbd", "unix:nbd", "--name", "checksums"];
        Server::run(place.command(&[&open[..], &keyed, options].concat()))
    };
    let pwrite = |server: &Server, byte: &str| {
        place
            .nbdsh(server.uri(), &format!("h.pwrite(b'{byte}' * 8192, 1 << 20)\nh.flush()"))
            .output()
            .unwrap()
    };
    for mode in
        [&[][..], &["--integrity-no-journal"], &["--integrity-bitmap-mode", "--bitmap-flush-time", "100"]]
    {
        let server = serve(mode);
        assert!(pwrite(&server, "a").status.success(), "{mode:?}");
        let status: Value =
            serde_json::from_str(&place.run(&["status", "checksums", "--json"]).succeeds()).unwrap();
        assert_eq!(
            (&status["opened"]["format"], &status["mismatches"]["count"]),
            (&"integrity".into(), &0.into())
        );
        assert!(place.run(&["check", "checksums"]).succeeds().contains("as it was written"));
        server.stop();
        assert_eq!(check(&place, &keyed).0, Some(0), "{mode:?}");
    }
    // A byte of the written block is changed on the image.
    let disk = place.read("disk");
    let at = disk.windows(4096).position(|bytes| bytes.iter().all(|byte| *byte == b'a')).unwrap();
    let image = std::fs::File::options().write(true).open(place.path("disk")).unwrap();
    image.write_all_at(b"b", at as u64 + 1000).unwrap();
    let before = place.read("disk");
    let server = serve(&["--read-only"]);
    let read = |from: u64| place.nbdsh(server.uri(), &format!("h.pread(4096, {from})")).output().unwrap();
    assert!(read(0).status.success() && !read(1 << 20).status.success());
    assert!(!pwrite(&server, "c").status.success(), "it is read-only");
    let checked = place.run(&["check", "checksums"]);
    // Blocks of 512 bytes, and where the run was found a block begins.
    let lost = (1 << 20) + 512;
    assert_eq!(
        checked.stdout,
        format!("bytes {lost} to {}: not as written\n", lost + 512),
        "{}",
        checked.stderr
    );
    let status: Value =
        serde_json::from_str(&place.run(&["status", "checksums", "--json"]).succeeds()).unwrap();
    assert!(status["mismatches"]["count"].as_u64() > Some(1), "{status}");
    assert_eq!(status["mismatches"]["first"], serde_json::json!([lost]), "{status}");
    server.stop();
    assert!(place.read("disk") == before, "nothing is written");
    let open = ["integrity", "open", "disk", "--integrity", "none"];
    place.run(&open).fails(2, "without a hash");
    let both = place.run(&[&open[..3], &["--integrity-no-journal", "--integrity-bitmap-mode"]].concat());
    assert_eq!(both.code, Some(2), "{}", both.stderr);
}

#[test]
fn a_check_says_what_it_did_not_compare() {
    let place = with_volume(&[]);
    let serve = |options: &[&str]| {
        let open = ["integrity", "open", "disk", "--nbd", "unix:nbd", "--name", "uncompared"];
        Server::run(place.command(&[&open[..], options].concat()))
    };
    let server = serve(&["--integrity-bitmap-mode", "--bitmap-sectors-per-bit", "64"]);
    let written = place.nbdsh(server.uri(), "h.pwrite(bytes(4096), 0)\nh.flush()").output().unwrap();
    assert!(written.status.success(), "{written:?}");
    // The server is killed: the region's bit stays set.
    drop(server);
    let server = serve(&["--read-only"]);
    let said = place.run(&["check", "uncompared"]).succeeds();
    assert!(said.contains("32768 bytes were not compared") && !said.contains("every sector"), "{said}");
    assert!(server.stop().contains("32768 bytes of"));
}

#[test]
fn a_data_device_with_data_is_not_filled_with_zeros_without_a_question() {
    let place = Place::new();
    let noise = place.noise("data", 4 << 20);
    let format = |options: &[&str]| {
        let all = ["integrity", "format", "meta", "--size", "8M", "--data-device", "data"];
        place.run(&[&all[..], options].concat())
    };
    format(&[]).fails(2, "data: holds data");
    assert!(place.read("data") == noise && !place.path("meta").exists());
    format(&["--no-wipe"]).succeeds();
    assert!(place.read("data") == noise);
    std::fs::remove_file(place.path("meta")).unwrap();
    format(&["--force"]).succeeds();
    assert!(place.read("data").iter().all(|byte| *byte == 0));
}

#[test]
fn a_larger_data_device_is_recorded_once_it_is_written_to() {
    let place = Place::new();
    let noise = place.noise("data", 4 << 20);
    place.noise("other", 8 << 20);
    place
        .run(&["integrity", "format", "meta", "--size", "8M", "--data-device", "data", "--force"])
        .succeeds();
    assert!(place.read("data") != noise);
    let serve = |data: &str, write_at: Option<u32>| {
        let open = ["integrity", "open", "meta", "--nbd", "unix:socket", "--data-device", data];
        let server = Server::run(place.command(&open));
        if let Some(at) = write_at {
            let script = format!("h.pwrite(bytes(4096), {at})\nh.flush()");
            let written = place.nbdsh(server.uri(), &script).output().unwrap();
            assert!(written.status.success(), "{written:?}");
        }
        server.stop();
    };
    let head = || place.read("meta")[..512].to_vec();
    let before = head();
    // A write that a smaller device has, too, needs no more than that.
    for write_at in [None, Some((4 << 20) - 4096)] {
        serve("other", write_at);
        assert!(head() == before);
        serve("data", None);
    }
    serve("other", Some((8 << 20) - 4096));
    assert!(head() != before);
    place.run(&["integrity", "open", "meta", "--data-device", "data"]).fails(5, "cut short");
    serve("other", None);
}
