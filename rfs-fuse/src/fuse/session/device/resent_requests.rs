//! Requests that a dead process had taken, and that the kernel sends again.
//!
//! # Concurrency
//! The main thread, before the session threads read.

use std::{collections::HashSet, io, os::fd::OwnedFd};

use rustix::{fs::OFlags, io::Errno};
use zerocopy::IntoBytes;

use super::{
    buffer::ReceiveBuffer,
    request::{Arrived, parse},
};
use crate::fuse::session::wire::abi::OutHeader;

/// FUSE_NOTIFY_RESEND, from Linux 6.9 on.
const NOTIFY_RESEND: i32 = 7;

/// A request that was read before the session threads start.
#[derive(Debug)]
pub struct ResentRequest(Vec<u8>);

impl ResentRequest {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the kernel's number of the request, if the kernel has sent it before.
    pub fn repeated(&self) -> Option<u64> {
        let is_operation = |arrived: &Arrived<'_>| matches!(arrived, Arrived::Operation { .. });
        let parsed = parse(&self.0).filter(|parsed| parsed.is_repeated && is_operation(&parsed.arrived));
        parsed.map(|parsed| parsed.header.unique)
    }

    /// Has the kernel send again each request that was taken and has no answer. Reads all of them
    /// from `device`, perhaps with newer requests behind them.
    ///
    /// # Errors
    /// The kernel cannot send requests again (before Linux 6.9), or the connection has ended.
    pub fn take_all(device: &OwnedFd, max_write: usize) -> io::Result<Vec<ResentRequest>> {
        let message = OutHeader { len: size_of::<OutHeader>() as u32, error: NOTIFY_RESEND, unique: 0 };
        rustix::io::write(device, message.as_bytes())?;
        let mut buffer = ReceiveBuffer::new(max_write, true)?;
        let flags = rustix::fs::fcntl_getfl(device)?;
        rustix::fs::fcntl_setfl(device, flags | OFlags::NONBLOCK)?;
        let taken = take(device, &mut buffer);
        rustix::fs::fcntl_setfl(device, flags - OFlags::NONBLOCK)?;
        taken
    }

    /// Returns the kernel's numbers of the requests that were sent before.
    pub fn numbers(all: &[ResentRequest]) -> HashSet<u64> {
        all.iter().filter_map(ResentRequest::repeated).collect()
    }
}

fn take(device: &OwnedFd, buffer: &mut ReceiveBuffer) -> io::Result<Vec<ResentRequest>> {
    let mut all = Vec::new();
    loop {
        match rustix::io::read(device, buffer.bytes_mut()) {
            Ok(len) => {
                let bytes = buffer.bytes_mut()[..len].to_vec();
                // The kernel puts them before all other requests, but not before FORGET.
                let is_last = parse(&bytes)
                    .is_some_and(|new| !new.is_repeated && matches!(new.arrived, Arrived::Operation { .. }));
                all.push(ResentRequest(bytes));
                if is_last {
                    return Ok(all);
                }
            }
            Err(Errno::AGAIN) => return Ok(all),
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
