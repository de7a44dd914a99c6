//! Loop devices of the tests.

use std::path::Path;
use std::process::{Command, Output};

use underseal_testing::skip;

/// A loop device, until it is dropped.
pub(crate) struct Loop(String);

impl Loop {
    /// Makes one over a file or a device; a skip where there can be none.
    pub(crate) fn over(path: impl AsRef<Path>) -> Option<Self> {
        let attached = losetup(&["--find", "--show", path.as_ref().to_str().unwrap()]);
        if !attached.status.success() {
            skip("a loop device", String::from_utf8_lossy(&attached.stderr).trim());
            return None;
        }
        Some(Self(String::from_utf8(attached.stdout).unwrap().trim().to_owned()))
    }
}

impl AsRef<Path> for Loop {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        losetup(&["--detach", &self.0]);
    }
}

fn losetup(args: &[&str]) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("losetup").args(args).env("PATH", format!("{path}:/usr/sbin:/sbin")).output().unwrap()
}
