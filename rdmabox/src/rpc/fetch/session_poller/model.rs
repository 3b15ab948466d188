//! Loom models of clients and the host's threads: no request is stranded.

use std::sync::Arc;

use super::*;
use crate::sync::{
    atomic::AtomicU64,
    model::{check, go},
};

/// The host's side of a session with two call slots.
#[derive(Default)]
struct Session {
    requests: [AtomicU64; 2],
    taken: [Mutex<u64>; 2],
    asleep: AtomicU64,
    poll_state: PollState,
}

impl Session {
    fn serve_slot(&self, slot: usize) -> bool {
        let mut taken = self.taken[slot].lock();
        let request = self.requests[slot].load(Ordering::Acquire);
        std::mem::replace(&mut *taken, request) != request
    }
}

impl PolledSession for Session {
    type Work = ();

    fn serve(self: &Arc<Self>, (): &mut ()) -> bool {
        (0..2).fold(false, |found, slot| self.serve_slot(slot) || found)
    }

    fn mark(&self, awake: bool) {
        self.asleep.store(u64::from(!awake), Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        false
    }

    fn poll_state(&self) -> Option<&PollState> {
        Some(&self.poll_state)
    }
}

struct Nothing;

impl BetweenRounds<()> for Nothing {
    fn after_round(&self, (): &mut ()) -> bool {
        true
    }
}

#[derive(Default)]
struct Host {
    session: Arc<Session>,
    watch: SessionPoller<Session>,
}

impl Host {
    fn new() -> Arc<Host> {
        let host = Arc::new(Host::default());
        host.session.mark(false);
        host
    }

    /// Handles a notification of a slot like a thread of the host.
    fn handle_notification(&self, slot: usize) {
        self.session.serve_slot(slot);
        self.watch.wake(&self.session);
        self.watch.run(&mut (), &Nothing);
    }

    /// Makes a call without waiting for the answer. The calling thread also handles its
    /// notification.
    fn call(&self, slot: usize, fenced: bool) {
        self.session.requests[slot].store(1, Ordering::Release);
        if fenced {
            fence_after_request();
        }
        if self.session.asleep.load(Ordering::Relaxed) == 1 {
            self.handle_notification(slot);
        }
    }

    fn assert_no_call_is_stranded(&self, slots: usize) {
        for slot in 0..slots {
            assert_eq!(*self.session.taken[slot].lock(), 1, "the call in slot {slot} waits forever");
        }
        assert_eq!(
            self.session.asleep.load(Ordering::Relaxed),
            1,
            "no thread polls, and the client is not told"
        );
    }
}

fn a_call_and_a_host_that_goes_to_sleep(fenced: bool) {
    check(Some(3), move || {
        let host = Host::new();
        let watcher = go({
            let host = Arc::clone(&host);
            move || {
                host.watch.wake(&host.session);
                host.watch.run(&mut (), &Nothing);
            }
        });
        host.call(0, fenced);
        watcher.join().unwrap();
        host.assert_no_call_is_stranded(1);
    });
}

#[test]
fn the_host_finds_a_request_or_is_notified_of_it() {
    a_call_and_a_host_that_goes_to_sleep(true);
}

#[test]
#[should_panic = "waits forever"]
fn without_the_clients_fence_a_call_may_wait_forever() {
    a_call_and_a_host_that_goes_to_sleep(false);
}

#[test]
fn two_clients_notify_the_host_and_none_is_left() {
    check(Some(2), || {
        let host = Host::new();
        let other = go({
            let host = Arc::clone(&host);
            move || host.call(1, true)
        });
        host.call(0, true);
        other.join().unwrap();
        host.assert_no_call_is_stranded(2);
    });
}
