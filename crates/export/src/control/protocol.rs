//! The protocol of a control socket. One request a connection:
//!
//! ```text
//!   {"version":1,"request":"status"}                                 \n  at most 4096 bytes
//!   {"version":1,"request":{"set-policy":"inline"}}                  \n
//!   {"version":1,"request":{"suspend":{"seconds":60}}}               \n  also "wipe":true
//!   {"version":1,"request":"resume"}                                 \n
//!   {"version":1,"request":{"message":"key wipe"}}                   \n
//!   {"version":1,"request":{"set-key":{"size":64}}}                  \n  and a key; also "resume"
//!   {"version":1,"request":{"resize":{"size":1048576,"seconds":60}}} \n  no size: the whole device
//!   {"version":1,"request":{"reencrypt":{"start":{"old":64,"new":64}}}} \n  both keys; "rate"
//!   {"version":1,"request":{"reencrypt":"pause"}}                    \n  also "go-on", "stop"
//!   {"version":1,"request":{"reencrypt":{"rate":"full"}}}            \n  or {"limit":1048576}, ..
//!   {"version":1,"request":{"check":{"from":0}}}                     \n  reads for about a second
//!   {"version":1,"request":{"hand-over":{"protocol":1}}}             \n  "done"; see `line`
//!   {"version":1,"request":"close"}                                  \n  two replies
//!
//!   {"version":1,"reply":"done"}                                     \n
//!   {"version":1,"reply":{"noted":["..."]}}                          \n    done, with notes
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
/// The longest reply, its newline included: ten times the size of the histograms of every stage
/// with every bucket in use.
pub const MAX_REPLY: usize = 1 << 20;
/// The longest key: many times LMK's 64 keys of 32 bytes and a seed.
pub const MAX_KEY: usize = 64 << 10;

/// A request to a volume's server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Asks for the volume's state.
    Status,
    /// Sets the policy.
    SetPolicy(String),
    /// Holds back requests until `Resume`, and finishes those in flight.
    Suspend {
        /// The time limit for requests in flight.
        seconds: u32,
        /// Wipes the key afterwards: `Resume` then needs a key.
        #[serde(default, skip_serializing_if = "is_false")]
        wipe: bool,
    },
    /// Resumes the volume.
    Resume,
    /// Sends one of dm-crypt's messages that contain no key.
    Message(String),
    /// dm-crypt's `key set`; the key's bytes follow the request.
    SetKey {
        /// The key's length in bytes.
        size: usize,
        /// Resumes the volume with this key.
        #[serde(default, skip_serializing_if = "is_false")]
        resume: bool,
    },
    /// Changes the volume's size.
    Resize {
        /// The new size in bytes; without one, the lower device's or the header's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
        /// The time limit for requests beyond a smaller end.
        seconds: u32,
    },
    /// Starts, ends or adjusts the reencryption that the header or a state file records as
    /// unfinished.
    Reencrypt(Reencrypt),
    /// Reads a range, and reports sectors that differ from the data written.
    Check {
        /// The first byte to read.
        from: u64,
    },
    /// Hands the volume and its clients over to the process that sends the request.
    HandOver {
        /// The version of the handover's messages.
        protocol: u32,
    },
    /// Stops the server, as SIGTERM does.
    Close,
}

/// A request about a reencryption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reencrypt {
    /// Resumes the reencryption; the bytes of both keys follow the request, the old key's first.
    Start {
        /// The length of the old key; 0 where the data were not encrypted.
        old: usize,
        /// The length of the new key.
        new: usize,
        /// The rate.
        #[serde(default)]
        rate: Rate,
    },
    /// Pauses the reencryption.
    Pause,
    /// Ends the pause.
    GoOn,
    /// Ends the reencryption's thread; the reencryption stays unfinished.
    Stop,
    /// Sets the rate.
    Rate(Rate),
}

/// The rate of a reencryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// Yields to clients, so that they hardly notice the reencryption.
    #[default]
    GiveWay,
    /// As fast as possible.
    Full,
    /// At most this number of bytes a second.
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

/// A reply of a volume's server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The request is done. `Close` gets two of these: when the stop begins, and when it is
    /// complete.
    Done,
    /// The request is done, with notes for the operator.
    Noted(Vec<String>),
    /// The volume has its new size.
    Resized {
        /// The new size in bytes.
        size: u64,
        /// Notes on clients that could not be notified, and when they will see the new size.
        notes: Vec<String>,
    },
    /// The result of a check.
    Checked(Checked),
    /// The volume's state.
    Status(Box<Status>),
    /// The request is refused, and changed nothing.
    Refused(Refusal),
}

/// A checked range of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// The offset to continue at; the volume's size at its end.
    pub to: u64,
    /// The volume's size now, in bytes.
    pub size: u64,
    /// Ranges that differ from the data written, in order: start and end.
    pub lost: Vec<(u64, u64)>,
    /// Bytes of the whole volume that have no tags yet, and so could not be compared.
    #[serde(default)]
    pub unverified: u64,
}

/// The reason why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind, for programs.
    pub kind: RefusalKind,
    /// The message.
    pub message: String,
    /// The remedy.
    #[serde(default)]
    pub remedy: String,
}

/// The kind of a refusal, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// The request is malformed, or not of this version.
    Request,
    /// The request comes from another user.
    Forbidden,
    /// The policy does not exist, or is not possible for this volume.
    Policy,
    /// The request needs a suspended volume.
    NotSuspended,
    /// The volume has no key.
    NoKey,
    /// The key does not fit the volume.
    Key,
    /// The key fits the volume, but the header's digest shows that it is another key.
    WrongKey,
    /// The volume cannot have this size.
    Size,
    /// The request does not fit the state: no reencryption runs, for example, or one runs already.
    State,
    /// The volume does not support the request.
    Unsupported,
    /// The volume is busy, or the request timed out.
    Busy,
    /// The volume is closed, and its last flush failed: acknowledged writes may be lost.
    Lost,
    /// An operation of the system failed.
    #[serde(other)]
    Failed,
}

impl Refusal {
    /// A refusal with its message and its remedy, which is empty where none is known.
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
    /// A refusal that says why the line cannot be parsed.
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

    /// Reads a line and the keys that follow it: not a byte more, and the keys only into locked
    /// memory.
    ///
    /// # Errors
    /// An error when reading fails; the inner refusal says what is wrong with the request.
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

    /// Returns how many bytes of keys follow the request.
    fn key_size(&self) -> Option<usize> {
        match self {
            Self::SetKey { size, .. } => Some(*size),
            Self::Reencrypt(Reencrypt::Start { old, new, .. }) => Some(old.saturating_add(*new)),
            _ => None,
        }
    }

    /// Returns the request as a line of JSON.
    pub fn line(&self) -> Vec<u8> {
        line(&RequestLine { version: VERSION, request: self.clone() })
    }
}

impl Reply {
    /// Parses a line.
    ///
    /// # Errors
    /// An error of the JSON parser.
    pub fn parse(line: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line).map(|ReplyLine { reply, .. }| reply)
    }

    /// Returns the reply as a line of JSON.
    pub fn line(&self) -> Vec<u8> {
        line(&ReplyLine { version: VERSION, reply: self.clone() })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_false(value: &bool) -> bool {
    !*value
}

fn line(value: &impl Serialize) -> Vec<u8> {
    // Serialization fails only for maps whose keys are not strings, and for types whose `Serialize`
    // fails; these types have neither.
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
