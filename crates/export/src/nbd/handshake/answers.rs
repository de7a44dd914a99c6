//! The effect of each option except EXPORT_NAME, which has no reply.

use super::{
    ALLOCATION_ID, Handshake, Refusal, Step, TlsUse, needs_block_sizes,
    options::{self, Fault, InfoRequest, MetaRequest},
    replies::Replies,
};
use crate::nbd::protocol::{BASE_ALLOCATION, option, option_reply as reply};
use crate::net::Printable;

type Answer<T> = Result<T, Fault>;

impl Handshake<'_> {
    /// Collects the replies to one option; a fault is its final reply.
    pub(super) fn reply_to(
        &mut self,
        option: u32,
        data: &[u8],
        replies: &mut Replies,
    ) -> Answer<Option<Step>> {
        if option == option::ABORT {
            replies.ack();
            return Ok(Some(Step::Left));
        }
        if self.gate.stopping() {
            return Err(Refusal::Stopping.into());
        }
        if option != option::STARTTLS && self.tls == TlsUse::Required && !self.secured {
            return Err(Fault::new(reply::ERR_TLS_REQD, "this server requires TLS"));
        }
        match option {
            option::STARTTLS => return self.start_tls(data, replies).map(Some),
            option::LIST => self.list(data, replies)?,
            option::INFO => {
                self.describe(data, replies)?;
            }
            option::GO => return self.go(data, replies).map(Some),
            option::STRUCTURED_REPLY if self.offers_structured => {
                options::no_data(data)?;
                self.structured = true;
            }
            option::LIST_META_CONTEXT => self.list_contexts(data, replies)?,
            option::SET_META_CONTEXT => self.set_contexts(data, replies)?,
            _ => return Err(Fault::new(reply::ERR_UNSUP, "this server does not know the option")),
        }
        replies.ack();
        Ok(None)
    }

    fn start_tls(&mut self, data: &[u8], replies: &mut Replies) -> Answer<Step> {
        options::no_data(data)?;
        if self.tls == TlsUse::Off {
            return Err(Fault::new(reply::ERR_POLICY, "this server has no certificate for TLS"));
        }
        if self.secured {
            return Err(Fault::invalid("TLS was started before"));
        }
        // Options negotiated in plain text are dropped: an attacker may have changed them.
        (self.secured, self.structured, self.allocation) = (true, false, None);
        replies.ack();
        Ok(Step::StartTls)
    }

    fn list(&self, data: &[u8], replies: &mut Replies) -> Answer<()> {
        options::no_data(data)?;
        for export in self.exports.iter() {
            replies.server(export);
        }
        Ok(())
    }

    fn go(&mut self, data: &[u8], replies: &mut Replies) -> Answer<Step> {
        let (index, request) = self.describe(data, replies)?;
        if needs_block_sizes(&self.exports[index]) && !request.block_size {
            return Err(Fault::new(reply::ERR_BLOCK_SIZE_REQD, "ask for NBD_INFO_BLOCK_SIZE and keep to it"));
        }
        self.gate.admit()?;
        replies.ack();
        Ok(Step::Ready(self.negotiated(index, request.block_size)))
    }

    /// Handles the common part of INFO and GO.
    fn describe<'d>(&self, data: &'d [u8], replies: &mut Replies) -> Answer<(usize, InfoRequest<'d>)> {
        let request = InfoRequest::parse(data)?;
        let index = self.find(request.name)?;
        let export = &self.exports[index];
        replies.info_export(export.size, self.flags(export));
        // Block sizes are sent even to clients that did not ask: a client that does not know them
        // ignores them, and they may spare any other client an error.
        replies.info_block_size(export);
        if request.wants_name {
            replies.info_name(&export.name);
        }
        if request.wants_description && !export.description.is_empty() {
            replies.info_description(&export.description);
        }
        Ok((index, request))
    }

    fn list_contexts(&self, data: &[u8], replies: &mut Replies) -> Answer<()> {
        let request = MetaRequest::parse(data)?;
        self.needs_structured()?;
        self.find(request.name)?;
        let wanted = request.queries.is_empty()
            || request.queries.iter().any(|&query| query == BASE_ALLOCATION.as_bytes() || query == b"base:");
        if wanted {
            replies.meta_context(0, BASE_ALLOCATION);
        }
        Ok(())
    }

    fn set_contexts(&mut self, data: &[u8], replies: &mut Replies) -> Answer<()> {
        // Even a request that fails resets the earlier choice.
        self.allocation = None;
        let request = MetaRequest::parse(data)?;
        self.needs_structured()?;
        let index = self.find(request.name)?;
        if request.queries.contains(&BASE_ALLOCATION.as_bytes()) {
            self.allocation = Some(index);
            replies.meta_context(ALLOCATION_ID, BASE_ALLOCATION);
        }
        Ok(())
    }

    fn needs_structured(&self) -> Answer<()> {
        self.structured.then_some(()).ok_or_else(|| Fault::invalid("negotiate structured replies first"))
    }

    fn find(&self, name: &[u8]) -> Answer<usize> {
        self.exports
            .find(name)
            .ok_or_else(|| Fault::new(reply::ERR_UNKNOWN, format!("there is no export {}", Printable(name))))
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::Full(_) => reply::ERR_POLICY,
            Refusal::Stopping => reply::ERR_SHUTDOWN,
        };
        Self::new(kind, refusal.text())
    }
}
