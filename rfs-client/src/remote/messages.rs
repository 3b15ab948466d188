//! Requests and replies as typed messages over a [`Remote`].
//!
//! # Concurrency
//! Any thread. The message buffers are per thread, so a callback must not make a call while this
//! thread makes one.

use std::{cell::RefCell, fmt};

use rdmabox::{RequestError, trace::Span};
use rfs_proto::{Attr, Growth, Reply, Request, decode_reply, decode_reply_with, encode_request};

use crate::{
    error::ClientError,
    remote::{CallOptions, Remote, ReplyWait, address::Epoch},
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
    let _span = Span::begin("call", || name_of(request).into());
    let options = CallOptions { once: !is_idempotent(request), epoch, ..CallOptions::default() };
    exchange(request, |out, back| remote.call(out, back, options))
}

/// Returns true if the server may carry the request out any number of times with the same result.
fn is_idempotent(request: &Request<'_>) -> bool {
    match request {
        Request::Attach { .. }
        | Request::Lookup { .. }
        | Request::LookupAhead { .. }
        | Request::GetAttr { .. }
        | Request::Birth { .. }
        | Request::Readlink { .. }
        | Request::Layout { .. }
        | Request::Allocate { .. }
        | Request::ReadDir { .. }
        | Request::StatFs
        | Request::Stats
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::XattrPart { .. }
        | Request::TestLock { .. }
        | Request::Insist { .. }
        | Request::Recalls { .. }
        | Request::Grants
        | Request::Accessed { .. }
        // The envelope is never put into another envelope.
        | Request::Once { .. }
        | Request::Write { growth: Growth::Stay | Growth::Reach, .. }
        | Request::Verify { .. }
        | Request::ReturnNames { .. }
        | Request::ConfirmLocks { .. }
        | Request::Forget { .. }
        | Request::HoldPages { .. }
        | Request::DropPages { .. }
        | Request::ReachStore { .. }
        | Request::FenceStore { .. }
        | Request::Detach => true,
        Request::SetAttr { .. }
        | Request::Mknod { .. }
        | Request::Create { .. }
        | Request::Tmpfile { .. }
        | Request::Mkdir { .. }
        | Request::Symlink { .. }
        | Request::Link { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. }
        | Request::Open { .. }
        | Request::Close { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::Fallocate { .. }
        | Request::Copy { .. }
        | Request::Write { growth: Growth::From(_), .. }
        | Request::Lock { .. }
        | Request::StopWaiting { .. } => false,
    }
}

/// The first word of the message that is written to it. The word ends the writing, which may be
/// long.
#[derive(Default)]
struct FirstWord(String);

impl fmt::Write for FirstWord {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.find(|character: char| !character.is_alphanumeric());
        self.0.push_str(&text[..end.unwrap_or(text.len())]);
        end.map_or(Ok(()), |_| Err(fmt::Error))
    }
}

/// Returns the name of a request, for a trace: that of its variant.
fn name_of(request: &Request<'_>) -> String {
    let mut name = FirstWord::default();
    // Fails at the end of the name.
    fmt::Write::write_fmt(&mut name, format_args!("{request:?}")).ok();
    name.0
}

/// Starts a call and ignores its reply.
pub(crate) fn start_on(remote: &dyn Remote, request: &Request<'_>) -> Result<(), ClientError> {
    let options = CallOptions { wait: ReplyWait::None, ..CallOptions::default() };
    MESSAGES.with_borrow_mut(|(out, back)| {
        encode_request(request, out);
        Ok(remote.call(out, back, options)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_name_of_its_variant() {
        assert_eq!(name_of(&Request::Layout { ino: 5, offset: 0 }), "Layout");
        assert_eq!(name_of(&Request::StatFs), "StatFs");
    }
}
