//! The picture on the terminal: a table of the volumes, below it the stages of the chosen volume.

use underseal_export::control::status::Latency;

use super::super::show;
use super::canvas::{Canvas, Style};
use super::plain::{COLUMNS, cells};
use super::view::{Bar, View, bars};

/// Draws the view: the table at the top, the stages below it, the keys in the last line.
pub(super) fn draw(canvas: &mut Canvas, view: &View) {
    let Some(keys) = canvas.height().checked_sub(1) else { return };
    let width = canvas.width();
    if view.rows.is_empty() {
        canvas.write(0, 0, width, "no volume is open", Style::Plain);
    } else {
        let table = (view.rows.len() + 1).min(keys);
        volumes(canvas, table, view);
        let stages = &view.rows[view.chosen()].stages;
        for (number, (stage, latency)) in stages.iter().enumerate() {
            let edge = |number: usize| width * number / stages.len();
            let area = Area { left: edge(number), right: edge(number + 1), top: table, bottom: keys };
            histogram(canvas, area, stage, latency);
        }
    }
    canvas.write(0, keys, width, " ↑ ↓ volume   q end", Style::Dim);
}

/// The part of a canvas from column `left` to `right`, and from line `top` to `bottom`, both ends
/// excluded.
#[derive(Clone, Copy)]
struct Area {
    left: usize,
    right: usize,
    top: usize,
    bottom: usize,
}

/// Draws the head and the volumes in the first `height` lines; the chosen volume is always visible.
fn volumes(canvas: &mut Canvas, height: usize, view: &View) {
    let rows: Vec<_> = view.rows.iter().map(cells).collect();
    let width = |column: usize| {
        let widest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        widest.max(COLUMNS[column].len())
    };
    let widths: [usize; 10] = std::array::from_fn(width);
    let whole = widths.iter().map(|width| width + GAP).sum::<usize>() - GAP;
    let mut line = |y: usize, cells: [&str; 10], style: Style| {
        let mut x = 0;
        for (cell, width) in cells.into_iter().zip(widths) {
            canvas.write(x, y, x + width, cell, style);
            x += width + GAP;
        }
        if style == Style::Reversed {
            canvas.fill(y, whole, style);
        }
    };
    if height > 0 {
        line(0, COLUMNS, Style::Bold);
    }
    let room = height.saturating_sub(1);
    let first = (view.chosen() + 1).saturating_sub(room);
    for (y, (number, row)) in (1..height).zip(rows.iter().enumerate().skip(first)) {
        let style = if number == view.chosen() { Style::Reversed } else { Style::Plain };
        line(y, std::array::from_fn(|column| row[column].as_str()), style);
    }
}

/// Columns between two cells of the table.
const GAP: usize = 2;

/// Draws a stage: its figures, and a line for each power of two with a bar as long as its share.
fn histogram(canvas: &mut Canvas, area: Area, stage: &str, latency: &Latency) {
    let Area { left, right, top, bottom } = area;
    let title = format!(" {stage} ");
    let mut put = |y: usize, x: usize, text: &str, style: Style| {
        if y < bottom {
            canvas.write(x, y, right, text, style);
        }
    };
    put(top, left, &"─".repeat(right - left), Style::Plain);
    put(top, left, &title, Style::Bold);
    for (y, (name, nanos)) in (top + 1..).zip([("p50", latency.p50_ns), ("p99", latency.p99_ns)]) {
        put(y, left, &format!("{name} {}", show::duration(nanos)), Style::Dim);
    }
    let bars = bars(latency);
    // If the lines do not fit, those of the slowest requests are drawn.
    let room = bottom.saturating_sub(top + FIGURES);
    let width = (right - left).saturating_sub(LABEL + 1);
    for (y, bar) in (top + FIGURES..).zip(bars.iter().skip(bars.len().saturating_sub(room))) {
        put(y, left, &format!("{:>LABEL$} ", show::duration(bar.below_ns)), Style::Dim);
        put(y, left + LABEL + 1, &drawn(*bar, width), Style::Plain);
    }
}

/// Lines of a stage above its bars.
const FIGURES: usize = 3;
/// The width of `1.00 ms`.
const LABEL: usize = 8;

/// Returns a bar of at most `width` columns, in eighths of a column. Any share above 0 is visible.
fn drawn(bar: Bar, width: usize) -> String {
    let eighths = usize::try_from(bar.mille).unwrap_or(1000).min(1000) * width * 8 / 1000;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    if eighths == 0 && bar.mille > 0 { "▏".to_owned() } else { "█".repeat(eighths / 8) + part }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{status, view};
    use super::*;

    fn drawn(view: &View, width: usize, height: usize) -> String {
        let mut canvas = Canvas::new(width, height);
        draw(&mut canvas, view);
        canvas.text()
    }

    #[test]
    fn volumes_and_the_stages_of_the_chosen_one_are_shown() {
        let mut view =
            view(vec![vec![status("first", 0, &[]), status("second", 9, &[(1023, 3), (65535, 1)])]]);
        let text = drawn(&view, 120, 20);
        for word in ["NAME", "p99.9", "first", "second", "queued", "crypto", "lower", "reply", "total"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
        assert!(!text.contains('█'), "the first did nothing\n{text}");
        view.choose(1);
        let text = drawn(&view, 120, 20);
        assert!(text.contains("1.02 µs ███"), "{text}");
    }

    #[test]
    fn any_size_and_no_volume_can_be_drawn() {
        let empty = view(vec![vec![]]);
        let full =
            view(vec![(0..100).map(|i| status(&i.to_string(), i, &[(u64::MAX, i + 1), (3, 1)])).collect()]);
        for (width, height) in [(0, 0), (1, 1), (3, 2), (10, 40), (500, 3), (80, 24)] {
            drawn(&full, width, height);
            drawn(&empty, width, height);
        }
        assert!(drawn(&empty, 40, 5).contains("no volume is open"));
    }

    #[test]
    fn the_chosen_volume_is_in_sight_however_many_there_are() {
        let names = (0..100).map(|i| status(&format!("volume{i}"), 0, &[])).collect();
        let mut view = view(vec![names]);
        assert!(drawn(&view, 80, 10).contains("volume0"));
        view.choose(99);
        let text = drawn(&view, 80, 10);
        assert!(text.contains("volume99") && !text.contains("volume0 "), "{text}");
    }
}
