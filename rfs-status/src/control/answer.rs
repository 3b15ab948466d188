//! An answer: a JSON document, and descriptors that come with it.
//!
//! # Concurrency
//! The calling thread. No locks.

use std::{
    io::{self, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors of an answer.
const MAX_FILES: usize = 8;

/// An answer of a program.
#[derive(Debug, Default)]
pub struct Answer {
    /// The JSON document.
    pub document: String,
    /// Descriptors that the asker gets, at most eight.
    pub files: Vec<OwnedFd>,
}

impl From<String> for Answer {
    fn from(document: String) -> Answer {
        Answer { document, files: Vec::new() }
    }
}

impl Answer {
    /// Sends the answer.
    ///
    /// # Errors
    /// There are too many descriptors, or the stream fails.
    pub(super) fn send(&self, mut stream: &UnixStream) -> io::Result<()> {
        let bytes = self.document.as_bytes();
        let mut sent = 0;
        if !self.files.is_empty() {
            let files: Vec<_> = self.files.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(io::Error::other("an answer has too many descriptors"));
            }
            sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        }
        stream.write_all(&bytes[sent..])
    }
}

/// Reads a part of an answer, with the descriptors that come with it.
///
/// # Errors
/// The stream fails.
pub(super) fn receive(stream: &UnixStream, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let count = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    Ok(count)
}
