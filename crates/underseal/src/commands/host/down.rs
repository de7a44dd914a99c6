//! `underseal down`.

use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;

use super::together::in_order;
use super::{AT_LAST, PATIENCE, WhichArgs, end, lock, status};
use crate::commands::close_open;
use crate::commands::control::{CloseLimit, CloseLimitArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;
use crate::volumes::{Chosen, Entry, Layers, Table};

/// How many volumes are closed at a time: closing is mostly waiting.
const AT_A_TIME: usize = 32;

/// Closes the volumes of /etc/underseal/volumes and volumes.d, and waits until they are closed.
///
/// Each ends as with `underseal close`: what is in flight is finished, and the image flushed. One
/// that is not open is left so.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal down
  underseal down disk vm")]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    #[command(flatten)]
    pub(crate) limit: CloseLimitArgs,
}

/// Closes the volumes. Fails with `Partial` when some of several could not be closed.
pub(in crate::commands) fn run(args: &DownArgs, quiet: bool) -> Result<()> {
    let table = Table::read(&args.which.config)?;
    let Chosen { volumes, wrong } = table.choose(&args.which.names)?;
    let named = !args.which.names.is_empty();
    let before = Layers::of(&volumes).upper();
    let closed: Vec<AtomicBool> = volumes.iter().map(|_| AtomicBool::new(false)).collect();
    let close = |number: usize, entry: &&Entry| {
        // A volume writes to those below it until it is closed.
        let mut open = before[number].iter().filter(|upper| !closed[**upper].load(Ordering::SeqCst));
        if let Some(upper) = open.next() {
            let what = format!("{} lies on it, and could not be closed", volumes[*upper].name);
            return Err(Error::new(Exit::InUse, what).with_remedy("close that volume first"));
        }
        let ended = bring_down(entry, args.limit.starting_now());
        closed[number].store(ended.is_ok(), Ordering::SeqCst);
        if let (Ok(true), false) = (&ended, quiet) {
            let _ = print(&format!("{} is down\n", entry.name));
        }
        ended.map(drop)
    };
    let ended = in_order(&volumes, &before, &[(AT_A_TIME, &|_| true)], close);
    end(&wrong, volumes.into_iter().zip(ended).collect(), named)
}

/// Closes a volume; returns false where it was not open.
fn bring_down(entry: &Entry, limit: CloseLimit) -> Result<bool> {
    // The lock excludes an `up` that is opening it.
    let _lock = lock(&entry.name, limit.left(PATIENCE))?;
    if status(entry, limit.left_or_least(AT_LAST))?.is_none() {
        return Ok(false);
    }
    close_open(&entry.name, limit)?;
    Ok(true)
}
