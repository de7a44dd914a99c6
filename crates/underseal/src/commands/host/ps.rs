//! `underseal ps`.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use underseal_export::control::Status;

use super::together::side_by_side;
use super::{ANSWERS, WhichArgs, status};
use crate::commands::control::{AT_A_TIME, state, table as columns};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{print, print_json};
use crate::size;
use crate::volumes::{At, Chosen, Entry, Table};

/// The contents of `--json`. Fields are added, never changed.
#[derive(Serialize)]
struct Listed<'t> {
    config: &'t Path,
    volumes: Vec<Volume<'t>>,
    /// Invalid lines and files.
    wrong: Vec<Wrong<'t>>,
}

#[derive(Serialize)]
struct Volume<'t> {
    name: &'t str,
    /// The line's or file's position.
    file: &'t Path,
    line: usize,
    image: &'t Path,
    /// True when `up` without names opens it.
    auto: bool,
    /// True when systemd listens for its first client, which opens it.
    on_demand: bool,
    state: State,
    /// Why its state is unknown.
    error: Option<String>,
    status: Option<Status>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum State {
    Up,
    Down,
    Unknown,
}

#[derive(Serialize)]
struct Wrong<'t> {
    file: &'t Path,
    /// The line number; 0 stands for the whole file.
    line: usize,
    name: &'t str,
    error: &'t str,
}

/// Lists the volumes of /etc/underseal/volumes and volumes.d, and which of them are open.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ps
  underseal ps --json | jq -r '.volumes[] | select(.state == \"down\").name'")]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// For programs: one JSON object; `status` is what `underseal status --json` prints, or null.
    /// Fields may be added
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists the volumes. Fails with `Partial` when the state of some is unknown.
pub(in crate::commands) fn run(args: &PsArgs) -> Result<()> {
    let table = Table::read(&args.which.config)?;
    let Chosen { volumes, wrong } = table.choose(&args.which.names)?;
    let volumes = side_by_side(&volumes, AT_A_TIME, |entry| Volume::of(entry, status(entry, ANSWERS)));
    let failed = wrong.len() + volumes.iter().filter(|volume| volume.state == State::Unknown).count();
    let of = wrong.len() + volumes.len();
    if args.json {
        let wrong = wrong.iter().map(|wrong| {
            let At { file, line } = &wrong.at;
            Wrong { file, line: *line, name: &wrong.name, error: &wrong.what }
        });
        print_json(&Listed { config: table.path(), volumes, wrong: wrong.collect() })?;
    } else {
        print(&text(&volumes))?;
        for wrong in wrong {
            let _ = wrong.error().report();
        }
    }
    if failed == 0 {
        return Ok(());
    }
    Err(Error::new(Exit::Partial, format!("cannot determine the state of {failed} of {of} volumes")))
}

impl<'t> Volume<'t> {
    fn of(entry: &'t Entry, status: Result<Option<Status>>) -> Self {
        let (state, error, status) = match status {
            Ok(Some(status)) => (State::Up, None, Some(status)),
            Ok(None) => (State::Down, None, None),
            Err(e) => (State::Unknown, Some(Error::what(&e)), None),
        };
        let Entry { at: At { file, line }, name, device, .. } = entry;
        let (name, on_demand) = (name.as_str(), entry.waits_for_clients());
        let auto = entry.is_auto() && !on_demand;
        Self { name, file, line: *line, image: device, auto, on_demand, state, error, status }
    }
}

fn text(volumes: &[Volume<'_>]) -> String {
    let mut rows = vec![["NAME", "STATE", "PID", "SIZE", "IMAGE", "SERVED AT"].map(str::to_owned)];
    for volume in volumes {
        let image = volume.image.display().to_string();
        let row = match (&volume.status, &volume.error) {
            (Some(of), _) => {
                [state(of), of.pid.to_string(), size::show(of.size), image, of.addresses.join(" ")]
            }
            (None, Some(error)) => ["unknown".into(), "-".into(), "-".into(), image, error.clone()],
            (None, None) => {
                let state = match (volume.auto, volume.on_demand) {
                    (true, _) => "down",
                    (_, true) => "down, a client opens it",
                    (false, false) => "down, noauto",
                };
                [state.into(), "-".into(), "-".into(), image, "-".into()]
            }
        };
        let [state, pid, size, image, at] = row;
        rows.push([volume.name.to_owned(), state, pid, size, image, at]);
    }
    columns(&rows)
}
