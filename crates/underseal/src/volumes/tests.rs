use std::path::Path;

use clap::Parser;
use proptest::prelude::*;

use super::*;
use crate::cli::{Cli, Command};
use crate::exit::Exit;

fn table(text: &str) -> Table {
    Table::parse(Path::new("volumes"), text)
}

/// The arguments of a line's volume, in one line.
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
        ("disk /disk.img none tcrypt-hidden", "not supported"),
        ("disk /disk.img none keyscript=/bin/sh", "no program"),
        ("disk /disk.img none plain", "say cipher="),
        ("disk /disk.img none plain,cipher=aes-xts-plain64", "hash= for a passphrase"),
        ("disk /disk.img /k plain,cipher=aes-xts-plain64,hash=sha256", "say hash=plain"),
        ("disk /disk.img none same-cpu-crypt,policy=inline", "mean another"),
        ("disk /disk.img none tpm2-device=/dev/tpm0", "only `auto`"),
    ] {
        let what = wrong(line);
        assert!(what.contains(told), "{line}: {what}");
    }
}

#[test]
fn a_wrong_line_leaves_the_others_alone() {
    let table = table("# comment\n\na /a\nb b\na /c\nc /c none noauto,nofail\n");
    let found: Vec<_> = table.volumes.iter().map(|entry| (entry.line, entry.name.as_str())).collect();
    assert_eq!(found, [(3, "a"), (6, "c")]);
    assert!(table.volumes[0].is_auto() && !table.volumes[1].is_auto() && table.volumes[1].may_fail());
    let wrong: Vec<_> = table.wrong.iter().map(|wrong| wrong.error(&table).what()).collect();
    assert!(wrong[0].starts_with("volumes, line 4: \"b\" is neither"), "{wrong:?}");
    assert_eq!(wrong[1], "volumes, line 5: a is on line 3 already");
    let name = |text: &str| text.parse::<Name>().unwrap();
    let chosen = table.choose(&[name("c"), name("b"), name("c")]).unwrap();
    assert_eq!((chosen.volumes.len(), chosen.wrong.len()), (1, 1));
    assert!(table.choose(&[name("d")]).unwrap_err().what().contains("no volume d"));
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

/// Lines made of what lines are made of, and of anything.
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
            // Never another command, another image or another name, whatever the options say.
            if let Ok(cli) = Cli::try_parse_from(words) {
                let Command::Open(open) = cli.command else { panic!("{:?}", cli.command) };
                prop_assert_eq!(&open.volume.image, &entry.device);
                prop_assert_eq!(open.serve.control.name.as_ref(), Some(&entry.name));
                prop_assert!(!open.serve.daemon);
            }
        }
    }
}
