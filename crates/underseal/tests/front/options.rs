//! Which options each action takes, in both programs: nothing is run, the arguments are only looked
//! at.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::front::pair::{CHEAP, Pair, all, with_stdin};

/// Actions, and what stands behind each.
const ACTIONS: [(&str, &[&str]); 26] = [
    ("open", &["disk", "name"]),
    ("close", &["name"]),
    ("resize", &["name"]),
    ("status", &["name"]),
    ("benchmark", &[]),
    ("repair", &["disk"]),
    ("reencrypt", &["disk"]),
    ("erase", &["disk"]),
    ("convert", &["disk"]),
    ("config", &["disk"]),
    ("luksFormat", &["disk"]),
    ("luksAddKey", &["disk"]),
    ("luksRemoveKey", &["disk"]),
    ("luksChangeKey", &["disk"]),
    ("luksConvertKey", &["disk"]),
    ("luksKillSlot", &["disk", "0"]),
    ("luksUUID", &["disk"]),
    ("isLuks", &["disk"]),
    ("luksDump", &["disk"]),
    ("tcryptDump", &["disk"]),
    ("luksSuspend", &["name"]),
    ("luksResume", &["name"]),
    ("luksHeaderBackup", &["disk"]),
    ("luksHeaderRestore", &["disk"]),
    ("token", &["import", "disk"]),
    ("refresh", &["disk", "name"]),
];

/// All options of cryptsetup 2.6, each with a value where it wants one.
const OPTIONS: [&str; 92] = [
    "active-name=n",
    "align-payload=8",
    "allow-discards",
    "batch-mode",
    "block-size=1",
    "cancel-deferred",
    "cipher=aes-xts-plain64",
    "debug",
    "debug-json",
    "decrypt",
    "deferred",
    "device-size=1M",
    "disable-external-tokens",
    "disable-keyring",
    "disable-locks",
    "disable-veracrypt",
    "dump-json-metadata",
    "dump-volume-key",
    "encrypt",
    "force-offline-reencrypt",
    "force-password",
    "hash=sha256",
    "header=h",
    "header-backup-file=b",
    "hotzone-size=1M",
    "init-only",
    "integrity=hmac-sha256",
    "integrity-legacy-padding",
    "integrity-no-journal",
    "integrity-no-wipe",
    "iter-time=100",
    "iv-large-sectors",
    "json-file=j",
    "keep-key",
    "key-description=d",
    "key-file=k",
    "key-size=256",
    "key-slot=1",
    "keyfile-offset=1",
    "keyfile-size=1",
    "keyslot-cipher=aes-xts-plain64",
    "keyslot-key-size=256",
    "label=l",
    "luks2-keyslots-size=1M",
    "luks2-metadata-size=16K",
    "new",
    "new-key-slot=1",
    "new-keyfile=n",
    "new-keyfile-offset=1",
    "new-keyfile-size=1",
    "new-token-id=1",
    "offset=8",
    "pbkdf=pbkdf2",
    "pbkdf-force-iterations=1000",
    "pbkdf-memory=1000",
    "pbkdf-parallel=1",
    "perf-no_read_workqueue",
    "perf-no_write_workqueue",
    "perf-same_cpu_crypt",
    "perf-submit_from_crypt_cpus",
    "persistent",
    "priority=normal",
    "progress-frequency=1",
    "progress-json",
    "readonly",
    "reduce-device-size=1M",
    "refresh",
    "resilience=checksum",
    "resilience-hash=sha256",
    "resume-only",
    "sector-size=512",
    "serialize-memory-hard-pbkdf",
    "shared",
    "size=8",
    "skip=8",
    "subsystem=s",
    "tcrypt-backup",
    "tcrypt-hidden",
    "tcrypt-system",
    "test-passphrase",
    "timeout=1",
    "token-id=1",
    "token-only",
    "token-replace",
    "token-type=t",
    "tries=2",
    "type=luks2",
    "unbound",
    "use-directio",
    "use-fsync",
    "use-random",
    "use-urandom",
];
/// Options from `u` on.
const MORE: [&str; 8] = [
    "uuid=12345678-1234-1234-1234-123456789abc",
    "verbose",
    "verify-passphrase",
    "veracrypt",
    "veracrypt-pim=1",
    "veracrypt-query-pim",
    "volume-key-file=v",
    "write-log",
];

/// Where the programs differ on purpose.
fn differs(action: &str, option: &str) -> bool {
    match action {
        // The size of an open volume is changed by resize.
        "open" => ["device-size=1M", "size=8"].contains(&option),
        // Options that a reencryption does not use here, and would ignore.
        "reencrypt" => {
            ["align-payload=8", "integrity=hmac-sha256", "integrity-no-wipe", "label=l", "subsystem=s"]
                .contains(&option)
        }
        _ => false,
    }
}

#[test]
fn each_action_takes_the_options_that_it_takes_there() {
    let pair = Pair::new();
    pair.image("disk", 1 << 20);
    let options: Vec<&str> = OPTIONS.into_iter().chain(MORE).collect();
    let cases: Vec<_> =
        ACTIONS.iter().flat_map(|of| options.iter().map(move |option| (of, *option))).collect();
    let (next, wrong, taken) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()), AtomicUsize::new(0));
    let work = || {
        while let Some(((action, words), option)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let option_word = format!("--{option}");
            let words = [&[*action, &option_word, "--test-args"][..], words].concat();
            let said = pair.run(&words, "");
            let (ours, theirs) = (said.ours.status.success(), said.theirs.status.success());
            taken.fetch_add(usize::from(ours && theirs), Ordering::Relaxed);
            if (ours != theirs) != differs(action, option) {
                let line = format!("{action} --{option}: {}theirs: {}", all(&said.ours), all(&said.theirs));
                wrong.lock().unwrap().insert(line);
            }
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.into_iter().collect::<Vec<_>>().join("\n"));
    assert!(taken.into_inner() > 1300, "most of them are taken by all");
}

#[test]
fn sizes_that_contradict_each_other_are_refused_in_both() {
    let pair = Pair::new();
    for options in [
        &["--reduce-device-size=64m", "--device-size=100g"][..],
        &["--reduce-device-size=2G"],
        &["--reduce-device-size=513"],
    ] {
        let words = [&["reencrypt", "disk", "--test-args"][..], options].concat();
        let said = pair.agree(&words, "");
        assert!(!said.ours.status.success(), "{options:?}");
    }
    pair.succeed(&["reencrypt", "disk", "--test-args", "--reduce-device-size=64m"], "");
}

#[test]
fn an_option_without_a_use_changes_nothing() {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    let format = ["luksFormat", "-q", "--type", "luks2", "disk", "--tries", "1", "--perf-same_cpu_crypt"];
    pair.succeed(&[&format[..], &crate::front::pair::CHEAP].concat(), "secret\n");
    for words in [
        &["luksDump", "--disable-keyring", "--tries", "5", "--token-id", "3", "disk"][..],
        &["isLuks", "--cipher", "serpent", "--volume-key-file", "absent", "disk"],
        &["luksUUID", "--encrypt", "--resilience", "checksum", "--readonly", "disk"],
        &["config", "--type", "luks2", "--key-file", "absent", "--label", "l", "disk"],
    ] {
        pair.succeed(words, "");
    }
    pair.succeed(&["reencrypt", "disk", "-q", "--disable-keyring", "--force-offline-reencrypt"], "secret\n");
    // Another type than the header's is refused where the header is looked at.
    for words in [["-q", "repair"], ["-q", "erase"]] {
        let said = pair.agree(&[&words[..], &["--type", "luks1", "disk"]].concat(), "");
        assert!(!said.ours.status.success(), "{words:?}: {}", all(&said.ours));
    }
    pair.each_opens_the_others("disk", "secret\n", true);
}

#[test]
fn the_priority_of_2_8_goes_into_the_header_and_benchmark_takes_the_kernels_names() {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "secret\n");
    let open = ["open", "--test-passphrase", "--perf-high_priority", "disk"];
    let opened = with_stdin(pair.ours().args(open), "secret\n");
    assert!(opened.status.success(), "{}", all(&opened));
    let none =
        with_stdin(pair.ours().args(["open", "--test-passphrase", "--tries", "0", "disk"]), "secret\n");
    assert!(!none.status.success(), "{}", all(&none));
    for cipher in ["capi:xts(aes)-plain64", "capi:xts(aes)", "aes-xts", "aes-xts-plain64"] {
        let words = ["benchmark", "--cipher", cipher, "--key-size", "512"];
        let ran = with_stdin(pair.ours().args(words), "");
        assert!(ran.status.success() && all(&ran).contains("MiB/s"), "{cipher}: {}", all(&ran));
    }
}
