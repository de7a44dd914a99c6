//! The reader of a measurement that is still running.

use std::fmt::Display;

use serde::Serialize;

/// Follows a measurement, and can end it early.
pub trait Observer {
    /// Hears what is being done.
    fn progress(&mut self, text: &str);

    /// Gets the report each time that rows are finished, the last time with all of them. A report's
    /// text begins with the text of the report before it.
    fn rows(&mut self, so_far: &(impl Serialize + Display));

    /// Whether the measurement ends with the rows that it has.
    fn is_stopped(&self) -> bool;
}
