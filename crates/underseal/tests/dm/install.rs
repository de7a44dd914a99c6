//! `dm install` and `dm uninstall`, below a root folder of a test's own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Scratch, output};

fn dm(words: &[&str], root: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_underseal"));
    output(command.arg("dm").args(words).arg("--root").arg(root))
}

/// A root folder with the package in it.
fn machine() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let root = scratch.path("root");
    for file in ["usr/bin/underseal", "usr/lib/underseal/libunderseal-dm.so"] {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), "").unwrap();
    }
    (scratch, root)
}

/// All paths below a folder, with the files' contents and the links' targets.
fn all(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let text = match path.symlink_metadata().unwrap() {
                of if of.is_dir() => {
                    folders.push(path.clone());
                    String::new()
                }
                of if of.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                _ => fs::read_to_string(&path).unwrap(),
            };
            found.insert(path, text);
        }
    }
    found
}

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_is_installed_is_taken_back_and_nothing_else() {
    let (_scratch, root) = machine();
    fs::create_dir_all(root.join("etc/profile.d")).unwrap();
    fs::write(root.join("etc/profile.d/other.sh"), "other").unwrap();
    let before = all(&root);
    let said = done(&dm(&["install"], &root));
    let units = root.join("etc/systemd/system");
    let link = units.join("sysinit.target.wants/underseal-dm.service");
    assert!(fs::read_to_string(&link).unwrap().contains("dm serve --stay"));
    for unit in ["cryptsetup@", "integritysetup@", "veritysetup@", "homed"] {
        let path = units.join(format!("systemd-{unit}.service.d/underseal-dm.conf"));
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains("Environment=LD_PRELOAD=/usr/lib/underseal/libunderseal-dm.so "), "{text}");
    }
    // Twice is once.
    let installed = all(&root);
    done(&dm(&["install"], &root));
    assert_eq!(all(&root), installed);
    let said = done(&dm(&["uninstall"], &root));
    assert_eq!(said.lines().filter(|line| line.starts_with("removed ")).count(), 9, "{said}");
    assert_eq!(all(&root), before);
    assert_eq!(done(&dm(&["uninstall"], &root)), "nothing is installed\n");
}

#[test]
fn another_s_file_is_neither_overwritten_nor_removed() {
    let (_scratch, root) = machine();
    let profile = root.join("etc/profile.d/underseal-dm.sh");
    fs::create_dir_all(profile.parent().unwrap()).unwrap();
    // A link that leads out of the root folder would be written through.
    symlink("../../target", &profile).unwrap();
    let before = all(&root);
    let refused = dm(&["install"], &root);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is not what this command wrote"));
    assert_eq!(all(&root), before);
    fs::remove_file(&profile).unwrap();
    done(&dm(&["install"], &root));
    // Changed since: it stays, is named, and keeps the next one from being installed.
    fs::write(&profile, "mine now\n").unwrap();
    let kept = dm(&["uninstall"], &root);
    assert_eq!(kept.status.code(), Some(1), "{}", String::from_utf8_lossy(&kept.stderr));
    let said = String::from_utf8_lossy(&kept.stdout).into_owned();
    assert!(said.contains(&format!("stays    {}", profile.display())), "{said}");
    assert_eq!(fs::read_to_string(&profile).unwrap(), "mine now\n");
    assert!(!root.join("etc/systemd").exists());
    assert_eq!(dm(&["install"], &root).status.code(), Some(2));
}

#[test]
fn a_record_that_leads_elsewhere_is_refused() {
    let (scratch, root) = machine();
    scratch.file("victim", b"text");
    done(&dm(&["install"], &root));
    let record = root.join("etc/underseal/dm-installed");
    let text = fs::read_to_string(&record).unwrap();
    let elsewhere = text.replacen("etc/profile.d/underseal-dm.sh", "../victim", 1);
    assert_ne!(text, elsewhere);
    for text in [elsewhere.as_str(), "{}", "nonsense"] {
        fs::write(&record, text).unwrap();
        assert!(!dm(&["uninstall"], &root).status.success(), "{text}");
    }
    assert!(scratch.path("victim").exists());
}

#[test]
fn the_profile_preloads_the_library_once_and_for_root_only() {
    let (scratch, root) = machine();
    done(&dm(&["install"], &root));
    let profile = root.join("etc/profile.d/underseal-dm.sh");
    // The library where it is here: an empty file, with which nothing may be started.
    let text = fs::read_to_string(&profile).unwrap();
    fs::write(&profile, text.replace("/usr/", &format!("{}/usr/", root.display()))).unwrap();
    let library = root.join("usr/lib/underseal/libunderseal-dm.so");
    let run = |uid: &str| {
        let bin = scratch.path(&format!("bin-{uid}"));
        fs::create_dir_all(&bin).unwrap();
        let id = bin.join("id");
        fs::write(&id, format!("#!/bin/sh\necho {uid}\n")).unwrap();
        fs::set_permissions(&id, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let script = "PATH=$1; . $2 2> /dev/null; . $2 2> /dev/null; echo \"[$LD_PRELOAD]\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(&bin).arg(&profile).env_remove("LD_PRELOAD");
        let out = output(&mut shell);
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert_eq!(run("1000"), "[]\n");
    assert_eq!(run("0"), format!("[{}]\n", library.display()));
    fs::remove_file(&library).unwrap();
    assert_eq!(run("0"), "[]\n");
}

#[test]
fn a_machine_without_the_package_is_refused() {
    let scratch = Scratch::new();
    let refused = dm(&["install"], &scratch.path("root"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("usr/bin/underseal is not there"));
}
