//! Recalls that a test has the server send.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rdmabox::{Cancel, RequestError};
use rfs_proto::{Recall, Recalls, Reply, encode_reply};

#[derive(Debug, Default)]
struct State {
    recalls: Vec<Recall>,
    /// True once the client has asked.
    asked: bool,
    /// Number of the last reply.
    number: u64,
    done: u64,
}

/// Recalls to send.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    moved: Condvar,
}

impl Pending {
    /// Sends recalls, and returns when the client has acknowledged them.
    pub(crate) fn send(&self, recalls: &[Recall]) {
        let mut state = self.state.lock();
        state.recalls.extend_from_slice(recalls);
        let number = state.number + 1;
        self.moved.notify_all();
        while state.done < number {
            self.moved.wait(&mut state);
        }
    }

    /// Answers a request for recalls. Checks periodically whether the client has cancelled it.
    pub(crate) fn next(
        &self,
        done: u64,
        reply: &mut Vec<u8>,
        cancel: &Cancel,
        alive: impl Fn() -> Result<(), RequestError>,
    ) -> Result<(), RequestError> {
        let mut state = self.state.lock();
        assert_eq!(done, state.number, "it says what it has obeyed");
        state.done = done;
        self.moved.notify_all();
        let is_first = !std::mem::replace(&mut state.asked, true);
        while state.recalls.is_empty() && !is_first {
            alive()?;
            if cancel.is_cancelled() {
                return Err(RequestError::Cancelled);
            }
            self.moved.wait_for(&mut state, Duration::from_millis(1));
        }
        // The first reply is immediate: it tells that recalls are queued from now on.
        state.number += u64::from(!state.recalls.is_empty());
        let recalls = std::mem::take(&mut state.recalls);
        encode_reply(&Reply::Recalls(Recalls { number: state.number, recalls }), reply);
        Ok(())
    }
}
