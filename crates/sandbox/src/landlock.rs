//! The files that can be opened, made or removed: those that are needed later. Open files stay
//! open.

use std::os::fd::OwnedFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};

use crate::Needs;

/// The newest Landlock ABI that this module uses; older versions of Linux apply the part that they
/// support.
const NEWEST: ABI = ABI::V7;

/// The rules, for [`restrict`] in each thread.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) fd: OwnedFd,
    /// The kernel's version of Landlock.
    pub(crate) version: u32,
}

/// Prepares the rules.
///
/// Returns the reason when Landlock is not available.
pub(crate) fn rules(needs: &Needs) -> Result<Rules, String> {
    let version = version().ok_or("this kernel has none, or it is not enabled")?;
    if needs.tree.is_some() && version < 2 {
        // Otherwise no file could be moved to another folder.
        return Err("before Linux 5.19 no filesystem can be served under it".into());
    }
    let fd: Option<OwnedFd> = made(needs).map_err(|e| e.to_string())?.into();
    fd.map(|fd| Rules { fd, version }).ok_or_else(|| "this kernel has none".into())
}

fn made(needs: &Needs) -> Result<RulesetCreated, RulesetError> {
    // The ports of a cluster's machines are unknown before the cluster reports them.
    let ports = if needs.cluster { AccessNet::BindTcp.into() } else { AccessNet::from_all(NEWEST) };
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(ports)?
        // The sandbox does not restrict signals: each thread is a separate domain, and threads
        // signal each other.
        .scope(Scope::AbstractUnixSocket)?
        .create()?;
    let write = if needs.read_only { BitFlags::empty() } else { AccessFs::WriteFile.into() };
    for image in &needs.images {
        rules = below(rules, image, AccessFs::ReadFile | AccessFs::IoctlDev | write)?;
    }
    if let Some(folder) = &needs.certificates {
        rules = below(rules, folder, AccessFs::ReadFile.into())?;
    }
    if let Some(folder) = &needs.locks {
        let name = AccessFs::MakeReg | AccessFs::RemoveFile;
        rules = below(rules, folder, name | AccessFs::ReadFile | AccessFs::WriteFile)?;
    }
    if let Some(disk) = &needs.ublk {
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        rules = below(rules, disk, device)?;
        let character = disk.to_string_lossy().replace("/ublkb", "/ublkc");
        rules = below(rules, Path::new(&character), device)?;
        rules = below(rules, Path::new("/dev/underseal"), AccessFs::RemoveFile.into())?;
    }
    if let Some(tree) = &needs.tree {
        let devices = AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::IoctlDev;
        let all = AccessFs::from_all(NEWEST);
        let access = if needs.devices { all } else { all & !devices };
        rules = rules.add_rule(PathBeneath::new(tree, access))?;
        // The status of a requesting process, which shows whether it is being killed.
        rules = below(rules, Path::new("/proc"), AccessFs::ReadFile.into())?;
    }
    Ok(rules)
}

/// Adds a rule for the path, and for everything below a folder. A missing path needs no rule.
fn below(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(fd) => rules.add_rule(PathBeneath::new(fd, access)),
        Err(_) => Ok(rules),
    }
}

/// Returns the kernel's version of Landlock, if it has Landlock.
#[expect(unsafe_code, reason = "a system call that only tells a number")]
fn version() -> Option<u32> {
    const VERSION: u32 = 1;
    let none = std::ptr::null::<u8>();
    // SAFETY: without attributes nothing is read, and nothing is made.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}
