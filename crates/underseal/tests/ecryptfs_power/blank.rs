//! Lower files as a power cut may leave them: a length, and zeros where the header should be.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::ecryptfs_mount::mounted::{Folder, unable};

const EIO: i32 = 5;

#[test]
fn a_lower_file_of_nothing_but_zeros_is_an_empty_file() {
    if unable("a_lower_file_of_nothing_but_zeros_is_an_empty_file") {
        return;
    }
    for options in ["", "ecryptfs_xattr_metadata"] {
        let folder = Folder::new();
        let mount = folder.mount(options);
        fs::write(folder.below("written"), vec![0; 300_000]).unwrap();
        File::create(folder.below("sparse")).unwrap().set_len(16_384).unwrap();
        for name in ["written", "sparse"] {
            assert_eq!(fs::metadata(folder.at(name)).unwrap().len(), 0, "{name}");
            assert_eq!(fs::read(folder.at(name)).unwrap(), b"", "{name}");
            let file = File::options().write(true).open(folder.at(name)).unwrap();
            file.write_all_at(b"more", 10_000).unwrap();
            drop(file);
            let found = fs::read(folder.at(name)).unwrap();
            assert!(found.len() == 10_004 && found[..10_000].iter().all(|&b| b == 0), "{name}");
            assert_eq!(&found[10_000..], b"more", "{name}");
        }
        mount.unmount();
        let mount = folder.mount(options);
        assert_eq!(&fs::read(folder.at("sparse")).unwrap()[10_000..], b"more");
        mount.unmount();
    }
}

#[test]
fn where_plain_files_are_passed_through_it_is_one_of_them() {
    if unable("where_plain_files_are_passed_through_it_is_one_of_them") {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.below("written"), vec![0; 30_000]).unwrap();
    let mount = folder.mount("ecryptfs_passthrough");
    assert_eq!(fs::metadata(folder.at("written")).unwrap().len(), 30_000);
    assert_eq!(fs::read(folder.at("written")).unwrap(), vec![0; 30_000]);
    mount.unmount();
}

#[test]
fn a_lower_file_whose_header_alone_is_zeros_is_damaged() {
    if unable("a_lower_file_whose_header_alone_is_zeros_is_damaged") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"contents").unwrap();
    File::options().write(true).open(folder.below("file")).unwrap().write_all_at(&[0; 8192], 0).unwrap();
    mount.unmount();
    let mount = folder.mount("");
    assert_eq!(fs::read(folder.at("file")).unwrap_err().raw_os_error(), Some(EIO));
    mount.unmount_after_errors();
}
