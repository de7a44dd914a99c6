//! A stream of NBD requests, and the replies that a server could give to each.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underseal_nbd_protocol::{
    ERROR_HEADER_LEN, ERROR_OFFSET_HEADER_LEN, Errno, ExtentState, MAX_STRING, REQUEST_LEN, RequestHeader,
    RequestType, block_descriptor, block_status_header, error_chunk, error_offset_chunk, none_chunk,
    offset_data_header, offset_hole_chunk, simple_reply,
};

fuzz_target!(|input: &[u8]| {
    let mut stream = input;
    while let Some((header, rest)) = stream.split_first_chunk::<REQUEST_LEN>() {
        // With the magic in place, the other 24 bytes may be anything; without, it must be refused.
        let mut with_magic = *header;
        with_magic[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        assert_eq!(RequestHeader::parse(header).is_ok(), *header == with_magic);
        let request = RequestHeader::parse(&with_magic).unwrap();
        assert_eq!(request.encode(), with_magic);
        assert_eq!(
            request.payload_len() == request.length,
            request.command == RequestType::Write || request.length == 0
        );
        assert_eq!(request.end().is_none(), request.offset > u64::MAX - u64::from(request.length));
        reply(&request, rest);
        stream = rest.get(request.payload_len() as usize..).unwrap_or_default();
    }
});

/// Encodes every kind of reply that the request allows; none may panic or say a wrong length.
fn reply(request: &RequestHeader, payload: &[u8]) {
    let message = String::from_utf8_lossy(payload);
    let RequestHeader { cookie, offset, length, .. } = *request;
    let mut out = vec![0; 64 + payload.len() % 5000];
    simple_reply(&mut out, cookie, Some(Errno::Inval));
    none_chunk(&mut out, cookie);
    if (1..=u32::MAX - 8).contains(&length) {
        let header = offset_data_header(&mut out, cookie, false, offset, length);
        assert_eq!(chunk_len(&out), length as usize + 8);
        assert_eq!(header, 28);
        offset_hole_chunk(&mut out, cookie, true, offset, length);
    }
    if (1..=1 << 20).contains(&length) {
        block_status_header(&mut out, cookie, true, 1, length);
        assert_eq!(chunk_len(&out), 4 + 8 * length as usize);
        block_descriptor(&mut out, length, ExtentState::all());
    }
    for (written, fixed) in [
        (error_chunk(&mut out, cookie, true, Errno::Io, &message), ERROR_HEADER_LEN),
        (error_offset_chunk(&mut out, cookie, true, Errno::Io, offset, &message), ERROR_OFFSET_HEADER_LEN),
    ] {
        assert!(written >= fixed && written <= out.len() && written - fixed <= MAX_STRING);
    }
}

fn chunk_len(out: &[u8]) -> usize {
    u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize
}
