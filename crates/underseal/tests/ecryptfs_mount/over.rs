//! Mounted over the lower folder itself, as is usual with the kernel's eCryptfs, and over a folder
//! above it: the mount hides the path of the lower folder.

use std::fs;

use crate::ecryptfs_mount::mounted::{Folder, unable};

#[test]
fn a_folder_is_mounted_over_itself_and_over_one_above() {
    if unable("a_folder_is_mounted_over_itself_and_over_one_above") {
        return;
    }
    for plain in ["home/lower", "home"] {
        let mut folder = Folder::new();
        folder.lower = folder.scratch.path("home/lower");
        folder.plain = folder.scratch.path(plain);
        fs::create_dir_all(&folder.lower).unwrap();
        let mount = folder.mount("");
        fs::create_dir(folder.at("folder")).unwrap();
        fs::write(folder.at("file"), b"plain").unwrap();
        fs::rename(folder.at("file"), folder.at("folder/file")).unwrap();
        assert_eq!(fs::read(folder.at("folder/file")).unwrap(), b"plain", "{plain}");
        let log = mount.unmount();
        assert!(!log.contains("the sandbox lacks"), "{log}");
        assert_eq!(fs::metadata(folder.below("folder/file")).unwrap().len(), 8192 + 4096, "{plain}");
        let mount = folder.mount("");
        assert_eq!(fs::read(folder.at("folder/file")).unwrap(), b"plain", "{plain}");
        mount.unmount();
    }
}
