//! `underseal lab`.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;
use underseal_lab::{Error as LabError, ErrorKind, Experiment, Lab, Outcome, all, find, page, spin};

use crate::cli::{self, LabArgs, LabListArgs, LabReportArgs, LabRunArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;

pub(super) fn run(args: &LabArgs, quiet: bool) -> Result<()> {
    match &args.what {
        cli::Lab::List(args) => list(args),
        cli::Lab::Run(args) => measure(args, quiet),
        cli::Lab::Report(args) => report(args),
        cli::Lab::Spin => {
            spin();
            Ok(())
        }
    }
}

fn list(args: &LabListArgs) -> Result<()> {
    if args.json {
        let each = all().iter().map(|e| json!({ "name": e.name, "question": e.question }));
        return print(&(text(&each.collect::<Vec<_>>())? + "\n"));
    }
    let width = all().iter().map(|e| e.name.len()).max().unwrap_or(0);
    print(&all().iter().map(|e| format!("{:width$}  {}\n", e.name, e.question)).collect::<String>())
}

fn measure(args: &LabRunArgs, quiet: bool) -> Result<()> {
    let experiments: Vec<&Experiment> = match &args.names[..] {
        [] => all().iter().collect(),
        // All names are looked at before any experiment begins.
        names => names.iter().map(|name| find(name).map_err(failed)).collect::<Result<_>>()?,
    };
    fs::create_dir_all(&args.results)
        .map_err(|e| Error::io(&args.results, "cannot make the directory for results", e))?;
    let program = std::env::current_exe()
        .map_err(|e| Error::new(Exit::Failed, "this program's own file is not to be found").because(&e))?;
    let progress = |text: &str| {
        if !quiet {
            log::warn!("{text}");
        }
    };
    let rounds = args.rounds.map(usize::from);
    let lab = Lab { program, rounds, quick: args.quick, progress: &progress };
    let json_on_stdout = args.json.as_deref() == Some(Path::new("-"));
    let mut outcomes = Vec::new();
    for experiment in experiments {
        let outcome = experiment.run(&lab).map_err(|e| failed(e).within(experiment.name))?;
        // Kept at once: a later experiment may fail.
        let path = args.results.join(format!("{}.json", outcome.name));
        fs::write(&path, text(&outcome)? + "\n").map_err(|e| Error::io(&path, "cannot write", e))?;
        if !json_on_stdout {
            print(&format!("{outcome}\n"))?;
        }
        outcomes.push(outcome);
    }
    match &args.json {
        None => Ok(()),
        Some(_) if json_on_stdout => print(&(text(&outcomes)? + "\n")),
        Some(path) => {
            fs::write(path, text(&outcomes)? + "\n").map_err(|e| Error::io(path, "cannot write", e))
        }
    }
}

fn report(args: &LabReportArgs) -> Result<()> {
    let mut outcomes = Vec::new();
    for experiment in all() {
        let path = args.from.join(format!("{}.json", experiment.name));
        match fs::read_to_string(&path) {
            Ok(text) => {
                let outcome = Outcome::from_json(&text).map_err(|e| failed(e).within(path.display()))?;
                outcomes.push(outcome);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                log::warn!("{}: not measured, so not in the report", experiment.name);
            }
            Err(e) => return Err(Error::io(&path, "cannot read", e)),
        }
    }
    if outcomes.is_empty() {
        let what = format!("{}: there are no results", args.from.display());
        return Err(Error::new(Exit::Failed, what).with_remedy("`underseal lab run` first"));
    }
    let page = page(&outcomes);
    match &args.output {
        Some(path) => fs::write(path, page).map_err(|e| Error::io(path, "cannot write", e)),
        None => print(&page),
    }
}

fn text(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map_err(|e| Error::new(Exit::Failed, "the results cannot be said in JSON").because(&e))
}

fn failed(error: LabError) -> Error {
    let exit = if error.kind() == ErrorKind::Unknown { Exit::Usage } else { Exit::Failed };
    let this = Error::new(exit, error.to_string());
    let this = std::error::Error::source(&error)
        .map_or(this, |cause| Error::new(exit, error.to_string()).because(cause));
    match error.kind() {
        ErrorKind::Unknown => this.with_remedy("`underseal lab list`"),
        ErrorKind::BadResult => this.with_remedy("`underseal lab run` measures it again"),
        _ => this,
    }
}
