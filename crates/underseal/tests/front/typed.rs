//! Questions on a terminal.

use crate::front::pair::{CHEAP, Pair};
use crate::support::terminal::Terminal;

fn typed(pair: &Pair, whose: &str, words: &[&str]) -> Terminal {
    let program = if whose == "ours" { "../bin/cryptsetup" } else { "/usr/sbin/cryptsetup" };
    Terminal::shell(&pair.folder(whose), &format!("{program} {}", words.join(" ")))
}

#[test]
fn the_questions_are_theirs() {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    for whose in ["ours", "theirs"] {
        let mut terminal = typed(&pair, whose, &[&["luksFormat", "-q", "-y", "disk"][..], &CHEAP].concat());
        terminal.sees("Enter passphrase for disk: ").hides().types("secret\n");
        terminal.sees("Verify passphrase: ").hides().types("secret\n");
        let (code, shown) = terminal.ends();
        assert_eq!(code, Some(0), "{whose}: {shown}");

        let mut terminal = typed(&pair, whose, &["-v", "open", "--test-passphrase", "disk"]);
        terminal.sees("Enter passphrase for disk: ").hides().types("wrong\n");
        terminal.sees("No key available with this passphrase.");
        terminal.sees("Enter passphrase for disk: ").hides().types("secret\n");
        terminal.sees("Key slot 0 unlocked.").sees("Command successful.");
        assert_eq!(terminal.ends().0, Some(0));

        let mut terminal = typed(&pair, whose, &["-T", "1", "open", "--test-passphrase", "disk"]);
        terminal.sees("Enter passphrase for disk: ").hides().types("wrong\n");
        assert_eq!(terminal.ends().0, Some(2));

        let mut terminal = typed(&pair, whose, &["-t", "1", "open", "--test-passphrase", "disk"]);
        terminal.sees("Enter passphrase for disk: ");
        assert_eq!(terminal.ends().0, Some(1), "{whose}");

        let mut terminal = typed(&pair, whose, &[&["luksFormat", "disk"][..], &CHEAP].concat());
        terminal.sees("This will overwrite data on disk irrevocably.");
        terminal.sees("Are you sure? (Type 'yes' in capital letters): ").types("no\n");
        let (code, shown) = terminal.ends();
        assert!(shown.contains("Operation aborted."), "{whose}: {shown}");
        assert_eq!(code, Some(1), "{whose}");
    }
}

/// The end of the input (Ctrl-D) in place of a passphrase, two passphrases that differ, and another
/// answer than YES end with the same status under both names.
#[test]
fn answers_that_end_it_are_theirs() {
    let pair = Pair::new();
    let cheap = CHEAP.join(" ");
    for whose in ["ours", "theirs"] {
        pair.image("disk", 24 << 20);
        let mut terminal = typed(&pair, whose, &["luksFormat", "-q", "disk", &cheap]);
        terminal.sees("Enter passphrase for disk: ").hides().types("\u{4}");
        assert_eq!(terminal.ends().0, Some(1), "{whose}");
        let mut terminal = typed(&pair, whose, &["luksFormat", "-q", "-y", "disk", &cheap]);
        terminal.sees("Enter passphrase for disk: ").hides().types("secret\n");
        terminal.sees("Verify passphrase: ").hides().types("other\n");
        assert_eq!(terminal.ends().0, Some(2), "{whose}");
        let mut terminal = typed(&pair, whose, &["luksFormat", "-q", "disk", &cheap]);
        terminal.sees("Enter passphrase for disk: ").hides().types("secret\n");
        assert_eq!(terminal.ends().0, Some(0), "{whose}");
        let mut terminal = typed(&pair, whose, &["open", "--test-passphrase", "disk"]);
        terminal.sees("Enter passphrase for disk: ").hides().types("\u{4}");
        assert_eq!(terminal.ends().0, Some(1), "{whose}");
        for (words, status) in [
            (&["luksKillSlot", "disk", "0"][..], 2),
            (&["erase", "disk"], 2),
            (&["convert", "--type", "luks1", "disk"], 2),
            (&["luksUUID", "--uuid", "11111111-1111-4111-8111-111111111111", "disk"], 2),
            (&["luksDump", "--dump-volume-key", "disk"], 2),
            (&["luksFormat", "disk"], 1),
        ] {
            let mut terminal = typed(&pair, whose, words);
            terminal.sees("Are you sure? (Type 'yes' in capital letters): ").types("no\n");
            let (code, shown) = terminal.ends();
            assert_eq!(code, Some(status), "{whose}: {words:?}: {shown}");
        }
    }
}

/// In batch mode a new passphrase is typed once; what is typed behind 512 bytes does not count.
#[test]
fn a_typed_passphrase_is_theirs() {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    let long = "long".repeat(150);
    for whose in ["ours", "theirs"] {
        let mut terminal = typed(&pair, whose, &[&["luksFormat", "-q", "disk"][..], &CHEAP].concat());
        terminal.sees("Enter passphrase for disk: ").hides().types(&format!("{long}\n"));
        let (code, shown) = terminal.ends();
        assert_eq!(code, Some(0), "{whose}: {shown}");
        for (len, status) in [(600, 0), (512, 0), (511, 2)] {
            let mut terminal = typed(&pair, whose, &["-T", "1", "open", "--test-passphrase", "disk"]);
            terminal.sees("Enter passphrase for disk: ").hides().types(&format!("{}\n", &long[..len]));
            let (code, shown) = terminal.ends();
            assert_eq!(code, Some(status), "{whose}: {len}: {shown}");
        }
    }
}

/// A key file "-" that is a terminal is asked for as a passphrase is: hidden, and up to Enter.
#[test]
fn a_dash_is_asked_for_on_a_terminal() {
    let pair = Pair::new();
    for whose in ["ours", "theirs"] {
        pair.image("disk", 24 << 20);
        for words in
            [&["luksFormat", "-q", "-y", "disk", "-"][..], &["luksAddKey", "disk", "--key-file", "-", "-"]]
        {
            let mut terminal = typed(&pair, whose, &[words, &CHEAP].concat());
            if words[0] == "luksAddKey" {
                terminal.sees("passphrase").hides().types("secret\n");
                terminal.sees("new passphrase").hides().types("fresh\n");
                terminal.sees("Verify passphrase").hides().types("fresh\n");
            } else {
                terminal.sees("Enter passphrase for disk: ").hides().types("secret\n");
                terminal.sees("Verify passphrase: ").hides().types("secret\n");
            }
            let (code, shown) = terminal.ends();
            assert_eq!(code, Some(0), "{whose}: {words:?}: {shown}");
            assert!(!shown.contains("secret") && !shown.contains("fresh"), "{whose}: {shown}");
        }
        for passphrase in ["secret\n", "fresh\n"] {
            let mut terminal = typed(&pair, whose, &["open", "--test-passphrase", "disk", "-d", "-"]);
            terminal.sees("Enter passphrase for disk: ").hides().types(passphrase);
            let (code, shown) = terminal.ends();
            assert_eq!(code, Some(0), "{whose}: {passphrase}: {shown}");
        }
        for refused in [&["-d", "/dev/tty"][..], &["-d", "-", "--keyfile-offset", "1"]] {
            let words = [&["open", "--test-passphrase", "disk"][..], refused].concat();
            let (code, shown) = typed(&pair, whose, &words).ends();
            assert_eq!(code, Some(1), "{whose}: {refused:?}: {shown}");
        }
    }
}
