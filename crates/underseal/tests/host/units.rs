use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use underseal_testing::skip;

use crate::support::volume::text;
use crate::support::{Scratch, output, tool};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// systemd's own tool, which needs no running systemd; none where it is missing.
fn analyze() -> Option<Command> {
    let found = tool("systemd-analyze").arg("--version").output();
    match found {
        Ok(_) => Some(tool("systemd-analyze")),
        Err(e) => {
            skip("units", &format!("systemd-analyze: {e}"));
            None
        }
    }
}

/// A folder with the units, with the program under test in them, and systemd's drop-in for the
/// network.
fn units(network: bool) -> Scratch {
    let scratch = Scratch::new();
    for unit in ["underseal@.service", "underseal@.socket", "underseal.target"] {
        let unit_text = fs::read_to_string(packaging().join(unit)).unwrap();
        let program = env!("CARGO_BIN_EXE_underseal");
        scratch.file(unit, unit_text.replace("/usr/bin/underseal", program).as_bytes());
    }
    if network {
        fs::create_dir(scratch.path("underseal@.service.d")).unwrap();
        fs::copy(packaging().join("network.conf"), scratch.path("underseal@.service.d/network.conf"))
            .unwrap();
    }
    scratch
}

#[test]
fn systemd_takes_the_units() {
    let Some(mut verify) = analyze() else { return };
    for network in [false, true] {
        let units = units(network);
        verify.args(["verify", "--man=no"]);
        let names = ["underseal@.service", "underseal@.socket", "underseal.target"];
        verify.args(names.map(|name| units.path(name)));
        let verified = output(&mut verify);
        let told = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && told.is_empty(), "{}: {told}", verified.status);
        verify = tool("systemd-analyze");
    }
}

#[test]
fn a_file_system_on_a_volume_is_mounted_at_boot() {
    // systemd breaks a cycle of dependencies by leaving a unit out: mostly the file system's.
    for (when, on_demand) in
        [("local-fs.target", false), ("remote-fs.target", false), ("local-fs.target", true)]
    {
        let Some(mut verify) = analyze() else { return };
        let units = units(false);
        if on_demand {
            fs::create_dir(units.path("underseal@disk.service.d")).unwrap();
            let waits = b"[Unit]\nWants=underseal@disk.socket\nAfter=underseal@disk.socket\n";
            units.file("underseal@disk.service.d/50-volume.conf", waits);
        }
        let mount = format!(
            "[Unit]\nRequires=underseal@disk.service\nAfter=underseal@disk.service\nBefore={when}\n\
             [Mount]\nWhat=/dev/ublkb0\nWhere=/data\nType=ext4\n"
        );
        units.file("data.mount", mount.as_bytes());
        let wants = |who: &str, what: &str, file: &str| {
            let folder = units.path(&format!("{who}.wants"));
            fs::create_dir(&folder).unwrap();
            std::os::unix::fs::symlink(units.path(file), folder.join(what)).unwrap();
        };
        wants(when, "data.mount", "data.mount");
        wants("underseal.target", "underseal@disk.service", "underseal@.service");
        let all = format!("[Unit]\nRequires=sysinit.target {when} underseal.target data.mount\n");
        units.file("boot.target", all.as_bytes());
        let verified = output(verify.args(["verify", "--man=no"]).arg(units.path("boot.target")));
        let told = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && !told.contains("cycle"), "{when}: {}: {told}", verified.status);
    }
}

#[test]
fn a_new_package_s_units_are_read() {
    let scratch = Scratch::new();
    let script = fs::read_to_string(packaging().join("debian/underseal.postinst")).unwrap();
    let script = script.replace("/run/systemd/system", text(scratch.folder()));
    let asked = scratch.path("asked");
    let stub = format!("systemctl() {{ echo \"$@\" >> {}; }}\n{script}", text(&asked));
    let ran = output(tool("sh").arg("-c").arg(stub).args(["postinst", "configure"]));
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(fs::read_to_string(asked).unwrap(), "--system daemon-reload\n");
}

#[test]
fn a_service_may_do_little() {
    // Thresholds in tenths; a service that reaches other machines may do more.
    for (network, threshold) in [(false, "--threshold=20"), (true, "--threshold=30")] {
        let Some(mut security) = analyze() else { return };
        let units = units(network);
        security.args(["security", "--offline=true", "--no-pager", threshold]);
        let told = output(security.arg(text(&units.path("underseal@.service"))));
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
    }
}

#[test]
fn the_unit_starts_what_there_is() {
    let unit = fs::read_to_string(packaging().join("underseal@.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/underseal ")).unwrap();
    let words: Vec<_> = start.replace("%i", "disk").split(' ').map(str::to_owned).collect();
    // The list is not there: the words are those of a command that would have read it.
    let scratch = Scratch::new();
    let mut command = crate::support::volume::underseal();
    let told = output(command.args(words).arg("--config").arg(scratch.path("none")));
    assert_eq!(told.status.code(), Some(1), "{}", String::from_utf8_lossy(&told.stderr));
}

/// Prometheus' own tool; none where it can neither be found nor fetched.
fn promtool(args: &[&str]) -> Option<std::process::Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/promtool");
    if !output(tool(text(&script)).arg("--version")).status.success() {
        skip("promtool", "it is not installed, and cannot be fetched");
        return None;
    }
    Some(output(tool(text(&script)).args(args).current_dir(packaging().join("prometheus"))))
}

#[test]
fn alerts_come_when_they_are_due_and_no_others() {
    for args in [&["check", "rules", "underseal.rules.yml"][..], &["test", "rules", "underseal.test.yml"]] {
        let Some(told) = promtool(args) else { return };
        let said = String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned();
        assert!(told.status.success() && !said.contains("FAILED"), "{said}");
    }
}

#[test]
fn alerts_are_about_metrics_that_there_are_and_have_a_page() {
    let read = |path: &str| fs::read_to_string(packaging().join(path)).unwrap();
    let (rules, tests) = (read("prometheus/underseal.rules.yml"), read("prometheus/underseal.test.yml"));
    let (runbook, metrics) = (read("../docs/runbook.md"), read("../crates/export/src/metrics/text.rs"));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    for alert in alerts {
        assert!(runbook.contains(&format!("\n## {alert}\n")), "{alert}: no page");
        assert!(tests.contains(&format!("  - name: {alert}\n")), "{alert}: not tested");
    }
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for rest in rules.split("underseal_").skip(1) {
        let metric: String = rest.chars().take_while(|c| letter(*c)).collect();
        let family = metric.trim_end_matches("_bucket");
        assert!(metrics.contains(&format!("\"{family}\"")), "underseal_{metric}: no such metric");
    }
}

/// The generator's output for a list: the files and links of its folder, and their contents.
fn generated(list: &str) -> (String, String) {
    let scratch = Scratch::new();
    scratch.file("volumes", list.as_bytes());
    generated_in(&scratch)
}

/// The generator's output for the lists in a folder.
fn generated_in(scratch: &Scratch) -> (String, String) {
    let generator = scratch.path("underseal-generator");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_underseal"), &generator).unwrap();
    let out = scratch.path("out");
    fs::create_dir(&out).unwrap();
    let mut command = tool(text(&generator));
    command.args([&out, &scratch.path("early"), &scratch.path("late")]);
    let ran = output(command.env("UNDERSEAL_VOLUMES", scratch.path("volumes")));
    assert!(ran.status.success(), "{ran:?}");
    let mut found = Vec::new();
    let mut folders = vec![out.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = text(path.strip_prefix(&out).unwrap()).to_owned();
            match fs::read_link(&path) {
                Ok(to) => found.push(format!("{name} -> {}", text(&to))),
                Err(_) if path.is_dir() => folders.push(path),
                Err(_) => {
                    let made = fs::read_to_string(&path).unwrap();
                    let lines =
                        made.lines().filter(|line| line.contains('=') && !line.contains("SourcePath"));
                    found.push(format!("{name}: {}", lines.collect::<Vec<_>>().join(" ")));
                }
            }
        }
    }
    found.sort();
    (found.join("\n"), String::from_utf8(ran.stderr).unwrap())
}

#[test]
fn a_service_over_another_one_stops_first() {
    let (units, _) = generated(
        "low /l.img /k nbd=/run/l.sock\ntop nbd+unix:///?socket=/run/l.sock /k\n\
         late /i.img /k nbd=systemd\nover nbd+unix:///?socket=/run/underseal/late.nbd /k\n\
         far /f.img /k other-device=nbd://h/x\n",
    );
    for (name, lower) in [
        ("top", "Wants=underseal@low.service After=underseal@low.service"),
        ("over", "Wants=underseal@late.socket After=underseal@late.socket After=underseal@late.service"),
        ("far", "Wants=network-online.target"),
    ] {
        let start = format!("underseal@{name}.service.d/50-volume.conf: ");
        let conf = units.lines().find(|line| line.starts_with(&start)).unwrap();
        assert!(conf.contains(lower), "{conf}");
    }
    // A required service that is started again after a crash would stop the upper one first.
    assert!(!units.contains("Requires=underseal@"), "{units}");
}

#[test]
fn the_list_becomes_units() {
    let (units, told) = generated(
        "disk /srv/disk.img /etc/keys/disk\nfar nbd://host/x none nofail\nlog /a /k nbd=/srv/s,vhost-user=/v,log-file=/var/log/l,nbd=tcp:h:1\nlater /dev/vg0/my-data - noauto,metrics=localhost:1\n\
         typo /a - nonsense\nmounted /b - fuse=/c\na+b /d\na:b /d\n",
    );
    let network = "Wants=network-online.target After=network-online.target PrivateNetwork=no IPAddressDeny= \
                   RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6";
    let typed = "TimeoutStartSec=infinity";
    let asking = network.replace("PrivateNetwork", &format!("{typed} PrivateNetwork"));
    let device = "dev-vg0-my\\x2ddata.device";
    let expected = [
        "multi-user.target.wants/underseal.target -> /usr/lib/systemd/system/underseal.target",
        "underseal.target.wants/underseal@disk.service -> /usr/lib/systemd/system/underseal@.service",
        "underseal.target.wants/underseal@far.service -> /usr/lib/systemd/system/underseal@.service",
        "underseal.target.wants/underseal@log.service -> /usr/lib/systemd/system/underseal@.service",
        "underseal@disk.service.d/50-volume.conf: Before=underseal.target RequiresMountsFor=/srv/disk.img RequiresMountsFor=/etc/keys/disk",
        &format!("underseal@far.service.d/50-volume.conf: {asking}"),
        &format!("underseal@later.service.d/50-volume.conf: Requires={device} After={device} {asking}"),
        &format!(
            "underseal@log.service.d/50-volume.conf: Before=underseal.target RequiresMountsFor=/a RequiresMountsFor=/k RequiresMountsFor=/srv/s \
             RequiresMountsFor=/v RequiresMountsFor=/var/log/l {network}"
        ),
    ];
    assert_eq!(units, expected.join("\n"));
    for line in [
        "line 5: nonsense: no such option",
        "line 6: mounted: ",
        "line 7: a+b: the name of a service",
        "line 8: a:b: the name of a service",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert_eq!(generated("# nothing\n"), (String::new(), String::new()));
}

#[test]
fn a_path_with_blanks_waits_for_its_file_system_too() {
    let (units, told) = generated("disk /srv/my\\040disks/it's\\040100%.img /srv/a\\134b noauto\n");
    let waits = "RequiresMountsFor=\"/srv/my disks/it's 100%%.img\" RequiresMountsFor=\"/srv/a\\\\b\"";
    assert_eq!(units, format!("underseal@disk.service.d/50-volume.conf: {waits}"));
    assert_eq!(told, "");
    // systemd names the words that it has read where they are no absolute paths.
    let Some(mut verify) = analyze() else { return };
    let words = waits.replace("\"/", "\"").replace(" Requires", "\nRequires");
    let unit = format!("[Unit]\n{words}\n[Service]\nExecStart=/bin/true\n");
    let scratch = Scratch::new();
    verify.args(["verify", "--man=no"]).arg(scratch.file("words.service", unit.as_bytes()));
    let read = String::from_utf8(output(&mut verify).stderr).unwrap();
    for path in ["srv/my disks/it's 100%.img", "srv/a\\b"] {
        assert!(read.contains(&format!("is not absolute, ignoring: {path}\n")), "{path}: {read}");
    }
}

#[test]
fn a_path_with_detours_or_tabs_waits_for_the_same_as_without() {
    let (units, told) = generated(
        "disk /srv/x/../disks/./a.img /srv/a\\011b log-file=/var/x/../log/l,noauto\n\
         part /dev/vg0/../sda2 - noauto\n\
         other /srv/../dev/sda3 /dev/../etc/k noauto\n\
         low /l.img /k noauto,nbd=/srv/y/../a\\011b.sock\n\
         top nbd+unix:///?socket=/srv/./a%09b.sock /k noauto\n\
         node /l2.img /k noauto,ublk\nover /dev/underseal/x/../node /k noauto\n",
    );
    let conf = |name: &str| {
        let start = format!("underseal@{name}.service.d/50-volume.conf: ");
        units.lines().find_map(|line| line.strip_prefix(&start)).unwrap().to_owned()
    };
    let waits =
        "RequiresMountsFor=/srv/disks/a.img RequiresMountsFor=\"/srv/a\tb\" RequiresMountsFor=/var/log/l";
    assert_eq!(conf("disk"), waits);
    assert!(conf("part").starts_with("Requires=dev-sda2.device After=dev-sda2.device"), "{units}");
    let waits = "Requires=dev-sda3.device After=dev-sda3.device RequiresMountsFor=/etc/k";
    assert_eq!(conf("other"), waits);
    assert_eq!(
        conf("low"),
        "RequiresMountsFor=/l.img RequiresMountsFor=/k RequiresMountsFor=\"/srv/a\tb.sock\""
    );
    for (upper, lower) in [("top", "low"), ("over", "node")] {
        let needs = format!("Wants=underseal@{lower}.service After=underseal@{lower}.service");
        assert!(conf(upper).starts_with(&needs), "{units}");
    }
    assert_eq!(told, "");
}

#[test]
fn a_volume_that_waits_for_a_client_becomes_a_socket() {
    let (units, told) = generated("disk /srv/disk /k nbd=systemd\nlater /srv/later /k noauto,nbd=systemd\n");
    let waits = |name: &str| {
        format!(
            "underseal@{name}.service.d/50-volume.conf: Wants=underseal@{name}.socket After=underseal@{name}.socket \
             RequiresMountsFor=/srv/{name} RequiresMountsFor=/k"
        )
    };
    let expected = [
        "multi-user.target.wants/underseal.target -> /usr/lib/systemd/system/underseal.target",
        "underseal.target.wants/underseal@disk.socket -> /usr/lib/systemd/system/underseal@.socket",
        &waits("disk"),
        &waits("later"),
    ];
    assert_eq!((units, told), (expected.join("\n"), String::new()));
}

#[test]
fn files_become_units_as_lines_do() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("volumes.d")).unwrap();
    for (name, says) in [
        (
            "disk",
            "device = '/srv/disk.img'\npassphrase-file = '/etc/keys/disk'\nnbd = ['/srv/s', 'tcp:localhost:1']",
        ),
        ("later", "device = '/srv/later.img'\nkey-file = '/k'\nauto = false"),
        ("mounted", "device = '/b'\nfuse = '/c'"),
        ("typo", "device = '/b'\nfusee = '/c'"),
    ] {
        scratch.file(&format!("volumes.d/{name}.toml"), says.as_bytes());
    }
    let (units, told) = generated_in(&scratch);
    let expected = [
        "multi-user.target.wants/underseal.target -> /usr/lib/systemd/system/underseal.target",
        "underseal.target.wants/underseal@disk.service -> /usr/lib/systemd/system/underseal@.service",
        "underseal@disk.service.d/50-volume.conf: Before=underseal.target RequiresMountsFor=/srv/disk.img RequiresMountsFor=/etc/keys/disk \
         RequiresMountsFor=/srv/s Wants=network-online.target After=network-online.target PrivateNetwork=no IPAddressDeny= \
         RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
        "underseal@later.service.d/50-volume.conf: RequiresMountsFor=/srv/later.img RequiresMountsFor=/k",
    ];
    assert_eq!(units, expected.join("\n"));
    assert!(told.contains("mounted.toml, line 1: mounted: a service's mount"), "{told}");
    assert!(told.contains("typo.toml, line 2: fusee: no such key; did you mean fuse?"), "{told}");
}
