//! The dashboard of packaging/grafana, asked of a real Prometheus that scrapes real volumes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;
use underseal_testing::skip;

use crate::control::metrics::address;
use crate::control::operator::Operator;
use crate::support::nbd::Client;
use crate::support::tools::{PATIENCE, wait_until, within};
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, Server, output, tool};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A Prometheus for one test, which scrapes its volumes ten times a second.
struct Prometheus {
    child: Child,
    address: String,
    scratch: Scratch,
}

impl Prometheus {
    /// Returns `None` where Prometheus is neither installed nor downloadable.
    fn start(volumes: &[String]) -> Option<Self> {
        let program = root("scripts/prometheus");
        if !output(tool(text(&program)).arg("--version")).status.success() {
            skip("prometheus", "it is not installed, and cannot be fetched");
            return None;
        }
        let scratch = Scratch::new();
        let rules = root("packaging/prometheus/underseal.rules.yml");
        let config = format!(
            "global: {{scrape_interval: 100ms, scrape_timeout: 100ms, evaluation_interval: 100ms}}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs: [{{job_name: underseal, static_configs: [{{targets: {volumes:?}}}]}}]\n"
        );
        let config = scratch.file("prometheus.yml", config.as_bytes());
        // The port is free for a moment only: no other test takes it meanwhile.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let mut command = tool(text(&program));
        command.arg(format!("--config.file={}", text(&config)));
        command.arg(format!("--storage.tsdb.path={}", text(&scratch.path("data"))));
        command.arg(format!("--web.listen-address={address}"));
        let log = File::create(scratch.path("log")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let this = Self { child, address, scratch };
        wait_until("Prometheus is ready", PATIENCE, || {
            this.get("/-/ready").is_some_and(|told| told.starts_with("HTTP/1.0 200"))
        });
        Some(this)
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut socket = TcpStream::connect(&self.address).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
        let mut told = String::new();
        socket.read_to_string(&mut told).ok()?;
        Some(told)
    }

    /// Returns the data of an answer, or the error.
    fn ask(&self, path: &str) -> Result<Value, String> {
        let told = self.get(path).ok_or("no answer")?;
        let body = told.split_once("\r\n\r\n").ok_or("no answer")?.1;
        let told: Value = serde_json::from_str(body).map_err(|e| format!("{e}: {body}"))?;
        if told["status"] == "success" { Ok(told["data"].clone()) } else { Err(told["error"].to_string()) }
    }

    /// The values of an expression that are numbers.
    fn query(&self, expression: &str) -> Result<usize, String> {
        let told = self.ask(&format!("/api/v1/query?query={}", escaped(expression)))?;
        let results = told["result"].as_array().ok_or("no vector")?;
        Ok(results.iter().filter(|one| one["value"][1].as_str().is_some_and(|value| value != "NaN")).count())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.scratch.path("log")).unwrap_or_default());
        }
    }
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(root("packaging/grafana/underseal.json")).unwrap()).unwrap()
}

/// The expressions of its panels and annotations.
fn expressions(dashboard: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let targets = list(&dashboard["panels"]).into_iter().flat_map(|panel| list(&panel["targets"]));
    let notes = list(&dashboard["annotations"]["list"]);
    targets.chain(notes).map(|of| of["expr"].as_str().expect("an expression").to_owned()).collect()
}

/// The expression as Grafana fills it in where "All" is chosen.
fn filled_in(expression: &str) -> String {
    let mut expression = expression.to_owned();
    for (variable, value) in
        [("rate_interval", "5s"), ("range", "1m"), ("job", ".*"), ("instance", ".*"), ("volume", ".*")]
    {
        for form in [format!("$__{variable}"), format!("${variable}")] {
            expression = expression.replace(&form, value);
        }
    }
    assert!(!expression.contains('$'), "a variable that nobody fills in: {expression}");
    expression
}

/// A volume with a sector that is not as it was written, and its place.
fn damaged(operator: &Operator) -> (Server, u64) {
    let written = vec![7; 6 << 20];
    let (volume, at) = Volume::damaged(&operator.scratch, &written);
    (operator.serve(&volume, &["--metrics", "127.0.0.1:0", "--name", "damaged"]), at)
}

/// A volume whose reencryption has begun and takes its time.
fn reencrypted(operator: &Operator) -> Server {
    let volume = Volume::at(&operator.scratch, "moving").format("48M", &[]);
    let server = operator.serve(&volume, &["--metrics", "127.0.0.1:0", "--name", "moving"]);
    operator.does(&format!(
        "reencrypt moving --passphrase-file {} --rate 1M --no-wait",
        text(&volume.passphrase)
    ));
    server
}

#[test]
fn every_query_of_the_dashboard_is_answered() {
    let operator = Operator::new();
    let (mismatching, at) = damaged(&operator);
    let moving = reencrypted(&operator);
    let Some(prometheus) = Prometheus::start(&[address(&mismatching), address(&moving)]) else { return };
    let mut clients = [&mismatching, &moving].map(|server| Client::connect(&server.socket()).unwrap());
    let dashboard = dashboard();

    let mut left: Vec<_> = expressions(&dashboard);
    assert!(left.len() > 20, "{left:?}");
    let answered = within(PATIENCE, || {
        // The alert of the annotations is about reads that fail.
        for client in &mut clients {
            client.write(0, &[1; 4096]).unwrap();
            client.read(0, 4096).unwrap();
        }
        clients[0].read(at, 4096).unwrap_err();
        left.retain(|expression| match prometheus.query(&filled_in(expression)) {
            Ok(0) => true,
            Ok(_) => false,
            Err(e) => panic!("{expression}: {e}"),
        });
        left.is_empty()
    });
    assert!(answered, "never answered: {left:#?}");

    // Each variable of the dashboard offers the values that the metrics have.
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for (name, values) in [("job", 1), ("instance", 2), ("volume", 2)] {
        let variable = variables.iter().find(|variable| variable["name"] == name).expect(name);
        let query = variable["query"]["query"].as_str().unwrap();
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
        let (series, label) = inner.rsplit_once(", ").unwrap();
        let series = escaped(&filled_in(series));
        let found = prometheus.ask(&format!("/api/v1/label/{label}/values?match[]={series}")).unwrap();
        assert_eq!(found.as_array().unwrap().len(), values, "{name}: {found}");
    }
    drop(clients);
    moving.stop();
    mismatching.stop();
}

#[test]
fn every_metric_is_on_the_dashboard_and_no_panel_is_twice() {
    let dashboard = dashboard();
    let shown = expressions(&dashboard).join("\n");
    let exported = fs::read_to_string(root("crates/export/src/metrics/text.rs")).unwrap();
    let mut metrics = 0;
    for call in ["text.family(", "text.gauge(", "text.head("] {
        for rest in exported.split(call).skip(1) {
            let metric = rest.trim_start().strip_prefix('"').unwrap().split('"').next().unwrap();
            assert!(shown.contains(&format!("underseal_{metric}")), "{metric}: nobody sees it");
            metrics += 1;
        }
    }
    assert!(metrics > 20, "{metrics}");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    // No panel covers another: each cell of the grid belongs to one panel.
    let mut places = BTreeSet::new();
    for panel in panels {
        let of = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for (x, y) in (0..of("w")).flat_map(|x| (0..of("h")).map(move |y| (x, y))) {
            assert!(of("x") + x < 24, "{panel}");
            assert!(places.insert((of("x") + x, of("y") + y)), "{} covers another", panel["title"]);
        }
    }
}
