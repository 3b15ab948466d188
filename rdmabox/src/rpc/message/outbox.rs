//! Sends the messages of a queue pair, combining concurrent sends into one doorbell.
//!
//! It is a [`MergeQueue`]: the combiner posts all queued messages, and other threads return at
//! once. A thread that returned does not learn whether its message was posted. The combiner gets
//! the error of a refused post, which ends the session.
//!
//! A combiner posts for others for a [`Shift`]. It then says that it leaves, and posts once more. A
//! thread that sends from then on waits for that post, and is the next combiner.
//!
//! # Concurrency
//! Called from any thread. The combiner lock is held during the post. A combiner sets `is_leaving`
//! before it collects the last messages, and a sender reads it after it has queued its message. So
//! the combiner has the message, or the sender waits for the lock.

use std::slice;

use smallvec::SmallVec;

use super::limits::{SEND_ID, SIGNAL_EVERY};
use crate::{
    runtime::{CombinerGuard, MergeQueue, Shift},
    sync::{
        atomic::{AtomicBool, Ordering, fence},
        now,
    },
    verbs::{PostError, QueuePair, SendFlags, SendOp, SendWr, Sge},
};

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: MergeQueue<Sge, PostState>,
    /// True if the last combiner has ended its shift.
    is_leaving: AtomicBool,
}

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
        let mut post = |guard: &mut CombinerGuard<'_, Sge, PostState>| {
            guard.collect(|waiting| &mut waiting.messages);
            posts += u64::from(!guard.state().messages.is_empty());
            if let Err(e) = guard.state().post(qp) {
                outcome = Err(e);
            }
        };
        self.queue.push(std::iter::once(message));
        fence(Ordering::SeqCst);
        if self.is_leaving.load(Ordering::SeqCst) {
            self.queue.with(|guard| {
                self.is_leaving.store(false, Ordering::SeqCst);
                post(guard);
            });
        }
        let (mut shift, mut has_left) = (Shift::default(), false);
        self.queue.flush(|guard| {
            if has_left {
                if self.is_leaving.load(Ordering::SeqCst) {
                    // Later messages are those of threads that wait for the lock.
                    return;
                }
                // The next combiner has come. A thread may have found the lock held by this one.
                shift = Shift::default();
            }
            // In models time does not pass: a shift ends with its first post.
            has_left = cfg!(loom) || shift.count_post(now);
            if has_left {
                self.is_leaving.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
            }
            post(guard);
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

#[cfg(all(loom, test))]
mod model;

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::AtomicU64,
            mpsc::{Receiver, Sender, channel},
        },
        thread,
        time::{Duration, Instant},
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

    /// A queue pair whose posts last until another thread has sent, but not for ever: that thread
    /// may wait for the end of the post.
    #[derive(Debug, Default)]
    struct BusyQp {
        /// Number of messages whose send has returned, by thread.
        sent: [AtomicU64; 2],
        posted: AtomicU64,
    }

    impl BusyQp {
        fn sent(&self) -> [u64; 2] {
            self.sent.each_ref().map(|sent| sent.load(Ordering::SeqCst))
        }
    }

    impl crate::verbs::Sealed for BusyQp {}

    impl QueuePair for BusyQp {
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
            let (before, began) = (self.sent(), Instant::now());
            while self.sent() == before && began.elapsed() < Duration::from_millis(20) {
                thread::sleep(Duration::from_micros(20));
            }
            self.posted.fetch_add(list.len() as u64, Ordering::SeqCst);
            Ok(())
        }

        fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
            unreachable!("nothing is received")
        }

        fn to_error(&self) {}
    }

    /// Two threads send, each during the posts of the other one. Catches a combiner that returns to
    /// its caller only by chance, after thousands of posts. Each message is posted once, whichever
    /// thread posts it.
    #[test]
    fn a_combiner_is_relieved() {
        const ENOUGH: u64 = 100;
        // A shift of slow posts has eight, and of quick ones as many as fit in a millisecond.
        const MAX_POSTS: u64 = 500;
        let most = AtomicU64::new(0);
        let (qp, outbox, over) = (BusyQp::default(), Outbox::default(), AtomicBool::new(false));
        let returned = thread::scope(|scope| {
            let (qp, outbox, over, most) = (&qp, &outbox, &over, &most);
            for sent in &qp.sent {
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        most.fetch_max(outbox.send(qp, message(1)).unwrap(), Ordering::SeqCst);
                        sent.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(Duration::from_micros(20));
                    }
                });
            }
            let began = Instant::now();
            while qp.sent().iter().any(|sent| *sent < ENOUGH) && began.elapsed() < Duration::from_secs(30) {
                thread::sleep(Duration::from_millis(1));
            }
            let returned = qp.sent();
            over.store(true, Ordering::SeqCst);
            returned
        });
        assert!(returned.iter().all(|sent| *sent >= ENOUGH), "{returned:?}");
        assert!(most.load(Ordering::SeqCst) < MAX_POSTS, "{most:?} posts in one call");
        assert_eq!(qp.posted.load(Ordering::SeqCst), qp.sent().iter().sum::<u64>());
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
