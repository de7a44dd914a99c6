//! `underseal close`, and other commands that end a volume's server.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;
use underseal_export::ErrorKind;
use underseal_export::control::status::Waiting;
use underseal_export::control::{Client, Name, Request};

use super::show::duration;
use super::{NameArg, PATIENCE, connect_within, failed, finished, status_within};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::printable;

/// The first message about the wait comes after `TOLD`, later ones at intervals of `AGAIN`.
const TOLD: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(60);
/// How long the server may take to report its state.
const ANSWERS: Duration = Duration::from_secs(10);
/// The least time for the request to end, and for the reason of a close that takes too long: a
/// server that answers is heard even with a limit of zero.
const LEAST: Duration = Duration::from_secs(1);

/// Ends a volume's server as SIGTERM does, and waits until it has ended.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal close disk.img")]
pub(crate) struct CloseArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    #[command(flatten)]
    pub(crate) limit: CloseLimitArgs,
}

/// The time limit of a close.
#[derive(Debug, Args)]
pub(crate) struct CloseLimitArgs {
    /// Wait at most this long; by default as long as it takes. A volume that is not closed by then
    /// continues to close
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
}

impl CloseLimitArgs {
    /// Returns the limit of a close that begins now.
    pub(crate) fn starting_now(&self) -> CloseLimit {
        let within = self.timeout.map(|seconds| Duration::from_secs(seconds.into()));
        CloseLimit { begun: Instant::now(), within }
    }
}

/// The deadline that all steps of a close share, if it has one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CloseLimit {
    begun: Instant,
    within: Option<Duration>,
}

impl CloseLimit {
    /// Returns a limit that only the single steps have.
    pub(crate) fn none() -> Self {
        Self { begun: Instant::now(), within: None }
    }

    /// Returns how long a step may take whose own limit is `most`.
    pub(crate) fn left(self, most: Duration) -> Duration {
        self.within.map_or(most, |within| within.saturating_sub(self.begun.elapsed()).min(most))
    }

    /// As [`Self::left`], for a step that gets at least [`LEAST`].
    pub(crate) fn left_or_least(self, most: Duration) -> Duration {
        self.left(most).max(LEAST)
    }

    fn is_over(self) -> bool {
        self.left(LEAST).is_zero()
    }

    /// Returns the error of a volume that is not closed at the deadline.
    fn passed(self, name: &Name, why: &str, remedy: String) -> Error {
        let seconds = self.begun.elapsed().as_secs();
        let what = format!("{name}: not closed within {seconds} s: {why}");
        Error::new(Exit::Failed, what).with_remedy(remedy)
    }

    /// Returns the error for a server that does not answer, or has not ended, at the deadline;
    /// another error as it is.
    fn missed(self, name: &Name, pid: Option<i32>, e: underseal_export::Error) -> Error {
        if e.kind() != ErrorKind::Timeout || self.within.is_none() {
            return failed(name, e);
        }
        let pid = shown(pid);
        let remedy = format!(
            "`kill -CONT {pid}` if it was stopped; `kill -KILL {pid}` ends it at once, without the last flush"
        );
        self.passed(name, "its server does not answer", remedy)
    }
}

/// Ends a volume's server, and waits until it has ended: as long as requests in flight and the last
/// flush take, or up to `limit`. Fails with `Failed` when it has not ended by then; the server
/// continues to end.
pub(super) fn end(name: &Name, limit: CloseLimit) -> Result<()> {
    ended(name, asked(name, limit)?, limit)
}

/// Asks the server to end. Fails when the server cannot be reached, or refuses.
pub(super) fn asked(name: &Name, limit: CloseLimit) -> Result<Client> {
    let mut client = connect_within(name, limit.left_or_least(PATIENCE), |e| limit.missed(name, None, e))?;
    let answer = client.ask(&Request::Close, None, limit.left_or_least(PATIENCE));
    let answer = answer.map_err(|e| limit.missed(name, client.server(), e))?;
    finished(name, answer).map(|()| client)
}

/// Waits until a server that was asked to end has ended.
pub(super) fn ended(name: &Name, mut client: Client, limit: CloseLimit) -> Result<()> {
    let mut silent = TOLD;
    let ended = loop {
        match client.next(limit.left(silent)) {
            Err(e) if e.kind() == ErrorKind::Timeout => {}
            ended => break ended.map_err(|e| failed(name, e))?,
        }
        let over = limit.is_over();
        // A server that has just ended has sent its result.
        let Some((why, process)) = awaited(name, limit) else {
            break client.next(limit.left_or_least(ANSWERS)).map_err(|e| failed(name, e))?;
        };
        if over {
            let process = shown(process.and_then(|process| i32::try_from(process).ok()));
            let remedy = format!(
                "it continues to end; two signals (`kill {process}`) end it at once, without the last flush"
            );
            return Err(limit.passed(name, &why, remedy));
        }
        let _ = writeln!(io::stderr().lock(), "{name}: waiting until it is closed: {why}");
        silent = AGAIN;
    };
    let gone = client.wait_for_end(limit.left_or_least(Duration::MAX));
    gone.map_err(|e| limit.missed(name, client.server(), e))?;
    finished(name, ended)
}

/// Returns a server's process for a remedy.
fn shown(pid: Option<i32>) -> String {
    pid.map_or("its server's process".into(), |pid| pid.to_string())
}

/// Returns what a server waits for, and its PID; `None` when the volume is not open any more.
fn awaited(name: &Name, limit: CloseLimit) -> Option<(String, Option<u32>)> {
    let status = match status_within(name, limit.left_or_least(ANSWERS)) {
        Ok(status) => status?,
        Err(_) => return Some(("its server does not say what it waits for".into(), None)),
    };
    let why = match status.waiting {
        Some(Waiting { on, for_ns }) => {
            format!("a request has waited for {}, for {}", printable(&on), duration(for_ns))
        }
        None if status.in_flight == 1 => "1 request is in flight".into(),
        None if status.in_flight > 0 => format!("{} requests are in flight", status.in_flight),
        None => "its server is closing files and sockets".into(),
    };
    Some((why, Some(status.pid)))
}
