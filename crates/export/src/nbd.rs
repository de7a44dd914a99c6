//! Network Block Device, served: newstyle-fixed negotiation, simple and structured replies.
//!
//! The protocol's text is `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>; "proto.md" in comments
//! means that file.

pub mod protocol;
