//! Programs that are killed at one of their system calls.

use std::process::{Command, Output, Stdio};

use super::{Scratch, output, run, tool};

/// `cut.c`, compiled.
pub(crate) struct Cutter(Scratch);

impl Cutter {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        let source = scratch.file("cut.c", include_bytes!("cut.c"));
        run(tool("cc").args(["-O1", "-o"]).arg(scratch.path("cut")).arg(source));
        Self(scratch)
    }

    /// Runs a program, which is killed as it enters any of these calls for the time with number
    /// `at`.
    pub(crate) fn kill_at(&self, at: u32, calls: &[&str], program: &Command) -> Output {
        let mut command = tool(self.0.path("cut").to_str().unwrap());
        command.arg(at.to_string()).args(calls).arg("--");
        command.arg(program.get_program()).args(program.get_args()).stdin(Stdio::null());
        let output = output(&mut command);
        assert_ne!(output.status.code(), Some(99), "{command:?}: {output:?}");
        output
    }

    /// Runs a program, which must succeed, to its end: how many of these calls it makes.
    pub(crate) fn count(&self, calls: &[&str], program: &Command) -> u32 {
        let counted = self.kill_at(0, calls, program);
        assert!(counted.status.success(), "{counted:?}");
        let said = String::from_utf8_lossy(&counted.stderr);
        said.lines().last().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{said}"))
    }
}
