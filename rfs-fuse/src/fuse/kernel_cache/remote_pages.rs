//! Answers writes after other mounts have dropped their pages of the file.
//!
//! This concerns files that other mounts had open when this mount opened them to write
//! (`rfs-client/src/cache/page_hold.rs`). The other mount drops a page only after its read, which
//! may wait for a write of this mount. So no session thread waits here. Concurrent writes of one
//! file share one call.
//!
//! # Concurrency
//! Up to [`WORKERS`] threads, each with a call for one file. One lock over the queue, which is
//! not held during a call.

use std::{
    collections::VecDeque,
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::{Condvar, Mutex};

use crate::fuse::affinity;
use rfs_client::{Client, ClientError};

/// Maximum number of files at a time: fewer than the calls that other mounts may block.
const WORKERS: usize = 4;

/// Answers a write.
type Continuation = Box<dyn FnOnce(Result<(), ClientError>) + Send>;

#[derive(Default)]
struct Queue {
    files: VecDeque<(u64, Vec<Continuation>)>,
    workers: Vec<JoinHandle<()>>,
    idle: usize,
    stop: bool,
}

struct Shared {
    client: Arc<Client>,
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The threads, which start with the first jobs. Dropping this ends them.
pub(in crate::fuse) struct RemotePages(Arc<Shared>);

impl std::fmt::Debug for RemotePages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RemotePages")
    }
}

impl RemotePages {
    pub(in crate::fuse) fn new(client: Arc<Client>) -> RemotePages {
        RemotePages(Arc::new(Shared { client, queue: Mutex::default(), work: Condvar::new() }))
    }

    /// Calls `then` when no other mount has pages of a file from before this moment.
    pub(in crate::fuse) fn drop_then(
        &self,
        ino: u64,
        then: impl FnOnce(Result<(), ClientError>) + Send + 'static,
    ) {
        let mut queue = self.0.queue.lock();
        match queue.files.iter_mut().find(|(waiting, _)| *waiting == ino) {
            Some((_, others)) => return others.push(Box::new(then)),
            None => queue.files.push_back((ino, vec![Box::new(then)])),
        }
        if queue.files.len() <= queue.idle {
            self.0.work.notify_one();
        } else if queue.workers.len() < WORKERS {
            let shared = Arc::clone(&self.0);
            let run = move || {
                affinity::reset_affinity();
                shared.run();
            };
            match thread::Builder::new().name("remote pages".into()).spawn(run) {
                Ok(worker) => queue.workers.push(worker),
                Err(e) if queue.workers.is_empty() => {
                    log::error!(
                        "cannot start a thread: other mounts may read stale pages of inode {ino}: {e}"
                    );
                    let waiting = std::mem::take(&mut queue.files);
                    drop(queue);
                    waiting.into_iter().flat_map(|(_, all)| all).for_each(|then| then(Ok(())));
                }
                Err(_) => {}
            }
        }
    }
}

impl Drop for RemotePages {
    fn drop(&mut self) {
        let workers = {
            let mut queue = self.0.queue.lock();
            queue.stop = true;
            std::mem::take(&mut queue.workers)
        };
        self.0.work.notify_all();
        for worker in workers {
            if worker.join().is_err() {
                log::error!("a thread for pages of other mounts has panicked");
            }
        }
    }
}

impl Shared {
    fn next(&self) -> Option<(u64, Vec<Continuation>)> {
        let mut queue = self.queue.lock();
        loop {
            match queue.files.pop_front() {
                Some(file) => return Some(file),
                None if queue.stop => return None,
                None => {
                    queue.idle += 1;
                    self.work.wait(&mut queue);
                    queue.idle -= 1;
                }
            }
        }
    }

    fn run(&self) {
        while let Some((ino, all)) = self.next() {
            let outcome = match self.client.pages.drop_others_pages(ino) {
                // The file is closed by now, or the server does not have the call: no page to wait
                // for.
                Err(ClientError::Errno(e)) => {
                    log::debug!("other mounts do not drop their pages of inode {ino}: {e}");
                    Ok(())
                }
                outcome => outcome,
            };
            let mut failure = outcome.err();
            for then in all {
                then(failure.take().map_or(Ok(()), Err));
            }
        }
    }
}
