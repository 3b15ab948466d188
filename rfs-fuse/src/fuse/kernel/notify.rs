//! Threads that write notifications to the kernel which may block there.
//!
//! To drop a page or a name, the kernel waits for locks that it holds over requests of this
//! mount. No signal ends the wait. If the process is killed, its session threads end and close
//! their devices. Then the kernel aborts their requests, and the wait ends. This works only if
//! the waiting thread does not have those devices open itself. So a notification thread has a
//! descriptor table of its own (`descriptors`) with a clone of the device, from which it
//! reads no request. Other threads hand messages over, and block interruptibly for the result.
//!
//! # Concurrency
//! Any thread calls [`NotifyPool::notify`]. One lock over the queue, which is not held during a
//! write.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{Arc, mpsc},
    thread,
};

use parking_lot::{Condvar, Mutex};

use crate::fuse::{affinity, descriptors::SoleDescriptor};

/// A message, and the sender for its result.
type Job = (Vec<u8>, mpsc::Sender<io::Result<()>>);

/// The result of a message, and its sender.
type Answer = (mpsc::Sender<io::Result<()>>, io::Result<()>);

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job that is not queued yet.
    idle: usize,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The pool. It grows to the number of concurrent notifications. Its threads end when it is
/// dropped.
#[derive(Debug, Default)]
pub(super) struct NotifyPool(Arc<Shared>);

impl NotifyPool {
    /// Notifies the kernel, and blocks until the kernel has obeyed. `device` is the same at each
    /// call, because the threads have only that one.
    pub(super) fn notify(&self, device: BorrowedFd<'_>, message: Vec<u8>) -> io::Result<()> {
        let (tell, told) = mpsc::channel();
        let has_idle = {
            let mut queue = self.0.queue.lock();
            queue.jobs.push_back((message, tell));
            let has_idle = queue.idle > 0;
            queue.idle -= usize::from(has_idle);
            has_idle
        };
        if has_idle {
            self.0.work.notify_one();
        } else if let Err(e) = self.add_thread(device.as_raw_fd()) {
            log::warn!("cannot start a notification thread: {e}");
            // The pool may be empty, so this thread writes the message.
            if let Some((message, tell)) = self.0.take() {
                tell.send(write(device, &message)).ok();
            }
        }
        told.recv().unwrap_or_else(|_| Err(io::Error::other("a notification thread has panicked")))
    }

    fn add_thread(&self, device: RawFd) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name("notify".into()).spawn(move || shared.run(device)).map(drop)
    }
}

impl Drop for NotifyPool {
    fn drop(&mut self) {
        self.0.queue.lock().stop = true;
        self.0.work.notify_all();
    }
}

/// Writes a notification on the calling thread.
pub(super) fn write(device: impl AsFd, message: &[u8]) -> io::Result<()> {
    Ok(rustix::io::write(device, message).map(drop)?)
}

impl Shared {
    fn take(&self) -> Option<Job> {
        self.queue.lock().jobs.pop_front()
    }

    /// Sends the result of the last message, and waits for the next. Returns `None` at the end.
    fn next(&self, mut answer: Option<Answer>) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            let job = queue.jobs.pop_front();
            let waits = job.is_none() && !queue.stop;
            queue.idle += usize::from(waits);
            // Counted as idle first: the receiver may send its next message at once, and reuses
            // this thread.
            if let Some((tell, told)) = answer.take() {
                tell.send(told).ok();
            }
            if !waits {
                return job;
            }
            // `notify` has decremented `idle` for the thread that it wakes.
            self.work.wait(&mut queue);
        }
    }

    /// Runs a notification thread. The caller of `notify` keeps the device open until the thread
    /// has cloned it.
    fn run(&self, device: RawFd) {
        affinity::reset_affinity();
        let (device, alone) = SoleDescriptor::keep(device);
        if let Err(e) = alone {
            log::warn!(
                "a thread cannot close its descriptors, and may keep the mount alive if this process is killed: {e}"
            );
        }
        let mut answer = None;
        while let Some((message, tell)) = self.next(answer.take()) {
            answer = Some((tell, write(&device, &message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::OwnedFd, time::Duration};

    use rustix::{
        io::Errno,
        pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
    };

    use super::*;

    /// Returns the open descriptors of each notification thread.
    fn open_descriptors() -> Vec<Vec<String>> {
        let tasks = fs::read_dir("/proc/self/task").expect("procfs").flatten();
        let notifying = tasks
            .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "notify\n"));
        // A thread that ends has no table.
        let open = |task: fs::DirEntry| {
            let listed = fs::read_dir(task.path().join("fd")).ok()?.flatten();
            Some(listed.map(|entry| entry.file_name().into_string().expect("a number")).collect())
        };
        notifying.filter_map(open).collect()
    }

    fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
        (0..20_000).any(|_| {
            is_so() || {
                thread::sleep(Duration::from_millis(1));
                false
            }
        })
    }

    /// Returns a full pipe that stands for the device, and the number of bytes to read until it
    /// takes more.
    fn full() -> (OwnedFd, OwnedFd, usize) {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let size = fcntl_setpipe_size(&to, 4096).expect("resized");
        assert_eq!(rustix::io::write(&to, &vec![b'-'; size]), Ok(size));
        (from, to, size)
    }

    #[test]
    fn a_blocked_notification_has_only_the_device_open_and_blocks_no_other() {
        let (from, to, size) = full();
        let number = to.as_raw_fd().to_string();
        let notify_pool = NotifyPool::default();
        thread::scope(|scope| {
            let told: Vec<_> = [b'a', b'b', b'c']
                .map(|byte| {
                    scope.spawn({
                        let (notify_pool, to) = (&notify_pool, &to);
                        move || notify_pool.notify(to.as_fd(), vec![byte])
                    })
                })
                .into();
            let alone = vec![vec![number.clone()]; 3];
            assert!(eventually(|| open_descriptors() == alone), "{:?}", open_descriptors());
            assert!(told.iter().all(|told| !told.is_finished()), "there is no room yet");
            let mut bytes = vec![0; size];
            assert_eq!(rustix::io::read(&from, &mut bytes), Ok(size));
            let mut said = Vec::new();
            while said.len() < 3 {
                let read = rustix::io::read(&from, &mut bytes).expect("read");
                said.extend_from_slice(&bytes[..read]);
            }
            assert!(told.into_iter().all(|told| told.join().expect("no panic").is_ok()));
            said.sort_unstable();
            assert_eq!(said, b"abc");
        });
        // Existing threads write the next messages, and report failures.
        drop(from);
        for _ in 0..3 {
            let failed = notify_pool.notify(to.as_fd(), vec![b'd']).expect_err("there is no reader");
            assert_eq!(failed.raw_os_error(), Some(Errno::PIPE.raw_os_error()));
        }
        assert_eq!(open_descriptors().len(), 3);
        drop(notify_pool);
        assert!(eventually(|| open_descriptors().is_empty()), "they have ended");
    }
}
