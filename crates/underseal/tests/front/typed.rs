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
