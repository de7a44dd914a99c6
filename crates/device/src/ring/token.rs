//! Tokens, which name the owner of a completion.

/// Names the owner of a completion.
///
/// A device on other devices may have several operations in flight for one request. Its lower
/// channels get separate slots, `slot << bits | part`, inside
/// [`Ring::nested`](super::Ring::nested); the token then gives each of them its number. Events of a
/// channel belong to no request: their token leads to the channel, with a number at each fork of
/// the path down.
///
/// ```text
///   63 62     54          37     32                 0
///   1  0      the number of an event
///   0  0      depth       bits   lowest channel's slot = queue's slot << bits | parts on the path
///   0  1      depth  |  forks on the path (28 bits)  |  the queue's channel (20)  |  event (6)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingToken(pub(super) u64);

impl RingToken {
    const EVENT: u64 = 1 << 63;
    const CHANNEL: u64 = 1 << 62;
    const DEPTH: u32 = 54;
    const BITS: u32 = 32;
    /// Positions in a channel's token: the path down, the queue's channel, and the event.
    const FORKS: u32 = 26;
    const OWNER: u32 = 6;
    const WHAT: u64 = 0x3f;

    /// A request to the lower device, by its slot.
    pub fn lower(slot: u32) -> Self {
        Self(u64::from(slot))
    }

    /// An event of a channel, by the channel's number for it (0 to 63).
    pub fn channel(what: u8) -> Self {
        Self(Self::CHANNEL | u64::from(what) & Self::WHAT)
    }

    /// An event on a descriptor that the ring watches, by the watcher's number.
    pub fn event(number: u32) -> Self {
        Self(u64::from(number) | Self::EVENT)
    }

    /// The event's number, for an event on a descriptor.
    pub fn as_event(self) -> Option<u32> {
        (self.0 & Self::EVENT != 0).then_some(self.low())
    }

    /// The slot, for a request to the lower device.
    pub fn as_lower(self) -> Option<u32> {
        let is_lower = self.0 & (Self::EVENT | Self::CHANNEL) == 0;
        is_lower.then(|| self.low() >> (self.0 >> Self::BITS & 0x1f))
    }

    /// The number of the queue's channel that this token wakes, as given to
    /// [`Ring::channel`](super::Ring::channel); `None` for other tokens.
    pub fn as_channel(self) -> Option<usize> {
        let channel = self.0 >> Self::OWNER & 0xf_ffff;
        (self.0 & Self::CHANNEL != 0).then_some(usize::try_from(channel).unwrap_or(usize::MAX))
    }

    /// The event of a channel.
    pub fn what(self) -> u8 {
        (self.0 & Self::WHAT) as u8
    }

    /// The token as a lower channel uses it that was started in
    /// [`Ring::nested`](super::Ring::nested) with as many `bits`; `None` when the operation belongs
    /// to the channel itself.
    pub fn below(self, bits: u32) -> Option<Self> {
        (self.depth() != 0).then(|| Self(self.0 - Self::nesting(bits)))
    }

    /// The number of the lower channel, of `of`, that is woken, and the token as that channel uses
    /// it; `None` when the event belongs to the channel itself.
    pub fn fork(self, of: usize) -> Option<(usize, Self)> {
        let bits = LowerToken::fork_bits(of);
        let forks = (self.0 & ((1 << Self::DEPTH) - 1)) >> Self::FORKS & ((1 << 28) - 1);
        let low = self.0 & ((1 << Self::FORKS) - 1);
        let head = (self.0 >> Self::DEPTH).checked_sub(1).filter(|_| self.depth() != 0)?;
        let number = usize::try_from(forks & ((1 << bits) - 1)).ok()?;
        Some((number, Self(head << Self::DEPTH | forks >> bits << Self::FORKS | low)))
    }

    fn depth(self) -> u64 {
        self.0 >> Self::DEPTH & 0xff
    }

    fn nesting(bits: u32) -> u64 {
        1 << Self::DEPTH | u64::from(bits) << Self::BITS
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is the number")]
    fn low(self) -> u32 {
        self.0 as u32
    }
}

/// A lower channel of a channel, as its tokens name it.
#[derive(Debug, Clone, Copy)]
pub struct LowerToken {
    bits: u32,
    number: usize,
    of: usize,
}

impl LowerToken {
    /// The only lower channel, whose slots are those of the channel above.
    pub const ONLY: Self = Self { bits: 0, number: 0, of: 1 };

    /// The `number`th of `of` lower channels, whose slots are `slot << bits | part`. The numbers on
    /// the path down to a channel with events have 28 bits together.
    pub fn new(bits: u32, number: usize, of: usize) -> Self {
        Self { bits, number, of }
    }

    fn fork_bits(of: usize) -> u32 {
        usize::BITS - of.saturating_sub(1).leading_zeros()
    }
}

/// The marks in tokens of the channel that is running.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    /// The marks of a request.
    slots: u64,
    /// The marks of an event, and the number of bits of forks in them.
    own: u64,
    forks: u32,
}

impl Marks {
    pub(super) fn of_channel(number: usize) -> Self {
        Self { own: (number as u64) << RingToken::OWNER, ..Self::default() }
    }

    pub(super) fn below(self, below: LowerToken) -> Self {
        let forks = self.forks + LowerToken::fork_bits(below.of);
        debug_assert!(RingToken::FORKS + forks <= RingToken::DEPTH, "the way down is too long for a token");
        let fork = (below.number as u64) << (RingToken::FORKS + self.forks);
        Self {
            slots: self.slots + RingToken::nesting(below.bits),
            own: self.own + (1 << RingToken::DEPTH) + fork,
            forks,
        }
    }

    pub(super) fn mark(self, token: RingToken) -> RingToken {
        let mark = if token.0 & RingToken::CHANNEL == 0 { self.slots } else { self.own };
        RingToken(token.0 | mark)
    }
}
