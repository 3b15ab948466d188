//! Reports a session thread that ends although the kernel still sends requests.
//!
//! A session thread ends if it cannot read a request, or if it panics. The session has ended only
//! when all its threads have. Until then the mount would go on with fewer threads, and perhaps with
//! a request without an answer.
//!
//! # Concurrency
//! Session threads. The failure handler runs on the thread that ends.

use std::{cell::OnceCell, os::fd::OwnedFd, sync::Arc, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

thread_local! {
    static END: OnceCell<ThreadEnd> = const { OnceCell::new() };
}

/// Dropped when its thread ends.
struct ThreadEnd {
    device: Arc<OwnedFd>,
    name: String,
}

/// Watches the calling session thread, which serves the connection of `device`.
pub(super) fn watch(device: &Arc<OwnedFd>) {
    END.with(|end| {
        end.get_or_init(|| ThreadEnd {
            device: Arc::clone(device),
            name: thread::current().name().unwrap_or_default().to_owned(),
        });
    });
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        if is_connected(&self.device) {
            rdmabox::failure::report(&format!("session thread {} ended", self.name));
        }
    }
}

/// Returns true unless the kernel has ended the connection, because of an unmount or an abort.
fn is_connected(device: &OwnedFd) -> bool {
    let mut of_device = [PollFd::new(device, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ended = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    poll(&mut of_device, Some(&now)).is_ok_and(|_| !of_device[0].revents().intersects(ended))
}

#[cfg(test)]
mod tests {
    use std::{io, sync::mpsc};

    use rustix::pipe::pipe;

    use super::*;

    /// The process has one handler of failures, so one test covers all cases.
    #[test]
    fn a_thread_that_ends_before_the_connection_is_reported() -> io::Result<()> {
        let (send, failures) = mpsc::channel();
        rdmabox::failure::watch(move |failure| {
            if failure.contains("early") || failure.contains("late") {
                send.send(failure.to_owned()).ok();
            }
        });
        // The end of a pipe without a reader stands for a device without a connection.
        let (reader, device) = pipe()?;
        let device = Arc::new(device);
        let run = |name: &str| {
            let device = Arc::clone(&device);
            let served = move || (0..3).for_each(|_| watch(&device));
            thread::Builder::new().name(name.into()).spawn(served).map(|thread| thread.join().is_ok())
        };
        assert!(run("early")?);
        drop(reader);
        assert!(run("late")?);
        assert_eq!(failures.try_iter().collect::<Vec<_>>(), ["session thread early ended"]);
        Ok(())
    }
}
