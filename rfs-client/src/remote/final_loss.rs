//! The final loss of a session: no other session can follow it.
//!
//! # Concurrency
//! Any thread. The lock is held briefly, and not while the watcher runs.

use std::{fmt, mem};

use parking_lot::Mutex;

/// Function that hears why no session can follow a lost one.
pub(crate) type LossWatcher = Box<dyn FnOnce(&str) + Send>;

#[derive(Default)]
struct State {
    reason: Option<String>,
    watcher: Option<LossWatcher>,
}

/// The reason of the final loss of a session, and the function that hears of it.
#[derive(Default)]
pub(crate) struct FinalLoss(Mutex<State>);

impl fmt::Debug for FinalLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FinalLoss").field(&self.reason()).finish()
    }
}

impl FinalLoss {
    /// Records the loss, and tells the watcher. Later losses have no effect.
    pub(crate) fn record(&self, reason: &str) {
        let watcher = {
            let mut state = self.0.lock();
            if state.reason.is_some() {
                return;
            }
            state.reason = Some(reason.to_owned());
            mem::take(&mut state.watcher)
        };
        if let Some(hear) = watcher {
            hear(reason);
        }
    }

    /// Sets the watcher. It hears of an earlier loss at once.
    pub(crate) fn watch(&self, hear: LossWatcher) {
        let mut state = self.0.lock();
        let Some(reason) = state.reason.clone() else {
            state.watcher = Some(hear);
            return;
        };
        drop(state);
        hear(&reason);
    }

    /// Returns the reason, if the session is lost.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().reason.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_watcher_hears_of_the_first_loss_once_before_and_after() {
        let loss = FinalLoss::default();
        assert_eq!(loss.reason(), None);
        let (send, heard) = mpsc::channel();
        let watcher = |send: mpsc::Sender<String>| -> LossWatcher {
            Box::new(move |reason| send.send(reason.to_owned()).unwrap())
        };
        loss.watch(watcher(send.clone()));
        loss.record("first");
        loss.record("second");
        loss.watch(watcher(send));
        assert_eq!(heard.into_iter().collect::<Vec<_>>(), ["first", "first"]);
        assert_eq!(loss.reason().as_deref(), Some("first"));
    }
}
