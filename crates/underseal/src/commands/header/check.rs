//! `underseal header check`.

use clap::Args;
use serde::Serialize;
use underseal_volume::Check;

use super::EXAMPLES;
use crate::cli::HeaderPathArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::open_header;
use crate::output::{print, print_json, printable};

/// Says what is wrong with the header and its keyslots, and what could be done
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderCheckArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// For programs: what was found as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn check(args: &HeaderCheckArgs) -> Result<()> {
    let path = args.of.path();
    let on = open_header(path, true)?;
    let size = |of: &dyn underseal_volume::Target| {
        of.size().map_err(|e| Error::io(&args.of.image, "cannot find out the size", e))
    };
    let data_size = match args.of.header {
        Some(_) => size(&*open_header(&args.of.image, true)?)?,
        None => size(&*on)?,
    };
    let check = Check::of(&*on, Some(data_size)).map_err(|e| e.in_file(path))?;
    if args.json {
        print_json(&Report { path: path.display().to_string(), check: &check })?;
    } else {
        print(&text(&check))?;
    }
    if check.sound {
        return Ok(());
    }
    let damage = check.findings.iter().filter(|finding| finding.damage).count();
    let what = format!(
        "{}: {damage} {} damaged",
        path.display(),
        if damage == 1 { "thing is" } else { "things are" }
    );
    Err(Error::new(Exit::BadHeader, what))
}

#[derive(Serialize)]
struct Report<'a> {
    path: String,
    #[serde(flatten)]
    check: &'a Check,
}

fn text(check: &Check) -> String {
    let line = |finding: &underseal_volume::Finding| {
        let kind = if finding.damage { "" } else { " (no damage)" };
        let (what, remedy) = (printable(&finding.what), printable(&finding.remedy));
        format!("{}{kind}: {what}\n  could be done: {remedy}\n", printable(&finding.place))
    };
    let lines: String = check.findings.iter().map(line).collect();
    match (check.sound, check.format) {
        (true, Some(format)) => {
            format!("{lines}The {} header is sound, and so are its keyslots.\n", format.to_uppercase())
        }
        _ => lines,
    }
}
