//! `underseal reencrypt`.

mod alone;
mod args;
mod begin;
mod keys;
mod open;
pub(super) mod tables;

use underseal_export::control::{Reencrypt, Request};

pub(crate) use self::args::ReencryptArgs;
use crate::error::{Error, Result};

pub(super) fn run(args: &ReencryptArgs, quiet: bool) -> Result<()> {
    let order = match args {
        ReencryptArgs { pause: true, .. } => Some(Reencrypt::Pause),
        ReencryptArgs { resume: true, .. } => Some(Reencrypt::GoOn),
        ReencryptArgs { stop: true, .. } => Some(Reencrypt::Stop),
        _ => None,
    };
    match (super::control::find(&args.image)?, order) {
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
