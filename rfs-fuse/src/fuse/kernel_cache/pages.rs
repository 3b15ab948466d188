//! Has the kernel drop pages before a request is answered.
//!
//! - A buffered read during a write with O_DIRECT may have filled pages with old bytes
//!   (`page_ranges`).
//! - Writes with O_APPEND bypass the kernel's pages, and a read during such a write may fill
//!   pages without its bytes.
//! - With `--cache writeback` the kernel searches for data (SEEK_DATA) without writing back.
//!   Dropping writes back.
//! - The collected listing of a directory may be stale. It goes before the kernel takes it for
//!   complete.
//!
//! # Concurrency
//! A thread of its own, because dropping waits for pages that are being read or written back,
//! which needs a session thread. One lock over the queue.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::{Condvar, Mutex};

use crate::fuse::{
    background::Background,
    kernel::{KernelLink, Part},
};

/// Pages of an inode that the kernel drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) struct PageDrop {
    ino: u64,
    part: Part,
}

impl PageDrop {
    /// Returns the pages from a byte on.
    pub(in crate::fuse) fn tail(ino: u64, from: u64) -> PageDrop {
        PageDrop { ino, part: Part::PagesFrom(from) }
    }

    /// Returns the pages of a range: its first byte and its length, which is not 0.
    pub(in crate::fuse) fn range(ino: u64, (from, len): (u64, u64)) -> PageDrop {
        PageDrop { ino, part: Part::Pages(from, len) }
    }
}

/// Maximum number of direct writes that wait for a drop. Further writes are answered before their
/// pages are dropped. Otherwise the kernel could not send the read-ahead that has a page locked.
pub(in crate::fuse) const MAX_WAITING: usize = 192;

/// Runs after the drop.
type Continuation = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(PageDrop, Continuation)>,
    stop: bool,
}

struct Shared {
    kernel: KernelLink,
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The thread, which starts with the first job. Dropping this ends the thread.
pub(in crate::fuse) struct Pages {
    shared: Arc<Shared>,
    thread: Background,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pages")
    }
}

impl Pages {
    pub(in crate::fuse) fn new(kernel: KernelLink) -> Pages {
        let shared = Shared { kernel, queue: Mutex::default(), work: Condvar::new() };
        Pages { shared: Arc::new(shared), thread: Background::new("pages") }
    }

    /// Drops pages and then answers a direct write. If [`MAX_WAITING`] writes wait, answers first.
    pub(in crate::fuse) fn drop_and_answer(&self, dropped: PageDrop, answer: impl FnOnce() + Send + 'static) {
        let full = self.shared.queue.lock().jobs.len() >= MAX_WAITING;
        if full {
            answer();
            return self.drop_then(dropped, || {});
        }
        self.drop_then(dropped, answer);
    }

    /// Drops pages, then calls `then`.
    pub(in crate::fuse) fn drop_then(&self, dropped: PageDrop, then: impl FnOnce() + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        if let Err(e) = self.thread.start(move || shared.run()) {
            // The write has succeeded. An error would make the program repeat it.
            log::error!("cannot start a thread: pages of inode {} may be stale: {e}", dropped.ino);
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
    fn next(&self) -> Option<(PageDrop, Continuation)> {
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
        while let Some((PageDrop { ino, part }, then)) = self.next() {
            if let Err(e) = self.kernel.drop_inode(ino, part) {
                log::warn!("cannot drop pages of inode {ino}: {e}");
            }
            then();
        }
    }
}
