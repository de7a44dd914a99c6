//! The persona of the program: `underseal`, or `cryptsetup` when it is called by that name.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::exit::Exit;

/// The persona's words, and its number of attempts.
#[derive(Debug)]
pub(crate) struct Persona {
    /// The request to retype a new passphrase; none where it is typed once.
    pub(crate) again: Option<&'static str>,
    /// The message that a passphrase opened no keyslot.
    pub(crate) wrong: &'static str,
    /// How often a passphrase may be typed.
    pub(crate) tries: u32,
    /// How long typing may take.
    pub(crate) patience: Option<Duration>,
    /// The status after two different new passphrases.
    pub(crate) different: Exit,
    /// The status after the end of the input (Ctrl-D) in place of a passphrase.
    pub(crate) nothing: Exit,
    /// True when changes of keyslots are reported.
    pub(crate) tells: bool,
    /// True when clevis's tokens are asked before a passphrase that is given. cryptsetup cannot open
    /// these tokens.
    pub(crate) asks_clevis: bool,
    /// An empty key file is a key, too.
    pub(crate) takes_nothing: bool,
    /// What stands around a question before something that cannot be undone.
    warning: &'static str,
    sure: &'static str,
    /// Returns the name that users know a volume by.
    name: fn(&Path) -> PathBuf,
    /// The questions for a passphrase, and for a new one; `{}` is the volume.
    question: &'static str,
    new_question: &'static str,
}

/// A report about a keyslot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keyslot {
    /// A passphrase opened it.
    Unlocked(u32),
    /// The keyslot was added.
    Created(u32),
    /// The keyslot was removed.
    Removed(u32),
}

impl Persona {
    const OWN: Self = Self {
        again: Some("The same again: "),
        wrong: "No keyslot opens with this passphrase.",
        tries: 3,
        patience: None,
        different: Exit::Usage,
        nothing: Exit::NoKey,
        tells: false,
        asks_clevis: true,
        takes_nothing: false,
        warning: "",
        sure: "\nType YES in capitals to go on: ",
        name: Path::to_path_buf,
        question: "Passphrase for {}: ",
        new_question: "New passphrase for {}: ",
    };

    /// cryptsetup's message for a passphrase that opens no keyslot.
    pub(crate) const NO_KEY: &str = "No key available with this passphrase.";

    /// The persona `cryptsetup`; `tells` is its option --verbose. In batch mode a new passphrase is
    /// typed once, unless --verify-passphrase is given, too.
    pub(crate) fn cryptsetup(
        (question, new_question): (&'static str, &'static str),
        wrong: &'static str,
        tries: u32,
        patience: Option<Duration>,
        (tells, verifies): (bool, bool),
    ) -> Self {
        Self {
            again: verifies.then_some("Verify passphrase: "),
            wrong,
            tries,
            patience,
            different: Exit::NoKey,
            nothing: Exit::Failed,
            tells,
            asks_clevis: false,
            takes_nothing: true,
            warning: "\nWARNING!\n========\n",
            sure: "\n\nAre you sure? (Type 'yes' in capital letters): ",
            name: crate::front::known_as,
            question,
            new_question,
        }
    }

    /// Returns the question for a volume's passphrase.
    pub(crate) fn question(&self, volume: &Path) -> String {
        let name = (self.name)(volume);
        self.question.replace("{}", &name.display().to_string())
    }

    /// Returns the question for a new passphrase of the volume.
    pub(crate) fn new_question(&self, volume: &Path) -> String {
        self.new_question.replace("{}", &volume.display().to_string())
    }

    /// Returns the question before a change that cannot be undone, which YES answers.
    pub(crate) fn sure(&self, what: &str) -> String {
        format!("{}{what}{}", self.warning, self.sure)
    }

    /// Reports a change of a keyslot, if the persona does.
    pub(crate) fn tell(&self, volume: &Path, of: Keyslot) {
        let (number, theirs, ours) = match of {
            Keyslot::Unlocked(number) => (number, "unlocked", "opens"),
            Keyslot::Created(number) => (number, "created", "is new"),
            Keyslot::Removed(number) => (number, "removed", "is gone"),
        };
        if self.tells {
            // A closed stdout is ignored.
            let _ = crate::output::print(&format!("Key slot {number} {theirs}.\n"));
        } else {
            log::info!("{}: keyslot {number} {ours}", volume.display());
        }
    }
}

static MANNER: OnceLock<Persona> = OnceLock::new();

/// Returns the persona of this process.
pub(crate) fn persona() -> &'static Persona {
    MANNER.get_or_init(|| Persona::OWN)
}

/// Sets the persona of this process, before its first message.
pub(crate) fn speak(persona: Persona) {
    // The first one stays.
    let _ = MANNER.set(persona);
}
