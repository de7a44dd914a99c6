//! The picture on the terminal: a table of the volumes, below it the chosen one's stages.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row as TableRow, Table, TableState};
use underseal_export::control::status::Latency;

use super::super::show;
use super::plain::{COLUMNS, cells};
use super::view::{Bar, View, bars};

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let height = u16::try_from(view.rows.len()).unwrap_or(u16::MAX).saturating_add(1);
    let [table, stages, keys] =
        Layout::vertical([Constraint::Max(height.max(2)), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Line::from(" ↑ ↓ volume   q end").dim(), keys);
    if view.rows.is_empty() {
        return frame.render_widget(Line::from("no volume is open"), table);
    }
    volumes(frame, table, view);
    let row = &view.rows[view.chosen()];
    let areas: [Rect; 5] = Layout::horizontal([Constraint::Fill(1); 5]).areas(stages);
    for (area, (stage, latency)) in areas.into_iter().zip(&row.stages) {
        histogram(frame, area, stage, latency);
    }
}

fn volumes(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let rows: Vec<_> = view.rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        let widest = cells.max().unwrap_or(0).max(COLUMNS[column].len());
        Constraint::Length(u16::try_from(widest).unwrap_or(u16::MAX))
    };
    let widths: [Constraint; 10] = std::array::from_fn(width);
    let table = Table::new(rows.into_iter().map(TableRow::new), widths)
        .column_spacing(2)
        .header(TableRow::new(COLUMNS).style(Style::new().bold()))
        .row_highlight_style(Style::new().reversed());
    let mut state = TableState::default().with_selected(view.chosen());
    frame.render_stateful_widget(table, area, &mut state);
}

/// A stage: its figures, and a line for each power of two with a bar as long as its share.
fn histogram(frame: &mut Frame<'_>, area: Rect, stage: &str, latency: &Latency) {
    let block = Block::new().borders(Borders::TOP).title(format!(" {stage} ").bold());
    let inner = block.inner(area);
    let figures = [("p50", latency.p50_ns), ("p99", latency.p99_ns)];
    let figures = figures.map(|(name, nanos)| Line::from(format!("{name} {}", show::duration(nanos))).dim());
    let mut lines = figures.to_vec();
    let bars = bars(latency);
    // The longest are what one looks for.
    let room = usize::from(inner.height).saturating_sub(lines.len());
    let width = usize::from(inner.width).saturating_sub(LABEL + 1);
    lines.extend(bars.iter().skip(bars.len().saturating_sub(room)).map(|bar| line(*bar, width)));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// The width of `1.00 ms`.
const LABEL: usize = 8;

fn line(bar: Bar, width: usize) -> Line<'static> {
    let eighths = usize::try_from(bar.mille).unwrap_or(1000).min(1000) * width * 8 / 1000;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    // What is there is seen, however little it is.
    let drawn =
        if eighths == 0 && bar.mille > 0 { "▏".to_owned() } else { "█".repeat(eighths / 8) + part };
    let label = format!("{:>LABEL$} ", show::duration(bar.below_ns));
    Line::from(vec![Span::from(label).dim(), Span::from(drawn)])
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::view::tests::{status, view};
    use super::*;

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().to_string()
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
        for (width, height) in [(1, 1), (3, 2), (10, 40), (500, 3), (80, 24)] {
            drawn(&full, width, height);
            drawn(&empty, width, height);
        }
        assert!(drawn(&empty, 40, 5).contains("no volume is open"));
    }
}
