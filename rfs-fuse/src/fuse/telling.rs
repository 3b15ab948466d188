//! Threads that tell the kernel what it may be long in doing.
//!
//! To drop a page or a name the kernel waits for locks that it holds over requests of this mount, and no signal reaches who waits there. If the
//! process is killed, all other threads end, and with them the devices through which they took those requests, so that the kernel ends
//! the requests and the wait is over. But for that whoever waits must not have those devices open himself: these threads have descriptors
//! of their own (`session/descriptors`), and among them only a clone of the device, through which nothing is ever taken. So they can do
//! nothing but tell, and whoever has something told waits for the answer, where a signal does reach him.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{Arc, mpsc},
    thread,
};

use parking_lot::{Condvar, Mutex};

use super::{placement, session::descriptors::Only};

/// A message, and who waits for what became of it.
type Job = (Vec<u8>, mpsc::Sender<io::Result<()>>);

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that have nothing to do, and nothing in the queue to do.
    idle: usize,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The threads: as many as have been waiting at a time. They end when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Tellers(Arc<Shared>);

impl Tellers {
    /// Tells the kernel, and returns when it has done what it was told.
    pub(super) fn tell(&self, device: BorrowedFd<'_>, message: Vec<u8>) -> io::Result<()> {
        let (tell, told) = mpsc::channel();
        let finds_one = {
            let mut queue = self.0.queue.lock();
            queue.jobs.push_back((message, tell));
            let finds_one = queue.idle > 0;
            queue.idle -= usize::from(finds_one);
            finds_one
        };
        if finds_one {
            self.0.work.notify_one();
        } else if let Err(e) = self.one_more(device.as_raw_fd()) {
            log::warn!("what is to be dropped waits for another thread, as one cannot be started: {e}");
            // There may be no other one.
            if let Some((message, tell)) = self.0.take() {
                tell.send(write(device, &message)).ok();
            }
        }
        told.recv().unwrap_or_else(|_| {
            Err(io::Error::other("a thread that tells the kernel something has panicked"))
        })
    }

    fn one_more(&self, device: RawFd) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name("telling".into()).spawn(move || shared.run(device)).map(drop)
    }
}

impl Drop for Tellers {
    fn drop(&mut self) {
        self.0.queue.lock().stop = true;
        self.0.work.notify_all();
    }
}

fn write(device: impl AsFd, message: &[u8]) -> io::Result<()> {
    Ok(rustix::io::write(device, message).map(drop)?)
}

impl Shared {
    fn take(&self) -> Option<Job> {
        self.queue.lock().jobs.pop_front()
    }

    /// The next one. `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            match queue.jobs.pop_front() {
                Some(job) => return Some(job),
                None if queue.stop => return None,
                None => {
                    queue.idle += 1;
                    // Whoever has something to do says that one is idle no longer.
                    self.work.wait(&mut queue);
                }
            }
        }
    }

    /// Whoever has something told has the device open until it is.
    fn run(&self, device: RawFd) {
        placement::begin_unbound();
        let (device, alone) = Only::keep(device);
        if let Err(e) = alone {
            log::warn!("a thread keeps the mount from ending if this process is killed: {e}");
        }
        while let Some((message, told)) = self.next() {
            told.send(write(&device, &message)).ok();
        }
    }
}
