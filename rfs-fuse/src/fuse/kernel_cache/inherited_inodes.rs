//! Forgets inodes that the kernel has forgotten unnoticed.
//!
//! The kernel tells once that it has forgotten an inode. If the process that reads this message is
//! killed before it notes it, the next process takes the inode for known. The server then keeps an
//! unlinked inode for it. So the next process asks the kernel about each inode that only a previous
//! process has named.
//!
//! # Concurrency
//! One thread, which starts with a continued mount and ends after its work. No locks.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    time::Duration,
};

use rfs_client::Client;

use crate::fuse::{background::Background, kernel::KernelLink};

/// Time from the start of this process until it asks first. All threads of the kernel have long
/// read the replies of the previous process by then, even if they had to wait for a core. The time
/// doubles while there are inherited inodes: one that is used again may be forgotten later.
const SETTLES: Duration = Duration::from_secs(10);
/// Longest time between two rounds of questions.
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// Time in which session threads handle a message of the kernel that it forgets inodes.
const HANDLES_FORGETS: Duration = Duration::from_secs(5);

/// The thread that asks. Dropping this ends it.
#[derive(Debug)]
pub(in crate::fuse) struct InheritedInodes {
    thread: Background,
    /// Nothing is sent: its end stops the thread.
    stop: Option<Sender<()>>,
}

impl InheritedInodes {
    /// Creates it without a thread.
    pub(in crate::fuse) fn new() -> InheritedInodes {
        InheritedInodes { thread: Background::new("inherited"), stop: None }
    }

    /// Starts the thread. The mount has had a previous process.
    pub(in crate::fuse) fn start(&mut self, client: &Arc<Client>, kernel: &KernelLink) {
        let (stop, stopped) = channel();
        let (client, kernel) = (Arc::clone(client), Arc::clone(kernel));
        let run = move || Questions { client, kernel, stopped, has_failed: false }.ask_all();
        match self.thread.start(run) {
            Ok(()) => self.stop = Some(stop),
            Err(e) => log::warn!("cannot start a thread, so that forgotten inodes stay known: {e}"),
        }
    }
}

impl Drop for InheritedInodes {
    fn drop(&mut self) {
        self.stop = None;
        self.thread.join();
    }
}

/// The work of the thread.
struct Questions {
    client: Arc<Client>,
    kernel: KernelLink,
    stopped: Receiver<()>,
    /// The kernel could not answer a question.
    has_failed: bool,
}

impl Questions {
    /// Asks until there are no inherited inodes, or the mount ends.
    fn ask_all(mut self) {
        let mut pause = SETTLES;
        while self.goes_on_after(pause) {
            let inherited = self.client.lookups.inherited();
            if inherited.is_empty() {
                return;
            }
            let unknown = self.unknown(inherited);
            // The kernel may have forgotten some just now. Their references are returned first.
            if !unknown.is_empty() && self.goes_on_after(HANDLES_FORGETS) {
                let unknown = self.unknown(unknown);
                let forgets = |ino: &&u64| self.client.lookups.forget_inherited(**ino);
                let forgotten = unknown.iter().filter(forgets).count();
                log::debug!(
                    "{forgotten} inherited inodes are forgotten, because the kernel does not know them"
                );
            }
            pause = MAX_PAUSE.min(2 * pause);
        }
    }

    /// Waits. Returns false if the mount ends.
    fn goes_on_after(&self, pause: Duration) -> bool {
        self.stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
    }

    /// Returns those of these inodes that the kernel does not know.
    fn unknown(&mut self, mut inos: Vec<u64>) -> Vec<u64> {
        inos.retain(|&ino| {
            if self.stopped.try_recv() == Err(TryRecvError::Disconnected) {
                return false;
            }
            let known = self.kernel.knows_inode(ino);
            if let Err(e) = &known
                && !std::mem::replace(&mut self.has_failed, true)
            {
                log::warn!("cannot ask the kernel about inode {ino}: {e}");
            }
            matches!(known, Ok(false))
        });
        inos
    }
}
