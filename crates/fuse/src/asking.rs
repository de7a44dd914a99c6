//! The child that unmounts for a user: fusermount3, which has more privileges than its caller.

use std::io::{self, Read};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How often a child that has closed its stderr, or was killed, is looked at until it has ended.
const PAUSE: Duration = Duration::from_millis(1);
/// How often a killed child is looked at, at most: a child in a system call that waits for this
/// process's mount ends later.
const LOOKS: u32 = 100;

/// A child with a time limit: its user may have stopped it, and it must not keep a server from its
/// end. It is killed when the value is dropped.
#[derive(Debug)]
pub(crate) struct AskingChild {
    child: Child,
    stderr: ChildStderr,
}

impl AskingChild {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stderr = child.stderr.take().ok_or(Errno::BADF)?;
        Ok(Self { child, stderr })
    }

    /// Waits up to `limit` for the end. Returns the child's status and its errors in words.
    ///
    /// Fails with `TimedOut` when the child has not ended by then.
    pub(crate) fn finish(mut self, limit: Duration) -> io::Result<(ExitStatus, String)> {
        let until = Instant::now() + limit;
        let words = self.words(until)?;
        loop {
            match self.child.try_wait()? {
                Some(status) => return Ok((status, words)),
                None if Instant::now() >= until => return Err(silent()),
                None => thread::sleep(PAUSE),
            }
        }
    }

    /// Reads stderr, which the child's end closes.
    fn words(&mut self, until: Instant) -> io::Result<String> {
        let mut words = Vec::new();
        let mut part = [0; 1024];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.stderr, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(silent()),
                Err(Errno::INTR) => {}
                polled => match polled.map_err(io::Error::from).and_then(|_| self.stderr.read(&mut part))? {
                    0 => return Ok(String::from_utf8_lossy(&words).trim().to_owned()),
                    len => words.extend_from_slice(&part[..len]),
                },
            }
        }
    }
}

impl Drop for AskingChild {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) || self.child.kill().is_err() {
            return;
        }
        for _ in 0..LOOKS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(PAUSE);
        }
    }
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "fusermount3 does not end, and was killed")
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::*;

    fn shell(script: &str) -> AskingChild {
        AskingChild::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn a_child_s_status_and_words_are_returned() {
        let (status, words) =
            shell("echo it is busy >&2; exit 3").finish(underseal_testing::PATIENCE).unwrap();
        assert_eq!((status.code(), words.as_str()), (Some(3), "it is busy"));
    }

    #[test]
    fn a_child_that_is_stopped_is_killed_at_the_limit() {
        for script in ["kill -STOP $$", "exec 2>&-; kill -STOP $$"] {
            let child = shell(script);
            let pid = Pid::from_child(&child.child);
            let late = child.finish(Duration::from_millis(300)).unwrap_err();
            assert_eq!(late.kind(), io::ErrorKind::TimedOut, "{script}");
            underseal_testing::wait_until("the child is gone", underseal_testing::PATIENCE, || {
                let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
                state.is_err() || state.is_ok_and(|state| state.contains(") Z "))
            });
        }
    }
}
