//! `underseal top`: the open volumes, live.
//!
//! ```text
//!   a thread asks all volumes ---- Sample ---> View --- screen: on a terminal, drawn repeatedly
//!   (a slow volume delays no key)                \----- plain: once, as text
//! ```

mod canvas;
mod plain;
mod screen;
mod terminal;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use signal_hook::low_level::emulate_default_handler;

use self::terminal::{Key, Terminal};
use self::view::{Sample, View};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;
use crate::signals::ENDING;

/// The longest delay until a key or a signal is noticed.
const GLANCE: Duration = Duration::from_millis(100);

/// Shows all open volumes and their latency, live.
///
/// Keys: up and down choose a volume, whose stages are shown below; q ends. Bars are the shares of
/// requests by duration, since the picture before.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal top
  underseal top --interval 5
  underseal top --once")]
pub(crate) struct TopArgs {
    /// Refresh at this interval
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) interval: u32,
    /// Print one interval as text; so it is where stdout is no terminal
    #[arg(long)]
    pub(crate) once: bool,
}

pub(super) fn run(args: &TopArgs) -> Result<()> {
    let interval = Duration::from_secs(args.interval.into());
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let mut view = View::default();
        view.show(Sample::take()?);
        thread::sleep(interval);
        view.show(Sample::take()?);
        return print(&plain::text(&view));
    }
    let signal = caught().map_err(failed)?;
    let samples = sampled(interval)?;
    let ended = {
        let mut terminal = Terminal::start().map_err(failed)?;
        watch(&mut terminal, &samples, &signal)
    };
    // The terminal's settings are restored by now.
    if let Ok(number @ 1..) = i32::try_from(signal.load(Ordering::SeqCst)) {
        emulate_default_handler(number).map_err(failed)?;
    }
    ended
}

fn watch(terminal: &mut Terminal, samples: &Receiver<Result<Sample>>, signal: &AtomicUsize) -> Result<()> {
    let mut view = View::default();
    while signal.load(Ordering::SeqCst) == 0 {
        match samples.try_recv() {
            Ok(sample) => view.show(sample?),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(Error::new(Exit::Failed, "the thread that asks the volumes has ended"));
            }
        }
        let mut canvas = terminal.canvas().map_err(failed)?;
        screen::draw(&mut canvas, &view);
        terminal.show(&canvas).map_err(failed)?;
        match terminal.key(GLANCE).map_err(failed)? {
            Some(Key::End) => return Ok(()),
            Some(Key::Up) => view.choose(-1),
            Some(Key::Down) => view.choose(1),
            None => {}
        }
    }
    Ok(())
}

/// Returns the number of the last terminating signal; 0 before the first.
fn caught() -> io::Result<Arc<AtomicUsize>> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in ENDING {
        let value = usize::try_from(number).unwrap_or(1);
        signal_hook::flag::register_usize(number, signal.clone(), value)?;
    }
    Ok(signal)
}

/// Asks all volumes repeatedly, on a separate thread.
fn sampled(interval: Duration) -> Result<Receiver<Result<Sample>>> {
    let (send, samples) = sync_channel(1);
    let ask = move || {
        while send.send(Sample::take()).is_ok() {
            thread::sleep(interval);
        }
    };
    thread::Builder::new().name("top".into()).spawn(ask).map_err(failed)?;
    Ok(samples)
}

fn failed(e: io::Error) -> Error {
    Error::new(Exit::Failed, "the terminal cannot be used").because(&e).with_remedy("underseal top --once")
}
