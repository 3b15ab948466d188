//! Locks that are waited for, and what has to happen between getting a lock and saying so.
//!
//! A session thread never waits for a lock: it hands the request over to one thread, which asks the server again and
//! again, and at once when somebody here has unlocked. That thread ends a wait when its process has a signal to handle: fuser
//! does not pass FUSE_INTERRUPT on, so that it looks into `/proc`. It also drops what the kernel keeps of the file before
//! it answers; on a session thread that could wait for pages which only a session thread can bring.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::Arc,
    time::{Duration, Instant},
};

use fuser::{Errno, ReplyEmpty, Request};
use parking_lot::{Condvar, Mutex};
use rfs_proto::{LockClass, LockRange};

use super::{
    background::Background,
    convert,
    kernel::{KernelLink, Part},
    process::Signals,
};
use crate::client::{Client, ClientError, LockRequest};

/// The first pause between two questions; each is half as long again as the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(300);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// A process that waits.
struct Waiting {
    wanted: LockRequest,
    /// The thread that waits.
    tid: u32,
    reply: ReplyEmpty,
    /// It has the lock, and the kernel's caches are to be dropped.
    granted: bool,
    pause: Duration,
    next: Instant,
    signals: Signals,
}

#[derive(Default)]
struct Queue {
    new: Vec<Waiting>,
    /// Somebody here has unlocked: ask now.
    ask: bool,
    stop: bool,
}

/// The thread. Dropping it ends it; who still waits is answered with EINTR.
pub(super) struct Locks {
    shared: Arc<Shared>,
    thread: Background,
}

struct Shared {
    client: Arc<Client>,
    kernel: KernelLink,
    queue: Mutex<Queue>,
    work: Condvar,
}

impl std::fmt::Debug for Locks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Locks")
    }
}

impl Locks {
    pub(super) fn new(client: Arc<Client>, kernel: KernelLink) -> Locks {
        let shared = Shared { client, kernel, queue: Mutex::default(), work: Condvar::new() };
        Locks { shared: Arc::new(shared), thread: Background::new("locks") }
    }

    /// Answers when the lock is there. `granted`: it is, but the kernel's caches have to go first.
    pub(super) fn hand_over(&self, wanted: LockRequest, tid: u32, reply: ReplyEmpty, granted: bool) {
        let now = Instant::now();
        let signals = Signals::default();
        let waiting = Waiting { wanted, tid, reply, granted, pause: FIRST_PAUSE, next: now, signals };
        let shared = Arc::clone(&self.shared);
        if let Err(e) = self.thread.start(move || shared.run()) {
            log::error!("cannot start a thread for locks: {e}");
            return waiting.reply.error(Errno::ENOLCK);
        }
        self.shared.queue.lock().new.push(waiting);
        self.shared.work.notify_one();
    }

    /// A lock was given up here.
    pub(super) fn unlocked(&self) {
        self.shared.queue.lock().ask = true;
        self.shared.work.notify_one();
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.work.notify_one();
        self.thread.join();
    }
}

impl Shared {
    fn run(&self) {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            {
                let mut queue = self.queue.lock();
                while !queue.stop && !queue.ask && queue.new.is_empty() {
                    match waiting.iter().map(|waiting| waiting.next).min() {
                        None => self.work.wait(&mut queue),
                        Some(next) => {
                            if self.work.wait_until(&mut queue, next).timed_out() {
                                break;
                            }
                        }
                    }
                }
                if queue.stop {
                    waiting.append(&mut queue.new);
                    break;
                }
                if std::mem::take(&mut queue.ask) {
                    let now = Instant::now();
                    waiting.iter_mut().for_each(|waiting| waiting.next = now);
                }
                waiting.append(&mut queue.new);
            }
            let now = Instant::now();
            waiting = waiting
                .into_iter()
                .filter_map(|waiting| if waiting.next > now { Some(waiting) } else { self.ask(waiting) })
                .collect();
        }
        for Waiting { reply, .. } in waiting {
            reply.error(Errno::EINTR);
        }
    }

    /// Asks for one. It comes back if it has to wait on.
    fn ask(&self, mut waiting: Waiting) -> Option<Waiting> {
        if !waiting.granted {
            match self.client.lock(&waiting.wanted, true) {
                Ok(void) => waiting.granted = void,
                Err(ClientError::Errno(rfs_proto::Errno::EAGAIN)) => {
                    if waiting.signals.interrupt(waiting.tid) {
                        self.client.stop_waiting(waiting.wanted.owner).ok();
                        waiting.reply.error(Errno::EINTR);
                        return None;
                    }
                    waiting.next = Instant::now() + waiting.pause;
                    waiting.pause = (waiting.pause * 3 / 2).min(LONGEST_PAUSE);
                    return Some(waiting);
                }
                Err(e) => {
                    waiting.reply.error(convert::errno(e.errno()));
                    return None;
                }
            }
        }
        if waiting.granted {
            // Pages and attributes. A failure leaves old ones: say so rather than pretend to have the lock.
            if let Err(e) = self.kernel.drop_inode(waiting.wanted.ino, Part::PagesFrom(0)) {
                log::warn!("cannot drop the pages of inode {}: {e}", waiting.wanted.ino);
                self.client.unlock(&waiting.wanted).ok();
                waiting.reply.error(Errno::EIO);
                return None;
            }
        }
        waiting.reply.ok();
        None
    }
}

/// What the kernel calls the end of a file.
pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;

/// A range as the kernel says it.
pub(super) fn range(start: u64, end: u64) -> LockRange {
    LockRange { first: start, last: if end >= OFFSET_MAX { u64::MAX } else { end } }
}

/// Bytes of a request for a lock: a header of 40 bytes, then the file handle, the owner, the lock, and the flags.
const LK_LEN: usize = 88;
const FLAGS_AT: usize = 80;
const FUSE_LK_FLOCK: u32 = 1;

/// Reads the flag that tells flock from fcntl, which fuser 0.18 receives but does not pass on: the header that it lends to a
/// handler lies in front of the rest of the request, in memory of this process. So that this is no more than looking, it is
/// read through `/proc/self/mem`, and believed only if all else in the request is as fuser says.
pub(super) struct LockFlags(Option<File>);

impl std::fmt::Debug for LockFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockFlags")
    }
}

impl LockFlags {
    pub(super) fn new() -> LockFlags {
        let memory = File::open("/proc/self/mem");
        LockFlags(memory.inspect_err(|e| log::warn!("flock and fcntl look alike here: {e}")).ok())
    }

    /// The class of a lock; record locks if that cannot be told.
    pub(super) fn class(&self, request: &Request, handle: u64, owner: u64) -> LockClass {
        match self.read(request) {
            Ok(raw) if agrees(&raw, request.unique().0, handle, owner) => {
                if u32_at(&raw, FLAGS_AT) & FUSE_LK_FLOCK != 0 { LockClass::Flock } else { LockClass::Record }
            }
            _ => LockClass::Record,
        }
    }

    fn read(&self, request: &Request) -> io::Result<[u8; LK_LEN]> {
        let Some(memory) = &self.0 else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut raw = [0; LK_LEN];
        memory.read_exact_at(&mut raw, std::ptr::from_ref(request).addr() as u64)?;
        Ok(raw)
    }
}

fn agrees(raw: &[u8; LK_LEN], unique: u64, handle: u64, owner: u64) -> bool {
    u32_at(raw, 0) as usize == LK_LEN
        && u64_at(raw, 8) == unique
        && u64_at(raw, 40) == handle
        && u64_at(raw, 48) == owner
}

fn u32_at(raw: &[u8; LK_LEN], at: usize) -> u32 {
    u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8; LK_LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_reach_to_the_end() {
        assert_eq!(range(5, 9), LockRange { first: 5, last: 9 });
        assert_eq!(range(5, OFFSET_MAX), LockRange { first: 5, last: u64::MAX });
    }

    #[test]
    fn only_a_request_that_agrees_is_believed() {
        let mut raw = [0; LK_LEN];
        raw[0] = LK_LEN as u8;
        for (at, value) in [(8, 11u64), (40, 12), (48, 13)] {
            raw[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        assert!(agrees(&raw, 11, 12, 13));
        assert!(!agrees(&raw, 10, 12, 13) && !agrees(&raw, 11, 0, 13) && !agrees(&raw, 11, 12, 0));
        raw[0] = 80;
        assert!(!agrees(&raw, 11, 12, 13));
    }
}
