//! The experiments: one file each.

mod dispatch;
mod ecryptfs;
mod inline;
mod integrity;
mod order;
mod policies;
mod reencrypt;
mod sectors;
mod tail;
mod whole_request;
mod zoned;

use std::time::Instant;

use crate::{
    AnswerFigure, Error, ErrorKind, ExperimentOutcome, Lab, Machine, Panel, Published, Range, Result,
};

/// An experiment: its question, its published figures, and its measurement on this machine.
pub struct Experiment {
    /// The experiment's name.
    pub name: &'static str,
    /// The experiment's question.
    pub question: &'static str,
    source: &'static str,
    setup: &'static str,
    figures: &'static str,
    /// The number of rounds, unless the lab sets another.
    rounds: usize,
    run: fn(&Lab<'_>, usize) -> Result<Measured>,
}

/// The results of an experiment.
struct Measured {
    setup: Vec<String>,
    answer: String,
    findings: Vec<AnswerFigure>,
    panels: Vec<Panel>,
}

/// Returns all experiments, in reading order.
pub fn all() -> &'static [Experiment] {
    &[
        policies::EXPERIMENT,
        inline::EXPERIMENT,
        tail::EXPERIMENT,
        sectors::EXPERIMENT,
        dispatch::EXPERIMENT,
        order::EXPERIMENT,
        whole_request::EXPERIMENT,
        zoned::EXPERIMENT,
        ecryptfs::EXPERIMENT,
        reencrypt::EXPERIMENT,
        integrity::EXPERIMENT,
    ]
}

/// Returns an experiment by its name.
///
/// # Errors
/// `Unknown`, with the existing names.
pub fn find(name: &str) -> Result<&'static Experiment> {
    all().iter().find(|experiment| experiment.name == name).ok_or_else(|| {
        let names: Vec<_> = all().iter().map(|experiment| experiment.name).collect();
        let context = format!("there is no experiment \"{name}\": there are {}", names.join(", "));
        Error::new(ErrorKind::Unknown, context)
    })
}

impl Experiment {
    /// Runs the experiment.
    ///
    /// # Errors
    /// `System` when the system refuses a resource, `Path` when the measured path fails, `Wrong`
    /// for wrong bytes or an empty measurement.
    pub fn run(&self, lab: &Lab<'_>) -> Result<ExperimentOutcome> {
        let machine = Machine::this()?;
        let start = Instant::now();
        let Measured { setup, answer, findings, panels } = (self.run)(lab, self.rounds)?;
        let outcome = ExperimentOutcome {
            name: self.name.into(),
            question: self.question.into(),
            published: Published {
                source: self.source.into(),
                setup: self.setup.into(),
                figures: self.figures.into(),
            },
            setup,
            machine,
            rounds: lab.rounds(self.rounds),
            quick: lab.quick,
            seconds: start.elapsed().as_secs_f64(),
            answer,
            findings,
            panels,
        };
        is_measured(&outcome)?;
        Ok(outcome)
    }
}

/// Refuses invalid figures: nothing was moved, or in no time.
fn is_measured(outcome: &ExperimentOutcome) -> Result<()> {
    let finite = |range: &Range| [range.median, range.least, range.most].iter().all(|v| v.is_finite());
    let bad = |what: &str| {
        Err(Error::new(ErrorKind::Wrong, format!("{}: {what}: nothing was measured", outcome.name)))
    };
    if let Some(finding) = outcome.findings.iter().find(|finding| !finite(&finding.measured)) {
        return bad(&finding.what);
    }
    for panel in &outcome.panels {
        let mut cells = panel.rows.iter().flat_map(|row| row.cells.iter().flatten());
        if cells.any(|cell| !finite(&cell.measured)) {
            return bad(&panel.title);
        }
    }
    Ok(())
}

/// An outcome with all kinds of parts, for tests.
#[cfg(test)]
pub(crate) fn example() -> ExperimentOutcome {
    use crate::{Goal, PanelRow, PanelShape, Unit};
    let range = |median: f64| Range { median, least: median - 0.01, most: median + 0.01 };
    let of = |median: f64, spread: f64| Range { median, least: median - spread, most: median + spread };
    let heat_row = |group: &str, label: &str, values: [f64; 2]| PanelRow {
        group: Some(group.into()),
        label: label.into(),
        cells: values.map(|v| Some(of(v, 1.0).into())).into(),
    };
    let mut heat = Panel::new("All of it", Unit::MbPerS, ["4k", "1M"]).shape(PanelShape::Heat);
    heat.rows.push(heat_row("reads", "inline", [100.0, 400.0]));
    heat.rows.push(heat_row("reads", "workers", [50.0, 800.0]));
    heat.rows.push(PanelRow {
        group: Some("writes".into()),
        label: "inline".into(),
        cells: vec![None, None],
    });
    ExperimentOutcome {
        name: "example".into(),
        question: "Is a < b & \"c\"?".into(),
        published: Published {
            source: "a list, 2020 <https://example.org/>".into(),
            setup: "a disk".into(),
            figures: "202 & 80.7 MB/s".into(),
        },
        setup: vec!["memory".into()],
        machine: Machine::this().unwrap(),
        rounds: 3,
        quick: true,
        seconds: 1.5,
        answer: "Yes: <b>.".into(),
        findings: vec![
            AnswerFigure::new("inline over plain", Unit::Part, range(0.98))
                .published(0.995)
                .goal(Goal::AtLeast(0.97)),
            AnswerFigure::new("p99", Unit::Micros, of(30.0, 4.0)).goal(Goal::AtMost(20.0)),
            AnswerFigure::new("requests", Unit::Count, of(3.0, 0.0)),
        ],
        panels: vec![
            Panel::new("Rates", Unit::MbPerS, ["plain", "inline & co"])
                .row("4k", [(of(210.0, 5.0), 202.0), (of(190.0, 5.0), 80.7)])
                .row("1M", [of(2100.0, 5.0), of(0.0, 0.0)])
                .note("a < b"),
            Panel::new("Latency", Unit::Micros, ["idle"])
                .shape(PanelShape::Dots)
                .less_is_better()
                .row("p50", [of(2.0, 1.0)])
                .row("p99", [(of(2000.0, 1999.5), 10.0)]),
            heat,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_others_are_refused_with_the_list() {
        for experiment in all() {
            assert_eq!(find(experiment.name).unwrap().name, experiment.name);
            assert!(experiment.question.ends_with('?'), "{}", experiment.name);
        }
        let Err(error) = find("nothing") else { panic!("there is such a thing") };
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.to_string().contains("inline"), "{error}");
    }

    #[test]
    fn an_outcome_is_read_back_as_it_was_written() {
        let outcome = example();
        let text = serde_json::to_string_pretty(&outcome).unwrap();
        assert_eq!(ExperimentOutcome::from_json(&text).unwrap(), outcome);
        for bad in ["", "{}", "[]", &text[..text.len() / 2]] {
            assert_eq!(ExperimentOutcome::from_json(bad).unwrap_err().kind(), ErrorKind::BadResult);
        }
    }

    #[test]
    fn what_was_not_measured_is_no_figure() {
        let mut outcome = example();
        is_measured(&outcome).unwrap();
        outcome.panels[0].rows[0].cells[0] = Some(Range::of([]).into());
        assert_eq!(is_measured(&outcome).unwrap_err().kind(), ErrorKind::Wrong);
    }
}
