//! The loop of every thread that serves a volume: what is a rule for all doors is here, and what
//! differs is a [`Door`].
//!
//! ```text
//!   turn:  orders --> take, take, take, .. --> poll --> answer, answer, .. --> hand over --> over? --> sleep in the ring
//!             no more than a turn holds;         only if what follows           what is done, at the latest
//!             ready answers in between           does not end in a wait         when it is due
//!   sleep: [look, look, ..] --> in the ring
//!             while that pays: lookout
//! ```
//!
//! - Orders are looked for every turn, and a turn ends after so many requests, or with the one that
//!   brings it to so many bytes: a client that never rests keeps its own queue busy, and nothing
//!   else.
//! - What is answered is handed over when a turn ends, or as soon as it is due: it never waits for
//!   requests that come after.
//! - What was started is in the kernel's hands before the thread sleeps or goes round again.
//! - The thread sleeps in one place, its queue's ring, and only when nothing has happened since it
//!   last looked.
//! - Where requests have come soon, the thread looks for some time before it sleeps.
//! - A door ends when it says that it is over and its client has what it was owed.

mod lookout;

use std::hint::spin_loop;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use underseal_datapath::{Completion, Queue};

use self::lookout::Lookout;

/// What has come is handed to the lower device after so many bytes at the latest.
const HAND_OVER: usize = 128 << 10;

/// Half a microsecond or so.
const PAUSE: u32 = 32;

/// Requests of one turn.
const TURN: usize = 256;

/// What became of asking for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Took {
    /// One is under way or answered; so many bytes of it are to be with the lower device soon.
    Request(usize),
    /// What is answered goes out before more are asked for.
    Pause,
    /// There is none.
    Nothing,
    /// There is one and no room: requests in flight or answers have to go first.
    NoRoom,
}

/// What a thread that is about to sleep is to be woken by, besides its lower device and orders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wake {
    /// Requests.
    pub(crate) requests: bool,
    /// Room for the answers that the client did not take.
    pub(crate) room: bool,
}

/// A way in: one stream of requests, over one queue, on one thread.
pub(crate) trait Door {
    /// Why it ends before its time.
    type Error: From<io::Error>;

    /// [`look`](Self::look) sees requests. Otherwise they come through the ring only.
    const LOOKS: bool = false;

    /// Its queue.
    fn queue(&mut self) -> &mut Queue;

    /// Looks for orders: a turn begins.
    fn begin_turn(&mut self) -> Result<(), Self::Error>;

    /// Takes a request in, without waiting. One that finds no room stays where it is until the next
    /// time.
    fn take(&mut self) -> Result<Took, Self::Error>;

    /// Answers a request that is over.
    fn answer(&mut self, completion: Completion) -> Result<(), Self::Error>;

    /// Whether so much is answered that it goes out at once: where answers go out one by one,
    /// never.
    fn is_due(&self) -> bool {
        false
    }

    /// Whether something is to be handed over, or will be when work is done that waits for this
    /// thread.
    fn owes(&self) -> bool {
        false
    }

    /// Gives the client what is answered. False when it does not take all of it.
    fn hand_over(&mut self) -> Result<bool, Self::Error> {
        Ok(true)
    }

    /// Whether a request is there to [`take`](Self::take), at the least cost.
    fn look(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Sees to it that the ring wakes this thread. True when there is something to do already.
    fn listen(&mut self, wake: Wake) -> Result<bool, Self::Error>;

    /// Notes what the ring has seen for this door. True when there was something that is not for
    /// [`take`](Self::take).
    fn hear(&mut self) -> Result<bool, Self::Error>;

    /// Takes no more, and has answered what it took.
    fn is_over(&self) -> bool;
}

/// Why no more requests are taken for now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// It is time to see to other things; there may be more to take.
    More,
    Drained,
    Stalled,
}

/// Serves until the door is over.
///
/// # Errors
/// The door's own, and what the ring says.
pub(crate) fn serve<D: Door>(door: &mut D) -> Result<(), D::Error> {
    let mut lookouts = Lookouts::new(door.queue().busy_poll());
    loop {
        door.begin_turn()?;
        let pace = take_requests(door)?;
        // Where nothing is to be done first, the wait does this in the same call.
        if pace == Pace::More || door.owes() {
            door.queue().poll()?;
        }
        let all = answer_requests(door)?;
        let shown = door.hand_over()?;
        if shown && door.is_over() {
            return Ok(());
        }
        match pace {
            Pace::More => door.queue().woken(),
            // What nothing in flight and no answer can end was ended by the answers just given.
            Pace::Stalled if shown && door.queue().in_flight() == 0 => {}
            // The client has made room just now: then nothing would wake this thread for the
            // answers that are left.
            _ if shown && !all => {}
            _ => sleep(door, &mut lookouts, Wake { requests: pace == Pace::Drained, room: !shown })?,
        }
    }
}

fn take_requests<D: Door>(door: &mut D) -> Result<Pace, D::Error> {
    let mut bytes = 0;
    for _ in 0..TURN {
        bytes += match door.take()? {
            Took::Request(bytes) => bytes,
            Took::Pause => return Ok(Pace::More),
            Took::Nothing => return Ok(Pace::Drained),
            Took::NoRoom => return Ok(Pace::Stalled),
        };
        // Work that waits for this thread goes on waiting, so that the queue sees how much there
        // is.
        while let Some(completion) = door.queue().next_ready() {
            door.answer(completion)?;
        }
        if bytes >= HAND_OVER || door.is_due() {
            break;
        }
    }
    Ok(Pace::More)
}

/// The client gets its answers while the queue works on the rest. False when some is left, because
/// the client takes no more.
fn answer_requests<D: Door>(door: &mut D) -> Result<bool, D::Error> {
    while let Some(completion) = door.queue().next_completion() {
        door.answer(completion)?;
        if door.is_due() && !door.hand_over()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A thread's experience with its waits: for requests alone; for the lower device as well; and of
/// all other kinds, in which the thread never looks.
pub(crate) struct Lookouts([Lookout; 3]);

impl Lookouts {
    /// Looks for `limit` at most.
    pub(crate) fn new(limit: Duration) -> Self {
        let now = Instant::now();
        Self([limit, limit, Duration::ZERO].map(|limit| Lookout::new(limit, now)))
    }

    /// The experience with waits of this kind. A client that takes no answers is not looked for.
    fn of(&mut self, wake: Wake, below: bool) -> &mut Lookout {
        let kind = match below {
            true => 1,
            false if wake.requests && !wake.room => 0,
            false => 2,
        };
        &mut self.0[kind]
    }
}

/// Sleeps, unless something has changed what there is to do: while the thread was at work, or just
/// now.
pub(crate) fn sleep<D: Door>(door: &mut D, lookouts: &mut Lookouts, wake: Wake) -> Result<(), D::Error> {
    if door.hear()? {
        return come_back(door);
    }
    let below = door.queue().in_flight() > 0;
    let lookout = lookouts.of(wake, below);
    let looks = lookout.begins(Instant::now());
    // Before the client is asked to wake this thread, which costs it something.
    if looks && D::LOOKS && look(door, lookout, wake, below)? {
        return come_back(door);
    }
    if door.listen(wake)? {
        return come_back(door);
    }
    if looks && !D::LOOKS && look(door, lookout, wake, true)? {
        return come_back(door);
    }
    door.queue().wait()?;
    lookout.ends(Instant::now());
    door.hear().map(drop)
}

/// Ends a wait early, since there is something to do.
fn come_back<D: Door>(door: &mut D) -> Result<(), D::Error> {
    door.queue().woken();
    door.queue().poll()?;
    door.hear().map(drop)
}

/// Looks for requests, and for what the ring has. Whether there was something.
fn look<D: Door>(door: &mut D, lookout: &mut Lookout, wake: Wake, in_ring: bool) -> Result<bool, D::Error> {
    let for_requests = D::LOOKS && wake.requests;
    loop {
        if for_requests && door.look()? || in_ring && door.queue().look()? {
            lookout.ends(Instant::now());
            return Ok(true);
        }
        // A moment between two looks, so that the client finds free what both use.
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
