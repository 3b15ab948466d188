//! Drops pages before something is answered.
//!
//! A write with O_DIRECT may have been passed by a buffered read, which left the bytes of before in the kernel's pages
//! (`page_ranges`); so these go before the writer is told. A file that is opened with O_APPEND is written around the kernel's pages. Where somebody else has it open through them, a page may
//! be read while such a write is under way, and lack its bytes; so it goes before the writer is told. Where the kernel keeps what is
//! written, it does not say so when it asks where there is data: pages are written back with being dropped. What was collected of a
//! directory may be old, and goes before the kernel takes it for whole. Not on a session
//! thread: dropping waits for pages that are being read or written back, for which it takes a session thread.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::{Condvar, Mutex};

use super::{
    background::Background,
    kernel::{KernelLink, Part},
};

/// Pages of an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropped {
    ino: u64,
    part: Part,
}

impl Dropped {
    /// The pages from a byte on.
    pub(super) fn tail(ino: u64, from: u64) -> Dropped {
        Dropped { ino, part: Part::PagesFrom(from) }
    }

    /// The pages of a range: its first byte and its length, which is not 0.
    pub(super) fn range(ino: u64, (from, len): (u64, u64)) -> Dropped {
        Dropped { ino, part: Part::Pages(from, len) }
    }
}

/// Direct writes that wait at a time. Beyond it they are answered before the pages are dropped: the kernel could not send the read-ahead
/// that has a page locked.
pub(super) const MAX_WAITING: usize = 192;

/// What is done when they are gone.
type Then = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Dropped, Then)>,
    stop: bool,
}

struct Shared {
    kernel: KernelLink,
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The thread, which is started when there is something to drop. Dropping this ends it.
pub(super) struct Pages {
    shared: Arc<Shared>,
    thread: Background,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pages")
    }
}

impl Pages {
    pub(super) fn new(kernel: KernelLink) -> Pages {
        let shared = Shared { kernel, queue: Mutex::default(), work: Condvar::new() };
        Pages { shared: Arc::new(shared), thread: Background::new("pages") }
    }

    /// Drops the pages and then answers a direct write, or the other way round if [`MAX_WAITING`] writes wait.
    pub(super) fn drop_and_answer(&self, dropped: Dropped, answer: impl FnOnce() + Send + 'static) {
        let full = self.shared.queue.lock().jobs.len() >= MAX_WAITING;
        if full {
            answer();
            return self.drop_then(dropped, || {});
        }
        self.drop_then(dropped, answer);
    }

    /// Drops the pages, then does something.
    pub(super) fn drop_then(&self, dropped: Dropped, then: impl FnOnce() + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        if let Err(e) = self.thread.start(move || shared.run()) {
            // A write has been done. To say otherwise would have it done again.
            log::error!("cannot start a thread: pages of inode {} may be old: {e}", dropped.ino);
            return then();
        }
        self.shared.queue.lock().jobs.push_back((dropped, Box::new(then)));
        self.shared.work.notify_one();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.work.notify_one();
        self.thread.join();
    }
}

impl Shared {
    fn next(&self) -> Option<(Dropped, Then)> {
        let mut queue = self.queue.lock();
        loop {
            match queue.jobs.pop_front() {
                Some(job) => return Some(job),
                None if queue.stop => return None,
                None => self.work.wait(&mut queue),
            }
        }
    }

    fn run(&self) {
        while let Some((Dropped { ino, part }, then)) = self.next() {
            if let Err(e) = self.kernel.drop_inode(ino, part) {
                log::warn!("cannot drop pages of inode {ino}: {e}");
            }
            then();
        }
    }
}
