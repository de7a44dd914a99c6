//! Other processes that keep every processor busy.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{Error, Result};

/// Busy processes, until this value is dropped.
pub(crate) struct Hogs(Vec<Child>);

impl Hogs {
    /// Starts `count` processes of `program`, which calls [`spin`] when its argument is `spin`.
    pub(crate) fn start(program: &Path, count: usize) -> Result<Self> {
        let mut hogs = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let mut command = Command::new(program);
            command.args(["spin"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut hog = command.spawn().map_err(Error::system("a busy process cannot be started"))?;
            let mut stdout = hog.stdout.take();
            hogs.0.push(hog);
            // The process writes a byte when it runs.
            let mut ready = [0];
            if let Some(stdout) = &mut stdout {
                let ended = Error::system("a busy process ended at once");
                stdout.read_exact(&mut ready).map_err(ended)?;
            }
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

/// Keeps a processor busy until stdin ends, which follows the end of the parent process.
pub fn spin() {
    use std::io::Write;
    std::thread::spawn(|| {
        let mut stdin = std::io::stdin();
        let mut byte = [0];
        while stdin.read(&mut byte).is_ok_and(|n| n > 0) {}
        std::process::exit(0);
    });
    let mut stdout = std::io::stdout();
    let said = stdout.write_all(b"r").and_then(|()| stdout.flush());
    let mut x = 1u64;
    while said.is_ok() {
        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}
