//! Refused images, and the error messages.

use crate::rbd::cluster::{Image, Pool, given};
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, underseal};
use crate::support::{Scratch, fails, run};

#[test]
fn addresses_that_are_none_are_usage_errors() {
    for (address, part) in [
        ("rbd:", "an empty name"),
        ("rbd:pool", "the image is missing"),
        ("rbd:pool/image:id", "OPTION=VALUE"),
        ("rbd:pool/image:rbd_cache=true", "configuration file"),
        ("rbd:pool/image:id=me:key=AQsecret", "keyring=FILE"),
    ] {
        for verb in ["info", "read", "format"] {
            let (status, said) = fails(underseal().args([verb, address]));
            assert_eq!(status, 2, "{verb} {address}: {said}");
            assert!(said.contains(part) && !said.contains("AQsecret"), "{verb} {address}: {said}");
        }
    }
}

/// Without a cluster either the library is missing, or no monitor answers.
#[test]
fn a_cluster_that_is_not_there_is_told_of() {
    let scratch = Scratch::new();
    let conf = scratch.file("ceph.conf", b"[global]\nmon_host = 127.0.0.1:1\nauth_client_required = none\n");
    let address = format!("rbd:pool/image:conf={}:client_mount_timeout=1", conf.display());
    let (status, said) = fails(underseal().arg("info").arg(&address));
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("librbd1") || said.contains("monitor") || said.contains("connect"), "{said}");
    let (status, said) = fails(underseal().args(["info", "rbd:pool/image:conf=/nowhere/ceph.conf"]));
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("librbd1") || said.contains("configuration cannot be read"), "{said}");
}

/// librados ends the process where an option of its own has no value.
#[test]
fn arguments_of_cephs_that_end_too_soon_are_refused() {
    let Some(conf) = given() else { return };
    let info = |arguments: &str| {
        let mut info = underseal();
        info.env("CEPH_ARGS", arguments).arg("info").arg(format!("rbd:rbd/nothing:conf={}", conf.display()));
        fails(&mut info)
    };
    for (arguments, option) in [("--keyring", "--keyring"), ("--rbd_cache=false -m ", "-m")] {
        let (status, said) = info(arguments);
        assert_eq!(status, 1, "{said}");
        assert!(said.contains(&format!("CEPH_ARGS ends with {option}, which has no value")), "{said}");
    }
    for arguments in ["--no-mon-config", "--debug_rbd 0", "--rbd_cache=true", "--nonsense 1", "-"] {
        let (_, said) = info(arguments);
        assert!(said.contains("no image nothing"), "{arguments}: {said}");
    }
}

#[test]
fn pools_and_images_that_are_not_there_are_named() {
    let Some(conf) = given() else { return };
    for (place, part) in [("nothing/image", "no pool nothing"), ("rbd/nothing", "no image nothing")] {
        let (status, said) =
            fails(underseal().arg("info").arg(format!("rbd:{place}:conf={}", conf.display())));
        assert!(status == 1 && said.contains(part), "{said}");
    }
}

#[test]
fn a_header_that_only_librbd_understands_is_told_of() {
    let scratch = Scratch::new();
    let mut bytes = vec![0; 4 << 20];
    bytes[..8].copy_from_slice(b"RBDL\xba\xbe\0\x02");
    let file = scratch.file("layered", &bytes);
    let Some(image) = Image::of(&file) else { return };
    for place in [image.address(""), file.display().to_string()] {
        let (status, said) = fails(underseal().arg("info").arg(place));
        assert_eq!(status, 6, "{said}");
        assert!(said.contains("RBDL") && said.contains("rbd flatten"), "{said}");
    }
}

#[test]
fn the_cache_that_an_image_turns_on_is_refused() {
    let scratch = Scratch::new();
    let Some(image) = Image::new(24) else { return };
    let volume = image.volume(&scratch, "");
    let config = |word: &str, setting: &[&str]| {
        run(image.rbd("config").args(["image", word]).arg(image.path()).args(setting));
    };
    for (option, value) in
        [("rbd_cache", "true"), ("rbd_persistent_cache_mode", "ssd"), ("rbd_persistent_cache_mode", "rwl")]
    {
        config("set", &[option, value]);
        let mut format = underseal();
        let (status, said) =
            fails(format.arg("format").arg(&volume.image).arg("--passphrase-file").arg(&volume.passphrase));
        assert_eq!(status, 1, "{said}");
        assert!(said.contains(option) && said.contains("rbd config image"), "{option}={value}: {said}");
        config("remove", &[option]);
    }
}

/// The settings of a pool hold in its namespaces, too.
#[test]
fn what_a_pool_turns_on_again_is_refused_in_its_namespaces_too() {
    let scratch = Scratch::new();
    let Some(pool) = Pool::new() else { return };
    let passphrase = scratch.file("pass", PASSPHRASE.as_bytes());
    run(pool.rbd(&["namespace", "create"]).arg(format!("{}/ns", pool.name)));
    for place in [format!("{}/ns/image", pool.name), format!("{}/image", pool.name)] {
        run(pool.rbd(&["create", "--size", "24M"]).arg(&place));
        let format = || {
            let mut format = underseal();
            format.arg("format").arg(format!("rbd:{place}:conf={}", pool.conf.display())).args(CHEAP_PBKDF2);
            format.args(["-q", "--force", "--passphrase-file"]).arg(&passphrase);
            format
        };
        for (option, value) in [("rbd_cache", "true"), ("rbd_disable_zero_copy_writes", "false")] {
            run(pool.rbd(&["config", "pool", "set"]).args([&pool.name, option, value]));
            let (status, said) = fails(&mut format());
            assert!(status == 1 && said.contains(option) && said.contains("config pool remove"), "{said}");
            run(pool.rbd(&["config", "pool", "remove"]).args([&pool.name, option]));
            run(pool.rbd(&["config", "image", "set"]).args([&place, option, value]));
            let (status, said) = fails(&mut format());
            assert!(status == 1 && said.contains(option) && said.contains("config image remove"), "{said}");
            run(pool.rbd(&["config", "image", "remove"]).args([&place, option]));
        }
        run(&mut format());
    }
}
