//! Headers that are lost: removed or replaced while they record the progress, or overwritten by
//! cryptsetup while the volume is open.

use super::*;

/// Runs a reencryption, and changes the header's file as it asks for the third step.
fn changed(case: &Case, options: &ReencryptionOptions, mode: &str, change: impl Fn()) {
    let mut steps = 0;
    let progress = |_, _| {
        steps += 1;
        if steps == 3 {
            change();
        }
        ControlFlow::Continue(())
    };
    let error = Header::reencrypt(&case.image, SECRET, options, progress);
    let error = error.expect_err(mode);
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(format!("{error:?}").contains("was removed or replaced"), "{mode}: {error:?}");
    assert_eq!(steps, 3, "{mode}");
}

#[test]
fn no_step_is_done_once_the_header_was_removed_or_replaced() {
    for is_replaced in [true, false] {
        for mode in ["encrypt", "reencrypt", "decrypt"] {
            let case = Case::plain(SIZE);
            let header = case.path("header");
            let encrypt = ReencryptionOptions::encrypt().header(&header).pbkdf2(1000);
            if mode != "encrypt" {
                assert_eq!(case.reencrypt(&encrypt).unwrap(), ReencryptionEnd::Finished);
            }
            let options = match mode {
                "encrypt" => encrypt,
                "reencrypt" => ReencryptionOptions::new().header(&header),
                _ => ReencryptionOptions::decrypt().header(&header),
            };
            let kept = case.path("kept");
            changed(&case, &options.hotzone_size(1 << 20), mode, || {
                fs::copy(&header, &kept).unwrap();
                match is_replaced {
                    true => fs::rename(&kept, &header).unwrap(),
                    false => fs::remove_file(&header).unwrap(),
                }
            });
            if !is_replaced {
                fs::rename(&kept, &header).unwrap();
            }
            case.is_whole(Some(&header), mode);
            let resume = ReencryptionOptions::resume().header(&header);
            assert_eq!(case.reencrypt(&resume).unwrap(), ReencryptionEnd::Finished, "{mode}");
            match mode {
                "encrypt" | "reencrypt" => case.is_whole(Some(&header), mode),
                _ => assert!(fs::read(&case.image).unwrap() == case.plain, "{mode}"),
            }
        }
    }
}

#[test]
fn a_decryption_that_was_cut_off_as_the_header_moved_is_begun_again() {
    let case = Case::luks2();
    let header = case.path("header");
    let mut image = fs::read(&case.image).unwrap();
    fs::write(&header, &image[..16 << 20]).unwrap();
    let decrypt = ReencryptionOptions::decrypt().header(&header).force(true);
    assert!(case.reencrypt(&decrypt).is_err(), "the header is in front still, and the file is there");
    // The first copy in front of the data is wiped, and the second one is not.
    image[..512].fill(0);
    fs::write(&case.image, &image).unwrap();
    assert_eq!(case.reencrypt(&decrypt).unwrap(), ReencryptionEnd::Finished);
    assert!(fs::read(&case.image).unwrap()[..SIZE] == case.plain);
}

#[test]
fn a_volume_that_cryptsetup_begins_to_decrypt_fails_its_flushes() {
    let case = Case::luks2();
    let options = OpenOptions::new().passphrase(SECRET).unwrap().writable(true);
    let volume = options.open(&case.image).unwrap();
    let header = case.path("header");
    let mut command = case.cryptsetup("reencrypt --decrypt --force-offline-reencrypt");
    let output = command.arg("--header").arg(&header).output().unwrap();
    if output.status.success() {
        return underseal_testing::skip("the lock of reencryptions", "only root can take it");
    }
    volume.write_at(0, &[1; 512]).unwrap();
    assert_eq!(volume.flush().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(volume.write_at(0, &[1; 512]).unwrap_err().kind(), ErrorKind::Io);
    drop(volume);
    let mut command = case.cryptsetup("reencrypt --resume-only --force-offline-reencrypt");
    command.arg("--header").arg(&header);
    run(command);
    assert!(fs::read(&case.image).unwrap()[..SIZE] == case.plain);
}

#[test]
fn no_step_is_done_once_a_new_header_was_removed_as_the_reencryption_began() {
    for decrypts in [false, true] {
        let case = if decrypts { Case::luks2() } else { Case::plain(SIZE) };
        let header = case.path("header");
        let options = match decrypts {
            true => ReencryptionOptions::decrypt().header(&header).force(true),
            false => ReencryptionOptions::encrypt().header(&header).pbkdf2(1000),
        };
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !fs::metadata(&header).is_ok_and(|of| of.len() > 0) {
                    std::thread::yield_now();
                }
                fs::remove_file(&header).unwrap();
            });
            case.reencrypt(&options).expect_err("its header has no name")
        });
        assert!(format!("{error:?}").contains("was removed or replaced"), "{error:?}");
        match decrypts {
            true => case.is_whole(None, "the old header is whole"),
            false => assert!(fs::read(&case.image).unwrap() == case.plain),
        }
    }
}
