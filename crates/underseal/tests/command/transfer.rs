//! `read` and `write`.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::command::common::{PASSPHRASE, Place, Ran};

#[test]
fn any_range_comes_back_as_it_was_written() {
    let place = Place::with_volume();
    let mut model = place.unlock("read", "disk", &[]).bytes;
    assert_eq!(model.len(), 16 << 20);
    for (offset, len) in
        [(0, 16 << 20), (0, 5), (4095, 2), (1 << 20, 1 << 20), (1_234_567, 3_456_789), ((16 << 20) - 1, 1)]
    {
        let bytes = place.noise("noise", len);
        model[offset..offset + len].copy_from_slice(&bytes);
        let at = offset.to_string();
        place.unlock("write", "disk", &["--offset", &at, "-i", "noise"]).succeeds();
        let back = place.unlock("read", "disk", &["--offset", &at, "--length", &len.to_string()]);
        assert!(back.bytes == bytes, "{offset} + {len}");
    }
    place.unlock("read", "disk", &["-o", "all", "--direct"]).succeeds();
    assert!(place.read("all") == model);
}

#[test]
fn passphrase_and_data_can_share_standard_input() {
    let place = Place::with_volume();
    let input = format!("{PASSPHRASE}\ndata that follows");
    place.run_with_input(&["write", "disk", "--passphrase-fd", "0"], input.as_bytes()).succeeds();
    let back = place.unlock("read", "disk", &["--length", "17"]);
    assert_eq!(back.stdout, "data that follows");
    // The same from a file, whose length is known: the passphrase's bytes do not count.
    let size = 16 << 20;
    let data = vec![7; size];
    std::fs::write(place.path("both"), [format!("{PASSPHRASE}\n").as_bytes(), &data].concat()).unwrap();
    let both = std::fs::File::open(place.path("both")).unwrap();
    let mut write = place.command(&["write", "disk", "--passphrase-fd", "0"]);
    Ran::from(write.stdin(Stdio::from(both)).output().unwrap()).succeeds();
    assert!(place.unlock("read", "disk", &[]).bytes == data);
}

#[test]
fn a_key_file_is_all_of_its_bytes_or_the_given_range() {
    let place = Place::new();
    let key = [&b"skipped"[..], b"line\nline\n", b"rest"].concat();
    std::fs::write(place.path("key"), &key).unwrap();
    let range = ["--key-file", "key", "--keyfile-offset", "7", "--keyfile-size", "10"];
    let format = ["format", "disk", "--size", "32M", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    place.run(&[&format[..], &range].concat()).succeeds();
    place.run(&[&["read", "disk", "-o", "out"][..], &range].concat()).succeeds();
    place.run_with_input(&["read", "disk", "-o", "out", "--key-file", "-"], &key[7..17]).succeeds();
    place
        .run_with_input(&["read", "disk", "-o", "out", "--key-file", "-"], &key[7..16])
        .fails(3, "no keyslot");
    place.run(&["read", "disk", "-o", "out", "--key-file", "key"]).fails(3, "no keyslot");
    std::fs::write(place.path("theirs"), &key[7..17]).unwrap();
    place.tool("cryptsetup", &["open", "--test-passphrase", "--key-file", "theirs", "disk"]);
}

#[test]
fn input_too_long_is_refused_before_anything_is_written_where_its_length_is_known() {
    let place = Place::with_volume();
    let before = place.read("disk");
    place.noise("noise", (16 << 20) + 1);
    place.unlock("write", "disk", &["-i", "noise"]).fails(2, "room for 16777216");
    assert!(place.read("disk") == before);
    // The length of a pipe is not known in advance: the part that fits is written, and an error
    // reports the rest.
    let piped = place.run_with_input(&["write", "disk", "--passphrase-file", "pass"], &place.read("noise"));
    piped.fails(1, "after 16777216 bytes: the input goes on beyond the volume's end");
    assert!(place.unlock("read", "disk", &[]).bytes == place.read("noise")[..16 << 20]);
}

#[test]
fn plain_bytes_are_for_their_owner_only_and_a_wrong_passphrase_leaves_the_output_alone() {
    let place = Place::with_volume();
    place.unlock("read", "disk", &["-o", "out"]).succeeds();
    assert_eq!(std::fs::metadata(place.path("out")).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(place.path("out"), "precious").unwrap();
    place.run(&["read", "disk", "-o", "out", "--passphrase-file", "wrong"]).fails(3, "no keyslot");
    assert_eq!(place.read("out"), b"precious");
}

#[test]
fn plain_volumes_take_the_parameters_they_were_written_with() {
    let place = Place::new();
    place.run(&["format", "disk", "--type", "plain", "--size", "4M"]).succeeds();
    place.noise("noise", 1 << 20);
    std::fs::write(place.path("key"), place.noise("rest", 100)).unwrap();
    let plain = ["disk", "--type", "plain", "--data-offset", "2048s", "--data-size", "1M", "--skip", "8"];
    let passphrase = [&plain[..], &["--passphrase-file", "pass"]].concat();
    let key = [&plain[..], &["--key-file", "key", "--key-size", "512"]].concat();
    for secret in [passphrase, key] {
        place.run(&[&["write", "-i", "noise"], &secret[..]].concat()).succeeds();
        let back = |args: &[&str]| place.run(&[&["read"], &secret[..], args].concat()).bytes;
        assert!(back(&[]) == place.read("noise"));
        let disk = place.read("disk");
        assert!(
            disk[..1 << 20].iter().chain(&disk[2 << 20..]).all(|&byte| byte == 0),
            "only its place is written"
        );
        let other =
            place.run(&[&["read"], &secret[..secret.len() - 2], &["--passphrase-file", "wrong"]].concat());
        assert!(other.bytes != place.read("noise"), "a wrong key gives noise");
    }
}

#[test]
fn openssl_decrypts_a_plain_volume_by_hand() {
    let place = Place::new();
    place.run(&["format", "disk", "--type", "plain", "--size", "1M"]).succeeds();
    let noise = place.noise("noise", 1 << 20);
    let plain = ["--type", "plain", "--cipher", "aes-cbc-essiv:sha256", "--passphrase-file", "pass"];
    place.run(&[&["write", "disk", "-i", "noise"], &plain[..]].concat()).succeeds();

    // The key is the passphrase's SHA-256; the IV of sector 0 is its number under the key's
    // SHA-256.
    let sha256 = |bytes: &[u8]| {
        std::fs::write(place.path("bytes"), bytes).unwrap();
        place.tool("openssl", &["dgst", "-sha256", "-r", "bytes"])[..64].to_owned()
    };
    let key = sha256(PASSPHRASE.as_bytes());
    let salt = sha256(&unhex(&key));
    std::fs::write(place.path("number"), [0; 16]).unwrap();
    let iv = ["enc", "-aes-256-ecb", "-nopad", "-K", &salt, "-in", "number", "-out", "iv"];
    place.tool("openssl", &iv);
    let iv: String = place.read("iv").iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(place.path("sector"), &place.read("disk")[..512]).unwrap();
    let decrypt =
        ["enc", "-d", "-aes-256-cbc", "-nopad", "-K", &key, "-iv", &iv, "-in", "sector", "-out", "plain"];
    place.tool("openssl", &decrypt);
    assert!(place.read("plain") == noise[..512]);
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
