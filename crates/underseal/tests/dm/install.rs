//! `dm install` and `dm uninstall`, below a root folder of a test's own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::dm::mapper::Mapper;
use crate::support::mounts::{cannot_mount, skip};
use crate::support::{Scratch, output, tool};

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
fn the_rules_of_an_earlier_version_are_taken_back() {
    let (_scratch, root) = machine();
    let before = all(&root);
    done(&dm(&["install"], &root));
    let installed = all(&root);
    let rules = root.join("etc/udev/rules.d/59-underseal-dm.rules");
    let earlier = root.join("etc/udev/rules.d/61-underseal-dm.rules");
    let record = root.join("etc/underseal/dm-installed");
    let text = fs::read_to_string(&record).unwrap();
    let make_earlier = || {
        fs::rename(&rules, &earlier).unwrap();
        fs::write(&record, text.replace("59-underseal-dm.rules", "61-underseal-dm.rules")).unwrap();
    };
    make_earlier();
    done(&dm(&["install"], &root));
    assert_eq!(all(&root), installed);
    make_earlier();
    done(&dm(&["uninstall"], &root));
    assert_eq!(all(&root), before);
    // Changed since: it stays, and is named.
    done(&dm(&["install"], &root));
    make_earlier();
    fs::write(&earlier, "mine now\n").unwrap();
    let said = done(&dm(&["install"], &root));
    assert!(said.contains(&format!("stays    {}\n", earlier.display())), "{said}");
    assert!(rules.exists());
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
    // The record stays with the file: what is done by hand is the end of it.
    assert_eq!(dm(&["uninstall"], &root).status.code(), Some(1));
    fs::remove_file(&profile).unwrap();
    done(&dm(&["uninstall"], &root));
    let mut empty = before.clone();
    empty.remove(&profile);
    assert_eq!(all(&root), empty);
}

/// A limit of the size of files stops the command as it writes the record.
#[test]
fn an_installation_that_fails_keeps_neither_command_from_its_work() {
    for size in [0, 100, 1000] {
        let (_scratch, root) = machine();
        let fails = || {
            let mut command = tool("prlimit");
            let limit = format!("--fsize={size}");
            command.args([&limit, env!("CARGO_BIN_EXE_underseal"), "dm", "install", "--root"]);
            assert_eq!(output(command.arg(&root)).status.code(), Some(1));
        };
        fails();
        assert_eq!(done(&dm(&["uninstall"], &root)), "nothing is installed\n");
        done(&dm(&["install"], &root));
        let installed = all(&root);
        fails();
        done(&dm(&["install"], &root));
        assert_eq!(all(&root), installed);
        fails();
        done(&dm(&["uninstall"], &root));
        let left: Vec<_> = all(&root).into_keys().filter(|path| path.starts_with(root.join("etc"))).collect();
        // The folders were there before the second installation.
        assert!(left.iter().all(|path| path.is_dir()), "{left:?}");
    }
}

#[test]
fn an_unfinished_file_beside_an_installed_one_is_removed_with_it() {
    let (_scratch, root) = machine();
    let before = all(&root);
    done(&dm(&["install"], &root));
    for path in ["etc/profile.d/.underseal-dm.sh.new", "etc/systemd/system/.underseal-dm.service.new"] {
        fs::write(root.join(path), "half").unwrap();
    }
    done(&dm(&["uninstall"], &root));
    assert_eq!(all(&root), before);
}

/// Earlier versions wrote the record in place.
#[test]
fn a_record_that_is_cut_short_keeps_neither_command_from_its_work() {
    let (_scratch, root) = machine();
    done(&dm(&["install"], &root));
    let installed = all(&root);
    let record = root.join("etc/underseal/dm-installed");
    let text = fs::read_to_string(&record).unwrap();
    for len in [0, 1, text.len() / 2] {
        // The files were written after the record.
        done(&dm(&["uninstall"], &root));
        let cut = || {
            fs::create_dir_all(record.parent().unwrap()).unwrap();
            fs::write(&record, &text[..len]).unwrap();
        };
        cut();
        let said = dm(&["uninstall"], &root);
        assert_eq!(done(&said), format!("removed  {}\n", record.display()));
        assert!(String::from_utf8_lossy(&said.stderr).contains("is cut short"));
        cut();
        done(&dm(&["install"], &root));
        done(&dm(&["uninstall"], &root));
        fs::remove_dir(record.parent().unwrap()).unwrap();
        done(&dm(&["install"], &root));
        assert!(all(&root).keys().eq(installed.keys()));
        // Lost with a power cut, after the files were written: they are named.
        fs::write(&record, &text[..len]).unwrap();
        let refused = dm(&["install"], &root);
        assert_eq!(refused.status.code(), Some(2));
        let named = dm(&["uninstall"], &root);
        assert_eq!(named.status.code(), Some(1));
        let said = String::from_utf8_lossy(&named.stdout).into_owned();
        assert_eq!(said.lines().filter(|line| line.starts_with("stays ")).count(), 8, "{said}");
        fs::write(&record, &text).unwrap();
    }
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
    // Below the root folder, and reached through a link.
    fs::write(root.join("etc/other"), "text").unwrap();
    symlink(scratch.path("."), root.join("x")).unwrap();
    let record_of = |file: &str, link: &str, folder: &str| {
        let files = if file.is_empty() { String::new() } else { format!("[\"{file}\",\"text\"]") };
        let links = if link.is_empty() { String::new() } else { format!("[\"{link}\",\"victim\"]") };
        let folders = if folder.is_empty() { String::new() } else { format!("\"{folder}\"") };
        format!("{{\"files\":[{files}],\"links\":[{links}],\"folders\":[{folders}]}}")
    };
    symlink("victim", scratch.path("link")).unwrap();
    fs::create_dir(scratch.path("empty")).unwrap();
    let records = [
        record_of("x/victim", "", ""),
        record_of("etc/other", "", ""),
        record_of("", "x/link", ""),
        record_of("", "", "x/empty"),
    ];
    let records = records.iter().map(String::as_str).chain([elsewhere.as_str(), "{}", "nonsense"]);
    for text in records {
        fs::write(&record, text).unwrap();
        assert!(!dm(&["uninstall"], &root).status.success(), "{text}");
        assert!(!dm(&["install"], &root).status.success(), "{text}");
    }
    for path in [scratch.path("victim"), scratch.path("link"), scratch.path("empty"), root.join("etc/other")]
    {
        assert!(path.symlink_metadata().is_ok(), "{}", path.display());
    }
}

#[test]
fn a_record_of_another_user_is_not_believed() {
    let (_scratch, root) = machine();
    done(&dm(&["install"], &root));
    let record = root.join("etc/underseal/dm-installed");
    match chown(&record, Some(61_234), None) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            return skip("a_record_of_another_user", "giving a file away needs root");
        }
        given => given.unwrap(),
    }
    let before = all(&root);
    for what in ["uninstall", "install"] {
        let refused = dm(&[what], &root);
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("belongs to another user (uid 61234)"), "{said}");
        assert_eq!(all(&root), before);
    }
    chown(&record, Some(0), None).unwrap();
    done(&dm(&["uninstall"], &root));
}

#[test]
fn links_in_an_image_lead_where_they_lead_on_its_machine() {
    let (scratch, root) = machine();
    // An absolute link, and the same path outside of the image.
    let outside = scratch.path("outside");
    let within = root.join(outside.strip_prefix("/").unwrap());
    for folder in [&outside, &within, &root.join("etc")] {
        fs::create_dir_all(folder).unwrap();
    }
    symlink(&outside, root.join("etc/profile.d")).unwrap();
    symlink("../../../../../../../../../../lib", root.join("etc/udev")).unwrap();
    fs::create_dir(root.join("lib")).unwrap();
    let before = all(&root);
    done(&dm(&["install"], &root));
    assert!(within.join("underseal-dm.sh").exists());
    assert!(root.join("lib/rules.d/59-underseal-dm.rules").exists());
    assert!(all(&outside).is_empty());
    fs::write(outside.join("underseal-dm.sh"), fs::read(within.join("underseal-dm.sh")).unwrap()).unwrap();
    done(&dm(&["install"], &root));
    done(&dm(&["uninstall"], &root));
    assert!(outside.join("underseal-dm.sh").exists());
    assert_eq!(all(&root), before);
    // A link that leads nowhere in the image.
    fs::remove_dir(&within).unwrap();
    assert!(!dm(&["install"], &root).status.success());
    assert_eq!(all(&outside).len(), 1);
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
    let root = scratch.path("root");
    for what in ["install", "uninstall"] {
        assert_eq!(dm(&[what], &root).status.code(), Some(2), "no root folder");
    }
    fs::create_dir(&root).unwrap();
    let refused = dm(&["install"], &root);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("usr/bin/underseal is not there"));
}

#[test]
fn without_proc_a_record_is_not_taken_for_none() {
    if let Some(why) = cannot_mount() {
        return skip("a machine without /proc", why);
    }
    let (_scratch, root) = machine();
    done(&dm(&["install"], &root));
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let mut command = tool("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_underseal"), "dm", "uninstall"]);
    let refused = output(command.arg("--root").arg(&root));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("/proc is not mounted"), "{said}");
    done(&dm(&["uninstall"], &root));
}

#[test]
fn a_back_end_that_is_started_prints_nothing() {
    let Some(mapper) = Mapper::new() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_underseal"));
    // As the unit does; the other one finds that it runs.
    command.args(["dm", "serve", "--stay", "--folder"]).arg(mapper.folder());
    for _ in 0..2 {
        let started = output(&mut command);
        assert_eq!((done(&started), started.stderr), (String::new(), Vec::new()));
        assert!(mapper.back_end().is_some(), "{}", mapper.log());
    }
}
