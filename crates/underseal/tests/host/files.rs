//! Volumes that have a file each beside the list.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::host::host::Host;
use crate::support::nbd::Client;
use crate::support::volume::text;

impl Host {
    /// Makes a LUKS2 volume and its file, which says this besides.
    fn with_file(&self, name: &str, says: &str) {
        let volume =
            crate::support::volume::Volume::at(&self.scratch, &format!("{name}.img")).format("48M", &[]);
        let file = format!(
            "device = {:?}\nkey-file = {:?}\n{says}\n",
            text(&volume.image),
            text(&volume.passphrase)
        );
        self.write(name, &file);
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.scratch.path("volumes.d")).unwrap();
        self.scratch.file(&format!("volumes.d/{name}.toml"), text.as_bytes());
    }
}

#[test]
fn a_volume_with_a_file_is_opened_as_it_says() {
    let mut host = Host::new();
    host.volume("listed", "nbd");
    let sockets = ["one", "two"].map(|name| host.scratch.path(name));
    let places = sockets.each_ref().map(|path| format!("{:?}", text(path))).join(", ");
    host.with_file(
        "filed",
        &format!("nbd = [{places}]\nsocket-mode = 0o660\nexport-name = 'it'\nread-only = true"),
    );
    host.with_file("later", "auto = false");
    assert_eq!(host.states(), "listed:down filed:down later:down");

    host.does("up");
    assert_eq!(host.states(), "listed:up filed:up later:down");
    for socket in &sockets {
        assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o660);
        let mut client = Client::connect(socket).unwrap();
        client.read(0, 4096).unwrap();
        client.write(0, &[1; 4096]).unwrap_err();
    }
    let ps = host.ps();
    let file = host.scratch.path("volumes.d/filed.toml");
    assert_eq!((&ps["volumes"][1]["file"], &ps["volumes"][1]["line"]), (&text(&file).into(), &1.into()));
    assert_eq!(ps["volumes"][0]["file"], text(&host.config()));
    host.does("up later");
    assert_eq!(host.does("down").lines().count(), 3);

    // Without a list only the folder counts.
    fs::remove_file(host.config()).unwrap();
    assert_eq!(host.states(), "filed:down later:down");
    assert_eq!(host.does("up").lines().count(), 1);
    host.does("down");
}

#[test]
fn a_file_that_is_wrong_leaves_the_others_alone() {
    let mut host = Host::new();
    host.volume("good", "");
    host.with_file("typo", "max-conections = 8");
    host.with_file("value", "ublk = false\nsocket-mode = '999'\nread-only = true");
    let ran = host.run("up");
    assert_eq!(ran.code, Some(7), "{ran:?}");
    for told in [
        "volumes.d/typo.toml, line 3: max-conections: no such key; did you mean max-connections?",
        "volumes.d/value.toml, line 4: invalid value '999' for '--socket-mode <MODE>': want an octal number",
    ] {
        assert!(ran.err.contains(told), "{told}: {ran:?}");
    }
    assert_eq!(host.states(), "good:up value:down");
    let wrong = &host.ps()["wrong"][0];
    assert_eq!((&wrong["name"], &wrong["line"]), (&"typo".into(), &3.into()));
    // The status of one volume is its own.
    let ran = host.run("up typo");
    assert!(ran.code == Some(2) && ran.err.contains("try: `man underseal-up`"), "{ran:?}");
    assert_eq!(host.run("up value").code, Some(2));
    host.does("down good");

    // Write access to this folder decides which images root opens.
    fs::set_permissions(host.scratch.path("volumes.d"), fs::Permissions::from_mode(0o770)).unwrap();
    let ran = host.run("up good");
    assert!(ran.code == Some(2) && ran.err.contains("volumes.d: others may write to it"), "{ran:?}");
    fs::set_permissions(host.scratch.path("volumes.d"), fs::Permissions::from_mode(0o755)).unwrap();
}
