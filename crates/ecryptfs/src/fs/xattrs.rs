//! Extended attributes, including ACLs: the lower file's own, except the xattrs with headers and
//! tools' marks.

use rustix::fs::{AtFlags, CWD};
use rustix::fs::{
    Mode, XattrFlags, chmodat, fstat, getxattr, getxattr_query, listxattr, removexattr, setxattr,
};
use rustix::io::Errno;
use underseal_fuse::wire::Body;

use super::{Answer, Fs, proc_path};

/// The length of the longest value, and of the longest list, in the kernel.
const LONGEST: usize = 64 << 10;

/// SELinux's label. With SELinux the kernel replies itself; without, no file has a label, but `ls
/// -l` asks for each file's unless this filesystem replies that it has none.
const LABEL: &[u8] = b"security.selinux";

/// The ACL that says who may access a file.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

impl Fs {
    /// Replies with a value, if it fits into `room` bytes; with its size, if `room` is 0.
    pub(super) fn getxattr(&self, node: u64, name: &[u8], room: u32, out: &mut Vec<u8>) -> Answer<()> {
        if self.view.hides_xattr(name) {
            return Err(Errno::NODATA);
        }
        let fd = self.nodes.fd(&self.nodes.get(node)?)?;
        let path = proc_path(&fd);
        let unknown = |e| if e == Errno::NODATA && name == LABEL { Errno::OPNOTSUPP } else { e };
        if room == 0 {
            let len = getxattr_query(path, name).map_err(unknown)?;
            Body(out).u32(u32::try_from(len).unwrap_or(u32::MAX)).u32(0);
            return Ok(());
        }
        // Not more than requested: the kernel clears as much.
        out.resize(LONGEST.min(room as usize), 0);
        let len = getxattr(path, name, out.as_mut_slice()).map_err(unknown)?;
        out.truncate(len);
        Ok(())
    }

    pub(super) fn listxattr(&self, node: u64, out: &mut Vec<u8>) -> Answer<()> {
        let fd = self.nodes.fd(&self.nodes.get(node)?)?;
        let mut list = vec![0; LONGEST];
        let len = listxattr(proc_path(&fd), list.as_mut_slice())?;
        for name in list[..len].split_inclusive(|&b| b == 0) {
            if !self.view.hides_xattr(name.strip_suffix(b"\0").unwrap_or(name)) {
                out.extend_from_slice(name);
            }
        }
        Ok(())
    }

    pub(super) fn setxattr(
        &self,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Answer<()> {
        if self.view.hides_xattr(name) {
            return Err(Errno::PERM);
        }
        let node = self.nodes.get(node)?;
        let fd = self.nodes.fd(&node)?;
        self.has_its_names(&node)?;
        let _change = self.change_closed(&node, false);
        setxattr(proc_path(&fd), name, value, XattrFlags::from_bits_retain(flags))?;
        // The kernel asks for it with a folder's default ACL, too.
        if kill_sgid && name == ACCESS_ACL {
            let mode = fstat(&fd)?.st_mode;
            if mode & 0o2000 != 0 {
                chmodat(CWD, proc_path(&fd), Mode::from_raw_mode(mode & 0o5777), AtFlags::empty())?;
            }
        }
        Ok(())
    }

    pub(super) fn removexattr(&self, node: u64, name: &[u8]) -> Answer<()> {
        if self.view.hides_xattr(name) {
            return Err(Errno::PERM);
        }
        let node = self.nodes.get(node)?;
        let fd = self.nodes.fd(&node)?;
        self.has_its_names(&node)?;
        let _change = self.change_closed(&node, false);
        removexattr(proc_path(&fd), name)
    }
}
