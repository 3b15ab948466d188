//! Messages between the caretaker and the serving program: JSON, with descriptors beside it.
//!
//! # Concurrency
//! Any thread; each message is one datagram. No locks.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// Longest message in bytes.
const MAX_MESSAGE: usize = 64 * 1024;
/// Most descriptors of a message. The kernel allows 253.
const MAX_DESCRIPTORS: usize = 250;

/// The facts of a mount that the caretaker has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::run) struct HeldMount {
    /// Mount point.
    pub(in crate::run) path: PathBuf,
    /// Device number, `major:minor`.
    pub(in crate::run) device: Option<String>,
    /// Name of the maker of the mount.
    pub(in crate::run) maker: String,
    /// Parameters that detach the mount from its server.
    pub(in crate::run) detach: Option<String>,
    /// True if the mount stays in the tree at a failure.
    pub(in crate::run) leaves: bool,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// The caretaker: begin. The descriptors of a mount to continue are the kept state and then the
    /// devices.
    Start(Option<HeldMount>),
    /// The serving program: hold this mount, with its descriptors. The last one is the locked
    /// directory below the mount, if `has_lock`.
    Keep { mount: HeldMount, has_lock: bool },
    /// The serving program: the mount answers.
    Serving,
}

/// Sends a message.
pub(super) fn send(socket: impl AsFd, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(descriptors).size()];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message. `None` at the end of the other process.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut text = vec![0; MAX_MESSAGE];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut text)];
        match recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            // The other process has ended without reading all.
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&text[..received.bytes])?, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (one, two) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
        let files = [(); 3].map(|()| File::open("/dev/null").expect("opened"));
        let borrowed = files.each_ref().map(|file| file.as_fd());
        send(&one, &Message::Serving, &[]).expect("sent");
        send(&one, &Message::Start(None), &borrowed).expect("sent");
        drop(one);
        let (message, none) = receive(&two).expect("received").expect("a message");
        assert_eq!((message, none.len()), (Message::Serving, 0));
        let (message, three) = receive(&two).expect("received").expect("a message");
        assert_eq!((message, three.len()), (Message::Start(None), 3));
        assert!(receive(&two).expect("received").is_none());
    }
}
