//! `underseal header check` and `repair`.

use serde::Serialize;
use underseal_volume::{Check, ErrorKind, Header, repair as repair_header};

use super::{agreed, say, to_change};
use crate::cli::{HeaderCheckArgs, HeaderRepairArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::open_header;
use crate::output::{print, print_json, printable};
use crate::reencryption::status_of;

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

pub(super) fn repair(args: &HeaderRepairArgs, quiet: bool) -> Result<()> {
    let path = args.of.path();
    let on = to_change(&args.of)?;
    let done = match repair_header(&*on, args.force) {
        Err(e) if e.kind() == ErrorKind::Ambiguous => {
            agreed(
                args.force,
                &args.of,
                &[format!("{e}. It will be overwritten with the volume's header.")],
            )?;
            repair_header(&*on, true)
        }
        done => done,
    };
    let done = done.map_err(|e| e.in_file(path))?;
    done.iter().try_for_each(|what| say(quiet, &args.of, &printable(what)))?;
    // A header whose requirements or reencryption metadata stop every activation is not repaired.
    let header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    status_of(&header).map_err(|e| e.within(path.display()))?;
    if done.is_empty() { say(quiet, &args.of, "nothing was to be repaired") } else { Ok(()) }
}
