//! Metrics: `GET /metrics` in Prometheus text, over HTTP/1.1.
//!
//! ```text
//!   scraper --> one request a connection, bounded head, deadline --> Controlled::status --> text
//! ```

mod text;

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Result;
use crate::control::Controlled;
use crate::net::{Attend, Attendant, Deadlined, Gate, Listener, Socket};

pub use text::text;

/// Serves a volume's metrics until it is dropped.
#[derive(Debug)]
pub struct Metrics {
    attendant: Attendant,
}

struct Scraped(Arc<Controlled>);

/// The limit of concurrent scrapers. A further connection is closed.
const CLIENTS: usize = 8;
/// How long a scraper may take to send its request and to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest request.
const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;

impl Metrics {
    /// Starts the thread that answers scrapers on the listeners.
    ///
    /// # Errors
    /// `Listen` when the thread cannot be started.
    pub fn start(listeners: Vec<Listener>, volume: Arc<Controlled>) -> Result<Self> {
        Self::start_at(listeners, volume, true)
    }

    /// As [`Metrics::start`]; with `open` false, scrapers wait until the [gate](Metrics::gate) is
    /// opened.
    ///
    /// # Errors
    /// `Listen` when the thread cannot be started.
    pub fn start_at(listeners: Vec<Listener>, volume: Arc<Controlled>, open: bool) -> Result<Self> {
        Ok(Self {
            attendant: Attendant::start("metrics", listeners, open, CLIENTS, Arc::new(Scraped(volume)))?,
        })
    }

    /// The gate that can hold back scrapers.
    pub fn gate(&self) -> Gate {
        self.attendant.gate()
    }
}

impl Attend for Scraped {
    fn serve(&self, client: Socket) {
        let mut io = Deadlined { socket: &client, deadline: Instant::now() + PATIENCE };
        let answered = head(&mut io).and_then(|head| io.write_all(&answer(&head, || text(&self.0.status()))));
        if let Err(e) = answered {
            log::debug!("metrics: a scraper: {e}");
        }
        // Further bytes of the scraper are not read; it has the whole answer all the same.
        let _ = rustix::net::shutdown(&client, rustix::net::Shutdown::Write);
    }

    fn turn_away(&self, _: Socket) {}
}

/// A scraper's request.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Metrics { body: bool },
    Elsewhere,
    OtherMethod,
    Nonsense,
}

/// Reads to the end of the headers. A body, which a request for metrics does not have, is not read.
/// Empty lines before the request line are ignored (RFC 9112, 2.2), in whatever portions they
/// arrive.
fn head(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut from = from.take(MAX_HEAD as u64);
    let mut head = Vec::new();
    loop {
        let mut piece = [0; 1024];
        let read = from.read(&mut piece)?;
        // The end of the headers may have begun in the portion before.
        let looked_at = head.len().saturating_sub(3);
        let is_empty = head.is_empty();
        head.extend(piece[..read].iter().skip_while(|byte| is_empty && matches!(byte, b'\r' | b'\n')));
        if read == 0 || head[looked_at..].windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(head);
        }
    }
}

fn asked(head: &[u8]) -> Asked {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match (request.parse(head), request.method, request.path) {
        (Ok(httparse::Status::Complete(_)), Some(method), Some(path)) => {
            let path = path.split('?').next().unwrap_or_default();
            match (method, path) {
                ("GET" | "HEAD", "/metrics") => Asked::Metrics { body: method == "GET" },
                ("GET" | "HEAD", _) => Asked::Elsewhere,
                _ => Asked::OtherMethod,
            }
        }
        _ => Asked::Nonsense,
    }
}

fn answer(head: &[u8], metrics: impl FnOnce() -> String) -> Vec<u8> {
    let (status, more, body, send) = match asked(head) {
        Asked::Metrics { body } => ("200 OK", "", metrics(), body),
        Asked::Elsewhere => ("404 Not Found", "", "the metrics are at /metrics\n".into(), true),
        Asked::OtherMethod => {
            ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "GET /metrics\n".into(), true)
        }
        Asked::Nonsense => ("400 Bad Request", "", "not a request that is understood here\n".into(), true),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let len = body.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{more}Cache-Control: no-store\r\n\
         Connection: close\r\n\r\n"
    );
    if send {
        answer += &body;
    }
    answer.into_bytes()
}

/// Returns the answer to the bytes `said`, received in portions of `portion` bytes: for fuzzing.
///
/// # Errors
/// The source never fails, so no error is returned.
#[doc(hidden)]
pub fn answered(said: &[u8], portion: usize) -> io::Result<Vec<u8>> {
    struct Portions<'b>(&'b [u8], usize);
    impl Read for Portions<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = self.1.clamp(1, buffer.len());
            self.0.read(&mut buffer[..most])
        }
    }
    let head = head(&mut Portions(said, portion))?;
    assert!(head.len() < MAX_HEAD + 1024, "{} bytes of a head are kept", head.len());
    Ok(answer(&head, || "metric 1\n".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_metrics_are_there() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200 OK"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "405"),
            ("GET /metrics HTTP/1.1\r\n", "400"),
            ("\x16\x03\x01", "400"),
            ("", "400"),
        ] {
            let answer = String::from_utf8(answer(request.as_bytes(), || "m 1\n".into())).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{request:?}: {answer}");
            let sends = request.starts_with("GET /metrics") && expected == "200 OK";
            assert_eq!(answer.ends_with("\r\n\r\nm 1\n"), sends, "{answer}");
        }
    }

    #[test]
    fn a_head_without_an_end_is_cut_off() {
        let mut endless = io::repeat(b'x');
        let head = head(&mut endless).unwrap();
        assert!(head.len() <= MAX_HEAD + 1024);
        assert_eq!(asked(&head), Asked::Nonsense);
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(asked(many.as_bytes()), Asked::Nonsense);
    }
}
