//! Sends the messages of a queue pair, combining concurrent sends into one doorbell.
//!
//! It is a [`MergeQueue`]: the combiner posts all queued messages, and other threads return at
//! once. A thread that returned does not learn whether its message was posted. The combiner gets
//! the error of a refused post, which ends the session.
//!
//! # Concurrency
//! Called from any thread. The combiner lock is held during the post.

use std::slice;

use smallvec::SmallVec;

use super::limits::{SEND_ID, SIGNAL_EVERY};
use crate::{
    runtime::MergeQueue,
    verbs::{PostError, QueuePair, SendFlags, SendOp, SendWr, Sge},
};

#[derive(Debug, Default)]
pub(crate) struct Outbox(MergeQueue<Sge, PostState>);

/// The combiner's state.
#[derive(Debug, Default)]
struct PostState {
    messages: Vec<Sge>,
    /// Number of messages so far. A signaled message must not be overtaken, or unsignaled ones
    /// would fill the queue.
    sent: u32,
}

impl Outbox {
    /// Sends a message, or leaves it to the combiner. Its buffer belongs to the queue pair until
    /// the message is answered. Returns the number of posts that this thread made.
    ///
    /// # Errors
    /// A post of this thread was refused: its messages, possibly of other threads, were not sent.
    pub(crate) fn send(&self, qp: &dyn QueuePair, message: Sge) -> Result<u64, PostError> {
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

impl PostState {
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

    /// A queue pair that reports each list, and completes the post with the result that the test
    /// sends.
    #[derive(Debug)]
    struct SlowQp {
        posts: Sender<Posted>,
        go_on: Mutex<Receiver<Result<(), PostError>>>,
    }

    impl crate::verbs::Sealed for SlowQp {}

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
    fn messages_sent_during_a_post_leave_with_the_next_one() {
        let (qp, seen, go_on) = slow();
        let outbox = Outbox::default();
        thread::scope(|scope| {
            let first = scope.spawn(|| outbox.send(&qp, message(0)));
            assert_eq!(seen.recv().unwrap(), [(0, false)]);
            // The first thread is posting, so these return at once.
            (1..=9).for_each(|addr| assert_eq!(outbox.send(&qp, message(addr)).unwrap(), 0));
            go_on.send(Ok(())).unwrap();
            // One doorbell, in order; every eighth message is signaled.
            let second: Vec<_> = (1..=9).map(|addr| (addr, addr == 7)).collect();
            assert_eq!(seen.recv().unwrap(), second);
            go_on.send(Ok(())).unwrap();
            assert_eq!(first.join().unwrap().unwrap(), 2);
        });
    }

    #[test]
    fn a_refusal_is_returned_to_the_posting_thread() {
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
