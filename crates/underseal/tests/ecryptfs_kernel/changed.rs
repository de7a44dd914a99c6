//! Other keys, other names and moved headers, as the kernel sees them.

use std::fs;
use std::path::Path;

use crate::ecryptfs_kernel::mounts::{Keys, PASSPHRASE, compare, export, guest, import, pack};
use crate::ecryptfs_kernel::tree::{assert_same_tree, make};
use crate::support::volume::underseal;
use crate::support::{Scratch, run};

fn tool(verb: &str, lower: &Path, keys: &Keys, more: &[&str]) {
    let mut command = underseal();
    command.args(["ecryptfs", verb, "-q"]).arg(lower).arg("--passphrase-file").arg(&keys.file);
    run(command.args(more));
}

#[test]
fn the_kernel_opens_trees_with_the_keys_that_they_were_given() {
    let scratch = Scratch::new();
    let old = Keys::new(&scratch, "old", PASSPHRASE);
    let new = Keys::new(&scratch, "new", "another passphrase");
    let plain = scratch.path("plain");
    fs::create_dir(&plain).unwrap();
    make(&plain, 8);
    let cipher = ("aes", 16);
    let new_file = ["--new-passphrase-file", new.file.to_str().unwrap()];
    let mut guest = guest(&scratch, &[&old, &new]);
    let add = |name: &str, keys: &Keys, names: bool, xattr: bool, change: &dyn Fn(&Path)| {
        let lower = scratch.path(name);
        import(&plain, &lower, &old, &old.options(cipher, names, xattr));
        change(&lower);
        export(&lower, &scratch.path("back"), keys);
        assert_same_tree(&scratch.path("back"), &plain, name);
        fs::remove_dir_all(scratch.path("back")).unwrap();
        pack(&lower, &scratch.path(&format!("{name}.tar")));
    };
    let mut case = |name: &str, options: &str| {
        guest.task(
            name,
            &format!(
                "mkdir /run/disk/{name} /run/disk/{name}.mnt\n\
                 tar --xattrs '--xattrs-include=user.*' -xpf {name}.tar -C /run/disk/{name}\n\
                 mount -i -t ecryptfs -o {options} /run/disk/{name} /run/disk/{name}.mnt\n\
                 {}\
                 umount /run/disk/{name}.mnt\n\
                 rm -r /run/disk/{name} /run/disk/{name}.mnt\n",
                compare(options, "plain", &format!("/run/disk/{name}.mnt"))
            ),
        );
    };
    for (xattr, suffix) in [(false, "file"), (true, "xattr")] {
        let only = ",ecryptfs_mount_auth_tok_only";
        let name = format!("rewrapped-{suffix}");
        add(&name, &new, false, xattr, &|lower| tool("rewrap", lower, &old, &new_file));
        case(&name, &(new.options(cipher, false, xattr) + only));
        for (keys, whose) in [(&old, "mine"), (&new, "yours")] {
            let name = format!("added-{whose}-{suffix}");
            add(&name, keys, false, xattr, &|lower| tool("add-key", lower, &old, &new_file));
            case(&name, &(keys.options(cipher, false, xattr) + only));
        }
        let name = format!("removed-{suffix}");
        add(&name, &new, false, xattr, &|lower| {
            tool("add-key", lower, &old, &new_file);
            tool("remove-key", lower, &new, &[&old.contents]);
        });
        case(&name, &(new.options(cipher, false, xattr) + only));
        // The header goes to the other place.
        let name = format!("converted-from-{suffix}");
        let to = if xattr { "file" } else { "xattr" };
        add(&name, &old, false, xattr, &|lower| {
            run(underseal().args(["ecryptfs", "convert", "-q", "--header", to]).arg(lower));
        });
        case(&name, &old.options(cipher, false, !xattr));
    }
    add("renamed-plain", &old, true, false, &|lower| tool("rename-tree", lower, &old, &["--plain"]));
    case("renamed-plain", &old.options(cipher, false, false));
    add("renamed", &old, false, false, &|lower| {
        tool("rename-tree", lower, &old, &["-o", &format!("ecryptfs_fnek_sig={}", old.names)]);
    });
    case("renamed", &old.options(cipher, true, false));
    guest.boot();
}
