//! Tokens: whose completion is it?

/// Tells whose completion it is.
///
/// A device that stands on others may have several operations in flight for one request. Its lower
/// channels see slots of their own, `slot << bits | part`, inside
/// [`Ring::nested`](super::Ring::nested); the token then tells each of them its own number. What a
/// channel waits for by itself belongs to no request: its token leads to the channel, as a number
/// at each fork of the way down.
///
/// ```text
///   63 62     54          37     32                 0
///   1  0      the number of an event
///   0  0      depth       bits   slot of the lowest channel = slot of the queue << bits | parts on the way down
///   0  1      depth  |  forks of the way (28 bits)  |  the queue's channel (20)  |  what it waits for (6)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingToken(pub(super) u64);

impl RingToken {
    const EVENT: u64 = 1 << 63;
    const CHANNEL: u64 = 1 << 62;
    const DEPTH: u32 = 54;
    const BITS: u32 = 32;
    /// Of a channel's token: where the way down begins, the queue's channel, and what that waits
    /// for.
    const FORKS: u32 = 26;
    const OWNER: u32 = 6;
    const WHAT: u64 = 0x3f;

    /// A request to the lower device, by its slot.
    pub fn lower(slot: u32) -> Self {
        Self(u64::from(slot))
    }

    /// Something that a channel waits for by itself, by the channel's own number for it (0 to 63).
    pub fn channel(what: u8) -> Self {
        Self(Self::CHANNEL | u64::from(what) & Self::WHAT)
    }

    /// An event on a descriptor that the ring watches, by the watcher's own number.
    pub fn event(number: u32) -> Self {
        Self(u64::from(number) | Self::EVENT)
    }

    /// The event's number, if it is one.
    pub fn as_event(self) -> Option<u32> {
        (self.0 & Self::EVENT != 0).then_some(self.low())
    }

    /// The slot, if it is a request to the lower device.
    pub fn as_lower(self) -> Option<u32> {
        let is_lower = self.0 & (Self::EVENT | Self::CHANNEL) == 0;
        is_lower.then(|| self.low() >> (self.0 >> Self::BITS & 0x1f))
    }

    /// The number of the queue's channel that this wakes, as given to
    /// [`Ring::channel`](super::Ring::channel); none for tokens that wake no channel.
    pub fn as_channel(self) -> Option<usize> {
        let channel = self.0 >> Self::OWNER & 0xf_ffff;
        (self.0 & Self::CHANNEL != 0).then_some(usize::try_from(channel).unwrap_or(usize::MAX))
    }

    /// What a channel has waited for.
    pub fn what(self) -> u8 {
        (self.0 & Self::WHAT) as u8
    }

    /// The token as a lower channel knows it that was started in
    /// [`Ring::nested`](super::Ring::nested) with as many `bits`; `None` when the operation is the
    /// channel's own.
    pub fn below(self, bits: u32) -> Option<Self> {
        (self.depth() != 0).then(|| Self(self.0 - Self::nesting(bits)))
    }

    /// Which of `of` lower channels is woken, and the token as that one knows it; `None` when it is
    /// the channel itself.
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

/// One of a channel's lower channels, as a token finds it again.
#[derive(Debug, Clone, Copy)]
pub struct LowerToken {
    bits: u32,
    number: usize,
    of: usize,
}

impl LowerToken {
    /// The only one, whose slots are those of the channel above.
    pub const ONLY: Self = Self { bits: 0, number: 0, of: 1 };

    /// The `number`th of so many, whose slots are `slot << bits | part`. The numbers on the way
    /// down to a channel that waits for something by itself have 28 bits together.
    pub fn new(bits: u32, number: usize, of: usize) -> Self {
        Self { bits, number, of }
    }

    fn fork_bits(of: usize) -> u32 {
        usize::BITS - of.saturating_sub(1).leading_zeros()
    }
}

/// What the tokens of the channel that is running are marked with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    /// A request's.
    slots: u64,
    /// The channel's own, and how many bits of forks are in it.
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
