//! `underseal reencrypt`.

mod alone;
mod begin;
mod keys;
mod open;
pub(super) mod tables;

use std::path::Path;

use underseal_export::control::{Name, Reencrypt, Request, Status};

use super::same_file;
use crate::cli::ReencryptArgs;
use crate::error::{Error, Result};
use crate::lower::is_remote;

pub(super) fn run(args: &ReencryptArgs, quiet: bool) -> Result<()> {
    let order = match args {
        ReencryptArgs { pause: true, .. } => Some(Reencrypt::Pause),
        ReencryptArgs { resume: true, .. } => Some(Reencrypt::GoOn),
        ReencryptArgs { stop: true, .. } => Some(Reencrypt::Stop),
        _ => None,
    };
    match (find(&args.image)?, order) {
        (Some((name, _)), Some(order)) => {
            super::control::done(&name, &Request::Reencrypt(order))?;
            args.rate.map_or(Ok(()), |rate| open::set_rate(&name, rate.0))
        }
        (None, Some(_)) => Err(Error::usage(format!("{}: is not open", args.image.display()))
            .with_remedy("`underseal list` shows the open volumes")),
        (Some((name, status)), None) => open::run(args, &name, &status, quiet),
        (None, None) => match &args.state {
            Some(state) => tables::run(args, state, quiet),
            None => alone::run(args, quiet),
        },
    }
}

/// The open volume that is called so, or lies there.
fn find(image: &Path) -> Result<Option<(Name, Status)>> {
    let text = image.to_string_lossy();
    let there = image.exists() || is_remote(image);
    if let Ok(name) = text.parse::<Name>()
        && let Some(status) = super::status_of_open(&name)?
        && (!there || same_file(image, Path::new(&status.image)))
    {
        return Ok(Some((name, status)));
    }
    let lies_there = |status: &Status| {
        let other = Path::new(&status.image);
        if is_remote(image) { image == other } else { same_file(image, other) }
    };
    // One that does not answer is told by its lock.
    let all = super::control::all()?.into_iter().filter_map(|(name, status)| Some((name, status.ok()?)));
    Ok(all.into_iter().find(|(_, status)| there && lies_there(status)))
}
