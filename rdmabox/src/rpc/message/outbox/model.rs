//! Loom models of combiners that leave after a post.

use std::sync::{Arc, Mutex};

use super::*;
use crate::{
    sync::model::{check, go},
    verbs::StubQp,
};

/// Asserts that the messages of some threads, `counts` of each, are all posted when the threads
/// have returned.
fn threads_send(counts: &'static [u64]) {
    // Addresses of the posted messages. Their lock is not modelled, because no thread switches
    // while it has it.
    let posted = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&posted);
    let qp = StubQp::new(move |list: &[SendWr<'_>]| {
        record.lock().expect("no thread panics").extend(list.iter().map(|wr| wr.sges[0].addr));
        Ok(())
    });
    let shared = Arc::new((Outbox::default(), qp));
    let send = |thread: usize| {
        let shared = Arc::clone(&shared);
        move || {
            let (outbox, qp) = &*shared;
            for number in 0..counts[thread] {
                let message = Sge { addr: thread as u64 * 10 + number, length: 8, lkey: 1 };
                outbox.send(qp, message).expect("no post is refused");
            }
        }
    };
    let others: Vec<_> = (1..counts.len()).map(|thread| go(send(thread))).collect();
    send(0)();
    others.into_iter().for_each(|other| other.join().expect("a thread that sends"));
    let mut posted = posted.lock().expect("no thread panics").clone();
    posted.sort_unstable();
    let all =
        (0..).zip(counts).flat_map(|(thread, count)| (0..*count).map(move |number| thread * 10 + number));
    assert!(posted.iter().copied().eq(all), "{posted:?}");
}

/// Each combiner leaves after one post. Catches a message that its thread leaves to a combiner
/// that has left, and a message that is posted twice.
#[test]
fn a_message_is_posted_although_the_combiner_leaves() {
    check(None, || threads_send(&[1, 1]));
    check(Some(3), || threads_send(&[2, 2]));
    check(Some(1), || threads_send(&[2, 1, 1]));
}
