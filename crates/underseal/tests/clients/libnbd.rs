//! libnbd: its tools, its Python module, and nbdkit's nbd plugin, which is made of it.

use crate::support::scratch::assert_same;
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, Server, bytes, run, seed, tool};

#[test]
fn nbdcopy_fills_a_volume_and_empties_it_on_several_connections() {
    let scratch = Scratch::new();
    for (i, open) in [&[][..], &["--direct"]].into_iter().enumerate() {
        let volume = Volume::at(&scratch, &format!("image{i}")).format("64M", &[]);
        let len = usize::try_from(volume.size()).unwrap();
        let plain = bytes(seed("nbdcopy"), len);
        let (from, to) = (scratch.file("plain", &plain), scratch.path("back"));
        let server = Server::start(&volume, open);
        let nbdcopy = |source: &str, destination: &str| {
            run(tool("nbdcopy").args([
                "--connections=4",
                "--threads=4",
                "--requests=32",
                "--flush",
                source,
                destination,
            ]));
        };
        nbdcopy(text(&from), &server.uri());
        nbdcopy(&server.uri(), text(&to));
        let connections = server.stop().matches(": serving export").count();
        assert!(connections >= 8, "multi-conn was not used: {connections} connections");
        assert_same(&std::fs::read(&to).unwrap(), &plain, "nbdcopy");
        assert_same(&volume.read_all(), &plain, "what is on the image");
    }
}

#[test]
fn nbdkit_passes_the_volume_on() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "24M");
    let plain = bytes(seed("nbdkit"), usize::try_from(volume.size()).unwrap());
    let (from, to) = (scratch.file("plain", &plain), scratch.path("back"));
    let server = Server::start(&volume, &[]);
    run(tool("nbdkit").args(["-U", "-", "nbd", &format!("socket={}", text(&server.socket()))]).args([
        "--run".into(),
        format!("nbdcopy --flush {} \"$uri\" && nbdcopy \"$uri\" {}", text(&from), text(&to)),
    ]));
    server.stop();
    assert_same(&std::fs::read(&to).unwrap(), &plain, "through nbdkit");
}

#[test]
fn every_call_of_libnbd_does_what_it_says() {
    let scratch = Scratch::new();
    for (i, (format, open)) in [
        (&[][..], &["--allow-discards"][..]),
        (&["--sector-size", "512"], &["--direct"]),
        (&["--type", "luks1"], &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let volume = Volume::at(&scratch, &format!("image{i}")).format("32M", format);
        let server = Server::start(&volume, open);
        let script = scratch.file("libnbd.py", include_bytes!("libnbd.py"));
        let discards = if open.contains(&"--allow-discards") { "discards" } else { "no-discards" };
        let seed = seed("libnbd.py").to_string();
        let said = run(tool("/usr/bin/python3").args([text(&script), &server.uri(), discards, &seed]));
        assert!(said.ends_with("all asserted\n"), "{said}");
        server.stop();
    }
}
