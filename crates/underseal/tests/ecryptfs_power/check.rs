//! Compares the files that are found with the ones that may be there.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::ecryptfs_power::expected::{Entry, Expected, PAGE};
use crate::ecryptfs_power::writer::Writer;

/// The result of a check.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) files: usize,
    pub(crate) pages: usize,
    /// Pages that are not there, and need not be.
    pub(crate) missing: usize,
    /// Files that are not there, and need not be.
    pub(crate) gone: usize,
    /// Differences that must not be.
    pub(crate) wrong: Vec<String>,
}

impl Found {
    /// Looks at a writer's folder: `plain` in the mount, `lower` below.
    pub(crate) fn check(&mut self, writer: &Writer, plain: &Path, lower: &Path) {
        let names = |folder: &Path| -> BTreeSet<Vec<u8>> {
            let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
            entries.map(|entry| entry.unwrap().file_name().into_encoded_bytes()).collect()
        };
        let shown = names(plain);
        let below = names(lower).len();
        if shown.len() != below {
            self.wrong.push(format!("{} names of {below} lower ones can be decoded", shown.len()));
        }
        for name in &shown {
            let name = String::from_utf8_lossy(name);
            if !writer.entries.contains_key(&*name) {
                self.wrong.push(format!("{name}: nobody made it, or it was removed for good"));
            }
        }
        for (name, entry) in &writer.entries {
            let there = shown.contains(name.as_bytes());
            let must = matches!(
                entry,
                Entry::File { must_exist: true, .. } | Entry::Replaced { must_exist: true, .. }
            );
            if !there {
                self.gone += 1;
                if must {
                    self.wrong.push(format!("{name}: it is gone"));
                }
                continue;
            }
            self.files += 1;
            let checked = match entry {
                Entry::File { file, .. } | Entry::Leaving(file) => self.file(&plain.join(name), file),
                Entry::Replaced { versions, .. } => whole(&plain.join(name), versions),
            };
            if let Err(why) = checked {
                self.wrong.push(format!("{name}: {why}; below: {}", state_below(&plain.join(name), lower)));
            }
        }
    }

    fn file(&mut self, path: &Path, expected: &Expected) -> Result<(), String> {
        let durable = if expected.was_durable() { "was fsynced once" } else { "was never fsynced" };
        let file = File::open(path).map_err(|e| format!("it does not open: {e}; it {durable}"))?;
        let size = usize::try_from(file.metadata().map_err(|e| e.to_string())?.len()).unwrap();
        if !expected.may_have_size(size) {
            return Err(format!("it has {size} bytes, and may have {:?}; it {durable}", expected.sizes()));
        }
        let mut page = [0; PAGE];
        for number in 0..size.div_ceil(PAGE) {
            let page = &mut page[..(size - number * PAGE).min(PAGE)];
            self.pages += 1;
            match file.read_exact_at(page, (number * PAGE) as u64) {
                Ok(()) if expected.may_have_page(number, page) => {}
                Ok(()) => {
                    return Err(format!(
                        "page {number} of {size} bytes is none that was there; it {durable}"
                    ));
                }
                Err(e) if e.kind() != ErrorKind::UnexpectedEof && expected.may_lack_page(number) => {
                    self.missing += 1
                }
                Err(e) => return Err(format!("page {number} of {size} bytes: {e}; it {durable}")),
            }
        }
        Ok(())
    }
}

fn whole(path: &Path, versions: &[Vec<u8>]) -> Result<(), String> {
    let found = fs::read(path).map_err(|e| e.to_string())?;
    match versions.contains(&found) {
        true => Ok(()),
        false => Err(format!("it is none of the {} files that were put there", versions.len())),
    }
}

/// The lower file behind `plain`: its length, and which of its pages are zeros.
fn state_below(plain: &Path, lower: &Path) -> String {
    let number = |path: &Path| fs::symlink_metadata(path).map(|about| about.ino()).ok();
    let entries = fs::read_dir(lower).into_iter().flatten().flatten().map(|entry| entry.path());
    let same = entries.into_iter().find(|path| number(path) == number(plain));
    let Some(bytes) = same.and_then(|path| fs::read(path).ok()) else {
        return "nothing that can be read".into();
    };
    let zeros = |page: &[u8]| if page.iter().all(|&byte| byte == 0) { '0' } else { 'x' };
    format!("{} bytes, pages {}", bytes.len(), bytes.chunks(PAGE).map(zeros).collect::<String>())
}
