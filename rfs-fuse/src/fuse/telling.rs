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

/// What became of it.
type Answer = (mpsc::Sender<io::Result<()>>, io::Result<()>);

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
    /// Tells the kernel, and returns when it has done what it was told. It is the same device each time: the threads have no other one.
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

/// Tells the kernel on the calling thread.
pub(super) fn write(device: impl AsFd, message: &[u8]) -> io::Result<()> {
    Ok(rustix::io::write(device, message).map(drop)?)
}

impl Shared {
    fn take(&self) -> Option<Job> {
        self.queue.lock().jobs.pop_front()
    }

    /// Answers the last one, and takes the next. `None` at the end.
    fn next(&self, mut answer: Option<Answer>) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            let job = queue.jobs.pop_front();
            let waits = job.is_none() && !queue.stop;
            queue.idle += usize::from(waits);
            // Who hears it may have something more to tell at once, and is to find this thread idle.
            if let Some((tell, told)) = answer.take() {
                tell.send(told).ok();
            }
            if !waits {
                return job;
            }
            // Whoever has something to do says that one is idle no longer.
            self.work.wait(&mut queue);
        }
    }

    /// Whoever has something told has the device open until it is.
    fn run(&self, device: RawFd) {
        placement::begin_unbound();
        let (device, alone) = Only::keep(device);
        if let Err(e) = alone {
            log::warn!("a thread keeps the mount from ending if this process is killed: {e}");
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

    /// Descriptors of each thread that tells.
    fn tables() -> Vec<Vec<String>> {
        let tasks = fs::read_dir("/proc/self/task").expect("procfs").flatten();
        let telling = tasks.filter(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "telling\n")
        });
        // One that is ending has none.
        let open = |task: fs::DirEntry| {
            let listed = fs::read_dir(task.path().join("fd")).ok()?.flatten();
            Some(listed.map(|entry| entry.file_name().into_string().expect("a number")).collect())
        };
        telling.filter_map(open).collect()
    }

    fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
        (0..20_000).any(|_| {
            is_so() || {
                thread::sleep(Duration::from_millis(1));
                false
            }
        })
    }

    /// Something in the place of a device that takes no more until so many bytes are read.
    fn full() -> (OwnedFd, OwnedFd, usize) {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let size = fcntl_setpipe_size(&to, 4096).expect("resized");
        assert_eq!(rustix::io::write(&to, &vec![b'-'; size]), Ok(size));
        (from, to, size)
    }

    #[test]
    fn who_waits_has_nothing_but_the_device_and_keeps_nobody_else_waiting() {
        let (from, to, size) = full();
        let number = to.as_raw_fd().to_string();
        let tellers = Tellers::default();
        thread::scope(|scope| {
            let told: Vec<_> = [b'a', b'b', b'c']
                .map(|byte| {
                    scope.spawn({
                        let (tellers, to) = (&tellers, &to);
                        move || tellers.tell(to.as_fd(), vec![byte])
                    })
                })
                .into();
            let alone = vec![vec![number.clone()]; 3];
            assert!(eventually(|| tables() == alone), "{:?}", tables());
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
        // Those that are there do what comes next, and say what went wrong.
        drop(from);
        for _ in 0..3 {
            let failed = tellers.tell(to.as_fd(), vec![b'd']).expect_err("nobody reads it");
            assert_eq!(failed.raw_os_error(), Some(Errno::PIPE.raw_os_error()));
        }
        assert_eq!(tables().len(), 3);
        drop(tellers);
        assert!(eventually(|| tables().is_empty()), "they have ended");
    }
}
