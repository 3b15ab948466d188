//! The answer to one request, to the device that the request was read from.
//!
//! # Concurrency
//! Any thread, once.

use std::{cell::RefCell, io::IoSlice, os::fd::OwnedFd, sync::Arc};

use rfs_client::RequestScope;
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::fuse::affinity::Unanswered;

/// `fuse_out_header`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    len: u32,
    error: i32,
    unique: u64,
}

/// Smallest page of any kernel.
const PAGE: usize = 4096;

thread_local! {
    /// Buffer for answers that are put together.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The way of one answer.
#[derive(Debug)]
pub(super) struct Channel {
    device: Arc<OwnedFd>,
    unanswered: Unanswered,
    scope: Option<Arc<RequestScope>>,
}

impl Channel {
    /// Returns the channel of a request that the file system serves. `scope` is its record in the
    /// kept state, if there is one.
    pub(super) fn of_operation(
        device: &Arc<OwnedFd>,
        unanswered: Unanswered,
        scope: Option<Arc<RequestScope>>,
    ) -> Channel {
        Channel { device: Arc::clone(device), unanswered, scope }
    }

    /// Returns the channel of a request that no file system serves.
    pub(super) fn new(device: &Arc<OwnedFd>) -> Channel {
        Channel { device: Arc::clone(device), unanswered: Unanswered::default(), scope: None }
    }

    /// Sends an answer with an error number or 0. With a kept state, the bytes are in memory.
    /// Otherwise a kill of the process in the middle of the call would make the kernel fail the
    /// request.
    pub(super) fn send(self, unique: u64, errno: i32, bytes: &[u8]) {
        let Channel { device, unanswered, scope } = self;
        drop(unanswered);
        // Answers are shorter than 4 GiB.
        let len = (size_of::<Header>() + bytes.len()) as u32;
        let header = Header { len, error: -errno, unique };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(bytes)];
        match rustix::io::writev(&*device, &parts) {
            // The kernel does not wait for the answer any more, or the mount has ended.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => {}
            Err(e) => log::error!("cannot answer request {unique}: {e}"),
        }
        if let Some(scope) = scope {
            scope.end();
        }
    }

    /// Sends `len` bytes, all of which `fill` writes.
    pub(super) fn send_filled(self, unique: u64, len: usize, fill: impl FnOnce(&mut [u8])) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            fill(&mut buffer[..len]);
            self.send(unique, 0, &buffer[..len]);
        });
    }

    /// Sends bytes of mapped memory, which other processes change meanwhile.
    pub(super) fn send_mapped(self, unique: u64, bytes: &[u8]) {
        if self.scope.is_some() {
            for at in (0..bytes.len()).step_by(PAGE).chain(bytes.len().checked_sub(1)) {
                // SAFETY: the byte is inside the slice. The read only maps its page.
                let _ = unsafe { bytes.as_ptr().add(at).read_volatile() };
            }
        }
        self.send(unique, 0, bytes);
    }
}
