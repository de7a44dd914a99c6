//! The median, least and most of several rounds.

use serde::{Deserialize, Serialize};

/// The median of the rounds, and the least and the most of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// The middle value; for an even count the mean of the two middle values.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Range {
    /// Returns the range of any number of values; NaN without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (values.first(), values.last()) else {
            return Self { median: f64::NAN, least: f64::NAN, most: f64::NAN };
        };
        let half = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) };
        Self { median, least, most }
    }

    /// Returns the range of the quotients of simultaneous rounds.
    pub fn of_ratios(over: &[f64], under: &[f64]) -> Self {
        Self::of(over.iter().zip(under).map(|(a, b)| a / b))
    }

    /// Multiplies all three values by `factor`.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, least: self.least * factor, most: self.most * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_count_lies_between() {
        let range = Range::of([8.0, 1.0, 4.0, 2.0]);
        assert_eq!(range, Range { median: 3.0, least: 1.0, most: 8.0 });
        assert_eq!(Range::of([8.0, 1.0, 2.0]).median, 2.0);
        assert!(Range::of([]).median.is_nan());
    }

    #[test]
    fn ratios_are_of_rounds_and_not_of_medians() {
        let range = Range::of_ratios(&[1.0, 10.0, 3.0], &[1.0, 5.0, 1.0]);
        assert_eq!(range, Range { median: 2.0, least: 1.0, most: 3.0 });
    }
}
