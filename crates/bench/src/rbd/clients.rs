//! The measured processes, each with a separate image that it opens once.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::rc::Rc;
use std::time::Duration;

use super::drive::{DriveOrder, DriveSubject, OrderEnd};
use super::images::{self, Images};
use super::{BenchError, Did, Workload, workload};
use crate::nbd::missing;
use crate::place::this_program;

/// Underseal with the cipher, the reference of all comparisons.
pub(super) const OURS: &str = "underseal, 4 KiB sectors";
/// The same process and image without a cipher.
pub(super) const OURS_NULL: &str = "underseal, cipher_null";
pub(super) const LUKS2: &str = "librbd luks2";
pub(super) const PLAIN: &str = "librbd, no cipher";

/// A way through a process: some processes have two.
pub(super) struct RbdClient {
    pub(super) name: &'static str,
    process: Rc<RefCell<Process>>,
    ciphers: bool,
}

impl RbdClient {
    pub(super) fn run(&self, workload: Workload, runtime: Duration) -> Result<Did, BenchError> {
        let order =
            DriveOrder { workload, ciphers: self.ciphers, until: OrderEnd::Seconds(runtime.as_secs_f64()) };
        self.process.borrow_mut().ask(self.name, &order)
    }

    /// Writes every byte once, so that no read meets an unwritten object.
    fn fill(&self) -> Result<(), BenchError> {
        let order =
            DriveOrder { workload: workload(true, 1024, 8), ciphers: self.ciphers, until: OrderEnd::All };
        self.process.borrow_mut().ask(self.name, &order).map(drop)
    }
}

/// A process of this program that takes orders until its stdin ends.
pub(super) struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn start(driven: DriveSubject, images: &Images) -> Result<Self, BenchError> {
        let mut command = this_program()?;
        command.arg("drive-rbd").arg(driven.word()).args(["--size", &images.size.to_string()]);
        command.arg("--passphrase-file").arg(images.passphrase());
        if let Some(conf) = images.conf() {
            command.arg("--conf").arg(conf);
        }
        command.arg(match driven {
            DriveSubject::Ours => images.address(images::OURS),
            DriveSubject::Luks2 => images.path(images::LUKS2),
            DriveSubject::Plain => images.path(images::PLAIN),
        });
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| missing(&command, e))?;
        let no_pipe = || BenchError::new("a client has no pipe");
        let answers = BufReader::new(child.stdout.take().ok_or_else(no_pipe)?);
        Ok(Self { orders: Some(child.stdin.take().ok_or_else(no_pipe)?), child, answers })
    }

    /// The answer of the process to an order.
    pub(super) fn ask(&mut self, name: &str, order: &DriveOrder) -> Result<Did, BenchError> {
        let failed = |e: std::io::Error| BenchError::because(format!("{name} does not answer"), e);
        let text = serde_json::to_string(order).map_err(|e| failed(e.into()))? + "\n";
        let orders = self.orders.as_mut().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        orders.write_all(text.as_bytes()).map_err(failed)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(failed)?;
        serde_json::from_str(&answer).map_err(|e| failed(e.into()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process closes its image, which releases the image's lock.
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// Starts the clients, ours first, each over a full image.
pub(super) fn start(images: &Images) -> Result<Vec<RbdClient>, BenchError> {
    let process = |driven| Process::start(driven, images).map(|process| Rc::new(RefCell::new(process)));
    let ours = process(DriveSubject::Ours)?;
    let clients = vec![
        RbdClient { name: OURS, process: ours.clone(), ciphers: true },
        RbdClient { name: OURS_NULL, process: ours, ciphers: false },
        RbdClient { name: LUKS2, process: process(DriveSubject::Luks2)?, ciphers: true },
        RbdClient { name: PLAIN, process: process(DriveSubject::Plain)?, ciphers: false },
    ];
    // Two of the clients share an image.
    clients.iter().filter(|client| client.name != OURS_NULL).try_for_each(RbdClient::fill)?;
    Ok(clients)
}
