//! The attack with descriptors that the server does not expect.

use std::{
    collections::VecDeque,
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
};

use rdmabox::fuzzing::{Intruder, RawStream, call_frame};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{
    attack_run::{AttackRun, Steps},
    dead_mount::DeadMount,
};
use crate::flood::failure::Failure;

/// Number of descriptors of one message: the maximum that the kernel accepts (SCM_MAX_FD).
const MAX_FDS: usize = 253;
/// Number of connections that are held at a time.
const HELD: usize = 300;
/// Number of messages with descriptors on one connection, in one round.
const MESSAGES: usize = 4;

/// Sends `bytes` with `MAX_FDS` copies of `fd`.
fn send_with(stream: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd; MAX_FDS];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Sends descriptors on new connections, on control streams and on streams of queue pairs.
pub(super) fn send(run: &AttackRun<'_>) -> Result<Steps, Failure> {
    let Some(address) = &run.flood.unix else { return Ok(Steps::default()) };
    let dead = DeadMount::new().map_err(|e| Failure::Member(format!("a mount that does not answer: {e}")))?;
    let file = dead.file();
    let (mut steps, mut held) = (Steps::default(), VecDeque::new());
    while run.is_running() {
        // A new connection, in the middle of its preamble.
        if let Ok(stranger) = RawStream::connect(address) {
            steps.count(send_with(stranger.as_fd(), b"r", file));
            held.push_back((stranger, None));
        }
        let made = Intruder::open(address, run.key, 1).and_then(|mut session| {
            // The handshake of a queue pair.
            let streams = session.complete(1)?;
            Ok((session, streams))
        });
        if let Ok((session, mut streams)) = made {
            for _ in 0..MESSAGES {
                steps.count(send_with(session.control(), &[0], file));
                let call = call_frame(0, 0, &[]);
                for stream in &streams {
                    // Half a frame: the server waits for the rest.
                    steps.count(send_with(stream.as_fd(), &call[..4], file));
                }
            }
            if let Some(first) = streams.pop() {
                held.push_back((first, Some((session, streams))));
            }
        }
        while held.len() > HELD {
            held.pop_front();
        }
    }
    drop(held);
    match steps.taken {
        0 => Err(Failure::Member("no descriptor was sent".into())),
        _ => Ok(steps),
    }
}
