use super::*;

#[test]
fn operations_go_in_while_completions_are_taken_out_late() {
    let mut ring = Ring::with_completions(4, 100).unwrap();
    assert!(ring.ring.params().cq_entries() >= 100);
    for number in 0..200 {
        // SAFETY: the operation refers to no memory.
        unsafe { ring.push(&opcode::Nop::new().build().user_data(number)) }.unwrap();
        if number % 50 == 0 {
            assert!(ring.submit().is_ok() && ring.make_room(), "nothing is complete at {number}");
        }
    }
    let mut seen = Vec::new();
    while seen.len() < 200 {
        ring.wait().unwrap();
        seen.extend(std::iter::from_fn(|| ring.next_completion()).map(|c| c.token.0));
    }
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
}

#[test]
fn nested_tokens_tell_each_channel_its_slot() {
    let mut ring = Ring::new(4).unwrap();
    let (outer, inner) = (5u32, (5 << 4 | 3) << 2 | 1);
    let past = monotonic();
    let (first, then) = (LowerToken::new(4, 0, 1), LowerToken::new(2, 0, 1));
    ring.nested(first, |ring| ring.nested(then, |ring| ring.timeout(RingToken::lower(inner), past))).unwrap();
    ring.timeout(RingToken::lower(outer), past).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        ring.wait().unwrap();
        seen.extend(std::iter::from_fn(|| ring.next_completion()).map(|c| c.token));
    }
    seen.sort_by_key(|t| t.below(4).is_none());
    let second = seen[0].below(4).unwrap();
    let third = second.below(2).unwrap();
    let slots = [seen[0], second, third, seen[1]].map(|t| t.as_lower().unwrap());
    assert_eq!(slots, [outer, outer << 4 | 3, inner, outer]);
    assert_eq!((third, third.below(0)), (RingToken::lower(inner), None));
}

#[test]
fn tokens_of_its_own_find_each_channel() {
    let mut ring = Ring::new(4).unwrap();
    // A queue's fifth channel: a stripe of three, the last of which is a model of a stripe of two.
    let own = |what: u8| move |ring: &mut Ring| ring.post(RingToken::channel(what));
    ring.channel(4, |ring| {
        own(1)(ring);
        ring.nested(LowerToken::new(4, 2, 3), |ring| {
            own(2)(ring);
            ring.nested(LowerToken::ONLY, |ring| {
                own(3)(ring);
                ring.nested(LowerToken::new(4, 1, 2), own(63));
            });
            ring.post(RingToken::lower(7 << 4));
        });
    });
    own(5)(&mut ring);
    let mut tokens = std::iter::from_fn(|| ring.next_completion()).map(|c| c.token);
    let mut next = || tokens.next().unwrap();
    let first = next();
    assert_eq!((first.as_channel(), first.what(), first.fork(3)), (Some(4), 1, None));
    let (number, second) = next().fork(3).unwrap();
    assert_eq!((number, second.what(), second.fork(1)), (2, 2, None));
    let (number, third) = next().fork(3).unwrap().1.fork(1).unwrap();
    assert_eq!((number, third.what(), third.fork(2)), (0, 3, None));
    let (number, fourth) = next().fork(3).unwrap().1.fork(1).unwrap().1.fork(2).unwrap();
    assert_eq!((number, fourth.what(), fourth.fork(1)), (1, 63, None));
    assert_eq!((fourth.as_lower(), fourth.as_event(), fourth.as_channel()), (None, None, Some(4)));
    let request = next();
    assert_eq!((request.as_channel(), request.as_lower()), (None, Some(7)));
    assert_eq!((next().as_channel(), tokens.next()), (Some(0), None));
}

#[test]
fn timeouts_come_in_their_order_and_not_early() {
    let mut ring = Ring::new(4).unwrap();
    let start = monotonic();
    let deadline = |slot: u32| start + Duration::from_millis(u64::from(slot) * 3);
    // More timeouts than the ring takes at a time.
    (0..20).rev().for_each(|slot| ring.timeout(RingToken::lower(slot), deadline(slot)).unwrap());
    let mut seen = Vec::new();
    while seen.len() < 20 {
        ring.wait().unwrap();
        while let Some(completion) = ring.next_completion() {
            let slot = completion.token.as_lower().unwrap();
            assert!(monotonic() >= deadline(slot));
            assert_eq!(completion.result, -libc::ETIME);
            seen.push(slot);
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..20));
}

#[test]
fn a_ring_serves_a_channel_until_all_its_completions_are_taken() {
    let mut ring = Ring::new(4).unwrap();
    let wakeup = crate::Wakeup::new().unwrap();
    ring.watch(wakeup.as_fd(), crate::POLLIN, 1).unwrap();
    assert!(ring.serves_no_channel());
    ring.poll(wakeup.as_fd(), crate::POLLIN, RingToken::channel(2)).unwrap();
    ring.post(RingToken::channel(3));
    ring.timeout(RingToken::channel(4), monotonic()).unwrap();
    wakeup.ring();
    let mut taken = 0;
    while taken < 4 {
        assert!(!ring.serves_no_channel() || taken == 3);
        ring.wait().unwrap();
        taken += usize::from(ring.next_completion().is_some());
    }
    assert!(ring.serves_no_channel());
}
