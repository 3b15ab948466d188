//! Has the kernel drop names, attributes and pages that the server recalls.
//!
//! Dropping a name waits for its directory's lock, which the kernel holds over changes there.
//! Dropping a page waits for its lock, which the kernel holds over a read. Such a request may
//! wait at the server for another mount, and that mount for this one. To prevent a deadlock,
//! workers do the dropping. The receiving thread acknowledges a recall early if a change of this
//! mount concerns the same inode, or if no change ends for [`GRACE`]. The worker then finishes
//! late, after the change.
//!
//! # Concurrency
//! One receiving thread (`Receiver`) and up to [`WORKERS`] workers. One lock over the queue,
//! which no thread holds while it notifies the kernel.

use std::{
    collections::{HashSet, VecDeque},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rdmabox::Cancel;
use rfs_proto::{FileKind, Recall};
use smallvec::SmallVec;

use crate::fuse::{
    background::Background,
    kernel::{KernelLink, Part},
};
use rfs_client::{ChangesInFlight, Client, RecallHandler};

/// Time to wait for a drop while no change of this mount ends. Changes may occupy all session
/// threads, and the drop may need one.
const GRACE: Duration = Duration::from_millis(50);
/// Time limit for the confirmation that locks are held.
const CONFIRMATION: Duration = Duration::from_secs(2);
/// Time limit for dropping pages that a write of another mount makes stale. Nothing known blocks
/// the drop that long: two mounts do not wait for each other there.
const WRITTEN: Duration = Duration::from_secs(5);
/// Pause between attempts to drop an inode that the kernel does not know yet, and between looks at
/// releases.
const PAUSE: Duration = Duration::from_micros(50);
/// Time limit for these attempts: far longer than the kernel takes to read a reply.
const READS_REPLIES: Duration = Duration::from_secs(1);
/// The same time from the start of this process, for inodes that only a previous process has named.
/// Its last replies were sent before this process began.
const READS_PREVIOUS_REPLIES: Duration = Duration::from_millis(200);
/// Time limit for the releases of locks.
const RELEASES_LOCKS: Duration = Duration::from_secs(1);
/// Maximum number of workers. A change of this mount may block each of them.
const WORKERS: usize = 128;

/// Time after which something is dropped a second time. Names expire again if their inode's owner
/// has changed. A thread may have received a lookup's reply before the change, and continue after
/// the names have expired. It then revalidates the name with the old owner. An inode that only a
/// previous process has named is dropped again if the kernel did not know it. A thread may have a
/// reply of that process, and wait for another one before it reads it to the end.
const SECOND_DROP_DELAY: Duration = Duration::from_secs(1);

/// An object that the kernel drops.
struct Job {
    recall: Recall,
    /// Inodes whose kernel locks the drop takes.
    locks: SmallVec<[u64; 2]>,
    /// True if this mount does not use the directory, and returns its names to the server.
    returns_names: bool,
    /// True if the kernel keeps the name, and looks it up at its next use.
    expires: bool,
    /// [`WAITING`], [`DONE`] or [`LATE`].
    state: AtomicU8,
}

/// State of a job: the kernel has not dropped it yet; the kernel has dropped it; acknowledged
/// before the kernel has dropped it.
const WAITING: u8 = 0;
const DONE: u8 = 1;
const LATE: u8 = 2;

/// Names or attributes that are dropped a second time.
enum SecondDrop {
    /// The names of an inode expire.
    NamesOf(u64),
    /// Names in a directory expire.
    NamesIn(u64, Vec<Arc<[u8]>>),
    /// A part of an inode.
    Inode(u64, Part),
}

impl Job {
    fn new(client: &Client, recall: &Recall) -> Job {
        let mut locks: SmallVec<[u64; 2]> = recall.inode().into_iter().collect();
        if let Recall::Owner { ino } = recall {
            locks.extend(client.caching.known_names(*ino).map(|(parent, _)| parent));
        }
        Job {
            recall: recall.clone(),
            locks,
            returns_names: false,
            expires: false,
            state: AtomicU8::new(WAITING),
        }
    }

    /// Marks the job as acknowledged to the server.
    fn mark_acknowledged(&self, late: &AtomicUsize) {
        late.fetch_add(1, Ordering::Release);
        if self.state.compare_exchange(WAITING, LATE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            late.fetch_sub(1, Ordering::Release);
        }
    }

    /// Marks the job as dropped by the kernel.
    fn mark_dropped(&self, late: &AtomicUsize) {
        if self.state.swap(DONE, Ordering::AcqRel) == LATE {
            late.fetch_sub(1, Ordering::Release);
        }
    }

    fn confirms_locks(&self) -> bool {
        matches!(self.recall, Recall::Locks { .. })
    }

    /// Returns true if the job drops pages. The kernel seldom holds a page's lock over a change of
    /// the file.
    fn drops_pages(&self) -> bool {
        matches!(self.recall, Recall::Pages { .. })
    }

    /// Returns true if the drop takes a lock that the kernel may hold over a change of this mount.
    fn takes_locks(&self) -> bool {
        !matches!(self.recall, Recall::Attr { .. })
    }

    /// Returns true if a write of another mount waits for the drop.
    fn is_of_a_write(&self) -> bool {
        matches!(self.recall, Recall::Written { .. })
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    /// Workers, and how many of them wait for a job.
    workers: Vec<JoinHandle<()>>,
    idle: usize,
    stop: bool,
    /// The second drops, with their times.
    second_drops: VecDeque<(Instant, SecondDrop)>,
}

struct Shared {
    client: Arc<Client>,
    kernel: KernelLink,
    queue: Mutex<Queue>,
    work: Condvar,
    stopping: AtomicBool,
    /// When this process began to serve the mount.
    began: Instant,
    /// Number of objects that the kernel has although the server takes them for dropped.
    late: Arc<AtomicUsize>,
}

/// The threads of a mount. Dropping this ends them.
pub(in crate::fuse) struct Recalls {
    shared: Arc<Shared>,
    cancel: Cancel,
    receiver: Background,
}

impl std::fmt::Debug for Recalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recalls")
    }
}

impl Recalls {
    /// Starts to receive recalls.
    pub(in crate::fuse) fn obey(client: Arc<Client>, kernel: KernelLink) -> io::Result<Recalls> {
        client.recalls.announce().map_err(io::Error::other)?;
        let (link, late) = (kernel.clone(), Arc::<AtomicUsize>::default());
        let names_are_late = Arc::clone(&late);
        client.recalls.drop_names_by(move || {
            if let Err(e) = link.drop_names() {
                names_are_late.fetch_add(1, Ordering::Relaxed);
                log::warn!("this kernel cannot drop all names, so that some may be stale: {e}");
            }
        });
        let shared = Arc::new(Shared {
            client,
            kernel,
            queue: Mutex::default(),
            work: Condvar::new(),
            stopping: AtomicBool::new(false),
            began: Instant::now(),
            late,
        });
        let dropping = Arc::downgrade(&shared);
        shared.client.recalls.drop_unlinked_by(move |ino| {
            if let Some(shared) = dropping.upgrade() {
                shared.unlinked(ino);
            }
        });
        let (cancel, receiver) = (Cancel::new(), Background::new("recalls"));
        let (handler, until) = (Receiver(Arc::clone(&shared)), cancel.clone());
        receiver.start(move || {
            if let Err(e) = handler.0.client.recalls.obey(&handler, &until)
                && handler.0.client.is_connected()
            {
                log::error!("cannot receive recalls, so that nothing is cached any more: {e}");
            }
        })?;
        Ok(Recalls { shared, cancel, receiver })
    }
}

impl Recalls {
    /// Returns true if the kernel may have names that another mount has changed. A change of this
    /// mount may delay their drop, or the kernel may be too old to drop all names.
    pub(in crate::fuse) fn are_late(&self) -> bool {
        self.shared.late.load(Ordering::Acquire) > 0
    }

    /// Has a worker drop a name in a removed directory. The kernel is about to learn that the name
    /// is absent. It would cache that, and keep the directory with it.
    pub(in crate::fuse) fn drop_name_later(&self, parent: u64, name: &[u8]) {
        let recall = Recall::Name { parent, name: name.to_vec() };
        self.shared.start(Job::new(&self.shared.client, &recall));
    }

    /// Has a worker make the kernel look a name up at its next use, after a rename. A file system
    /// that is mounted there stays mounted, unless the kernel is too old to expire a name.
    pub(in crate::fuse) fn revalidate_name_later(&self, parent: u64, name: &[u8]) {
        let recall = Recall::Name { parent, name: name.to_vec() };
        self.shared.start(Job { expires: true, ..Job::new(&self.shared.client, &recall) });
    }
}

impl Drop for Recalls {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.client.caching.changes().look_again();
        self.receiver.join();
        let workers = {
            let mut queue = self.shared.queue.lock();
            queue.stop = true;
            std::mem::take(&mut queue.workers)
        };
        self.shared.work.notify_all();
        for worker in workers {
            if worker.join().is_err() {
                log::error!("a thread for recalls has panicked");
            }
        }
    }
}

/// The thread that receives recalls.
struct Receiver(Arc<Shared>);

impl RecallHandler for Receiver {
    fn drop_all(&self, recalls: &[Recall]) {
        let job = |recall: &Recall| Arc::new(Job::new(&self.0.client, recall));
        // The kernel has no layouts. Names of unlinked inodes are dropped once no reply can bring
        // them back (`Shared::unlinked`).
        let apart = |recall: &&Recall| matches!(recall, Recall::Layout { .. } | Recall::Unlinked { .. });
        let kept = recalls.iter().filter(|recall| !apart(recall));
        let mut jobs: Vec<Arc<Job>> = kept.map(job).collect();
        // A drop that blocks must not block those that cannot: these go first.
        jobs.sort_by_key(|job| job.takes_locks());
        if jobs.is_empty() {
            return;
        }
        self.0.queue.lock().jobs.extend(jobs.iter().cloned());
        let (mut ended, mut since) = (None, Instant::now());
        let began = since;
        let patient = jobs.iter().any(|job| job.confirms_locks() || job.is_of_a_write());
        let at_most = |under_way: &ChangesInFlight| (under_way.count() > 0 || patient).then_some(GRACE);
        self.0.client.caching.changes().wait_until(at_most, |under_way| {
            self.0.start_worker();
            if ended.replace(under_way.ended()) != Some(under_way.ended()) {
                since = Instant::now();
            }
            let none_ends = under_way.count() > 0 && since.elapsed() >= GRACE;
            let over = |job: &Arc<Job>| {
                job.state.load(Ordering::Acquire) == DONE
                    || !job.is_of_a_write()
                        && (!job.drops_pages() || began.elapsed() >= GRACE)
                        && job.locks.iter().any(|ino| under_way.changes(*ino))
            };
            // A confirmation waits for session threads, which may wait for other mounts.
            let enough = |job: &Arc<Job>| match (job.confirms_locks(), job.is_of_a_write()) {
                (true, _) => began.elapsed() >= CONFIRMATION,
                (_, true) => began.elapsed() >= WRITTEN,
                _ => none_ends,
            };
            self.0.stopping.load(Ordering::Relaxed) || jobs.iter().all(|job| over(job) || enough(job))
        });
        jobs.iter().for_each(|job| job.mark_acknowledged(&self.0.late));
    }

    fn return_names(&self, dir: u64) {
        // Without FUSE_EXPIRE_ONLY, dropping a name would unmount file systems mounted on it.
        if self.0.kernel.expires_names() {
            let recall = Recall::Names { ino: dir };
            self.0.start(Job { returns_names: true, ..Job::new(&self.0.client, &recall) });
        }
    }
}

impl Shared {
    /// Queues the drop of an unlinked inode's names. No thread waits for it.
    fn unlinked(self: &Arc<Self>, ino: u64) {
        if self.client.caching.known_names(ino).next().is_some() {
            self.start(Job::new(&self.client, &Recall::Unlinked { ino }));
        }
    }

    /// Queues a job without waiting for it.
    fn start(self: &Arc<Self>, job: Job) {
        self.queue.lock().jobs.push_back(Arc::new(job));
        self.start_worker();
    }

    /// Wakes a worker, or starts one, if a job is queued.
    fn start_worker(self: &Arc<Self>) {
        let mut queue = self.queue.lock();
        if queue.jobs.is_empty() {
            return;
        }
        if queue.idle > 0 {
            self.work.notify_one();
        } else if queue.workers.len() < WORKERS && !queue.stop {
            let shared = Arc::clone(self);
            match thread::Builder::new().name("dropping".into()).spawn(move || shared.work()) {
                Ok(worker) => queue.workers.push(worker),
                Err(e) => log::error!("cannot start a thread to drop what was recalled: {e}"),
            }
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            match &job.recall {
                Recall::Name { parent, name } if job.expires && self.kernel.expires_names() => {
                    if let Err(e) = self.kernel.expire_name(*parent, name) {
                        log::warn!("cannot expire a renamed name in inode {parent}: {e}");
                    }
                }
                recall => self.drop(recall),
            }
            if job.returns_names
                && let Some(ino) = job.recall.inode()
                && let Err(e) = self.client.recalls.return_names(ino)
            {
                log::debug!("the names of directory {ino} are recalled one by one: {e}");
            }
            job.mark_dropped(&self.late);
            self.client.caching.changes().look_again();
        }
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            let due = queue.second_drops.front().map(|(when, _)| *when);
            if due.is_some_and(|when| when <= Instant::now())
                && let Some((_, what)) = queue.second_drops.pop_front()
            {
                drop(queue);
                let outcome = match &what {
                    SecondDrop::NamesOf(ino) => self.expire_names(*ino),
                    SecondDrop::NamesIn(dir, names) => self.expire(*dir, names),
                    SecondDrop::Inode(ino, part) => self.kernel.drop_inode(*ino, *part).map(drop),
                };
                if let Err(e) = outcome {
                    log::debug!("cannot drop what was recalled again: {e}");
                }
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            match due {
                Some(when) => drop(self.work.wait_until(&mut queue, when)),
                None => self.work.wait(&mut queue),
            }
            queue.idle -= 1;
        }
    }

    fn drop(&self, recall: &Recall) {
        let outcome = match recall {
            // The directory's attributes and listing go first, and even if the kernel does not know
            // the name. Dropping the name may wait for a change of the directory.
            Recall::Name { parent, name } => self
                .drop_inode(*parent, Part::PagesFrom(0))
                .and_then(|()| self.kernel.drop_name(*parent, name).map(drop)),
            Recall::Attr { ino } => self.drop_inode(*ino, Part::Attributes),
            Recall::Owner { ino } => {
                let outcome = self.drop_inode(*ino, Part::Attributes).and_then(|()| self.expire_names(*ino));
                self.drop_again(SecondDrop::NamesOf(*ino));
                outcome
            }
            Recall::Names { ino } => {
                self.drop_inode(*ino, Part::PagesFrom(0)).and_then(|()| self.drop_names(*ino))
            }
            Recall::Pages { ino } | Recall::Written { ino } => self.drop_inode(*ino, Part::PagesFrom(0)),
            Recall::Locks { ino } => {
                self.await_releases(*ino);
                Ok(())
            }
            // The client recalls each inode of `All` separately.
            Recall::Layout { .. } | Recall::All => Ok(()),
            Recall::Unlinked { ino } => self.drop_all_names(*ino),
        };
        if let Err(e) = outcome {
            log::warn!("cannot drop what was recalled ({recall:?}): {e}");
        }
    }

    /// Has a worker drop something again after [`SECOND_DROP_DELAY`].
    fn drop_again(&self, what: SecondDrop) {
        self.queue.lock().second_drops.push_back((Instant::now() + SECOND_DROP_DELAY, what));
    }

    /// Waits until the locks of a file are released, if its last close has returned.
    fn await_releases(&self, ino: u64) {
        if !self.client.locks.may_be_closed(ino) {
            return;
        }
        if !self.kernel.barrier().pass() {
            log::debug!("cannot wait for queued releases of inode {ino}");
        }
        let give_up = Instant::now() + RELEASES_LOCKS;
        while self.client.locks.is_unlocking(ino)
            && !self.stopping.load(Ordering::Relaxed)
            && Instant::now() < give_up
        {
            thread::sleep(PAUSE);
        }
    }

    /// Expires all names in a directory that the kernel may know, also absent names.
    fn drop_names(&self, dir: u64) -> io::Result<()> {
        let names = self.client.caching.names_in(dir);
        if names.is_empty() || !self.kernel.expires_names() {
            return Ok(());
        }
        let outcome = self.expire(dir, &names);
        if outcome.is_ok() {
            names.iter().for_each(|name| self.client.caching.dropped_name(dir, name));
        }
        self.drop_again(SecondDrop::NamesIn(dir, names));
        outcome
    }

    fn expire(&self, dir: u64, names: &[Arc<[u8]>]) -> io::Result<()> {
        names.iter().try_for_each(|name| self.kernel.expire_name(dir, name).map(drop))
    }

    /// Has the kernel drop all names of an unlinked inode. The kernel then forgets the inode unless
    /// a process uses it.
    fn drop_all_names(&self, ino: u64) -> io::Result<()> {
        let drop_name = |(parent, name): (u64, Arc<[u8]>)| self.kernel.drop_name(parent, &name).map(drop);
        self.client.caching.known_names(ino).try_for_each(drop_name)
    }

    /// Expires the names of an inode. Fresh attributes alone do not suffice: only `stat` asks for
    /// them, and permission checks do not.
    fn expire_names(&self, ino: u64) -> io::Result<()> {
        let (mut expired, mut outcome) = (HashSet::new(), Ok(()));
        loop {
            // While this waits for a directory, a rename may give the inode a new name.
            let new: Vec<_> =
                self.client.caching.known_names(ino).filter(|alias| !expired.contains(alias)).collect();
            if new.is_empty() {
                return outcome;
            }
            let expires = self.kernel.expires_names();
            let may_drop =
                || self.client.attributes.getattr(ino).is_ok_and(|attr| attr.kind != FileKind::Directory);
            for (parent, name) in &new {
                let told = match expires {
                    true => self.kernel.expire_name(*parent, name),
                    false if may_drop() => self.kernel.drop_name(*parent, name),
                    false => continue,
                };
                // A failure does not stop the others.
                outcome = outcome.and(told.map(drop));
            }
            expired.extend(new);
        }
    }

    /// Has the kernel drop a part of an inode. Retries while the kernel may not have read the reply
    /// yet that names the inode.
    fn drop_inode(&self, ino: u64, part: Part) -> io::Result<()> {
        let begin = Instant::now();
        while !self.kernel.drop_inode(ino, part)? {
            let is_named = self.client.lookups.has_named(ino);
            let give_up = match is_named {
                Some(true) => begin + READS_REPLIES,
                // The kernel has perhaps forgotten it, and told a process that was killed.
                Some(false) => self.began + READS_PREVIOUS_REPLIES,
                None => break,
            };
            if self.stopping.load(Ordering::Relaxed) {
                break;
            }
            if Instant::now() >= give_up {
                if is_named == Some(false) {
                    self.drop_again(SecondDrop::Inode(ino, part));
                }
                break;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}
