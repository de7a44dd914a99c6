use crate::control::operator::Operator;
use crate::support::nbd::Client;

#[test]
fn what_a_volume_did_is_told() {
    let operator = Operator::new();
    let (volume, server) = operator.open(&["--policy", "workers"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    for i in 0..10 {
        client.write(i * 4096, &[7; 4096]).unwrap();
    }
    client.read(0, 8192).unwrap();
    client.flush().unwrap();
    let status = operator.status("image");
    assert_eq!(status["image"], volume.image.to_str().unwrap());
    assert_eq!(status["size"], client.size);
    assert_eq!(status["policy"], "workers");
    assert_eq!(status["suspended"], false);
    assert_eq!(status["key"], "set");
    assert_eq!(status["addresses"][0], server.uri());
    let requests = &status["requests"];
    assert_eq!((&requests["write"]["requests"], &requests["write"]["bytes"]), (&10.into(), &40960.into()));
    assert_eq!((&requests["read"]["requests"], &requests["read"]["bytes"]), (&1.into(), &8192.into()));
    assert_eq!(requests["flush"]["requests"], 1);
    assert_eq!(requests["read"]["errors"], 0);
    for stage in ["queued", "crypto", "lower", "reply", "total"] {
        let stage = &status["latency"][stage];
        let of = |name: &str| stage[name].as_u64().unwrap();
        assert!(
            of("p50_ns") <= of("p90_ns") && of("p90_ns") <= of("p99_ns") && of("p99_ns") <= of("p999_ns")
        );
        let sum: u64 =
            stage["buckets"].as_array().unwrap().iter().map(|b| b["count"].as_u64().unwrap()).sum();
        assert_eq!(of("count"), sum);
    }
    assert!(status["latency"]["total"]["count"].as_u64().unwrap() >= 11, "{status}");
    assert!(status["latency"]["reply"]["count"].as_u64().unwrap() >= 11, "{status}");
    assert!(status["latency"]["total"]["p50_ns"].as_u64().unwrap() > 0, "{status}");

    let text = operator.does("status image");
    for word in ["workers", "queued", "crypto", "lower", "reply", "p99.9", "40960", &server.uri()] {
        assert!(text.contains(word), "{word}: {text}");
    }
    drop(client);
    server.stop();
}

#[test]
fn close_ends_the_server_and_waits_for_it() {
    let operator = Operator::new();
    let (volume, mut server) = operator.open(&[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[9; 4096]).unwrap();
    operator.does("close image");
    // The image is free, and has the acknowledged write.
    assert_eq!(volume.read(0, 4096), [9; 4096]);
    assert!(server.wait().success());
    assert!(!server.socket().exists());
    operator.is_refused("close image", 2, "no volume image is open");
    assert_eq!(operator.does("list"), "");
}

#[test]
fn close_ends_a_server_in_the_background() {
    let operator = Operator::new();
    let volume = crate::support::volume::Volume::luks2(&operator.scratch, "32M");
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    command.args(["--daemon", "--nbd"]).arg(format!("unix:{}/t", operator.scratch.folder().display()));
    crate::support::run(&mut command);
    let pid = operator.status("image")["pid"].to_string();
    operator.does("close image");
    assert!(!std::path::Path::new("/proc").join(&pid).join("exe").exists(), "{pid} is still there");
    assert!(!operator.scratch.path("t").exists());
}
