//! A panel as horizontal bars, or as dots on a logarithmic scale.
//!
//! ```text
//!   4k   plain       |##########-+--|  202 MB/s
//!        work queue  |####-+-|         80.7 MB/s      -+-  whisker: least to most   <>  published
//!   64k  plain       |...
//! ```

use super::xml::{Coordinate, Xml};
use super::{name, told};
use crate::{Cell, Panel, PanelShape};

const WIDTH: f64 = 760.0;
/// The end of series' names and the beginning of bars.
const LEFT: f64 = 250.0;
/// The end of the scale; figures stand at its right.
const RIGHT: f64 = 640.0;
const LINE: f64 = 19.0;
const BAR: f64 = 12.0;
const GAP: f64 = 9.0;
/// A row's name of more characters takes a separate line.
const SHORT: usize = 12;

pub(super) fn draw(xml: &mut Xml, panel: &Panel) {
    let scale = Scale::of(panel);
    let lines: usize = panel.rows.iter().map(|row| row.cells.iter().flatten().count()).sum();
    let above = panel.rows.iter().any(|row| row.label.chars().count() > SHORT);
    let names = if above { panel.rows.len() } else { 0 };
    let bottom = (lines + names) as f64 * LINE + panel.rows.len() as f64 * GAP + 4.0;
    let height = bottom + 22.0;
    let view = format!("0 0 {WIDTH} {height}");
    xml.element("svg", &[("viewBox", &view), ("role", &"img"), ("aria-label", &panel.title)], |xml| {
        for (value, x) in scale.ticks() {
            xml.leaf(
                "line",
                &[
                    ("class", &"grid"),
                    ("x1", &Coordinate(x)),
                    ("x2", &Coordinate(x)),
                    ("y1", &0),
                    ("y2", &Coordinate(bottom)),
                ],
            );
            let place: [(&'static str, &dyn std::fmt::Display); 4] = [
                ("class", &"tick"),
                ("x", &Coordinate(x)),
                ("y", &Coordinate(bottom + 15.0)),
                ("text-anchor", &"middle"),
            ];
            xml.line("text", &place, &tick(panel, value));
        }
        let mut y = GAP / 2.0;
        for row in &panel.rows {
            xml.line("text", &[("class", &"row"), ("x", &4), ("y", &Coordinate(y + LINE - 6.0))], &row.label);
            y += if above { LINE } else { 0.0 };
            for (nth, (series, cell)) in panel.series.iter().zip(&row.cells).enumerate() {
                let Some(cell) = cell else { continue };
                let tone = tone(series, nth);
                xml.element("g", &[("class", &tone)], |xml| {
                    let title = format!(
                        "{series}, {}: {}",
                        name(row.group.as_deref(), &row.label),
                        told(panel.unit, *cell)
                    );
                    xml.line("title", &[], &title);
                    let place: [(&'static str, &dyn std::fmt::Display); 4] = [
                        ("class", &"series"),
                        ("x", &Coordinate(LEFT - 8.0)),
                        ("y", &Coordinate(y + LINE - 6.0)),
                        ("text-anchor", &"end"),
                    ];
                    xml.line("text", &place, series);
                    figure(xml, panel, &scale, *cell, y + LINE / 2.0);
                });
                y += LINE;
            }
            y += GAP;
        }
    });
}

fn figure(xml: &mut Xml, panel: &Panel, scale: &Scale, cell: Cell, y: f64) {
    let range = cell.measured;
    let x = scale.x(range.median);
    let (least, most) = (scale.x(range.least), scale.x(range.most));
    match panel.shape {
        PanelShape::Dots => xml
            .leaf("circle", &[("class", &"mark"), ("cx", &Coordinate(x)), ("cy", &Coordinate(y)), ("r", &5)]),
        _ => xml.leaf(
            "rect",
            &[
                ("class", &"mark"),
                ("x", &Coordinate(LEFT)),
                ("y", &Coordinate(y - BAR / 2.0)),
                ("width", &Coordinate((x - LEFT).max(0.5))),
                ("height", &Coordinate(BAR)),
            ],
        ),
    }
    let whisker = format!(
        "M{a} {top}V{low}M{a} {y}H{b}M{b} {top}V{low}",
        a = Coordinate(least),
        b = Coordinate(most),
        y = Coordinate(y),
        top = Coordinate(y - 4.0),
        low = Coordinate(y + 4.0)
    );
    xml.leaf("path", &[("class", &"whisker"), ("d", &whisker)]);
    let mut end = most.max(x);
    if let Some(published) = cell.published {
        let at = scale.x(published);
        let diamond = format!(
            "M{} {y}L{x} {}L{} {y}L{x} {}Z",
            Coordinate(at - 6.0),
            Coordinate(y - 6.0),
            Coordinate(at + 6.0),
            Coordinate(y + 6.0),
            x = Coordinate(at),
            y = Coordinate(y)
        );
        xml.leaf("path", &[("class", &"published"), ("d", &diamond)]);
        end = end.max(at + 6.0);
    }
    let place: [(&'static str, &dyn std::fmt::Display); 3] =
        [("class", &"value"), ("x", &Coordinate(end + 7.0)), ("y", &Coordinate(y + 4.0))];
    xml.line("text", &place, &panel.unit.show(range.median));
}

/// Returns a round number without meaningless digits.
fn tick(panel: &Panel, value: f64) -> String {
    let text = panel.unit.number(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// Returns the series' colour, which is the same on the whole page.
fn tone(series: &str, nth: usize) -> String {
    let known = ["plain", "work queue", "inline", "adaptive"];
    let tone = known.iter().position(|name| *name == series).unwrap_or(4 + nth % 4);
    format!("tone{tone}")
}

/// The mapping from figures to places.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(panel: &Panel) -> Self {
        let cells = panel.rows.iter().flat_map(|row| row.cells.iter().flatten());
        let values: Vec<f64> = cells
            .flat_map(|cell| [Some(cell.measured.least), Some(cell.measured.most), cell.published])
            .flatten()
            .filter(|v| v.is_finite())
            .collect();
        let high = values.iter().copied().fold(0.0, f64::max);
        let logarithmic = panel.shape == PanelShape::Dots && high > 0.0;
        if !logarithmic {
            return Self { low: 0.0, high: if high > 0.0 { high } else { 1.0 }, logarithmic };
        }
        let low = values.iter().copied().filter(|v| *v > 0.0).fold(high, f64::min);
        Self { low: low / 1.2, high: high * 1.05, logarithmic }
    }

    fn x(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        };
        LEFT + (RIGHT - LEFT) * part.clamp(0.0, 1.0)
    }

    /// Returns a limited number of round values and their places.
    fn ticks(&self) -> Vec<(f64, f64)> {
        let values: Vec<f64> = if self.logarithmic {
            let (from, to) = (self.low.log10().floor(), self.high.log10().ceil());
            let few = to - from <= 3.0;
            let steps: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
            // Five decades fit a page; no measurement has more than forty.
            let decades = (0..40).map(|i| from + f64::from(i)).take_while(|d| *d <= to);
            decades.flat_map(|d| steps.iter().map(move |s| s * 10f64.powf(d))).collect()
        } else {
            let rough = self.high / 5.0;
            let power = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * power);
            let step = step.into_iter().find(|s| *s >= rough).unwrap_or(rough);
            (0..=5).map(|i| f64::from(i) * step).collect()
        };
        let inside = values.into_iter().filter(|v| (self.low..=self.high).contains(v));
        inside.map(|v| (v, self.x(v))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Range, Unit};

    fn panel(shape: PanelShape, values: &[f64]) -> Panel {
        let range = |v: f64| Range { median: v, least: v, most: v };
        let names = values.iter().map(ToString::to_string);
        Panel::new("x", Unit::Micros, names).shape(shape).row("", values.iter().map(|v| range(*v)))
    }

    #[test]
    fn figures_lie_on_the_scale_in_their_order() {
        for shape in [PanelShape::Bars, PanelShape::Dots] {
            for values in [&[0.0, 1.0, 7.0, 9.99][..], &[1e-3, 5.0, 3e4], &[0.0], &[2.0]] {
                let scale = Scale::of(&panel(shape, values));
                let places: Vec<f64> = values.iter().map(|v| scale.x(*v)).collect();
                assert!(
                    places.is_sorted() && places.iter().all(|x| (LEFT..=RIGHT).contains(x)),
                    "{places:?}"
                );
                let ticks = scale.ticks();
                assert!(
                    ticks.len() <= 12 && ticks.iter().all(|(_, x)| (LEFT..=RIGHT).contains(x)),
                    "{ticks:?}"
                );
            }
        }
    }

    #[test]
    fn a_bar_is_as_long_as_its_figure() {
        let scale = Scale::of(&panel(PanelShape::Bars, &[50.0, 100.0]));
        assert!(((scale.x(50.0) - LEFT) * 2.0 - (scale.x(100.0) - LEFT)).abs() < 1e-9);
    }
}
