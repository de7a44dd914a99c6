//! Images that were cut short.

use std::fs::{File, OpenOptions};

use crate::support::volume::Volume;
use crate::support::{Scratch, output};

const BAD_HEADER: i32 = 5;

#[test]
fn an_image_shorter_than_its_header_says_is_refused_by_name_and_left_alone() {
    let scratch = Scratch::new();
    let table: [(&str, &[&str], &[u64]); 4] = [
        (
            "luks2",
            &["--type", "luks2"],
            &[0, 1, 511, 4095, 16_383, 20_000, 40_000, 1 << 20, 16_777_215, 16 << 20],
        ),
        ("luks2-512", &["--sector-size", "512"], &[1 << 20, (16 << 20) + 511]),
        ("luks1", &["--type", "luks1"], &[0, 1, 208, 591, 592, 5000, 100_000, 2_097_151, 2 << 20]),
        (
            "luks1-cbc",
            &["--type", "luks1", "--cipher", "aes-cbc-essiv:sha256", "--key-size", "128"],
            &[1000, 70_000],
        ),
    ];
    for (name, options, lengths) in table {
        let volume = Volume::at(&scratch, name).format("24M", options);
        let image = std::fs::read(&volume.image).unwrap();
        for &len in lengths {
            File::create(&volume.image).unwrap();
            std::fs::write(&volume.image, &image[..usize::try_from(len).unwrap()]).unwrap();
            let what = format!("{name} of {len} bytes");
            for verb in ["open", "read", "write"] {
                let mut command = volume.command(verb);
                if verb == "open" {
                    command.args(["--nbd", &format!("unix:{}", scratch.path("s").display())]);
                }
                let output = output(&mut command);
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(BAD_HEADER), "{verb}, {what}: {said}");
                assert!(said.contains(name) && !said.contains("panicked"), "{verb}, {what}: {said}");
                assert!(said.contains("\ntry: "), "{verb}, {what}: no remedy: {said}");
                assert!(!scratch.path("s").exists(), "{verb}, {what}: a socket was made");
            }
            assert_eq!(std::fs::metadata(&volume.image).unwrap().len(), len, "{what}: it was changed");
        }
    }
}

#[test]
fn a_plain_volume_that_would_begin_or_end_beyond_the_image_is_refused() {
    let scratch = Scratch::new();
    let volume = Volume::at(&scratch, "image").format("1M", &["--type", "plain"]);
    for options in [&["--data-offset", "1M"][..], &["--data-offset", "2M"], &["--data-size", "1025K"]] {
        let output = output(volume.command("read").args(["--type", "plain"]).args(options));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(BAD_HEADER), "{options:?}: {said}");
        assert!(said.contains("image"), "{options:?}: {said}");
    }
}

#[test]
fn a_detached_header_cut_short_is_refused_by_its_own_name() {
    let scratch = Scratch::new();
    let header = scratch.path("header").display().to_string();
    let volume = Volume::at(&scratch, "image")
        .format("1M", &["--header", &header])
        .with(["--header", header.as_str()]);
    OpenOptions::new().write(true).open(&header).unwrap().set_len(30_000).unwrap();
    let output = output(&mut volume.command("read"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(BAD_HEADER), "{said}");
    assert!(said.contains(&header), "{said}");
}
