//! Requests and replies as typed messages over a [`Remote`].
//!
//! # Concurrency
//! Any thread. The message buffers are per thread, so a callback must not make a call while this
//! thread makes one.

use std::cell::RefCell;

use rdmabox::RequestError;
use rfs_proto::{Attr, Reply, Request, decode_reply, decode_reply_with, encode_request};

use crate::{
    error::ClientError,
    remote::{CallOptions, Remote, ReplyWait, address::Epoch, idempotent::is_idempotent},
};

thread_local! {
    /// Request and reply buffers of the call in flight on this thread.
    static MESSAGES: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Encodes a request, has `call` send it, and decodes the reply. Also returns the attributes of the
/// changed directory, if the reply has them.
pub(crate) fn exchange(
    request: &Request<'_>,
    call: impl FnOnce(&[u8], &mut Vec<u8>) -> Result<(), RequestError>,
) -> Result<(Reply, Option<Attr>), ClientError> {
    MESSAGES.with_borrow_mut(|(out, back)| {
        encode_request(request, out);
        call(out, back)?;
        let (reply, directory) = match request.directory() {
            Some(_) => decode_reply_with(back)?,
            None => (decode_reply(back)?, None),
        };
        match reply {
            Reply::Error(errno) => Err(ClientError::Errno(errno)),
            reply => Ok((reply, directory)),
        }
    })
}

/// Calls, in any epoch.
pub(crate) fn call_on(remote: &dyn Remote, request: &Request<'_>) -> Result<Reply, ClientError> {
    call_in(remote, request, None).map(|(reply, _)| reply)
}

/// Calls, in `epoch` only if given. Returns as [`exchange`].
pub(crate) fn call_in(
    remote: &dyn Remote,
    request: &Request<'_>,
    epoch: Option<Epoch>,
) -> Result<(Reply, Option<Attr>), ClientError> {
    let options = CallOptions { once: !is_idempotent(request), epoch, ..CallOptions::default() };
    exchange(request, |out, back| remote.call(out, back, options))
}

/// Starts a call and ignores its reply.
pub(crate) fn start_on(remote: &dyn Remote, request: &Request<'_>) -> Result<(), ClientError> {
    let options = CallOptions { wait: ReplyWait::None, ..CallOptions::default() };
    MESSAGES.with_borrow_mut(|(out, back)| {
        encode_request(request, out);
        Ok(remote.call(out, back, options)?)
    })
}
