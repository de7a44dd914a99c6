//! Files that another program replaces in the lower folder, or another mount writes, between the
//! kernel's look at them and its request.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::process::Stdio;

use crate::ecryptfs_mount::mounted::{Folder, client, unable};
use crate::ecryptfs_mount::users::{NOBODY, as_user, unable_as_root};
use crate::support::output;
use crate::support::tools::{PATIENCE, wait_until};

/// A mount whose folder all users may write to, sticky as /tmp.
fn shared() -> Folder {
    let folder = Folder::new();
    for path in [folder.scratch.folder(), &folder.lower] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&folder.lower, fs::Permissions::from_mode(0o1777)).unwrap();
    folder
}

/// Returns what a user's shell says as `then` fails, after it has seen that `seen` holds, and
/// `meanwhile` was done. The kernel remembers for a second what it has seen.
fn user_fails(folder: &Folder, seen: &str, then: &str, meanwhile: impl FnOnce()) -> String {
    let script = format!("cd {}; {seen} && echo; read go; {then}", folder.plain.display());
    let mut user = as_user(NOBODY, &["sh", "-c", &script]);
    user.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut user = user.spawn().unwrap();
    user.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    meanwhile();
    user.stdin.take().unwrap().write_all(b"\n").unwrap();
    let ended = user.wait_with_output().unwrap();
    assert!(!ended.status.success(), "{then}: {ended:?}");
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

/// The kernel takes a file that CREATE opens for a new one, and checks no permissions.
#[test]
fn a_file_that_came_meanwhile_is_opened_with_the_callers_permissions() {
    if unable_as_root("a_file_that_came_meanwhile_is_opened_with_the_callers_permissions") {
        return;
    }
    let folder = shared();
    let mount = folder.mount("");
    fs::write(folder.at("secret"), b"of root").unwrap();
    fs::set_permissions(folder.at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    for (name, how) in [("one", "<>"), ("two", ">"), ("three", ">>")] {
        let said = user_fails(&folder, &format!("[ ! -e {name} ]"), &format!(": {how} {name}"), || {
            fs::rename(folder.below("secret"), folder.below(name)).unwrap();
        });
        assert!(said.contains("Permission denied"), "{how}: {said}");
        fs::rename(folder.below(name), folder.below("secret")).unwrap();
    }
    // A file that the caller may open.
    fs::set_permissions(folder.below("secret"), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(!folder.at("other").exists());
    fs::rename(folder.below("secret"), folder.below("other")).unwrap();
    let mut opened = File::options().read(true).append(true).create(true).open(folder.at("other")).unwrap();
    opened.write_all(b", and of others").unwrap();
    drop(opened);
    assert_eq!(fs::read_to_string(folder.at("other")).unwrap(), "of root, and of others");
    mount.unmount();
}

#[test]
fn a_sticky_folder_keeps_files_that_took_the_place_of_the_callers_own() {
    if unable_as_root("a_sticky_folder_keeps_files_that_took_the_place_of_the_callers_own") {
        return;
    }
    let folder = shared();
    let mount = folder.mount("");
    for command in ["rm -f own", "mv -f own stolen", "rmdir own"] {
        let is_folder = command.starts_with("rmdir");
        for (name, owner) in [("own", Some(NOBODY)), ("roots", None)] {
            match is_folder {
                true => fs::create_dir(folder.at(name)).unwrap(),
                false => fs::write(folder.at(name), name).unwrap(),
            }
            chown(folder.at(name), owner, None).unwrap();
        }
        let said = user_fails(&folder, "[ -e own ]", command, || {
            fs::rename(folder.below("own"), folder.below("mine")).unwrap();
            fs::rename(folder.below("roots"), folder.below("own")).unwrap();
        });
        assert!(said.contains("not permitted"), "{command}: {said}");
        assert!(folder.below("own").exists(), "{command}");
        assert_eq!(fs::metadata(folder.below("own")).unwrap().uid(), 0, "{command}");
        for name in ["own", "mine"] {
            match is_folder {
                true => fs::remove_dir(folder.below(name)).unwrap(),
                false => fs::remove_file(folder.below(name)).unwrap(),
            }
        }
    }
    mount.unmount();
}

/// The kernel knows no file of the target's name.
#[test]
fn a_sticky_folder_keeps_a_file_that_came_where_a_rename_leads() {
    if unable_as_root("a_sticky_folder_keeps_a_file_that_came_where_a_rename_leads") {
        return;
    }
    let folder = shared();
    let mount = folder.mount("");
    for (name, owner) in [("own", Some(NOBODY)), ("roots", None)] {
        fs::write(folder.at(name), name).unwrap();
        chown(folder.at(name), owner, None).unwrap();
    }
    let rename = "/usr/bin/python3 -c \"import os; os.rename('own', 'target')\"";
    let said = user_fails(&folder, "[ ! -e target ]", rename, || {
        fs::rename(folder.below("roots"), folder.below("target")).unwrap();
    });
    assert!(said.contains("not permitted"), "{said}");
    assert_eq!(fs::metadata(folder.below("target")).unwrap().uid(), 0);
    assert_eq!(fs::read(folder.at("own")).unwrap(), b"own");
    mount.unmount();
}

/// A file that grows all the time, which another program writes plainly below.
#[test]
fn a_file_that_always_grows_can_be_opened() {
    if unable("a_file_that_always_grows_can_be_opened") {
        return;
    }
    let folder = Folder::new();
    let below = folder.below("log");
    fs::write(&below, b"plain").unwrap();
    let mount = folder.mount("ecryptfs_passthrough");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = File::options().append(true).open(&below).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                file.write_all(b"more").unwrap();
            }
        });
        let opened = (0..300).map(|_| File::open(folder.at("log")).map(drop)).collect::<Vec<_>>();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let failed = opened.iter().filter(|opened| opened.is_err()).count();
        assert_eq!(failed, 0, "{:?}", opened.iter().find(|opened| opened.is_err()));
    });
    mount.unmount();
}

#[test]
fn a_name_that_leads_to_another_file_below_is_looked_up_again() {
    if unable("a_name_that_leads_to_another_file_below_is_looked_up_again") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for linked in [true, false] {
        for name in ["name", "new"] {
            fs::write(folder.at(name), format!("{name}\n")).unwrap();
        }
        if linked {
            fs::hard_link(folder.at("name"), folder.at("link")).unwrap();
        }
        let changes: [(&str, &[&str]); 4] = [
            ("chmod", &["chmod", "600", "name"]),
            ("touch", &["touch", "-d", "2001-01-01", "name"]),
            ("xattr", &["python3", "-c", "import os; os.setxattr('name', 'user.a', b'b')"]),
            ("append", &["sh", "-c", "echo more >> name"]),
        ];
        for (what, command) in changes {
            fs::copy(folder.below("new"), folder.below("next")).unwrap();
            for name in ["name", "link", "new"] {
                let _ = fs::metadata(folder.at(name));
            }
            fs::rename(folder.below("next"), folder.below("name")).unwrap();
            let mut changing = client(command[0]);
            let done = output(changing.args(&command[1..]).current_dir(&folder.plain));
            assert!(done.status.success(), "{what}: {done:?}");
            let now = fs::metadata(folder.below("name")).unwrap();
            match what {
                "chmod" => assert_eq!(now.mode() & 0o777, 0o600, "linked: {linked}"),
                "touch" => assert_eq!(now.mtime() / 86400, 978_307_200 / 86400, "linked: {linked}"),
                "append" => {
                    let text = fs::read_to_string(folder.at("name")).unwrap();
                    assert_eq!(text, "new\nmore\n", "linked: {linked}");
                }
                _ => {
                    let mut value = [0; 8];
                    let len = rustix::fs::getxattr(folder.below("name"), "user.a", &mut value[..]).unwrap();
                    assert_eq!(&value[..len], b"b", "linked: {linked}");
                }
            }
        }
        if linked {
            assert_eq!(fs::read_to_string(folder.at("link")).unwrap(), "name\n");
            fs::remove_file(folder.at("link")).unwrap();
        }
    }
    mount.unmount();
}

/// FUSE knows nothing of a removed file that is not open.
#[test]
fn names_go_and_move_where_the_lower_folder_is_on_fuse() {
    if unable("names_go_and_move_where_the_lower_folder_is_on_fuse") {
        return;
    }
    let (lowest, mut folder) = (Folder::new(), Folder::new());
    folder.lower.clone_from(&lowest.plain);
    let below = lowest.mount("");
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"x").unwrap();
    fs::remove_file(folder.at("file")).unwrap();
    fs::create_dir(folder.at("folder")).unwrap();
    fs::remove_dir(folder.at("folder")).unwrap();
    fs::write(folder.at("old"), b"old").unwrap();
    fs::write(folder.at("new"), b"new").unwrap();
    fs::rename(folder.at("new"), folder.at("old")).unwrap();
    assert_eq!(fs::read(folder.at("old")).unwrap(), b"new");
    symlink("target", folder.at("link")).unwrap();
    fs::rename(folder.at("old"), folder.at("link")).unwrap();
    let names = fs::read_dir(&folder.plain).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["link"]);
    let mut how = File::options();
    how.write(true).create_new(true).mode(0o600).open(folder.at("another")).unwrap();
    mount.unmount();
    wait_until("its server is gone", PATIENCE, || fs::read_dir(&folder.plain).is_ok());
    below.unmount();
}
