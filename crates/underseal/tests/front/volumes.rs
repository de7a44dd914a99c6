//! Volumes that are made and opened.

use std::fs;
use std::path::Path;

use crate::front::pair::{CHEAP, Open, Pair, all, text, with_stdin};
use crate::support::mounts::{cannot_fuse, cannot_mount, client, skip};
use crate::support::{output, run, tool};

#[test]
fn what_one_formats_the_other_opens() {
    let cases: &[&[&str]] = &[
        &["--type", "luks1"],
        &["--type", "luks1", "--cipher", "aes-cbc-essiv:sha256", "--key-size", "256", "--hash", "sha512"],
        &["--type", "luks2"],
        &["--sector-size", "512", "--uuid", "12345678-1234-1234-1234-123456789abc"],
        &["--label", "a name", "--subsystem", "of mine"],
        &["-c", "aes-cbc-essiv:sha256", "-s", "256", "-h", "sha512"],
        &["--luks2-metadata-size", "64k", "--luks2-keyslots-size", "2m"],
        &["--offset", "32768"],
        &["--align-payload", "8192"],
        &["--key-slot", "3"],
    ];
    for case in cases {
        let pair = Pair::new();
        pair.image("disk", 24 << 20);
        pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP, case].concat(), "secret\n");
        pair.each_opens_the_others("disk", "secret\n", true);
        pair.each_opens_the_others("disk", "wrong\n", false);
        // Only random and measured values differ.
        let said = pair.succeed(&["luksDump", "disk"], "");
        let (ours, theirs) = (steady(&said.ours.stdout), steady(&said.theirs.stdout));
        assert_eq!(ours, theirs, "{case:?}");
    }
}

/// A dump's lines without salts, digests, and other random values.
fn steady(dump: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(dump).into_owned();
    let is_hex = |line: &str| line.split_whitespace().all(|word| word.len() == 2);
    let varies = ["UUID:", "Salt:", "Digest:", "MK salt:", "MK digest:", "Epoch:", "MK iterations:"];
    let keeps = |line: &&str| !is_hex(line) && !varies.iter().any(|word| line.trim().starts_with(word));
    text.lines().filter(keeps).map(str::to_owned).collect()
}

#[test]
fn an_open_volume_is_a_file_that_takes_a_file_system() {
    if let Some(reason) = cannot_mount() {
        return skip("a mounted file system", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 32 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    let open = Open::start(&pair, "fs", &["disk"], "secret\n");
    let device = Path::new("/dev/mapper").join(&open.name);
    run(tool("mkfs.ext4").args(["-q", "-F"]).arg(&device));
    let folder = pair.folder("mnt");
    fs::create_dir(&folder).unwrap();
    run(client("mount").arg(&device).arg(&folder));
    fs::write(folder.join("file"), b"kept").unwrap();

    let again = with_stdin(pair.ours().args(["open", "disk", &open.name]), "secret\n");
    assert_eq!(again.status.code(), Some(5), "{}", all(&again));
    let busy = output(pair.ours().args(["close", &open.name]));
    assert_eq!(busy.status.code(), Some(5), "a file system is mounted from it: {}", all(&busy));
    assert_eq!(fs::read(folder.join("file")).unwrap(), b"kept");
    run(client("umount").arg(&folder));

    let status = output(pair.ours().args(["status", &open.name]));
    for line in [
        " is active.",
        "type:    LUKS2",
        "cipher:  aes-xts-plain64",
        "keysize: 512 bits",
        "mode:    read/write",
    ] {
        assert!(all(&status).contains(line), "{line}: {}", all(&status));
    }
    run(pair.ours().args(["close", text(&device)]));
    assert!(!device.exists() && !open.plain.exists(), "nothing is left of it");
    let gone = output(pair.ours().args(["status", &open.name]));
    assert_eq!(gone.status.code(), Some(4), "{}", all(&gone));
    let closed = output(pair.ours().args(["close", &open.name]));
    assert_eq!(closed.status.code(), Some(4), "{}", all(&closed));

    // Read only, by a key file, and the file is there.
    pair.file("key", b"secret");
    let open = Open::start(&pair, "fs", &["disk", "--readonly", "--key-file", "key"], "");
    run(client("mount").args(["-o", "ro,noload"]).arg(&open.plain).arg(&folder));
    assert_eq!(fs::read(folder.join("file")).unwrap(), b"kept");
    run(client("umount").arg(&folder));
    run(pair.ours().args(["close", &open.name]));
}

/// Asserts which lines `status` has, as scripts look for them.
#[track_caller]
fn has_lines(pair: &Pair, name: &str, has: &[&str], has_not: &[&str]) {
    let status = run(pair.ours().args(["status", name]));
    for line in has {
        assert!(status.lines().any(|found| found.trim() == *line), "{line:?} is not in {status}");
    }
    for part in has_not {
        assert!(!status.contains(part), "{part:?} is in {status}");
    }
}

#[test]
fn the_status_tells_what_scripts_look_for() {
    if let Some(reason) = cannot_mount() {
        return skip("status", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 32 << 20);
    let words = ["disk", "--type", "plain", "-c", "aes-xts-plain64", "-s", "256", "-h", "sha256"];
    let more = ["--offset", "16", "--skip", "8", "--allow-discards", "--perf-same_cpu_crypt"];
    let open = Open::start(&pair, "told", &[&words[..], &more].concat(), "secret\n");
    let lines = [
        "type:    PLAIN",
        "cipher:  aes-xts-plain64",
        "keysize: 256 bits",
        "key location: dm-crypt",
        "sector size:  512 [bytes]",
        "offset:  16 [512-byte units] (8192 [bytes])",
        "skipped: 8 [512-byte units] (4096 [bytes])",
        "mode:    read/write",
        "flags:   discards same_cpu_crypt",
    ];
    has_lines(&pair, &open.name, &lines, &["integrity", "reencryption", "loop:"]);
    run(pair.ours().args(["close", &open.name]));

    // Without options the status has no flags; a loop device's line names its file.
    let looped = run(tool("losetup").args(["--find", "--show"]).arg(pair.folder("ours").join("disk")));
    let looped = looped.trim();
    let opened = with_stdin(
        pair.ours().args(["open", "--type", "plain", "-c", "aes-xts-plain64", looped, &open.name]),
        "secret\n",
    );
    let file = fs::canonicalize(pair.folder("ours").join("disk")).unwrap();
    let status = output(pair.ours().args(["status", &open.name]));
    run(pair.ours().args(["close", &open.name]));
    run(tool("losetup").args(["--detach", looped]));
    assert!(opened.status.success(), "{}", all(&opened));
    assert!(all(&status).contains(&format!("  loop:    {}\n", text(&file))), "{}", all(&status));
    assert!(!all(&status).contains("flags:"), "{}", all(&status));

    let integrity = ["luksFormat", "-q", "disk", "--integrity", "hmac-sha256", "--sector-size", "4096"];
    let formatted =
        with_stdin(pair.ours().args(integrity).arg("--integrity-no-wipe").args(CHEAP), "secret\n");
    assert!(formatted.status.success(), "{}", all(&formatted));
    let open = Open::start(&pair, "told", &["disk"], "secret\n");
    let lines = [
        "type:    LUKS2",
        "integrity: hmac(sha256)",
        "integrity keysize: 256 bits",
        "keysize: 768 bits",
        "sector size:  4096 [bytes]",
    ];
    has_lines(&pair, &open.name, &lines, &["flags:", "skipped:"]);
    run(pair.ours().args(["close", &open.name]));

    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    let begin = ["reencrypt", "-q", "--init-only", "disk", "--force-offline-reencrypt"];
    pair.succeed(&[&begin[..], &CHEAP].concat(), "secret\n");
    let open = Open::start(&pair, "told", &["disk"], "secret\n");
    has_lines(&pair, &open.name, &["reencryption:  in-progress"], &["integrity"]);
    run(pair.ours().args(["close", &open.name]));
}

#[test]
fn a_volume_whose_server_was_killed_opens_again() {
    if let Some(reason) = cannot_fuse() {
        return skip("killed", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    let open = Open::start(&pair, "killed", &["disk"], "secret\n");
    let list = run(pair.ours().env("UNDERSEAL_NONE", "").args(["status", &open.name]));
    assert!(list.contains("active"), "{list}");
    let mut status = tool(env!("CARGO_BIN_EXE_underseal"));
    let status = run(status.args(["status", "--json", &open.name]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let pid =
        status["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()));
    rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
    let gone = || !all(&output(pair.ours().args(["status", &open.name]))).contains("is active");
    crate::support::tools::wait_until("the server is gone", crate::support::tools::PATIENCE, gone);
    let again = with_stdin(pair.ours().args(["open", "disk", &open.name]), "secret\n");
    assert!(again.status.success(), "{}", all(&again));
    run(pair.ours().args(["close", &open.name]));
}

#[test]
fn a_plain_volume_needs_no_header() {
    if let Some(reason) = cannot_fuse() {
        return skip("plain", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 1 << 20);
    let words = ["disk", "--type", "plain", "-c", "aes-cbc-essiv:sha256", "-s", "256", "-h", "ripemd160"];
    let more = ["--skip", "8", "--offset", "16", "--size", "1024"];
    let open = Open::start(&pair, "plain", &[&words[..], &more].concat(), "secret\n");
    assert_eq!(fs::metadata(&open.plain).unwrap().len(), 1024 * 512);
    fs::write(&open.plain, vec![7; 1024 * 512]).unwrap();
    run(pair.ours().args(["close", &open.name]));
    let raw = fs::read(pair.folder("ours").join("disk")).unwrap();
    assert!(raw[..16 * 512].iter().all(|byte| *byte == 0) && raw[16 * 512..][..512] != [7; 512]);
    // The same by underseal's own words.
    let mut read = tool(env!("CARGO_BIN_EXE_underseal"));
    read.current_dir(pair.folder("ours")).args([
        "read",
        "disk",
        "--type",
        "plain",
        "--cipher",
        "aes-cbc-essiv:sha256",
    ]);
    read.args([
        "--key-size",
        "256",
        "--hash",
        "ripemd160",
        "--skip",
        "8",
        "--data-offset",
        "16s",
        "--data-size",
        "1024s",
    ]);
    let read = with_stdin(read.args(["--passphrase-fd", "0"]), "secret\n");
    assert!(read.stdout == vec![7; 1024 * 512], "{}", String::from_utf8_lossy(&read.stderr));
}

#[test]
fn defaults_of_plain_volumes_that_changed_are_told() {
    let pair = Pair::new();
    pair.image("disk", 1 << 20);
    pair.file("key", &[7; 64]);
    let warns = |words: &str| {
        let mut open = pair.ours();
        // Data that would begin beyond the end: nothing is opened.
        open.args(["open", "--type", "plain", "disk", "--offset", "9999999"]).args(words.split(' '));
        let refused = with_stdin(open.arg("none"), "secret\n");
        assert!(!refused.status.success(), "{}", all(&refused));
        all(&refused).contains("defaults are those of cryptsetup 2.7")
    };
    for words in ["-c aes-xts-plain64 -s 256", "-s 256 -h sha256", "-c aes-xts-plain64 -h sha256", "-d key"] {
        assert!(warns(words), "{words}");
    }
    for words in ["-c aes-xts-plain64 -s 256 -h sha256", "-c aes-xts-plain64 -s 512 -d key"] {
        assert!(!warns(words), "{words}");
    }
}

#[test]
fn who_gives_a_wrong_passphrase_leaves_nothing_behind() {
    if let Some(reason) = cannot_fuse() {
        return skip("wrong", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    let name = format!("us-wrong-{}", std::process::id());
    let output = with_stdin(pair.ours().args(["open", "disk", &name]), "wrong\n");
    assert_eq!(output.status.code(), Some(2), "{}", all(&output));
    assert!(all(&output).contains("No key available with this passphrase."), "{}", all(&output));
    assert!(!pair.folder("mapper").join(&name).exists() && !Path::new("/dev/mapper").join(&name).exists());
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    let folder = pair.folder("mapper");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let output = with_stdin(pair.ours().args(["open", "disk", "name"]), "secret\n");
    assert_eq!(output.status.code(), Some(2), "{}", all(&output));
    assert!(!folder.join("name").exists());
}

#[test]
fn what_is_in_use_is_not_closed_wherever_it_is_looked_for() {
    if let Some(reason) = cannot_mount() {
        return skip("in use", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    let open = Open::start(&pair, "used", &["disk"], "secret\n");
    let device = Path::new("/dev/mapper").join(&open.name);
    let looped = fs::canonicalize(&device).unwrap();
    let held = fs::File::open(&device).unwrap();
    for mapper in ["mapper", "other"] {
        let mut close = pair.ours();
        let busy = output(close.env("UNDERSEAL_MAPPER", pair.folder(mapper)).args(["close", &open.name]));
        assert_eq!(busy.status.code(), Some(5), "{mapper}: {}", all(&busy));
        assert_eq!(fs::canonicalize(&device).unwrap(), looped, "no other loop device took its place");
    }
    drop(held);
    // The kernel does not give the device to another file, to which the link would lead.
    let bound = Path::new("/sys/block").join(looped.file_name().unwrap()).join("loop/backing_file");
    let is_ours = || fs::read_to_string(&bound).is_ok_and(|file| file.trim_end() == text(&open.plain));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(is_ours(), "{}", looped.display());
    run(pair.ours().args(["close", &open.name]));
    assert!(!is_ours());
    assert!(fs::symlink_metadata(&device).is_err());
}

#[test]
fn how_it_is_opened_is_kept_where_that_is_asked_for() {
    if let Some(reason) = cannot_fuse() {
        return skip("persistent flags", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    for (words, flags) in [
        (
            &["disk", "--persistent", "--allow-discards", "--perf-no_read_workqueue"][..],
            "allow-discards no-read-workqueue",
        ),
        (&["disk", "--persistent", "--perf-same_cpu_crypt"], "same-cpu-crypt"),
        (&["disk", "--allow-discards"], "same-cpu-crypt"),
    ] {
        let open = Open::start(&pair, "kept", words, "secret\n");
        run(pair.ours().args(["close", &open.name]));
        let mut dump = pair.theirs();
        let dump = run(dump.arg("luksDump").arg(pair.folder("ours").join("disk")));
        assert!(dump.contains(&format!("Flags:       \t{flags}")), "{words:?}: {dump}");
    }
}

#[test]
fn large_sectors_may_count_in_ivs() {
    if let Some(reason) = cannot_fuse() {
        return skip("large sectors", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 1 << 20);
    let words =
        ["disk", "--type", "plain", "--sector-size", "4096", "--iv-large-sectors", "-c", "aes-xts-plain64"];
    let open = Open::start(&pair, "large", &words, "secret\n");
    fs::write(&open.plain, vec![7; 1 << 20]).unwrap();
    run(pair.ours().args(["close", &open.name]));
    // dm-crypt's own words for it; the key is the passphrase's hash.
    let key: String = sha2_of(b"secret").iter().map(|byte| format!("{byte:02x}")).collect();
    let image = pair.folder("ours").join("disk");
    let line = format!(
        "0 2048 crypt aes-xts-plain64 {key} 0 {} 0 2 sector_size:4096 iv_large_sectors",
        text(&image)
    );
    fs::write(pair.folder("ours").join("table"), line).unwrap();
    let plain = pair.folder("ours").join("plain");
    let mut decrypt = tool(env!("CARGO_BIN_EXE_underseal"));
    decrypt
        .current_dir(pair.folder("ours"))
        .args(["table", "decrypt", "--table", "table", "--output"])
        .arg(&plain);
    run(&mut decrypt);
    assert!(fs::read(plain).unwrap() == vec![7; 1 << 20]);
}

fn sha2_of(bytes: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).to_vec()
}

#[test]
fn a_plain_volume_is_as_long_as_is_said() {
    if let Some(reason) = cannot_mount() {
        return skip("lengths", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 4 << 20);
    let words = ["disk", "--type", "plain", "--device-size", "1M"];
    let open = Open::start(&pair, "long", &words, "secret\n");
    let device = Path::new("/dev/mapper").join(&open.name);
    let size = || run(tool("blockdev").arg("--getsize64").arg(&device)).trim().to_owned();
    assert_eq!((fs::metadata(&open.plain).unwrap().len(), size()), (1 << 20, (1 << 20).to_string()));
    run(pair.ours().args(["resize", &open.name, "--size", "4096"]));
    assert_eq!(size(), (2 << 20).to_string(), "the block device has the new size");
    run(pair.ours().args(["close", &open.name]));
}

#[test]
fn a_name_is_whatever_device_mapper_takes() {
    if let Some(reason) = cannot_mount() {
        return skip("names", reason);
    }
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    let runtime = pair.folder(&"r".repeat(40));
    fs::create_dir(&runtime).unwrap();
    let own = || {
        let mut own = tool(env!("CARGO_BIN_EXE_underseal"));
        own.env("UNDERSEAL_RUNTIME_DIR", &runtime);
        own
    };
    let ours = |words: &[&str], stdin| {
        let mut ours = pair.ours();
        ours.env("UNDERSEAL_RUNTIME_DIR", &runtime).args(words);
        with_stdin(&mut ours, stdin)
    };
    let unique = std::process::id();
    let tomb = format!("tomb.secret.{}.loop{unique}", "0123456789abcdef".repeat(4));
    let longest = format!("{:x<127}", format!("us-{unique}"));
    let odd = (format!("us {unique},%~{{}}!'"), format!(r"us\x20{unique}\x2c\x25\x7e\x7b\x7d\x21\x27"));
    for (name, spelled) in [(&tomb, &tomb), (&longest, &longest), (&odd.0, &odd.1)] {
        let opened = ours(&["open", "disk", name], "secret\n");
        assert!(opened.status.success(), "{name}: {}", all(&opened));
        let device = Path::new("/dev/mapper").join(spelled);
        assert!(device.exists(), "{}", device.display());
        for asked in [name, spelled, text(&device)] {
            let status = ours(&["status", asked], "");
            let active = format!("{} is active.", device.display());
            assert!(all(&status).contains(&active), "{asked}: {}", all(&status));
        }
        let listed: serde_json::Value = serde_json::from_str(&run(own().args(["list", "--json"]))).unwrap();
        assert_eq!(listed[0]["name"].as_str(), Some(&**name), "{listed}");
        let again = ours(&["open", "disk", name], "secret\n");
        assert_eq!(again.status.code(), Some(5), "{name}: {}", all(&again));
        let closed = ours(&["close", text(&device)], "");
        assert!(closed.status.success() && !device.exists(), "{name}: {}", all(&closed));
        assert_eq!(run(own().args(["list", "--json"])).trim(), "[]");
        // By our own name, and through a handover.
        let passphrase = pair.folder("secret");
        fs::write(&passphrase, "secret").unwrap();
        let nbd = format!("unix:{}", text(&pair.folder("nbd")));
        let mut open = own();
        open.args([
            "-q",
            "open",
            "--nbd",
            &nbd,
            "--hand-over",
            "--daemon",
            "--name",
            name,
            "--passphrase-file",
        ])
        .arg(&passphrase);
        run(open.arg(pair.folder("ours").join("disk")));
        run(own().args(["-q", "upgrade", name]));
        run(own().args(["status", name]));
        run(own().args(["close", name]));
    }
    for name in ["..", ".hidden", "a\nb", "a\x1b[2J", "a/b", r"a\x2fb", &"x".repeat(128)] {
        let refused = ours(&["open", "disk", name], "secret\n");
        assert_eq!(refused.status.code(), Some(1), "{name:?}: {}", all(&refused));
        assert!(all(&refused).contains("is no name for a volume"), "{name:?}: {}", all(&refused));
    }
}
