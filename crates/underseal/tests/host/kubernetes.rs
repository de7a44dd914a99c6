//! docs/kubernetes.md, as far as it goes without a cluster: its YAML is parsed, and its commands
//! are run.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use underseal_testing::skip;

use crate::host::host::Host;
use crate::support::nbd::Client;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::text;
use crate::support::{Scratch, output, tool};

/// The page's blocks in a language.
fn blocks(language: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes.md");
    let page = fs::read_to_string(page).unwrap();
    let begin = format!("\n```{language}\n");
    let blocks = page.split(begin.as_str()).skip(1);
    blocks.map(|rest| rest.split("\n```\n").next().unwrap().to_owned() + "\n").collect()
}

/// The page's objects; none where nothing reads YAML.
fn objects() -> Option<Vec<Value>> {
    const SCRIPT: &str = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";
    let mut python = tool("/usr/bin/python3");
    if !output(python.args(["-c", "import yaml"])).status.success() {
        skip("YAML", "python3-yaml is not installed");
        return None;
    }
    let mut python = tool("/usr/bin/python3");
    let mut child = python.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(blocks("yaml").join("---\n").as_bytes()).unwrap();
    let read = child.wait_with_output().unwrap();
    assert!(read.status.success(), "the YAML does not parse");
    Some(serde_json::from_slice(&read.stdout).unwrap())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Where the programs of the page find the one under test by its name.
fn with_path(scratch: &Scratch, mut command: Command) -> Command {
    let bin = scratch.path("bin");
    fs::create_dir_all(&bin).unwrap();
    // Another test may make the link at the same time.
    let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_underseal"), bin.join("underseal"));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", text(&bin)));
    command
}

/// A container's command, with its mounts in a folder.
fn container(scratch: &Scratch, words: &[&Value], env: &Value) -> Command {
    let local = |word: &str| {
        let word = word.replace("0.0.0.0:9533", "127.0.0.1:0");
        let places = ["/volume", "/keys", "/run/underseal"];
        places.iter().fold(word, |word, place| word.replace(place, text(&scratch.path(&place[1..]))))
    };
    let words: Vec<_> = words.iter().map(|word| local(word.as_str().unwrap())).collect();
    let mut command = with_path(scratch, tool(&words[0]));
    command.args(&words[1..]);
    for variable in list(env) {
        command.env(variable["name"].as_str().unwrap(), local(variable["value"].as_str().unwrap()));
    }
    command
}

fn words(container: &Value) -> Vec<&Value> {
    list(&container["command"]).iter().chain(list(&container["args"])).collect()
}

#[test]
fn the_sidecar_s_commands_serve_a_volume() {
    let Some(objects) = objects() else { return };
    let set = objects.iter().find(|object| object["kind"] == "StatefulSet").unwrap();
    let pod = &set["spec"]["template"]["spec"];
    let [format, server] = list(&pod["initContainers"]) else { panic!("{pod}") };
    let mounted: Vec<_> =
        list(&pod["volumes"]).iter().chain(list(&set["spec"]["volumeClaimTemplates"])).collect();
    for mount in list(&server["volumeMounts"]) {
        let name =
            |volume: &Value| volume["name"] == mount["name"] || volume["metadata"]["name"] == mount["name"];
        assert!(mounted.iter().any(|volume| name(volume)), "{mount}: no such volume");
    }

    let scratch = Scratch::new();
    for folder in ["volume", "keys", "run/underseal"] {
        fs::create_dir_all(scratch.path(folder)).unwrap();
    }
    scratch.file("keys/disk.key", &crate::support::bytes(7, 32));
    // Once more than once: a pod is started again.
    for _ in 0..2 {
        let ran = output(&mut container(&scratch, &words(format), &format["env"]));
        assert!(ran.status.success(), "{ran:?}");
    }
    let mut serve = container(&scratch, &words(server), &server["env"]);
    let mut serving = serve.stdout(Stdio::null()).spawn().unwrap();
    let probe: Vec<_> = list(&server["startupProbe"]["exec"]["command"]).iter().collect();
    wait_until("the probe succeeds", PATIENCE, || {
        assert!(serving.try_wait().unwrap().is_none(), "the server has ended");
        output(&mut container(&scratch, &probe, &server["env"])).status.success()
    });
    let alive: Vec<_> = list(&server["livenessProbe"]["exec"]["command"]).iter().collect();
    assert_eq!(alive, probe);
    let mut client = Client::connect(&scratch.path("run/underseal/disk.nbd")).unwrap();
    assert_eq!(client.size, 64 << 20);
    client.write(4096, &[5; 4096]).unwrap();
    drop(client);
    kill_process(Pid::from_child(&serving), Signal::TERM).unwrap();
    assert!(serving.wait().unwrap().success());
    // A file that is not a volume is left alone, and the pod does not start over it.
    fs::write(scratch.path("volume/disk.img"), vec![1; 1 << 20]).unwrap();
    let ran = output(&mut container(&scratch, &words(format), &format["env"]));
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    assert_eq!(fs::read(scratch.path("volume/disk.img")).unwrap(), vec![1; 1 << 20]);
}

#[test]
fn the_hook_adds_a_disk_to_a_definition() {
    let Some(objects) = objects() else { return };
    let map = objects.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    let scratch = Scratch::new();
    let hook = scratch.file("hook", map["data"]["onDefineDomain"].as_str().unwrap().as_bytes());
    let domain = "<domain type=\"kvm\" xmlns:qemu=\"http://libvirt.org/schemas/domain/qemu/1.0\"><name>ns_vm</name>\
                  <devices><disk type=\"file\"/></devices><qemu:commandline/></domain>";
    let ran = output(tool("/usr/bin/python3").arg(hook).args(["--vmi", "{}", "--domain", domain]));
    let made = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{made}");
    for part in [
        "socket=\"/var/run/underseal/disk.nbd\"",
        "<disk type=\"file\"",
        "<qemu:commandline",
        "protocol=\"nbd\"",
    ] {
        assert!(made.contains(part), "{part}: {made}");
    }
}

#[test]
fn what_a_driver_would_call_works_and_works_again() {
    let host = Host::new();
    let device = host.scratch.path("device");
    let folder = host.scratch.path("volumes.d");
    fs::create_dir(&folder).unwrap();
    fs::File::create(&device).unwrap().set_len(80 << 20).unwrap();
    let key = host.scratch.file("key", &crate::support::bytes(1, 32));
    let next = host.scratch.file("next", &crate::support::bytes(2, 32));
    // Without jq the whole object is compared.
    let shell = |block: &str, key: &Path| {
        let has_jq = output(tool("sh").args(["-c", "command -v jq"])).status.success();
        let without = |line: &str| line.split(" | jq").next().unwrap().to_owned() + "\n";
        let block = if has_jq { block.to_owned() } else { block.lines().map(without).collect() };
        let mut shell = with_path(&host.scratch, tool("sh"));
        shell.args(["-euc", &block]).env("UNDERSEAL_RUNTIME_DIR", host.directory());
        shell.env("LIST", host.config()).env("RUN", host.scratch.folder()).env("NAME", "pvc-1");
        shell.env("DEVICE", &device).env("KEY", key).env("NEXT", &next).env("CLAIM", "64M");
        output(&mut shell)
    };
    let run = |block: &str| {
        let ran = shell(block, &key);
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{block}{told}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let blocks = blocks("sh");
    let [create, stage, unstage, expand, stats, rotate] = &blocks[..] else { panic!("{blocks:?}") };
    assert!(run(create).contains("83886080"));
    for _ in 0..2 {
        run(stage);
        assert_eq!(host.states(), "pvc-1:up");
    }
    let socket = host.scratch.path("pvc-1.nbd");
    let mut client = Client::connect(&socket).unwrap();
    assert_eq!(client.size, 64 << 20);
    client.write(0, &[9; 4096]).unwrap();
    fs::File::options().write(true).open(&device).unwrap().set_len(96 << 20).unwrap();
    run(expand);
    assert_eq!(Client::connect(&socket).unwrap().size, 80 << 20);
    assert!(run(stats).contains("83886080"));
    run(rotate);
    wait_until("the data has another key", PATIENCE, || {
        let ps = host.ps();
        let state = &ps["volumes"][0]["status"]["reencryption"]["state"];
        assert_ne!(state, "failed", "{ps}");
        state == "done"
    });
    assert_eq!(client.read(0, 4096).unwrap(), vec![9; 4096]);
    drop(client);
    run(unstage);
    assert!(!folder.join("pvc-1.toml").exists() && !socket.exists());
    // The old passphrase opens nothing now, and the status is 3.
    let staged = shell(stage, &key);
    assert_eq!(staged.status.code(), Some(3), "{staged:?}");
    assert!(shell(stage, &next).status.success());
    run(unstage);
}
