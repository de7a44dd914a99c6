//! New headers.

use std::fs::File;
use std::path::{Path, PathBuf};

use underseal_cipher::SectorSize;
use underseal_volume::{ImageContents, NamedFile, Pbkdf, ReadAt, Version, create_private, remove_new_file};

use crate::header::{argon2id, new_passphrase, pbkdf2};
use crate::lower::Lower;
use crate::setters::setters;
use crate::traces::without_traces;
use crate::{Error, ErrorKind, Header, Result};

/// Options of a new volume.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    version: Version,
    cipher: String,
    key_size: Option<usize>,
    sector_size: Option<u32>,
    pbkdf: Pbkdf,
    label: String,
    uuid: Option<String>,
    header: Option<PathBuf>,
    force: bool,
}

impl FormatOptions {
    /// LUKS2: aes-xts-plain64 with a key of 64 bytes, Argon2id, as cryptsetup.
    pub fn luks2() -> Self {
        Self {
            version: Version::Luks2,
            cipher: "aes-xts-plain64".into(),
            key_size: None,
            sector_size: None,
            pbkdf: Pbkdf::argon2id(),
            label: String::new(),
            uuid: None,
            header: None,
            force: false,
        }
    }

    /// LUKS1: aes-xts-plain64 with a key of 64 bytes, PBKDF2, as cryptsetup.
    pub fn luks1() -> Self {
        Self { version: Version::Luks1, pbkdf: Pbkdf::pbkdf2(), ..Self::luks2() }
    }

    setters! {
        /// The cipher in dm-crypt's form: `aes-xts-plain64`.
        cipher(options, cipher: impl Into<String>) options.cipher = cipher.into();

        /// The length of the volume key in bytes.
        key_size(options, bytes: usize) options.key_size = Some(bytes);

        /// LUKS2: the size of an encryption sector, 512 to 4096 bytes.
        sector_size(options, bytes: u32) options.sector_size = Some(bytes);

        /// PBKDF2 with a number of rounds, at least 1000.
        pbkdf2(options, rounds: u32) options.pbkdf = pbkdf2(rounds);

        /// LUKS2: Argon2id with a number of passes, memory in KiB and threads.
        argon2id(options, passes: u32, memory_kib: u32, threads: u32)
            options.pbkdf = argon2id(passes, memory_kib, threads);

        /// LUKS2: a label of up to 47 bytes.
        label(options, label: impl Into<String>) options.label = label.into();

        /// The UUID; a random one by default.
        uuid(options, uuid: impl Into<String>) options.uuid = Some(uuid.into());

        /// Puts the header into another file, which is made or overwritten.
        header(options, path: impl Into<PathBuf>) options.header = Some(path.into());

        /// Whether formatting overwrites existing data.
        force(options, force: bool) options.force = force;
    }

    fn options(&self) -> Result<underseal_volume::FormatOptions> {
        let bad = |what: String| Error::new(ErrorKind::BadOption, what);
        let uuid = self
            .uuid
            .as_deref()
            .map(|text| uuid::Uuid::parse_str(text).map_err(|_| bad(format!("{text:?} is not a UUID"))));
        Ok(underseal_volume::FormatOptions {
            version: self.version,
            cipher: self.cipher.parse()?,
            key_size: self.key_size,
            sector_size: self.sector_size.map(SectorSize::new).transpose()?,
            pbkdf: self.pbkdf,
            label: self.label.clone(),
            uuid: uuid.transpose()?,
            detached: self.header.is_some(),
            ..underseal_volume::FormatOptions::luks2()
        })
    }
}

impl Header {
    /// Makes a new volume on an image or block device of the right size. Its data is noise until it
    /// is written.
    ///
    /// # Errors
    /// `BadOption` for options that do not fit, an empty passphrase, and when the image holds a
    /// header (of LUKS, BitLocker or CoreStorage), a file system or a partition table, unless
    /// forced; when the header's file is the image itself; `TooSmall`; `Busy` when another
    /// program uses the image or, as an image, the header's file; `Io`, `Memory`.
    pub fn format(path: impl AsRef<Path>, passphrase: &[u8], options: &FormatOptions) -> Result<Self> {
        let path = path.as_ref();
        let format = || -> Result<Option<Lower>> {
            let wanted = options.options()?;
            let passphrase = new_passphrase(passphrase)?;
            let image = Lower::open(path, true)?;
            let size = |e| Error::new(ErrorKind::Io, "cannot find the size").with_source(e);
            let data_size = ReadAt::size(&image).map_err(size)?;
            let (on, new) = match &options.header {
                Some(header) => made(header, options.force)?,
                None => (image.clone(), None),
            };
            if options.header.is_some() && on.is_same_file(&image) {
                let what = "the header's file is the image itself; pass another file";
                return Err(Error::new(ErrorKind::BadOption, what));
            }
            // The other program's volume may have its header there, or data.
            let lock = |header: &PathBuf| on.lock_image().map_err(|e| e.in_file(header));
            let _locks = options.header.as_ref().map(lock).transpose()?;
            if !options.force {
                refuse_what_is_there(&on)?;
            }
            underseal_volume::format(&on, data_size, &passphrase, wanted)?;
            new.into_iter().for_each(NewFile::keep);
            Ok(options.header.is_some().then_some(on))
        };
        match (without_traces(format).map_err(|e| e.in_file(path))?, &options.header) {
            (Some(on), Some(header)) => Self::read(on, header),
            _ => Self::open_writable(path),
        }
    }
}

/// A file that was made, and is removed again unless it is kept.
struct NewFile<'p> {
    path: &'p Path,
    file: Option<File>,
}

impl NewFile<'_> {
    fn keep(mut self) {
        self.file = None;
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            remove_new_file(self.path, file);
        }
    }
}

/// A new file for a detached header, for its owner only; an existing one only by force. The name of
/// a new file is not opened again: another user of its folder may put a link there.
fn made(path: &Path, force: bool) -> Result<(Lower, Option<NewFile<'_>>)> {
    let failed = |e| {
        let what = format!("{}: cannot make the header's file", path.display());
        Error::new(ErrorKind::Io, what).with_source(e)
    };
    match create_private(path) {
        Ok(file) => {
            let new = NewFile { path, file: Some(file.try_clone().map_err(failed)?) };
            Ok((Lower::of_header(NamedFile::made(file)), Some(new)))
        }
        Err(e) if force && e.kind() == std::io::ErrorKind::AlreadyExists => {
            Ok((Lower::open_header(path, true)?, None))
        }
        Err(e) => Err(failed(e)),
    }
}

/// Refuses to overwrite a header, a file system or another known format.
pub(crate) fn refuse_what_is_there(on: &Lower) -> Result<()> {
    let ImageContents::Known(name) = ImageContents::of(on)? else { return Ok(()) };
    Err(Error::new(ErrorKind::BadOption, format!("the image holds {name}; pass force to overwrite it")))
}
