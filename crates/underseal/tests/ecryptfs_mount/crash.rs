//! The server is killed in the middle of writes: files have old or new contents, and open.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::support::scratch::assert_same;
use crate::support::{bytes, seed};

const EXTENT: usize = 4096;

#[test]
fn acknowledged_writes_survive_and_every_file_opens() {
    if unable("acknowledged_writes_survive_and_every_file_opens") {
        return;
    }
    let seed = seed("acknowledged_writes_survive_and_every_file_opens");
    let mut rng = fastrand::Rng::with_seed(seed);
    for options in ["", "ecryptfs_xattr_metadata"] {
        let folder = Folder::new();
        for round in 0..4 {
            let mount = folder.mount(options);
            // Only below the mount: where it is gone nothing can be written.
            fs::create_dir_all(folder.at("in")).unwrap();
            let wait = Duration::from_millis(rng.u64(5..150));
            let acknowledged: Vec<Vec<String>> = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..3)
                    .map(|writer| {
                        let folder = &folder;
                        scope.spawn(move || write_until_it_fails(folder, &format!("{round}-{writer}")))
                    })
                    .collect();
                std::thread::sleep(wait);
                mount.kill();
                writers.into_iter().map(|writer| writer.join().unwrap()).collect()
            });
            let mount = folder.mount(options);
            let done: Vec<String> = acknowledged.into_iter().flatten().collect();
            for name in &done {
                assert_same(&fs::read(inside(&folder, name)).unwrap(), &content(name), name);
            }
            for entry in fs::read_dir(folder.at("in")).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let found = fs::read(inside(&folder, &name)).unwrap_or_else(|e| panic!("{name}: {e}"));
                // An unfinished file ends where a write ended, or at an extent of the write under
                // way.
                let whole = content(&name);
                assert!(found.len() <= whole.len(), "{name}: {}", found.len());
                assert_same(&found, &whole[..found.len()], &name);
            }
            mount.unmount();
        }
    }
}

fn inside(folder: &Folder, name: &str) -> PathBuf {
    folder.at("in").join(name)
}

/// Makes files one after the other. Gives the names of those that were finished.
fn write_until_it_fails(folder: &Folder, writer: &str) -> Vec<String> {
    let mut done = Vec::new();
    // More than are ever made in that time.
    for n in 0..20_000 {
        let name = format!("{writer}-{n}");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(inside(folder, &name))?;
            for piece in content(&name).chunks(30_011) {
                file.write_all(piece)?;
            }
            Ok(())
        };
        match write() {
            Ok(()) => done.push(name),
            Err(_) => break,
        }
    }
    done
}

fn content(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(257) + u64::from(byte));
    bytes(seed, 100 + usize::try_from(seed % 300_000).unwrap())
}

#[test]
fn an_overwrite_that_is_cut_off_leaves_old_or_new_extents() {
    if unable("an_overwrite_that_is_cut_off_leaves_old_or_new_extents") {
        return;
    }
    let folder = Folder::new();
    let len = 64 * EXTENT;
    let version = |n: u8| vec![n; len];
    let mount = folder.mount("");
    fs::write(folder.at("over"), version(0)).unwrap();
    mount.unmount();
    for round in 0..4 {
        let mount = folder.mount("");
        let file = File::options().write(true).open(folder.at("over")).unwrap();
        let last = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                (1..=250u8).take_while(|&n| file.write_all_at(&version(n), 0).is_ok()).last().unwrap_or(0)
            });
            std::thread::sleep(Duration::from_millis(20 + 10 * round));
            mount.kill();
            writer.join().unwrap()
        });
        drop(file);
        let mount = folder.mount("");
        let found = fs::read(folder.at("over")).unwrap();
        assert_eq!(found.len(), len);
        for extent in found.chunks(EXTENT) {
            assert!(extent.iter().all(|&byte| byte == extent[0]), "an extent of two versions");
            assert!(
                last == 0 || last == 250 || [last, last + 1].contains(&extent[0]),
                "{} after {last}",
                extent[0]
            );
        }
        mount.unmount();
    }
}
