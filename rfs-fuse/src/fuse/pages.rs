//! Drops pages before something is answered.
//!
//! A file that is opened with O_APPEND is written around the kernel's pages. Where somebody else has it open through them, a page may
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

/// The pages of an inode from a byte on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    pub(super) ino: u64,
    pub(super) from: u64,
}

/// What is done when they are gone.
type Then = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Tail, Then)>,
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

    /// Drops the pages, then does something.
    pub(super) fn drop_then(&self, tail: Tail, then: impl FnOnce() + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        if let Err(e) = self.thread.start(move || shared.run()) {
            // A write has been done. To say otherwise would have it done again.
            log::error!("cannot start a thread: pages of inode {} may be old: {e}", tail.ino);
            return then();
        }
        self.shared.queue.lock().jobs.push_back((tail, Box::new(then)));
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
    fn next(&self) -> Option<(Tail, Then)> {
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
        while let Some((Tail { ino, from }, then)) = self.next() {
            if let Err(e) = self.kernel.drop_inode(ino, Part::PagesFrom(from)) {
                log::warn!("cannot drop pages of inode {ino}: {e}");
            }
            then();
        }
    }
}
