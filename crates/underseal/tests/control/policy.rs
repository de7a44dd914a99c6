use std::process::Stdio;

use crate::control::operator::Operator;
use crate::support::tool;

#[test]
fn policies_change_while_fio_verifies_what_it_wrote() {
    let operator = Operator::new();
    let (_, server) = operator.open(&[]);
    assert_eq!(operator.does("policy image"), "adaptive\n");
    let mut fio = tool("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--size=24M", "--iodepth=16"])
        .args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--time_based",
            "--runtime=12",
            "--output-format=terse",
        ])
        .arg(format!("--uri={}", server.uri()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut fio = fio.spawn().unwrap();
    let policies = [
        "workers",
        "same-cpu",
        "adaptive",
        "kernel",
        "workers,order=arrival",
        "read=inline,write=workers",
        "inline",
    ];
    let mut changes = 0;
    while fio.try_wait().unwrap().is_none() {
        let policy = policies[changes % policies.len()];
        operator.does(&format!("policy image {policy}"));
        changes += 1;
    }
    let ended = fio.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}\n{}", server.log());
    assert!(changes > policies.len(), "only {changes} changes");
    let requests = operator.status("image")["requests"].clone();
    assert_eq!((&requests["read"]["errors"], &requests["write"]["errors"]), (&0.into(), &0.into()));
    assert!(requests["write"]["requests"].as_u64().unwrap() > 100, "{requests}");
    server.stop();
}

#[test]
fn what_is_no_policy_is_refused_and_changes_nothing() {
    let operator = Operator::new();
    let (volume, server) = operator.open(&["--policy", "workers,order=sorted"]);
    let before = operator.does("policy image");
    for (policy, why) in [
        ("outline", "there is no policy \"outline\""),
        ("engine", "use \"adaptive\""),
        ("workers,read=engine", "use \"adaptive\""),
        ("inline,order=random", "order=random"),
        ("no_read_workqueue", "no_read_workqueue"),
    ] {
        operator.is_refused(&format!("policy image {policy}"), 2, why);
        assert_eq!(operator.does("policy image"), before);
        let mut open = volume.command("open");
        open.args(["--nbd", "unix:/nowhere/s", "--read-only", "--policy", policy]);
        let ran = crate::control::operator::Ran::from(open.output().unwrap());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(why), "{ran:?}");
    }
    server.stop();
}

#[test]
fn flags_of_a_table_set_the_policy() {
    let operator = Operator::new();
    let image = operator.scratch.sparse("image", 1 << 20);
    for (options, policy) in [
        ("", "adaptive\n"),
        ("2 same_cpu_crypt submit_from_crypt_cpus", "same-cpu\n"),
        (
            "2 no_read_workqueue no_write_workqueue",
            "inline,order=sorted,max-read-size=128K,max-write-size=128K\n",
        ),
    ] {
        let key = "00".repeat(31) + "11";
        let line = format!("0 2048 crypt aes-xts-plain64 {key} 0 {} 0 {options}", image.display());
        let table = operator.scratch.file("t", line.as_bytes());
        let mut command = operator.command("table open --table");
        command.arg(&table);
        let server = crate::support::Server::start_command(command, &[]);
        assert_eq!(operator.does("policy t"), policy, "{options}");
        server.stop();
    }
}

#[test]
fn who_asks_for_priority_that_the_server_has_given_up_is_told() {
    let operator = Operator::new();
    let (_, server) = operator.open(&[]);
    let ran = operator.run("policy image workers,high-priority");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("no effect"), "{ran:?}");
    assert_eq!(operator.does("policy image"), "workers,high-priority\n");
    let ran = operator.run("policy image workers");
    assert!(ran.err.is_empty(), "{ran:?}");
    let log = server.stop();
    assert!(log.contains("no effect") && !log.contains("sandbox"), "{log}");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // A policy with `high-priority` from the start keeps it.
    let operator = Operator::new();
    let (_, server) = operator.open(&["--policy", "workers,high-priority"]);
    let ran = operator.run("policy image adaptive,high-priority");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    server.stop();
}
