//! A rectangle of characters with styles, and the escape codes that show it on a terminal.

use std::fmt::Write;

/// The style of a character (ECMA-48, "select graphic rendition").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Reversed,
}

impl Style {
    /// Returns the escape code that resets the previous style and selects this one.
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "\x1b[0m",
            Self::Bold => "\x1b[0;1m",
            Self::Dim => "\x1b[0;2m",
            Self::Reversed => "\x1b[0;7m",
        }
    }
}

/// A rectangle of characters. Text beyond its edges is cut off.
pub(super) struct Canvas {
    width: usize,
    lines: Vec<Vec<(char, Style)>>,
}

impl Canvas {
    /// An empty canvas of `width` columns and `height` lines.
    pub(super) fn new(width: usize, height: usize) -> Self {
        Self { width, lines: vec![Vec::new(); height] }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn height(&self) -> usize {
        self.lines.len()
    }

    /// Writes `text` from column `x` of line `y` on, at most to column `end`. Control characters
    /// become `?`: a volume's name cannot steer the terminal.
    pub(super) fn write(&mut self, x: usize, y: usize, end: usize, text: &str, style: Style) {
        let Some(line) = self.lines.get_mut(y) else { return };
        let end = end.min(self.width);
        for (column, character) in (x..end).zip(text.chars()) {
            if line.len() <= column {
                line.resize(column + 1, (' ', Style::Plain));
            }
            let shown = if character.is_control() { '?' } else { character };
            line[column] = (shown, style);
        }
    }

    /// Fills line `y` with `style` up to column `end`.
    pub(super) fn fill(&mut self, y: usize, end: usize, style: Style) {
        let Some(line) = self.lines.get_mut(y) else { return };
        let end = end.min(self.width);
        if line.len() < end {
            line.resize(end, (' ', Style::Plain));
        }
        for cell in &mut line[..end] {
            cell.1 = style;
        }
    }

    /// Returns the canvas as escape codes: each line from its first column on, the rest of the line
    /// erased.
    pub(super) fn codes(&self) -> String {
        let mut codes = String::new();
        for (y, line) in self.lines.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = write!(codes, "\x1b[{};1H\x1b[0m", y + 1);
            let mut style = Style::Plain;
            for (character, its) in line {
                if *its != style {
                    style = *its;
                    codes += style.code();
                }
                codes.push(*character);
            }
            codes += "\x1b[0m\x1b[K";
        }
        codes
    }

    /// Returns the canvas as lines of text without styles.
    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        let line =
            |line: &Vec<(char, Style)>| line.iter().map(|(character, _)| *character).collect::<String>();
        self.lines.iter().map(|cells| line(cells) + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_the_edges_and_steers_nothing() {
        let mut canvas = Canvas::new(5, 2);
        canvas.write(3, 0, usize::MAX, "abc", Style::Plain);
        canvas.write(0, 1, 2, "x\x1b[2J", Style::Bold);
        canvas.write(0, 2, 5, "below", Style::Plain);
        assert_eq!(canvas.text(), "   ab\nx?\n");
        assert_eq!(
            canvas.codes(),
            "\x1b[1;1H\x1b[0m   ab\x1b[0m\x1b[K\x1b[2;1H\x1b[0m\x1b[0;1mx?\x1b[0m\x1b[K"
        );
    }

    #[test]
    fn a_filled_line_is_of_one_style() {
        let mut canvas = Canvas::new(3, 1);
        canvas.write(0, 0, 3, "a", Style::Bold);
        canvas.fill(0, 9, Style::Reversed);
        assert_eq!(canvas.codes(), "\x1b[1;1H\x1b[0m\x1b[0;7ma  \x1b[0m\x1b[K");
    }
}
