//! A request of the kernel, and the way of its answer: to a ring or to `/dev/fuse`.
//!
//! # Concurrency
//! Any thread answers a [`Slot`]. The answers of a ring's thread have a lock ([`Answers`]).

use std::{io::Write, sync::Arc};

use rfs_client::announce_receive_buffer;
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::{
    channel::Channel,
    reply::Traced,
    ring::{
        answers::{Answer, Answers, Payload},
        entry::Entry,
    },
    wire::abi::Dirent,
};

/// Bytes that a list over `/dev/fuse` has room for from the beginning, at most.
const MAX_LIST: usize = 64 * 1024;

/// Where the answer to a request goes.
#[derive(Debug)]
enum Route {
    /// An entry of a ring.
    Ring { answers: Arc<Answers>, memory: &'static Entry, entry: usize, other_requests: OtherRequests },
    /// The FUSE device.
    Device(Channel),
}

/// A request. Dropping it answers with EIO.
#[derive(Debug)]
pub(in crate::fuse::session) struct Slot {
    /// `None` once it is answered.
    open: Option<Route>,
    unique: u64,
    traced: Traced,
}

/// Other requests of the thread that serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherRequests {
    /// A small read or write that arrived together with the request is served next.
    Another,
    /// No further request has arrived, and many small reads and writes have no answer yet.
    Many,
    /// No further request has arrived, as far as the thread knows.
    Few,
}

impl Slot {
    /// Creates the slot of an entry's current request. An entry has one at a time.
    pub(super) fn new(
        answers: Arc<Answers>,
        (entry, memory): (usize, &'static Entry),
        unique: u64,
        other_requests: OtherRequests,
    ) -> Slot {
        let open = Some(Route::Ring { answers, memory, entry, other_requests });
        Slot { open, unique, traced: None }
    }

    /// Returns the slot of a request that a trace reports.
    pub(in crate::fuse::session) fn traced_as(self, traced: Traced) -> Slot {
        let mut slot = self;
        slot.traced = traced;
        slot
    }

    /// Creates the slot of a request from the FUSE device.
    pub(in crate::fuse::session) fn of_device(channel: Channel, unique: u64) -> Slot {
        Slot { open: Some(Route::Device(channel)), unique, traced: None }
    }

    /// Returns the other requests of the thread. `None` over the device, where only the kernel
    /// knows.
    pub(in crate::fuse::session) fn other_requests(&self) -> Option<OtherRequests> {
        match &self.open {
            Some(Route::Ring { other_requests, .. }) => Some(*other_requests),
            Some(Route::Device(_)) | None => None,
        }
    }

    /// Announces the memory of the payload to the client, which keeps it registered.
    pub(super) fn announce_payload(&self) {
        if let Some(Route::Ring { memory, .. }) = &self.open {
            // SAFETY: the memory of an entry is never unmapped.
            unsafe { announce_receive_buffer(memory.payload_start(), memory.payload_len()) };
        }
    }

    /// Returns true if an answer may overwrite the request.
    pub(super) fn answers_in_place(&self) -> bool {
        self.entry().is_some()
    }

    /// Answers with bytes that are in no entry.
    fn send(&mut self, errno: i32, bytes: &[u8]) {
        let unique = self.unique;
        let Some(open) = self.open.take() else { return };
        self.begin_reply();
        match open {
            Route::Ring { answers, entry, .. } => {
                answers.push(Answer { entry, unique, errno, payload: Payload::copy_of(bytes) });
            }
            Route::Device(channel) => channel.send(unique, errno, bytes),
        }
        self.traced = None;
    }

    /// Reports to a trace that the answer is sent now.
    fn begin_reply(&mut self) {
        if let Some(traced) = &mut self.traced {
            traced.begin_reply();
        }
    }

    pub(in crate::fuse::session) fn error(mut self, errno: i32) {
        self.send(errno, &[]);
    }

    pub(in crate::fuse::session) fn done(mut self) {
        self.send(0, &[]);
    }

    /// Answers with a structure. The payload of the request may be in use.
    pub(in crate::fuse::session) fn answer(mut self, value: &(impl IntoBytes + Immutable)) {
        self.send(0, value.as_bytes());
    }

    /// Answers with `len` bytes, all of which `fill` writes. The payload of the request must not be
    /// in use.
    pub(in crate::fuse::session) fn data(mut self, len: usize, fill: impl FnOnce(&mut [u8])) {
        match self.open.take() {
            Some(Route::Ring { answers, memory, entry, .. }) => {
                let (unique, fits) = (self.unique, len <= memory.payload_len());
                let errno = if fits { 0 } else { Errno::IO.raw_os_error() };
                let len = if fits { len } else { 0 };
                if fits {
                    // SAFETY: the request has no answer yet, and decoding has copied the parts of
                    // its payload (`decode`).
                    fill(unsafe { memory.payload_mut(len) });
                }
                self.begin_reply();
                answers.push(Answer { entry, unique, errno, payload: Payload::InPlace(len) });
            }
            Some(Route::Device(channel)) => {
                self.begin_reply();
                channel.send_filled(self.unique, len, fill);
            }
            None => {}
        }
    }

    /// Answers with bytes. The payload of the request must not be in use.
    pub(in crate::fuse::session) fn bytes(mut self, bytes: &[u8]) {
        match self.open.take_if(|route| matches!(route, Route::Device(_))) {
            Some(Route::Device(channel)) => {
                self.begin_reply();
                channel.send(self.unique, 0, bytes);
            }
            _ => self.data(bytes.len(), |into| into.copy_from_slice(bytes)),
        }
    }

    /// Answers with bytes of shared memory: `lend` returns them for one system call, `copy` copies
    /// them.
    pub(in crate::fuse::session) fn shared<'a>(
        mut self,
        len: usize,
        lend: impl FnOnce() -> &'a [u8],
        copy: impl FnOnce(&mut [u8]),
    ) {
        match self.open.take_if(|route| matches!(route, Route::Device(_))) {
            Some(Route::Device(channel)) => {
                self.begin_reply();
                channel.send_mapped(self.unique, lend());
            }
            _ => self.data(len, copy),
        }
    }

    /// Returns the memory for a list of names, if it is in an entry.
    fn entry(&self) -> Option<&'static Entry> {
        match &self.open {
            Some(Route::Ring { memory, .. }) => Some(memory),
            Some(Route::Device(_)) | None => None,
        }
    }

    /// Answers with the first `len` bytes of the entry.
    fn send_in_place(&mut self, len: usize) {
        if let Some(Route::Ring { answers, entry, .. }) = self.open.take() {
            self.begin_reply();
            answers.push(Answer { entry, unique: self.unique, errno: 0, payload: Payload::InPlace(len) });
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.send(Errno::IO.raw_os_error(), &[]);
    }
}

/// A request for names, with the names so far.
#[derive(Debug)]
pub(in crate::fuse::session) struct List {
    slot: Slot,
    len: usize,
    limit: usize,
    /// The names, unless they are in an entry.
    names: Vec<u8>,
}

impl List {
    /// Creates an empty list of up to `limit` bytes.
    pub(super) fn new(slot: Slot, limit: usize) -> List {
        match slot.entry() {
            Some(memory) => {
                let limit = limit.min(memory.payload_len());
                List { slot, len: 0, limit, names: Vec::new() }
            }
            None => List { slot, len: 0, limit, names: Vec::with_capacity(limit.min(MAX_LIST)) },
        }
    }

    pub(in crate::fuse::session) fn error(self, errno: i32) {
        self.slot.error(errno);
    }

    /// Adds a name, with `before` in front of it. Returns true if there is no room.
    pub(in crate::fuse::session) fn add(&mut self, before: &[u8], dirent: Dirent, name: &[u8]) -> bool {
        let parts = [before, dirent.as_bytes(), name];
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let end = self.len + bytes.next_multiple_of(size_of::<u64>());
        if end > self.limit {
            return true;
        }
        let Some(memory) = self.slot.entry() else {
            parts.iter().for_each(|part| self.names.extend_from_slice(part));
            self.names.resize(end, 0);
            self.len = end;
            return false;
        };
        // SAFETY: the request has no answer yet, and no payload that is in use.
        let mut room = unsafe { &mut memory.payload_mut(end)[self.len..] };
        for part in parts {
            // The bytes fit, so this cannot fail.
            room.write_all(part).ok();
        }
        room.fill(0);
        self.len = end;
        false
    }

    pub(in crate::fuse::session) fn done(mut self) {
        match self.slot.entry() {
            Some(_) => self.slot.send_in_place(self.len),
            None => {
                let names = std::mem::take(&mut self.names);
                self.slot.send(0, &names);
            }
        }
    }
}
