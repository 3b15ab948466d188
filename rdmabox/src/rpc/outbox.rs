//! The way out of a queue pair's messages: those of threads that send at the same time leave with one doorbell.
//!
//! A [`MergeQueue`], as for one-sided requests: whoever finds nobody posting posts what has come until then, the others leave.
//! Who leaves has not been told whether his message was posted; a refusal is told to whoever posted, and ends the session.

use std::slice;

use smallvec::SmallVec;

use super::{SEND_ID, SIGNAL_EVERY};
use crate::{
    runtime::MergeQueue,
    verbs::{PostError, QueuePair, SendFlags, SendOp, SendWr, Sge},
};

#[derive(Debug, Default)]
pub(super) struct Outbox(MergeQueue<Sge, Waiting>);

/// What the posting thread works on.
#[derive(Debug, Default)]
struct Waiting {
    messages: Vec<Sge>,
    /// Messages so far. A signaled one must not be overtaken, or the unsignaled ones would fill the queue.
    sent: u32,
}

impl Outbox {
    /// Sends a message, or leaves it to the thread that is posting. Its buffer belongs to the queue pair until it has been
    /// answered. How many posts this thread made: for itself, and for those who left theirs to it.
    ///
    /// # Errors
    /// This thread's post was refused: this message, or one that others left to it, has not gone, nor have those behind it.
    pub(super) fn send(&self, qp: &dyn QueuePair, message: Sge) -> Result<u64, PostError> {
        let (mut outcome, mut posts) = (Ok(()), 0);
        self.0.push(std::iter::once(message));
        self.0.flush(|guard| {
            guard.collect(|waiting| &mut waiting.messages);
            posts += u64::from(!guard.state().messages.is_empty());
            if let Err(e) = guard.state().post(qp) {
                outcome = Err(e);
            }
        });
        outcome.map(|()| posts)
    }
}

impl Waiting {
    fn post(&mut self, qp: &dyn QueuePair) -> Result<(), PostError> {
        if self.messages.is_empty() {
            return Ok(());
        }
        let sent = &mut self.sent;
        let list: SmallVec<[SendWr<'_>; 4]> = self
            .messages
            .iter()
            .map(|message| {
                *sent = sent.wrapping_add(1);
                let signaled = sent.is_multiple_of(SIGNAL_EVERY);
                SendWr {
                    wr_id: SEND_ID,
                    op: SendOp::Send { imm: None },
                    sges: slice::from_ref(message),
                    inline: None,
                    flags: if signaled { SendFlags::SIGNALED } else { SendFlags::empty() },
                }
            })
            .collect();
        let posted = qp.post_send(&list);
        drop(list);
        self.messages.clear();
        posted
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, Sender, channel},
        thread,
        time::Duration,
    };

    use parking_lot::Mutex;

    use super::*;
    use crate::verbs::{QpCaps, QpState, RecvWr, Rendezvous, VerbsError};

    /// Addresses of messages, and whether they are signaled.
    type Posted = Vec<(u64, bool)>;

    /// Tells what it is given to post, and posts it when it is told how that goes.
    #[derive(Debug)]
    struct SlowQp {
        posts: Sender<Posted>,
        go_on: Mutex<Receiver<Result<(), PostError>>>,
    }

    impl QueuePair for SlowQp {
        fn qp_num(&self) -> u32 {
            1
        }

        fn state(&self) -> QpState {
            QpState::Rts
        }

        fn caps(&self) -> QpCaps {
            QpCaps::default()
        }

        fn connect(&self, _: Rendezvous, _: Duration) -> Result<(), VerbsError> {
            unreachable!("it is connected")
        }

        fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
            let seen = list.iter().map(|wr| (wr.sges[0].addr, wr.flags.contains(SendFlags::SIGNALED)));
            self.posts.send(seen.collect()).unwrap();
            self.go_on.lock().recv().unwrap()
        }

        fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
            unreachable!("nothing is received")
        }

        fn to_error(&self) {}
    }

    fn slow() -> (SlowQp, Receiver<Posted>, Sender<Result<(), PostError>>) {
        let ((posts, seen), (go_on, waits)) = (channel(), channel());
        (SlowQp { posts, go_on: Mutex::new(waits) }, seen, go_on)
    }

    fn message(addr: u64) -> Sge {
        Sge { addr, length: 8, lkey: 1 }
    }

    #[test]
    fn those_who_come_during_a_post_go_with_the_next_one() {
        let (qp, seen, go_on) = slow();
        let outbox = Outbox::default();
        thread::scope(|scope| {
            let first = scope.spawn(|| outbox.send(&qp, message(0)));
            assert_eq!(seen.recv().unwrap(), [(0, false)]);
            // The first one is posting: these leave at once.
            (1..=9).for_each(|addr| assert_eq!(outbox.send(&qp, message(addr)).unwrap(), 0));
            go_on.send(Ok(())).unwrap();
            // One doorbell, in order; every eighth is signaled.
            let second: Vec<_> = (1..=9).map(|addr| (addr, addr == 7)).collect();
            assert_eq!(seen.recv().unwrap(), second);
            go_on.send(Ok(())).unwrap();
            assert_eq!(first.join().unwrap().unwrap(), 2);
        });
    }

    #[test]
    fn a_refusal_is_told_to_whoever_posts() {
        use crate::verbs::PostErrorReason;
        let (qp, seen, go_on) = slow();
        let outbox = Outbox::default();
        let refusal = PostError { posted: 0, reason: PostErrorReason::State(QpState::Init) };
        thread::scope(|scope| {
            let first = scope.spawn(|| outbox.send(&qp, message(0)));
            seen.recv().unwrap();
            outbox.send(&qp, message(1)).unwrap();
            go_on.send(Err(refusal)).unwrap();
            assert_eq!(seen.recv().unwrap(), [(1, false)]);
            go_on.send(Ok(())).unwrap();
            assert!(first.join().unwrap().is_err());
        });
    }
}
