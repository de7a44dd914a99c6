//! As whom the program speaks: as itself, or as cryptsetup when it is called by that name.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// The words that differ, and how often somebody may try.
#[derive(Debug)]
pub(crate) struct Manner {
    /// Where others than a program ask for a passphrase again.
    pub(crate) again: &'static str,
    /// A passphrase opened no keyslot.
    pub(crate) wrong: &'static str,
    /// How often a passphrase may be typed.
    pub(crate) tries: u32,
    /// How long somebody may take to type one.
    pub(crate) patience: Option<Duration>,
    /// Tells what became of keyslots.
    pub(crate) tells: bool,
    /// What stands around a question before something that cannot be undone.
    warning: &'static str,
    sure: &'static str,
    /// What people know a volume by.
    name: fn(&Path) -> PathBuf,
    /// The question for a passphrase, and for one that is to come; `{}` is the volume.
    question: &'static str,
    new_question: &'static str,
}

/// What is told of a keyslot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keyslot {
    /// A passphrase opened it.
    Unlocked(u32),
    /// It is new.
    Created(u32),
    /// It is gone.
    Removed(u32),
}

impl Manner {
    const OWN: Self = Self {
        again: "The same again: ",
        wrong: "No keyslot opens with this passphrase.",
        tries: 3,
        patience: None,
        tells: false,
        warning: "",
        sure: "\nType YES in capitals to go on: ",
        name: Path::to_path_buf,
        question: "Passphrase for {}: ",
        new_question: "New passphrase for {}: ",
    };

    /// cryptsetup's words for a passphrase that opens no keyslot.
    pub(crate) const NO_KEY: &str = "No key available with this passphrase.";

    /// cryptsetup's, which says more when it is asked to.
    pub(crate) fn cryptsetup(
        (question, new_question): (&'static str, &'static str),
        wrong: &'static str,
        tries: u32,
        patience: Option<Duration>,
        tells: bool,
    ) -> Self {
        Self {
            again: "Verify passphrase: ",
            wrong,
            tries,
            patience,
            tells,
            warning: "\nWARNING!\n========\n",
            sure: "\n\nAre you sure? (Type 'yes' in capital letters): ",
            name: crate::front::known_as,
            question,
            new_question,
        }
    }

    /// The question for a volume's passphrase.
    pub(crate) fn question(&self, volume: &Path) -> String {
        let name = (self.name)(volume);
        self.question.replace("{}", &name.display().to_string())
    }

    /// The question for a passphrase that the volume is to get.
    pub(crate) fn new_question(&self, volume: &Path) -> String {
        self.new_question.replace("{}", &volume.display().to_string())
    }

    /// The question before something that cannot be undone, which YES answers.
    pub(crate) fn sure(&self, what: &str) -> String {
        format!("{}{what}{}", self.warning, self.sure)
    }

    /// Tells what became of a keyslot, if anybody wants to know.
    pub(crate) fn tell(&self, volume: &Path, of: Keyslot) {
        let (number, theirs, ours) = match of {
            Keyslot::Unlocked(number) => (number, "unlocked", "opens"),
            Keyslot::Created(number) => (number, "created", "is new"),
            Keyslot::Removed(number) => (number, "removed", "is gone"),
        };
        if self.tells {
            // Nobody waits for it.
            let _ = crate::output::print(&format!("Key slot {number} {theirs}.\n"));
        } else {
            log::info!("{}: keyslot {number} {ours}", volume.display());
        }
    }
}

static MANNER: OnceLock<Manner> = OnceLock::new();

/// How this process speaks.
pub(crate) fn manner() -> &'static Manner {
    MANNER.get_or_init(|| Manner::OWN)
}

/// Settles how this process speaks, before it has said anything.
pub(crate) fn speak(manner: Manner) {
    // The first one stays.
    let _ = MANNER.set(manner);
}
