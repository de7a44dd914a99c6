//! The descriptors that the helper and `udisksctl` do not inherit.

use std::fs;
use std::process::Child;

use rustix::process::Signal;

use super::{Desktop, HONEST, end, unable};
use crate::support::tools::tool;

/// The files that the processes which this one has started have open.
fn files_of_children(child: &Child) -> Vec<String> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        if parent != Some(&*child.id().to_string()) {
            continue;
        }
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        found.extend(files.filter_map(|file| fs::read_link(file.path()).ok()));
    }
    found.iter().map(|path| path.display().to_string()).collect()
}

#[test]
fn the_helper_and_udisksctl_do_not_inherit_the_descriptor_of_a_passphrase() {
    if unable("descriptors::the_helper_and_udisksctl_do_not_inherit_the_descriptor_of_a_passphrase") {
        return;
    }
    let listed = "#!/bin/sh\nls -l /proc/self/fd >> \"$STAND_IN/files\"\n";
    let desktop = Desktop::new(&HONEST.replace("#!/bin/sh\n", listed));
    let mut command = tool("sh");
    command.args(["-c", "exec \"$@\" 5< \"$0\""]).arg(&desktop.volume.passphrase);
    command.arg(env!("CARGO_BIN_EXE_underseal")).arg("open").arg(&desktop.volume.image);
    command.args(["--desktop", "--passphrase-fd", "5"]).env("XDG_RUNTIME_DIR", &desktop.runtime);
    let child = desktop.open_by(&mut command);
    let passphrase = desktop.volume.passphrase.file_name().unwrap().to_string_lossy().into_owned();
    let inherited = files_of_children(&child);
    assert!(end(child, Signal::INT).success());
    // The helper's pipes are seen.
    assert!(inherited.iter().any(|file| file.starts_with("pipe:")), "{inherited:?}");
    assert!(!inherited.iter().any(|file| file.contains(&passphrase)), "{inherited:?}");
    let listed = fs::read_to_string(desktop.scratch.path("files")).unwrap();
    assert!(listed.matches("pipe:").count() >= 4 && !listed.contains(&passphrase), "{listed}");
}
