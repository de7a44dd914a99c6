//! `underseal-lab list`, `run` and `report`.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;
use underseal_lab::{Experiment, ExperimentOutcome, Lab, all, find, page};

use crate::cli::{ListExperimentsArgs, ReportArgs, RunArgs};
use crate::failure::{ProgramFailure, Result, of_experiment};
use crate::{bench, json as text, print, print_json, versioned};

pub(crate) fn list(args: &ListExperimentsArgs) -> Result<()> {
    if args.json {
        let each = all().iter().map(|e| json!({ "name": e.name, "question": e.question }));
        return print_json(&json!({ "experiments": each.collect::<Vec<_>>() }));
    }
    let width = all().iter().map(|e| e.name.len()).max().unwrap_or(0);
    print(&all().iter().map(|e| format!("{:width$}  {}\n", e.name, e.question)).collect::<String>())
}

pub(crate) fn measure(args: &RunArgs, progress: &dyn Fn(&str)) -> Result<()> {
    let experiments: Vec<&Experiment> = match &args.names[..] {
        [] => all().iter().collect(),
        // All names are checked before the first experiment.
        names => names.iter().map(|name| find(name).map_err(of_experiment)).collect::<Result<_>>()?,
    };
    fs::create_dir_all(&args.results)
        .map_err(|e| ProgramFailure::io(&args.results, "cannot make the directory for results", &e))?;
    let rounds = args.rounds.map(usize::from);
    let lab = Lab { program: bench::this_program()?, rounds, quick: args.quick, progress };
    let json_on_stdout = args.json.as_deref() == Some(Path::new("-"));
    let mut outcomes = Vec::new();
    for experiment in experiments {
        let outcome = experiment.run(&lab).map_err(|e| of_experiment(e).within(experiment.name))?;
        // Written at once, as a later experiment may fail.
        let path = args.results.join(format!("{}.json", outcome.name));
        fs::write(&path, text(&outcome)?).map_err(|e| ProgramFailure::io(&path, "cannot write", &e))?;
        if !json_on_stdout {
            print(&format!("{outcome}\n"))?;
        }
        outcomes.push(outcome);
    }
    let Some(path) = &args.json else { return Ok(()) };
    let all = versioned(&json!({ "outcomes": outcomes }))?;
    if json_on_stdout {
        return print(&all);
    }
    fs::write(path, all).map_err(|e| ProgramFailure::io(path, "cannot write", &e))
}

pub(crate) fn report(args: &ReportArgs, progress: impl Fn(&str)) -> Result<()> {
    let mut outcomes = Vec::new();
    for experiment in all() {
        let path = args.from.join(format!("{}.json", experiment.name));
        match fs::read_to_string(&path) {
            Ok(text) => {
                let outcome = ExperimentOutcome::from_json(&text);
                outcomes.push(outcome.map_err(|e| of_experiment(e).within(path.display()))?);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                progress(&format!("{}: not measured, so not in the report", experiment.name));
            }
            Err(e) => return Err(ProgramFailure::io(&path, "cannot read", &e)),
        }
    }
    if outcomes.is_empty() {
        let none = ProgramFailure::new(format!("{}: there are no results", args.from.display()));
        return Err(none.with_remedy("`underseal-lab run` first"));
    }
    let page = page(&outcomes);
    match &args.output {
        Some(path) => fs::write(path, page).map_err(|e| ProgramFailure::io(path, "cannot write", &e)),
        None => print(&page),
    }
}
