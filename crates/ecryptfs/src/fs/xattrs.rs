//! Extended attributes, ACLs among them: the lower file's own, but for the one that holds a header.

use rustix::fs::{AtFlags, CWD};
use rustix::fs::{FileType, Mode, XattrFlags, chmodat, fstat, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::{Answer, Fs, proc_path};

/// The longest value, and the longest list, that the kernel knows.
const LONGEST: usize = 64 << 10;

impl Fs {
    pub(super) fn getxattr(&self, node: u64, name: &[u8], out: &mut Vec<u8>) -> Answer<()> {
        if self.view.hides_xattr(name) {
            return Err(Errno::NODATA);
        }
        let fd = self.nodes.fd(&self.nodes.get(node)?)?;
        out.resize(LONGEST, 0);
        let len = getxattr(proc_path(&fd), name, out.as_mut_slice())?;
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
        let fd = self.nodes.fd(&self.nodes.get(node)?)?;
        setxattr(proc_path(&fd), name, value, XattrFlags::from_bits_retain(flags))?;
        if kill_sgid {
            let mode = fstat(&fd)?.st_mode;
            if FileType::from_raw_mode(mode) == FileType::RegularFile && mode & 0o2000 != 0 {
                chmodat(CWD, proc_path(&fd), Mode::from_raw_mode(mode & 0o5777), AtFlags::empty())?;
            }
        }
        Ok(())
    }

    pub(super) fn removexattr(&self, node: u64, name: &[u8]) -> Answer<()> {
        if self.view.hides_xattr(name) {
            return Err(Errno::PERM);
        }
        let fd = self.nodes.fd(&self.nodes.get(node)?)?;
        removexattr(proc_path(&fd), name)
    }
}
