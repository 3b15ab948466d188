//! Time limits for calls that the kernel may block for ever.
//!
//! # Concurrency
//! Each call runs on a thread of its own. Takes no locks.

use std::{sync::mpsc, thread, time::Duration};

/// Runs `f` on a separate thread. Returns `None` if `f` takes longer than `limit`. The thread
/// then keeps running, because nothing can end it. So this is for programs that are about to end.
pub fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, wait) = mpsc::channel();
    thread::Builder::new()
        .name("bounded".into())
        .spawn(move || {
            // Fails if the caller has stopped waiting.
            done.send(f()).ok();
        })
        .ok()?;
    wait.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_within_the_limit_returns_its_value() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
    }

    #[test]
    fn a_call_beyond_the_limit_returns_none() {
        let (_keep, never) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(1), move || never.recv().is_ok()), None);
    }
}
