//! Makes the snapshots of a server: periodically, on request, and a last one when the server stops.
//!
//! [`Snapshotter::finish`] makes the last snapshots on the calling thread. Dropping the snapshotter
//! aborts a running snapshot.
//!
//! # Concurrency
//! One thread of low priority, which sleeps between snapshots. The lock `orders` is never held
//! during a snapshot.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Condvar, Mutex};
use rdmabox::failure::{self, contain};
use rfs_proto::Identity;

use super::{
    directory::{PersistError, Snapshots},
    format::Header,
    record::SnapshotRecord,
    write::{Progress, snapshot},
};
use crate::{dispatch::Dispatcher, memory_object::header::Shape};

/// Nice value of the thread (nice(2)).
const NICE: i32 = 10;
/// Interval of the progress messages of the last snapshot.
const REPORT: Duration = Duration::from_secs(5);

/// Reason why a snapshot was not made. Earlier snapshots are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The files of the snapshots.
    #[error(transparent)]
    Files(#[from] PersistError),
    /// The file of the new snapshot could not be written.
    #[error("cannot write it: {0}")]
    Write(#[from] io::Error),
    /// A page of the memory was lost.
    #[error("a page of the memory is lost, as its file was shortened or its file system is full")]
    Lost,
    /// A bug of the program.
    #[error("the snapshot thread panicked: {0}")]
    Panic(String),
}

impl SnapshotError {
    fn is_interruption(&self) -> bool {
        matches!(self, SnapshotError::Write(e) if e.kind() == io::ErrorKind::Interrupted)
    }
}

/// The last snapshot of an export failed: changes since the previous snapshot are in no snapshot.
#[derive(Debug, thiserror::Error)]
#[error(
    "the last snapshot of export {export} failed: {source}; changes since {} are in no snapshot",
    .newest.as_ref().map_or_else(|| "the start".into(), |path| path.display().to_string())
)]
pub struct LastSnapshotError {
    /// Name of the export.
    pub export: String,
    /// File of the newest snapshot.
    pub newest: Option<PathBuf>,
    /// The reason.
    pub source: SnapshotError,
}

/// An export with snapshots.
#[derive(Debug)]
pub struct Job {
    /// Name of the export.
    pub name: String,
    /// File system of the export.
    pub dispatcher: Arc<Dispatcher>,
    /// Shape of the memory.
    pub shape: Shape,
    /// Files of the snapshots.
    pub snapshots: Snapshots,
    /// Requests of the idle dispatcher before the last snapshot. An equal number means no change
    /// since.
    idle_since: Option<u64>,
    /// The record of the snapshots.
    record: SnapshotRecord,
}

impl Job {
    /// Returns a job without a known last snapshot.
    pub fn new(name: String, dispatcher: Arc<Dispatcher>, shape: Shape, snapshots: Snapshots) -> Job {
        // An unreadable directory makes the next snapshot fail, which the record then says.
        let newest = snapshots.newest_header().ok().flatten().map(|header| (header.number, header.time));
        let record = SnapshotRecord::of_previous(newest);
        Job { name, dispatcher, shape, snapshots, idle_since: None, record }
    }

    /// Returns the record of the snapshots, for the time to come, too.
    pub fn record(&self) -> SnapshotRecord {
        self.record.clone()
    }

    /// Returns true if nothing can have changed since the last snapshot.
    fn is_idle(&self) -> bool {
        self.idle_since.is_some() && self.idle_since == self.dispatcher.idle_since()
    }

    /// Makes a snapshot and logs the outcome. Earlier snapshots stay if it fails.
    fn make(&mut self, mut go_on: impl FnMut(Progress) -> io::Result<()>) -> Result<(), SnapshotError> {
        let begin = Instant::now();
        let idle_since = self.dispatcher.idle_since();
        self.record.begin();
        // A snapshot that is dropped removes its file, so that the next one starts afresh.
        let made = contain(|| self.try_make(&mut go_on));
        let outcome = made.unwrap_or_else(|panic| Err(SnapshotError::Panic(panic)));
        match &outcome {
            Ok((number, bytes)) => {
                let took = begin.elapsed();
                log::info!("{}: snapshot {number}: {} after {took:.1?}", self.name, byte_size::show(*bytes));
                self.idle_since = idle_since;
                self.record.complete(*number, *bytes);
            }
            Err(e) if e.is_interruption() => {
                log::info!("{}: snapshot aborted, earlier snapshots stay: {e}", self.name);
                self.record.give_up(None);
            }
            Err(e) => {
                log::error!("{}: snapshot failed, earlier snapshots stay: {e}", self.name);
                self.record.give_up(Some(e.to_string()));
            }
        }
        outcome.map(drop)
    }

    fn try_make(
        &mut self,
        go_on: &mut impl FnMut(Progress) -> io::Result<()>,
    ) -> Result<(u64, u64), SnapshotError> {
        let (number, out) = self.snapshots.begin()?;
        let Shape { arena, inodes, .. } = self.shape;
        let Identity(identity) = self.dispatcher.identity();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let header = Header { arena, inodes, identity: u128::from_be_bytes(identity), number, time };
        let out = snapshot(&self.dispatcher, &header, out, go_on)?;
        // Lost pages may have been copied as zeroes.
        if rdmabox::memory::is_lost() {
            return Err(SnapshotError::Lost);
        }
        Ok((number, self.snapshots.finish(out)?))
    }
}

/// Orders for the thread.
#[derive(Debug, Default)]
struct Orders {
    now: bool,
    over: bool,
    /// Time from the end of a snapshot to the start of the next.
    every: Option<Duration>,
}

#[derive(Debug, Default)]
struct Shared {
    orders: Mutex<Orders>,
    changed: Condvar,
}

/// Handle of the thread.
#[derive(Debug)]
pub struct Snapshotter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Vec<Job>>>,
}

impl Snapshotter {
    /// Starts the thread. It makes snapshots after each interval of `every`, and on request.
    pub fn start(jobs: Vec<Job>, every: Option<Duration>) -> io::Result<Snapshotter> {
        let orders = Mutex::new(Orders { every, ..Orders::default() });
        let shared = Arc::new(Shared { orders, changed: Condvar::new() });
        let own = Arc::clone(&shared);
        let work = move || work(&own, jobs);
        let thread = std::thread::Builder::new().name("rfs-persist".into()).spawn(work)?;
        Ok(Snapshotter { shared, thread: Some(thread) })
    }

    /// Changes the interval. It counts from the end of the last snapshot, or from the start.
    pub fn set_interval(&self, every: Option<Duration>) {
        self.shared.orders.lock().every = every;
        self.shared.changed.notify_all();
    }

    /// Requests a snapshot of each export. A running snapshot does not satisfy the request, because
    /// it started earlier.
    pub fn ask(&self) {
        self.shared.orders.lock().now = true;
        self.shared.changed.notify_all();
    }

    /// Makes the last snapshots, of exports that no session changes any more. `cut_short` aborts
    /// them.
    ///
    /// # Errors
    /// The exports whose last snapshot failed.
    pub fn finish(mut self, cut_short: &AtomicBool) -> Vec<LastSnapshotError> {
        let mut failed = Vec::new();
        for mut job in self.stop() {
            if job.is_idle() {
                log::info!("{}: nothing has changed since the last snapshot", job.name);
                continue;
            }
            let mut next = Instant::now() + REPORT;
            let name = job.name.clone();
            let made = job.make(|Progress { done, all }| {
                if cut_short.load(Ordering::Relaxed) {
                    return Err(io::Error::new(io::ErrorKind::Interrupted, "a second signal came"));
                }
                if Instant::now() >= next {
                    log::info!(
                        "{name}: the last snapshot: {} of {}",
                        byte_size::show(done),
                        byte_size::show(all)
                    );
                    next = Instant::now() + REPORT;
                }
                Ok(())
            });
            if let Err(source) = made {
                let newest = job.snapshots.newest_file().ok().flatten();
                failed.push(LastSnapshotError { export: job.name, newest, source });
            }
        }
        failed
    }

    /// Stops the thread. Returns its jobs.
    fn stop(&mut self) -> Vec<Job> {
        self.shared.orders.lock().over = true;
        self.shared.changed.notify_all();
        let Some(thread) = self.thread.take() else { return Vec::new() };
        // Snapshots contain their panics, and the thread does little else.
        thread.join().unwrap_or_else(|_| {
            failure::report("the snapshot thread panicked: there is no last snapshot");
            Vec::new()
        })
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work(shared: &Shared, mut jobs: Vec<Job>) -> Vec<Job> {
    if let Err(e) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
        log::debug!("cannot lower the priority of the snapshot thread: {e}");
    }
    while let Some(asked) = wait(shared) {
        for job in &mut jobs {
            if asked || !job.is_idle() {
                // The log has the outcome, and the next interval brings another attempt.
                let _ = job.make(|_| match shared.orders.lock().over {
                    true => Err(io::Error::new(io::ErrorKind::Interrupted, "the server ends")),
                    false => Ok(()),
                });
            }
        }
    }
    jobs
}

/// Blocks until a snapshot is due. Returns whether it was requested; `None` when the server stops.
fn wait(shared: &Shared) -> Option<bool> {
    let begin = Instant::now();
    let mut orders = shared.orders.lock();
    loop {
        if orders.over {
            return None;
        }
        if std::mem::take(&mut orders.now) {
            return Some(true);
        }
        match orders.every.and_then(|every| begin.checked_add(every)) {
            Some(deadline) if Instant::now() >= deadline => return Some(false),
            Some(deadline) => drop(shared.changed.wait_until(&mut orders, deadline)),
            None => shared.changed.wait(&mut orders),
        }
    }
}
