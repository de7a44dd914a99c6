//! A panel as a grid: each cell's colour is its part of the best in its column, among the rows of
//! its group.

use super::told;
use super::xml::{Coordinate, Xml};
use crate::{Cell, Panel, PanelRow};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 190.0;
const CELL: f64 = 24.0;
const HEAD: f64 = 30.0;
const GROUP: f64 = 24.0;

/// The limits of the colours, from the best: this part of the best or more.
const STEPS: [f64; 6] = [0.95, 0.85, 0.7, 0.5, 0.3, 0.0];

pub(super) fn draw(xml: &mut Xml, panel: &Panel) {
    let columns = panel.series.len().max(1);
    let width = (WIDTH - LEFT) / columns as f64;
    let groups = groups(panel);
    let height = HEAD + panel.rows.len() as f64 * CELL + groups.len() as f64 * GROUP + 34.0;
    let view = format!("0 0 {WIDTH} {height}");
    xml.element("svg", &[("viewBox", &view), ("role", &"img"), ("aria-label", &panel.title)], |xml| {
        for (nth, series) in panel.series.iter().enumerate() {
            let x = LEFT + (nth as f64 + 0.5) * width;
            let place: [(&'static str, &dyn std::fmt::Display); 4] = [
                ("class", &"tick"),
                ("x", &Coordinate(x)),
                ("y", &Coordinate(HEAD - 12.0)),
                ("text-anchor", &"middle"),
            ];
            xml.line("text", &place, series);
        }
        let mut y = HEAD;
        for rows in groups {
            let title = rows.first().and_then(|row| row.group.as_deref()).unwrap_or_default();
            xml.line("text", &[("class", &"row"), ("x", &4), ("y", &Coordinate(y + 10.0))], title);
            y += GROUP - 8.0;
            for row in rows {
                let place: [(&'static str, &dyn std::fmt::Display); 4] = [
                    ("class", &"series"),
                    ("x", &Coordinate(LEFT - 8.0)),
                    ("y", &Coordinate(y + CELL - 8.0)),
                    ("text-anchor", &"end"),
                ];
                xml.line("text", &place, &row.label);
                for (nth, cell) in row.cells.iter().enumerate() {
                    let Some(cell) = cell else { continue };
                    let part = part_of_best(panel, rows, nth, *cell);
                    square(xml, panel, row, (nth, *cell), part, [LEFT + nth as f64 * width, y, width]);
                }
                y += CELL;
            }
            y += 8.0;
        }
        legend(xml, y + 4.0);
    });
}

fn square(
    xml: &mut Xml,
    panel: &Panel,
    row: &PanelRow,
    (nth, cell): (usize, Cell),
    part: f64,
    [x, y, width]: [f64; 3],
) {
    xml.element("g", &[("class", &step(part))], |xml| {
        let series = panel.series.get(nth).map_or("", String::as_str);
        let name = super::name(row.group.as_deref(), &row.label);
        let title = format!("{name}, {series}: {}; {:.0}% of the best", told(panel.unit, cell), part * 100.0);
        xml.line("title", &[], &title);
        xml.leaf(
            "rect",
            &[
                ("x", &Coordinate(x + 1.0)),
                ("y", &Coordinate(y + 1.0)),
                ("width", &Coordinate(width - 2.0)),
                ("height", &Coordinate(CELL - 2.0)),
                ("rx", &3),
            ],
        );
        let place: [(&'static str, &dyn std::fmt::Display); 4] = [
            ("class", &"part"),
            ("x", &Coordinate(x + width / 2.0)),
            ("y", &Coordinate(y + CELL - 8.0)),
            ("text-anchor", &"middle"),
        ];
        xml.line("text", &place, &format!("{:.0}", part * 100.0));
    });
}

fn legend(xml: &mut Xml, y: f64) {
    let mut x = LEFT;
    for (nth, least) in STEPS.iter().enumerate() {
        xml.element("g", &[("class", &step(*least))], |xml| {
            xml.leaf(
                "rect",
                &[("x", &Coordinate(x)), ("y", &Coordinate(y)), ("width", &14), ("height", &14), ("rx", &3)],
            );
        });
        let text = match nth {
            0 => "95% of the best or more".to_owned(),
            5 => "less".to_owned(),
            _ => format!("{:.0}%", least * 100.0),
        };
        xml.line(
            "text",
            &[("class", &"tick"), ("x", &Coordinate(x + 19.0)), ("y", &Coordinate(y + 11.0))],
            &text,
        );
        x += if nth == 0 { 170.0 } else { 62.0 };
    }
}

/// Returns runs of rows with the same group.
fn groups(panel: &Panel) -> Vec<&[PanelRow]> {
    panel.rows.chunk_by(|a, b| a.group == b.group).collect()
}

fn part_of_best(panel: &Panel, rows: &[PanelRow], column: usize, cell: Cell) -> f64 {
    let all = rows.iter().filter_map(|row| row.cells.get(column).copied().flatten());
    let all = all.map(|cell| cell.measured.median);
    let (own, part) = (cell.measured.median, |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 });
    if panel.more_is_better {
        part(own, all.fold(0.0, f64::max))
    } else {
        part(all.fold(f64::INFINITY, f64::min), own)
    }
}

fn step(part: f64) -> String {
    // Shown as 95, counted as 95.
    let part = (part * 100.0).round() / 100.0;
    let nth = STEPS.iter().position(|least| part >= *least).unwrap_or(STEPS.len() - 1);
    format!("heat{nth}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::example;

    #[test]
    fn the_best_of_a_group_is_a_hundred() {
        let mut panel = example().panels.remove(2);
        let part = |panel: &Panel, row: usize, column: usize| {
            let groups = groups(panel);
            let cell = groups[0][row].cells[column].unwrap();
            part_of_best(panel, groups[0], column, cell)
        };
        assert_eq!([part(&panel, 0, 0), part(&panel, 1, 0)], [1.0, 0.5]);
        assert_eq!([part(&panel, 0, 1), part(&panel, 1, 1)], [0.5, 1.0]);
        panel.more_is_better = false;
        assert_eq!([part(&panel, 0, 0), part(&panel, 1, 0)], [0.5, 1.0]);
    }

    #[test]
    fn colours_go_from_the_best_to_the_rest() {
        let steps = [1.0, 0.945, 0.9, 0.85, 0.5, 0.299, 0.0, f64::NAN].map(step);
        assert_eq!(steps, ["heat0", "heat0", "heat1", "heat1", "heat3", "heat4", "heat5", "heat5"]);
    }
}
