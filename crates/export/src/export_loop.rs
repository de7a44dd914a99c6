//! The loop of every thread that serves a volume: the rules common to all exports are here, and the
//! trait [`ExportLoop`] has the differences between exports.
//!
//! ```text
//!   turn:  orders --> take, take, .. --> poll --> answer, .. --> hand over --> over? --> sleep
//!             up to the turn's limit;    only if the turn          at a turn's end,   in the
//!             ready answers between      does not end in a wait    or when due        ring
//!   sleep: [look, look, ..] --> in the ring
//!             while that pays: lookout
//! ```
//!
//! - Orders are looked for every turn, and a turn ends after [`TURN`] requests, or with the request
//!   that reaches the limit of bytes: a client that sends without a pause keeps only its own queue
//!   busy.
//! - Answers are handed over at the end of a turn, or as soon as they are due: they never wait for
//!   later requests.
//! - Started I/O is in the kernel's hands before the thread sleeps or begins another turn.
//! - The thread sleeps in one place, its queue's ring, and only when nothing has happened since its
//!   last look. A mount's thread may sleep in `take`, too, where its queue has nothing in flight.
//! - Where waits have been short, the thread looks for some time before it sleeps.
//! - The loop ends when the export is over and its client has all answers.

mod lookout;

use std::hint::spin_loop;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use underseal_datapath::{Completion, Queue};

use self::lookout::Lookout;

/// Requests are handed to the lower device after this number of bytes at the latest.
const HAND_OVER: usize = 128 << 10;

/// The number of spin hints between two looks: about half a microsecond.
const PAUSE: u32 = 32;

/// The most requests of one turn.
const TURN: usize = 256;

/// The result of [`ExportLoop::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Took {
    /// A request is in flight or answered; this number of its bytes counts towards [`HAND_OVER`].
    Request(usize),
    /// Pending answers are sent before more requests are taken.
    Pause,
    /// No request has arrived.
    Nothing,
    /// A request has arrived and finds no room: requests in flight or answers have to complete
    /// first.
    NoRoom,
}

/// The events that wake a sleeping thread, in addition to its lower device and orders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wake {
    /// New requests.
    pub(crate) requests: bool,
    /// Room for answers that the client has not accepted yet.
    pub(crate) room: bool,
}

/// An export's stream of requests, over one queue, on one thread.
pub(crate) trait ExportLoop {
    /// The error that ends the loop early.
    type Error: From<io::Error>;

    /// True when [`look`](Self::look) sees requests. Otherwise requests come through the ring only.
    const LOOKS: bool = false;

    /// Returns the queue.
    fn queue(&mut self) -> &mut Queue;

    /// Looks for orders at the beginning of a turn.
    fn begin_turn(&mut self) -> Result<(), Self::Error>;

    /// Takes a request in, without waiting. A request that finds no room is kept until the next
    /// call.
    fn take(&mut self) -> Result<Took, Self::Error>;

    /// Answers a completed request.
    fn answer(&mut self, completion: Completion) -> Result<(), Self::Error>;

    /// Returns true when the pending answers are to be sent at once. An export that sends each
    /// answer by itself returns false.
    fn is_due(&self) -> bool {
        false
    }

    /// Returns true when answers are pending, or will be when crypto work that waits for this
    /// thread is done.
    fn owes(&self) -> bool {
        false
    }

    /// Sends the pending answers. Returns false when the client does not accept all of them.
    fn hand_over(&mut self) -> Result<bool, Self::Error> {
        Ok(true)
    }

    /// Returns true when a request has arrived for [`take`](Self::take), at the least cost.
    fn look(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Registers the events with the ring. Returns true when one of them has happened already.
    fn listen(&mut self, wake: Wake) -> Result<bool, Self::Error>;

    /// Handles the ring's events for this export. Returns true when one of them concerns more than
    /// [`take`](Self::take).
    fn hear(&mut self) -> Result<bool, Self::Error>;

    /// Returns true when no more requests are taken: the answers to all requests in flight are then
    /// kept for a client that does not accept them.
    fn is_closing(&self) -> bool {
        false
    }

    /// Returns true when no more requests are taken, and all those taken are answered.
    fn is_over(&self) -> bool;
}

/// Why a turn stopped taking requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// The turn has reached a limit; more requests may have arrived.
    More,
    Drained,
    Stalled,
}

/// Serves until the export is over.
pub(crate) fn serve<D: ExportLoop>(export_loop: &mut D) -> Result<(), D::Error> {
    let mut lookouts = Lookouts::new(export_loop.queue().busy_poll());
    loop {
        export_loop.begin_turn()?;
        let pace = take_requests(export_loop)?;
        // Unless work has to be done first, the wait submits in the same system call.
        if pace == Pace::More || export_loop.owes() {
            export_loop.queue().poll()?;
        }
        let all = answer_requests(export_loop)?;
        let shown = export_loop.hand_over()?;
        if shown && export_loop.is_over() {
            return Ok(());
        }
        match pace {
            Pace::More => export_loop.queue().woken(),
            // No request is in flight, so the answers just given have made room for the next
            // request.
            Pace::Stalled if shown && export_loop.queue().in_flight() == 0 => {}
            // The client has just made room: no event would wake this thread for the answers that
            // are left.
            _ if shown && !all => {}
            _ => sleep(export_loop, &mut lookouts, Wake { requests: pace == Pace::Drained, room: !shown })?,
        }
    }
}

fn take_requests<D: ExportLoop>(export_loop: &mut D) -> Result<Pace, D::Error> {
    let mut bytes = 0;
    for _ in 0..TURN {
        bytes += match export_loop.take()? {
            Took::Request(bytes) => bytes,
            Took::Pause => return Ok(Pace::More),
            Took::Nothing => return Ok(Pace::Drained),
            Took::NoRoom => return Ok(Pace::Stalled),
        };
        // Work that waits for this thread is not done yet, so that the queue sees the whole
        // backlog.
        while let Some(completion) = export_loop.queue().next_ready() {
            export_loop.answer(completion)?;
        }
        if bytes >= HAND_OVER || export_loop.is_due() {
            break;
        }
    }
    Ok(Pace::More)
}

/// Sends the client its answers while the queue works on. Returns false when answers are left
/// because the client accepts no more.
fn answer_requests<D: ExportLoop>(export_loop: &mut D) -> Result<bool, D::Error> {
    while let Some(completion) = export_loop.queue().next_completion() {
        export_loop.answer(completion)?;
        if export_loop.is_due() && !export_loop.hand_over()? && !export_loop.is_closing() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A thread's lookouts, one for each kind of wait: for requests alone; for requests and the lower
/// device; and for all other events, for which the thread never looks.
pub(crate) struct Lookouts([Lookout; 3]);

impl Lookouts {
    /// Lookouts that look for `limit` at most.
    pub(crate) fn new(limit: Duration) -> Self {
        let now = Instant::now();
        Self([limit, limit, Duration::ZERO].map(|limit| Lookout::new(limit, now)))
    }

    /// Returns the lookout for this kind of wait. A thread does not look when its client accepts no
    /// answers.
    fn of(&mut self, wake: Wake, below: bool) -> &mut Lookout {
        let kind = match below {
            true => 1,
            false if wake.requests && !wake.room => 0,
            false => 2,
        };
        &mut self.0[kind]
    }
}

/// Sleeps, unless an event has arrived during the turn or just now.
pub(crate) fn sleep<D: ExportLoop>(
    export_loop: &mut D,
    lookouts: &mut Lookouts,
    wake: Wake,
) -> Result<(), D::Error> {
    if export_loop.hear()? {
        return come_back(export_loop);
    }
    let below = export_loop.queue().in_flight() > 0;
    let lookout = lookouts.of(wake, below);
    let looks = lookout.begins(Instant::now());
    // Looks first: registering for a wakeup costs the client time.
    if looks && D::LOOKS && look(export_loop, lookout, wake, below)? {
        return come_back(export_loop);
    }
    if export_loop.listen(wake)? {
        return come_back(export_loop);
    }
    if looks && !D::LOOKS && look(export_loop, lookout, wake, true)? {
        return come_back(export_loop);
    }
    export_loop.queue().wait()?;
    lookout.ends(Instant::now());
    export_loop.hear().map(drop)
}

/// Ends a wait early.
fn come_back<D: ExportLoop>(export_loop: &mut D) -> Result<(), D::Error> {
    export_loop.queue().woken();
    export_loop.queue().poll()?;
    export_loop.hear().map(drop)
}

/// Looks for requests, and for events in the ring. Returns true when one has arrived.
fn look<D: ExportLoop>(
    export_loop: &mut D,
    lookout: &mut Lookout,
    wake: Wake,
    in_ring: bool,
) -> Result<bool, D::Error> {
    let for_requests = D::LOOKS && wake.requests;
    loop {
        if for_requests && export_loop.look()? || in_ring && export_loop.queue().look()? {
            lookout.ends(Instant::now());
            return Ok(true);
        }
        // A pause between two looks leaves the shared cache lines to the client.
        (0..PAUSE).for_each(|_| spin_loop());
        if !lookout.goes_on(Instant::now()) {
            return Ok(false);
        }
    }
}

/// Puts a descriptor into the ring, unless it is there.
pub(crate) fn watch(
    queue: &mut Queue,
    fd: BorrowedFd<'_>,
    events: i16,
    number: u32,
    watching: &mut bool,
) -> io::Result<()> {
    if !*watching {
        queue.watch(fd, events, number)?;
        *watching = true;
    }
    Ok(())
}
