//! `dm install` and `dm uninstall`: files that give a whole machine the device mapper, and their
//! removal.
//!
//! ```text
//!   /etc/systemd/system/underseal-dm.service                          the back end, from boot on
//!   /etc/systemd/system/sysinit.target.wants/underseal-dm.service     a link to it
//!   /etc/systemd/system/systemd-cryptsetup@.service.d/underseal-dm.conf    the library
//!   .. systemd-integritysetup@, systemd-veritysetup@, systemd-homed        the same
//!   /etc/udev/rules.d/59-underseal-dm.rules                           names of devices for udev
//!   /etc/profile.d/underseal-dm.sh                                    the same, for root's shells
//!   /etc/underseal/dm-installed                                       the record of all of these
//! ```
//!
//! The record has the contents of these files, is written first and removed last: killed at any
//! time, both commands know what there is. A file that differs from the record was changed by
//! another program: it stays, and so does the record.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::root_folder::RootFolder;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// The record's path, below the root folder.
const RECORD: &str = "etc/underseal/dm-installed";
const UNITS: &str = "etc/systemd/system";
const UNIT: &str = "underseal-dm.service";
const RULES: &str = "etc/udev/rules.d/59-underseal-dm.rules";
/// The rules' path in records of earlier versions.
const EARLIER_RULES: &str = "etc/udev/rules.d/61-underseal-dm.rules";
const PROFILE: &str = "etc/profile.d/underseal-dm.sh";
/// The number of bytes above any record's.
const LONGEST: usize = 1 << 20;
/// The units that speak to the device mapper.
const PRELOADED: [&str; 4] = [
    "systemd-cryptsetup@.service",
    "systemd-integritysetup@.service",
    "systemd-veritysetup@.service",
    "systemd-homed.service",
];

/// The programs that the files name, with their paths on the installed machine.
pub(crate) struct Programs<'p> {
    pub(crate) command: &'p Path,
    pub(crate) library: &'p Path,
    /// The back end's folder.
    pub(crate) folder: &'p Path,
}

/// The installed files, as the record keeps them.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Installed {
    files: Vec<(PathBuf, String)>,
    /// Symbolic links and their targets.
    links: Vec<(PathBuf, PathBuf)>,
    /// Folders that were made, the inner ones first.
    folders: Vec<PathBuf>,
}

/// The outcome for one path.
#[derive(Debug, PartialEq)]
pub(crate) enum InstallOutcome {
    Written(PathBuf),
    Removed(PathBuf),
    /// The path was gone already.
    Missing(PathBuf),
    /// The path has other contents than were installed.
    Changed(PathBuf),
}

/// Installs below `root`. Files of an earlier installation are removed first; those that were
/// changed since stay.
pub(crate) fn install(root: &RootFolder, programs: &Programs<'_>) -> Result<Vec<InstallOutcome>> {
    let mut new = Installed { files: files(programs)?, links: links(), ..Installed::default() };
    let before = match Installed::read(root)? {
        Record::Whole(before) => before,
        // The files of that installation, if there are any, are refused below.
        Record::None | Record::Cut => Installed::default(),
    };
    for path in new.paths() {
        let is_there = root.has_name(path).map_err(|e| Error::io(&root.shown(path), "cannot be found", e))?;
        if is_there && !before.has(root, path) {
            let what = format!("{} is there and is not what this command wrote", root.shown(path).display());
            return Err(Error::usage(what).with_remedy("move it away"));
        }
    }
    let mut outcomes = before.remove_files(root)?;
    outcomes.retain(|outcome| matches!(outcome, InstallOutcome::Changed(_)));
    // Files of earlier versions that stay are in the next record, too.
    let stays = |path: &Path| outcomes.contains(&InstallOutcome::Changed(root.shown(path)));
    new.files.extend(before.files.iter().filter(|(path, _)| stays(path)).cloned());
    let mut folders = new.folders_above();
    folders.retain(|folder| before.folders.contains(folder) || !root.leads_somewhere(folder));
    new.folders = folders;
    let written = new.write(root, &stays)?;
    outcomes.extend(written);
    Ok(outcomes)
}

/// Removes the files installed below `root`; `None` where none are.
pub(crate) fn uninstall(root: &RootFolder) -> Result<Option<Vec<InstallOutcome>>> {
    match Installed::read(root)? {
        Record::None => Ok(None),
        Record::Whole(installed) => installed.remove(root).map(Some),
        Record::Cut => {
            let paths = Installed::known().paths().map(Path::to_owned).collect::<Vec<_>>();
            let left = paths.iter().filter(|path| root.has_name(path).unwrap_or(true));
            let mut outcomes: Vec<_> = left.map(|path| InstallOutcome::Changed(root.shown(path))).collect();
            outcomes.push(remove_record(root)?);
            Ok(Some(outcomes))
        }
    }
}

fn remove_record(root: &RootFolder) -> Result<InstallOutcome> {
    let record = root.shown(Path::new(RECORD));
    root.remove(Path::new(RECORD)).map_err(|e| Error::io(&record, "cannot be removed", e))?;
    Ok(InstallOutcome::Removed(record))
}

/// The record as it was found.
enum Record {
    None,
    /// The record ends too early: an earlier version was killed as it wrote it.
    Cut,
    Whole(Installed),
}

impl Installed {
    /// Reads the record. Only files that this command writes may be in it, and only this user or
    /// root may have written it: what it names is removed.
    fn read(root: &RootFolder) -> Result<Record> {
        let path = root.shown(Path::new(RECORD));
        let bad = || {
            let what = format!("{} is not what this command writes", path.display());
            Error::new(Exit::Failed, what).with_remedy("move it away, and remove what it names by hand")
        };
        // The next one replaces it.
        let _ = root.remove_unfinished(Path::new(RECORD));
        let found = match root.file(Path::new(RECORD)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Record::None),
            found => found.map_err(|e| Error::io(&path, "cannot be read", e))?.ok_or_else(bad)?,
        };
        let user = found.user;
        if user != 0 && user != rustix::process::geteuid().as_raw() {
            let what = format!("{} belongs to another user (uid {user})", path.display());
            return Err(
                Error::new(Exit::Failed, what).with_remedy("chown it, if what it names may be removed")
            );
        }
        let text = found.read(LONGEST).map_err(|e| Error::io(&path, "cannot be read", e))?;
        let this: Self = match serde_json::from_slice(&text) {
            Err(e) if e.is_eof() => {
                log::warn!("{} is cut short: an installation was interrupted", path.display());
                return Ok(Record::Cut);
            }
            this => this.map_err(|e| bad().because(&e))?,
        };
        let known = Self::known();
        let is_known = this.files.iter().all(|(path, _)| known.files.iter().any(|(known, _)| known == path))
            && this.links.iter().all(|link| known.links.contains(link))
            && this.folders.iter().all(|folder| known.folders_above().contains(folder));
        if is_known { Ok(Record::Whole(this)) } else { Err(bad()) }
    }

    /// All files, without their contents, and links that a record may have.
    fn known() -> Self {
        let files = file_paths().chain([EARLIER_RULES.into()]).map(|path| (path, String::new())).collect();
        Self { files, links: links(), folders: Vec::new() }
    }

    /// The paths of all files and links.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let links = self.links.iter().map(|(path, _)| path);
        links.chain(self.files.iter().map(|(path, _)| path)).map(PathBuf::as_path)
    }

    /// The folders that these files and the record are in, the inner ones first.
    fn folders_above(&self) -> Vec<PathBuf> {
        let paths = self.paths().chain([Path::new(RECORD)]);
        let folders = paths.flat_map(|path| path.ancestors().skip(1));
        let mut folders: Vec<PathBuf> =
            folders.filter(|folder| !folder.as_os_str().is_empty()).map(Into::into).collect();
        folders.sort_by(|a, b| (b.components().count(), b).cmp(&(a.components().count(), a)));
        folders.dedup();
        folders
    }

    /// Writes the record, and all files and links but those that stay as they are.
    fn write(&self, root: &RootFolder, stays: &dyn Fn(&Path) -> bool) -> Result<Vec<InstallOutcome>> {
        let record = serde_json::to_string_pretty(self);
        let record = record.map_err(|e| Error::new(Exit::Failed, "no record").because(&e))? + "\n";
        let mut outcomes = Vec::new();
        let mut note = |path: &Path, made: io::Result<()>| {
            let path = root.shown(path);
            made.map_err(|e| Error::io(&path, "cannot be written", e))?;
            outcomes.push(InstallOutcome::Written(path));
            Ok::<_, Error>(())
        };
        note(Path::new(RECORD), root.replace_file(Path::new(RECORD), &record))?;
        for (path, text) in self.files.iter().filter(|(path, _)| !stays(path)) {
            note(path, root.make_file(path, text))?;
        }
        for (path, target) in &self.links {
            note(path, root.make_link(path, target))?;
        }
        Ok(outcomes)
    }

    /// Returns true when a path is as it was installed.
    fn has(&self, root: &RootFolder, path: &Path) -> bool {
        let file = self.files.iter().find(|(known, _)| known == path);
        let link = self.links.iter().find(|(known, _)| known == path);
        let contents = |most| root.file(path).ok().flatten().and_then(|file| file.read(most).ok());
        file.is_some_and(|(_, text)| contents(text.len()).is_some_and(|now| now == text.as_bytes()))
            || link.is_some_and(|(_, target)| root.link(path).is_ok_and(|now| now == *target))
    }

    /// Removes the files, and the record unless a file stays.
    fn remove(&self, root: &RootFolder) -> Result<Vec<InstallOutcome>> {
        let mut outcomes = self.remove_files(root)?;
        let stays = outcomes.iter().any(|outcome| matches!(outcome, InstallOutcome::Changed(_)));
        if !stays {
            outcomes.push(remove_record(root)?);
        }
        for folder in &self.folders {
            // A folder that contains other files stays.
            let _ = root.remove_folder(folder);
        }
        Ok(outcomes)
    }

    fn remove_files(&self, root: &RootFolder) -> Result<Vec<InstallOutcome>> {
        let mut outcomes = Vec::new();
        let failed = |path: &Path, e: io::Error| Error::io(path, "cannot be removed", e);
        for path in self.paths() {
            let place = root.shown(path);
            root.remove_unfinished(path).map_err(|e| failed(&place, e))?;
            outcomes.push(match root.has_name(path) {
                Err(e) => return Err(failed(&place, e)),
                Ok(false) => InstallOutcome::Missing(place),
                Ok(true) if !self.has(root, path) => InstallOutcome::Changed(place),
                Ok(true) => {
                    root.remove(path).map_err(|e| failed(&place, e))?;
                    InstallOutcome::Removed(place)
                }
            });
        }
        Ok(outcomes)
    }
}

/// The paths of all files that this command writes.
fn file_paths() -> impl Iterator<Item = PathBuf> {
    let units = Path::new(UNITS);
    let drop_in = move |unit: &str| units.join(format!("{unit}.d")).join("underseal-dm.conf");
    let others = [RULES, PROFILE].map(PathBuf::from);
    std::iter::once(units.join(UNIT)).chain(PRELOADED.map(drop_in)).chain(others)
}

/// The links that this command makes, and their targets.
fn links() -> Vec<(PathBuf, PathBuf)> {
    let link = Path::new(UNITS).join("sysinit.target.wants").join(UNIT);
    vec![(link, Path::new("..").join(UNIT))]
}

/// Returns the files and their contents, as [`file_paths`].
fn files(programs: &Programs<'_>) -> Result<Vec<(PathBuf, String)>> {
    let [command, library, folder] =
        [programs.command, programs.library, programs.folder].map(|path| plain(path));
    let (command, library, folder) = (command?, library?, folder?);
    let head = "# `underseal dm install` has written this file; `underseal dm uninstall` takes it away.\n";
    let service = format!(
        "{head}[Unit]
Description=Device mapper in userspace
Documentation=man:underseal-dm(1)
DefaultDependencies=no
After=systemd-modules-load.service systemd-tmpfiles-setup-dev.service systemd-remount-fs.service
Before=cryptsetup-pre.target sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
# It goes on outside of this service's control group, as its devices have to when the service ends.
ExecStart={command} dm serve --stay --folder {folder}
"
    );
    let environment = format!("LD_PRELOAD={library} UNDERSEAL_DM_SOCKET={folder}/control");
    let drop_in = format!(
        "{head}[Unit]
Wants={UNIT}
After={UNIT}

[Service]
Environment={environment}
"
    );
    let profile = format!(
        "{head}if [ \"$(id -u)\" = 0 ] && [ -r {library} ]; then
    case \":$LD_PRELOAD:\" in
        *:{library}:*) ;;
        *) export LD_PRELOAD={library}${{LD_PRELOAD:+:$LD_PRELOAD}} UNDERSEAL_DM_SOCKET={folder}/control ;;
    esac
    # Where no service has started it, as in a container.
    [ -S {folder}/control ] || LD_PRELOAD= {command} dm serve --stay --folder {folder}
fi
"
    );
    // Without udev's word on `mapper/NAME`, systemd waits in vain for `dev-mapper-NAME.device`, and
    // mounts nothing of /etc/fstab there. An unbound loop device is not ready (99-systemd.rules).
    // cryptsetup removes its temporary devices as soon as it has written them: udev reads neither them
    // nor what that write has left, as on a kernel's device mapper. It would in
    // 60-persistent-storage.rules, so that these rules have a lower number. Only some of these
    // devices have UUIDs of their own.
    let rules = format!(
        "{head}ACTION==\"remove\", GOTO=\"underseal_dm_end\"
SUBSYSTEM!=\"block\", GOTO=\"underseal_dm_end\"
ENV{{DEVTYPE}}!=\"disk\", GOTO=\"underseal_dm_end\"
KERNEL==\"ublkb[0-9]*\", TEST==\"{folder}/%k/udev\", IMPORT{{file}}=\"{folder}/%k/udev\", GOTO=\"underseal_dm_names\"
KERNEL!=\"loop[0-9]*\", GOTO=\"underseal_dm_end\"
TEST!=\"loop/backing_file\", GOTO=\"underseal_dm_end\"
TEST!=\"{folder}/%n/udev\", GOTO=\"underseal_dm_end\"
IMPORT{{file}}=\"{folder}/%n/udev\"
LABEL=\"underseal_dm_names\"
ENV{{DM_NAME}}==\"?*\", SYMLINK+=\"mapper/$env{{DM_NAME}} disk/by-id/dm-name-$env{{DM_NAME}}\"
ENV{{DM_UUID}}==\"?*\", SYMLINK+=\"disk/by-id/dm-uuid-$env{{DM_UUID}}\"
ENV{{DM_NAME}}==\"temporary-cryptsetup-?*\", OPTIONS:=\"nowatch\", ENV{{UDEV_DISABLE_PERSISTENT_STORAGE_RULES_FLAG}}=\"1\"
LABEL=\"underseal_dm_end\"
"
    );
    let drop_ins = PRELOADED.map(|_| drop_in.clone());
    let texts = std::iter::once(service).chain(drop_ins).chain([rules, profile]);
    Ok(file_paths().zip(texts).collect())
}

/// Checks for a path that needs no quoting in a unit, in a shell and in LD_PRELOAD.
fn plain(path: &Path) -> Result<&str> {
    let text = path.to_str().filter(|text| {
        text.starts_with('/') && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+".contains(&b))
    });
    text.ok_or_else(|| {
        Error::usage(format!("{}: such a path cannot be written to units and profiles", path.display()))
            .with_remedy("an absolute path of letters, digits and ._-+")
    })
}
