//! Moves long values in parts.
//!
//! # Concurrency
//! The thread of the caller.

use super::{error::ClientError, keyspace::Keyspace, scratch::Scratch};
use crate::protocol::{DecodeError, MAX_PART, Request, StoreRequest, ValueReply};

/// Appends the rest of a value, which has `rest` bytes, to `value`.
pub(super) fn download(
    keyspace: &Keyspace,
    partition: usize,
    (transfer, rest): (u32, u32),
    value: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<(), ClientError> {
    let wanted = value.len() + rest as usize;
    let Scratch { request, reply } = scratch;
    let fault = |reason| ClientError::Reply { partition, reason };
    if wanted > keyspace.max_value {
        return Err(fault(DecodeError::Field("rest")));
    }
    value.reserve(rest as usize);
    while value.len() < wanted {
        keyspace.call(partition, &Request::ContinueDownload { transfer }, request, reply)?;
        if reply.is_empty() || value.len() + reply.len() > wanted {
            return Err(fault(DecodeError::Field("part")));
        }
        value.extend_from_slice(reply);
    }
    Ok(())
}

/// Stores a value in parts. Returns the end of the last reply.
pub(super) fn upload(
    keyspace: &Keyspace,
    partition: usize,
    change: StoreRequest,
    key: &[u8],
    value: &[u8],
    scratch: &mut Scratch,
) -> Result<ValueReply, ClientError> {
    let Scratch { request, reply } = scratch;
    let begin = Request::BeginUpload { change, value_len: value.len() as u32, key };
    let begun = keyspace.call(partition, &begin, request, reply)?;
    let reason = DecodeError::Field("transfer");
    let (transfer, _) = begun.transfer.ok_or(ClientError::Reply { partition, reason })?;
    for part in value.chunks(MAX_PART) {
        keyspace.call(partition, &Request::ContinueUpload { transfer, part }, request, reply)?;
    }
    keyspace.call(partition, &Request::FinishUpload { transfer }, request, reply)
}
