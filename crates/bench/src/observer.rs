//! The observer of a running measurement.

use std::fmt::Display;

use serde::Serialize;

/// Follows a measurement, and can end it early.
pub trait Observer {
    /// Receives a progress message.
    fn progress(&mut self, text: &str);

    /// Receives the report after each row, the last time with all rows. A report's text begins with
    /// the text of the previous report.
    fn rows(&mut self, so_far: &(impl Serialize + Display));

    /// Returns true when the measurement should end with its present rows.
    fn is_stopped(&self) -> bool;
}
