//! The handshake without a socket: the client's bytes are one byte string, the server's another.

use std::{
    cell::Cell,
    io::{self, Cursor, Read, Write},
};

use underseal_export::{
    ErrorKind,
    nbd::{
        Admission, Handshake, Negotiated, Refusal, Step, TlsUse,
        protocol::{OPTION_MAGIC, TransmissionFlags, info, option, option_reply as reply},
    },
};

use crate::{
    client::{Client, FLAGS, Reply, contexts, go, message},
    fixture::{DISK, exports},
};

/// A stream whose reading side is fixed.
struct Script {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Admits the client, or refuses it.
#[derive(Default)]
struct Gate {
    refusal: Option<Refusal>,
    admitted: Cell<usize>,
}

impl Admission for Gate {
    fn heard(&self) {}

    fn admit(&self) -> Result<(), Refusal> {
        self.admitted.set(self.admitted.get() + 1);
        self.refusal.map_or(Ok(()), Err)
    }

    fn stopping(&self) -> bool {
        self.refusal == Some(Refusal::Stopping)
    }
}

/// The result of a negotiation, and the bytes that the client received after the greeting.
struct Outcome {
    step: underseal_export::Result<Step>,
    heard: Vec<u8>,
    unread: usize,
}

impl Outcome {
    fn of(tls: TlsUse, gate: &Gate, flags: u32, said: &[u8]) -> Self {
        let input = [&flags.to_be_bytes()[..], said].concat();
        let mut io = Script { input: Cursor::new(input), output: Vec::new() };
        let exports = exports();
        let mut handshake = Handshake::new(&exports, tls, gate);
        let mut step = handshake.run(&mut io);
        // TLS itself is tested elsewhere: here the bytes after STARTTLS are plain.
        while let Ok(Step::StartTls) = step {
            step = handshake.run(&mut io);
        }
        let unread = io.input.get_ref().len() - usize::try_from(io.input.position()).unwrap();
        Self { step, heard: io.output.split_off(18), unread }
    }

    fn plain(said: &[Vec<u8>]) -> Self {
        Self::of(TlsUse::Off, &Gate::default(), FLAGS, &said.concat())
    }

    fn replies(&self) -> Vec<Reply> {
        let mut client = Client(Cursor::new(self.heard.clone()));
        let mut replies = Vec::new();
        while usize::try_from(client.0.position()).unwrap() < self.heard.len() {
            replies.push(client.reply().unwrap());
        }
        replies
    }

    /// The types of all replies.
    fn kinds(&self) -> Vec<u32> {
        self.replies().iter().map(|reply| reply.kind).collect()
    }

    fn ready(&self) -> &Negotiated {
        match &self.step {
            Ok(Step::Ready(negotiated)) => negotiated,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn go_tells_size_flags_and_block_sizes_and_starts() {
    let asked = go("disk", &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 999]);
    let outcome = Outcome::plain(&[message(option::GO, &asked), b"the first request".to_vec()]);
    let replies = outcome.replies();
    let infos: Vec<&[u8]> = replies[..replies.len() - 1].iter().map(|reply| &reply.data[..]).collect();
    let flags =
        TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH | TransmissionFlags::CAN_MULTI_CONN;
    let export = [&[0, 0][..], &(DISK as u64).to_be_bytes(), &flags.bits().to_be_bytes()].concat();
    let blocks = [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0];
    assert_eq!(infos, [&export[..], &blocks, b"\0\x01disk", b"\0\x02a disk in memory"]);
    assert_eq!(replies.last().unwrap().kind, reply::ACK);
    let negotiated = outcome.ready();
    assert_eq!((negotiated.export, negotiated.flags, negotiated.block_sizes), (0, flags, true));
    assert!(!negotiated.structured_replies && negotiated.base_allocation.is_none() && !negotiated.tls);
    assert_eq!(outcome.unread, b"the first request".len(), "nothing is read beyond the last option");
}

#[test]
fn export_name_sends_the_export_with_zeroes_unless_they_are_declined() {
    for (flags, length) in [(FLAGS, 10), (1, 134), (0, 134), (2, 10)] {
        let outcome =
            Outcome::of(TlsUse::Off, &Gate::default(), flags, &message(option::EXPORT_NAME, b"disk"));
        assert_eq!(outcome.heard.len(), length);
        assert_eq!(outcome.heard[..8], (DISK as u64).to_be_bytes());
        assert!(outcome.heard[10..].iter().all(|&byte| byte == 0));
        assert_eq!(outcome.ready().export, 0);
    }
}

#[test]
fn empty_name_chooses_the_first_export() {
    for said in [message(option::GO, &go("", &[])), message(option::EXPORT_NAME, b"")] {
        assert_eq!(Outcome::plain(&[said]).ready().export, 0);
    }
}

#[test]
fn list_names_every_export_with_its_description() {
    let outcome = Outcome::plain(&[message(option::LIST, b""), message(option::ABORT, b"ignored")]);
    let replies = outcome.replies();
    assert_eq!(replies[0].data, b"\0\0\0\x04diska disk in memory");
    assert_eq!(replies[1].data, b"\0\0\0\x0bbig-sectors");
    assert_eq!(outcome.kinds(), [reply::SERVER, reply::SERVER, reply::ACK, reply::ACK]);
    assert_eq!(outcome.step.unwrap(), Step::Left);
}

#[test]
fn structured_replies_bring_df_and_contexts() {
    let structured = || message(option::STRUCTURED_REPLY, b"");
    let set = |name: &str, queries: &[&str]| message(option::SET_META_CONTEXT, &contexts(name, queries));
    let start = || message(option::GO, &go("disk", &[]));
    let chosen = |said: &[Vec<u8>]| Outcome::plain(said).ready().base_allocation.is_some();
    let wanted = ["qemu:dirty-bitmap:b", "base:allocation"];

    let outcome = Outcome::plain(&[structured(), set("disk", &wanted), start()]);
    let negotiated = outcome.ready();
    assert!(negotiated.structured_replies && negotiated.flags.contains(TransmissionFlags::SEND_DF));
    let context = outcome.replies().into_iter().find(|reply| reply.kind == reply::META_CONTEXT).unwrap();
    assert_eq!(context.data[..4], negotiated.base_allocation.unwrap().to_be_bytes());
    assert_eq!(&context.data[4..], b"base:allocation");

    // The default export and its name are one export.
    assert!(chosen(&[structured(), set("", &wanted), start()]));
    // Not counted are a wildcard, another export, and an earlier choice that was replaced, even by
    // a failure.
    assert!(!chosen(&[structured(), set("disk", &["base:"]), start()]));
    assert!(!chosen(&[structured(), set("big-sectors", &wanted), start()]));
    assert!(!chosen(&[structured(), set("disk", &wanted), set("disk", &[]), start()]));
    assert!(!chosen(&[structured(), set("disk", &wanted), set("nothing", &wanted), start()]));
    // A context asked for many times is one context.
    assert_eq!(
        Outcome::plain(&[structured(), set("disk", &["base:allocation"; 100])]).kinds(),
        [reply::ACK, reply::META_CONTEXT, reply::ACK]
    );
}

#[test]
fn contexts_are_listed_by_name_by_wildcard_and_all() {
    let table: [(&[&str], bool); 5] = [
        (&[], true),
        (&["base:"], true),
        (&["x-other:thing", "base:allocation"], true),
        (&["x-other:"], false),
        (&["base:allocatio"], false),
    ];
    for (queries, found) in table {
        let outcome = Outcome::plain(&[
            message(option::STRUCTURED_REPLY, b""),
            message(option::LIST_META_CONTEXT, &contexts("disk", queries)),
        ]);
        assert_eq!(outcome.kinds()[1..].contains(&reply::META_CONTEXT), found, "{queries:?}");
    }
}

#[test]
fn export_with_big_blocks_is_only_for_clients_that_ask_for_them() {
    let refused = Outcome::plain(&[message(option::GO, &go("big-sectors", &[info::NAME]))]);
    assert_eq!(*refused.kinds().last().unwrap(), reply::ERR_BLOCK_SIZE_REQD);
    let told = refused.replies().into_iter().find(|reply| reply.data.starts_with(&[0, 3])).unwrap();
    assert_eq!(told.data[2..6], 4096_u32.to_be_bytes(), "the sizes come before the refusal");
    // INFO does not require block sizes.
    let looked = Outcome::plain(&[message(option::INFO, &go("big-sectors", &[]))]);
    assert_eq!(*looked.kinds().last().unwrap(), reply::ACK);
    assert!(
        Outcome::plain(&[message(option::GO, &go("big-sectors", &[info::BLOCK_SIZE]))]).ready().block_sizes
    );
    let closed = Outcome::plain(&[message(option::EXPORT_NAME, b"big-sectors")]);
    assert!(closed.heard.is_empty());
    assert_eq!(closed.step.unwrap_err().kind(), ErrorKind::Protocol);
}

/// Options that get an error and leave the connection in step.
#[test]
fn bad_options_are_refused_in_words_and_the_client_may_go_on() {
    let go_with = |name_length: u32, rest: &[u8]| [&name_length.to_be_bytes()[..], rest].concat();
    let long = "n".repeat(4097);
    let structured = message(option::STRUCTURED_REPLY, b"");
    let table: Vec<(&str, Vec<u8>, u32)> = vec![
        ("unknown option", message(0x7777, b"data"), reply::ERR_UNSUP),
        ("withdrawn PEEK_EXPORT", message(4, b""), reply::ERR_UNSUP),
        ("extended headers", message(11, b""), reply::ERR_UNSUP),
        ("LIST with data", message(option::LIST, b"x"), reply::ERR_INVALID),
        ("STRUCTURED_REPLY with data", message(option::STRUCTURED_REPLY, b"x"), reply::ERR_INVALID),
        ("STARTTLS without certificates", message(option::STARTTLS, b""), reply::ERR_POLICY),
        ("STARTTLS with data", message(option::STARTTLS, b"x"), reply::ERR_INVALID),
        ("GO without data", message(option::GO, b""), reply::ERR_INVALID),
        ("GO for what is not there", message(option::GO, &go("other", &[])), reply::ERR_UNKNOWN),
        (
            "GO for a name that is no UTF-8",
            message(option::GO, &go_with(2, b"\xff\xfe\0\0")),
            reply::ERR_UNKNOWN,
        ),
        ("GO with a name beyond the data", message(option::GO, &go_with(5, b"disk\0\0")), reply::ERR_INVALID),
        (
            "GO with an absurd name length",
            message(option::GO, &go_with(u32::MAX, b"disk\0\0")),
            reply::ERR_INVALID,
        ),
        ("GO without a count", message(option::GO, &go_with(4, b"disk\0")), reply::ERR_INVALID),
        (
            "GO with too few requests",
            message(option::GO, &go_with(4, b"disk\0\x02\0\x03")),
            reply::ERR_INVALID,
        ),
        ("GO with data left over", message(option::GO, &go_with(4, b"disk\0\0x")), reply::ERR_INVALID),
        ("GO with a long name", message(option::GO, &go(&long, &[])), reply::ERR_TOO_BIG),
        ("INFO with a long name", message(option::INFO, &go(&long, &[])), reply::ERR_TOO_BIG),
        ("data over the limit", message(option::GO, &vec![0; (64 << 10) + 1]), reply::ERR_TOO_BIG),
        ("unknown option, data over the limit", message(99, &vec![0; 1 << 20]), reply::ERR_TOO_BIG),
        (
            "contexts before structured replies",
            message(option::SET_META_CONTEXT, &contexts("disk", &["base:allocation"])),
            reply::ERR_INVALID,
        ),
        (
            "contexts of what is not there",
            [&structured[..], &message(option::SET_META_CONTEXT, &contexts("other", &[]))].concat(),
            reply::ERR_UNKNOWN,
        ),
        (
            "more queries than data",
            [&structured[..], &message(option::LIST_META_CONTEXT, b"\0\0\0\x04disk\xff\xff\xff\xff")]
                .concat(),
            reply::ERR_INVALID,
        ),
        (
            "a query longer than the data",
            [
                &structured[..],
                &message(option::LIST_META_CONTEXT, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x09base:"),
            ]
            .concat(),
            reply::ERR_INVALID,
        ),
        (
            "queries with data left over",
            [&structured[..], &message(option::LIST_META_CONTEXT, b"\0\0\0\x04disk\0\0\0\0x")].concat(),
            reply::ERR_INVALID,
        ),
        (
            "a long query",
            [&structured[..], &message(option::LIST_META_CONTEXT, &contexts("disk", &[&long]))].concat(),
            reply::ERR_TOO_BIG,
        ),
    ];
    for (what, said, error) in table {
        let outcome = Outcome::plain(&[said, message(option::GO, &go("disk", &[]))]);
        assert!(outcome.kinds().contains(&error), "{what}: {:x?}", outcome.kinds());
        assert_eq!(outcome.ready().export, 0, "{what}");
        let text = outcome.replies().into_iter().find(|reply| reply.kind == error).unwrap().data;
        assert!(!text.is_empty() && String::from_utf8(text).is_ok(), "{what}: an error says why");
    }
}

/// Options that cannot be answered end the connection, with a reason for the log.
#[test]
fn broken_streams_end_the_connection() {
    let header = |magic: u64, option: u32, length: u32| {
        [&magic.to_be_bytes()[..], &option.to_be_bytes(), &length.to_be_bytes()].concat()
    };
    let table: Vec<(&str, u32, Vec<u8>, ErrorKind, &str)> = vec![
        ("unknown client flags", 0x8000_0003, vec![], ErrorKind::Protocol, "0x80000003"),
        ("wrong magic", FLAGS, header(0x1234, option::LIST, 0), ErrorKind::Protocol, "0x0000000000001234"),
        ("zeroes", FLAGS, vec![0; 100], ErrorKind::Protocol, "begins with"),
        (
            "absurd length",
            FLAGS,
            header(OPTION_MAGIC, option::GO, u32::MAX),
            ErrorKind::Protocol,
            "4294967295",
        ),
        ("absurd name", FLAGS, message(option::EXPORT_NAME, &[b'x'; 4097]), ErrorKind::Protocol, "4097"),
        ("unknown name", FLAGS, message(option::EXPORT_NAME, b"a\nb"), ErrorKind::Protocol, "\"a\\nb\""),
        ("options from an old client", 0, message(option::LIST, b""), ErrorKind::Protocol, "fixed newstyle"),
        ("too many options", FLAGS, message(99, b"").repeat(257), ErrorKind::Protocol, "256"),
        ("half a header", FLAGS, vec![0x49; 7], ErrorKind::Io, "went away"),
        ("half the data", FLAGS, header(OPTION_MAGIC, option::GO, 100), ErrorKind::Io, "went away"),
        ("half of what is skipped", FLAGS, header(OPTION_MAGIC, 99, 70_000), ErrorKind::Io, "went away"),
        ("half a name", FLAGS, header(OPTION_MAGIC, option::EXPORT_NAME, 4), ErrorKind::Io, "went away"),
    ];
    for (what, flags, said, kind, why) in table {
        let outcome = Outcome::of(TlsUse::Off, &Gate::default(), flags, &said);
        let error = outcome.step.unwrap_err();
        assert_eq!(error.kind(), kind, "{what}");
        assert!(error.to_string().contains(why), "{what}: {error}");
    }
}

#[test]
fn leaving_between_options_is_no_error() {
    for said in [vec![], message(option::STRUCTURED_REPLY, b"")] {
        assert_eq!(Outcome::plain(&[said]).step.unwrap(), Step::Left);
    }
}

#[test]
fn required_tls_comes_before_everything_else() {
    let required = |said: &[Vec<u8>]| Outcome::of(TlsUse::Required, &Gate::default(), FLAGS, &said.concat());
    for option in
        [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, option::SET_META_CONTEXT, 99]
    {
        assert_eq!(required(&[message(option, &go("disk", &[]))]).kinds(), [reply::ERR_TLS_REQD]);
    }
    assert_eq!(required(&[message(option::ABORT, b"")]).kinds(), [reply::ACK]);
    let error = required(&[message(option::EXPORT_NAME, b"disk")]).step.unwrap_err();
    assert!(error.to_string().contains("STARTTLS"), "{error}");
    assert!(required(&[message(option::STARTTLS, b""), message(option::GO, &go("disk", &[]))]).ready().tls);
}

#[test]
fn starttls_forgets_what_was_agreed_and_works_once() {
    let offered = |said: &[Vec<u8>]| Outcome::of(TlsUse::Offered, &Gate::default(), FLAGS, &said.concat());
    let (starttls, start) = (|| message(option::STARTTLS, b""), || message(option::GO, &go("disk", &[])));
    let outcome = offered(&[
        message(option::STRUCTURED_REPLY, b""),
        message(option::SET_META_CONTEXT, &contexts("disk", &["base:allocation"])),
        starttls(),
        start(),
    ]);
    let negotiated = outcome.ready();
    assert!(negotiated.tls && !negotiated.structured_replies && negotiated.base_allocation.is_none());
    assert!(!negotiated.flags.contains(TransmissionFlags::SEND_DF));

    assert_eq!(offered(&[starttls(), starttls()]).kinds(), [reply::ACK, reply::ERR_INVALID]);
    assert!(!offered(&[start()]).ready().tls, "TLS that is offered is the client's choice");
}

#[test]
fn refused_client_is_told_why() {
    let table =
        [(Refusal::Full(64), reply::ERR_POLICY, "64"), (Refusal::Stopping, reply::ERR_SHUTDOWN, "stopping")];
    for (refusal, kind, why) in table {
        let gate = Gate { refusal: Some(refusal), ..Gate::default() };
        let outcome = Outcome::of(TlsUse::Off, &gate, FLAGS, &message(option::GO, &go("disk", &[])));
        let last = outcome.replies().pop().unwrap();
        assert_eq!(last.kind, kind);
        assert!(String::from_utf8(last.data).unwrap().contains(why));
        let outcome = Outcome::of(TlsUse::Off, &gate, FLAGS, &message(option::EXPORT_NAME, b"disk"));
        assert!(outcome.heard.is_empty());
        assert!(outcome.step.unwrap_err().to_string().contains(why));
    }
}

#[test]
fn place_is_taken_only_by_a_client_that_starts() {
    let gate = Gate::default();
    let said = [
        message(option::INFO, &go("disk", &[])),
        message(option::GO, &go("other", &[])),
        message(option::GO, &go("big-sectors", &[])),
        message(option::LIST, b""),
    ];
    Outcome::of(TlsUse::Off, &gate, FLAGS, &said.concat()).step.unwrap();
    assert_eq!(gate.admitted.get(), 0);
}

proptest::proptest! {
    /// Any options end without a panic, and the replies are limited by the number of options.
    #[test]
    fn any_options_are_survived(
        options in proptest::collection::vec((0_u32..14, proptest::collection::vec(0_u8.., 0..80)), 0..20)
    ) {
        let said: Vec<u8> = options.iter().flat_map(|(option, data)| message(*option, data)).collect();
        for tls in [TlsUse::Off, TlsUse::Offered, TlsUse::Required] {
            let outcome = Outcome::of(tls, &Gate::default(), FLAGS, &said);
            proptest::prop_assert!(outcome.heard.len() <= 200 * options.len());
        }
    }
}
