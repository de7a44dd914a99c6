//! The machine of a measurement, without which figures have no meaning.

use serde::{Deserialize, Serialize};
use underseal_cipher::CpuPath;

/// The processor and the vector code that it supports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The number of processors that the program may use.
    pub processors: usize,
    /// Our kernels that the processor supports, the slowest first.
    pub kernels: Vec<String>,
    /// The kernel in use by default.
    pub chosen: String,
}

impl Machine {
    /// Returns this machine.
    ///
    /// # Errors
    /// When `UNDERSEAL_CPU` names a kernel that is not available.
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
