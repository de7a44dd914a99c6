//! Where it was measured: figures mean nothing without it.

use serde::{Deserialize, Serialize};
use underseal_cipher::CpuPath;

/// The processor and what it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name.
    pub cpu: String,
    /// Processors that the program may use.
    pub processors: usize,
    /// Our kernels that it can run, the slowest first.
    pub kernels: Vec<String>,
    /// The kernel in use when none is asked for.
    pub chosen: String,
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// When `UNDERSEAL_CPU` asks for a kernel that is not there.
    pub fn this() -> underseal_cipher::Result<Self> {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let name = name.map_or("unknown", |(_, name)| name.trim());
        let field = |key: &str| {
            let line = info
                .lines()
                .find(|line| line.starts_with(key) && line[key.len()..].trim_start().starts_with(':'));
            line.and_then(|line| line.split_once(": ")).map_or("?", |(_, value)| value)
        };
        Ok(Self {
            cpu: format!("{name} (family {} model {})", field("cpu family"), field("model")),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernels: CpuPath::ALL.into_iter().filter(|p| p.is_available()).map(|p| p.name().into()).collect(),
            chosen: CpuPath::chosen()?.name().into(),
        })
    }
}
