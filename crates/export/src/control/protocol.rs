//! What is said over a control socket. One request a connection:
//!
//! ```text
//!   {"version":1,"request":"status"}                                 \n    at most 4096 bytes
//!   {"version":1,"request":{"set-policy":"inline"}}                  \n
//!   {"version":1,"request":{"suspend":{"seconds":60}}}               \n    also "wipe":true
//!   {"version":1,"request":"resume"}                                 \n
//!   {"version":1,"request":{"message":"key wipe"}}                   \n
//!   {"version":1,"request":{"set-key":{"size":64}}}                  \n    and the 64 bytes of the key; also "resume":true
//!   {"version":1,"request":{"resize":{"size":1048576,"seconds":60}}} \n    without a size: all that there is
//!   {"version":1,"request":{"reencrypt":{"start":{"old":64,"new":64}}}} \n  and both keys; also "rate"
//!   {"version":1,"request":{"reencrypt":"pause"}}                    \n    also "go-on", "stop"
//!   {"version":1,"request":{"reencrypt":{"rate":"full"}}}            \n    also "give-way", {"limit":1048576}
//!   {"version":1,"request":{"check":{"from":0}}}                     \n    reads on from there, for a second or so
//!   {"version":1,"request":{"hand-over":{"protocol":1}}}             \n    "done", and then what `line` and `giver` say
//!   {"version":1,"request":"close"}                                  \n    a second reply comes at the end
//!
//!   {"version":1,"reply":"done"}                                     \n
//!   {"version":1,"reply":{"noted":["..."]}}                          \n    done, and this should be known
//!   {"version":1,"reply":{"resized":{"size":1048576,"notes":[]}}}    \n
//!   {"version":1,"reply":{"checked":{"to":1048576,"size":1048576,"lost":[[4096,8192]]}}} \n
//!   {"version":1,"reply":{"status":{...}}}                           \n
//!   {"version":1,"reply":{"refused":{"kind":"policy","message":"...","remedy":"..."}}} \n
//! ```

use std::io::{self, Read};
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use underseal_cipher::Key;
use underseal_datapath as datapath;

use super::Status;

/// The version of this protocol.
pub const VERSION: u32 = 1;
/// The longest request, its newline included.
pub const MAX_REQUEST: usize = 4096;
/// The longest reply, its newline included: histograms of every stage with every bucket in use fit
/// ten times.
pub const MAX_REPLY: usize = 1 << 20;
/// The longest key: LMK's 64 keys of 32 bytes and a seed fit many times.
pub const MAX_KEY: usize = 64 << 10;

/// What a volume is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// How are you?
    Status,
    /// Dispatch requests like this from now on.
    SetPolicy(String),
    /// Take up no request until `Resume`, and finish those in flight.
    Suspend {
        /// How long they may take.
        seconds: u32,
        /// Then forget the key: `Resume` is not enough any more.
        #[serde(default, skip_serializing_if = "is_false")]
        wipe: bool,
    },
    /// Go on.
    Resume,
    /// One of dm-crypt's messages without a key in it.
    Message(String),
    /// dm-crypt's `key set`; the key's bytes follow the request.
    SetKey {
        /// How many.
        size: usize,
        /// Go on under it.
        #[serde(default, skip_serializing_if = "is_false")]
        resume: bool,
    },
    /// Have another size.
    Resize {
        /// In bytes; none takes all that the lower device has now, or what a header says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
        /// How long requests beyond a smaller end may take.
        seconds: u32,
    },
    /// Begin, or end, or do otherwise the reencryption that the header or a state file says is
    /// under way.
    Reencrypt(Reencrypt),
    /// Read a stretch, and tell what is not as it was written.
    Check {
        /// Where to begin, in bytes.
        from: u64,
    },
    /// Give the volume and its clients to the process that asks.
    HandOver {
        /// The version of what is said then.
        protocol: u32,
    },
    /// Stop serving, as SIGTERM does.
    Close,
}

/// What is asked of a reencryption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reencrypt {
    /// Go on with it; the bytes of both keys follow the request, the old one's first.
    Start {
        /// How many are the old one's; none where nothing was encrypted.
        old: usize,
        /// How many are the new one's.
        new: usize,
        /// How fast.
        #[serde(default)]
        rate: Rate,
    },
    /// Rest.
    Pause,
    /// Rest no more.
    GoOn,
    /// End it where it is.
    Stop,
    /// Be so fast.
    Rate(Rate),
}

/// How fast a reencryption may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// As fast as the volume's users hardly notice.
    #[default]
    GiveWay,
    /// As fast as it can.
    Full,
    /// At most so many bytes a second.
    Limit(NonZeroU64),
}

impl From<Rate> for datapath::Rate {
    fn from(rate: Rate) -> Self {
        match rate {
            Rate::GiveWay => Self::GiveWay,
            Rate::Full => Self::Full,
            Rate::Limit(bytes) => Self::Limit(bytes),
        }
    }
}

impl From<datapath::Rate> for Rate {
    fn from(rate: datapath::Rate) -> Self {
        match rate {
            datapath::Rate::GiveWay => Self::GiveWay,
            datapath::Rate::Full => Self::Full,
            datapath::Rate::Limit(bytes) => Self::Limit(bytes),
        }
    }
}

/// What a volume answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It is done. For `Close`: it has begun, and then, it is over.
    Done,
    /// It is done, and the operator should know this.
    Noted(Vec<String>),
    /// The volume has its new size.
    Resized {
        /// In bytes.
        size: u64,
        /// Clients that could not be told, and when they will see it.
        notes: Vec<String>,
    },
    /// What of a stretch could not be read.
    Checked(Checked),
    /// What was asked for.
    Status(Box<Status>),
    /// Nothing was changed.
    Refused(Refusal),
}

/// A stretch of a volume that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Where to go on; the volume's end, where all is read.
    pub to: u64,
    /// The volume's size now, in bytes.
    pub size: u64,
    /// What is not as it was written, in order: from the first byte to before the second.
    pub lost: Vec<(u64, u64)>,
    /// Bytes of the volume that were not compared, wherever it was read: their tags were still to
    /// be made.
    #[serde(default)]
    pub unverified: u64,
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For a program to match on.
    pub kind: RefusalKind,
    /// What happened.
    pub message: String,
    /// What to do about it.
    #[serde(default)]
    pub remedy: String,
}

/// Why a request was not done, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// It is no request, or none of this version.
    Request,
    /// It came from another user.
    Forbidden,
    /// There is no such policy, or the volume cannot have it.
    Policy,
    /// Only a suspended volume takes it.
    NotSuspended,
    /// The volume has no key.
    NoKey,
    /// The key does not fit the volume.
    Key,
    /// It could be the volume's key, and is not: the header's digest says so.
    WrongKey,
    /// The volume cannot have this size.
    Size,
    /// There is no such thing to be told, or there is one already.
    State,
    /// The volume can never do this.
    Unsupported,
    /// Not now, or not in time.
    Busy,
    /// The system failed.
    #[serde(other)]
    Failed,
}

impl Refusal {
    /// Why, and what to do about it; nothing, where nobody knows.
    pub fn new(kind: RefusalKind, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind, message: message.into(), remedy: remedy.into() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLine {
    version: u32,
    request: Request,
}

#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct ReplyLine {
    version: u32,
    reply: Reply,
}

impl Request {
    /// Parses a line, with or without its newline.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Self, Refusal> {
        let bad = |e: serde_json::Error| {
            let message = format!("not a request: {e}");
            Refusal::new(RefusalKind::Request, message, "`underseal` of the version that serves the volume")
        };
        let AnyVersion { version } = serde_json::from_slice(line).map_err(bad)?;
        if version != VERSION {
            let message =
                format!("this server speaks version {VERSION} of the control protocol, not {version}");
            let remedy = "`underseal` of the version that serves the volume";
            return Err(Refusal::new(RefusalKind::Request, message, remedy));
        }
        let RequestLine { request, .. } = serde_json::from_slice(line).map_err(bad)?;
        Ok(request)
    }

    /// Reads a line and, where keys follow, those, as one: not a byte more, and none of the key
    /// into memory that is not locked.
    ///
    /// # Errors
    /// When reading fails; and then, inside, what is wrong with the request.
    pub fn read(from: &mut impl Read) -> io::Result<Result<(Self, Option<Key>), Refusal>> {
        let mut line = Vec::new();
        let mut byte = [0];
        while line.last() != Some(&b'\n') {
            if line.len() == MAX_REQUEST {
                let message = format!("a request has at most {MAX_REQUEST} bytes");
                return Ok(Err(Refusal::new(RefusalKind::Request, message, "")));
            }
            from.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        let request = match Self::parse(&line) {
            Ok(request) => request,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Some(size) = request.key_size() else { return Ok(Ok((request, None))) };
        if size > MAX_KEY {
            let message = format!("a volume's key has at most {MAX_KEY} bytes, not {size}");
            return Ok(Err(Refusal::new(RefusalKind::Key, message, "")));
        }
        let mut key = match Key::zeroed(size) {
            Ok(key) => key,
            Err(e) => return Ok(Err(Refusal::new(RefusalKind::Failed, e.to_string(), ""))),
        };
        from.read_exact(key.as_mut_bytes())?;
        Ok(Ok((request, Some(key))))
    }

    /// How many bytes of keys follow it.
    fn key_size(&self) -> Option<usize> {
        match self {
            Self::SetKey { size, .. } => Some(*size),
            Self::Reencrypt(Reencrypt::Start { old, new, .. }) => Some(old.saturating_add(*new)),
            _ => None,
        }
    }

    /// The line that says it.
    pub fn line(&self) -> Vec<u8> {
        line(&RequestLine { version: VERSION, request: self.clone() })
    }
}

impl Reply {
    /// Parses a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(line: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line).map(|ReplyLine { reply, .. }| reply)
    }

    /// The line that says it.
    pub fn line(&self) -> Vec<u8> {
        line(&ReplyLine { version: VERSION, reply: self.clone() })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_false(value: &bool) -> bool {
    !*value
}

fn line(value: &impl Serialize) -> Vec<u8> {
    // Only maps with keys that are no strings, or a failing Serialize, could fail; there are none
    // here.
    let mut line = serde_json::to_vec(value).expect("these types have a JSON form");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Result<(Request, Option<Key>), Refusal>> {
        Request::read(&mut &bytes[..])
    }

    #[test]
    fn what_is_said_is_understood() {
        for request in [
            Request::Status,
            Request::SetPolicy("workers,order=sorted".into()),
            Request::Suspend { seconds: 7, wipe: false },
            Request::Suspend { seconds: 7, wipe: true },
            Request::Check { from: 1 << 40 },
            Request::Resize { size: None, seconds: 7 },
            Request::Resize { size: Some(4096), seconds: 7 },
            Request::Resume,
            Request::Message("key wipe".into()),
            Request::Reencrypt(Reencrypt::Pause),
            Request::Reencrypt(Reencrypt::Rate(Rate::Limit(NonZeroU64::MIN))),
            Request::HandOver { protocol: 7 },
            Request::Close,
        ] {
            assert_eq!(read(&request.line()).unwrap().unwrap().0, request);
        }
        let text = String::from_utf8(Request::Suspend { seconds: 60, wipe: false }.line()).unwrap();
        assert_eq!(text, "{\"version\":1,\"request\":{\"suspend\":{\"seconds\":60}}}\n");
        let reply = Reply::Refused(Refusal::new(RefusalKind::NotSuspended, "no", "try"));
        let Reply::Refused(found) = Reply::parse(&reply.line()).unwrap() else { panic!("{reply:?}") };
        assert_eq!((found.kind, found.remedy.as_str()), (RefusalKind::NotSuspended, "try"));
    }

    #[test]
    fn a_key_is_the_bytes_that_follow_and_no_more() {
        let mut bytes = Request::SetKey { size: 4, resume: true }.line();
        bytes.extend(b"\0\nab rest");
        let mut from = &bytes[..];
        let (request, key) = Request::read(&mut from).unwrap().unwrap();
        assert_eq!(request, Request::SetKey { size: 4, resume: true });
        assert_eq!(key.unwrap().as_bytes(), b"\0\nab");
        assert_eq!(from, b" rest");
    }

    #[test]
    fn both_keys_of_a_reencryption_follow_each_other() {
        let start = Request::Reencrypt(Reencrypt::Start { old: 1, new: 3, rate: Rate::Full });
        let mut bytes = start.line();
        bytes.extend(b"onew rest");
        let (request, key) = read(&bytes).unwrap().unwrap();
        assert_eq!((request, key.unwrap().as_bytes()), (start, &b"onew"[..]));
        let line = b"{\"version\":1,\"request\":{\"reencrypt\":{\"start\":{\"old\":0,\"new\":0}}}}\n";
        let expected = Reencrypt::Start { old: 0, new: 0, rate: Rate::GiveWay };
        assert_eq!(read(line).unwrap().unwrap().0, Request::Reencrypt(expected));
        let most = usize::MAX;
        let line = format!(
            "{{\"version\":1,\"request\":{{\"reencrypt\":{{\"start\":{{\"old\":{most},\"new\":{most}}}}}}}}}\n"
        );
        assert_eq!(read(line.as_bytes()).unwrap().unwrap_err().kind, RefusalKind::Key);
    }

    #[test]
    fn nonsense_is_refused_and_says_why() {
        let long = vec![b' '; MAX_REQUEST + 1];
        for (bytes, kind, why) in [
            (&b"\n"[..], RefusalKind::Request, "not a request"),
            (b"status\n", RefusalKind::Request, "not a request"),
            (b"{\"version\":2,\"request\":{\"dance\":1}}\n", RefusalKind::Request, "version 1"),
            (b"{\"version\":1,\"request\":\"dance\"}\n", RefusalKind::Request, "dance"),
            (b"{\"version\":1,\"request\":\"status\",\"x\":1}\n", RefusalKind::Request, "x"),
            (b"{\"version\":1,\"request\":{\"suspend\":{\"seconds\":-1}}}\n", RefusalKind::Request, "-1"),
            (b"{\"version\":1,\"request\":{\"set-key\":{\"size\":65537}}}\n", RefusalKind::Key, "65537"),
            (&long, RefusalKind::Request, "4096"),
        ] {
            let refusal = read(bytes).unwrap().unwrap_err();
            assert_eq!(refusal.kind, kind, "{refusal:?}");
            assert!(refusal.message.contains(why), "{refusal:?}");
        }
        assert_eq!(read(b"{\"version\"").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn kinds_of_a_later_version_are_failures() {
        let line = br#"{"version":1,"reply":{"refused":{"kind":"bored","message":"no"}}}"#;
        let Reply::Refused(refusal) = Reply::parse(line).unwrap() else { panic!() };
        assert_eq!(refusal.kind, RefusalKind::Failed);
    }
}
