//! Behaviour of any filesystem. scripts/posix-tests has more tests of it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, fcntl_lock, flock, getxattr, getxattr_query};
use rustix::fs::{
    CWD, Mode, OFlags, RenameFlags, XattrFlags, linkat, openat, removexattr, renameat_with, setxattr,
};
use rustix::io::Errno;

use crate::ecryptfs_mount::mounted::{Folder, client, unable};
use crate::support::{output, run};

#[test]
fn names_are_linked_moved_exchanged_and_removed() {
    if unable("names_are_linked_moved_exchanged_and_removed") {
        return;
    }
    for options in ["", "ecryptfs_enable_filename_crypto"] {
        let folder = Folder::new();
        let mount = folder.mount(options);
        let at = |name: &str| folder.at(name);
        fs::write(at("a"), b"first").unwrap();
        fs::write(at("b"), b"the second").unwrap();
        fs::hard_link(at("a"), at("c")).unwrap();
        assert_eq!(
            (fs::metadata(at("c")).unwrap().nlink(), fs::read(at("c")).unwrap()),
            (2, b"first".to_vec())
        );
        fs::write(at("c"), b"changed through the other name").unwrap();
        assert_eq!(fs::read(at("a")).unwrap(), b"changed through the other name");

        let rename = |from: &str, to: &str, flags| renameat_with(CWD, at(from), CWD, at(to), flags);
        assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename("a", "b", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(at("a")).unwrap(), b"the second");
        assert_eq!(fs::read(at("b")).unwrap(), b"changed through the other name");
        fs::create_dir_all(at("d/e")).unwrap();
        rename("b", "d/e/b", RenameFlags::NOREPLACE).unwrap();
        rename("d", "f", RenameFlags::empty()).unwrap();
        assert_eq!(fs::read(at("f/e/b")).unwrap(), b"changed through the other name");
        // Over a file that is open: its reader keeps the old contents.
        let mut open = File::open(at("a")).unwrap();
        fs::rename(at("f/e/b"), at("a")).unwrap();
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "the second");
        assert_eq!(open.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read(at("a")).unwrap(), b"changed through the other name");
        drop(open);
        symlink("a", at("link")).unwrap();
        assert_eq!(fs::read(at("link")).unwrap(), b"changed through the other name");
        assert_eq!(fs::symlink_metadata(at("link")).unwrap().len(), 1);
        fs::remove_dir_all(at("f")).unwrap();
        assert_eq!(fs::remove_dir(at("f")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        let mut names: Vec<_> =
            fs::read_dir(&folder.plain).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a", "c", "link"]);
        mount.unmount();
    }
}

#[test]
fn a_file_without_a_name_is_a_file() {
    if unable("a_file_without_a_name_is_a_file") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    // Removed while it is open.
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).open(folder.at("gone")).unwrap();
    fs::remove_file(folder.at("gone")).unwrap();
    file.write_all(b"still here").unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let about = file.metadata().unwrap();
    assert_eq!((text.as_str(), about.len(), about.nlink(), about.mode()), ("still here", 10, 0, 0o100_600));
    drop(file);
    // Made without a name, and then given one.
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let mut file = File::from(openat(CWD, &folder.plain, flags, Mode::from_raw_mode(0o640)).unwrap());
    file.write_all(b"without a name").unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    linkat(CWD, path, CWD, folder.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    assert_eq!(fs::read(folder.at("named")).unwrap(), b"without a name");
    mount.unmount();
    let mount = folder.mount("");
    assert_eq!(fs::read(folder.at("named")).unwrap(), b"without a name");
    assert_eq!(fs::read_dir(&folder.plain).unwrap().count(), 1);
    mount.unmount();
}

#[test]
fn modes_owners_and_times_are_kept() {
    if unable("modes_owners_and_times_are_kept") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o4751)
        .open(folder.at("file"))
        .unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    file.set_times(fs::FileTimes::new().set_accessed(old).set_modified(old)).unwrap();
    drop(file);
    fs::set_permissions(folder.at("file"), fs::Permissions::from_mode(0o2754)).unwrap();
    let seen = fs::metadata(folder.at("file")).unwrap();
    let below = fs::metadata(folder.below("file")).unwrap();
    assert_eq!((seen.mode(), seen.modified().unwrap(), seen.mtime_nsec()), (0o102_754, old, 123_456_789));
    assert_eq!(
        (seen.mode(), seen.uid(), seen.gid(), seen.ino()),
        (below.mode(), below.uid(), below.gid(), below.ino())
    );
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder.at("file"), Some(1234), Some(4321)).unwrap();
        let below = fs::metadata(folder.below("file")).unwrap();
        assert_eq!((below.uid(), below.gid()), (1234, 4321));
    }
    run(client("mkfifo").arg(folder.at("fifo")));
    assert!(fs::metadata(folder.below("fifo")).unwrap().mode() & 0o170_000 == 0o010_000);
    mount.unmount();
}

#[test]
fn attributes_and_acls_reach_the_lower_file() {
    if unable("attributes_and_acls_reach_the_lower_file") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"x").unwrap();
    let mut value = vec![0; 100_000];
    setxattr(folder.at("file"), "user.name", b"value", XattrFlags::CREATE).unwrap();
    let again = setxattr(folder.at("file"), "user.name", b"value", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    let len = getxattr(folder.below("file"), "user.name", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"value");
    assert_eq!(getxattr(folder.at("file"), "user.name", &mut value[..3]), Err(Errno::RANGE));
    assert_eq!(getxattr_query(folder.at("file"), "user.name"), Ok(5));
    assert_eq!(getxattr(folder.at("file"), "user.name", &mut value[..5]), Ok(5));
    assert_eq!(&value[..5], b"value");
    removexattr(folder.at("file"), "user.name").unwrap();
    assert_eq!(getxattr(folder.at("file"), "user.name", &mut value[..]), Err(Errno::NODATA));
    // Without SELinux EOPNOTSUPP keeps `ls -l` from asking again; with it, the kernel answers.
    if let Err(e) = getxattr(folder.at("file"), "security.selinux", &mut [0; 255][..]) {
        assert_eq!(e, Errno::OPNOTSUPP);
    }

    fs::create_dir(folder.at("folder")).unwrap();
    run(client("setfacl").args(["-m", "u:1234:rwx,d:u:1234:rwx"]).arg(folder.at("folder")));
    fs::write(folder.at("folder/file"), b"x").unwrap();
    for path in [folder.at("folder/file"), folder.below("folder/file")] {
        let told = run(client("getfacl").args(["-nc"]).arg(&path));
        assert!(told.contains("user:1234:rwx"), "{}: {told}", path.display());
    }
    mount.unmount();
}

#[test]
fn locks_keep_others_out() {
    if unable("locks_keep_others_out") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"x").unwrap();
    let open = || File::options().read(true).write(true).open(folder.at("file")).unwrap();
    let (first, second) = (open(), open());
    flock(&first, FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&second, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    flock(&first, FlockOperation::Unlock).unwrap();
    flock(&second, FlockOperation::NonBlockingLockExclusive).unwrap();
    fcntl_lock(&first, FlockOperation::NonBlockingLockExclusive).unwrap();
    let other = output(
        client("python3")
            .args([
                "-c",
                "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'r+'), fcntl.LOCK_EX|fcntl.LOCK_NB)",
            ])
            .arg(folder.at("file")),
    );
    assert!(!other.status.success(), "another process got a lock that is held");
    drop((first, second));
    mount.unmount();
}

#[test]
fn a_folder_of_many_files_is_listed_whole() {
    if unable("a_folder_of_many_files_is_listed_whole") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("ecryptfs_enable_filename_crypto");
    for n in 0..2000u64 {
        fs::write(folder.at(&format!("file {n}")), vec![b'x'; usize::try_from(n % 7).unwrap()]).unwrap();
    }
    mount.unmount();
    let mount = folder.mount("ecryptfs_enable_filename_crypto");
    let mut seen: Vec<(u64, u64)> = fs::read_dir(&folder.plain)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name.strip_prefix("file ").unwrap().parse().unwrap(), entry.metadata().unwrap().len())
        })
        .collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..2000).map(|n| (n, n % 7))));
    mount.unmount();
}
