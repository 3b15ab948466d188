//! Drops pages that a write went around, before the write is answered.
//!
//! A file that is opened with O_APPEND is written around the kernel's pages. Where somebody else has it open through them, a page may
//! be read while such a write is under way, and lack its bytes; so it goes before the writer is told. Not on a session
//! thread: dropping waits for pages that are being read, which only a session thread can bring.

use std::{collections::VecDeque, sync::Arc};

use fuser::ReplyWrite;
use parking_lot::{Condvar, Mutex};

use super::{
    background::Background,
    kernel::{KernelLink, Part},
};

/// Pages that may lack what was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stale {
    pub(super) ino: u64,
    /// The first byte; all that follow may be stale, too.
    pub(super) from: u64,
    /// How much was written.
    pub(super) len: u32,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Stale, ReplyWrite)>,
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

    /// Drops the pages, then answers the write.
    pub(super) fn drop_then_reply(&self, stale: Stale, reply: ReplyWrite) {
        let shared = Arc::clone(&self.shared);
        if let Err(e) = self.thread.start(move || shared.run()) {
            // The bytes are written. To say otherwise would have them written again.
            log::error!("cannot start a thread: pages of inode {} may be old: {e}", stale.ino);
            return reply.written(stale.len);
        }
        self.shared.queue.lock().jobs.push_back((stale, reply));
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
    fn next(&self) -> Option<(Stale, ReplyWrite)> {
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
        while let Some((Stale { ino, from, len }, reply)) = self.next() {
            if let Err(e) = self.kernel.drop_inode(ino, Part::PagesFrom(from)) {
                log::warn!("cannot drop pages of inode {ino}: {e}");
            }
            reply.written(len);
        }
    }
}
