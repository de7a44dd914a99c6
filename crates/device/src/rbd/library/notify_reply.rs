//! The reply of a notification that librados sent to all clients of an object.

/// The numbers of the clients in the reply to a notification. The reply has their number; for each
/// the client's number, its watch's, the length of its answer, and the answer. Clients without an
/// answer follow.
pub(super) fn clients_that_answered(mut reply: &[u8]) -> Vec<u64> {
    fn take<'r, const N: usize>(reply: &mut &'r [u8]) -> Option<&'r [u8; N]> {
        let (taken, rest) = reply.split_first_chunk()?;
        *reply = rest;
        Some(taken)
    }
    let count = take(&mut reply).map_or(0, |count| u32::from_le_bytes(*count));
    let mut next = || {
        let client = u64::from_le_bytes(*take(&mut reply)?);
        take::<8>(&mut reply)?;
        let len = usize::try_from(u32::from_le_bytes(*take(&mut reply)?)).ok()?;
        reply = reply.get(len..)?;
        Some(client)
    };
    (0..count).map_while(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_cut_short_names_whom_it_names() {
        let mut reply = 2_u32.to_le_bytes().to_vec();
        for (client, answer) in [(4121_u64, &b""[..]), (4133, b"words")] {
            reply.extend(client.to_le_bytes());
            reply.extend(7_u64.to_le_bytes());
            reply.extend(u32::try_from(answer.len()).unwrap().to_le_bytes());
            reply.extend(answer);
        }
        // A client without an answer.
        let whole = reply.len();
        reply.extend([1, 0, 0, 0].into_iter().chain([9; 16]));
        assert_eq!(clients_that_answered(&reply), [4121, 4133]);
        for len in 0..whole {
            assert!(
                [4121, 4133].starts_with(&clients_that_answered(&reply[..len]))
                    && clients_that_answered(&reply[..len]).len() < 2
            );
        }
        assert_eq!(clients_that_answered(&[0xff; 24]), []);
    }
}
