//! The limits of a queue.

/// The limits of a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// Requests in flight at a time.
    pub depth: u32,
    /// The longest read or write, in bytes.
    pub max_request: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 128, max_request: 32 << 20 }
    }
}
