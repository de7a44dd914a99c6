//! The connection of one front end: its messages, from the first to the last.

#![expect(unsafe_code, reason = "descriptors that a front end passes on")]

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::io::DupFlags;
use vhost::vhost_user::message::{FrontendReq, VhostUserProtocolFeatures};
use vhost::vhost_user::{BackendReqHandler, Error as ProtocolError, Result};

use super::carried::{Agreed, CarriedFrontEnd, Descriptors};
use super::device::Device;
use super::server::lock;
use super::{back, broken};

/// The connected front end.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) device: Arc<Mutex<Device>>,
    pub(super) socket: Arc<UnixStream>,
    /// The channel for notifications, if the front end has sent one.
    pub(super) back: Arc<Mutex<Option<UnixStream>>>,
}

/// The reader of the front end's messages.
pub(super) type Handler = BackendReqHandler<Mutex<Device>>;

impl Session {
    pub(super) fn new(device: Device, socket: &Arc<UnixStream>) -> Self {
        Self { device: Arc::new(Mutex::new(device)), socket: socket.clone(), back: Arc::default() }
    }

    /// Waits for a message, and handles it.
    pub(super) fn handle(&self, handler: &mut Handler) -> Result<()> {
        if self.take_back_channel().map_err(ProtocolError::ReqHandlerError)? {
            return Ok(());
        }
        handler.handle_request()
    }

    /// Waits for a message. Takes the one with the notification channel, and returns true if it was
    /// that.
    fn take_back_channel(&self) -> io::Result<bool> {
        type Features = VhostUserProtocolFeatures;
        // If the feature is not negotiated, the handler refuses the message.
        let (wanted, acknowledges) = {
            let device = lock(&self.device);
            (device.has(Features::BACKEND_REQ), device.has(Features::REPLY_ACK))
        };
        let taken = if wanted { back::take(&self.socket, acknowledges)? } else { None };
        let is_it = taken.is_some();
        if is_it {
            *lock(&self.back) = taken;
        }
        Ok(is_it)
    }

    /// Returns the paused front end for the new server of a handover. Fails when no descriptor is
    /// left, or some memory has no file.
    pub(super) fn carried(&self) -> io::Result<CarriedFrontEnd> {
        let mut fds: Vec<OwnedFd> = vec![self.socket.try_clone()?.into()];
        let back = lock(&self.back);
        if let Some(back) = &*back {
            fds.push(back.try_clone()?.into());
        }
        let device = lock(&self.device).carried(&mut fds)?;
        let agreed = Agreed { descriptors: fds.len(), device, back: back.is_some() };
        Ok(CarriedFrontEnd { agreed, fds })
    }

    /// Receives the front end of an old server, with paused rings. Fails when it cannot be served
    /// here as it was there.
    pub(super) fn take_over(device: Device, carried: CarriedFrontEnd) -> Result<(Self, Handler)> {
        let CarriedFrontEnd { agreed, fds } = carried;
        let mut fds = Descriptors::new(fds);
        let socket = fds.take().ok_or_else(|| broken("its socket did not come"))?;
        let session = Self::new(device, &Arc::new(socket.into()));
        *lock(&session.back) = fds.take_if(agreed.back)?.map(|file| OwnedFd::from(file).into());
        let handler = session.handler(&agreed)?;
        lock(&session.device).restore(&agreed.device, &mut fds)?;
        if !fds.are_over() {
            return Err(broken("more descriptors came than are known here"));
        }
        Ok((session, handler))
    }

    /// Makes a reader of messages with the state of the old server's reader. The reader's state is
    /// private, so the earlier messages are repeated over a socket pair, whose place the front
    /// end's socket takes afterwards.
    fn handler(&self, agreed: &Agreed) -> Result<Handler> {
        let failed = |e: io::Error| broken(format!("what was agreed cannot be repeated: {e}"));
        let (ours, mut front) = UnixStream::pair().map_err(failed)?;
        let mut handler = Handler::from_stream(ours, self.device.clone());
        let said = agreed.device.said;
        let mut repeat = |request: FrontendReq, value: Option<u64>| {
            let body = value.map_or(Vec::new(), |value| value.to_ne_bytes().to_vec());
            let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
            let head = [request as u32, 1, len].map(u32::to_ne_bytes).concat();
            front.write_all(&[head, body].concat()).map_err(failed)?;
            handler.handle_request()
        };
        if said.asked {
            repeat(FrontendReq::GET_FEATURES, None)?;
        }
        repeat(FrontendReq::SET_FEATURES, Some(said.features))?;
        repeat(FrontendReq::SET_PROTOCOL_FEATURES, Some(said.protocol))?;
        // SAFETY: the descriptor is the handler's, which closes it; `dup3` only replaces its
        // socket.
        let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(handler.as_raw_fd()) });
        rustix::io::dup3(&self.socket, &mut place, DupFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        Ok(handler)
    }
}
