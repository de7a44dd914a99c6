//! Options of a mount.

use std::fs;

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr, statvfs};
use rustix::io::Errno;

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::support::bytes;

/// Whether the header of the lower file says so.
fn flags(lower: &[u8]) -> u32 {
    u32::from_be_bytes(lower[16..20].try_into().unwrap())
}

#[test]
fn every_cipher_writes_what_it_reads() {
    if unable("every_cipher_writes_what_it_reads") {
        return;
    }
    for (cipher, sizes) in [
        ("aes", &[16, 24, 32][..]),
        ("des3_ede", &[24]),
        ("cast5", &[16]),
        ("blowfish", &[16, 32]),
        ("twofish", &[16, 32]),
        ("cast6", &[16, 32]),
    ] {
        for size in sizes {
            let folder = Folder::new();
            let options =
                format!("ecryptfs_cipher={cipher},ecryptfs_key_bytes={size},ecryptfs_enable_filename_crypto");
            let data = bytes(7, 20_000);
            let mount = folder.mount(&options);
            fs::write(folder.at("file"), &data).unwrap();
            mount.unmount();
            // The header tells the cipher of contents.
            let mount = folder.mount(&options);
            assert!(fs::read(folder.at("file")).unwrap() == data, "{options}");
            mount.unmount();
            let lower = fs::read_dir(&folder.lower).unwrap().next().unwrap().unwrap();
            assert!(lower.file_name().to_str().unwrap().starts_with("ECRYPTFS_FNEK_ENCRYPTED."));
            let lower = fs::read(lower.path()).unwrap();
            assert_eq!((lower.len(), flags(&lower)), (8192 + 20_480, 0x0300_000a));
        }
    }
}

#[test]
fn names_of_143_bytes_fit_and_longer_ones_are_refused() {
    if unable("names_of_143_bytes_fit_and_longer_ones_are_refused") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("ecryptfs_enable_filename_crypto");
    assert_eq!(statvfs(&folder.plain).unwrap().f_namemax, 143);
    fs::write(folder.at(&"n".repeat(143)), b"fits").unwrap();
    let refused = fs::write(folder.at(&"n".repeat(144)), b"does not").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    std::os::unix::fs::symlink("/somewhere else", folder.at("link")).unwrap();
    assert_eq!(fs::read_link(folder.at("link")).unwrap().to_str(), Some("/somewhere else"));
    mount.unmount();
    for entry in fs::read_dir(&folder.lower).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_name().to_str().unwrap().starts_with("ECRYPTFS_FNEK_ENCRYPTED."));
        if let Ok(target) = fs::read_link(entry.path()) {
            assert!(target.to_str().unwrap().starts_with("ECRYPTFS_FNEK_ENCRYPTED."));
        }
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    assert_eq!(statvfs(&folder.plain).unwrap().f_namemax, 255);
    fs::write(folder.at(&"n".repeat(255)), b"fits").unwrap();
    mount.unmount();
}

#[test]
fn a_header_in_an_xattr_is_hidden_and_shown_in_the_encrypted_view() {
    if unable("a_header_in_an_xattr_is_hidden_and_shown_in_the_encrypted_view") {
        return;
    }
    let folder = Folder::new();
    let data = bytes(3, 10_000);
    let mount = folder.mount("ecryptfs_xattr_metadata");
    fs::write(folder.at("file"), &data).unwrap();
    setxattr(folder.at("file"), "user.other", b"value", XattrFlags::empty()).unwrap();
    let mut list = vec![0; 1000];
    let len = listxattr(folder.at("file"), &mut list[..]).unwrap();
    assert_eq!(&list[..len], b"user.other\0");
    let hidden = getxattr(folder.at("file"), "user.ecryptfs", &mut list[..]);
    assert_eq!(hidden, Err(Errno::NODATA));
    mount.unmount();
    let lower = fs::read(folder.below("file")).unwrap();
    assert_eq!(lower.len(), 12_288, "extents alone");
    assert!(getxattr(folder.below("file"), "user.ecryptfs", &mut list[..]).unwrap() > 26);

    let mount = folder.mount("ecryptfs_encrypted_view");
    let shown = fs::read(folder.at("file")).unwrap();
    assert_eq!(shown.len(), 8192 + 12_288);
    assert_eq!(fs::metadata(folder.at("file")).unwrap().len(), shown.len() as u64);
    assert!(shown[8192..] == lower[..]);
    let refused = fs::write(folder.at("other"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    mount.unmount();

    // The copied bytes are a file with its header in front.
    let copied = Folder::new();
    fs::write(copied.below("file"), &shown).unwrap();
    let mount = copied.mount("");
    assert!(fs::read(copied.at("file")).unwrap() == data);
    mount.unmount();
}

#[test]
fn a_file_opens_with_each_of_its_keys() {
    if unable("a_file_opens_with_each_of_its_keys") {
        return;
    }
    let folder = Folder::new();
    folder.scratch.file("second", b"another passphrase\n");
    let mount = folder.mount_with("", &["passphrase", "second"]);
    fs::write(folder.at("file"), b"for both").unwrap();
    mount.unmount();
    for passphrase in ["passphrase", "second"] {
        let mount = folder.mount_with("", &[passphrase]);
        assert_eq!(fs::read(folder.at("file")).unwrap(), b"for both");
        mount.unmount();
    }
    let wrong = folder.refused("ecryptfs_sig=0123456789abcdef", &["passphrase"]);
    assert_eq!(wrong.status.code(), Some(3), "{wrong:?}");
}

#[test]
fn plain_files_are_passed_through_where_the_mount_says_so() {
    if unable("plain_files_are_passed_through_where_the_mount_says_so") {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.below("plain"), b"not encrypted at all").unwrap();
    fs::write(folder.below("empty"), b"").unwrap();
    let mount = folder.mount("");
    assert_eq!(fs::metadata(folder.at("plain")).unwrap().len(), 20);
    let refused = fs::read(folder.at("plain")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::IO.raw_os_error()));
    // An empty one is an empty file, and is no less so for being looked at.
    assert_eq!(fs::read(folder.at("empty")).unwrap(), b"");
    assert_eq!(fs::metadata(folder.below("empty")).unwrap().len(), 0);
    fs::write(folder.at("empty"), b"now it has a header").unwrap();
    assert_eq!(fs::metadata(folder.below("empty")).unwrap().len(), 12_288);
    let log = mount.unmount_after_errors();
    fs::remove_file(folder.scratch.path("log")).unwrap();
    assert!(log.contains("plain: open: there is no eCryptfs header"), "{log}");

    let mount = folder.mount("ecryptfs_passthrough");
    assert_eq!(fs::read(folder.at("plain")).unwrap(), b"not encrypted at all");
    assert_eq!(fs::read(folder.at("empty")).unwrap(), b"now it has a header");
    fs::write(folder.at("plain"), b"still not").unwrap();
    mount.unmount();
    assert_eq!(fs::read(folder.below("plain")).unwrap(), b"still not");
}

#[test]
fn a_read_only_mount_refuses_writes() {
    if unable("a_read_only_mount_refuses_writes") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"x").unwrap();
    mount.unmount();
    let mount = folder.mount("ro");
    assert_eq!(fs::read(folder.at("file")).unwrap(), b"x");
    let refused = fs::write(folder.at("file"), b"y").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    mount.unmount();
}
