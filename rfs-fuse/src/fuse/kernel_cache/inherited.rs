//! Forgets inodes that the kernel has forgotten unnoticed.
//!
//! The kernel tells once that it has forgotten an inode. If the process that reads this is killed
//! before it notes it, the next process takes the inode for known, and the server keeps an unlinked
//! one for it. So the next process asks the kernel once about each inode that only a previous
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

/// Time from the start of this process until it asks. All threads of the kernel have long read the
/// replies of the previous process by then, even if they had to wait for a core.
const SETTLES: Duration = Duration::from_secs(10);

/// The thread that asks. Dropping this ends it.
#[derive(Debug)]
pub(in crate::fuse) struct Inherited {
    thread: Background,
    /// Nothing is sent: its end stops the thread.
    stop: Option<Sender<()>>,
}

impl Inherited {
    /// Creates it without a thread.
    pub(in crate::fuse) fn new() -> Inherited {
        Inherited { thread: Background::new("inherited"), stop: None }
    }

    /// Starts the thread. The mount has had a previous process.
    pub(in crate::fuse) fn start(&mut self, client: &Arc<Client>, kernel: &KernelLink) {
        let (stop, stopped) = channel();
        let (client, kernel) = (Arc::clone(client), Arc::clone(kernel));
        let run = move || {
            if stopped.recv_timeout(SETTLES) == Err(RecvTimeoutError::Timeout) {
                forget_unknown(&client, &kernel, &stopped);
            }
        };
        match self.thread.start(run) {
            Ok(()) => self.stop = Some(stop),
            Err(e) => log::warn!("cannot start a thread, so that forgotten inodes stay known: {e}"),
        }
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        self.stop = None;
        self.thread.join();
    }
}

/// Asks the kernel about each inherited inode, and forgets those that it does not know.
fn forget_unknown(client: &Client, kernel: &KernelLink, stopped: &Receiver<()>) {
    let inherited = client.lookups.inherited();
    let mut forgotten = 0;
    for &ino in &inherited {
        if stopped.try_recv() == Err(TryRecvError::Disconnected) {
            return;
        }
        match kernel.knows_inode(ino) {
            Ok(true) => {}
            Ok(false) => forgotten += usize::from(client.lookups.forget_inherited(ino)),
            Err(e) => {
                log::warn!("cannot ask the kernel about inode {ino}: {e}");
                return;
            }
        }
    }
    log::debug!("the kernel does not know {forgotten} of {} inherited inodes", inherited.len());
}
