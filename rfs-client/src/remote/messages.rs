//! Requests and replies as typed messages over a [`Remote`].
//!
//! # Concurrency
//! Any thread. The message buffers are per thread, so a callback must not make a call while this
//! thread makes one.

use std::cell::RefCell;

use rfs_proto::{Attr, Reply, Request, decode_reply, decode_reply_with, encode_request};

use crate::{
    error::ClientError,
    remote::{CallOptions, Remote, idempotent::is_idempotent},
};

thread_local! {
    /// Request and reply buffers of the call in flight on this thread.
    static MESSAGES: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

pub(crate) fn call_on(remote: &dyn Remote, request: &Request<'_>) -> Result<Reply, ClientError> {
    call_with(remote, request, None).map(|(reply, _)| reply)
}

/// Calls, in `epoch` only if given. Also returns the attributes of the changed directory, if the
/// reply has them.
pub(crate) fn call_with(
    remote: &dyn Remote,
    request: &Request<'_>,
    epoch: Option<u32>,
) -> Result<(Reply, Option<Attr>), ClientError> {
    MESSAGES.with_borrow_mut(|(out, back)| {
        encode_request(request, out);
        let once = !is_idempotent(request);
        remote.call(out, back, CallOptions { once, epoch, cancel: None })?;
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

/// Starts a call and ignores its reply.
pub(crate) fn start_on(remote: &dyn Remote, request: &Request<'_>) -> Result<(), ClientError> {
    MESSAGES.with_borrow_mut(|(out, _)| {
        encode_request(request, out);
        Ok(remote.start_call(out)?)
    })
}
