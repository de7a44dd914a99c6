//! The outcome of an experiment, for programs (JSON), for the terminal and for the page: one value
//! for all three.

use serde::{Deserialize, Serialize};
use underseal_bench::{Machine, Range};

use crate::{Error, ErrorKind, Result};

/// The outcome of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentOutcome {
    /// The experiment's name.
    pub name: String,
    /// The experiment's question.
    pub question: String,
    /// The published figures, and their source.
    pub published: Published,
    /// The setup of this measurement.
    pub setup: Vec<String>,
    /// The machine of this measurement.
    pub machine: Machine,
    /// The number of rounds.
    pub rounds: usize,
    /// True for shortened rounds: a trial run, not a figure.
    pub quick: bool,
    /// The duration of the measurement.
    pub seconds: f64,
    /// The answer, in one sentence.
    pub answer: String,
    /// The figures that answer it, published and measured side by side.
    pub findings: Vec<AnswerFigure>,
    /// All other figures, for plots.
    pub panels: Vec<Panel>,
}

impl ExperimentOutcome {
    /// Parses a stored result.
    ///
    /// # Errors
    /// `BadResult` when the text is no result.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|e| Error::new(ErrorKind::BadResult, "not a result of this version's").with_source(e))
    }

    /// Returns the number of reached goals, and the number of goals.
    pub fn goals(&self) -> (usize, usize) {
        let met = self.findings.iter().filter_map(AnswerFigure::met);
        met.fold((0, 0), |(reached, all), met| (reached + usize::from(met), all + 1))
    }
}

/// Published figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The place and time of the publication.
    pub source: String,
    /// The hardware, and the method.
    pub setup: String,
    /// The figures and conclusions.
    pub figures: String,
}

/// A figure that answers the question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerFigure {
    /// The measured quantity.
    pub what: String,
    /// The figure's unit.
    pub unit: Unit,
    /// The published figure, if any.
    pub published: Option<f64>,
    /// The measured figure.
    pub measured: Range,
    /// The project's goal.
    pub goal: Option<Goal>,
}

impl AnswerFigure {
    pub(crate) fn new(what: impl Into<String>, unit: Unit, measured: Range) -> Self {
        Self { what: what.into(), unit, published: None, measured, goal: None }
    }

    pub(crate) fn published(self, figure: f64) -> Self {
        Self { published: Some(figure), ..self }
    }

    pub(crate) fn goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    /// Returns true when the goal was reached, or `None` without a goal.
    pub fn met(&self) -> Option<bool> {
        let median = self.measured.median;
        Some(match self.goal? {
            Goal::AtLeast(least) => median >= least,
            Goal::AtMost(most) => median <= most,
            Goal::Within(part) => (median / self.published? - 1.0).abs() <= part,
        })
    }
}

/// The condition that a finding's median must meet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// This much or more.
    AtLeast(f64),
    /// This much or less.
    AtMost(f64),
    /// At most this part of the published figure away from it.
    Within(f64),
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// 10^6 bytes a second.
    MbPerS,
    /// Requests a second.
    Iops,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
    /// A multiple of another figure.
    Times,
    /// A part of another figure, shown in percent.
    Part,
    /// A count.
    Count,
}

/// Figures of one kind, in rows of series, for a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// The panel's title.
    pub title: String,
    /// An explanation, if needed.
    pub note: Option<String>,
    /// The unit of all figures.
    pub unit: Unit,
    /// The form of the plot.
    pub shape: PanelShape,
    /// True when larger figures are better.
    pub more_is_better: bool,
    /// The names of the series.
    pub series: Vec<String>,
    /// The rows; each has a cell for each series.
    pub rows: Vec<PanelRow>,
}

/// The form of a panel's plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PanelShape {
    /// Bars from zero.
    Bars,
    /// Dots on a logarithmic scale.
    Dots,
    /// A grid of rows and series, whose colour shows the part of the best of the group in that
    /// series.
    Heat,
}

/// A row of a panel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PanelRow {
    /// Rows that are compared with each other, in a heat map.
    pub group: Option<String>,
    /// The row's name.
    pub label: String,
    /// A figure for each series, if any.
    pub cells: Vec<Option<Cell>>,
}

/// A figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The measured figure.
    pub measured: Range,
    /// The published figure, if any.
    pub published: Option<f64>,
}

impl Panel {
    /// Returns a panel of bars without rows.
    pub(crate) fn new(
        title: impl Into<String>,
        unit: Unit,
        series: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            title: title.into(),
            note: None,
            unit,
            shape: PanelShape::Bars,
            more_is_better: true,
            series: series.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    pub(crate) fn shape(self, shape: PanelShape) -> Self {
        Self { shape, ..self }
    }

    pub(crate) fn less_is_better(self) -> Self {
        Self { more_is_better: false, ..self }
    }

    pub(crate) fn row(
        mut self,
        label: impl Into<String>,
        cells: impl IntoIterator<Item = impl Into<Cell>>,
    ) -> Self {
        let cells = cells.into_iter().map(|cell| Some(cell.into())).collect();
        self.rows.push(PanelRow { group: None, label: label.into(), cells });
        self
    }
}

impl From<Range> for Cell {
    fn from(measured: Range) -> Self {
        Self { measured, published: None }
    }
}

impl From<(Range, f64)> for Cell {
    fn from((measured, published): (Range, f64)) -> Self {
        Self { measured, published: Some(published) }
    }
}

impl Unit {
    /// The text behind a number, with a space where one belongs.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::MbPerS => " MB/s",
            Self::Iops => " IOPS",
            Self::Micros => " us",
            Self::Nanos => " ns",
            Self::Times => " times",
            Self::Part => "%",
            Self::Count => "",
        }
    }

    /// The heading of a column of numbers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            unit => unit.suffix().trim_start(),
        }
    }

    /// Returns a number with three significant digits.
    pub fn number(self, value: f64) -> String {
        let value = if self == Self::Part { value * 100.0 } else { value };
        match value.abs() {
            _ if value.is_nan() => "?".into(),
            _ if self == Self::Count && value.fract() == 0.0 => format!("{value:.0}"),
            0.0 => "0".into(),
            v if v >= 99.95 => grouped(value),
            v if v >= 9.995 => format!("{value:.1}"),
            v if v >= 0.09995 => format!("{value:.2}"),
            _ => format!("{value:.3}"),
        }
    }

    /// The number and its unit.
    pub fn show(self, value: f64) -> String {
        self.number(value) + self.suffix()
    }
}

impl Goal {
    /// Returns the goal as text: `>= 2.20`.
    pub fn show(self, unit: Unit) -> String {
        match self {
            Self::AtLeast(v) => format!("at least {}", unit.show(v)),
            Self::AtMost(v) => format!("at most {}", unit.show(v)),
            Self::Within(part) => format!("within {:.0}% of the published", part * 100.0),
        }
    }
}

/// Returns a whole number with spaces between groups of three digits, from ten thousand on.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    if digits.len() <= 4 {
        return digits;
    }
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && c.is_ascii_digit() && (digits.len() - i).is_multiple_of(3) && !out.ends_with('-') {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(median: f64) -> Range {
        Range { median, least: median, most: median }
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        for (unit, value, text) in [
            (Unit::MbPerS, 80.71, "80.7 MB/s"),
            (Unit::MbPerS, 201.4, "201 MB/s"),
            (Unit::Iops, 1_234_567.8, "1 234 568 IOPS"),
            (Unit::Times, 2.4951, "2.50 times"),
            (Unit::Part, 0.9991, "99.9%"),
            (Unit::Part, 0.99999, "100%"),
            (Unit::Count, 3.0, "3"),
            (Unit::Micros, 0.0, "0 us"),
            (Unit::Micros, 0.0441, "0.044 us"),
            (Unit::MbPerS, -12_345.0, "-12 345 MB/s"),
            (Unit::MbPerS, -123_456.0, "-123 456 MB/s"),
            (Unit::MbPerS, f64::NAN, "? MB/s"),
        ] {
            assert_eq!(unit.show(value), text);
        }
    }

    #[test]
    fn goals_are_held_against_the_median() {
        let finding = |goal| AnswerFigure::new("x", Unit::Times, range(2.0)).published(2.5).goal(goal);
        for (goal, met) in [
            (Goal::AtLeast(2.0), true),
            (Goal::AtLeast(2.1), false),
            (Goal::AtMost(2.0), true),
            (Goal::AtMost(1.9), false),
            (Goal::Within(0.25), true),
            (Goal::Within(0.1), false),
        ] {
            assert_eq!(finding(goal).met(), Some(met), "{goal:?}");
        }
        assert_eq!(AnswerFigure::new("x", Unit::Times, range(2.0)).met(), None);
        let nothing = AnswerFigure::new("x", Unit::Times, range(f64::NAN)).goal(Goal::AtLeast(0.0));
        assert_eq!(nothing.met(), Some(false), "what was not measured has not reached its goal");
    }
}
