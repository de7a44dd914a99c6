use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::control::operator::Operator;
use crate::support::Server;
use crate::support::volume::Volume;

#[test]
fn open_volumes_are_listed_by_their_names() {
    let operator = Operator::new();
    assert_eq!(operator.does("list"), "");
    assert_eq!(operator.does("list --json"), "[]\n");
    let (volume, first) = operator.open(&["--read-only"]);
    // The image may be read by two; its name is taken by then.
    let second = operator.serve(&volume, &["--read-only"]);
    let third = operator.serve(&volume, &["--read-only", "--name", "third:one"]);
    let list = operator.does("list");
    let names: Vec<_> = list.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["image", "image-2", "third:one"], "{list}");
    let json: serde_json::Value = serde_json::from_str(&operator.does("list --json")).unwrap();
    assert_eq!((&json[1]["name"], &json[1]["json_version"]), (&"image-2".into(), &1.into()));
    assert_eq!(json[2]["read_only"], true);

    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&operator.directory()), 0o700);
    assert_eq!(mode(&operator.directory().join("image.sock")), 0o600);

    // The socket of a killed server is not listed, and the next server replaces it.
    first.kill();
    assert!(operator.directory().join("image.sock").exists());
    let list = operator.does("list");
    assert!(!list.contains("image "), "{list}");
    operator.is_refused("status image", 2, "no volume image is open");
    let again = operator.serve(&volume, &["--read-only"]);
    assert!(operator.does("list").contains("image "));
    for server in [second, third, again] {
        server.stop();
    }
    assert_eq!(std::fs::read_dir(operator.directory()).unwrap().count(), 0);
}

#[test]
fn servers_that_hang_delay_no_command_on_others() {
    let operator = Operator::new();
    let volume = Volume::luks2(&operator.scratch, "32M");
    let other = Volume::at(&operator.scratch, "other").format("32M", &[]);
    let serve = |name: &str| operator.serve(&volume, &["--read-only", "--name", name]);
    let hanging = ["a", "b", "c"].map(serve);
    let answers = operator.serve(&other, &["--name", "d"]);
    hanging.iter().for_each(|server| server.signal(Signal::STOP));
    let begun = Instant::now();
    let listed = operator.run("list");
    // `list` waits up to 10 seconds for all servers at the same time.
    let listing = begun.elapsed();
    let json = operator.run("list --json");
    hanging.iter().for_each(|server| server.signal(Signal::CONT));
    assert!(listing < Duration::from_secs(25), "{listing:?}");
    assert_eq!(listed.code, Some(7), "{listed:?}");
    assert!(listed.out.contains("\nd "), "{listed:?}");
    for name in ["a", "b", "c"] {
        let line = format!("{name}: its server did not answer in time");
        let said: Vec<_> = listed.err.lines().filter(|said| said.contains(&line)).collect();
        assert!(matches!(said[..], [said] if !said.contains(&format!("{name}: {name}:"))), "{listed:?}");
    }
    assert!(listed.err.contains("3 of 4 servers did not say how their volumes are"), "{listed:?}");
    assert_eq!((json.code, json.out.matches("\"name\": \"").count()), (Some(7), 1), "{json:?}");
    assert_eq!(operator.does("list").lines().count(), 5);
    for server in hanging.into_iter().chain([answers]) {
        server.stop();
    }
}

#[test]
fn a_name_that_was_asked_for_must_be_free() {
    let operator = Operator::new();
    let (volume, server) = operator.open(&["--read-only", "--name", "work"]);
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    command
        .args(["--read-only", "--name", "work", "--nbd"])
        .arg(format!("unix:{}/t", operator.scratch.folder().display()));
    let ran = crate::control::operator::Ran::from(command.output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("work.sock") && ran.err.contains("another server"), "{ran:?}");
    operator.is_refused("status a/b", 2, "no name for a volume");
    assert_eq!(operator.status("work")["name"], "work");
    server.stop();
}

#[test]
fn a_directory_of_somebody_else_is_not_used() {
    let operator = Operator::new();
    let real = operator.scratch.path("real");
    std::fs::create_dir(&real).unwrap();
    symlink(&real, operator.directory()).unwrap();
    // Without a name the volume is served all the same.
    let (volume, server) = operator.open(&[]);
    assert!(server.log().contains("no control socket"), "{}", server.log());
    server.stop();
    assert_eq!(std::fs::read_dir(&real).unwrap().count(), 0);
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    command.args(["--name", "work", "--nbd"]).arg(format!("unix:{}/t", operator.scratch.folder().display()));
    let ran = crate::control::operator::Ran::from(command.output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("cannot be used") && ran.err.contains("UNDERSEAL_RUNTIME_DIR"), "{ran:?}");
}

#[test]
fn a_file_that_replaced_an_image_is_not_taken_for_it() {
    let operator = Operator::new();
    let (volume, server) = operator.open(&["--read-only"]);
    let moved = operator.scratch.path("moved");
    std::fs::rename(&volume.image, &moved).unwrap();
    std::fs::copy(&moved, &volume.image).unwrap();
    let of = |image: &std::path::Path| format!("reencrypt {} --pause", image.display());
    operator.is_refused(&of(&volume.image), 2, "is not open");
    // The open image is found under its new name.
    operator.is_refused(&of(&moved), 6, "image: this volume cannot be");
    server.stop();
    // Nor is the other file's header changed, whatever name the volume is called by.
    std::fs::rename(&moved, &volume.image).unwrap();
    let server = operator.serve(&volume, &[]);
    std::fs::rename(&volume.image, &moved).unwrap();
    std::fs::copy(&moved, &volume.image).unwrap();
    let before = std::fs::read(&volume.image).unwrap();
    let pass = volume.passphrase.display();
    let reencrypt = format!("reencrypt {} --passphrase-file {pass} --no-wait", moved.display());
    operator.is_refused(&reencrypt, 1, "is not the file that it was opened from");
    assert!(std::fs::read(&volume.image).unwrap() == before, "the other file was changed");
    // A server whose image has lost its name says that writes may be lost.
    std::fs::rename(&moved, &volume.image).unwrap();
    drop(server.stop());
}

#[test]
fn servers_that_start_together_get_names_of_their_own() {
    let operator = Operator::new();
    let volume = Volume::luks2(&operator.scratch, "32M");
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let start = || operator.serve(&volume, &["--read-only"]);
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let list = operator.does("list");
    for name in ["image ", "image-2 ", "image-3 ", "image-4 "] {
        assert!(list.contains(name), "{list}");
    }
    servers.into_iter().for_each(|server| drop(server.stop()));
}
