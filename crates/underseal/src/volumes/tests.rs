use std::path::Path;

use clap::Parser;
use proptest::prelude::*;

use super::*;
use crate::cli::{Cli, Command};
use crate::exit::Exit;

fn table(text: &str) -> Table {
    Table::parse(Path::new("volumes"), text)
}

/// Returns the arguments of a line's volume, in one line.
fn arguments(text: &str) -> String {
    let table = table(text);
    assert!(table.wrong.is_empty(), "{text}: {:?}", table.wrong);
    let words = table.volumes[0].arguments();
    let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
    words.join(" ")
}

fn wrong(text: &str) -> String {
    let table = table(text);
    assert!(table.volumes.is_empty(), "{text}: {:?}", table.volumes);
    table.wrong[0].what.clone()
}

#[test]
fn a_line_of_crypttab_is_what_open_is_asked_for() {
    for (line, meant) in [
        ("disk /srv/disk.img", "/srv/disk.img --name=disk"),
        ("disk /srv/disk.img none luks", "/srv/disk.img --name=disk --type=luks"),
        (
            "disk /dev/sda2 - discard,nofail,_netdev,x-systemd.device-timeout=10",
            "/dev/sda2 --name=disk --allow-discards",
        ),
        (
            "disk UUID=ab-cd /etc/key header=/etc/hdr,keyfile-offset=8",
            "/dev/disk/by-uuid/ab-cd --name=disk --header=/etc/hdr --keyfile-offset=8 --key-file=/etc/key",
        ),
        (
            "d /dev/sda /k plain,cipher=aes-xts-plain64,size=512,offset=8,skip=16",
            "/dev/sda --name=d --type=plain --cipher=aes-xts-plain64 --key-size=512 --data-offset=8s --skip=16 --keyfile-size=64 --key-file=/k",
        ),
        (
            "d /dev/sda /k plain,cipher=aes-cbc-plain,hash=plain",
            "/dev/sda --name=d --type=plain --cipher=aes-cbc-plain --hash=plain --keyfile-size=32 --key-file=/k",
        ),
        ("d /dev/sda none luks,cipher=aes-xts-plain64,size=512", "/dev/sda --name=d --type=luks"),
        (
            "d /dev/sda none nbd=/run/d.sock,ublk,policy=workers+write=inline",
            "/dev/sda --name=d --nbd=unix:/run/d.sock --ublk --policy=workers,write=inline",
        ),
        (
            "d /a\\040b\\054c none fuse=/mnt/d\\054e,vhost-user=/run/vm",
            "/a b,c --name=d --fuse=/mnt/d,e --vhost-user=/run/vm",
        ),
        (
            "d /a /p tcrypt,tcrypt-hidden,veracrypt-pim=485,tcrypt-keyfile=/k",
            "/a --name=d --type=tcrypt --hidden --pim=485 --key-file=/k --passphrase-file=/p",
        ),
        ("d /a none bitlk,discard", "/a --name=d --type=bitlk --allow-discards"),
        (
            "d /a none other-device=/b,other-device=LABEL=x,nbd=/s",
            "/a --name=d --other-device=/b --other-device=/dev/disk/by-label/x --nbd=unix:/s",
        ),
        (
            "d /a /p tcrypt,protect-hidden,hidden-key-file=/k,hidden-key-file=/l,prf=sha512",
            "/a --name=d --type=tcrypt --protect-hidden --hidden-key-file=/k --hidden-key-file=/l --prf=sha512 --passphrase-file=/p",
        ),
        ("d /a none reencrypt", "/a --name=d --reencrypt"),
        ("d /a none reencrypt=full", "/a --name=d --reencrypt=full"),
        (
            "d /a /k loopaes,size=128,offset=8,data-offset=1K",
            "/a --name=d --type=loopaes --key-size=128 --data-offset=8s --data-offset=1K --key-file=/k",
        ),
        (
            "d nbd://host/x none no-read-workqueue,no-write-workqueue,nbd=tcp:localhost:1",
            "nbd://host/x --name=d --nbd=tcp:localhost:1 --policy=inline,order=sorted,max-read-size=128K,max-write-size=128K",
        ),
    ] {
        assert_eq!(arguments(line), format!("open {meant}"), "{line}");
    }
}

#[test]
fn what_cannot_be_done_is_told_by_its_word() {
    for (line, told) in [
        ("disk", "the device, is missing"),
        ("disk disk.img", "\"disk.img\" is neither"),
        ("a/b /disk.img", "no name for a volume"),
        ("disk /disk.img key", "no absolute path"),
        ("disk /disk.img none a b", "5 fields"),
        ("disk /disk.img none discards", "discards: no such option"),
        ("disk /disk.img none discard=yes", "discard=yes: takes no value"),
        ("disk /disk.img none header", "header: want a value"),
        ("disk /disk.img none header=", "header=: want a value"),
        ("disk /disk.img none fuse=mnt", "no absolute path"),
        ("disk /disk.img none swap", "swap: no file system"),
        ("disk /disk.img none tcrypt-hidden=yes", "takes no value"),
        ("disk /disk.img none keyscript=/bin/sh", "no program"),
        ("disk /disk.img none plain", "say cipher="),
        ("disk /disk.img none plain,cipher=aes-xts-plain64", "hash= for a passphrase"),
        ("disk /disk.img /k plain,cipher=aes-xts-plain64,hash=sha256", "say hash=plain"),
        ("disk /disk.img none same-cpu-crypt,policy=inline", "mean another"),
        ("disk /disk.img none other-device=b", "other-device: \"b\" is neither an absolute path"),
        ("disk /disk.img none tcrypt,hidden-key-file=k", "no absolute path"),
        ("disk /disk.img none reencrypt=", "want a value"),
        ("disk /disk.img none data-size=1M", "data-size: a header says it; of volumes of type plain only"),
        ("disk /disk.img none luks,iv-large-sectors", "of volumes of type plain only"),
        ("disk /disk.img none luks,hidden", "hidden: of volumes of type tcrypt only"),
        ("disk /disk.img none veracrypt-pim=1", "pim: of volumes of type tcrypt only"),
        ("disk /disk.img none tpm2-device=/dev/tpm0", "only `auto`"),
    ] {
        let what = wrong(line);
        assert!(what.contains(told), "{line}: {what}");
    }
}

#[test]
fn a_wrong_line_leaves_the_others_alone() {
    let table = table("# comment\n\na /a\nb b\na /c\nc /c none noauto,nofail\n");
    let found: Vec<_> = table.volumes.iter().map(|entry| (entry.at.line, entry.name.as_str())).collect();
    assert_eq!(found, [(3, "a"), (6, "c")]);
    assert!(table.volumes[0].is_auto() && !table.volumes[1].is_auto() && table.volumes[1].may_fail());
    let wrong: Vec<_> = table.wrong.iter().map(|wrong| wrong.error().what()).collect();
    assert!(wrong[0].starts_with("volumes, line 4: \"b\" is neither"), "{wrong:?}");
    assert_eq!(wrong[1], "volumes, line 5: a is in volumes, line 3 already");
    let name = |text: &str| text.parse::<Name>().unwrap();
    let chosen = table.choose(&[name("c"), name("b"), name("c")]).unwrap();
    assert_eq!((chosen.volumes.len(), chosen.wrong.len()), (1, 1));
    assert!(table.choose(&[name("d")]).unwrap_err().what().contains("no volume is named d"));
}

#[test]
fn a_file_that_others_write_is_not_read() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("volumes");
    std::fs::write(&path, "a /a\n").unwrap();
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    assert_eq!(Table::read(&path).unwrap().volumes.len(), 1);
    mode(0o664);
    assert_eq!(Table::read(&path).unwrap_err().exit(), Exit::Usage);
    mode(0o600);
    std::fs::write(&path, b"a /a\xff").unwrap();
    assert_eq!(Table::read(&path).unwrap_err().exit(), Exit::Usage);
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert_eq!(Table::read(&path).unwrap_err().exit(), Exit::Usage);
    assert_eq!(Table::read(scratch.path()).unwrap_err().exit(), Exit::Usage);
    assert_eq!(Table::read(&scratch.path().join("none")).unwrap_err().exit(), Exit::Failed);
}

/// A folder with these files, and a list.
fn folder(list: Option<&str>, files: &[(&str, &str)]) -> (tempfile::TempDir, Table) {
    let scratch = tempfile::tempdir().unwrap();
    if let Some(list) = list {
        std::fs::write(scratch.path().join("volumes"), list).unwrap();
    }
    std::fs::create_dir(scratch.path().join("volumes.d")).unwrap();
    for (name, text) in files {
        std::fs::write(scratch.path().join("volumes.d").join(name), text).unwrap();
    }
    let table = Table::read(&scratch.path().join("volumes")).unwrap();
    (scratch, table)
}

/// Returns the arguments of `open` for a file, or the file's fault.
fn of_file(text: &str) -> std::result::Result<String, String> {
    let (scratch, table) = folder(None, &[("disk.toml", text)]);
    if let Some(wrong) = table.wrong.first() {
        let file = scratch.path().join("volumes.d/disk.toml").display().to_string();
        let what = wrong.error().what();
        return Err(what.strip_prefix(&file).expect(&what).to_owned());
    }
    let words = table.volumes[0].arguments();
    let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
    Ok(words.join(" "))
}

#[test]
fn a_file_is_what_open_is_asked_for() {
    for (text, meant) in [
        ("device = '/srv/my disk.img'", "open /srv/my disk.img --name=disk"),
        (
            "device = \"UUID=ab-cd\"\nkey-file = \"/etc/key\"\nread-only = true\ndirect = false",
            "open /dev/disk/by-uuid/ab-cd --name=disk --read-only --key-file=/etc/key",
        ),
        (
            "device = 'rbd:p/i'\nnbd = ['/run/a', 'unix:/run/b', 'tcp:localhost:1']\npolicy = 'read=inline,write=workers'",
            "open rbd:p/i --name=disk --nbd=unix:/run/a --nbd=unix:/run/b --nbd=tcp:localhost:1 --policy=read=inline,write=workers",
        ),
        (
            "device = '/a'\nmax-kdf-memory = '64M'\ntag-cache = 1_048_576\nkey-slot = 0x1\nsocket-mode = 0o660",
            "open /a --name=disk --key-slot=1 --max-kdf-memory=64M --socket-mode=660 --tag-cache=1048576",
        ),
        (
            "device = '/a'\ntype = 'plain'\ncipher = 'aes-xts-plain64'\nkey-size = 512\nkey-file = '/k'",
            "open /a --name=disk --cipher=aes-xts-plain64 --key-size=512 --type=plain --keyfile-size=64 --key-file=/k",
        ),
        (
            "device = '/a'\ntype = 'fvault2'\nother-device = ['/b', 'UUID=x']\nkey-file = '/k'",
            "open /a --name=disk --other-device=/b --other-device=/dev/disk/by-uuid/x --type=fvault2 --key-file=/k",
        ),
        (
            "device = '/a'\ntype = 'tcrypt'\nprotect-hidden = true\nhidden-key-file = '/k'\nprf = ['sha512', 'sha1']",
            "open /a --name=disk --hidden-key-file=/k --prf=sha512 --prf=sha1 --protect-hidden --type=tcrypt",
        ),
        ("device = '/a'\nreencrypt = true", "open /a --name=disk --reencrypt"),
        ("device = '/a'\nreencrypt = false", "open /a --name=disk"),
        ("device = '/a'\nreencrypt = 'full'", "open /a --name=disk --reencrypt=full"),
        (
            "device = '/a'\ntype = 'loopaes'\nkey-size = 128\nkey-file = '/k'",
            "open /a --name=disk --key-size=128 --type=loopaes --key-file=/k",
        ),
    ] {
        assert_eq!(of_file(text).as_deref(), Ok(meant), "{text}");
    }
    assert!(of_file("device = '/a'\nnbd = true").unwrap().ends_with("/disk.nbd"));
}

#[test]
fn what_a_file_may_not_say_is_told_with_its_line() {
    for (text, told) in [
        ("", ": device: it says none"),
        ("device = 'disk.img'", ", line 1: device: \"disk.img\" is neither"),
        ("# a\ndevice = '/a'\nread_only = true", ", line 3: read_only: no such key; did you mean read-only?"),
        ("device = '/a'\nvhostuser = '/s'", ", line 2: vhostuser: no such key; did you mean vhost-user?"),
        ("device = '/a'\nxyzzy = 1", ", line 2: xyzzy: no such key"),
        (
            "device = '/a'\n[nbd]\npath = '/s'",
            ", line 2: nbd: want true, a string or a list of strings, not a table",
        ),
        ("device = '/a'\n\nread-only = 'yes'", ", line 3: read-only: want true or false, not a string"),
        ("device = '/a'\nublk-id = '7'", ", line 2: ublk-id: want a whole number, not a string"),
        ("device = '/a'\nublk-id = -7", ", line 2: ublk-id: -7 is no number that fits"),
        ("device = '/a'\nkey-slot = 99999999999999999999", "is no number that fits"),
        ("device = '/a'\nsocket-mode = 660", ", line 2: socket-mode: want \"660\" or 0o660, not an integer"),
        ("device = '/a'\nheader = 'h'", ", line 2: header: \"h\" is no absolute path"),
        ("device = '/a'\nnbd = 'unix:s'", ", line 2: nbd: \"s\" is no absolute path"),
        ("device = '/a'\nnbd = ['/s', 1]", ", line 2: nbd: want a list of strings, not an integer in it"),
        ("device = '/a'\nnbd = []", ", line 2: nbd: want true"),
        ("device = '/a'\nkey-file = ''", ", line 2: key-file: says nothing"),
        ("device = '/a'\nexport-name = \"a\\u0000b\"", ", line 2: export-name: has a zero byte"),
        ("device = '/a'\ndevice = '/b'", ", line 2: duplicate key"),
        ("device = '/a'\nkey-size = 512", ", line 2: key-size: a header says it"),
        (
            "device = '/a'\n\ndata-size = '1M'",
            ", line 3: data-size: a header says it; of volumes of type plain",
        ),
        ("device = '/a'\nhidden = true", ", line 2: hidden: of volumes of type tcrypt only"),
        ("device = '/a'\nother-device = true", ", line 2: other-device: want a device or a list of them"),
        ("device = '/a'\nother-device = ['/b', 'c']", ", line 2: other-device: \"c\" is neither"),
        ("device = '/a'\nother-device = ''", ", line 2: other-device: says nothing"),
        ("device = '/a'\nnbd = ['']", ", line 2: nbd: says nothing"),
        (
            "device = '/a'\ntype = 'tcrypt'\nprotect-hidden = true\nhidden-key-file = ['k']",
            ", line 4: hidden-key-file: \"k\" is no absolute path",
        ),
        ("device = '/a'\nreencrypt = 1", ", line 2: reencrypt: want true or a string, not an integer"),
        ("device = '/a'\ntype = 'plain'\nkey-file = '/k'", ": plain: say cipher="),
        ("device = '/a'\nname = 'b'", ", line 2: name: no such key"),
        ("device = '/a'\npassphrase-command = '/bin/sh'", ", line 2: passphrase-command: no such key"),
        ("device = /a", ", line 1: "),
    ] {
        let what = of_file(text).unwrap_err();
        assert!(
            what.starts_with(told) || !told.starts_with([',', ':']) && what.contains(told),
            "{text}: {what}"
        );
    }
}

#[test]
fn a_folder_goes_on_where_the_list_ends() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (scratch, table) = folder(
        Some("a /a\n"),
        &[
            ("b.toml", "device = '/b'\nauto = false\nmay-fail = true"),
            ("a.toml", "device = '/c'"),
            ("c.toml", "x"),
            (".d.toml", ""),
            ("e.toml~", ""),
        ],
    );
    let found: Vec<_> = table.volumes.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(found, ["a", "b"]);
    assert!(!table.volumes[1].is_auto() && table.volumes[1].may_fail());
    let wrong: Vec<_> = table.wrong.iter().map(|wrong| (wrong.name.as_str(), wrong.what.as_str())).collect();
    assert_eq!((wrong.len(), wrong[0].0, wrong[1].0), (2, "a", "c"));
    assert!(wrong[0].1.ends_with("volumes, line 1 already"), "{wrong:?}");

    let list = scratch.path().join("volumes");
    let place = scratch.path().join("volumes.d");
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    // A file that other users can write to is reported; the remaining files are read.
    mode(&place.join("b.toml"), 0o666);
    let table = Table::read(&list).unwrap();
    assert_eq!((table.volumes.len(), table.wrong[1].what.as_str()), (1, "others may write to it"));
    assert!(table.wrong[1].error().what().ends_with("b.toml: others may write to it"));
    // A dangling link is reported, too.
    symlink("/none", place.join("z.toml")).unwrap();
    assert_eq!(Table::read(&list).unwrap().wrong.len(), 4);
    // If other users can add files, no file is trusted, and neither is the list.
    mode(&place, 0o777);
    assert_eq!(Table::read(&list).unwrap_err().exit(), Exit::Usage);
    mode(&place, 0o755);
    std::fs::remove_file(&list).unwrap();
    assert_eq!(Table::read(&list).unwrap().wrong.len(), 3);
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!(Table::read(&list).unwrap_err().exit(), Exit::Failed);
}

/// Lines made of the usual parts, and of arbitrary text.
fn lines() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[a-z0-9=,./\\\\#\"-]{0,12}",
        "\\PC{0,8}",
        prop::sample::select(vec![
            "luks",
            "plain",
            "cipher=",
            "size=512",
            "offset=9",
            "nbd",
            "nbd=/s",
            "ublk",
            "policy=",
            "policy=inline+read=workers",
            "fuse=/f",
            "header=/h",
            "none",
            "-",
            "/dev/sda",
            "UUID=",
            "LABEL=x",
            "\\040",
            "\\1",
            "noauto",
            "x-systemd.a=b",
            "socket-mode=660",
            "metrics=localhost:1",
            "key-slot=1",
            "no-read-workqueue",
            "discard",
        ])
        .prop_map(str::to_owned),
    ];
    let part = (word, prop::sample::select(vec![" ", "\t", ",", "=", "\n"]));
    let begins =
        prop::sample::select(vec!["", "a /b ", "a /b - ", "c UUID=x /k ", "#", "\nd nbd://h/e none "]);
    prop::collection::vec((begins, prop::collection::vec(part, 0..6)), 0..4).prop_map(|lines| {
        let line = |(begin, parts): (&str, Vec<(String, &str)>)| {
            let rest: String = parts.into_iter().map(|(word, end)| word + end).collect();
            begin.to_owned() + &rest
        };
        lines.into_iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

/// Files made of known keys, fitting and other values, and arbitrary text.
fn files() -> impl Strategy<Value = String> {
    let keys: Vec<_> = super::toml::OWN
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .chain(super::open_options::OPTIONS.iter().map(|(name, _)| (*name).to_owned()))
        .collect();
    let key = prop_oneof![4 => prop::sample::select(keys), 1 => "\\PC{0,6}"];
    let value = prop_oneof![
        prop::sample::select(vec![
            "true",
            "false",
            "'/a'",
            "'luks'",
            "'plain'",
            "512",
            "'--daemon'",
            "['/s', 'unix:/t']",
            "{a=1}",
            "-1",
            "1.5"
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}".prop_map(|text| format!("{text:?}")),
    ];
    let lines = prop::collection::vec((key, value), 0..6);
    ("(|device = '/b'|device = 'UUID=x')", lines).prop_map(|(device, lines)| {
        let lines = lines.into_iter().map(|(key, value)| format!("\n{key} = {value}"));
        device + &lines.collect::<String>()
    })
}

proptest! {
    #[test]
    fn no_text_is_too_much_for_the_parser(text in lines()) {
        let table = table(&text);
        let said = text.lines().filter(|line| {
            let line = line.trim_matches([' ', '\t']);
            !line.is_empty() && !line.starts_with('#')
        });
        prop_assert_eq!(table.volumes.len() + table.wrong.len(), said.count());
        for entry in &table.volumes {
            prop_assert!(entry.device.is_absolute() || crate::lower::is_remote(&entry.device));
            let words = std::iter::once(OsString::from("underseal")).chain(entry.arguments());
            // Options never lead to another command, another image or another name.
            if let Ok(cli) = Cli::try_parse_from(words) {
                let Command::Open(open) = cli.command else { panic!("{:?}", cli.command) };
                prop_assert_eq!(&open.volume.image, &entry.device);
                prop_assert_eq!(open.serve.control.name.as_ref(), Some(&entry.name));
                prop_assert!(!open.serve.daemon);
            }
        }
    }

    #[test]
    fn no_file_is_too_much_for_the_parser(text in files()) {
        match super::toml::entry(Path::new("/etc/underseal/volumes.d/d.toml"), &text) {
            Err(wrong) => {
                prop_assert!(!wrong.what.is_empty() && wrong.at.line <= text.lines().count() + 1);
            }
            Ok(entry) => {
                let words = std::iter::once(OsString::from("underseal")).chain(entry.arguments());
                if let Ok(cli) = Cli::try_parse_from(words) {
                    let Command::Open(open) = cli.command else { panic!("{:?}", cli.command) };
                    prop_assert_eq!(&open.volume.image, &entry.device);
                    prop_assert_eq!(open.serve.control.name.as_ref(), Some(&entry.name));
                    prop_assert!(!open.serve.daemon);
                }
            }
        }
    }
}
