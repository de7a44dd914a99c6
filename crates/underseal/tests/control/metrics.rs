use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::control::operator::{Operator, Ran};
use crate::support::Server;
use crate::support::metrics::{self, get};
use crate::support::nbd::Client;
use crate::support::tools::{PATIENCE, wait_until};

pub(crate) fn address(server: &Server) -> String {
    metrics::address(&server.log())
}

/// Samples by name and labels; every line must be one of the format.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut typed = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            typed.push(rest.split(' ').next().unwrap().to_owned());
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(typed.iter().any(|family| name.starts_with(family.as_str())), "no type: {line}");
            let double = samples.insert(name.to_owned(), value.parse().unwrap());
            assert_eq!(double, None, "{line}");
        }
    }
    samples
}

#[test]
fn prometheus_reads_what_the_volume_did() {
    let operator = Operator::new();
    let (_, server) = operator.open(&["--metrics", "127.0.0.1:0", "--name", "a@b", "--policy", "adaptive"]);
    let address = address(&server);
    let mut client = Client::connect(&server.socket()).unwrap();
    for i in 0..5 {
        client.write(i * 4096, &[1; 4096]).unwrap();
    }
    client.read(0, 4096).unwrap();
    let answer = get(&address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    let samples = samples(body);
    let of = |name: &str| {
        samples.get(&format!("underseal_{name}")).copied().unwrap_or_else(|| panic!("{name}\n{body}"))
    };
    assert_eq!(of("requests_total{volume=\"a@b\",operation=\"write\"}"), 5.0);
    assert_eq!(of("bytes_total{volume=\"a@b\",operation=\"write\"}"), 20480.0);
    assert_eq!(of("bytes_total{volume=\"a@b\",operation=\"read\"}"), 4096.0);
    assert_eq!(of("errors_total{volume=\"a@b\",operation=\"read\"}"), 0.0);
    assert_eq!(of("suspended{volume=\"a@b\"}"), 0.0);
    assert_eq!(of("key_set{volume=\"a@b\"}"), 1.0);
    assert_eq!(of("policy_info{volume=\"a@b\",policy=\"adaptive\"}"), 1.0);
    let count = of("latency_seconds_count{volume=\"a@b\",stage=\"total\"}");
    assert_eq!(of("latency_seconds_bucket{volume=\"a@b\",stage=\"total\",le=\"+Inf\"}"), count);
    assert!(count >= 6.0 && of("latency_seconds_sum{volume=\"a@b\",stage=\"total\"}") > 0.0);
    for stage in ["queued", "crypto", "lower", "reply", "total"] {
        let prefix = format!("underseal_latency_seconds_bucket{{volume=\"a@b\",stage=\"{stage}\",le=\"");
        let mut buckets: Vec<(f64, f64)> = samples
            .iter()
            .filter_map(|(name, value)| {
                let bound = name.strip_prefix(&prefix)?.strip_suffix("\"}")?;
                Some((bound.replace("+Inf", "inf").parse().unwrap(), *value))
            })
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert_eq!(buckets.len(), 26);
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{stage}: {buckets:?}");
    }

    operator.does("suspend a@b");
    let text = get(&address, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(text.contains("underseal_suspended{volume=\"a@b\"} 1\n"), "{text}");
    operator.does("resume a@b");
    assert!(get(&address, "GET /secrets HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(get(&address, "DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(get(&address, "\0\0\r\n\r\n").starts_with("HTTP/1.1 400 "));

    // Silent scrapers do not delay requests of the volume, nor other scrapers for long.
    let silent: Vec<_> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    client.write(0, &[1; 4096]).unwrap();
    wait_until("silent scrapers are sent away", PATIENCE, || {
        let mut socket = TcpStream::connect(&address).unwrap();
        let mut answer = String::new();
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").is_ok()
            && socket.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    });
    drop((silent, client));
    server.stop();
}

#[test]
fn an_address_in_use_is_told_and_the_volume_goes_on() {
    let operator = Operator::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (_, server) = operator.open(&["--metrics", &address]);
    Client::connect(&server.socket()).unwrap().write(0, &[1; 4096]).unwrap();
    let log = server.stop();
    assert!(log.contains("ERROR no metrics") && log.contains(&address) && log.contains("in use"), "{log}");
}

#[test]
fn other_machines_see_metrics_only_when_that_is_meant() {
    let operator = Operator::new();
    let volume = crate::support::volume::Volume::luks2(&operator.scratch, "32M");
    for (address, why) in
        [("0.0.0.0:0", "--allow-public-metrics"), ("9533", "port is missing"), ("a:b:1", "brackets")]
    {
        let mut command = volume.command("open");
        command.args(["--nbd", "unix:/nowhere/s", "--metrics", address]);
        let ran = Ran::from(command.output().unwrap());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(why), "{ran:?}");
    }
    let server = operator.serve(&volume, &["--metrics", "0.0.0.0:0", "--allow-public-metrics"]);
    let port = address(&server).rsplit(':').next().unwrap().to_owned();
    assert!(get(&format!("127.0.0.1:{port}"), "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    server.stop();
}
