//! `underseal close`, and other commands that end a volume's server.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;
use underseal_export::ErrorKind;
use underseal_export::control::status::Waiting;
use underseal_export::control::{Client, Name, Request};

use super::show::duration;
use super::{NameArg, PATIENCE, connect, failed, finished, status_within};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::printable;

/// The first message about the wait comes after `TOLD`, later ones at intervals of `AGAIN`.
const TOLD: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(60);
/// How long the server may take to report its state.
const ANSWERS: Duration = Duration::from_secs(10);

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
    pub(crate) fn within(&self) -> Option<Duration> {
        self.timeout.map(|seconds| Duration::from_secs(seconds.into()))
    }
}

/// Ends a volume's server, and waits until it has ended: as long as requests in flight and the last
/// flush take, or up to `limit`. Fails with `Failed` when it has not ended by then; the server
/// continues to end.
pub(super) fn end(name: &Name, limit: Option<Duration>) -> Result<()> {
    ended(name, asked(name)?, limit)
}

/// Asks the server to end. Fails when the server cannot be reached, or refuses.
pub(super) fn asked(name: &Name) -> Result<Client> {
    let mut client = connect(name)?;
    let answer = client.ask(&Request::Close, None, PATIENCE).map_err(|e| failed(name, e))?;
    finished(name, answer).map(|()| client)
}

/// Waits until a server that was asked to end has ended.
pub(super) fn ended(name: &Name, mut client: Client, limit: Option<Duration>) -> Result<()> {
    let begun = Instant::now();
    let mut silent = TOLD;
    let ended = loop {
        let left = limit.map_or(silent, |limit| limit.saturating_sub(begun.elapsed()).min(silent));
        match client.next(left) {
            Err(e) if e.kind() == ErrorKind::Timeout => {}
            ended => break ended.map_err(|e| failed(name, e))?,
        }
        let over = limit.is_some_and(|limit| begun.elapsed() >= limit);
        // A server that has just ended has sent its result.
        let Some((why, process)) = awaited(name) else {
            break client.next(ANSWERS).map_err(|e| failed(name, e))?;
        };
        if over {
            let what = format!("{name}: not closed within {} s: {why}", begun.elapsed().as_secs());
            let process = process.map_or("its server's process".into(), |process| process.to_string());
            let remedy = format!(
                "it continues to end; two signals (`kill {process}`) end it at once, without the last flush"
            );
            return Err(Error::new(Exit::Failed, what).with_remedy(remedy));
        }
        let _ = writeln!(io::stderr().lock(), "{name}: waiting until it is closed: {why}");
        silent = AGAIN;
    };
    client.wait_for_end().map_err(|e| failed(name, e))?;
    finished(name, ended)
}

/// Returns what a server waits for, and its PID; `None` when the volume is not open any more.
fn awaited(name: &Name) -> Option<(String, Option<u32>)> {
    let status = match status_within(name, ANSWERS) {
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
