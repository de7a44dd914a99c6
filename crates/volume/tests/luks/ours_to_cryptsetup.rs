//! Headers made here, given to cryptsetup.

use crate::support::*;
use underseal_volume::{FormatOptions, format};

#[test]
fn cryptsetup_opens_a_default_luks2_header() {
    let scratch = Scratch::new();
    let image = scratch.image("disk.img", 32 << 20);
    let file = open(&image);
    format(&file, &image, 32 << 20, &key(PASSPHRASE.as_bytes()), cheap(FormatOptions::luks2())).unwrap();
    let (image, secret) = (image.to_str().unwrap(), scratch.passphrase());
    cryptsetup(&["open", "--test-passphrase", "--key-file", secret.to_str().unwrap(), image]);
    activate(image.as_ref(), PASSPHRASE.as_bytes()).unwrap();
}

#[test]
fn cryptsetup_opens_a_default_luks1_header() {
    let scratch = Scratch::new();
    let image = scratch.image("disk.img", 32 << 20);
    let file = open(&image);
    format(&file, &image, 32 << 20, &key(PASSPHRASE.as_bytes()), cheap(FormatOptions::luks1())).unwrap();
    let (image, secret) = (image.to_str().unwrap(), scratch.passphrase());
    cryptsetup(&["open", "--test-passphrase", "--key-file", secret.to_str().unwrap(), image]);
    activate(image.as_ref(), PASSPHRASE.as_bytes()).unwrap();
}
