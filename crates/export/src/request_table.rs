//! The table of requests in flight, with the state that their answers need.

/// Requests in flight, by their cookies in the queue.
pub(crate) struct RequestTable<T> {
    requests: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> RequestTable<T> {
    pub(crate) fn new(depth: u32) -> Self {
        Self { requests: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.requests.len()
    }

    /// # Panics
    /// When full.
    pub(crate) fn insert(&mut self, request: T) -> u64 {
        let number = self.free.pop().expect("the caller has checked that a cookie is free");
        self.requests[number as usize] = Some(request);
        u64::from(number)
    }

    /// Takes out the request with this cookie.
    pub(crate) fn remove(&mut self, cookie: u64) -> Option<T> {
        let number = u32::try_from(cookie).ok()?;
        let request = self.requests.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(request)
    }
}
