//! Arguments of `underseal-lab list`, `run` and `report`.

use std::path::PathBuf;

use clap::Args;

/// The experiments, and what they ask
#[derive(Debug, Args)]
pub(crate) struct ListExperimentsArgs {
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measures, prints what was published beside what was measured, and keeps the results
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Which experiments; all, if none is named
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Some seconds in place of minutes: to see that everything runs, not for figures
    #[arg(long)]
    pub(crate) quick: bool,
    /// How often everything is measured; each experiment has its own number, if this is not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: Option<u16>,
    /// For programs: one JSON object to this file as well; "-" is stdout, which then has nothing
    /// else
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Where the results are kept, a file for each experiment
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    pub(crate) results: PathBuf,
}

/// Makes one page with plots of the results that were kept
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Where the results are
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    pub(crate) from: PathBuf,
    /// The page; stdout, if it is not given
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

const RESULTS: &str = "lab-results";
