//! The program's output and files. No test measures speed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A working directory of the program.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran(self.command(args).output().unwrap())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_underseal-lab"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Starts a measurement, and ends it by a signal once `rows.json` has rows; returns the
    /// program's end.
    fn interrupt(&self, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.path("rows.json").exists() {
            assert!(Instant::now() < deadline, "no rows within a minute");
            std::thread::sleep(Duration::from_millis(2));
        }
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        Ran(child.wait_with_output().unwrap())
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).unwrap()
    }
}

struct Ran(Output);

impl Ran {
    fn succeeds(self) -> String {
        let stderr = String::from_utf8_lossy(&self.0.stderr);
        assert!(self.0.status.success(), "{}: {stderr}", self.0.status);
        String::from_utf8(self.0.stdout).unwrap()
    }

    fn fails(self, status: i32, with: &str) {
        let stderr = String::from_utf8_lossy(&self.0.stderr);
        assert_eq!(self.0.status.code(), Some(status), "{stderr}");
        assert!(stderr.starts_with("underseal-lab: ") && stderr.contains(with), "{stderr}");
    }
}

#[test]
fn experiments_are_listed_with_their_questions() {
    let place = Place::new();
    let text = place.run(&["list"]).succeeds();
    let json: Value = serde_json::from_str(&place.run(&["list", "--json"]).succeeds()).unwrap();
    let listed = json["experiments"].as_array().unwrap();
    assert_eq!(text.lines().count(), listed.len());
    for (line, experiment) in text.lines().zip(listed) {
        let field = |name: &str| experiment[name].as_str().unwrap();
        assert!(line.starts_with(field("name")) && line.ends_with(field("question")), "{line}");
    }
    for name in [
        "inline",
        "tail",
        "dispatch",
        "order",
        "whole-request",
        "zoned",
        "policies",
        "ecryptfs",
        "reencrypt",
        "integrity",
    ] {
        assert!(listed.iter().any(|experiment| experiment["name"] == name), "{name}");
    }
}

#[test]
fn what_is_run_is_kept_and_reported() {
    let place = Place::new();
    let json = place.run(&["run", "zoned", "inline", "integrity", "--quick", "--rounds", "1", "--json", "-"]);
    let all: Value = serde_json::from_str(&json.succeeds()).unwrap();
    assert_eq!(all["json_version"], 1);
    let outcomes = &all["outcomes"];
    let names: Vec<_> = outcomes.as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["zoned", "inline", "integrity"]);
    for outcome in outcomes.as_array().unwrap() {
        let name = outcome["name"].as_str().unwrap();
        assert_eq!((outcome["quick"].as_bool(), outcome["rounds"].as_u64()), (Some(true), Some(1)), "{name}");
        assert!(!outcome["answer"].as_str().unwrap().is_empty(), "{name}");
        for finding in outcome["findings"].as_array().unwrap() {
            let value = |key: &str| finding["measured"][key].as_f64().unwrap();
            assert!(value("least") <= value("median") && value("median") <= value("most"), "{finding}");
        }
        let kept = place.read(&format!("lab-results/{name}.json"));
        assert_eq!(serde_json::from_slice::<Value>(&kept).unwrap(), *outcome);
    }

    let page = place.run(&["report"]).succeeds();
    place.run(&["report", "-o", "lab.html"]).succeeds();
    assert_eq!(place.read("lab.html"), page.as_bytes());
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    for outcome in outcomes.as_array().unwrap() {
        let name = outcome["name"].as_str().unwrap();
        assert!(page.contains(&format!("<section id=\"{name}\">")), "{name}");
    }
    assert!(!page.contains("<section id=\"tail\">"), "what was not measured is not reported");
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("url("));
}

#[test]
fn results_go_where_they_are_wanted() {
    let place = Place::new();
    let args = ["run", "zoned", "--quick", "--rounds", "1", "--results", "kept", "--json", "all.json"];
    let text = place.run(&args).succeeds();
    for word in ["published", "measured", "spread", "goal", "zoned: "] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let all: Value = serde_json::from_slice(&place.read("all.json")).unwrap();
    let kept: Value = serde_json::from_slice(&place.read("kept/zoned.json")).unwrap();
    assert_eq!(all["outcomes"][0], kept);
    place.run(&["report", "--from", "kept", "-o", "lab.html"]).succeeds();
}

#[test]
fn a_benchmark_that_is_interrupted_keeps_its_rows() {
    let place = Place::new();
    // Another user's link at a name that can be foreseen is not followed.
    fs::write(place.path("other"), b"another file").unwrap();
    symlink("other", place.path("rows.json.new")).unwrap();
    let ended = place.interrupt(&["bench", "cipher", "--quick", "--json=rows.json"]);
    assert_eq!(place.read("other"), b"another file");
    let text = String::from_utf8(ended.0.stdout.clone()).unwrap();
    ended.fails(130, "interrupted");
    let rows = place.json("rows.json");
    assert_eq!((&rows["json_version"], &rows["complete"]), (&Value::from(1), &Value::from(false)));
    assert!(rows["machine"]["processors"].as_u64().unwrap() > 0);
    let rows = rows["rows"].as_array().unwrap();
    let shown = text.lines().filter(|line| line.starts_with("  underseal ")).count();
    let ours = rows.iter().filter(|row| row["subject"].as_str().unwrap().starts_with("underseal "));
    assert_eq!(ours.count(), shown, "the text has the rows of the file: {text}");
    assert!(shown > 0 && shown < 100, "it was not over: {shown}");
}

#[test]
fn a_benchmark_shows_each_row_once() {
    let place = Place::new();
    let text = place.run(&["bench", "ecryptfs", "--quick", "--json=rows.json"]).succeeds();
    let rows = place.json("rows.json");
    assert_eq!(rows["complete"], true);
    let crypto = rows["crypto"]["crypto"].as_array().unwrap();
    assert_eq!(text.lines().filter(|line| line.contains(" GB/s ")).count(), crypto.len());
    assert_eq!(text.matches("crypto alone").count(), 1, "{text}");
    assert!(!place.path("rows.json.new").exists());
    let json = place.run(&["bench", "ecryptfs", "--quick", "--json"]).succeeds();
    let on_stdout: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(on_stdout["crypto"]["crypto"].as_array().unwrap().len(), crypto.len());
}

#[test]
fn what_cannot_be_done_is_told() {
    let place = Place::new();
    place.run(&["run", "alchemy"]).fails(2, "no experiment \"alchemy\"");
    place.run(&["report"]).fails(1, "there are no results");
    std::fs::create_dir(place.path("bad")).unwrap();
    std::fs::write(place.path("bad/tail.json"), "{\"name\": 1}").unwrap();
    place.run(&["report", "--from", "bad"]).fails(1, "bad/tail.json");
    std::fs::write(place.path("file"), "").unwrap();
    place.run(&["run", "zoned", "--quick", "--results", "file"]).fails(1, "file");
    let path = |name| place.path(name).display().to_string();
    let (nothing, folder) = (path("nothing"), path(""));
    let args = ["bench", "nbd", "--underseal", &nothing, "--size", "8M", "--directory", &folder];
    place.run(&args).fails(1, "nothing");
    let args = ["bench", "fuse", "--underseal", &nothing, "--only", "alchemy", "--directory", &folder];
    place.run(&args).fails(1, "no workload has \"alchemy\" in its name");
    place.run(&["bench", "cipher", "--quick", "--json=file/rows.json"]).fails(1, "file/rows.json");
}

#[test]
fn a_busy_process_ends_with_the_one_that_started_it() {
    let place = Place::new();
    // The process's stdin is at its end, as after the end of its parent.
    place.run(&["spin"]).succeeds();
}
