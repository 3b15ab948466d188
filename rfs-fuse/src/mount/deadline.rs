//! Calls that the kernel may let wait for ever.

use std::{sync::mpsc, thread, time::Duration};

/// Runs `f` on a thread of its own; `None` if it takes longer than `limit`. Then the thread is left behind: nothing
/// can end it, so this is for programs that are about to end themselves.
pub fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, wait) = mpsc::channel();
    thread::Builder::new()
        .name("bounded".into())
        .spawn(move || {
            // Nobody listens any more after the limit.
            done.send(f()).ok();
        })
        .ok()?;
    wait.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_in_time_gives_its_value() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
    }

    #[test]
    fn what_never_ends_is_given_up() {
        let (_keep, never) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(1), move || never.recv().is_ok()), None);
    }
}
