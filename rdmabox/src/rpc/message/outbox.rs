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

use std::{slice, time::Instant};

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
        self.send_by_clock(qp, message, now)
    }

    /// Sends a message, as [`send`](Self::send). Shifts are measured by `clock`.
    fn send_by_clock(
        &self,
        qp: &dyn QueuePair,
        message: Sge,
        clock: impl Fn() -> Instant,
    ) -> Result<u64, PostError> {
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
            has_left = cfg!(loom) || shift.count_post(&clock);
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
        sync::mpsc::{Receiver, Sender, channel},
        thread,
        time::Duration,
    };

    use parking_lot::Mutex;

    use super::*;
    use crate::verbs::{QpState, StubQp};

    /// Addresses of messages, and whether they are signaled.
    type Posted = Vec<(u64, bool)>;

    /// Returns a queue pair that reports each list, and completes the post with the result that the
    /// test sends.
    fn slow() -> (impl QueuePair, Receiver<Posted>, Sender<Result<(), PostError>>) {
        let ((posts, seen), (go_on, waits)) = (channel(), channel());
        let waits = Mutex::new(waits);
        let qp = StubQp::new(move |list: &[SendWr<'_>]| {
            let posted = list.iter().map(|wr| (wr.sges[0].addr, wr.flags.contains(SendFlags::SIGNALED)));
            posts.send(posted.collect()).unwrap();
            waits.lock().recv().unwrap()
        });
        (qp, seen, go_on)
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

    /// A message comes during each post. Catches a combiner that posts for others for as long as
    /// they send. By the clock of this test, a shift ends at the second clock read.
    #[test]
    fn a_combiner_is_relieved() {
        const POSTS_OF_A_SHIFT: u64 = 8;
        let (qp, seen, go_on) = slow();
        let (outbox, reads, start) = (Outbox::default(), Mutex::new(0), Instant::now());
        let clock = || {
            *reads.lock() += 1;
            start + *reads.lock() * Duration::from_secs(1)
        };
        let (qp, outbox, clock) = (&qp, &outbox, &clock);
        // The senders move in: a failed assertion drops them, which ends the posting threads.
        thread::scope(move |scope| {
            let first = scope.spawn(move || outbox.send_by_clock(qp, message(0), clock));
            for post in 0..POSTS_OF_A_SHIFT - 1 {
                assert_eq!(seen.recv().unwrap()[0].0, post);
                assert!(!outbox.is_leaving.load(Ordering::SeqCst), "post {post}");
                // The first thread is posting, and takes this message along.
                assert_eq!(outbox.send_by_clock(qp, message(post + 1), clock).unwrap(), 0);
                go_on.send(Ok(())).unwrap();
            }
            assert_eq!(seen.recv().unwrap()[0].0, POSTS_OF_A_SHIFT - 1);
            assert!(outbox.is_leaving.load(Ordering::SeqCst), "the shift is over");
            // This thread posts its message itself, after the first one, which then returns.
            let second = scope.spawn(move || outbox.send_by_clock(qp, message(100), clock));
            go_on.send(Ok(())).unwrap();
            assert_eq!(seen.recv().unwrap()[0].0, 100);
            assert_eq!(first.join().unwrap().unwrap(), POSTS_OF_A_SHIFT);
            go_on.send(Ok(())).unwrap();
            assert_eq!(second.join().unwrap().unwrap(), 1);
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
