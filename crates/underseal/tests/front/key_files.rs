//! Passphrases and key files, from wherever they come, in both programs: the exit statuses, and
//! which passphrases open the volume after that.

use std::fs;
use std::process::Stdio;

use crate::front::pair::{CHEAP, Pair, all};
use crate::support::{output, tool};

/// `$C` is the program, `$D` the image, `$F` makes new keyslots cheap. `opens WORD` says whether the
/// passphrase opens the image. Keyslot 0 has `secret`, keyslot 1 the same with a newline.
const CASES: [&str; 79] = [
    // Stdin: a line, or all of it.
    "printf secret | $C open --test-passphrase $D",
    r"printf 'secret\nmore' | $C open --test-passphrase $D",
    r"printf 'secret\n' | $C open --test-passphrase --key-file - --key-slot 1 $D",
    r"printf 'secret\nmore' | $C open --test-passphrase --key-file - $D",
    r"printf 'secret\nmore' | $C open --test-passphrase --key-file /dev/stdin $D",
    "$C open --test-passphrase --key-file /dev/stdin $D < key",
    "$C open --test-passphrase $D < /dev/null",
    "$C open --test-passphrase --key-file - $D < /dev/null",
    "printf secret | $C open --test-passphrase --key-file - --key-file key $D",
    // Files of each kind.
    "$C open --test-passphrase --key-file /dev/null $D",
    "$C open --test-passphrase --key-file empty $D",
    "$C open --test-passphrase --key-file absent $D",
    "$C open --test-passphrase --key-file . $D",
    "$C open --test-passphrase --key-file big $D",
    "$C open --test-passphrase --key-file toobig $D",
    "$C open --test-passphrase --key-file <(printf secret) $D",
    "$C open --test-passphrase --key-file /dev/fd/7 $D 7< key",
    "mkfifo f; printf secret > f & $C open --test-passphrase --key-file f $D",
    "mkfifo f; printf xxsecretyy > f & $C open --test-passphrase --key-file f --keyfile-offset 2 -l 6 $D",
    // Parts of files, and of stdin.
    "$C open --test-passphrase --key-file long --keyfile-offset 2 --keyfile-size 6 $D",
    "$C open --test-passphrase --key-file long --keyfile-offset 2 $D",
    "$C open --test-passphrase --key-file long --keyfile-offset 20 $D",
    "$C open --test-passphrase --key-file long --keyfile-offset 10 $D",
    "$C open --test-passphrase --key-file long --keyfile-size 20 $D",
    "$C open --test-passphrase --key-file key --keyfile-size 0 $D",
    "$C open --test-passphrase --key-file key --keyfile-size 9000000 $D",
    "printf xxsecretyy | $C open --test-passphrase --key-file - --keyfile-offset 2 -l 6 $D",
    "printf secretyy | $C open --test-passphrase --keyfile-size 6 $D",
    "printf xxsecret | $C open --test-passphrase --keyfile-offset 2 $D",
    r"printf 'xx\nsecret\nmore' | $C open --test-passphrase --keyfile-offset 3 $D",
    r"printf 'secret\nmore' | $C open --test-passphrase --keyfile-size 10 $D",
    "printf secret | $C open --test-passphrase --keyfile-size 7 $D",
    "printf secret | $C open --test-passphrase --keyfile-offset 30 $D",
    "printf xxsecret | $C luksDump -q --dump-volume-key --keyfile-offset 2 $D | wc --lines",
    "printf xxsecretyy | $C luksConvertKey -q $F --keyfile-offset 2 --keyfile-size 6 $D",
    // The passphrase that exists, and the new one.
    r"printf 'secret\nfresh\n' | $C luksAddKey -q $F $D; opens fresh",
    r"printf 'secret\n' | $C luksAddKey -q $F $D",
    r"printf 'secret\nfresh\nwrong\n' | $C luksAddKey -y $F $D; opens fresh",
    "printf secret | $C luksAddKey -q $F --key-file - $D new; opens fresh",
    r"printf 'secret\n' | $C luksAddKey -q $F $D new; opens fresh",
    r"printf 'fresh\n' | $C luksAddKey -q $F --key-file key $D; opens fresh",
    r"printf 'fresh\nx' | $C luksAddKey -q $F --key-file key $D -; opens fresh",
    "printf secretfresh | $C luksAddKey -q $F --key-file - $D -; opens fresh; opens secretfresh",
    "printf secretfresh | $C luksAddKey -q $F --key-file - --keyfile-size 6 $D -; opens fresh",
    "printf secretfreshxx | $C luksAddKey -q $F -d - -l 6 --new-keyfile - --new-keyfile-size 5 $D; opens fresh",
    "printf secretfresh | $C luksAddKey -q $F --keyfile-size 6 $D; opens fresh",
    "$C luksAddKey -q $F -d key $D dotted --new-keyfile-offset 2 --new-keyfile-size 5; opens fresh",
    "$C luksAddKey -q $F -d key --new-keyfile dotted --new-keyfile-offset 2 --new-keyfile-size 5 $D; opens fresh",
    "$C luksAddKey -q $F -d key --new-keyfile-size 0 $D new; opens fresh",
    r"printf 'secret\nfreshxx\n' | $C luksAddKey -q $F --new-keyfile-size 5 $D; opens fresh; opens freshxx",
    r"printf 'freshxx\n' | $C luksAddKey -q $F -d key --new-keyfile-size 5 $D; opens fresh; opens freshxx",
    r"printf 'secret\nfreshxx\n' | $C luksChangeKey -q $F --new-keyfile-size 5 $D; opens fresh; opens secret",
    r"printf 'freshxx\n' | $C luksAddKey -q $F --unbound --key-size 256 --keyfile-size 5 $D",
    "$C luksAddKey -q $F --key-file key $D absent",
    "$C luksAddKey -q $F --key-file key $D toobig",
    "$C luksAddKey -q $F --key-file <(printf secret) $D <(printf fresh); opens fresh",
    "mkfifo f; printf secret > f & $C luksAddKey -q $F --key-file f $D new; opens fresh",
    r"printf 'secret\nfresh\n' | $C luksChangeKey -q $F $D; opens fresh; opens secret",
    "printf secretfresh | $C luksChangeKey -q $F -d - -l 6 $D -; opens fresh; opens secret",
    r"printf 'fresh\n' | $C luksChangeKey -q $F --key-file key $D; opens fresh; opens secret",
    // Passphrases that go.
    r"printf 'secret\n' | $C luksRemoveKey -q $D; opens secret",
    "printf secret | $C luksRemoveKey -q $D -; opens secret",
    "printf secretxx | $C luksRemoveKey -q --keyfile-size 6 $D; opens secret",
    "$C luksRemoveKey -q $D <(printf secret); opens secret",
    "$C luksRemoveKey -q --key-file key $D line; opens secret",
    "printf secret | $C luksKillSlot -q --key-file - $D 1",
    "printf wrong | $C luksKillSlot -q --key-file - $D 1; $C luksDump $D | grep --count ' luks2'",
    "$C luksKillSlot -q --key-file empty $D 1; $C luksDump $D | grep --count ' luks2'",
    "$C luksKillSlot -q $D 1 < /dev/null; $C luksDump $D | grep --count ' luks2'",
    // New volumes.
    r"printf 'fresh\n' | $C luksFormat -q $F $D; opens fresh",
    r"printf 'fresh\nother\n' | $C luksFormat -q -y $F $D; opens fresh",
    r"printf 'fresh\n' | $C luksFormat -q -y $F $D; opens fresh",
    r"printf 'fresh\n' | $C luksFormat -q $F $D -; opens fresh",
    "printf freshxx | $C luksFormat -q $F --keyfile-size 5 $D; opens fresh",
    "printf xxfreshxx | $C luksFormat -q $F --keyfile-offset 2 --keyfile-size 5 $D -; opens fresh",
    "$C luksFormat -q $F $D < /dev/null",
    "$C luksFormat -q $F --key-file key $D new; opens fresh; opens secret",
    "$C luksFormat -q $F --key-file key --key-file new $D; opens fresh; opens secret",
    "$C luksFormat -q $F $D <(printf fresh); opens fresh",
];

/// Calls that cryptsetup takes and that are refused here: a pipe that was read before gives an
/// empty passphrase, and the new keyslot would open with nothing.
const REFUSED: [&str; 5] = [
    "$C luksAddKey -q $F --key-file /dev/fd/7 $D /dev/fd/7 7< <(printf secret)",
    "printf secret | $C luksAddKey -q $F --key-file /dev/stdin $D /dev/stdin",
    "$C luksAddKey -q $F --key-file key $D empty",
    "$C luksFormat -q $F $D empty",
    r"printf '\n' | $C luksFormat -q $F $D",
];

const OPENS: &str = r#"
opens() { printf "$1" | /usr/sbin/cryptsetup open --test-passphrase --key-file - $D 2> err; echo "$1: $?"; }
rm --force f; cp base disk; D=disk
"#;

fn prepared() -> Pair {
    let pair = Pair::new();
    pair.image("base", 20 << 20);
    let mut big = vec![b'k'; 8 << 20];
    pair.file("big", &big);
    big.push(b'k');
    pair.file("toobig", &big);
    let files = [
        ("key", "secret"),
        ("line", "secret\n"),
        ("long", "xxsecretyy"),
        ("new", "fresh"),
        ("dotted", "..fresh.."),
    ];
    files.into_iter().chain([("empty", "")]).for_each(|(name, text)| pair.file(name, text.as_bytes()));
    let cheap = CHEAP;
    let format = output(pair.theirs().args([&["luksFormat", "-q", "base", "key"][..], &cheap].concat()));
    assert!(format.status.success(), "{}", all(&format));
    let add =
        output(pair.theirs().args([&["luksAddKey", "-q", "-d", "key", "base", "line"][..], &cheap].concat()));
    assert!(add.status.success(), "{}", all(&add));
    pair.share("base");
    pair
}

/// The exit status of a case's command, and the lines that it and what follows it print.
fn ran(pair: &Pair, whose: &str, case: &str) -> (String, String) {
    let program = if whose == "ours" { "../bin/cryptsetup" } else { "/usr/sbin/cryptsetup" };
    let (command, then) = case
        .split_once("; opens")
        .map_or((case, String::new()), |(command, then)| (command, format!("opens{then}")));
    let script = format!("{OPENS}C={program}; F='{}'\n{command}\necho $?\n{then}", CHEAP.join(" "));
    let mut shell = tool("timeout");
    shell.args(["60", "bash", "-c", &script]).current_dir(pair.folder(whose));
    shell.env("UNDERSEAL_MAPPER", pair.folder("mapper")).stdin(Stdio::null());
    let output = output(&mut shell);
    (String::from_utf8_lossy(&output.stdout).into_owned(), all(&output))
}

#[test]
fn passphrases_come_from_where_they_come_from_there() {
    let pair = prepared();
    for case in CASES {
        let [(ours, all_ours), (theirs, all_theirs)] =
            ["ours", "theirs"].map(|whose| ran(&pair, whose, case));
        assert_eq!(ours, theirs, "{case}\nours: {all_ours}\ntheirs: {all_theirs}");
    }
}

#[test]
fn a_keyslot_that_opens_with_nothing_is_not_made() {
    let pair = prepared();
    for case in REFUSED {
        let (ours, said) = ran(&pair, "ours", case);
        assert_eq!(ours, "1\n", "{case}: {said}");
        let read = |image: &str| fs::read(pair.folder("ours").join(image)).unwrap();
        assert!(read("disk") == read("base"), "{case}: the image has changed");
    }
    // A keyslot of that kind that cryptsetup has made is opened.
    let made = ran(&pair, "theirs", "$C luksFormat -q $F $D empty");
    assert_eq!(made.0, "0\n", "{}", made.1);
    pair.share("disk");
    let opened = output(pair.ours().args(["open", "--test-passphrase", "--key-file", "empty", "disk"]));
    assert!(opened.status.success(), "{}", all(&opened));
}
