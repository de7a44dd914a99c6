//! An outcome on the terminal.

use std::fmt;

use crate::{AnswerFigure, Cell, ExperimentOutcome, Panel, PanelShape};

impl fmt::Display for ExperimentOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.question)?;
        writeln!(f, "  published: {}", self.published.figures)?;
        writeln!(f, "             ({})", self.published.source)?;
        for line in &self.setup {
            writeln!(f, "  here: {line}")?;
        }
        writeln!(f)?;
        let header = ["", "published", "measured", "spread", "goal", ""].map(String::from);
        let rows = std::iter::once(header).chain(self.findings.iter().map(finding_row));
        table(f, rows.collect())?;
        for panel in &self.panels {
            writeln!(f)?;
            panel_text(f, panel)?;
        }
        let (met, all) = self.goals();
        let goals = if all == 0 { String::new() } else { format!(" ({met} of {all} goals reached)") };
        let quick = if self.quick { " Rounds were cut short: not a figure to keep." } else { "" };
        writeln!(f, "\n  {}{goals}{quick}", self.answer)
    }
}

fn finding_row(finding: &AnswerFigure) -> [String; 6] {
    let AnswerFigure { what, unit, published, measured, goal } = finding;
    [
        what.clone(),
        published.map_or_else(String::new, |v| unit.show(v)),
        unit.show(measured.median),
        format!("{}..{}", unit.number(measured.least), unit.number(measured.most)),
        goal.map_or_else(String::new, |goal| goal.show(*unit)),
        finding.met().map_or("", |met| if met { "reached" } else { "MISSED" }).into(),
    ]
}

fn panel_text(f: &mut fmt::Formatter<'_>, panel: &Panel) -> fmt::Result {
    writeln!(f, "  {} ({})", panel.title, panel.unit.name())?;
    if let Some(note) = &panel.note {
        writeln!(f, "  {note}")?;
    }
    let header = std::iter::once(String::new()).chain(panel.series.iter().cloned()).collect();
    let mut rows: Vec<Vec<String>> = vec![header];
    for row in &panel.rows {
        let group = row.group.as_ref().map(|group| format!("{group}: ")).unwrap_or_default();
        let cells = row.cells.iter().map(|cell| cell.map_or_else(String::new, |cell| cell_text(panel, cell)));
        rows.push(std::iter::once(group + &row.label).chain(cells).collect());
    }
    table(f, rows)
}

fn cell_text(panel: &Panel, cell: Cell) -> String {
    let number = |v| panel.unit.number(v);
    let mut text = number(cell.measured.median);
    if panel.shape != PanelShape::Heat {
        text += &format!(" ({}..{})", number(cell.measured.least), number(cell.measured.most));
    }
    if let Some(published) = cell.published {
        text += &format!(" [{}]", number(published));
    }
    text
}

/// Writes columns with minimal widths; the first is left-aligned, the others right-aligned.
fn table<R: AsRef<[String]>>(f: &mut fmt::Formatter<'_>, rows: Vec<R>) -> fmt::Result {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        let mut line = String::from("   ");
        for (cell, (nth, width)) in row.as_ref().iter().zip(widths.iter().enumerate()) {
            let pad = " ".repeat(width - cell.chars().count());
            line += &if nth == 0 { format!(" {cell}{pad}") } else { format!("  {pad}{cell}") };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::experiments::example;

    #[test]
    fn what_was_measured_stands_beside_what_was_published() {
        let text = example().to_string();
        let line = text.lines().find(|line| line.contains("inline over plain")).unwrap();
        for part in ["99.5%", "98.0%", "97.0..99.0", "at least 97.0%", "reached"] {
            assert!(line.contains(part), "{line:?} lacks {part:?}");
        }
        assert!(text.contains("1 of 2 goals reached"), "{text}");
        assert!(text.lines().any(|line| line.contains("MISSED")), "{text}");
        assert!(text.contains("[202]"), "the published figure stands beside the panel's: {text}");
    }
}
