//! The errors of the command: a line with the event, a line with the remedy, and an exit status.

use std::error::Error as StdError;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use underseal_cipher as cipher;
use underseal_datapath as datapath;
use underseal_device as device;
use underseal_ecryptfs as ecryptfs;
use underseal_error::with_causes;
use underseal_export as export;
use underseal_formats as formats;
use underseal_integrity as integrity;
use underseal_sandbox::ForeignLink;
use underseal_tokens as tokens;
use underseal_volume as volume;

use crate::daemon;
use crate::exit::Exit;
use crate::output::printable;

/// The result of operations that can end the command.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The error that ends the command. Its text includes the causes, so it has no source.
#[derive(Debug)]
pub(crate) struct Error {
    exit: Exit,
    what: String,
    remedy: Option<String>,
    volume: Option<volume::ErrorKind>,
    format: Option<formats::ErrorKind>,
    integrity: Option<integrity::ErrorKind>,
}

impl Error {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), remedy: None, volume: None, format: None, integrity: None }
    }

    /// An input that was refused before any change.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    /// A failed system call on a file.
    pub(crate) fn io(path: &Path, doing: &str, cause: impl Into<std::io::Error>) -> Self {
        let cause = cause.into();
        let error = Self::new(Exit::Failed, format!("{}: {doing}", path.display())).because(&cause);
        if ForeignLink::is_cause_of(&cause) { error.with_remedy(ForeignLink::REMEDY) } else { error }
    }

    /// Adds a cause and all of its causes.
    pub(crate) fn because(mut self, cause: &dyn StdError) -> Self {
        self.what = format!("{}: {}", self.what, with_causes(cause));
        self
    }

    /// Sets the remedy, and replaces an earlier one.
    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Marks the error as a refusal: nothing was changed, and other arguments may succeed.
    pub(crate) fn into_usage(mut self) -> Self {
        self.exit = Exit::Usage;
        self
    }

    /// Marks an error after a change: a refusal is none any more.
    pub(crate) fn into_failed(mut self) -> Self {
        if self.exit == Exit::Usage {
            self.exit = Exit::Failed;
        }
        self
    }

    /// Marks the image's state as unknown.
    pub(crate) fn into_lost(mut self) -> Self {
        self.exit = Exit::Lost;
        self
    }

    /// Prepends the place of the error.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }

    /// Returns the message without the remedy.
    pub(crate) fn what(&self) -> String {
        self.what.clone()
    }

    /// Returns the kind of an error of a volume's header or key, if it was one.
    pub(crate) fn of_volume(&self) -> Option<volume::ErrorKind> {
        self.volume
    }

    /// Returns the kind of an error of another system's volume, if it was one.
    pub(crate) fn of_format(&self) -> Option<formats::ErrorKind> {
        self.format
    }

    /// Returns the kind of an error of the integrity layer, if it was one.
    pub(crate) fn of_integrity(&self) -> Option<integrity::ErrorKind> {
        self.integrity
    }

    /// Returns the remedy.
    pub(crate) fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Prints the error and returns the exit status. A daemon has no stderr, and writes to its log.
    pub(crate) fn report(&self) -> ExitCode {
        if daemon::is_detached() {
            log::error!("{}", printable(&self.what));
        } else {
            // The terminal may be gone.
            let _ = writeln!(std::io::stderr().lock(), "{self}");
        }
        ExitCode::from(self.exit as u8)
    }

    pub(crate) fn of(exit: Exit, error: &dyn StdError, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned()).filter(|text| !text.is_empty());
        Self { remedy, ..Self::new(exit, with_causes(error).to_string()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Text from a header, a file's name or a server must stay on its line.
        write!(f, "underseal: {}", printable(&self.what))?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "\ntry: {}", printable(remedy)))
    }
}

impl From<volume::Error> for Error {
    fn from(error: volume::Error) -> Self {
        use volume::ErrorKind as IoKind;
        let (exit, remedy) = match error.kind() {
            IoKind::NoHeader => (
                Exit::BadHeader,
                "name the header's file with --header, or say --type plain if there is none, tcrypt for TrueCrypt and VeraCrypt",
            ),
            IoKind::BadHeader => (
                Exit::BadHeader,
                "`underseal header check` says what is wrong, and `underseal header restore` puts a backup back",
            ),
            IoKind::Ambiguous => (
                Exit::BadHeader,
                "`underseal header repair` on a copy: it overwrites what is there now with the volume's header",
            ),
            IoKind::BadLayout | IoKind::TooSmall => {
                (Exit::BadHeader, "compare the image's size with the original's: was it cut short?")
            }
            IoKind::WrongPassphrase => {
                (Exit::NoKey, "check the keyboard's layout and Caps Lock; a key file is given by --key-file")
            }
            IoKind::NoKeyslot => (Exit::NoKey, "`underseal info` lists the keyslots in use"),
            IoKind::LastKeyslot => (Exit::Usage, "--force to remove it all the same; the data are lost then"),
            IoKind::NoRoom => (Exit::Usage, "`underseal keyslot kill` on one that nobody needs makes room"),
            IoKind::WrongKey => (Exit::NoKey, "a key belongs to one volume: is this its image?"),
            IoKind::Unsupported => (Exit::Unsupported, "`underseal info` shows what the volume asks for"),
            IoKind::NullCipher => (Exit::Unsupported, "--allow-null, if nothing on it needs protection"),
            IoKind::TooCostly => (Exit::Unsupported, "use another keyslot with --key-slot"),
            IoKind::Untrusted => (
                Exit::Unsupported,
                "find out who changed the header; if you did, `underseal info` shows its new digest",
            ),
            IoKind::BadOption => (Exit::Usage, "`underseal help` and the command's name shows what it takes"),
            IoKind::NeedsRecovery => {
                (Exit::Unsupported, "`underseal reencrypt --resume-only` makes it good, and goes on")
            }
            IoKind::UnfinishedStart => (
                Exit::Unsupported,
                "`underseal reencrypt --resume-only` makes the device what it was; with --encrypt it begins again",
            ),
            IoKind::Busy | IoKind::Locked => (Exit::InUse, "retry when the other program has ended"),
            IoKind::Memory => (Exit::Failed, "retry with more memory free"),
            IoKind::Io => (Exit::Failed, ""),
            _ => (Exit::Failed, ""),
        };
        Self { volume: Some(error.kind()), ..Self::of(exit, &error, remedy) }
    }
}

impl From<formats::Error> for Error {
    fn from(error: formats::Error) -> Self {
        use formats::ErrorKind as Kind;
        let (exit, remedy) = match error.kind() {
            Kind::NoHeader => (Exit::BadHeader, "another --type"),
            Kind::BadHeader => (
                Exit::BadHeader,
                "--backup-header on a volume of VeraCrypt, or a copy of the image from before it was damaged",
            ),
            Kind::WrongPassphrase => (
                Exit::NoKey,
                "the keyboard's layout and Caps Lock; VeraCrypt: --pim N, --key-file FILE, --hidden, --backup-header, \
                 --system, whichever the volume has",
            ),
            Kind::NoProtector => (Exit::NoKey, "a recovery password or a startup key, where there is one"),
            Kind::Unsupported => (Exit::Unsupported, ""),
            Kind::MissingDevice => (Exit::Usage, "--other-device IMAGE, once for each of the other disks"),
            Kind::TooSmall => {
                (Exit::BadHeader, "compare the image's size with the original's: was it cut short?")
            }
            Kind::TooCostly => {
                (Exit::Unsupported, "--max-kdf-memory SIZE, or a machine that has more memory")
            }
            Kind::BadOption => (Exit::Usage, ""),
            Kind::Busy => (Exit::InUse, "retry when the other program has ended"),
            Kind::Memory => (Exit::Failed, "retry with more memory free"),
            _ => (Exit::Failed, ""),
        };
        Self { format: Some(error.kind()), ..Self::of(exit, &error, remedy) }
    }
}

impl From<tokens::Error> for Error {
    fn from(error: tokens::Error) -> Self {
        use tokens::ErrorKind as IoKind;
        let (exit, remedy) = match error.kind() {
            IoKind::NotUsable => (Exit::NoKey, "a passphrase: --no-token"),
            IoKind::PinWanted => (Exit::NoKey, "run on a terminal, or give --token-pin-file FILE"),
            IoKind::WrongPin => {
                (Exit::NoKey, "enter the right PIN; most devices lock themselves after a few wrong ones")
            }
            IoKind::NoTool => (Exit::Failed, "install it, or --no-token"),
            IoKind::NoHardware => (Exit::Failed, "retry when it is there, or use --no-token"),
            IoKind::Unknown => (Exit::Unsupported, "a passphrase: --no-token"),
            _ => (Exit::Failed, ""),
        };
        Self::of(exit, &error, remedy)
    }
}

impl From<cipher::Error> for Error {
    fn from(error: cipher::Error) -> Self {
        match error.kind() {
            cipher::ErrorKind::Memory => Self::of(Exit::Failed, &error, "retry with more memory free"),
            _ => Self::of(Exit::Usage, &error, "the default, aes-xts-plain64"),
        }
    }
}

impl From<device::Error> for Error {
    fn from(error: device::Error) -> Self {
        use device::ErrorKind as IoKind;
        let (exit, remedy) = match error.kind() {
            IoKind::Locked => {
                (Exit::InUse, "stop the other program or unmount it; or read only, where it reads only too")
            }
            IoKind::NoLock => {
                (Exit::Failed, "a file system that has locks, or --no-lock with open, read, write and table")
            }
            IoKind::Alignment => (Exit::Usage, "without --direct"),
            IoKind::Ring => (Exit::Failed, "`sysctl kernel.io_uring_disabled=0`"),
            IoKind::Memory => (Exit::Failed, "retry with more memory free"),
            _ => (Exit::Failed, ""),
        };
        Self::of(exit, &error, remedy)
    }
}

impl From<datapath::Error> for Error {
    fn from(error: datapath::Error) -> Self {
        use datapath::ErrorKind as IoKind;
        let (exit, remedy) = match error.kind() {
            IoKind::OutOfRange | IoKind::Misaligned | IoKind::TooLarge | IoKind::ReadOnly => {
                (Exit::Usage, "")
            }
            IoKind::Unsupported => (Exit::Unsupported, ""),
            IoKind::NoSpace => (Exit::Failed, "retry with more space on the image's disk"),
            IoKind::Policy => (Exit::Usage, "`underseal help policy` lists the policies"),
            IoKind::NoKey => (Exit::NoKey, ""),
            IoKind::Layout => (Exit::BadHeader, "compare the image's size with the original's"),
            _ => (Exit::Failed, ""),
        };
        Self::of(exit, &error, remedy)
    }
}

impl From<integrity::Error> for Error {
    fn from(error: integrity::Error) -> Self {
        use integrity::ErrorKind as IoKind;
        let (exit, remedy) = match error.kind() {
            IoKind::NoSuperblock | IoKind::BadSuperblock | IoKind::TooSmall => (
                Exit::BadHeader,
                "compare the image with the original: is its integrity layer damaged, or cut short?",
            ),
            IoKind::BadJournal | IoKind::Integrity => {
                (Exit::BadHeader, "--integrity-recovery-mode reads what is in its place, without the journal")
            }
            IoKind::BadOption => (Exit::Usage, ""),
            IoKind::BadKey => (Exit::NoKey, ""),
            IoKind::Unsupported => (Exit::Unsupported, ""),
            IoKind::Memory => (Exit::Failed, "retry with more memory free"),
            _ => (Exit::Failed, ""),
        };
        Self { integrity: Some(error.kind()), ..Self::of(exit, &error, remedy) }
    }
}

impl From<export::Error> for Error {
    fn from(error: export::Error) -> Self {
        use export::ErrorKind as IoKind;
        let (exit, remedy) = match error.kind() {
            IoKind::BadEndpoint | IoKind::BadExport | IoKind::BadName => (Exit::Usage, ""),
            IoKind::Directory => (
                Exit::Failed,
                "UNDERSEAL_RUNTIME_DIR with a directory of your own that others cannot write to",
            ),
            IoKind::NotOpen => (Exit::Usage, "`underseal list` shows the open volumes"),
            IoKind::Plaintext => (
                Exit::Usage,
                "--tls-certificates DIR, tcp:localhost:PORT, or --allow-plaintext-tcp on a network you trust",
            ),
            IoKind::Certificate => (Exit::Usage, "the section FILES of underseal-open(1)"),
            IoKind::FuseDevice => (
                Exit::Failed,
                "`modprobe fuse`; in a container `--device /dev/fuse`; --nbd unix:PATH needs neither",
            ),
            IoKind::UblkDevice => (
                Exit::Failed,
                "`modprobe ublk_drv` on Linux 6.5 or later (its module may be in the package linux-modules-extra); \
                 --nbd unix:PATH and --fuse PATH need none of it",
            ),
            IoKind::Forbidden => (Exit::Failed, "as root; or --nbd unix:PATH, or --fuse PATH"),
            IoKind::DeviceInUse => (Exit::InUse, "another number with --ublk-id, or stop its server first"),
            IoKind::MountPoint => (Exit::Usage, "an empty file or a folder of yours: `touch PATH` makes one"),
            IoKind::Mounted => (Exit::InUse, "`fusermount3 -u PATH`, or another path"),
            IoKind::OthersForbidden => (Exit::Failed, "a line `user_allow_other` in /etc/fuse.conf"),
            IoKind::Mount => {
                (Exit::Failed, "a file or folder that this user may write to, or --nbd unix:PATH")
            }
            IoKind::Unsupported => (Exit::Unsupported, "--nbd unix:PATH"),
            _ => (Exit::Failed, ""),
        };
        Self::of(exit, &error, remedy)
    }
}

impl From<ecryptfs::Error> for Error {
    fn from(error: ecryptfs::Error) -> Self {
        use ecryptfs::ErrorKind as IoKind;
        let (exit, remedy) = match error.kind() {
            IoKind::NoKey => (Exit::NoKey, "another passphrase, or another salt"),
            IoKind::WrongPassphrase => (Exit::NoKey, "check the keyboard's layout and Caps Lock"),
            IoKind::BadOption | IoKind::NameTooLong => (Exit::Usage, ""),
            IoKind::NotEncrypted
            | IoKind::BadHeader
            | IoKind::BadName
            | IoKind::BadFile
            | IoKind::Empty
            | IoKind::Cut => (Exit::BadHeader, ""),
            IoKind::Missing => (
                Exit::BadHeader,
                "restore the file from a backup; `cat` and `export` give zeros for what is missing with --no-strict",
            ),
            IoKind::Unsupported => (Exit::Unsupported, ""),
            IoKind::Busy => (
                Exit::InUse,
                "`underseal ecryptfs umount` where it is mounted, or again when the other tool has ended",
            ),
            IoKind::Memory => (Exit::Failed, "retry with more memory free"),
            _ => (Exit::Failed, ""),
        };
        let cause = error.source().and_then(<dyn StdError>::downcast_ref);
        let remedy = if cause.is_some_and(ForeignLink::is_cause_of) { ForeignLink::REMEDY } else { remedy };
        Self::of(exit, &error, remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_and_a_remedy() {
        let cause = std::io::Error::from_raw_os_error(13);
        let error = Error::io(Path::new("a\nb"), "cannot open", cause).with_remedy("sudo");
        assert_eq!(
            error.to_string(),
            "underseal: a?b: cannot open: Permission denied (os error 13)\ntry: sudo"
        );
    }
}
