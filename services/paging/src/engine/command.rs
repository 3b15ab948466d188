//! Commands to the fault thread, and the descriptor that wakes it.
//!
//! # Concurrency
//! Any thread sends. A sender that waits for a reply must not be the fault thread.

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use rustix::event::{EventfdFlags, eventfd};

/// The reply of the fault thread.
pub(crate) type Answer = mpsc::SyncSender<io::Result<()>>;

/// A command.
#[derive(Debug)]
pub(crate) enum Command {
    /// Pages a new mapping.
    Map { start: usize, len: usize, reply: Answer },
    /// Forgets the bytes of pages, which read as zero afterwards.
    Discard { region: usize, pages: Range<usize>, reply: Answer },
    /// Ends a region. The caller unmaps it afterwards.
    Unmap { region: usize, reply: Answer },
    /// Ends the thread. There are no regions any more.
    Stop,
}

/// Wakes the fault thread. Wakes before the next [`clear`](Wake::clear) are one.
#[derive(Debug)]
pub(crate) struct Wake {
    fd: OwnedFd,
    is_set: AtomicBool,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_set: AtomicBool::new(false),
        })
    }

    pub(crate) fn wake(&self) {
        if !self.is_set.swap(true, Ordering::SeqCst) {
            // Fails only if the counter is full, and then it is readable.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable. The caller looks at its channels afterwards.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        self.is_set.store(false, Ordering::SeqCst);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sends commands. The fault thread ends when its handle is dropped.
#[derive(Debug)]
pub(crate) struct Handle {
    commands: mpsc::Sender<Command>,
    wake: Arc<Wake>,
    /// The process that has the thread. A child of `fork` has none.
    process: u32,
}

impl Handle {
    pub(crate) fn new(commands: mpsc::Sender<Command>, wake: Arc<Wake>) -> Handle {
        Handle { commands, wake, process: std::process::id() }
    }

    /// Sends a command, and waits for the reply. `None` if the thread has ended, or belongs to the
    /// parent of this process.
    pub(crate) fn ask(&self, command: impl FnOnce(Answer) -> Command) -> Option<io::Result<()>> {
        if self.process != std::process::id() {
            return None;
        }
        let (send, receive) = mpsc::sync_channel(1);
        self.commands.send(command(send)).ok()?;
        self.wake.wake();
        receive.recv().ok()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        self.wake.wake();
    }
}
