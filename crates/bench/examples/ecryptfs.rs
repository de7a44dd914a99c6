//! `cargo run --release -p underseal-bench --example ecryptfs [quick] [json]`

use underseal_bench::{Effort, ecryptfs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked = |word: &str| std::env::args().any(|arg| arg == word);
    let report = ecryptfs(if asked("quick") { Effort::QUICK } else { Effort::FULL })?;
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    if asked("json") {
        serde_json::to_writer_pretty(&mut out, &report)?
    } else {
        write!(out, "{report}")?
    }
    Ok(())
}
