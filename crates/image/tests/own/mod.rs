//! An image, and a file as a program's own device.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use underseal_image::{FormatOptions, Header, LowerDevice};

/// A file as a program's own device.
pub(crate) struct Own(pub(crate) File);

impl LowerDevice for Own {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(&self.0, bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(&self.0, bytes, offset)
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }
}

/// Makes an image with a LUKS2 volume that `secret` opens.
pub(crate) fn image(folder: &Path) -> PathBuf {
    let path = folder.join("an image");
    File::create_new(&path).unwrap().set_len(24 << 20).unwrap();
    Header::format(&path, b"secret", &FormatOptions::luks2().pbkdf2(1000)).unwrap();
    path
}
