//! `dm install` and `dm uninstall`: files that give a whole machine the device mapper, and their
//! removal.
//!
//! ```text
//!   /etc/systemd/system/underseal-dm.service                          the back end, from boot on
//!   /etc/systemd/system/sysinit.target.wants/underseal-dm.service     a link to it
//!   /etc/systemd/system/systemd-cryptsetup@.service.d/underseal-dm.conf    the library
//!   .. systemd-integritysetup@, systemd-veritysetup@, systemd-homed        the same
//!   /etc/udev/rules.d/61-underseal-dm.rules                           names of devices for udev
//!   /etc/profile.d/underseal-dm.sh                                    the same, for root's shells
//!   /etc/underseal/dm-installed                                       the record of all of these
//! ```
//!
//! The record has the contents of these files, and is written first. A file that differs from the
//! record was changed by another program, and stays.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::exit::Exit;

/// The record's path, below the root folder.
const RECORD: &str = "etc/underseal/dm-installed";
const UNITS: &str = "etc/systemd/system";
const UNIT: &str = "underseal-dm.service";
const RULES: &str = "etc/udev/rules.d/61-underseal-dm.rules";
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

/// Installs below `root`. Files of an earlier installation are removed first.
pub(crate) fn install(root: &Path, programs: &Programs<'_>) -> Result<Vec<InstallOutcome>> {
    let mut new = Installed { files: files(programs)?, ..Installed::default() };
    let link = Path::new(UNITS).join("sysinit.target.wants").join(UNIT);
    new.links.push((link, Path::new("..").join(UNIT)));
    let before = Installed::read(root)?.unwrap_or_default();
    let paths = || new.files.iter().map(|(path, _)| path).chain(new.links.iter().map(|(path, _)| path));
    for path in paths() {
        if root.join(path).symlink_metadata().is_ok() && !before.has(root, path) {
            let what = format!("{} is there and is not what this command wrote", root.join(path).display());
            return Err(Error::usage(what).with_remedy("move it away"));
        }
    }
    before.remove(root)?;
    let folders =
        paths().flat_map(|path| path.ancestors().skip(1)).chain(Path::new(RECORD).ancestors().skip(1));
    let mut folders: Vec<PathBuf> =
        folders.filter(|folder| !root.join(folder).exists()).map(Into::into).collect();
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
    folders.dedup();
    new.folders = folders;
    new.write(root)
}

/// Removes the files installed below `root`; `None` where none are.
pub(crate) fn uninstall(root: &Path) -> Result<Option<Vec<InstallOutcome>>> {
    Installed::read(root)?.map(|installed| installed.remove(root)).transpose()
}

impl Installed {
    fn read(root: &Path) -> Result<Option<Self>> {
        let path = root.join(RECORD);
        let text = match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|e| Error::io(&path, "cannot be read", e))?,
        };
        let bad = || Error::new(Exit::Failed, format!("{} is not what this command writes", path.display()));
        let this: Self = serde_json::from_slice(&text).map_err(|e| bad().because(&e))?;
        let stays_below = |path: &PathBuf| path.components().all(|part| matches!(part, Component::Normal(_)));
        let paths = this.files.iter().map(|(path, _)| path).chain(this.links.iter().map(|(path, _)| path));
        if !paths.chain(&this.folders).all(stays_below) {
            return Err(bad());
        }
        Ok(Some(this))
    }

    fn write(&self, root: &Path) -> Result<Vec<InstallOutcome>> {
        let failed = |path: &Path, e: io::Error| Error::io(path, "cannot be written", e);
        let make_folder = |path: &Path| {
            let folder = path.parent().unwrap_or(root);
            fs::create_dir_all(folder).map_err(|e| failed(folder, e))
        };
        let record = serde_json::to_string_pretty(self);
        let record = record.map_err(|e| Error::new(Exit::Failed, "no record").because(&e))? + "\n";
        let files = self.files.iter().map(|(path, text)| (path.as_path(), text.as_str()));
        let mut outcomes = Vec::new();
        for (path, text) in std::iter::once((Path::new(RECORD), record.as_str())).chain(files) {
            let path = root.join(path);
            make_folder(&path)?;
            // A symbolic link that was made in the meantime is not followed.
            let file = File::options().write(true).create_new(true).mode(0o644).open(&path);
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|e| failed(&path, e))?;
            outcomes.push(InstallOutcome::Written(path));
        }
        for (path, target) in &self.links {
            let path = root.join(path);
            make_folder(&path)?;
            symlink(target, &path).map_err(|e| failed(&path, e))?;
            outcomes.push(InstallOutcome::Written(path));
        }
        Ok(outcomes)
    }

    /// Returns true when a path is as it was installed.
    fn has(&self, root: &Path, path: &Path) -> bool {
        let place = root.join(path);
        let file = self.files.iter().find(|(known, _)| known == path);
        let link = self.links.iter().find(|(known, _)| known == path);
        let is_file = || place.symlink_metadata().is_ok_and(|of| of.is_file());
        file.is_some_and(|(_, text)| is_file() && fs::read(&place).is_ok_and(|now| now == text.as_bytes()))
            || link.is_some_and(|(_, target)| fs::read_link(&place).is_ok_and(|now| now == *target))
    }

    fn remove(&self, root: &Path) -> Result<Vec<InstallOutcome>> {
        let mut outcomes = Vec::new();
        let failed = |path: &Path, e: io::Error| Error::io(path, "cannot be removed", e);
        let links = self.links.iter().map(|(path, _)| path);
        for path in links.chain(self.files.iter().map(|(path, _)| path)) {
            let place = root.join(path);
            outcomes.push(match place.symlink_metadata() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => InstallOutcome::Missing(place),
                Err(e) => return Err(failed(&place, e)),
                Ok(_) if !self.has(root, path) => InstallOutcome::Changed(place),
                Ok(_) => {
                    fs::remove_file(&place).map_err(|e| failed(&place, e))?;
                    InstallOutcome::Removed(place)
                }
            });
        }
        if *self != Self::default() {
            let record = root.join(RECORD);
            fs::remove_file(&record).map_err(|e| failed(&record, e))?;
            outcomes.push(InstallOutcome::Removed(record));
        }
        for folder in &self.folders {
            // A folder that contains other files stays.
            let _ = fs::remove_dir(root.join(folder));
        }
        Ok(outcomes)
    }
}

/// Returns the files and their contents.
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
    // cryptsetup removes its temporary devices as soon as it has written them: udev does not look
    // after that write, as on a kernel's device mapper.
    let rules = format!(
        "{head}ACTION==\"remove\", GOTO=\"underseal_dm_end\"
SUBSYSTEM!=\"block\", GOTO=\"underseal_dm_end\"
KERNEL!=\"loop[0-9]*\", GOTO=\"underseal_dm_end\"
ENV{{DEVTYPE}}!=\"disk\", GOTO=\"underseal_dm_end\"
TEST!=\"loop/backing_file\", GOTO=\"underseal_dm_end\"
TEST!=\"{folder}/%n/udev\", GOTO=\"underseal_dm_end\"
IMPORT{{file}}=\"{folder}/%n/udev\"
ENV{{DM_NAME}}==\"?*\", SYMLINK+=\"mapper/$env{{DM_NAME}} disk/by-id/dm-name-$env{{DM_NAME}}\"
ENV{{DM_UUID}}==\"?*\", SYMLINK+=\"disk/by-id/dm-uuid-$env{{DM_UUID}}\"
ENV{{DM_UUID}}==\"CRYPT-TEMP-?*\", OPTIONS:=\"nowatch\"
LABEL=\"underseal_dm_end\"
"
    );
    let units = Path::new(UNITS);
    let drop_in_of = |unit: &str| units.join(format!("{unit}.d")).join("underseal-dm.conf");
    let mut files = vec![(units.join(UNIT), service)];
    files.extend(PRELOADED.map(|unit| (drop_in_of(unit), drop_in.clone())));
    files.push((RULES.into(), rules));
    files.push(("etc/profile.d/underseal-dm.sh".into(), profile));
    Ok(files)
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
